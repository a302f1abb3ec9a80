"""Metrics for a critical reader, on anybody's detections: the three TUPAC tasks, tuning, observers."""

from metaphase.evaluation.grades import AgreementResult, evaluate_grade, evaluate_proliferation
from metaphase.evaluation.marks import MatchingConfig
from metaphase.evaluation.metrics import BootstrapConfig, Estimate
from metaphase.evaluation.mitoses import MitosisResult, evaluate_mitoses
from metaphase.evaluation.observers import (
    ObserverResult,
    ObserverStudy,
    StudyConfig,
    export_observers,
    read_observers,
)
from metaphase.evaluation.tuning import tune_count, tune_mitoses

__all__ = [
    "AgreementResult",
    "BootstrapConfig",
    "Estimate",
    "MatchingConfig",
    "MitosisResult",
    "ObserverResult",
    "ObserverStudy",
    "StudyConfig",
    "evaluate_grade",
    "evaluate_mitoses",
    "evaluate_proliferation",
    "export_observers",
    "read_observers",
    "tune_count",
    "tune_mitoses",
]
