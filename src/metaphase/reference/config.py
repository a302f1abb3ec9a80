"""Which points of a PHH3 slide become part of the reference standard."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from metaphase.errors import UsageError


@dataclass(frozen=True, slots=True)
class ReferenceConfig:
    """Conditions for a point to be accepted; one that fails any is kept in the table with the reason."""

    min_probability: float = 0.0
    """Least probability of the PHH3 network; its own decision has been taken already."""
    min_confidence: float = 0.5
    """Least probability that the place in H&E is right to 2 um."""
    min_contrast: float = 1.1
    """Least darkness of the object in H&E relative to dark nuclei around it; see `VisibilityConfig`."""
    require_visible: bool = True
    """Whether what PHH3 shows must show in H&E, too. If not, the flag is set and nothing else."""
    accept_doubtful: bool = False
    """Whether points of a pair whose registration is doubtful are accepted: after looking at its picture."""
    min_distance_um: float = 7.5
    """Accepted points closer than this are one figure, such as the two plates of an anaphase: the more
    probable one stands for both."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            share = field.name in ("min_probability", "min_confidence")
            if not math.isfinite(value) or value < 0 or (share and value > 1):
                raise UsageError(
                    f"reference setting {field.name} is {value}",
                    next_step="give a number from 0 to 1" if share else "give a number of at least 0",
                )
