"""The reference standard: mitoses of a PHH3 slide in H&E coordinates, each with where it came from.

`place_points` registers a pair and carries its points over, `decide` says which of them are accepted and why,
and `apply_decisions` lets people overrule it.
"""

from metaphase.labels.reference.building import (
    Placement,
    VisibilityConfig,
    contrast,
    measure_contrast,
    place_points,
)
from metaphase.labels.reference.decisions import Applied, apply_decisions, read_decisions, write_decisions
from metaphase.labels.reference.table import (
    COLUMNS,
    ReferenceConfig,
    ReferenceStandardError,
    decide,
    read_reference,
    write_reference,
)

__all__ = [
    "COLUMNS",
    "Applied",
    "Placement",
    "ReferenceConfig",
    "ReferenceStandardError",
    "VisibilityConfig",
    "apply_decisions",
    "contrast",
    "decide",
    "measure_contrast",
    "place_points",
    "read_decisions",
    "read_reference",
    "write_decisions",
    "write_reference",
]
