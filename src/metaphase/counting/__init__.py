"""From detections to the clinical number: hotspot, mitotic count, grade, proliferation score, uncertainty."""

from metaphase.counting.calibration import CalibratedCount, Calibration
from metaphase.counting.clinical import (
    ShownGrade,
    SlideCount,
    background_doubt,
    count_slide,
    counts_table,
    uncalibrated_doubt,
)
from metaphase.counting.hotspot import Hotspot, busiest_circle
from metaphase.counting.maps import DensityMap
from metaphase.counting.specimen import CountConfig
from metaphase.counting.uncertainty import atypical_share

__all__ = [
    "CalibratedCount",
    "Calibration",
    "CountConfig",
    "DensityMap",
    "Hotspot",
    "ShownGrade",
    "SlideCount",
    "atypical_share",
    "background_doubt",
    "busiest_circle",
    "count_slide",
    "counts_table",
    "uncalibrated_doubt",
]
