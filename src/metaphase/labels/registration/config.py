"""How a pair of slides is registered, in physical units where it matters."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from metaphase.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class RegistrationConfig:
    """Settings of a registration. Sizes in pixels are pixels at `mpp`, so they grow with it."""

    mpp: float = 0.5
    """Finest resolution at which tiles are compared, in um/px; a coarser slide sets its own."""
    seed: int = 0
    """Where the random tiles lie."""
    tiles: int = 10
    """Pairs of tiles whose heat maps are averaged at each resolution (the paper's 10)."""
    tile_px: int = 256
    """Side of the tiles: 128 um at the finest resolution, more at coarser ones."""
    coarse_px: int = 384
    """Longer side of the overviews with which the search starts."""
    checks: int = 100
    """Fresh pairs of tiles that the verdict rests on."""
    controls: int = 400
    """At most so many tiles, spread over the tissue, measure the local field ..."""
    control_spacing_um: float = 75.0
    """... no closer to each other than this."""
    search_px: int = 40
    """How far from the expected place a tile is looked for: 20 um."""
    tolerance_px: float = 8.0
    """Tiles agree when their shifts differ by no more than this: 4 um."""
    neighbours: int = 8
    """How many measured shifts nearby make a consensus."""
    max_scale_error: float = 0.02
    """A larger difference between the slides' scales means that one stated resolution is wrong."""
    any_stains: bool = False
    """Accept pairs that are not H&E with brown immunohistochemistry."""

    def __post_init__(self) -> None:
        at_least = {"seed": 0, "tiles": 3, "tile_px": 64, "coarse_px": 128, "checks": 8, "controls": 0}
        at_least |= {"search_px": 8, "neighbours": 3}
        for field in fields(self):
            value = getattr(self, field.name)
            low = at_least.get(field.name, 0)
            if not math.isfinite(value) or value < low or (value == 0 and field.name not in at_least | FLAGS):
                raise UsageError(
                    f"registration setting {field.name} is {value}",
                    next_step=f"give a number {'of at least' if low else 'above'} {low}",
                )


FLAGS = {"any_stains": 0}
