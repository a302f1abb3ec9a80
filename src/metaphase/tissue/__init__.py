"""Where a slide has tissue, in H&E and in immunohistochemistry."""

from metaphase.tissue.config import TissueConfig
from metaphase.tissue.finding import TissueFiles, find_tissue, save_tissue
from metaphase.tissue.mask import TissueMask, load_tissue
from metaphase.tissue.picture import draw_overlay, save_overlay
from metaphase.tissue.segmentation import segment_tissue

__all__ = [
    "TissueConfig",
    "TissueFiles",
    "TissueMask",
    "draw_overlay",
    "find_tissue",
    "load_tissue",
    "save_overlay",
    "save_tissue",
    "segment_tissue",
]
