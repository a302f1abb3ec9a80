"""What to know about a slide before trusting any number made from it: its scale, stain, focus and colours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

import cv2
import numpy as np

from metaphase.base.arrays import RGB, Box, Floats32
from metaphase.base.errors import ResultWarning, ResultWarnings, SlideError
from metaphase.images.stain.deconvolution import channel_mean, optical_density, stained_density
from metaphase.images.tissue.finding import TissueMask
from metaphase.slides.backends import CHECK_MPP
from metaphase.slides.contract import KINDS, UNDECODABLE, WORKING_MPP, Flaw, Slide
from metaphase.slides.damage import cell_of, odd_parts

# ---- the colour of empty glass ----

DARKEST_GLASS, MAX_GLASS_TINT = 180, 0.2
"""Glass is brighter than this in every channel, and its channels differ by no more than this share."""


def glass_colour(thumbnail: RGB) -> Floats32:
    """The median colour (3) of the brightest pixels; white where these are too dark or coloured for glass."""
    pixels = thumbnail.reshape(-1, 3)
    light = channel_mean(pixels)
    glass = np.median(pixels[light >= np.percentile(light, 99)], axis=0).astype(np.float32)
    believable = glass.min() > DARKEST_GLASS and np.ptp(glass) < MAX_GLASS_TINT * glass.max()
    return glass if believable else np.full(3, 255, np.float32)


def white_balanced(image: RGB, glass: Floats32) -> RGB:
    """The image as if glass were white: a tint of lamp or camera would pass for a stain."""
    return np.minimum(image * (255 / glass), 255).astype(np.uint8)


# ---- which stain is this ----
#
# Eosin absorbs green and little else, so an H&E slide owes more than 40 % of its optical density to the green
# channel. Haematoxylin with DAB (PHH3 and its like) absorbs the three channels more evenly and stays
# below 38 %, however much or little brown there is. A red chromogen (AEC, Fast Red) would pass for eosin.

BOUNDARY = 0.39
"""Green share between the stains. Real fields: H&E above 0.43 (32 um crops above 0.40), DAB below 0.37."""
SLOPE = 60.0
"""Confidence is logistic in the green share: 0.86 at 0.03 from the boundary, 0.95 at 0.05."""
MIN_OD, MAX_OD = 0.04, 1.2
"""Mean optical density (base 10) of pixels that are neither glass nor black."""
MIN_CHROMA = 0.05
"""Least difference between the channels' optical densities of a pixel that has a colour."""
MIN_COLOURED = 0.002
"""Least fraction of coloured pixels; a thumbnail of a tiny biopsy has little more."""
MIN_PLAUSIBLE = 0.6
"""Least fraction of coloured density that a mixture of histological stains can explain."""
MIN_TEXTURE = 0.003
"""Least standard deviation of density: tissue is never of one colour."""
MAX_PIXELS = 250_000


@dataclass(frozen=True, slots=True)
class StainGuess:
    """The likelier stain and how sure that is, from 0.5 (a toss-up) to 1; unknown has confidence 0."""

    name: Literal["H&E", "DAB", "unknown"]
    confidence: float


UNKNOWN = StainGuess("unknown", 0.0)


def guess_stain(image: RGB) -> StainGuess:
    """Guess the stain of a thumbnail, a field, or a stack of fields (..., h, w, 3).

    Glass, grey, one-colour and otherwise implausible images are "unknown".
    """
    pixels = image.reshape(-1, 3)
    if len(pixels) > MAX_PIXELS:  # spread evenly, without a stride that could lock onto columns
        pixels = pixels[np.random.default_rng(0).integers(0, len(pixels), MAX_PIXELS)]
    density = optical_density(pixels)
    mean, (red, green, blue) = channel_mean(density), density.T
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    coloured = (mean > MIN_OD) & (mean < MAX_OD) & (spread > MIN_CHROMA)
    if coloured.mean() < MIN_COLOURED or mean[coloured].std() < MIN_TEXTURE:
        return UNKNOWN
    density = density[coloured]
    amount = density.sum(axis=1)
    share = density / amount[:, None]
    plausible = share[:, 1] > np.maximum(0.27, np.minimum(share[:, 0], share[:, 2]))
    if amount[plausible].sum() < MIN_PLAUSIBLE * amount.sum():
        return UNKNOWN
    part = float(density[plausible, 1].sum() / amount[plausible].sum())
    certainty = 1 / (1 + np.exp(-SLOPE * abs(part - BOUNDARY)))
    return StainGuess("H&E" if part > BOUNDARY else "DAB", float(certainty))


# ---- what a user should know about a slide before trusting any number made from it ----

COARSE_SCAN_MPP = 0.4
"""Above this a scan shows less than the networks were made for (40x scans have 0.20 to 0.28 um/px)."""
OBJECTIVE_TIMES_MPP = (6.0, 14.0)
"""Objective power times mpp is about 10 for all scanners; outside this range one of the two is wrong."""
MAX_THUMBNAIL_SOURCE_PX = 64_000_000
"""Without a level this small, stain is guessed from sampled fields and not from a thumbnail."""
SAMPLED_FIELDS, FIELD_PX = 6, 256
PLAIN_SHARE = 0.01
"""Of an image; scans have none."""
FIELDS_OVERLAP = 4
"""On little tissue, fields are judged until they cover it this many times."""


@dataclass(frozen=True)
class SlideReport:
    """The facts of a slide, its likely stain, and what to beware of."""

    slide: Slide
    stain: StainGuess
    warnings: ResultWarnings

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
            "warnings": [warning.to_dict() for warning in self.warnings],
        }


def inspect_slide(slide: Slide) -> SlideReport:
    """Look at a slide's metadata and at a small sample of its pixels."""
    box, coarsest = slide.bounds, slide.levels[-1]
    if coarsest.width * coarsest.height <= MAX_THUMBNAIL_SOURCE_PX:
        sample = slide.thumbnail(1024)
    else:  # fields on a grid
        xs = np.linspace(box.x, box.right - FIELD_PX, SAMPLED_FIELDS).astype(int).tolist()
        ys = np.linspace(box.y, box.bottom - FIELD_PX, SAMPLED_FIELDS).astype(int).tolist()
        sample = np.vstack([slide.read_level(0, Box(x, y, FIELD_PX, FIELD_PX)) for x in xs for y in ys])
    stain = guess_stain(white_balanced(sample, glass_colour(sample)))
    return SlideReport(
        slide, stain, (*slide.info.warnings, *_resolution_warnings(slide), *_layout_warnings(slide, sample))
    )


def _resolution_warnings(slide: Slide) -> Iterator[ResultWarning]:
    resolution, power = slide.info.resolution, slide.info.objective_power
    if resolution is None:
        return
    if resolution.mpp > COARSE_SCAN_MPP:
        text = (
            f"scanned at {resolution.mpp:.3g} um/px (a 20x scan or coarser): finer detail than that is "
            f"interpolated at the working {WORKING_MPP} um/px, expect missed and mistaken mitoses"
        )
        advice = "the count may be far off, in either direction; scan at 40x where the number matters"
        yield ResultWarning("coarse-scan", text, advice)
    low, high = OBJECTIVE_TIMES_MPP
    if power and not low <= power * resolution.mpp <= high:
        text = f"objective {power:g}x and {resolution.mpp:.3g} um/px contradict each other"
        yield ResultWarning("objective-and-mpp", text, f"check --mpp; {CHECK_MPP}")


def _layout_warnings(slide: Slide, sample: RGB) -> Iterator[ResultWarning]:
    plain = np.zeros(sample.shape[:2], bool)
    for kind, box in odd_parts(sample):
        if kind == "plain area":
            plain[box.slices] = True
    if plain.mean() > PLAIN_SHARE:
        text = f"{plain.mean():.0%} of the image are one plain colour that is not glass"
        advice = "look at the slide; if tissue should be there, copy or export it again"
        yield ResultWarning("plain-area", text, advice)
    filled = slide.bounds.area / (slide.width * slide.height)
    if filled < 1:
        text = f"the scanner filled {filled:.0%} of the canvas, from ({slide.bounds.x}, {slide.bounds.y}) on"
        advice = (
            "coordinates are those of the whole canvas, as in OpenSlide; QuPath may count from that corner"
        )
        yield ResultWarning("canvas-partly-filled", text, advice)
    coarsest = slide.levels[-1]
    if coarsest.width * coarsest.height > MAX_THUMBNAIL_SOURCE_PX:
        text = "no small pyramid level: overviews will be slow"
        yield ResultWarning("no-small-level", text, "export it as a pyramid if you can")


# ---- what is damaged ----

DAMAGED = "damaged-tiles"
MOST_NAMED = 5
"""So many flaws of a kind are named by their position."""


def damage_warnings(flaws: Iterable[Flaw], mpp: float) -> Iterator[ResultWarning]:
    """What to know of parts that could not be decoded, and of parts that look like no scan."""
    by_kind: dict[str, list[Box]] = {kind: [] for kind in KINDS}
    for flaw in dict.fromkeys(flaws):
        by_kind[flaw.kind].append(flaw.box)
    lost = by_kind.pop(UNDECODABLE)
    if lost:
        area = sum(box.area for box in lost) * (mpp / 1000) ** 2
        where = f"{len(lost)} ({area:.3g} mm2), at {named_positions(lost)}"
        text = f"tiles that cannot be decoded are left out: {where}"
        advice = "copy or export the slide again: mitoses there are not counted"
        yield ResultWarning(DAMAGED, text, advice)
    odd = {}
    for kind, boxes in by_kind.items():
        apart = [box for box in boxes if not any(box.grown(1).intersection(gap).area for gap in lost)]
        odd[kind] = {cell_of(box): box for box in apart}
    if any(odd.values()):
        named = (f"{kind} at {named_positions(boxes.values())}" for kind, boxes in odd.items() if boxes)
        advice = "look there; if the tissue is broken, copy or export the slide again and search it again"
        yield ResultWarning("odd-pixels", f"the image looks damaged: {'; '.join(named)}", advice)


def named_positions(boxes: Iterable[Box]) -> str:
    """The corners of the first boxes, from the top.

    >>> named_positions([Box(9, 8, 1, 1), Box(3, 2, 1, 1)])
    '(3, 2), (9, 8)'
    """
    corners = sorted((box.y, box.x) for box in boxes)
    named = ", ".join(f"({x}, {y})" for y, x in corners[:MOST_NAMED])
    return named if len(corners) <= MOST_NAMED else f"{named} and {len(corners) - MOST_NAMED} more"


# ---- is a slide fit for the networks ----

BLUR_UM, COARSE_BLUR_UM = (0.15, 0.35, 0.7), (0.5, 1.0, 2.0)
"""Sharpness compares detail between the first two sizes with detail between the last two, at two scales:
coarse scans do not hold the finest detail, and noise hides a strong blur there."""
SHARP_FIELD, SHARP_COARSE_FIELD = 0.63, 0.6
"""Real 40x fields of four scanners have 0.67 and more (5th percentile) at both. Blurred by 0.3 um, which
costs a quarter of the count, at most 0.62 (95th) at the finer; blurred by 1 um, 0.60 at the coarser."""
BLURRED_SHARE = 0.25
"""A slide with more blurred fields than this is worth a warning."""
BLOCK_PX, BLOCKY = 8, 1.55
"""Steps between JPEG blocks are larger than others: in sound fields at most 1.5 times (99th percentile), at
a quality of 12 and below 1.56 times and more (1st). At quality 8 a quarter of the count is lost."""
COLOUR_RATIO = 1.9
"""Training augmentation covers about this factor in the optical density of a channel."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What sampled tissue fields look like."""

    fields: int
    """Fields looked at; with none, there was no tissue to judge."""
    blurred_share: float
    """Share of the fields that are out of focus."""
    optical_density: tuple[float, float, float]
    """Mean optical density (base 10) of stained pixels in red, green and blue."""
    blockiness: float = 1.0
    """How much larger steps between the blocks of JPEG are than others; the median of the fields."""


def slide_quality(slide: Slide, tissue: TissueMask, *, fields: int = 32) -> Quality:
    """Judge focus and colour from fields at random places of the tissue."""
    rows, columns = np.nonzero(tissue.mask)
    enough = math.ceil(FIELDS_OVERLAP * tissue.area_mm2 / (FIELD_PX * WORKING_MPP / 1000) ** 2)
    chosen = np.random.default_rng(0).choice(len(rows), min(fields, len(rows), enough), replace=False)
    box, scale = slide.bounds, WORKING_MPP / slide.mpp
    width, height = (max(1, min(FIELD_PX, int(side / scale))) for side in (box.width, box.height))
    xs = tissue.x + (columns[chosen] + 0.5) * tissue.scale - width * scale / 2
    ys = tissue.y + (rows[chosen] + 0.5) * tissue.scale - height * scale / 2
    xs = xs.clip(box.x, box.right - width * scale)  # an edge of the picture is sharp whatever its focus
    ys = ys.clip(box.y, box.bottom - height * scale)
    images, blocks = [], []
    for x, y in zip(xs, ys, strict=True):
        with suppress(SlideError):  # who needs those pixels will say that they are damaged
            images.append(slide.read(float(x), float(y), width, height))
            own = Box(int(x), int(y), FIELD_PX, FIELD_PX).intersection(box)
            blocks.append(blockiness(slide.read_level(0, own)) if own.area else 1.0)
    if not images:
        return Quality(0, 0.0, (0.0, 0.0, 0.0))
    fine = slide.mpp <= COARSE_SCAN_MPP
    blurred = [  # only a fine scan has the finest detail
        sharpness(image, COARSE_BLUR_UM) < SHARP_COARSE_FIELD or (fine and sharpness(image) < SHARP_FIELD)
        for image in images
    ]
    red, green, blue = stained_density(np.stack(images)).tolist()
    return Quality(len(images), float(np.mean(blurred)), (red, green, blue), float(np.median(blocks)))


def blockiness(pixels: RGB) -> float:
    """Steps between columns, and between rows, every 8 px against their median; the lesser one."""
    green = pixels[..., 1].astype(np.int16)
    ratios = []
    for axis in (0, 1):
        steps = np.abs(np.diff(green, axis=axis)).mean(axis=1 - axis)
        steps = steps[: len(steps) // BLOCK_PX * BLOCK_PX].reshape(-1, BLOCK_PX).mean(axis=0)
        usual = float(np.median(steps)) if steps.size else 0.0
        ratios.append(float(steps.max()) / usual if usual > 0 else 1.0)
    return min(ratios)


def sharpness(image: RGB, sizes_um: tuple[float, ...] = BLUR_UM) -> float:
    """Fine detail of a field at `WORKING_MPP` relative to coarser detail; about 0.7 to 1 when in focus."""
    density = channel_mean(optical_density(image))
    fine, middle, coarse = (cv2.GaussianBlur(density, (0, 0), size / WORKING_MPP) for size in sizes_um)
    detail = float(np.std(middle - coarse))
    return float(np.std(fine - middle)) / detail if detail > 1e-6 else 0.0


def quality_warnings(
    quality: Quality, trained_on: tuple[float, float, float] | None = None
) -> ResultWarnings:
    """Warnings for the user; `trained_on` is the mean optical density of the model's training slides."""
    warnings = []
    if quality.blurred_share > BLURRED_SHARE:
        text = f"{quality.blurred_share:.0%} of the sampled tissue is out of focus: mitoses there are missed"
        advice = "look at the hotspot and the gallery; scan the slide again if you can, then count again"
        warnings.append(ResultWarning("out-of-focus", text, advice))
    if quality.blockiness > BLOCKY:
        text = f"strong compression (blocks stand out {quality.blockiness:.1f} times): mitoses are missed"
        advice = "export the slide again from the scanner's own file, with a JPEG quality of 80 or more"
        warnings.append(ResultWarning("strong-compression", text, advice))
    if quality.fields and trained_on is not None:
        ratio = np.maximum(quality.optical_density, 1e-3) / np.maximum(trained_on, 1e-3)
        furthest = float(np.exp(np.abs(np.log(ratio)).max()))
        if furthest > COLOUR_RATIO:
            text = f"the stain is unlike that of the training slides (a channel differs {furthest:.1f} times)"
            advice = "look at the gallery; if many are false or missed, tune the threshold on your own slides"
            warnings.append(ResultWarning("far-stain", text, advice))
    return tuple(warnings)
