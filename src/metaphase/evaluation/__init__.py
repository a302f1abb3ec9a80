"""Metrics a reviewer would believe, on anybody's detections: the three TUPAC tasks, tuning, observers."""

from metaphase.evaluation.bootstrap import Estimate
from metaphase.evaluation.card import Tuned, load_tuned, save_tuned
from metaphase.evaluation.config import BootstrapConfig, MatchingConfig
from metaphase.evaluation.mitoses import MitosisResult, evaluate_mitoses
from metaphase.evaluation.observer_files import ObserverStudy, export_observers, read_observers
from metaphase.evaluation.observers import ObserverResult, StudyConfig
from metaphase.evaluation.scores import ScoreResult, evaluate_grade, evaluate_proliferation
from metaphase.evaluation.tuning import tune_grade, tune_mitoses, tune_proliferation

__all__ = [
    "BootstrapConfig",
    "Estimate",
    "MatchingConfig",
    "MitosisResult",
    "ObserverResult",
    "ObserverStudy",
    "ScoreResult",
    "StudyConfig",
    "Tuned",
    "evaluate_grade",
    "evaluate_mitoses",
    "evaluate_proliferation",
    "export_observers",
    "load_tuned",
    "read_observers",
    "save_tuned",
    "tune_grade",
    "tune_mitoses",
    "tune_proliferation",
]
