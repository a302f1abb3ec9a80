"""From detections to the clinical number: hotspot, mitotic count, grade, proliferation score, uncertainty."""

from metaphase.grading.config import GradingConfig
from metaphase.grading.density import DensityMap
from metaphase.grading.hotspot import Hotspot, busiest_circle
from metaphase.grading.score import SlideScore, score_slide
from metaphase.grading.table import scores_table

__all__ = [
    "DensityMap",
    "GradingConfig",
    "Hotspot",
    "SlideScore",
    "busiest_circle",
    "score_slide",
    "scores_table",
]
