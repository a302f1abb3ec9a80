"""Where a slide has tissue, in H&E and in immunohistochemistry."""

from metaphase.images.tissue.finding import (
    TissueConfig,
    TissueFiles,
    TissueSource,
    find_tissue,
    save_tissue,
    segment_tissue,
)
from metaphase.images.tissue.mask import TissueMask, draw_overlay, load_tissue, save_overlay

__all__ = [
    "TissueConfig",
    "TissueFiles",
    "TissueMask",
    "TissueSource",
    "draw_overlay",
    "find_tissue",
    "load_tissue",
    "save_overlay",
    "save_tissue",
    "segment_tissue",
]
