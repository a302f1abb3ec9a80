"""Registering a pair of slides: one similarity, a smooth field, a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from metaphase.labels.registration.alignment import align, tile_px_for
from metaphase.labels.registration.coarse import (
    ALL_DEG,
    EXPECTED_DEG,
    SCALES,
    Candidate,
    Similarity,
    fit_robustly,
    search,
    starts_for,
)
from metaphase.labels.registration.config import RegistrationConfig
from metaphase.labels.registration.correlation import Image, consensus
from metaphase.labels.registration.field import fit_field
from metaphase.labels.registration.quality import (
    FAILED_SHARE,
    LOOSER,
    NOTHING,
    Evidence,
    Verdict,
    gather_evidence,
    glance,
    judge,
)
from metaphase.labels.registration.tiles import (
    Null,
    Shifts,
    SlidePair,
    TileShape,
    detail,
    measure,
    overview,
    tissue_places,
    view,
)
from metaphase.labels.registration.transform import Transform
from metaphase.slides import Slide

FINEST_OVERVIEW_MPP = 2.0
"""Overviews of small slides are no finer than this: single nuclei mislead at a distance."""
MIN_STRENGTH = 4.0
"""Standard deviations above the peaks of wrong places from which a control tile counts."""
NODE_SPACING = 1.2
"""Side of the field's cells, in median distances between control tiles."""
ROUNDS = 3
"""Control tiles are measured at most so many times."""
MIN_GRID = 8
"""Control tiles stand at least this densely along the shorter side."""
MIN_CONTROLS = 4
"""With fewer control tiles that agree there is no local field."""


@dataclass(frozen=True)
class Registration:
    """A registered pair: the map, how far to trust it, and the tiles that say so."""

    pair: SlidePair
    transform: Transform
    verdict: Verdict
    evidence: Evidence
    controls: Shifts
    """Control tiles that agree with their neighbours, with what the transform leaves to them as shifts."""
    shape: TileShape
    config: RegistrationConfig


def register_pair(he: Slide, phh3: Slide, config: RegistrationConfig | None = None) -> Registration:
    """Find the map from the PHH3 slide to the H&E slide of the same section, and judge it.

    A pair that cannot be registered gives a verdict `failed` with the reason; its transform is the best
    guess and not to be used. Only the tiles compared are read.
    """
    config = config or RegistrationConfig()
    pair = SlidePair(view(he), view(phh3))
    mpp = max(config.mpp, he.mpp, phh3.mpp)
    shape = TileShape(tile_px_for(pair, mpp, config.tile_px), config.search_px, mpp)
    empty = [name for name, side in (("H&E", pair.he), ("PHH3", pair.phh3)) if side.tissue.is_empty]
    if empty:
        reasons = tuple(f"there is no tissue on the {name} slide" for name in empty)
        return _unregistered(pair, Verdict("failed", reasons), shape, config)
    similarity, evidence = _best_hypothesis(pair, shape, config)
    if not evidence.convincing:
        verdict = judge(pair, similarity, evidence, 0.0, config)
        return replace(_unregistered(pair, verdict, shape, config), evidence=evidence)
    transform, controls, steady = _with_field(pair, similarity, evidence, shape, config)
    verdict = judge(pair, transform.similarity, evidence, steady, config)
    return Registration(pair, transform, verdict, evidence, controls, shape, config)


def same_tissue(he: Slide, phh3: Slide, config: RegistrationConfig | None = None) -> bool:
    """Whether two slides that lie about alike show one section: a quick look before registering."""
    config = config or RegistrationConfig()
    pair = SlidePair(view(he), view(phh3))
    if pair.he.tissue.is_empty or pair.phh3.tissue.is_empty:
        return False
    mpp = max(config.mpp, he.mpp, phh3.mpp)
    shape = TileShape(tile_px_for(pair, mpp, config.tile_px), config.search_px, mpp)
    return _best_hypothesis(pair, shape, config, _as_stained)[1].convincing


def _unregistered(
    pair: SlidePair, verdict: Verdict, shape: TileShape, config: RegistrationConfig
) -> Registration:
    transform = Transform(pair.he.slide.mpp, pair.phh3.slide.mpp, Similarity())
    nothing = Shifts(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0), np.zeros(0))
    return Registration(pair, transform, verdict, NOTHING, nothing, shape, config)


def _best_hypothesis(
    pair: SlidePair,
    shape: TileShape,
    config: RegistrationConfig,
    hypotheses: Callable[[Image, Image, float], Iterator[Candidate]] | None = None,
) -> tuple[Similarity, Evidence]:
    """The first similarity that fresh tiles confirm; else the one they contradict least."""
    longest_um = max(*pair.he.size_um, *pair.phh3.size_um)
    mpp = max(longest_um / config.coarse_px, FINEST_OVERVIEW_MPP, 2 * shape.mpp)
    best, best_share = Similarity(), -1.0
    for candidate in (hypotheses or _hypotheses)(overview(pair.he, mpp), overview(pair.phh3, mpp), mpp):
        similarity = align(pair, candidate.similarity, mpp, shape.mpp, config)
        if similarity is None:
            continue
        share = glance(pair, similarity, shape, config)
        if share >= FAILED_SHARE:
            evidence = gather_evidence(pair, similarity, shape, config)
            if evidence.convincing:
                return similarity, evidence
        if share > best_share:
            best, best_share = similarity, share
    return best, gather_evidence(pair, best, shape, config)


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


def _with_field(
    pair: SlidePair, similarity: Similarity, evidence: Evidence, shape: TileShape, config: RegistrationConfig
) -> tuple[Transform, Shifts, float]:
    """The transform with its local field, the control tiles that agree, and their share of all.

    Where the tissue moved far, control tiles are looked for a second time, from where the first round leads.
    """
    rng = np.random.default_rng([config.seed, 2])
    shortest_um = min(*pair.he.size_um, *pair.phh3.size_um)
    spacing = min(config.control_spacing_um * shape.mpp / config.mpp, shortest_um / MIN_GRID)
    places = tissue_places(pair, similarity, shape.tile_um, config.controls, rng, spacing)
    tolerance = config.tolerance_px * shape.mpp
    transform = Transform(pair.he.slide.mpp, pair.phh3.slide.mpp, similarity)
    for _ in range(ROUNDS):
        found = measure(pair, transform, places, shape)
        kept = agreeing(found, evidence.null, tolerance, config.neighbours)
        controls = found.chosen(kept)
        if len(controls) < MIN_CONTROLS:
            break
        far = float(np.percentile(np.linalg.norm(controls.shifts, axis=1), 90))
        before, transform = transform, _fitted(transform, controls, tolerance)
        controls = _what_is_left(controls, before, transform)
        if far < shape.search_um / 2:
            break
    return transform, controls, float(kept.mean()) if len(kept) else 0.0


def agreeing(found: Shifts, null: Null, tolerance_um: float, neighbours: int) -> npt.NDArray[np.bool_]:
    """Which tiles have a clear peak and a shift like that of their neighbours."""
    strong = null.strength(found.heights) >= MIN_STRENGTH
    own = np.where(strong, np.cumsum(strong) - 1, -1)
    nearby = consensus(found.places, found.places[strong], found.shifts[strong], neighbours, own=own)
    miss = np.linalg.norm(found.shifts - nearby.shifts, axis=1)
    return np.asarray(strong & (miss <= LOOSER * tolerance_um))


def _fitted(transform: Transform, controls: Shifts, tolerance_um: float) -> Transform:
    """Similarity and field through the control tiles, whose shifts were measured with `transform`."""
    target = transform.apply(controls.places) + controls.shifts @ transform.matrix.T
    weights = np.clip(controls.heights, 0.05, 1)
    mirrored = transform.similarity.mirrored
    similarity = fit_robustly(controls.places, target, weights, LOOSER * tolerance_um, mirrored=mirrored)
    nearest = cKDTree(controls.places).query(controls.places, k=2)[0][:, 1]
    left = target - similarity.apply(controls.places)
    field = fit_field(controls.places, left, weights, NODE_SPACING * float(np.median(nearest)), tolerance_um)
    return replace(transform, similarity=similarity, field=field)


def _what_is_left(controls: Shifts, before: Transform, after: Transform) -> Shifts:
    """The control tiles with the shifts that `after` does not explain."""
    target = before.apply(controls.places) + controls.shifts @ before.matrix.T
    left = (target - after.apply(controls.places)) @ np.linalg.inv(after.matrix).T
    return replace(controls, shifts=left)
