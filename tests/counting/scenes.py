"""Points with a known arrangement, and slow but plain ways to count them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from metaphase.images.tissue.finding import TissueMask

Floats = npt.NDArray[np.float64]
MPP = 0.25

positions_um = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 12), st.just(2)),
    elements=st.floats(-5000, 5000, allow_nan=False).map(lambda value: round(value, 2)),
)


def table(points_um: Floats, probability: float | Floats = 1.0, mpp: float = MPP) -> pd.DataFrame:
    points = np.asarray(points_um, float).reshape(-1, 2) / mpp
    return pd.DataFrame({"x": points[:, 0], "y": points[:, 1], "probability": probability})


def all_tissue(width_um: float, height_um: float, mpp: float = 8.0) -> TissueMask:
    shape = (round(height_um / mpp), round(width_um / mpp))
    return TissueMask(np.ones(shape, np.bool_), mpp, 0.0, 0.0, mpp / MPP)


def most_in_a_circle(points_um: Floats, radius_um: float) -> int:
    """The best of all circles, by trying those with a point in the middle or two points on the rim."""
    centres = [*points_um]
    for first, second in combinations(points_um, 2):
        across = second - first
        distance = float(np.hypot(*across))
        if 0 < distance <= 2 * radius_um:
            aside = np.array([-across[1], across[0]]) / distance * np.sqrt(radius_um**2 - distance**2 / 4)
            centres += [(first + second) / 2 + aside, (first + second) / 2 - aside]
    distances = np.linalg.norm(np.array(centres)[:, None] - points_um, axis=-1)
    return int((distances <= radius_um + 1e-7).sum(axis=1).max())
