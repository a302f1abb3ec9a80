"""Collections of small crops with the object in the middle: MIDOG++ mitoses, TUPAC look-alikes."""

from __future__ import annotations

from pathlib import Path

from metaphase.detections import LOOKALIKE, MITOSIS
from metaphase.evaluation.cohort import slide_geometry
from metaphase.evaluation.datasets.contract import Collector, Dataset, images_by_stem
from metaphase.tables import TableError, read_table, require_columns

MPP = 0.25
"""Both collections are at about 0.25 um/px."""


def read_midog_crops(folder: Path) -> Dataset:
    """`patches.csv` with `image, slide, tumor, scanner, origin`: each crop shows a mitosis in its middle."""
    table = folder / "patches.csv"
    frame = read_table(table)
    require_columns(frame, ("image", "slide", "tumor", "scanner", "origin"), table)
    images = images_by_stem(folder)
    side = _side(images, folder)
    collector = Collector("midog-crop/")
    columns = ("image", "slide", "tumor", "scanner", "origin")
    for image, slide, tumour, scanner, origin in zip(*(frame[name] for name in columns), strict=True):
        stem = Path(image).stem
        if stem not in images:
            raise TableError(f"image {image} is not there", path=table, next_step="restore the image")
        facts = {"scanner": scanner, "centre": origin, "tumour": tumour}
        collector.image(
            stem, images[stem], patient=Path(slide).stem, mpp=MPP, width=side, height=side, **facts
        )
        collector.point(stem, side / 2, side / 2, MITOSIS)
    return collector.dataset(folder)


def read_tupac_crops(folder: Path) -> Dataset:
    """Crops `case_region_number.jpg`, each with a look-alike in its middle."""
    images = images_by_stem(folder)
    side = _side(images, folder)
    collector = Collector("tupac-crop/")
    for stem, path in images.items():
        collector.image(stem, path, patient=stem.split("_")[0], mpp=MPP, width=side, height=side)
        collector.point(stem, side / 2, side / 2, LOOKALIKE)
    return collector.dataset(folder)


def _side(images: dict[str, Path], folder: Path) -> float:
    """The side of the crops, from the first one."""
    if not images:
        raise TableError("holds no image", path=folder, next_step="check the folder")
    return slide_geometry(next(iter(images.values())))["width"]
