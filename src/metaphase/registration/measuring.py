"""What single pairs of tiles say: shift, height of the peak, its sharpness, and what chance would give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metaphase.registration.correlation import find_peak
from metaphase.registration.similarity import Points
from metaphase.registration.tiles import Mapping, SlidePair, TileShape, heat_maps, shuffled_heat_maps

Floats = npt.NDArray[np.float64]

EXCLUSION_PX = 10.0
"""The second peak lies at least this far from the first: a nucleus's width."""
NULL_TILES, NULL_ROUNDS = 24, 4
"""The null distribution comes from so many tiles, each compared with so many wrong places."""


@dataclass(frozen=True)
class Shifts:
    """Measured shifts, one row a place; `places` in PHH3 um."""

    places: Points
    shifts: Points
    """Where the tile matched best, relative to where it was expected, in PHH3 um."""
    heights: Floats
    """Correlation coefficient at the peak."""
    ratios: Floats
    """Peak over second peak."""

    def __len__(self) -> int:
        return len(self.places)

    def chosen(self, which: npt.NDArray[np.bool_]) -> Shifts:
        """The rows at `which`."""
        return Shifts(self.places[which], self.shifts[which], self.heights[which], self.ratios[which])


def measure(pair: SlidePair, mapping: Mapping, places_um: Points, shape: TileShape) -> Shifts:
    """Compare one pair of tiles for each PHH3 place (n, 2)."""
    peaks = [find_peak(heat, EXCLUSION_PX) for heat in heat_maps(pair, mapping, places_um, shape)]
    rows = np.array([(p.x, p.y, p.height, p.ratio) for p in peaks], float).reshape(-1, 4)
    return Shifts(places_um, rows[:, :2] * shape.mpp, rows[:, 2], rows[:, 3])


@dataclass(frozen=True)
class Null:
    """Peak heights of tiles compared with wrong places of the same slides."""

    heights: Floats

    @property
    def centre(self) -> float:
        """Median height."""
        return float(np.median(self.heights)) if len(self.heights) else 0.0

    @property
    def spread(self) -> float:
        """Standard deviation, taken from the median absolute deviation."""
        if not len(self.heights):
            return SMALLEST_SPREAD
        return max(1.4826 * float(np.median(np.abs(self.heights - self.centre))), SMALLEST_SPREAD)

    def strength(self, heights: Floats) -> Floats:
        """How many standard deviations heights stand above those of wrong places."""
        return (heights - self.centre) / self.spread

    def separation(self, heights: Floats) -> float:
        """Chance that a right place is higher than a wrong one (0.5: they cannot be told apart)."""
        if not len(heights) or not len(self.heights):
            return 0.5
        above = heights[:, None] - self.heights[None]
        return float((np.sign(above).mean() + 1) / 2)


SMALLEST_SPREAD = 0.01


def measure_nulls(
    pair: SlidePair, mapping: Mapping, places_um: Points, wide: TileShape, narrow: TileShape
) -> tuple[Null, Null]:
    """Heights of peaks between tiles and windows of different places, for a wide and a narrow search."""
    margin = wide.search_px - narrow.search_px
    maps = shuffled_heat_maps(pair, mapping, places_um[:NULL_TILES], wide, NULL_ROUNDS)
    heights = np.array(
        [
            (heat.max(), heat[margin : heat.shape[0] - margin, margin : heat.shape[1] - margin].max())
            for heat in maps
        ],
        float,
    ).reshape(-1, 2)
    return Null(heights[:, 0]), Null(heights[:, 1])
