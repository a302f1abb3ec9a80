"""How far a registration can be trusted: evidence from fresh tiles, and the verdict drawn from it.

Three questions are asked of tiles that had no part in alignment and field. Does each match best where it is
expected, more often than chance would have it? Are the peaks higher than those of the same tiles at wrong
places of the same slides? And how far from their expected place do those lie whose match is clear? No
correlation coefficient is good or bad in itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy.special import bdtrc

from metaphase.labels.registration.coarse import Similarity
from metaphase.labels.registration.config import RegistrationConfig
from metaphase.labels.registration.tiles import (
    Mapping,
    SlidePair,
    TileShape,
    View,
    measure,
    measure_null,
    tissue_places,
)

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
"""95 % of the clear matches lie this close to their expected place. A tile is an average over its area and
hardly reaches the edge of the tissue; points are off by up to three times as much, so this vouches for 95 %
of them within 5 um (`recipes/accuracy/registration_warps.py`, commit fe38706)."""
MIN_STRENGTH = 4.0
"""Standard deviations above the peaks of wrong places from which a match is clear."""
RELIABLE_SEPARATION = 0.8
"""Chance that a right place has a higher peak than a wrong one."""
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
    """Median peak at wrong places."""
    separation: float
    clear: int
    """Tiles whose peak stands out."""
    error_um: float
    """95 % of these lie this close to where they are expected; infinite without any."""
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


def gather_evidence(
    pair: SlidePair, mapping: Mapping, shape: TileShape, config: RegistrationConfig
) -> Evidence:
    """Look for fresh tiles around where the mapping expects them, and at wrong places."""
    rng = np.random.default_rng([config.seed, 1])
    places = tissue_places(pair, mapping, shape.tile_um, config.checks, rng)
    if len(places) < 2:
        return NOTHING
    found = measure(pair, mapping, places, shape)
    null = measure_null(pair, mapping, places, shape)
    clear = null.strength(found.heights) >= MIN_STRENGTH
    miss = np.linalg.norm(found.shifts, axis=1)
    reach_px = LOOSER * config.tolerance_px / WIDER
    chance = min(1.0, math.pi * reach_px**2 / (2 * shape.search_px + 1) ** 2)
    return Evidence(
        len(places),
        int((miss <= reach_px * shape.mpp).sum()),
        chance,
        float(np.median(found.heights)),
        null.centre,
        null.separation(found.heights),
        int(clear.sum()),
        float(np.percentile(miss[clear], 95)) if clear.any() else math.inf,
        PER_TILE * float(pair.phh3.tissue.mask.sum()) * (pair.phh3.tissue.mpp / shape.tile_um) ** 2,
    )


PER_TILE = 2.0
"""Independent tiles within the area of one."""


def glance(pair: SlidePair, similarity: Similarity, shape: TileShape, config: RegistrationConfig) -> float:
    """Share of a few fresh tiles that agree: enough to drop a wrong hypothesis at little cost."""
    rng = np.random.default_rng([config.seed, 3])
    wide = replace(shape, search_px=WIDER * shape.search_px)
    places = tissue_places(pair, similarity, wide.tile_um, GLANCE_TILES, rng)
    if not len(places):
        return 0.0
    found = measure(pair, similarity, places, wide)
    return float((np.linalg.norm(found.shifts, axis=1) <= LOOSER * config.tolerance_px * shape.mpp).mean())


GLANCE_TILES = 8


def judge(
    pair: SlidePair, similarity: Similarity, evidence: Evidence, steady: float, config: RegistrationConfig
) -> Verdict:
    """The verdict; `steady` is the share of control tiles that agree with their neighbours."""
    failures, doubts = _about_tissue(evidence, steady)
    for more_failures, more_doubts in (
        _about_stains(pair, config),
        _about_geometry(pair, similarity, evidence, config),
    ):
        failures, doubts = [*more_failures, *failures], [*more_doubts, *doubts]
    status: Status = "failed" if failures else "doubtful" if doubts else "reliable"
    numbers = _numbers(evidence, steady)
    if not evidence.convincing:
        return Verdict(status, (*failures, *doubts), (), numbers)
    numbers = {**_geometry(pair, similarity), **numbers}
    return Verdict(status, (*failures, *doubts), _notes(similarity), numbers)


def _about_tissue(evidence: Evidence, steady: float) -> tuple[list[str], list[str]]:
    said = (
        f"{evidence.agreeing} of {evidence.tiles} fresh tiles match where expected "
        f"({evidence.chance * evidence.tiles:.1f} by chance)"
    )
    if evidence.tiles < MIN_EVIDENCE:
        return [f"only {evidence.tiles} tiles have tissue on both slides"], []
    if not evidence.convincing:
        return [f"the tissue does not correspond: {said}"], []
    if evidence.share < RELIABLE_SHARE:
        return [], [f"the tissue corresponds in part: {said}"]
    if evidence.clear < RELIABLE_SHARE * evidence.tiles:
        return [], [f"only {evidence.clear} of {evidence.tiles} fresh tiles have a clear match"]
    if evidence.error_um > RELIABLE_UM:
        return [], [
            f"points may be more than 5 um off: 95 % of the fresh tiles match within "
            f"{evidence.error_um:.1f} um of where expected, not within {RELIABLE_UM:g}"
        ]
    if evidence.separation < RELIABLE_SEPARATION:
        return [], [f"peaks are hardly higher than at wrong places (separation {evidence.separation:.2f})"]
    if steady < RELIABLE_SHARE:
        return [], [f"only {steady:.0%} of the control tiles agree with their neighbours"]
    return [], []


MIN_EVIDENCE = 4
"""With fewer tiles even full agreement proves nothing."""


def _about_stains(pair: SlidePair, config: RegistrationConfig) -> tuple[list[str], list[str]]:
    """Slides are compared with each other: a pale PHH3 slide may look like H&E, but less so than its H&E."""
    if config.any_stains or "unknown" in (pair.he.stain.name, pair.phh3.stain.name):
        return [], []
    contrast = _eosin_like(pair.he) - _eosin_like(pair.phh3)
    if contrast < -MIN_STAIN_CONTRAST:
        return ["the slides are in the wrong order: the second looks more like H&E than the first"], []
    if contrast < MIN_STAIN_CONTRAST:
        return [], ["the two slides look alike: are they H&E and PHH3?"]
    return [], []


def _eosin_like(view: View) -> float:
    """Log odds that the slide is H&E."""
    sure = min(view.stain.confidence, 1 - 1e-9)
    return math.log(sure / (1 - sure)) * (1 if view.stain.name == "H&E" else -1)


def _about_geometry(
    pair: SlidePair, similarity: Similarity, evidence: Evidence, config: RegistrationConfig
) -> tuple[list[str], list[str]]:
    if not evidence.convincing:
        return [], []
    if similarity.mirrored:
        return ["one slide is a mirror image of the other: it was scanned upside down or flipped"], []
    error = abs(math.log(similarity.scale))
    if error <= max(config.max_scale_error, LARGEST_WARP_UM / (max(pair.phh3.size_um) / 2)):
        return [], []
    phh3_mpp = pair.phh3.slide.mpp
    said = (
        f"the stated resolutions contradict each other: with {pair.he.slide.mpp:.4g} um/px in H&E, "
        f"PHH3 has {phh3_mpp * similarity.scale:.3g} and not {phh3_mpp:.4g}"
    )
    return ([said], []) if error > HUGE_SCALE_ERROR else ([], [said])


def _notes(similarity: Similarity) -> tuple[str, ...]:
    degrees = math.degrees(similarity.rotation_rad)
    return (f"the slides are turned by {degrees:.0f} degrees",) if abs(degrees) > LARGE_TURN_DEG else ()


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


def _numbers(evidence: Evidence, steady: float) -> dict[str, float]:
    return {
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
