"""From the components of a slide to its table of candidates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.phh3.brown import UNIT
from metaphase.phh3.components import Components, Integers
from metaphase.phh3.config import CandidateConfig
from metaphase.slides import TilePlan

Floats = npt.NDArray[np.float64]

PIXEL_VARIANCE = 1 / 12
"""Of a coordinate within a pixel: with it, a single pixel has the extent of a pixel."""
LEAST_LIKENESS = 0.5
"""Components that are joined differ in area by no more than this ratio."""
COLUMNS = (
    "candidate", "x", "y", "area_um2", "left", "top", "right", "bottom", "dab_mean", "dab_peak",
    "haematoxylin_mean", "major_um", "minor_um", "eccentricity", "extent", "filling", "parts",
)  # fmt: skip
"""`x, y` (centroid) and the bounding box are level-0 pixels. `extent` is the filled share of the bounding
box, `filling` that of the ellipse with the same moments: 1 for a filled ellipse, less for rings."""


def join_figures(components: Components, config: CandidateConfig, mpp: float) -> tuple[Components, Integers]:
    """Join pairs of like components that are one figure; also returns how many parts each then has.

    An anaphase is two plates of about the same size a few micrometres apart. Only pairs are joined, and only
    those that are each other's nearest neighbour.
    """
    group = np.arange(len(components))
    if len(components) > 1 and config.join_um > 0:
        area = components.of("area")
        centres = np.stack([components.of("x") / area, components.of("y") / area], axis=1)
        distance, nearest = (found[:, 1] for found in cKDTree(centres).query(centres, k=2))
        mutual = nearest[nearest] == group
        alike = np.minimum(area, area[nearest]) >= LEAST_LIKENESS * np.maximum(area, area[nearest])
        small = area + area[nearest] <= config.area_px(mpp)[1]
        join = mutual & alike & small & (distance * mpp <= config.join_um)
        group[join] = np.minimum(group, nearest)[join]
    joined = components.merged(group)
    return joined, np.unique(group, return_counts=True)[1]


def candidate_table(components: Components, parts: Integers, plan: TilePlan) -> pd.DataFrame:
    """The table of `COLUMNS`, ordered and numbered by place, top to bottom."""
    area = components.of("area")
    x, y = (components.of(name) / area + 0.5 for name in ("x", "y"))
    left, top = -components.of("minus_left"), -components.of("minus_top")
    right, bottom = components.of("right"), components.of("bottom")
    major, minor = ellipse_axes(components)
    table = pd.DataFrame(
        {
            "candidate": 0,
            "x": plan.x + x * plan.scale,
            "y": plan.y + y * plan.scale,
            "area_um2": area * plan.mpp**2,
            **{name: plan.x + value * plan.scale for name, value in (("left", left), ("right", right))},
            **{name: plan.y + value * plan.scale for name, value in (("top", top), ("bottom", bottom))},
            "dab_mean": components.of("dab") / area * UNIT,
            "dab_peak": components.of("peak") * UNIT,
            "haematoxylin_mean": components.of("haematoxylin") / area * UNIT,
            "major_um": major * plan.mpp,
            "minor_um": minor * plan.mpp,
            "eccentricity": np.sqrt(1 - (minor / major) ** 2),
            "extent": area / ((right - left) * (bottom - top)),
            "filling": ellipse_filling(components),
            "parts": parts,
        }
    )
    table = table.sort_values(["y", "x"], kind="stable", ignore_index=True)
    return table.assign(candidate=np.arange(len(table)))[list(COLUMNS)]


def ellipse_filling(components: Components) -> Floats:
    """Area relative to the ellipse of the same moments: 1 for a filled ellipse, less for rings."""
    major, minor = ellipse_axes(components)
    return components.of("area") / (np.pi / 4 * major * minor)


def ellipse_axes(components: Components) -> tuple[Floats, Floats]:
    """Full lengths in pixels of the axes of the ellipse that has the component's area moments."""
    area = components.of("area")
    x, y, xx, xy, yy = _from_own_corner(components)
    var_x = (xx - x * (x / area)) / area + PIXEL_VARIANCE
    var_y = (yy - y * (y / area)) / area + PIXEL_VARIANCE
    covariance = (xy - x * (y / area)) / area
    middle, half = (var_x + var_y) / 2, np.sqrt(((var_x - var_y) / 2) ** 2 + covariance**2)
    return 4 * np.sqrt(middle + half), 4 * np.sqrt(np.maximum(middle - half, PIXEL_VARIANCE))


def _from_own_corner(components: Components) -> tuple[Integers, ...]:
    """Sums of x, y, xx, xy, yy counted from the bounding box: exact, and small enough for floats."""
    area, x, y, xx, xy, yy = (components.of(name) for name in ("area", "x", "y", "xx", "xy", "yy"))
    u, v = -components.of("minus_left"), -components.of("minus_top")
    return (
        x - u * area,
        y - v * area,
        xx - 2 * u * x + u * u * area,
        xy - u * y - v * x + u * v * area,
        yy - 2 * v * y + v * v * area,
    )
