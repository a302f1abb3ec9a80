"""Registering a pair of slides: one similarity, a smooth field, and how far it can be trusted; single points.

Three questions are asked of tiles that had no part in alignment and field. Does each match best where it is
expected, more often than chance would have it? Are the peaks higher than those of the same tiles at wrong
places of the same slides? And how far from their expected position do those lie whose match is clear? No
correlation coefficient is good or bad in itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree
from scipy.special import bdtrc

from metaphase.base.arrays import Floats, Integers, Mask, Points
from metaphase.base.later import pandas as pd
from metaphase.labels.registration.correlation import Consensus, Image, consensus, find_peak
from metaphase.labels.registration.similarity import (
    ALL_DEG,
    EXPECTED_DEG,
    SCALES,
    Candidate,
    RegistrationConfig,
    Similarity,
    align,
    fit_robustly,
    search,
    starts_for,
    tile_px_for,
)
from metaphase.labels.registration.tiles import (
    Mapping,
    Null,
    Shifts,
    SlidePair,
    TileShape,
    View,
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

Status = Literal["reliable", "doubtful", "failed"]

WIDER = 2
"""Before there is a field, tiles are looked for so many times as far, and agree within as many times more."""
LOOSER = 2.5
"""Fresh tiles agree within this many tolerances."""
FAILED_P = 1e-6
"""Probability of so much agreement by chance, above which it failed."""
FAILED_SHARE, RELIABLE_SHARE = 0.25, 0.6
"""Share of tiles that agree: below the first it failed, from the second on it is reliable."""
RELIABLE_UM = 2.0
"""95 % of the clear matches lie this close to their expected position. A tile is an average over its area and
hardly reaches the edge of the tissue; points are off by up to three times as much, so this vouches for 95 %
of them within 5 um (`recipes/accuracy/registration_warps.py`, commit fe38706)."""
STRAYS = 0.05
"""So many of the clear matches may lie anywhere: over a fold, a gap or another section's tissue."""
SURE_POINT = 0.9
"""Confidence from which a point is carried over although its pair is doubtful."""
MIN_STRENGTH = 4.0
"""Standard deviations above the peaks of wrong positions from which a match is clear."""
RELIABLE_SEPARATION = 0.8
"""Chance that a right position has a higher peak than a wrong one."""
MIN_STAIN_CONTRAST = 1.0
"""Least difference of the log odds of being H&E: 0.017 of the share that the green channel absorbs."""
HUGE_SCALE_ERROR = 0.1
LARGE_TURN_DEG = 10.0
LARGEST_WARP_UM = 15.0
"""On a small slide a warp looks like another scale."""


@dataclass(frozen=True)
class Evidence:
    """What fresh tiles say about a similarity."""

    tiles: int
    agreeing: int
    chance: float
    """Probability that a tile agrees by chance."""
    median_peak: float
    null_peak: float
    """Median peak at wrong positions."""
    separation: float
    clear: int
    """Tiles whose peak stands out."""
    error_um: float
    """95 % of these, without strays, lie this close to where they are expected; infinite without any."""
    independent: float
    """As many tiles of their own would say as much: on a small slide they overlap."""

    @property
    def share(self) -> float:
        """Share of the tiles that agree."""
        return self.agreeing / self.tiles if self.tiles else 0.0

    @property
    def p_value(self) -> float:
        """Probability that as many or more agree by chance."""
        count = min(self.tiles, round(self.independent))
        return float(bdtrc(int(self.share * count) - 1, count, self.chance)) if self.tiles else 1.0

    @property
    def convincing(self) -> bool:
        """Whether the tissue corresponds, whatever else may be wrong with the pair."""
        return self.p_value <= FAILED_P and self.share >= FAILED_SHARE


NOTHING = Evidence(0, 0, 1.0, 0.0, 0.0, 0.5, 0, math.inf, 0.0)


@dataclass(frozen=True)
class Verdict:
    """Whether to rely on a registration, why, and the numbers behind it."""

    status: Status
    reasons: tuple[str, ...] = ()
    """What keeps it from being reliable."""
    notes: tuple[str, ...] = ()
    """What is unusual without being wrong."""
    numbers: dict[str, float] = field(default_factory=dict)
    points_decide: bool = False
    """Only how exactly the tissue was met is in doubt, not whether: points may be sure by themselves."""

    def sure(self, confidence: npt.ArrayLike) -> Mask:
        """Which points can be relied on before anybody looked, by their confidence."""
        least = {"reliable": 0.0, "doubtful": SURE_POINT if self.points_decide else math.inf}
        return np.asarray(confidence) >= least.get(self.status, math.inf)


def gather_evidence(
    pair: SlidePair, mapping: Mapping, shape: TileShape, config: RegistrationConfig
) -> Evidence:
    """Look for fresh tiles around where the mapping expects them, and at wrong positions."""
    rng = np.random.default_rng([config.seed, 1])
    positions = tissue_positions(pair, mapping, shape.tile_um, config.checks, rng)
    if len(positions) < 2:
        return NOTHING
    found = measure(pair, mapping, positions, shape)
    null = measure_null(pair, mapping, positions, shape)
    clear = null.strength(found.heights) >= MIN_STRENGTH
    miss = np.linalg.norm(found.shifts, axis=1)
    reach_px = LOOSER * config.tolerance_px / WIDER
    chance = min(1.0, math.pi * reach_px**2 / (2 * shape.search_px + 1) ** 2)
    return Evidence(
        len(positions),
        int((miss <= reach_px * shape.mpp).sum()),
        chance,
        float(np.median(found.heights)),
        null.centre,
        null.separation(found.heights),
        int(clear.sum()),
        float(np.percentile(miss[clear], 95 * (1 - STRAYS))) if clear.any() else math.inf,
        PER_TILE * float(pair.phh3.tissue.mask.sum()) * (pair.phh3.tissue.mpp / shape.tile_um) ** 2,
    )


PER_TILE = 2.0
"""Independent tiles within the area of one."""


def glance(pair: SlidePair, similarity: Similarity, shape: TileShape, config: RegistrationConfig) -> float:
    """Share of a few fresh tiles that agree: enough to drop a wrong hypothesis at little cost."""
    rng = np.random.default_rng([config.seed, 3])
    wide = replace(shape, search_px=WIDER * shape.search_px)
    positions = tissue_positions(pair, similarity, wide.tile_um, GLANCE_TILES, rng)
    if not len(positions):
        return 0.0
    found = measure(pair, similarity, positions, wide)
    return float((np.linalg.norm(found.shifts, axis=1) <= LOOSER * config.tolerance_px * shape.mpp).mean())


GLANCE_TILES = 8


def judge(
    pair: SlidePair, similarity: Similarity, evidence: Evidence, steady: float, config: RegistrationConfig
) -> Verdict:
    """The verdict; `steady` is the share of control tiles that agree with their neighbours."""
    doubts = [
        *_about_geometry(pair, similarity, evidence, config),
        *_about_stains(pair, config),
        *_about_tissue(evidence, steady, RELIABLE_UM if config.transform == "smooth" else math.inf),
    ]
    doubts = sorted(doubts, key=lambda doubt: doubt[0] != "failed")
    kinds = {kind for kind, _ in doubts}
    status: Status = "reliable" if not kinds else "failed" if "failed" in kinds else "doubtful"
    numbers: dict[str, float] = {
        "tiles": evidence.tiles,
        "tiles_agreeing": evidence.agreeing,
        "tiles_clear": evidence.clear,
        **({"error_95_um": evidence.error_um} if evidence.clear else {}),
        "p_by_chance": evidence.p_value,
        "median_peak": evidence.median_peak,
        "median_peak_at_wrong_places": evidence.null_peak,
        "peak_separation": evidence.separation,
        "controls_agreeing": steady,
    }
    notes: tuple[str, ...] = ()
    if evidence.convincing:
        numbers = {**_geometry(pair, similarity), **numbers}
        degrees = numbers["rotation_deg"]
        notes = (f"the slides are turned by {degrees:.0f} degrees",) if abs(degrees) > LARGE_TURN_DEG else ()
    return Verdict(status, tuple(reason for _, reason in doubts), notes, numbers, kinds == {"inexact"})


Doubts = Iterator[tuple[Literal["failed", "doubtful", "inexact"], str]]


def _about_tissue(evidence: Evidence, steady: float, reliable_um: float) -> Doubts:
    """Points that bring shifts of their own do not rest on how near tiles are to where they are expected."""
    said = (
        f"{evidence.agreeing} of {evidence.tiles} fresh tiles match where expected "
        f"({evidence.chance * evidence.tiles:.1f} by chance)"
    )
    if evidence.tiles < MIN_EVIDENCE:
        yield "failed", f"only {evidence.tiles} tiles have tissue on both slides"
    elif not evidence.convincing and evidence.share >= RELIABLE_SHARE:
        few = f"there is too little tissue: tiles overlap and count as {evidence.independent:.0f}"
        yield "failed", f"whether the tissue corresponds is not certain: {said}, but {few}"
    elif not evidence.convincing:
        yield "failed", f"the tissue does not correspond: {said}"
    elif evidence.share < RELIABLE_SHARE:
        yield "doubtful", f"the tissue corresponds in part: {said}"
    elif evidence.separation < RELIABLE_SEPARATION:
        where = f"(separation {evidence.separation:.2f})"
        yield "doubtful", f"peaks are hardly higher than at wrong positions {where}"
    elif steady < RELIABLE_SHARE:
        yield "doubtful", f"only {steady:.0%} of the control tiles agree with their neighbours"
    elif evidence.clear < RELIABLE_SHARE * evidence.tiles:
        yield "inexact", f"only {evidence.clear} of {evidence.tiles} fresh tiles have a clear match"
    elif evidence.error_um > reliable_um:
        yield (
            "inexact",
            "points may be more than 5 um off where their own tiles do not say otherwise: 95 % of the fresh "
            f"tiles match within {evidence.error_um:.1f} um of where expected, not within {reliable_um:g}",
        )


MIN_EVIDENCE = 4
"""With fewer tiles even full agreement proves nothing."""


def _about_stains(pair: SlidePair, config: RegistrationConfig) -> Doubts:
    """Slides are compared with each other: a pale PHH3 slide may look like H&E, but less so than its H&E."""
    if config.any_stains or "unknown" in (pair.he.stain.name, pair.phh3.stain.name):
        return
    contrast = _eosin_like(pair.he) - _eosin_like(pair.phh3)
    if contrast < -MIN_STAIN_CONTRAST:
        yield "failed", "the slides are in the wrong order: the second looks more like H&E than the first"
    elif contrast < MIN_STAIN_CONTRAST:
        yield "doubtful", "the two slides look alike: are they H&E and PHH3?"


def _eosin_like(view: View) -> float:
    """Log odds that the slide is H&E."""
    sure = min(view.stain.confidence, 1 - 1e-9)
    return math.log(sure / (1 - sure)) * (1 if view.stain.name == "H&E" else -1)


def _about_geometry(
    pair: SlidePair, similarity: Similarity, evidence: Evidence, config: RegistrationConfig
) -> Doubts:
    error = abs(math.log(similarity.scale))
    if not evidence.convincing:
        return
    if similarity.mirrored:
        yield "failed", "one slide is a mirror image of the other: it was scanned upside down or flipped"
    elif error > max(config.max_scale_error, LARGEST_WARP_UM / (max(pair.phh3.size_um) / 2)):
        phh3_mpp = pair.phh3.slide.mpp
        yield (
            "failed" if error > HUGE_SCALE_ERROR else "doubtful",
            f"the stated resolutions contradict each other: with {pair.he.slide.mpp:.4g} um/px in H&E, "
            f"PHH3 has {phh3_mpp * similarity.scale:.3g} and not {phh3_mpp:.4g}",
        )


def _geometry(pair: SlidePair, similarity: Similarity) -> dict[str, float]:
    """The shift in the middle of the PHH3 slide, the rotation and the scale."""
    centre = np.array([pair.phh3.size_um]) / 2
    shift = similarity.apply(centre)[0] - centre[0]
    return {
        "shift_x_um": float(shift[0]),
        "shift_y_um": float(shift[1]),
        "rotation_deg": math.degrees(similarity.rotation_rad),
        "scale": similarity.scale,
    }


# ---- registering a pair of slides: one similarity, a smooth field, a verdict ----

FINEST_OVERVIEW_MPP = 2.0
"""Overviews of small slides are no finer than this: single nuclei mislead at a distance."""
NODE_SPACING = 1.2
"""Side of the field's cells, in median distances between control tiles."""
MIN_GRID = 12
"""Control tiles stand at least this densely along the shorter side."""
DENSER = 2
"""Control tiles stand so many times as densely where the field does not follow the tissue otherwise."""
MIN_STEADY = 0.1
"""Where a smaller share of the control tiles agrees, the tissue is not the same ..."""
MIN_CONTROLS = 4
"""... and with fewer of them there is no local field."""


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
        reasons = tuple(f"there is no tissue on the {name} slide" for name in empty)
        return replace(_unregistered(pair, config), verdict=Verdict("failed", reasons))
    if config.transform == "shifts":
        return _shifted(pair, config)
    return _best_hypothesis(pair, config, _hypotheses)


SHIFT_MPP = 2.0
"""Resolution in um/px at which the shift of a whole slide is looked for ..."""
SHIFT_REACH_UM = 512.0
"""... and how far; the paper says neither."""


def _shifted(pair: SlidePair, config: RegistrationConfig) -> Registration:
    """The paper's way: the shift at which the mean heat map of some random tiles is highest, and no field."""
    start = _unregistered(pair, config)
    mpp = max(SHIFT_MPP, start.shape.mpp)
    shape = TileShape(tile_px_for(pair, mpp, config.tile_px), round(SHIFT_REACH_UM / mpp), mpp)
    rng = np.random.default_rng(config.seed)
    positions = tissue_positions(pair, Similarity(), shape.tile_um, config.tiles, rng)
    if not len(positions):
        return replace(start, verdict=Verdict("failed", ("no tile has tissue on both slides",)))
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


def same_tissue(he: Slide, phh3: Slide) -> bool:
    """Whether two slides that lie about alike show one section: a quick look before registering."""
    pair = SlidePair(view(he), view(phh3))
    if pair.he.tissue.is_empty or pair.phh3.tissue.is_empty:
        return False
    return _best_hypothesis(pair, RegistrationConfig(), _as_stained).evidence.convincing


def _unregistered(pair: SlidePair, config: RegistrationConfig) -> Registration:
    mpp = max(config.mpp, pair.he.slide.mpp, pair.phh3.slide.mpp)
    shape = TileShape(tile_px_for(pair, mpp, config.tile_px), config.search_px, mpp)
    transform = Transform(pair.he.slide.mpp, pair.phh3.slide.mpp, Similarity())
    nothing, null = Shifts(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0), np.zeros(0)), Null(np.zeros(0))
    return Registration(pair, transform, Verdict("failed"), NOTHING, nothing, null, shape, config)


def _best_hypothesis(
    pair: SlidePair,
    config: RegistrationConfig,
    hypotheses: Callable[[Image, Image, float], Iterator[Candidate]],
) -> Registration:
    """The first hypothesis that fresh tiles confirm once its field is fitted; else nothing registered."""
    start = _unregistered(pair, config)
    rough = start.shape.rough
    longest_um = max(*pair.he.size_um, *pair.phh3.size_um)
    mpp = max(longest_um / config.coarse_px, FINEST_OVERVIEW_MPP, rough.mpp)
    best, best_share = Similarity(), -1.0
    for candidate in hypotheses(overview(pair.he, mpp), overview(pair.phh3, mpp), mpp):
        similarity = align(pair, candidate.similarity, mpp, rough.mpp, config)
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


def _hypotheses(he: Image, phh3: Image, mpp: float) -> Iterator[Candidate]:
    """Likely orientations first: as stained (by density, then by detail), turned, flipped, wrongly scaled."""
    yield from _as_stained(he, phh3, mpp)
    yield from search(he, phh3, mpp, starts_for(ALL_DEG, [1.0], mirrored=False), 2)
    yield from search(he, phh3, mpp, starts_for(ALL_DEG, [1.0], mirrored=True), 2)
    yield from search(he, phh3, mpp, starts_for([-2.0, 0.0, 2.0], SCALES, mirrored=False), 3)


def _as_stained(he: Image, phh3: Image, mpp: float) -> Iterator[Candidate]:
    """By density, then by detail."""
    yield from search(he, phh3, mpp, starts_for(EXPECTED_DEG, [1.0], mirrored=False), 2)
    yield from search(detail(he), detail(phh3), mpp, starts_for(EXPECTED_DEG, [1.0], mirrored=False), 1)


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
        if level == shape or not controls:
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
    weights = np.clip(controls.heights, 0.05, 1)
    mirrored = transform.similarity.mirrored
    similarity = fit_robustly(controls.positions, target, weights, LOOSER * tolerance_um, mirrored=mirrored)
    nearest = cKDTree(controls.positions).query(controls.positions, k=2)[0][:, 1]
    left = target - similarity.apply(controls.positions)
    field = fit_field(
        controls.positions, left, weights, NODE_SPACING * float(np.median(nearest)), tolerance_um
    )
    return replace(transform, similarity=similarity, field=field)


# ---- how likely a registered point is right to 2 um ----


FARTHEST_UM = 1000.0
"""Neighbours farther away than this say nothing about a point."""
LARGEST = 10.0
"""Deviations and spreads beyond this are all the same."""
MEASURED_WEIGHTS = (4.582, 1.405, -2.093, -0.409)
CONSENSUS_WEIGHTS = (4.927, -1.322, -2.975)
"""Logistic weights, the constant first (`recipes/calibration/registration_confidence.py` at fe38706)."""


def measured_confidence(
    ratio: Floats, deviation_um: Floats, spread_um: Floats, neighbours: Integers
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
    for name, side, there in sides:
        outside = ((there < 0) | (there >= side.size_um)).any(axis=1)
        state[(state == "") & outside] = f"outside the {name} slide"
    for name, side, there in sides:
        bare = ~_has_tissue(side, there, registration.shape.tile_um)
        state[(state == "") & bare] = f"no tissue here on the {name} slide"
    if registration.verdict.status == "failed":
        state[:] = "the registration failed"
    return state


def _has_tissue(view: View, positions_um: Points, tile_um: float) -> Mask:
    """Whether the tile around each position has some tissue."""
    tissue = view.tissue
    cells = np.floor((positions_um / view.slide.mpp - (tissue.x, tissue.y)) / tissue.scale).astype(int)
    half = max(1, round(tile_um / 2 / tissue.mpp))
    side, room = 2 * half + 1, half + 1
    mask = np.pad(tissue.mask.astype(np.float32), room)
    count = cv2.boxFilter(mask, -1, (side, side), normalize=False, borderType=cv2.BORDER_CONSTANT)
    columns, rows = np.clip(cells + room, 0, np.array(mask.shape[::-1]) - 1).T
    return np.asarray(count[rows, columns] >= MIN_TISSUE * side**2)


def _measured(registration: Registration, positions: Points, which: Mask) -> Shifts:
    """Shifts of the comparable positions; 0 for the others."""
    some = measure(registration.pair, registration.transform, positions[which], registration.shape)
    every = Shifts(positions, np.zeros_like(positions), np.zeros(len(positions)), np.ones(len(positions)))
    for name in ("shifts", "heights", "ratios"):
        getattr(every, name)[which] = getattr(some, name)
    return every


def _neighbourhood(registration: Registration, found: Shifts, strong: Mask) -> Consensus:
    """What the control tiles and the other strong points around each point say."""
    controls = registration.controls
    voters = np.concatenate([controls.positions, found.positions[strong]])
    shifts = np.concatenate([controls.shifts, found.shifts[strong]])
    own = np.where(strong, len(controls) + np.cumsum(strong) - 1, -1)
    return consensus(found.positions, voters, shifts, registration.config.neighbours, own=own)


def _decide(
    registration: Registration,
    state: npt.NDArray[np.object_],
    strength: Floats,
    deviation: Floats,
    nearby: Consensus,
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    """Own shift where it is strong and agrees; else the neighbours', where they agree; else none; and why."""
    config, mpp = registration.config, registration.shape.mpp
    tolerance = config.tolerance_px * mpp
    scatter = np.where(np.isfinite(nearby.spreads), nearby.spreads, 0)
    weak, apart = strength < MIN_STRENGTH, deviation > np.maximum(tolerance, SCATTER * scatter)
    alone = nearby.counts < MIN_NEIGHBOURS
    united = ~alone & (nearby.spreads <= tolerance / 2) & (nearby.distances <= FARTHEST_UM * mpp / config.mpp)
    comparable = state == ""
    own = comparable & ((config.transform == "shifts") | (~weak & (~apart | alone)))
    lent = comparable & ~own & united
    method = np.select([own, lent], [MEASURED, CONSENSUS], REJECTED).astype(object)
    doubt = np.select([weak, apart], ["no clear match", "its own shift contradicts its neighbours"], "")
    lost = np.array([f"{text}, and these do not agree" for text in doubt], object)
    known = [state, np.where(alone, "no neighbours to compare with", ""), doubt]
    return method, np.select([~comparable, own, lent], known, lost)
