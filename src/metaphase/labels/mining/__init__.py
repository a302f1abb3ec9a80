"""The H&E detector's training data: candidates, easy and difficult sets, soft targets.

`judging` (networks that are asked about candidates) is imported by itself, since it needs torch.
"""

from metaphase.labels.mining.candidates import (
    CandidateError,
    Candidates,
    find_candidates,
    load_candidates,
    save_candidates,
)
from metaphase.labels.mining.config import CandidateConfig, LabelConfig, MiningConfig, SetConfig
from metaphase.labels.mining.darkest import DarkestFirst
from metaphase.labels.mining.labelling import (
    IGNORED,
    NEGATIVE,
    POSITIVE,
    check_reference,
    label_candidates,
    recalled,
)
from metaphase.labels.mining.mining import (
    SOFT_TARGET,
    Mining,
    PatchJudge,
    PlaceJudge,
    StandardisedSlide,
    TrainingSlide,
    opened,
)
from metaphase.labels.mining.sets import (
    easy_negatives,
    hard_column,
    hard_negatives,
    positives,
    validation_set,
)
from metaphase.labels.mining.stores import add_answers, write_store

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
    "PatchJudge",
    "PlaceJudge",
    "SetConfig",
    "StandardisedSlide",
    "TrainingSlide",
    "add_answers",
    "check_reference",
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
