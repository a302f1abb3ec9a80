"""What a user should know about a slide before trusting any number made from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from metaphase.geometry import Box
from metaphase.slides import RGB, WORKING_MPP, Slide
from metaphase.stain.glass import glass_colour, white_balanced
from metaphase.stain.guess import StainGuess, guess_stain

COARSE_SCAN_MPP = 0.4
"""Above this a scan shows less than the networks were made for (40x scans have 0.20 to 0.28 um/px)."""
OBJECTIVE_TIMES_MPP = (6.0, 14.0)
"""Objective power times mpp is about 10 for all scanners; outside this range one of the two is wrong."""
MAX_THUMBNAIL_SOURCE_PX = 64_000_000
"""Without a level this small, stain is guessed from sampled fields and not from a thumbnail."""
SAMPLED_FIELDS, FIELD_PX = 6, 256


@dataclass(frozen=True)
class SlideReport:
    """The facts of a slide, its likely stain, and what to beware of."""

    slide: Slide
    stain: StainGuess
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        info, resolution = self.slide.info, self.slide.info.resolution
        return {
            "path": str(info.path),
            "width": self.slide.width,
            "height": self.slide.height,
            "mpp": resolution.mpp if resolution else None,
            "mpp_source": resolution.source if resolution else None,
            "objective_power": info.objective_power,
            "vendor": info.vendor,
            "backend": info.backend,
            "levels": [asdict(level) for level in info.levels],
            "bounds": asdict(info.bounds),
            "stain": asdict(self.stain),
            "warnings": list(self.warnings),
        }


def inspect_slide(slide: Slide) -> SlideReport:
    """Look at a slide's metadata and at a small sample of its pixels."""
    sample = _sample(slide)
    stain = guess_stain(white_balanced(sample, glass_colour(sample)))
    return SlideReport(
        slide, stain, (*slide.info.warnings, *_resolution_doubts(slide), *_layout_doubts(slide))
    )


def _sample(slide: Slide) -> RGB:
    """Pixels that stand for the slide: a thumbnail, or fields on a grid where no small level exists."""
    coarsest = slide.levels[-1]
    if coarsest.width * coarsest.height <= MAX_THUMBNAIL_SOURCE_PX:
        return slide.thumbnail(1024)
    box = slide.bounds
    xs = np.linspace(box.x, box.right - FIELD_PX, SAMPLED_FIELDS).astype(int)
    ys = np.linspace(box.y, box.bottom - FIELD_PX, SAMPLED_FIELDS).astype(int)
    return np.vstack([slide.read_level(0, Box(int(x), int(y), FIELD_PX, FIELD_PX)) for x in xs for y in ys])


def _resolution_doubts(slide: Slide) -> list[str]:
    resolution, power = slide.info.resolution, slide.info.objective_power
    if resolution is None:
        return []
    doubts = []
    if resolution.mpp > COARSE_SCAN_MPP:
        doubts.append(
            f"scanned at {resolution.mpp:.3g} um/px (a 20x scan or coarser): finer detail than that is "
            f"interpolated at the working {WORKING_MPP} um/px, expect missed and mistaken mitoses"
        )
    low, high = OBJECTIVE_TIMES_MPP
    if power and not low <= power * resolution.mpp <= high:
        doubts.append(f"objective {power:g}x and {resolution.mpp:.3g} um/px do not fit together: check --mpp")
    return doubts


def _layout_doubts(slide: Slide) -> list[str]:
    doubts = []
    filled = slide.bounds.area / (slide.width * slide.height)
    if filled < 1:
        doubts.append(
            f"the scanner filled {filled:.0%} of the canvas, from ({slide.bounds.x}, {slide.bounds.y}) on: "
            "coordinates are those of the whole canvas, as in OpenSlide; QuPath may count from that corner"
        )
    coarsest = slide.levels[-1]
    if coarsest.width * coarsest.height > MAX_THUMBNAIL_SOURCE_PX:
        doubts.append("no small pyramid level: overviews will be slow, export it as a pyramid if you can")
    return doubts
