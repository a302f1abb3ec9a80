"""How far a registration can be trusted, by tiles that had no part in it.

Three questions are asked of them. Does each match best where it is expected, more often than chance would
have it? Are the peaks higher than those of the same tiles at wrong positions of the same slides? And how far
from their expected position do those lie whose match is clear? No correlation coefficient is good or bad in
itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc

from metaphase.base.arrays import Mask
from metaphase.labels.registration.similarity import RegistrationConfig, Similarity
from metaphase.labels.registration.tiles import (
    Mapping,
    SlidePair,
    TileShape,
    View,
    measure,
    measure_null,
    tissue_positions,
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
GLANCE_TILES = 8
PER_TILE = 2.0
"""Independent tiles within the area of one."""
MIN_EVIDENCE = 4
"""With fewer tiles even full agreement proves nothing."""


@dataclass(frozen=True)
class Evidence:
    """What fresh tiles say about a map."""

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
    tissue = pair.phh3.tissue
    return Evidence(
        tiles=len(positions),
        agreeing=int((miss <= reach_px * shape.mpp).sum()),
        chance=min(1.0, math.pi * reach_px**2 / (2 * shape.search_px + 1) ** 2),
        median_peak=float(np.median(found.heights)),
        null_peak=null.centre,
        separation=null.separation(found.heights),
        clear=int(clear.sum()),
        error_um=float(np.percentile(miss[clear], 95 * (1 - STRAYS))) if clear.any() else math.inf,
        independent=PER_TILE * float(tissue.mask.sum()) * (tissue.mpp / shape.tile_um) ** 2,
    )


def glance(pair: SlidePair, similarity: Similarity, shape: TileShape, config: RegistrationConfig) -> float:
    """Share of a few fresh tiles that agree: enough to drop a wrong hypothesis at little cost."""
    rng = np.random.default_rng([config.seed, 3])
    wide = replace(shape, search_px=WIDER * shape.search_px)
    positions = tissue_positions(pair, similarity, wide.tile_um, GLANCE_TILES, rng)
    if not len(positions):
        return 0.0
    found = measure(pair, similarity, positions, wide)
    return float((np.linalg.norm(found.shifts, axis=1) <= LOOSER * config.tolerance_px * shape.mpp).mean())


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
        middle = np.array(pair.phh3.size_um) / 2
        shift_x, shift_y = (similarity.apply(middle) - middle).tolist()
        degrees = math.degrees(similarity.rotation_rad)
        geometry = {
            "shift_x_um": shift_x,
            "shift_y_um": shift_y,
            "rotation_deg": degrees,
            "scale": similarity.scale,
        }
        numbers = geometry | numbers
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


def _about_stains(pair: SlidePair, config: RegistrationConfig) -> Doubts:
    """Slides are compared with each other: a pale PHH3 slide may look like H&E, but less so than its H&E."""
    if config.any_stains or "unknown" in (pair.he.stain.name, pair.phh3.stain.name):
        return
    contrast = _he_log_odds(pair.he) - _he_log_odds(pair.phh3)
    if contrast < -MIN_STAIN_CONTRAST:
        yield "failed", "the slides are in the wrong order: the second looks more like H&E than the first"
    elif contrast < MIN_STAIN_CONTRAST:
        yield "doubtful", "the two slides look alike: are they H&E and PHH3?"


def _he_log_odds(view: View) -> float:
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
