"""From detections to the clinical number: hotspot, mitotic count, grade, proliferation score, uncertainty."""

from metaphase.counting.calibration import CalibratedCount, SiteCalibration, atypical_share
from metaphase.counting.clinical import (
    Count,
    ShownGrade,
    SlideCount,
    count_doubts,
    count_slide,
    count_text,
    counts_in,
    counts_table,
)
from metaphase.counting.hotspot import Hotspot, busiest_circle
from metaphase.counting.maps import DensityMap
from metaphase.counting.specimen import CountConfig

__all__ = [
    "CalibratedCount",
    "Count",
    "CountConfig",
    "DensityMap",
    "Hotspot",
    "ShownGrade",
    "SiteCalibration",
    "SlideCount",
    "atypical_share",
    "busiest_circle",
    "count_doubts",
    "count_slide",
    "count_text",
    "counts_in",
    "counts_table",
]
