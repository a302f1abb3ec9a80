"""A fair sample of a slide's pixels: fields spread over its tissue, and some of its glass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metaphase.errors import UsageError
from metaphase.geometry import Box
from metaphase.slides import Slide
from metaphase.stain.errors import TooLittleTissueError
from metaphase.stain.pixels import RGB
from metaphase.stain.standardisation.density import GLASS_DENSITY, is_tissue, to_density


@dataclass(frozen=True)
class SamplingConfig:
    """How much of a slide is looked at."""

    fields: int = 40
    """Fields read at random places with tissue."""
    field_px: int = 256
    """Side of a field."""
    mpp: float = 0.5
    """Resolution of the fields; nuclei must be seen, details need not."""
    thumbnail_px: int = 1024
    """Longest side of the overview in which tissue and glass are sought."""

    def __post_init__(self) -> None:
        if min(self.fields, self.field_px, self.thumbnail_px) < 1 or not self.mpp > 0:
            raise UsageError(f"{self} reads nothing", next_step="give numbers above 0")


SAMPLING = SamplingConfig()


def sample_slide(slide: Slide, config: SamplingConfig = SAMPLING, seed: int = 0) -> RGB:
    """Pixels (n, 3) of a slide's tissue at high resolution and of its glass."""
    overview = slide.thumbnail(min(config.thumbnail_px, max(slide.bounds.width, slide.bounds.height)))
    density = to_density(overview.astype(np.float32))
    rows, columns = np.nonzero(is_tissue(density))
    if len(rows) == 0:
        raise TooLittleTissueError(
            "no stained tissue is visible",
            path=slide.info.path,
            next_step="check that this is a stained slide",
        )
    scale = slide.bounds.width / overview.shape[1], slide.bounds.height / overview.shape[0]
    places = np.column_stack([columns + 0.5, rows + 0.5]) * scale
    fields = [_read(slide, box, config.mpp).reshape(-1, 3) for box in _choose(slide, places, config, seed)]
    glass = overview[density.mean(axis=-1) < GLASS_DENSITY]
    return np.concatenate([*fields, glass])


def _choose(slide: Slide, places: npt.NDArray[np.float64], config: SamplingConfig, seed: int) -> list[Box]:
    """Some level-0 boxes of a grid, hence without overlap, that hold `places` (x, y within the bounds)."""
    bounds = slide.bounds
    side = max(1, round(config.field_px * _zoom(slide, config.mpp)))
    columns = bounds.width // side + 1
    column, row = (places // side).astype(int).T
    cells = np.random.default_rng(seed).permutation(np.unique(row * columns + column))[: config.fields]
    boxes = (
        Box(bounds.x + int(cell % columns) * side, bounds.y + int(cell // columns) * side, side, side)
        for cell in cells
    )
    return [box.intersection(bounds) for box in boxes]


def _read(slide: Slide, box: Box, mpp: float) -> RGB:
    zoom = _zoom(slide, mpp)
    if zoom == 1:
        return slide.read_level(0, box)
    width, height = (max(1, int(side / zoom)) for side in (box.width, box.height))
    return slide.read(box.x, box.y, width, height, mpp)


def _zoom(slide: Slide, mpp: float) -> float:
    """Level-0 pixels a sampled pixel; a slide that is coarser, or states no resolution, is taken as it is."""
    return 1.0 if slide.info.resolution is None else max(1.0, mpp / slide.mpp)
