"""Mitoses per mm2 of tissue, smoothed: where the tumour is active."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter

from metaphase.grading.cells import Cells

LEAST_TISSUE = 0.1
"""Near an edge the density is raised at most tenfold, lest a single mitosis in a splinter light up."""


@dataclass(frozen=True, eq=False)
class DensityMap:
    """Value (row, column) holds for level-0 x from `x + column * step_px`, and rows likewise."""

    values: npt.NDArray[np.float32]
    """(h, w), mitoses per mm2 of tissue; 0 off the tissue."""
    x: float
    y: float
    step_px: float


def density_map(cells: Cells, sigma_um: float) -> DensityMap:
    """Smooth mitoses and tissue alike and divide: what lies beyond the edge of the tissue does not dilute."""
    sigma = sigma_um / cells.step_um
    mitoses = gaussian_filter(cells.mitoses, sigma, mode="constant")
    tissue = gaussian_filter(cells.tissue_mm2, sigma, mode="constant" if cells.ends else "nearest")
    least = LEAST_TISSUE * (cells.step_um / 1000) ** 2
    density = np.where(cells.tissue_mm2 > 0, mitoses / np.maximum(tissue, least), 0)
    return DensityMap(density.astype(np.float32), cells.x, cells.y, cells.step_px)
