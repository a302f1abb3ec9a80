"""Registering a pair of slides: one similarity, a smooth field, a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from metaphase.base.arrays import Points
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
    MIN_STRENGTH,
    NOTHING,
    RELIABLE_UM,
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
    measure_null,
    overview,
    tissue_places,
    view,
)
from metaphase.labels.registration.transform import Transform
from metaphase.slides import Slide

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
    """Peaks of tiles of `shape` at wrong places."""
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
    return _best_hypothesis(pair, config, _hypotheses)


def same_tissue(he: Slide, phh3: Slide, config: RegistrationConfig | None = None) -> bool:
    """Whether two slides that lie about alike show one section: a quick look before registering."""
    config = config or RegistrationConfig()
    pair = SlidePair(view(he), view(phh3))
    if pair.he.tissue.is_empty or pair.phh3.tissue.is_empty:
        return False
    return _best_hypothesis(pair, config, _as_stained).evidence.convincing


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
    places = tissue_places(pair, similarity, shape.tile_um, count, rng, spacing / denser)
    tolerance = config.tolerance_px * shape.mpp
    transform = replace(start.transform, similarity=similarity)
    controls, steady, null = start.controls, 0.0, start.null
    for level in (shape.rough, shape.rough, shape):
        if level == shape or not controls:
            null = measure_null(pair, transform, places, level)
        found = measure(pair, transform, places, level)
        kept = agreeing(found, null, tolerance, config.neighbours)
        steady = float(kept.mean()) if len(kept) else 0.0
        if kept.sum() < MIN_CONTROLS or steady < MIN_STEADY:
            break
        controls = found.chosen(kept)
        target = transform.apply(controls.places + controls.shifts)
        transform = _fitted(transform, controls, target, tolerance)
        controls = replace(controls, shifts=transform.invert(target) - controls.places)
    return replace(start, transform=transform, controls=controls, null=null), steady


def agreeing(found: Shifts, null: Null, tolerance_um: float, neighbours: int) -> npt.NDArray[np.bool_]:
    """Which tiles have a clear peak and a shift like that of their neighbours."""
    strong = null.strength(found.heights) >= MIN_STRENGTH
    own = np.where(strong, np.cumsum(strong) - 1, -1)
    nearby = consensus(found.places, found.places[strong], found.shifts[strong], neighbours, own=own)
    miss = np.linalg.norm(found.shifts - nearby.shifts, axis=1)
    return np.asarray(strong & (miss <= LOOSER * tolerance_um))


def _fitted(transform: Transform, controls: Shifts, target: Points, tolerance_um: float) -> Transform:
    """Similarity and field that take the control tiles to where they were found."""
    weights = np.clip(controls.heights, 0.05, 1)
    mirrored = transform.similarity.mirrored
    similarity = fit_robustly(controls.places, target, weights, LOOSER * tolerance_um, mirrored=mirrored)
    nearest = cKDTree(controls.places).query(controls.places, k=2)[0][:, 1]
    left = target - similarity.apply(controls.places)
    field = fit_field(controls.places, left, weights, NODE_SPACING * float(np.median(nearest)), tolerance_um)
    return replace(transform, similarity=similarity, field=field)
