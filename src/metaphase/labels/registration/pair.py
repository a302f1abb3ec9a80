"""Registering a pair of slides: one similarity, a smooth field, a verdict; and single points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree
from scipy.special import expit

from metaphase.base.arrays import Floats, Mask, Points
from metaphase.base.later import pandas as pd
from metaphase.labels.registration.correlation import Consensus, Image, consensus, find_peak
from metaphase.labels.registration.evidence import (
    FAILED_SHARE,
    LOOSER,
    MIN_STRENGTH,
    NOTHING,
    RELIABLE_UM,
    Evidence,
    Verdict,
    gather_evidence,
    glance,
    judge,
)
from metaphase.labels.registration.similarity import (
    ALL_DEG,
    EXPECTED_DEG,
    SCALES,
    RegistrationConfig,
    Similarity,
    align,
    fit_robustly,
    search,
    tile_px_for,
)
from metaphase.labels.registration.tiles import (
    Null,
    Shifts,
    SlidePair,
    TileShape,
    detail,
    heat_maps,
    measure,
    measure_null,
    overview,
    tissue_positions,
    view,
)
from metaphase.labels.registration.transform import Transform, fit_field
from metaphase.slides.contract import Slide

# ---- registering a pair of slides ----

FINEST_OVERVIEW_MPP = 2.0
"""Overviews of small slides are no finer than this: single nuclei mislead at a distance."""
NODE_SPACING = 1.2
"""Side of the field's cells, in median distances between control tiles."""
MIN_GRID = 12
"""Control tiles stand at least this densely along the shorter side."""
DENSER = 2
"""Factor by which control tiles are denser where the field would otherwise miss the tissue."""
MIN_STEADY = 0.1
"""Where a smaller share of the control tiles agrees, the tissue is not the same ..."""
MIN_CONTROLS = 4
"""... and with fewer of them there is no local field."""
SHIFT_MPP = 2.0
"""Resolution in um/px at which the shift of a whole slide is looked for ..."""
SHIFT_REACH_UM = 512.0
"""... and how far; the paper says neither."""


@dataclass(frozen=True)
class Registration:
    """A registered pair: the map, how far to trust it, and the tiles that say so."""

    pair: SlidePair
    transform: Transform
    verdict: Verdict
    evidence: Evidence
    controls: Shifts
    """Control tiles that agree with their neighbours, with what the transform leaves to them as shifts."""
    null: Null
    """Peaks of tiles of `shape` at wrong positions."""
    shape: TileShape
    config: RegistrationConfig


def register_pair(he: Slide, phh3: Slide, config: RegistrationConfig | None = None) -> Registration:
    """Find the map from the PHH3 slide to the H&E slide of the same section, and judge it.

    A pair that cannot be registered gives a verdict `failed` with the reason; its transform means
    nothing. Only the tiles compared are read.
    """
    config = config or RegistrationConfig()
    pair = SlidePair(view(he), view(phh3))
    empty = [name for name, side in (("H&E", pair.he), ("PHH3", pair.phh3)) if side.tissue.is_empty]
    if empty:
        return _unregistered(pair, config, *(f"there is no tissue on the {name} slide" for name in empty))
    if config.transform == "shifts":
        return _register_by_shift(pair, config)
    return _best_hypothesis(pair, config)


def same_tissue(he: Slide, phh3: Slide) -> bool:
    """Whether two slides that lie about alike show one section: a quick look before registering."""
    pair = SlidePair(view(he), view(phh3))
    if pair.he.tissue.is_empty or pair.phh3.tissue.is_empty:
        return False
    return _best_hypothesis(pair, RegistrationConfig(), as_stained=True).evidence.convincing


def _unregistered(pair: SlidePair, config: RegistrationConfig, *reasons: str) -> Registration:
    mpp = max(config.mpp, pair.he.slide.mpp, pair.phh3.slide.mpp)
    shape = TileShape(tile_px_for(pair, mpp, config.tile_px), config.search_px, mpp)
    transform = Transform(pair.he.slide.mpp, pair.phh3.slide.mpp, Similarity())
    controls, null = Shifts.unmeasured(np.zeros((0, 2))), Null(np.zeros(1))
    return Registration(pair, transform, Verdict("failed", reasons), NOTHING, controls, null, shape, config)


def _register_by_shift(pair: SlidePair, config: RegistrationConfig) -> Registration:
    """The paper's way: the shift at which the mean heat map of some random tiles is highest, and no field."""
    start = _unregistered(pair, config, "no tile has tissue on both slides")
    mpp = max(SHIFT_MPP, start.shape.mpp)
    shape = TileShape(tile_px_for(pair, mpp, config.tile_px), round(SHIFT_REACH_UM / mpp), mpp)
    rng = np.random.default_rng(config.seed)
    positions = tissue_positions(pair, Similarity(), shape.tile_um, config.tiles, rng)
    if not len(positions):
        return start
    maps = list(heat_maps(pair, Similarity(), positions, shape))
    peak = find_peak(np.asarray(np.mean(maps, axis=0), np.float32), 0)
    shift = Similarity(shift_x_um=peak.x * mpp, shift_y_um=peak.y * mpp)
    evidence = gather_evidence(pair, shift, start.shape.rough, config)
    return replace(
        start,
        transform=replace(start.transform, similarity=shift),
        verdict=judge(pair, shift, evidence, 1.0, config),
        evidence=evidence,
        null=measure_null(pair, shift, positions, start.shape),
    )


def _best_hypothesis(
    pair: SlidePair, config: RegistrationConfig, *, as_stained: bool = False
) -> Registration:
    """The first hypothesis that fresh tiles confirm once its field is fitted; else nothing registered."""
    start = _unregistered(pair, config)
    rough = start.shape.rough
    longest_um = max(*pair.he.size_um, *pair.phh3.size_um)
    mpp = max(longest_um / config.coarse_px, FINEST_OVERVIEW_MPP, rough.mpp)
    best, best_share = Similarity(), -1.0
    for guess in _hypotheses(overview(pair.he, mpp), overview(pair.phh3, mpp), mpp, as_stained):
        similarity = align(pair, guess, mpp, rough.mpp, config)
        if similarity is None:
            continue
        share = glance(pair, similarity, rough, config)
        if share >= FAILED_SHARE:
            for denser in (1, DENSER):
                found, steady = _with_field(start, similarity, denser)
                compared = steady >= MIN_STEADY or not config.controls
                evidence = gather_evidence(pair, found.transform, rough, config) if compared else NOTHING
                if not evidence.convincing or evidence.error_um <= RELIABLE_UM:
                    break
            if evidence.convincing:
                verdict = judge(pair, found.transform.similarity, evidence, steady, config)
                return replace(found, evidence=evidence, verdict=verdict)
        if share > best_share:
            best, best_share = similarity, share
    evidence = gather_evidence(pair, best, rough, config)
    return replace(start, evidence=evidence, verdict=judge(pair, best, evidence, 0.0, config))


def _hypotheses(he: Image, phh3: Image, mpp: float, as_stained: bool) -> Iterator[Similarity]:
    """Likely orientations first: as stained (by density, then by detail), turned, flipped, wrongly scaled."""
    yield from search(he, phh3, mpp, EXPECTED_DEG, 2)
    yield from search(detail(he), detail(phh3), mpp, EXPECTED_DEG, 1)
    if not as_stained:
        yield from search(he, phh3, mpp, ALL_DEG, 2)
        yield from search(he, phh3, mpp, ALL_DEG, 2, mirrored=True)
        yield from search(he, phh3, mpp, (-2.0, 0.0, 2.0), 3, scales=SCALES)


def _with_field(start: Registration, similarity: Similarity, denser: int) -> tuple[Registration, float]:
    """The registration with its local field, and the share of the control tiles that agree.

    Control tiles are looked for again from where the field leads, so that they lie straight in their windows.
    """
    pair, shape, config = start.pair, start.shape, start.config
    rng = np.random.default_rng([config.seed, 2])
    shortest_um = min(*pair.he.size_um, *pair.phh3.size_um)
    spacing = min(config.control_spacing_um * shape.mpp / config.mpp, shortest_um / MIN_GRID)
    count = config.controls * denser**2
    positions = tissue_positions(pair, similarity, shape.tile_um, count, rng, spacing / denser)
    tolerance = config.tolerance_px * shape.mpp
    transform = replace(start.transform, similarity=similarity)
    controls, steady, null = start.controls, 0.0, start.null
    for level in (shape.rough, shape.rough, shape):
        if level == shape or not len(controls.heights):
            null = measure_null(pair, transform, positions, level)
        found = measure(pair, transform, positions, level)
        kept = agreeing(found, null, tolerance, config.neighbours)
        steady = float(kept.mean()) if len(kept) else 0.0
        if kept.sum() < MIN_CONTROLS or steady < MIN_STEADY:
            break
        controls = found.chosen(kept)
        target = transform.apply(controls.positions + controls.shifts)
        transform = _fitted(transform, controls, target, tolerance)
        controls = replace(controls, shifts=transform.invert(target) - controls.positions)
    return replace(start, transform=transform, controls=controls, null=null), steady


def agreeing(found: Shifts, null: Null, tolerance_um: float, neighbours: int) -> Mask:
    """Which tiles have a clear peak and a shift like that of their neighbours."""
    strong = null.strength(found.heights) >= MIN_STRENGTH
    own = np.where(strong, np.cumsum(strong) - 1, -1)
    nearby = consensus(found.positions, found.positions[strong], found.shifts[strong], neighbours, own=own)
    miss = np.linalg.norm(found.shifts - nearby.shifts, axis=1)
    return np.asarray(strong & (miss <= LOOSER * tolerance_um))


def _fitted(transform: Transform, controls: Shifts, target: Points, tolerance_um: float) -> Transform:
    """Similarity and field that take the control tiles to where they were found."""
    positions, weights = controls.positions, np.clip(controls.heights, 0.05, 1)
    mirrored = transform.similarity.mirrored
    similarity = fit_robustly(positions, target, weights, LOOSER * tolerance_um, mirrored=mirrored)
    apart = float(np.median(cKDTree(positions).query(positions, k=[2])[0]))
    left = target - similarity.apply(positions)
    field = fit_field(positions, left, weights, NODE_SPACING * apart, tolerance_um)
    return replace(transform, similarity=similarity, field=field)


# ---- how likely a registered point is right to 2 um ----

FARTHEST_UM = 1000.0
"""Neighbours farther away than this say nothing about a point."""
LARGEST = 10.0
"""Deviations and spreads beyond this are all the same."""
MEASURED_WEIGHTS = (4.582, 1.405, -2.093, -0.409)
"""Logistic weights: the constant, then of the logarithm of the peak ratio, the deviation and the spread."""
CONSENSUS_WEIGHTS = (4.927, -1.322, -2.975)
"""The constant, then of the spread and the distance; both are of
`recipes/calibration/registration_confidence.py`, commit fe38706."""


def measured_confidence(found: Shifts, nearby: Consensus, deviation: Floats, scale: float) -> Floats:
    """Confidence of points that their own tiles decided; halved where no neighbour can confirm it.

    The deviation is in um where the neighbours agree to 1 um or better, and in their spreads elsewhere.
    Strength adds nothing to the ratio, so it is left out.
    """
    constant, of_ratio, of_deviation, of_spread = MEASURED_WEIGHTS
    spread = np.where(np.isfinite(nearby.spreads), nearby.spreads, 0) / scale
    relative = np.minimum(deviation / scale / np.maximum(spread, 1), LARGEST)
    odds = constant + of_ratio * np.log(found.ratios) + of_deviation * relative
    chance = expit(odds + of_spread * np.minimum(spread, LARGEST))
    return np.asarray(np.where(nearby.counts > 0, chance, chance / 2), np.float64)


def consensus_confidence(nearby: Consensus, scale: float) -> Floats:
    """Of points that take the shift of their neighbours."""
    constant, of_spread, of_distance = CONSENSUS_WEIGHTS
    far_mm = np.minimum(nearby.distances / scale, FARTHEST_UM) / 1000
    spread = np.minimum(nearby.spreads / scale, LARGEST)
    return np.asarray(expit(constant + of_spread * spread + of_distance * far_mm), np.float64)


# ---- each point by itself ----

MEASURED, CONSENSUS, REJECTED = "measured", "consensus", "rejected"
MIN_NEIGHBOURS = 3
SCATTER = 3.0
"""A shift contradicts its neighbours when it is this many of their own spreads away from them."""
MIN_TISSUE = 0.05
"""Share of the tile that must be tissue for it to be compared."""
Texts = npt.NDArray[np.object_]


def register_points(registration: Registration, points: npt.ArrayLike) -> pd.DataFrame:
    """H&E positions of PHH3 points (n, 2), level-0 pixels, one row each in the same order.

    `method` says whether the point's own tiles decided (`measured`), its neighbours (`consensus`, where the
    point's own shift contradicts them), or nothing could (`rejected`); `confidence` is the probability that
    the position is right to 2 um, and `reason` says what was wrong. Rejected points have none.
    """
    transform, shape, config = registration.transform, registration.shape, registration.config
    positions = np.asarray(points, np.float64).reshape(-1, 2) * transform.phh3_mpp
    obstacle = _obstacles(registration, positions)
    comparable = obstacle == ""
    found = Shifts.unmeasured(positions)
    measured = measure(registration.pair, transform, positions[comparable], shape)
    for name in ("shifts", "heights", "ratios"):
        getattr(found, name)[comparable] = getattr(measured, name)
    strength = registration.null.strength(found.heights)
    strong, controls = comparable & (strength >= MIN_STRENGTH), registration.controls
    nearby = consensus(
        positions,
        np.concatenate([controls.positions, positions[strong]]),
        np.concatenate([controls.shifts, found.shifts[strong]]),
        config.neighbours,
        own=np.where(strong, len(controls.heights) + np.cumsum(strong) - 1, -1),
    )
    deviation = np.linalg.norm(found.shifts - nearby.shifts, axis=1)
    method, reason = _methods(registration, obstacle, strength, deviation, nearby)
    is_own, is_lent, scale = method == MEASURED, method == CONSENSUS, shape.mpp / config.mpp
    shift = np.select([is_own[:, None], is_lent[:, None]], [found.shifts, nearby.shifts], 0.0)
    there = transform.apply(positions + shift) / transform.he_mpp
    there[~(is_own | is_lent)] = np.nan
    confidence = np.select(
        [is_own, is_lent],
        [measured_confidence(found, nearby, deviation, scale), consensus_confidence(nearby, scale)],
        0.0,
    )
    here = positions / transform.phh3_mpp
    return pd.DataFrame(
        {
            "x_phh3": here[:, 0],
            "y_phh3": here[:, 1],
            "x_he": there[:, 0],
            "y_he": there[:, 1],
            "method": method,
            "confidence": confidence,
            "accepted": is_own | is_lent,
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


def _obstacles(registration: Registration, positions: Points) -> Texts:
    """Why each position cannot be compared; empty where it can."""
    pair, tile_um = registration.pair, registration.shape.tile_um
    sides = (("PHH3", pair.phh3, positions), ("H&E", pair.he, registration.transform.apply(positions)))
    failed = np.full(len(positions), registration.verdict.status == "failed")
    obstacles: dict[str, Mask] = {"the registration failed": failed}
    for name, side, there in sides:
        obstacles[f"outside the {name} slide"] = np.any((there < 0) | (there >= side.size_um), axis=1)
    for name, side, there in sides:
        obstacles[f"no tissue here on the {name} slide"] = ~side.has_tissue(there, tile_um, MIN_TISSUE)
    return np.select(list(obstacles.values()), list(obstacles), "").astype(object)


def _methods(
    registration: Registration, obstacle: Texts, strength: Floats, deviation: Floats, nearby: Consensus
) -> tuple[Texts, Texts]:
    """Own shift where it is strong and agrees; else the neighbours', where they agree; else none; and why."""
    config, mpp = registration.config, registration.shape.mpp
    tolerance = config.tolerance_px * mpp
    scatter = np.where(np.isfinite(nearby.spreads), nearby.spreads, 0)
    weak, apart = strength < MIN_STRENGTH, deviation > np.maximum(tolerance, SCATTER * scatter)
    alone = nearby.counts < MIN_NEIGHBOURS
    united = ~alone & (nearby.spreads <= tolerance / 2) & (nearby.distances <= FARTHEST_UM * mpp / config.mpp)
    comparable = obstacle == ""
    own = comparable & ((config.transform == "shifts") | (~weak & (~apart | alone)))
    lent = comparable & ~own & united
    method = np.select([own, lent], [MEASURED, CONSENSUS], REJECTED).astype(object)
    doubt = np.select([weak, apart], ["no clear match", "its own shift contradicts its neighbours"], "")
    lost = np.array([f"{text}; neighbours disagree" for text in doubt], object)
    known = [obstacle, np.where(alone, "no neighbours to compare with", ""), doubt]
    return method, np.select([~comparable, own, lent], known, lost)
