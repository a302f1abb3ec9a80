"""The real images of docs/model.md at one resolution, with labels and roles: learnt from, or left out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from breast_cohort import ATYPIA_VALIDATION, SHARED_TISSUE, held_out_slides
from PIL import Image

MPP = 0.25
CROP_PX = 128
TRAIN, VALIDATION, LOOK = "train", "validation", "look"
"""Roles. `look`: another laboratory at which settings may be looked at, and on which nothing is chosen."""
MITOSIS, LOOKALIKE, IGNORE = "mitosis", "lookalike", "ignore"
Pixels = npt.NDArray[np.uint8]
Points = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Source:
    """A folder of images."""

    folder: str
    mpp: float
    labels: str = ""
    """Table of its points; crops have theirs in the middle."""
    validation: tuple[str, ...] = ()
    """Beginnings of the names of images that validate."""


SOURCES = (
    Source("icpr2012-aperio", 0.2456, "mitoses.csv", ("A04",)),
    Source("icpr2012-hamamatsu-painted", 0.2275, "painted.csv", ("H04",)),
    Source("icpr2012-aperio-eval-painted", 0.2456, "painted.csv", ("A04",)),
    Source("icpr2012-aperio-eval-mitoses", 0.2456, "labels.csv", ("A04",)),
    Source("mitos-atypia14-A03", 0.2456, "labels.csv"),
    Source("mitos-atypia14-hamamatsu", 0.2273, "labels.csv", ATYPIA_VALIDATION),
    Source("breakhis-benign", 0.18, "", ("SOB_B_F",)),
    Source("midesec", 0.25, "mitoses.csv"),
    Source("midog-mitoses", 0.25),
    Source("tupac-mitoses", 0.25),
    Source("tupac-lookalikes", 0.25),
)
CROPS = ("midog-mitoses", "tupac-mitoses", "tupac-lookalikes")
TUPAC_LABORATORIES = ((23, "tupac-1"), (48, "tupac-2"), (73, "tupac-3"))
"""Last slide of each laboratory."""
TUPAC_VALIDATION = (4, 2)
"""Slides whose number divided by the first leaves the second validate."""


@dataclass(frozen=True)
class Picture:
    """An image at `MPP` with its points in pixels."""

    name: str
    folder: str
    domain: str
    """Laboratory and scanner, and tumour where there are several."""
    patient: str
    """Patient or slide."""
    role: str
    pixels: Pixels
    points: dict[str, Points]
    """(n, 2) x and y by label."""

    @property
    def is_crop(self) -> bool:
        """Whether it shows little more than the figure in its middle."""
        return self.folder in CROPS

    def of(self, label: str) -> Points:
        """Points with this label."""
        return self.points.get(label, np.empty((0, 2)))


def read_pictures(data: Path, most: int | None = None) -> list[Picture]:
    """All images of all folders that are there; `most` a folder, for trying out."""
    jobs: list[Callable[[], Picture]] = []
    for source in SOURCES:
        if (data / source.folder).is_dir():
            jobs += (
                _of_crops(data, source)[:most] if source.folder in CROPS else _of_fields(data, source)[:most]
            )
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda job: job(), jobs))


def _of_fields(data: Path, source: Source) -> list[Callable[[], Picture]]:
    folder, scale = data / source.folder, source.mpp / MPP
    table = (
        pd.read_csv(folder / source.labels)
        if source.labels
        else pd.DataFrame({"image": [], "x": [], "y": [], "label": []})
    )
    by_image = dict(list(table.groupby("image")))

    def one(path: Path) -> Picture:
        rows = by_image.get(path.name, table[:0])
        points = {
            str(label): scale * group[["x", "y"]].to_numpy(np.float64)
            for label, group in rows.groupby("label")
        }
        role = (
            LOOK
            if source.folder == "midesec"
            else VALIDATION
            if path.name.startswith(source.validation or ("\0",))
            else TRAIN
        )
        patient = f"{source.folder}/{_patient(source.folder, path.stem)}"
        return Picture(
            path.stem, source.folder, source.folder, patient, role, read_pixels(path, scale), points
        )

    return [partial(one, path) for path in sorted(folder.glob("*.jpg"))]


def _patient(folder: str, name: str) -> str:
    """Of the image's name; MiDeSeC's tell none: fields that overlap stand for one, others for themselves."""
    if folder == "midesec":
        return next((group[0] for group in SHARED_TISSUE if name in group), name)
    return name.split("-400-")[0] if folder == "breakhis-benign" else name.split("_")[0]


def _of_crops(data: Path, source: Source) -> list[Callable[[], Picture]]:
    folder = data / source.folder
    if source.folder == "tupac-lookalikes":
        paths = sorted(folder.glob("*.jpg"))
        return [
            partial(_crop, path, source.folder, source.folder, path.stem[:2], TRAIN, {}) for path in paths
        ]
    table = pd.read_csv(folder / "patches.csv")
    if source.folder == "midog-mitoses":
        groups = [group for _, group in table.groupby(["tumor", "scanner"])]
        held = pd.concat(
            [pd.Series(group["slide"].isin(held_out_slides(group)), index=group.index) for group in groups]
        )
        domain = ("midog " + table["tumor"] + ", " + table["scanner"]).rename("domain")
        others = pd.read_csv(data / "midog-neighbours.csv")
        near = {str(image): _by_label(rows) for image, rows in others.groupby("image")}
    else:
        number = table["slide"].str[:2].astype(int)
        held = number % TUPAC_VALIDATION[0] == TUPAC_VALIDATION[1]
        domain = number.map(lambda slide: next(name for last, name in TUPAC_LABORATORIES if slide <= last))
        near = _tupac_neighbours(table)
    middle = np.full((1, 2), CROP_PX / 2)
    jobs: list[Callable[[], Picture]] = []
    for image, slide, where, out in zip(table["image"], table["slide"], domain, held, strict=True):
        points = {MITOSIS: np.concatenate([middle, near.get(image, {}).get(MITOSIS, np.empty((0, 2)))])}
        points[LOOKALIKE] = near.get(image, {}).get(LOOKALIKE, np.empty((0, 2)))
        role = VALIDATION if out else TRAIN
        jobs.append(partial(_crop, folder / image, source.folder, where, slide, role, points))
    return jobs


def _tupac_neighbours(table: pd.DataFrame) -> dict[str, dict[str, Points]]:
    """Mitoses that a crop shows besides its own."""
    near: dict[str, dict[str, Points]] = {}
    for _, rows in table.groupby("slide"):
        places = rows[["x", "y"]].to_numpy(np.float64)
        for image, place in zip(rows["image"], places, strict=True):
            shift = places - place
            reach = np.abs(shift).max(axis=1)
            near[image] = {MITOSIS: shift[(reach > 0) & (reach < CROP_PX / 2)] + CROP_PX / 2}
    return near


def _by_label(rows: pd.DataFrame) -> dict[str, Points]:
    return {str(label): group[["x", "y"]].to_numpy(np.float64) for label, group in rows.groupby("label")}


def _crop(path: Path, folder: str, domain: str, slide: str, role: str, points: dict[str, Points]) -> Picture:
    return Picture(path.stem, folder, domain, f"{folder}/{slide}", role, read_pixels(path), points)


def read_pixels(path: Path, scale: float = 1.0) -> Pixels:
    """A JPEG's pixels, resampled by `scale`."""
    with Image.open(path, formats=["JPEG"]) as image:
        rgb = image.convert("RGB")
        if abs(scale - 1) > 0.01:
            rgb = rgb.resize((round(rgb.width * scale), round(rgb.height * scale)), Image.Resampling.LANCZOS)
        return np.asarray(rgb)
