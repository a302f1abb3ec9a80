"""The reference standard: mitoses of a PHH3 slide in H&E coordinates, each with where it came from.

`place_points` registers a pair and carries its points over, `decide` says which of them are accepted and why,
and `apply_decisions` lets people overrule it. `build_reference` does the first two.
"""

from metaphase.reference.building import Placement, build_reference, place_points
from metaphase.reference.config import ReferenceConfig
from metaphase.reference.decisions import Applied, apply_decisions, read_decisions, write_decisions
from metaphase.reference.errors import ReferenceStandardError
from metaphase.reference.saving import read_reference, write_reference
from metaphase.reference.table import COLUMNS, decide
from metaphase.reference.visibility import VisibilityConfig, contrast, measure_contrast

__all__ = [
    "COLUMNS",
    "Applied",
    "Placement",
    "ReferenceConfig",
    "ReferenceStandardError",
    "VisibilityConfig",
    "apply_decisions",
    "build_reference",
    "contrast",
    "decide",
    "measure_contrast",
    "place_points",
    "read_decisions",
    "read_reference",
    "write_decisions",
    "write_reference",
]
