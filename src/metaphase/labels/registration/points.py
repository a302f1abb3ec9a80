"""Each point by itself: one pair of tiles, checked against its neighbours."""

from __future__ import annotations

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
"""Logistic weights, the constant first (`recipes/calibration/registration_confidence.py` at fe38706)."""


def measured_confidence(
    ratio: Floats, deviation_um: Floats, spread_um: Floats, neighbours: npt.NDArray[np.int64]
) -> Floats:
    """Of points that their own tiles decided; without neighbours half of it, since nothing confirms it.

    The deviation is in um where the neighbours agree to 1 um or better, and in their spreads elsewhere.
    Strength adds nothing to the ratio, so it is left out.
    """
    spread = np.where(np.isfinite(spread_um), spread_um, 0)
    deviation = np.minimum(deviation_um / np.maximum(spread, 1), LARGEST)
    chance = _logistic(MEASURED_WEIGHTS, np.log(ratio), deviation, np.minimum(spread, LARGEST))
    return np.where(neighbours > 0, chance, chance / 2)


def consensus_confidence(spread_um: Floats, distance_um: Floats) -> Floats:
    """Of points that take the shift of their neighbours, the farthest of which is at that distance."""
    far_mm = np.minimum(distance_um, FARTHEST_UM) / 1000
    return _logistic(CONSENSUS_WEIGHTS, np.minimum(spread_um, LARGEST), far_mm)


def _logistic(weights: tuple[float, ...], *features: Floats) -> Floats:
    known = np.stack([np.ones_like(features[0]), *features], axis=1)
    return np.asarray(1 / (1 + np.exp(-known @ np.array(weights))), np.float64)


# ---- each point by itself ----

MEASURED, CONSENSUS, REJECTED = "measured", "consensus", "rejected"
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
    method, reason = _decide(registration, state, strength, deviation, nearby)
    transform, scale = registration.transform, registration.shape.mpp / registration.config.mpp
    is_own, is_lent, accepted = method == MEASURED, method == CONSENSUS, method != REJECTED
    shift = np.where(is_own[:, None], found.shifts, np.where(is_lent[:, None], nearby.shifts, 0.0))
    there = transform.apply(found.positions + shift) / transform.he_mpp
    there[~accepted] = np.nan
    confidence, spread = np.zeros(len(found)), nearby.spreads / scale
    confidence[is_own] = measured_confidence(found.ratios, deviation / scale, spread, nearby.counts)[is_own]
    confidence[is_lent] = consensus_confidence(spread, nearby.distances / scale)[is_lent]
    here = found.positions / transform.phh3_mpp
    return pd.DataFrame(
        {
            "x_phh3": here[:, 0],
            "y_phh3": here[:, 1],
            "x_he": there[:, 0],
            "y_he": there[:, 1],
            "method": method,
            "confidence": confidence,
            "accepted": accepted,
            "reason": reason,
            "shift_x_um": shift[:, 0],
            "shift_y_um": shift[:, 1],
            "peak": found.heights,
            "peak_ratio": found.ratios,
            "strength": strength,
            "deviation_um": deviation,
            "neighbours": nearby.counts,
            "neighbour_spread_um": nearby.spreads,
            "neighbour_distance_um": nearby.distances,
        }
    )


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
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    """Own shift where it is strong and agrees; else the neighbours', where they agree; else none; and why."""
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
    return method, reason
