"""Real slides and fields, judged by positions whose content was seen by eye."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from metaphase.images.tissue.finding import find_tissue, segment_tissue
from metaphase.slides.opening import open_slide

KIDNEY_MPP = 10.0
APERIO_PLACES = (
    ("dermis", 900, 2700),
    ("epidermis", 1300, 2000),
    ("strand", 560, 1055),
    ("glass", 200, 2000),
    ("debris", 2090, 610),
)
FIELDS = [("icpr2012-aperio", 0.2456), ("midesec", 0.25), ("icpr2012-hamamatsu-painted", 0.2275)]


def read(path: Path) -> npt.NDArray[np.uint8]:
    pixels = cv2.imread(str(path))
    assert pixels is not None
    return np.ascontiguousarray(pixels[..., ::-1])


def test_aperio_slide(real_data: Path) -> None:
    with open_slide(real_data / "wsi" / "CMU-1-Small-Region.svs") as slide:
        tissue = find_tissue(slide)
    assert 0.60 < tissue.area_mm2 < 0.75
    at = {
        position: tissue.mask[int(y / tissue.scale), int(x / tissue.scale)]
        for position, x, y in APERIO_PLACES
    }
    assert at == {"dermis": True, "epidermis": True, "strand": True, "glass": False, "debris": False}


@pytest.mark.parametrize("stain", ["HE", "PanCytokeratin"])
def test_kidney_section_with_fat(real_data: Path, stain: str) -> None:
    mask = segment_tissue(read(real_data / "pair-rat-kidney" / f"Rat-Kidney_{stain}.jpg"), KIDNEY_MPP)
    assert 0.62 < mask.mean() < 0.68
    assert part(mask, rows=(0.35, 0.55), columns=(0.65, 0.9)) == 1, "cortex"
    assert part(mask, rows=(0.4, 0.55), columns=(0.04, 0.08)) > 0.9, "fat"
    assert part(mask, rows=(0.0, 0.1), columns=(0.0, 0.2)) == 0, "glass"
    assert part(mask, rows=(0.9, 1.0), columns=(0.0, 0.3)) == 0, "glass with dust"


def part(mask: npt.NDArray[np.bool_], rows: tuple[float, float], columns: tuple[float, float]) -> float:
    """Share of tissue in a part of the mask, given in fractions of its height and width."""
    (top, bottom), (left, right) = (np.multiply(rows, mask.shape[0]), np.multiply(columns, mask.shape[1]))
    return float(mask[int(top) : int(bottom), int(left) : int(right)].mean())


@pytest.mark.parametrize(("folder", "mpp"), FIELDS)
def test_fields_without_glass_are_all_tissue(real_data: Path, folder: str, mpp: float) -> None:
    for path in sorted((real_data / folder).glob("*.jpg"))[::12]:
        assert segment_tissue(read(path), mpp).mean() > 0.97, path.name


def test_weak_counterstain_without_glass_is_all_tissue(real_data: Path) -> None:
    tiles = [read(path) for path in sorted((real_data / "phh3-tiles" / "tumour").glob("*.jpg"))]
    mosaic = np.vstack([np.hstack(tiles[row : row + 5]) for row in range(0, 20, 5)])
    assert segment_tissue(mosaic, 0.5).mean() > 0.97


def test_weak_counterstain_on_glass(real_data: Path) -> None:
    tiles = [read(path) for path in sorted((real_data / "phh3-tiles" / "tumour").glob("*.jpg"))]
    slide = np.full((2048, 2560, 3), 241, np.uint8)
    slide[512:1536, 640:1920] = np.vstack([np.hstack(tiles[row : row + 5]) for row in range(0, 20, 5)])
    truth = np.zeros(slide.shape[:2], np.bool_)
    truth[512:1536, 640:1920] = True
    mask = segment_tissue(slide, 0.5)
    assert (mask & truth).sum() / (mask | truth).sum() > 0.95
