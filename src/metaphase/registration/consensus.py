"""What the neighbours of a place say about its shift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from metaphase.registration.similarity import Points

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Consensus:
    """The robust opinion of the neighbours of each place."""

    shifts: Points
    """Median shift of the neighbours; 0 without any."""
    spreads: Floats
    """Standard deviation of a neighbour about it, from the median deviation; infinite without two."""
    counts: npt.NDArray[np.int64]
    distances: Floats
    """To the farthest neighbour counted; infinite without any."""


def consensus(
    places: Points, voters: Points, shifts: Points, neighbours: int, *, own: npt.NDArray[np.int64]
) -> Consensus:
    """Median over the nearest `neighbours` voters of each place, never counting the voter `own` (or -1)."""
    if not len(voters) or not len(places):
        nothing = np.full(len(places), np.inf)
        return Consensus(np.zeros((len(places), 2)), nothing, np.zeros(len(places), np.int64), nothing)
    distance, index = cKDTree(voters).query(places, k=min(neighbours + 1, len(voters)))
    distance, index = distance.reshape(len(places), -1), index.reshape(len(places), -1)
    counted = index != own[:, None]
    counted &= np.cumsum(counted, axis=1) <= neighbours
    return _opinion(shifts, distance, index, counted)


def _opinion(
    shifts: Points, distance: Floats, index: npt.NDArray[np.int64], counted: npt.NDArray[np.bool_]
) -> Consensus:
    votes = np.where(counted[..., None], shifts[index], np.nan)
    counts = counted.sum(axis=1)
    median = np.zeros((len(index), 2))
    spread = np.full(len(index), np.inf)
    some, several = counts > 0, counts > 1
    median[some] = np.nanmedian(votes[some], axis=1)
    miss = np.linalg.norm(votes[several] - median[several, None], axis=2)
    spread[several] = 1.4826 * np.nanmedian(miss, axis=1)
    farthest = np.where(counted, distance, -np.inf).max(axis=1, initial=-np.inf)
    return Consensus(median, spread, counts.astype(np.int64), np.where(some, farthest, np.inf))
