"""Detecting mitoses in whole slides: one slide's job, resumable tile by tile."""

from metaphase.pipeline.detection.config import DetectionConfig
from metaphase.pipeline.detection.detecting import detect_slide
from metaphase.pipeline.detection.models import Detector, load_detector
from metaphase.pipeline.detection.outputs import write_cohort_tables
from metaphase.pipeline.detection.result import Findings, SlideOutcome

__all__ = [
    "DetectionConfig",
    "Detector",
    "Findings",
    "SlideOutcome",
    "detect_slide",
    "load_detector",
    "write_cohort_tables",
]
