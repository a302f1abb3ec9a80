"""Small images with known content, and files made of them by other libraries than ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tifffile

from metaphase.slides.tiles import Tile, TilePlan

BLOBS = np.array([(61.3, 80.7), (210.5, 44.25), (150.0, 190.9), (290.2, 230.4), (40.6, 250.1)])
"""Centres (x, y) of the dark blobs of `blob_image`, in level-0 pixel edges coordinates (0, 0 = corner)."""


def blob_image(width: int = 337, height: int = 301, sigma: float = 6.0) -> npt.NDArray[np.uint8]:
    """Smooth dark blobs on a coloured, slightly sloping background."""
    y, x = np.mgrid[:height, :width] + 0.5
    darkness = sum(np.exp(-((x - bx) ** 2 + (y - by) ** 2) / (2 * sigma**2)) for bx, by in BLOBS)
    shade = np.clip(1 - 0.8 * darkness, 0, 1)[..., None]
    base = np.array([220.0, 190.0, 210.0]) + (x[..., None] / width) * 10
    return (base * shade).round().astype(np.uint8)


def noise_image(width: int, height: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Pixels that are all different, so that any shift or mix-up shows."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def halved(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Mean of 2 x 2 pixels, odd edges cut off, halves rounded to even or up by at most one level."""
    height, width = image.shape[0] // 2, image.shape[1] // 2
    quads = image[: 2 * height, : 2 * width].reshape(height, 2, width, 2, -1).astype(float)
    return quads.mean(axis=(1, 3)).round().astype(np.uint8)


def write_tiff(path: Path, image: npt.NDArray[np.uint8], mpp: float | None = 0.25, **options: object) -> Path:
    """A tiled pyramid written by tifffile itself: two levels, resolution in pixels per centimetre."""
    keywords: dict[str, object] = {"tile": (64, 64), "photometric": "rgb", "metadata": None, **options}
    if mpp is not None:
        keywords |= {"resolution": (1e4 / mpp, 1e4 / mpp), "resolutionunit": "CENTIMETER"}
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(image, **keywords)
        tiff.write(halved(image), **{**keywords, "resolution": None, "subfiletype": 1})
    return path


def write_leica(path: Path, image: npt.NDArray[np.uint8], *, corner: tuple[int, int], canvas: int) -> Path:
    """A Leica SCN file at 0.5 um/px: a scanned area at `corner` of a larger, empty, square canvas."""
    height, width = image.shape[:2]
    macro = _leica_image(0, (64, 64), (canvas, canvas), (0, 0), objective=0.6)
    scan = _leica_image(1, (width, height), (width, height), corner, objective=20)
    xml = (
        '<?xml version="1.0"?><scn xmlns="http://www.leica-microsystems.com/scn/2010/10/01">'
        f'<collection sizeX="{canvas * 500}" sizeY="{canvas * 500}">{macro}{scan}</collection></scn>'
    )
    options: dict[str, object] = {"tile": (64, 64), "photometric": "rgb", "compression": "jpeg"}
    options |= {"metadata": None, "resolution": (20_000, 20_000), "resolutionunit": "CENTIMETER"}
    with tifffile.TiffWriter(path, bigtiff=True) as tiff:
        tiff.write(np.full((64, 64, 3), 255, np.uint8), description=xml, **options)
        tiff.write(image, **options)
    return path


def _leica_image(
    page: int, size: tuple[int, int], view: tuple[int, int], corner: tuple[int, int], *, objective: float
) -> str:
    """XML of one image: its pixels in TIFF page `page`, its place on the canvas in units of 0.5 um."""
    nm = [500 * value for value in (*view, *corner)]
    return (
        '<image><creationDate>2020-01-01T00:00:00Z</creationDate><device model="SCN400" version="1"/>'
        f'<pixels sizeX="{size[0]}" sizeY="{size[1]}">'
        f'<dimension sizeX="{size[0]}" sizeY="{size[1]}" r="0" ifd="{page}"/></pixels>'
        f'<view sizeX="{nm[0]}" sizeY="{nm[1]}" offsetX="{nm[2]}" offsetY="{nm[3]}"/>'
        f"<scanSettings><objectiveSettings><objective>{objective}</objective></objectiveSettings>"
        "<illuminationSettings><illuminationSource>brightfield</illuminationSource></illuminationSettings>"
        "</scanSettings></image>"
    )


def with_halo(plan: TilePlan, halo_px: int) -> TilePlan:
    """The plan with tiles that overlap."""
    return replace(plan, tiles=tuple(Tile(one.core, one.core.grown(halo_px)) for one in plan.tiles))
