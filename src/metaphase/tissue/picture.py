"""A picture of the slide with its tissue outlined, for people to check."""

from __future__ import annotations

import io
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from metaphase.artifacts import write_bytes
from metaphase.slides import RGB, Slide
from metaphase.tissue.mask import TissueMask

OUTLINE = (0, 200, 80)
DIMMING = 0.65
"""Brightness left where there is no tissue."""


def draw_overlay(slide: Slide, tissue: TissueMask, max_side: int = 1600) -> RGB:
    """A thumbnail of the slide, dimmed outside the tissue, with a line around it."""
    picture = slide.thumbnail(max_side)
    per_level0 = np.array(picture.shape[1::-1]) / (slide.bounds.width, slide.bounds.height)
    inside = np.zeros(picture.shape[:2], np.uint8)
    rings = [
        np.rint((np.asarray(ring.coords) - (slide.bounds.x, slide.bounds.y)) * per_level0).astype(np.int32)
        for polygon in tissue.polygons()
        for ring in (polygon.exterior, *polygon.interiors)
    ]
    cv2.fillPoly(inside, rings, 1)
    drawn = np.where(inside[..., None] > 0, picture, picture * DIMMING).astype(np.uint8)
    thickness = max(1, round(max(picture.shape) / 500))
    return np.asarray(cv2.polylines(drawn, rings, True, OUTLINE, thickness, cv2.LINE_AA), np.uint8)


def save_overlay(slide: Slide, tissue: TissueMask, folder: str | Path, stem: str) -> Path:
    """Write the picture of `draw_overlay` as `<stem>.tissue.jpg` into `folder`, whole or not at all."""
    path = Path(folder) / f"{stem}.tissue.jpg"
    data = io.BytesIO()
    Image.fromarray(draw_overlay(slide, tissue)).save(data, "JPEG", quality=85)
    write_bytes(path, data.getvalue())
    return path
