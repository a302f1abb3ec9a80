"""A look at a slide before the search: where is tissue, which stain is it, what is brown?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import cv2
import numpy as np

from metaphase.geometry import Box
from metaphase.parallel import ordered_map
from metaphase.phh3.brown import UNIT, BrownScale, amounts
from metaphase.phh3.config import CandidateConfig
from metaphase.phh3.plane import search_plane
from metaphase.slides import RGB, Slide
from metaphase.stain.glass import glass_colour, white_balanced
from metaphase.stain.guess import StainGuess, guess_stain
from metaphase.tissue import TissueMask, find_tissue

GREATEST_LEAK = 0.5
"""More DAB than this in proportion to haematoxylin is brown, not a leak."""
STAINED_DENSITY = 0.06
"""Mean density of a pixel that is not glass."""
BLUEST_SHARE = 0.1
"""The leak is measured on this share of the pixels, those with most haematoxylin."""
NORMAL_5TH_PERCENTILE = 1.645
"""Standard deviations between the median and the 5th percentile of a normal distribution."""
GLASS_THUMBNAIL_PX = 512
FEWEST_PIXELS = 1000
"""With fewer stained pixels nothing can be estimated."""


@dataclass(frozen=True)
class BrownThreshold:
    """From where on a pixel of a slide is brown, and what that was derived from."""

    value: float
    """Least DAB of a brown pixel."""
    leak: float
    """Seeming DAB of blue pixels, relative to their haematoxylin."""
    background: float
    """Median DAB of the tissue."""
    spread: float
    """Standard deviation of the unspecific DAB, from the half below the median: no positive cell is there."""
    brown_share: float
    """Share of the sampled tissue at or above the threshold."""

    @property
    def scale(self) -> BrownScale:
        """Tables for this slide."""
        return BrownScale.of(self.leak)

    @property
    def level(self) -> int:
        """The threshold in units of the scale."""
        return round(self.value / UNIT)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the record."""
        return asdict(self)


@dataclass(frozen=True)
class Survey:
    """What is known about a slide before its candidates."""

    tissue: TissueMask
    """Where candidates are looked for, the margin included."""
    pixels: RGB
    """(n, 3), sampled from stained tissue."""
    stain: StainGuess
    threshold: BrownThreshold | None
    """None where there is too little tissue to tell."""


def survey_slide(slide: Slide, config: CandidateConfig, threads: int = 2) -> Survey:
    """Find the tissue and estimate the threshold from fields spread over it, the same on every call."""
    tissue = _with_margin(find_tissue(slide, config.tissue), config.margin_um)
    fields = _read_fields(slide, tissue, config, threads)
    pixels = stained(fields.reshape(-1, 3))
    if len(pixels) < FEWEST_PIXELS:
        return Survey(tissue, pixels, StainGuess("unknown", 0.0), None)
    stain = guess_stain(white_balanced(fields, glass_colour(slide.thumbnail(GLASS_THUMBNAIL_PX))))
    return Survey(tissue, pixels, stain, estimate_threshold(pixels, config))


def estimate_threshold(pixels: RGB, config: CandidateConfig) -> BrownThreshold:
    """The threshold of a slide from stained pixels (n, 3): background plus some spreads, within limits.

    Median and lower half do not feel the positive cells, which are few, nor any brown artefacts up to a
    third of the tissue.
    """
    leak = measure_leak(pixels)
    dab = amounts(BrownScale.of(leak).dab, pixels) * UNIT
    low, background = np.percentile(dab, (5, 50))
    spread = (background - low) / NORMAL_5TH_PERCENTILE
    limits = config.least_threshold, config.greatest_threshold
    value = float(np.clip(background + config.spread_factor * spread, *limits))
    share = float(np.mean(dab >= value))
    return BrownThreshold(value, leak, float(background), float(spread), share)


def measure_leak(pixels: RGB) -> float:
    """Median ratio of DAB to haematoxylin over the bluest pixels, from 0 to `GREATEST_LEAK`."""
    scale = BrownScale.of()
    dab, blue = amounts(scale.dab, pixels), amounts(scale.haematoxylin, pixels)
    bluest = blue >= max(1, np.percentile(blue, 100 * (1 - BLUEST_SHARE)))
    if not bluest.any():
        return 0.0
    return float(np.clip(np.median(dab[bluest] / blue[bluest]), 0, GREATEST_LEAK))


def stained(pixels: RGB) -> RGB:
    """The pixels of (n, 3) that are not glass."""
    density = -np.log(np.maximum(np.arange(256), 1) / 255).astype(np.float32)
    kept: RGB = pixels[density[pixels].mean(axis=1) > STAINED_DENSITY]
    return kept


def _with_margin(tissue: TissueMask, margin_um: float) -> TissueMask:
    side = 2 * round(margin_um / tissue.mpp) + 1
    grown = cv2.dilate(tissue.mask.astype(np.uint8), np.ones((side, side), np.uint8)) > 0
    return TissueMask(grown, tissue.mpp, tissue.x, tissue.y, tissue.scale)


def _read_fields(slide: Slide, tissue: TissueMask, config: CandidateConfig, threads: int) -> RGB:
    """Fields (n, side, side, 3) of the plane that will be searched, around random places of the tissue."""
    plane, side = search_plane(slide, config.mpp), config.field_px
    rows, columns = np.nonzero(tissue.mask)
    chosen = np.random.default_rng(0).permutation(len(rows))[: config.fields]
    centres = np.stack([columns[chosen], rows[chosen]], axis=1) + 0.5
    places = (centres * tissue.scale + (tissue.x, tissue.y)) / plane.scale - side / 2
    boxes = [Box(x, y, side, side) for x, y in np.floor(places).astype(int).tolist()]
    fields = list(ordered_map(plane.read, boxes, threads=threads, ahead=2 * threads))
    return np.stack(fields) if fields else np.zeros((0, side, side, 3), np.uint8)
