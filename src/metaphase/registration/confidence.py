"""How likely a registered point is right to 2 um, learnt from simulated pairs with exact truth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RIGHT_UM = 2.0
"""A point counts as right when it lies this close to its true place."""
FARTHEST_UM = 1000.0
"""Neighbours farther away than this say nothing about a point."""
LARGEST = 10.0
"""Deviations and spreads beyond this are all the same."""
MEASURED_WEIGHTS = (4.582, 1.405, -2.093, -0.409)
CONSENSUS_WEIGHTS = (4.927, -1.322, -2.975)
"""Logistic weights of the features below, as `benchmarks/registration_calibration.py` prints them."""


def measured_features(ratio: Floats, deviation_um: Floats, spread_um: Floats) -> Floats:
    """(n, 4): 1, log of the peak ratio, deviation from the neighbours, their spread in um.

    The deviation is in um where the neighbours agree to 1 um or better, and in their spreads elsewhere.
    Strength adds nothing to the ratio, so it is left out.
    """
    spread = np.where(np.isfinite(spread_um), spread_um, 0)
    deviation = np.minimum(deviation_um / np.maximum(spread, 1), LARGEST)
    return np.stack([np.ones_like(ratio), np.log(ratio), deviation, np.minimum(spread, LARGEST)], axis=1)


def consensus_features(spread_um: Floats, distance_um: Floats) -> Floats:
    """(n, 3): 1, spread of the neighbours in um, distance of the farthest in mm."""
    far = np.minimum(distance_um, FARTHEST_UM) / 1000
    return np.stack([np.ones_like(far), np.minimum(spread_um, LARGEST), far], axis=1)


def measured_confidence(
    ratio: Floats, deviation_um: Floats, spread_um: Floats, neighbours: npt.NDArray[np.int64]
) -> Floats:
    """Of points that their own tiles decided; without neighbours half of it, since nothing confirms it."""
    chance = _logistic(measured_features(ratio, deviation_um, spread_um), MEASURED_WEIGHTS)
    return np.where(neighbours > 0, chance, chance / 2)


def consensus_confidence(spread_um: Floats, distance_um: Floats) -> Floats:
    """Of points that take the shift of their neighbours."""
    return _logistic(consensus_features(spread_um, distance_um), CONSENSUS_WEIGHTS)


def _logistic(features: Floats, weights: tuple[float, ...]) -> Floats:
    return np.asarray(1 / (1 + np.exp(-features @ np.array(weights))), np.float64)
