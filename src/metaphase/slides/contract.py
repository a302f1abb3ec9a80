"""What a slide is: pixels at a position, at a physical resolution, whatever file they come from.

Planes: `read` speaks level-0 pixels for the place and micrometres per pixel for the resolution;
`read_level` speaks whole pixels of one pyramid level. Level-0 coordinates are those of the file
(OpenSlide's frame): a slide whose scanner left empty margins keeps them and says where the
tissue-bearing part is in `bounds`.

Pixel i of the output covers level-0 columns [x + i*scale, x + (i+1)*scale). Each output pixel is a
weighted mean whose weights depend only on that interval, so a tile read alone equals the same part of
a larger read.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from metaphase.base.arrays import RGB, Box
from metaphase.base.errors import MissingResolutionError, RegionError, ResultWarnings, SlideError
from metaphase.base.foreign import parsing

# ---- what every slide can do, whatever file it comes from ----

WHITE = 255
COPY_AGAIN = "check that the copy is complete, or export the file again"
MOST_EXTENT_MM = 300.0
"""The largest glass slides for sections of whole organs have about 150 mm."""
WORKING_MPP = 0.25
"""The resolution at which the networks see tissue, in um/px."""


@dataclass(frozen=True, slots=True)
class Level:
    """One image of the pyramid; `downsample` is how many level-0 pixels make one of its pixels."""

    width: int
    height: int
    downsample: float


@dataclass(frozen=True, slots=True)
class Resolution:
    """Micrometres per level-0 pixel, and who said so."""

    mpp: float
    source: Literal["metadata", "flag"]


@dataclass(frozen=True)
class SlideInfo:
    """What a slide file says about itself."""

    levels: tuple[Level, ...]
    """The pyramid, finest level first."""
    resolution: Resolution | None
    vendor: str
    backend: str
    bounds: Box
    """The part of level 0 that the scanner filled."""
    objective_power: float | None = None
    path: Path | None = None
    warnings: ResultWarnings = ()

    def __post_init__(self) -> None:
        if self.resolution is None:
            return
        extent_mm = max(self.levels[0].width, self.levels[0].height) * self.resolution.mpp / 1000
        if extent_mm > MOST_EXTENT_MM:
            raise SlideError(
                f"would be {extent_mm:,.0f} mm long at {self.resolution.mpp:g} um/px",
                path=self.path,
                next_step="check the micrometres per pixel (--mpp); a glass slide has 76 mm",
            )


class DamagedPixelsError(SlideError):
    """Pixels that are in the file and cannot be decoded."""


def damage(path: Path | None, what: str = "damaged slide") -> AbstractContextManager[None]:
    """Whatever goes wrong inside is the fault of a slide's file."""
    return parsing(path, what, next_step=COPY_AGAIN, error=SlideError)


UNDECODABLE = "undecodable"
KINDS = (UNDECODABLE, "seam", "plain area", "noise")
"""What is noted of damage: what a decoder says, and what pixels look like."""
FLAW_PX = 256
"""Where a file has no tiles of its own, damage is reported in parts of at most this side."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """A part of level 0 that cannot be decoded, or that looks like no scan."""

    kind: str
    box: Box


@contextmanager
def closed_on_failure(file: Any) -> Iterator[None]:
    """Close what was opened where the work inside fails; else it stays open."""
    try:
        yield
    except BaseException:
        file.close()
        raise


class Slide(ABC):
    """A pyramid of RGB pixels with a physical scale. Reading is thread-safe. Use it in a `with` statement."""

    flaws: list[Flaw] | None = None
    """Where damage is noted, by whoever goes on without these pixels, which are then white; else an error."""

    def __init__(self, info: SlideInfo) -> None:
        self.info = info
        self.levels, self.bounds = info.levels, info.bounds
        self.width, self.height = info.levels[0].width, info.levels[0].height

    @abstractmethod
    def _decode(self, level: int, box: Box) -> RGB:
        """Pixels of `box`, which lies inside the image of `level`; transparent ones are white."""

    def read_level(self, level: int, box: Box) -> RGB:
        """Pixels (height, width, 3) of `box` in the plane of `level`; white outside the image."""
        if not 0 <= level < len(self.levels) or box.width < 1 or box.height < 1:
            raise RegionError(
                f"no pixels at level {level} in a box of {box.width} x {box.height}",
                path=self.info.path,
                next_step=f"the slide has {len(self.levels)} levels, from 0; a box needs 1 x 1 pixel or more",
            )
        inside = box.intersection(Box(0, 0, self.levels[level].width, self.levels[level].height))
        if inside == box:
            return self._sound(level, box)
        out = blank(box)
        if inside.area:
            out[inside.moved(-box.x, -box.y).slices] = self._sound(level, inside)
        return out

    def _sound(self, level: int, box: Box) -> RGB:
        """Pixels of `box`; where flaws are noted, the parts that cannot be decoded are white."""
        try:
            return self._decode(level, box)
        except DamagedPixelsError:
            if self.flaws is None:
                raise
        if max(box.width, box.height) <= FLAW_PX:
            self.note_undecodable(level, box)
            return blank(box)
        axis = int(box.width >= box.height)
        return np.concatenate([self._sound(level, half) for half in _halves(box)], axis)

    def decoding(
        self, level: int, box: Box, error: type[SlideError] = DamagedPixelsError
    ) -> AbstractContextManager[None]:
        """Whatever goes wrong inside is damage of the pixels from the corner of `box` on."""
        what = f"level {level} cannot be decoded at ({box.x}, {box.y})"
        return parsing(self.info.path, what, next_step=COPY_AGAIN, error=error)

    def note_undecodable(self, level: int, box: Box) -> None:
        """Keep in mind that a box in the plane of `level` cannot be decoded."""
        if self.flaws is not None:
            downsample = self.levels[level].downsample
            edges = (round(side * downsample) for side in (box.x, box.y, box.width, box.height))
            self.flaws.append(Flaw(UNDECODABLE, Box(*edges)))

    def close(self) -> None:  # noqa: B027 -- slides in memory have nothing to close
        """Release the file; reading afterwards is an error."""

    @property
    def name(self) -> str:
        """The file name, or a stand-in for arrays."""
        return self.info.path.name if self.info.path else "array"

    @property
    def mpp(self) -> float:
        """Micrometres per level-0 pixel."""
        if self.info.resolution is None:
            raise MissingResolutionError(
                "the file states no believable micrometres per pixel",
                path=self.info.path or "array",
                next_step="give --mpp (mpp=... in Python) or the column mpp of a manifest; 40x is about 0.25",
            )
        return self.info.resolution.mpp

    def read(self, x: float, y: float, width: int, height: int, mpp: float = WORKING_MPP) -> RGB:
        """Read `width` x `height` pixels at `mpp`, the first one's top-left corner at level-0 (x, y).

        Any two reads that cover the same position at the same phase agree, so tiles have no seams.
        """
        return read_resampled(self, x, y, width, height, mpp / self.mpp)

    def thumbnail(self, max_side: int = 1024) -> RGB:
        """The filled part of the slide, at most `max_side` pixels wide and high; needs no mpp."""
        box = self.bounds
        downsample = max(box.width, box.height) / max_side
        width, height = (max(1, round(side / downsample)) for side in (box.width, box.height))
        return read_resampled(self, box.x, box.y, width, height, downsample)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def blank(box: Box) -> RGB:
    """White pixels."""
    return np.full((box.height, box.width, 3), WHITE, np.uint8)


def _halves(box: Box) -> tuple[Box, Box]:
    """The two halves of the longer side."""
    if box.width >= box.height:
        half = box.width // 2
        return Box(box.x, box.y, half, box.height), Box(box.x + half, box.y, box.width - half, box.height)
    half = box.height // 2
    return Box(box.x, box.y, box.width, half), Box(box.x, box.y + half, box.width, box.height - half)


@dataclass(frozen=True)
class SlideBackend:
    """How slides of a further kind are known and opened."""

    knows: Callable[[Path], bool]
    """Whether a file or folder is one, by its name and first bytes; asked where OpenSlide cannot."""
    open: Callable[[Path, float | None], Slide]
    """Opens it; the number is the mpp that overrides what the file says."""


# ---- from pyramid levels to any physical resolution ----

KERNEL = Image.Resampling.BICUBIC
KERNEL_RADIUS = 2
"""Reach of the kernel, in pixels of the coarser of the two grids."""
MAX_SOURCE_PX = 16_000_000
"""Larger sources are read in pieces, so that a thumbnail of a gigapixel level stays small in memory."""
COARSER_TOLERANCE = 0.02
"""A level this much coarser than asked is still used; the finer one would cost several times the decoding."""
ALIGNED_PX = 0.01
"""Below this distance from the level's own pixel grid, pixels are copied and not resampled."""


def read_resampled(slide: Slide, x: float, y: float, width: int, height: int, scale: float) -> RGB:
    """Read `width` x `height` pixels of `scale` level-0 pixels each, from level-0 (x, y) on.

    They come from the coarsest level that still holds the detail.
    """
    if width < 1 or height < 1:
        raise RegionError(
            f"a region of {width} x {height} pixels is empty", next_step="ask for at least 1 x 1 pixel"
        )
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(scale) and scale > 0):
        raise RegionError(
            f"region at ({x}, {y}) with {scale} level-0 pixels per pixel makes no sense",
            next_step="give finite coordinates and a resolution above 0",
        )
    downsamples = [level.downsample for level in slide.levels]
    enough = [i for i, factor in enumerate(downsamples) if factor <= scale * (1 + COARSER_TOLERANCE)]
    level = max(enough, key=lambda i: downsamples[i], default=0)
    downsample = downsamples[level]
    return _read_scaled(slide, level, x / downsample, y / downsample, width, height, scale / downsample)


def _read_scaled(
    slide: Slide, level: int, left: float, top: float, width: int, height: int, ratio: float
) -> RGB:
    """Read output pixels of `ratio` level pixels each, from (left, top) of the level's plane on."""
    drift = abs(ratio - 1) * max(width, height)
    if max(drift, abs(left - round(left)), abs(top - round(top))) < ALIGNED_PX:
        return slide.read_level(level, Box(round(left), round(top), width, height))
    reach = KERNEL_RADIUS * max(ratio, 1.0) + 1  # of some output pixel's kernel, in level pixels
    x, y = math.floor(left - reach), math.floor(top - reach)
    right, bottom = math.ceil(left + width * ratio + reach), math.ceil(top + height * ratio + reach)
    source = Box(x, y, right - x, bottom - y)
    if source.area <= MAX_SOURCE_PX or max(width, height) == 1:
        # Columns, then rows: left to itself, Pillow goes by the shape, and roundings would differ.
        across = (left - x, 0, left - x + width * ratio, source.height)
        down = (0, top - y, width, top - y + height * ratio)
        pixels = Image.fromarray(slide.read_level(level, source))
        narrowed = pixels.resize((width, source.height), KERNEL, box=across)
        return np.asarray(narrowed.resize((width, height), KERNEL, box=down))
    parts, axis = [], int(width >= height)
    for part in _halves(Box(0, 0, width, height)):
        corner = left + part.x * ratio, top + part.y * ratio
        parts.append(_read_scaled(slide, level, *corner, part.width, part.height, ratio))
    return np.concatenate(parts, axis)


# ---- arithmetic of pyramid levels, shared by all backends ----


def make_levels(sizes: Iterable[tuple[int, int]]) -> tuple[Level, ...]:
    """Levels from their (width, height), finest first.

    Scanners reduce by a whole factor and cut off what is left over, so the ratio of the sizes is
    slightly wrong; across 100,000 pixels that would shift the far edge by several pixels. The whole
    factor is taken where both sizes fit it.
    """
    (width, height), *rest = sizes
    levels = [Level(width, height, 1.0)]
    for w, h in rest:
        ratio = (width / w + height / h) / 2
        factor = round(ratio)
        fits = factor >= 1 and all(abs(full / factor - r) <= 1 for full, r in ((width, w), (height, h)))
        levels.append(Level(w, h, float(factor) if fits else ratio))
    return tuple(levels)


# ---- samples of any kind to opaque RGB ----


def as_rgb(pixels: npt.NDArray[np.uint8], *, premultiplied: bool = False) -> RGB:
    """(height, width, samples) of grey, RGB or RGBA to RGB over white.

    Colours that are `premultiplied` are darkened already where they are transparent.
    """
    samples = pixels.shape[2]
    if samples < 4:
        return np.repeat(pixels, 3, axis=2) if samples == 1 else pixels
    rgb = np.ascontiguousarray(pixels[..., :3])
    holes = pixels[..., 3] < WHITE
    if holes.any():
        weight = pixels[holes, 3:].astype(np.uint16)
        if premultiplied:
            blended = np.minimum(rgb[holes] + (WHITE - weight), WHITE)
        else:
            blended = (rgb[holes] * weight + WHITE * (WHITE - weight) + WHITE // 2) // WHITE
        rgb[holes] = blended.astype(np.uint8)
    return rgb
