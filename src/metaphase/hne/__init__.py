"""The H&E detector's training data: candidates, easy and difficult sets, soft targets.

`metaphase.hne.scoring` (networks that score candidates) is imported by itself, since it needs torch.
"""

from metaphase.hne.candidates import (
    CandidateError,
    Candidates,
    find_candidates,
    load_candidates,
    save_candidates,
)
from metaphase.hne.config import CandidateConfig, LabelConfig, MiningConfig, SetConfig
from metaphase.hne.labelling import IGNORED, NEGATIVE, POSITIVE, check_reference, label_candidates, recalled
from metaphase.hne.mining import SOFT_TARGET, Mining, PatchScorer, Scorer
from metaphase.hne.sets import easy_negatives, hard_column, hard_negatives, positives, validation_set
from metaphase.hne.sources import StandardisedSlide, TrainingSlide, opened
from metaphase.hne.stores import add_answers, write_store
from metaphase.hne.suppression import DarkestFirst, darkest_points

__all__ = [
    "IGNORED",
    "NEGATIVE",
    "POSITIVE",
    "SOFT_TARGET",
    "CandidateConfig",
    "CandidateError",
    "Candidates",
    "DarkestFirst",
    "LabelConfig",
    "Mining",
    "MiningConfig",
    "PatchScorer",
    "Scorer",
    "SetConfig",
    "StandardisedSlide",
    "TrainingSlide",
    "add_answers",
    "check_reference",
    "darkest_points",
    "easy_negatives",
    "find_candidates",
    "hard_column",
    "hard_negatives",
    "label_candidates",
    "load_candidates",
    "opened",
    "positives",
    "recalled",
    "save_candidates",
    "validation_set",
    "write_store",
]
