"""From a slide to its tissue mask, and from the mask to files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from metaphase.artifacts import write_bytes, write_text
from metaphase.slides import Slide, plan_tiles, read_tiles
from metaphase.tissue.config import TissueConfig
from metaphase.tissue.mask import TissueMask
from metaphase.tissue.segmentation import segment_tissue

BLOCK_PX = 256
"""Side of the blocks that are read, in pixels of the mask."""


class TissueFiles(NamedTuple):
    """Where the forms of a mask were written."""

    png: Path
    geojson: Path


def find_tissue(slide: Slide, config: TissueConfig | None = None) -> TissueMask:
    """Find the tissue on the part of the slide that the scanner filled.

    The slide is read block by block at the working resolution (or at its own, where that is coarser), and
    judged as a whole: what is glass shows only in the whole. Memory goes with the size of the mask, about
    45 bytes a pixel.
    """
    config = config or TissueConfig()
    mpp = max(config.mpp, slide.mpp)
    plan = plan_tiles(slide.bounds, slide.mpp, mpp=mpp, tile_px=BLOCK_PX)
    rgb = np.empty((plan.height, plan.width, 3), np.uint8)
    for tile, pixels in read_tiles(slide, plan):
        rgb[tile.core.y : tile.core.bottom, tile.core.x : tile.core.right] = pixels
    return TissueMask(segment_tissue(rgb, mpp, config), mpp, plan.x, plan.y, plan.scale)


def save_tissue(tissue: TissueMask, folder: str | Path, stem: str) -> TissueFiles:
    """Write `<stem>.tissue.png` and `<stem>.tissue.geojson` into `folder`, each whole or not at all."""
    files = TissueFiles(*(Path(folder) / f"{stem}.tissue.{ending}" for ending in TissueFiles._fields))
    write_bytes(files.png, tissue.to_png())
    write_text(files.geojson, tissue.to_geojson())
    return files
