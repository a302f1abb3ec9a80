"""Cutting pictures of chosen objects without making the slide around them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from metaphase.geometry import Box
from metaphase.simulation.config import Case
from metaphase.simulation.rendering import Frame, case_renderer
from metaphase.simulation.scanner import RGB


def object_patches(case: Case, objects: pd.DataFrame, frame: Frame, side_px: int) -> RGB:
    """Pictures (n, side, side, 3) centred on rows of the case's truth table, in that order.

    They show what the slide shows, before JPEG; a pixel may differ by one grey level from the slide,
    whose blocks are computed on a fixed grid.
    """
    renderer = case_renderer(case)
    pictures = np.empty((len(objects), side_px, side_px, 3), np.uint8)
    places = objects[[f"x_{frame}", f"y_{frame}"]].to_numpy() - side_px / 2
    for picture, (x, y) in zip(pictures, places, strict=True):
        picture[:] = renderer.box(frame, Box(round(x), round(y), side_px, side_px))
    return pictures
