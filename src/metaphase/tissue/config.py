"""What counts as tissue, in physical units."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from metaphase.errors import UsageError


@dataclass(frozen=True, slots=True)
class TissueConfig:
    """Settings of the tissue mask. The defaults serve H&E and immunohistochemistry alike."""

    mpp: float = 8.0
    """Working resolution in um/px; 4 holds faint fat a little better than 8, at four times the memory."""

    min_colour: float = 0.025
    """Least difference of absorbance (natural log) between colour channels that counts as stain."""

    min_density: float = 0.02
    """Least mean absorbance (natural log), above the glass nearby, that counts as stain without colour."""

    bridge_um: float = 60.0
    """Gaps narrower than this are closed: clefts, and the torn walls of fat cells."""

    thread_um: float = 48.0
    """Grey lines thinner than this (coverslip edge, scratch, rim of a bubble) are not tissue."""

    min_object_um2: float = 20_000.0
    """Smaller pieces are dust or debris; 20,000 um2 is a disc 160 um across."""

    min_hole_um2: float = 100_000.0
    """Smaller holes are filled: fat vacuoles, lumens; 50,000 um2 is a disc 250 um across."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0 or (value == 0 and field.name == "mpp"):
                raise UsageError(
                    f"tissue setting {field.name} is {value}",
                    next_step=f"give a number that is {'above' if field.name == 'mpp' else 'at least'} 0",
                )
