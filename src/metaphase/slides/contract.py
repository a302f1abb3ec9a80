"""What every slide can do, whatever file it comes from.

Planes: `read` speaks level-0 pixels for the place and micrometres per pixel for the resolution;
`read_level` speaks whole pixels of one pyramid level. Level-0 coordinates are those of the file
(OpenSlide's frame): a slide whose scanner left empty margins keeps them and says where the
tissue-bearing part is in `bounds`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from metaphase.errors import MissingResolutionError, RegionError
from metaphase.geometry import Box
from metaphase.slides.resampling import read_resampled

RGB = npt.NDArray[np.uint8]
WHITE = 255
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
    resolution: Resolution | None
    vendor: str
    backend: str
    bounds: Box
    objective_power: float | None = None
    path: Path | None = None
    warnings: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)


class Slide(ABC):
    """A pyramid of RGB pixels with a physical scale. Reading is thread-safe. Use it in a `with` statement."""

    def __init__(self, info: SlideInfo) -> None:
        self.info = info

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
            return self._decode(level, box)
        out = np.full((box.height, box.width, 3), WHITE, np.uint8)
        if inside.area:
            place = inside.moved(-box.x, -box.y)
            out[place.y : place.bottom, place.x : place.right] = self._decode(level, inside)
        return out

    def close(self) -> None:  # noqa: B027 -- slides in memory have nothing to close
        """Release the file; reading afterwards is an error."""

    @property
    def width(self) -> int:
        """Level-0 width in pixels."""
        return self.info.levels[0].width

    @property
    def height(self) -> int:
        """Level-0 height in pixels."""
        return self.info.levels[0].height

    @property
    def levels(self) -> tuple[Level, ...]:
        """The pyramid, finest level first."""
        return self.info.levels

    @property
    def bounds(self) -> Box:
        """The part of level 0 that the scanner filled."""
        return self.info.bounds

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
                next_step="give them with --mpp (mpp=... in Python); a 40x scan has about 0.25",
            )
        return self.info.resolution.mpp

    def read(self, x: float, y: float, width: int, height: int, mpp: float = WORKING_MPP) -> RGB:
        """Read `width` x `height` pixels at `mpp`, the first one's top-left corner at level-0 (x, y).

        Any two reads that cover the same place at the same phase agree, so tiles have no seams.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
