"""Each point by itself: one pair of tiles, checked against its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.base.arrays import Floats, Points
from metaphase.labels.registration.correlation import Consensus, consensus
from metaphase.labels.registration.pair import MIN_STRENGTH, Registration
from metaphase.labels.registration.tiles import Shifts, View, measure

# ---- how likely a registered point is right to 2 um ----


FARTHEST_UM = 1000.0
"""Neighbours farther away than this say nothing about a point."""
LARGEST = 10.0
"""Deviations and spreads beyond this are all the same."""
MEASURED_WEIGHTS = (4.582, 1.405, -2.093, -0.409)
CONSENSUS_WEIGHTS = (4.927, -1.322, -2.975)
"""Logistic weights of the features below (`recipes/calibration/registration_confidence.py` at fe38706)."""


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


# ---- each point by itself ----

MEASURED, CONSENSUS, REJECTED = "measured", "consensus", "rejected"
COLUMNS = (
    "x_phh3",
    "y_phh3",
    "x_he",
    "y_he",
    "method",
    "confidence",
    "accepted",
    "reason",
    "shift_x_um",
    "shift_y_um",
    "peak",
    "peak_ratio",
    "strength",
    "deviation_um",
    "neighbours",
    "neighbour_spread_um",
    "neighbour_distance_um",
)
MIN_NEIGHBOURS = 3
SCATTER = 3.0
"""A shift contradicts its neighbours when it is this many of their own spreads away from them."""
MIN_TISSUE = 0.05
"""Share of the tile that must be tissue for it to be compared."""


def register_points(registration: Registration, points: npt.ArrayLike) -> pd.DataFrame:
    """H&E positions of PHH3 points (n, 2), level-0 pixels, one row each in the same order.

    `method` says whether the point's own tiles decided (`measured`), its neighbours (`consensus`, where the
    point's own shift contradicts them), or nothing could (`rejected`); `confidence` is the probability that
    the place is right to 2 um, and `reason` says what was wrong. Rejected points have no place.
    """
    positions = np.asarray(points, np.float64).reshape(-1, 2) * registration.transform.phh3_mpp
    state = _state(registration, positions)
    comparable = state == ""
    found = _measured(registration, positions, comparable)
    strength = registration.null.strength(found.heights)
    nearby = _neighbourhood(registration, found, comparable & (strength >= MIN_STRENGTH))
    deviation = np.linalg.norm(found.shifts - nearby.shifts, axis=1)
    chosen = _decide(registration, state, strength, deviation, nearby)
    return _table(registration, found, nearby, strength, deviation, chosen)


@dataclass(frozen=True)
class _Decision:
    method: npt.NDArray[np.object_]
    reason: npt.NDArray[np.object_]


def _state(registration: Registration, positions: Points) -> npt.NDArray[np.object_]:
    """Why a position cannot be compared, or nothing."""
    state = np.full(len(positions), "", object)
    pair = registration.pair
    sides = (("PHH3", pair.phh3, positions), ("H&E", pair.he, registration.transform.apply(positions)))
    for name, view, there in sides:
        outside = ((there < 0) | (there >= view.size_um)).any(axis=1)
        state[(state == "") & outside] = f"outside the {name} slide"
    for name, view, there in sides:
        bare = ~_has_tissue(view, there, registration.shape.tile_um)
        state[(state == "") & bare] = f"no tissue here on the {name} slide"
    if registration.verdict.status == "failed":
        state[:] = "the registration failed"
    return state


def _has_tissue(view: View, positions_um: Points, tile_um: float) -> npt.NDArray[np.bool_]:
    """Whether the tile around each position has some tissue."""
    tissue = view.tissue
    cells = np.floor((positions_um / view.slide.mpp - (tissue.x, tissue.y)) / tissue.scale).astype(int)
    half = max(1, round(tile_um / 2 / tissue.mpp))
    table = np.pad(tissue.mask.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    rows, columns = tissue.mask.shape
    x0, x1 = (np.clip(cells[:, 0] + d, 0, columns) for d in (-half, half + 1))
    y0, y1 = (np.clip(cells[:, 1] + d, 0, rows) for d in (-half, half + 1))
    count = table[y1, x1] - table[y0, x1] - table[y1, x0] + table[y0, x0]
    return np.asarray(count >= MIN_TISSUE * (2 * half + 1) ** 2)


def _measured(registration: Registration, positions: Points, which: npt.NDArray[np.bool_]) -> Shifts:
    """Shifts of the comparable positions; 0 for the others."""
    some = measure(registration.pair, registration.transform, positions[which], registration.shape)
    every = Shifts(positions, np.zeros_like(positions), np.zeros(len(positions)), np.ones(len(positions)))
    for name in ("shifts", "heights", "ratios"):
        getattr(every, name)[which] = getattr(some, name)
    return every


def _neighbourhood(registration: Registration, found: Shifts, strong: npt.NDArray[np.bool_]) -> Consensus:
    """What the control tiles and the other strong points around each point say."""
    controls = registration.controls
    voters = np.concatenate([controls.positions, found.positions[strong]])
    shifts = np.concatenate([controls.shifts, found.shifts[strong]])
    own = np.where(strong, len(controls) + np.cumsum(strong) - 1, -1)
    return consensus(found.positions, voters, shifts, registration.config.neighbours, own=own)


def _decide(
    registration: Registration,
    state: npt.NDArray[np.object_],
    strength: npt.NDArray[np.float64],
    deviation: npt.NDArray[np.float64],
    nearby: Consensus,
) -> _Decision:
    """Own shift where it is strong and agrees; else the neighbours', where they agree; else nothing."""
    config, mpp = registration.config, registration.shape.mpp
    tolerance = config.tolerance_px * mpp
    scatter = np.where(np.isfinite(nearby.spreads), nearby.spreads, 0)
    weak, apart = strength < MIN_STRENGTH, deviation > np.maximum(tolerance, SCATTER * scatter)
    alone = nearby.counts < MIN_NEIGHBOURS
    united = ~alone & (nearby.spreads <= tolerance / 2) & (nearby.distances <= FARTHEST_UM * mpp / config.mpp)
    method = np.full(len(state), REJECTED, object)
    reason = np.full(len(state), "", object)
    comparable = state == ""
    own = comparable & ~weak & (~apart | alone)
    method[own] = MEASURED
    lent = comparable & ~own & united
    method[lent] = CONSENSUS
    reason[weak] = "no clear match"
    reason[~weak & apart] = "its own shift contradicts its neighbours"
    reason[own] = np.where(alone[own], "no neighbours to compare with", "")
    lost = comparable & ~own & ~lent
    reason[lost] = np.array([f"{text}, and these do not agree" for text in reason[lost]], object)
    reason[~comparable] = state[~comparable]
    return _Decision(method, reason)


def _table(
    registration: Registration,
    found: Shifts,
    nearby: Consensus,
    strength: npt.NDArray[np.float64],
    deviation: npt.NDArray[np.float64],
    chosen: _Decision,
) -> pd.DataFrame:
    transform = registration.transform
    is_own, is_lent = chosen.method == MEASURED, chosen.method == CONSENSUS
    shift = np.where(is_own[:, None], found.shifts, np.where(is_lent[:, None], nearby.shifts, 0.0))
    there = transform.apply(found.positions + shift) / transform.he_mpp
    scale = registration.shape.mpp / registration.config.mpp
    confidence = np.zeros(len(found))
    spread = nearby.spreads / scale
    confidence[is_own] = measured_confidence(found.ratios, deviation / scale, spread, nearby.counts)[is_own]
    confidence[is_lent] = consensus_confidence(spread, nearby.distances / scale)[is_lent]
    there[chosen.method == REJECTED] = np.nan
    here = found.positions / transform.phh3_mpp
    values = (
        *(here[:, 0], here[:, 1], there[:, 0], there[:, 1], chosen.method, confidence),
        *(chosen.method != REJECTED, chosen.reason, shift[:, 0], shift[:, 1], found.heights, found.ratios),
        *(strength, deviation, nearby.counts, nearby.spreads, nearby.distances),
    )
    return pd.DataFrame(dict(zip(COLUMNS, values, strict=True)))
