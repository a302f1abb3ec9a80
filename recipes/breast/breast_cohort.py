"""Cohorts for `metaphase run` and `metaphase experiments` from the public real data that docs/model.md names.

python recipes/breast/breast_cohort.py --data FOLDER --folder OUT

OUT/icpr.csv       one laboratory trains: ICPR 2012 Aperio, patient 04 validates; MiDeSeC tests
OUT/all.csv        everything else trains too; MiDeSeC and MIDOG++ crops of slides left out test
OUT/reference.csv  mitoses and places to ignore of all of them

paper_model.py takes fields alone in which every mitosis is labelled: ICPR 2012 and MITOS-ATYPIA-14.

Crops are laid side by side into images, those of one slide next to each other, so that each becomes a
candidate's surroundings like any other tissue: the negatives of a mitosis come from its own crop.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from metaphase.base.tables import write_table
from metaphase.detections import IGNORE, MITOSIS
from metaphase.evaluation.datasets import read_dataset
from metaphase.images.tissue.mask import TissueMask

Pixels = npt.NDArray[np.uint8]
FIELDS = {
    "icpr2012-aperio": "icpr2012",
    "icpr2012-hamamatsu-painted": "icpr2012",
    "icpr2012-aperio-eval-painted": "icpr2012",
    "mitos-atypia14-A03": "mitos-atypia14",
    "midesec": "midesec",
}
"""Folders of complete fields, each with the data set whose files it has."""
LABELLED = {
    "icpr2012-aperio": "icpr2012",
    "icpr2012-aperio-eval-mitoses": "icpr2012",
    "mitos-atypia14-A03": "mitos-atypia14",
    "mitos-atypia14-hamamatsu": "mitos-atypia14",
    "midesec": "midesec",
}
"""Those of fields, or windows of fields, in which every mitosis is labelled and none painted over."""
VALIDATION_PATIENT = "icpr2012/04"
ATYPIA_VALIDATION = ("H05", "H07", "H14", "H17", "H18")
"""Slides of MITOS-ATYPIA-14 that validate, where it is learnt from."""
TEST_CENTRE = "midesec"
SHARED_TISSUE = (("P0_00", "P0_01", "P0_02"), ("P0_12", "P0_21"), ("P0_15", "P0_16"), ("P0_19", "P0_20"))
"""MiDeSeC fields that overlap: shifted onto one another they correlate by 0.93 or more, all others by 0.71 at
most (where 900 px or more, each of 1 um, meet)."""
CROP_PX, CROPS_A_ROW, CROPS_AN_IMAGE = 128, 32, 64
"""Crops to train on come in small images of a few slides, so that each image has a colour of its own."""
EDGE_PX, MASK_SCALE = 14, 2
"""No candidates this close to the edge of a crop; masks have half the resolution."""
HELD_OUT_SHARE = 0.15
"""Share of the slides of each tumour and scanner whose crops only test."""
BLACK = 12
"""Pixels below this in every channel lie beyond the scan ..."""
BLACK_SHARE = 0.002
"""... and crops with a larger share of them are left out."""
MPP = 0.25
WITHOUT_MITOSES = "wsi/CMU-1-Small-Region.svs"
"""OpenSlide's slide of skin, scanned at 20x: spindle nuclei, glands and glass of one more laboratory."""
REPEAT, REPEAT_BREAST = 16, 2
"""How often a mitosis of the fields, and of MIDOG++'s human breast, counts beside the many others."""
COLUMNS = ["case", "x", "y", "label"]


@dataclass(frozen=True)
class Cohort:
    """Rows of a manifest and of a reference table."""

    slides: pd.DataFrame
    points: pd.DataFrame


def fields(data: Path, name: str, dataset: str) -> Cohort:
    """A folder of complete fields; painted mitoses are places to ignore."""
    found = read_dataset(dataset, data / name)
    cases = {case: f"{name}-{case.split('/')[-1]}" for case in found.manifest["case"]}
    slides = found.manifest.assign(case=found.manifest["case"].map(cases), centre=name)
    if name == "midesec":
        slides["mpp"] = slides["mpp"].fillna(MPP)
        one = {name: f"midesec/{group[0]}" for group in SHARED_TISSUE for name in group}
        slides["patient"] = [one.get(stem.split("/")[-1], stem) for stem in slides["patient"]]
    table = found.truth.table
    points = table.assign(case=table["slide"].map(cases))[COLUMNS]
    return Cohort(slides[["case", "he", "centre", "patient", "mpp"]].assign(repeat=REPEAT), points)


def mosaics(data: Path, folder: Path) -> list[tuple[str, Cohort]]:
    """Images of MIDOG++ crops by tumour and scanner, with the split of their slides."""
    frame = pd.read_csv(data / "midog-mitoses" / "patches.csv")
    groups = [group for _, group in frame.groupby(["tumor", "scanner"])]
    with ProcessPoolExecutor() as pool:
        jobs = [
            (split, pool.submit(_crops_of, data / "midog-mitoses", folder, group, split))
            for group in groups
            for split in ("train", "test")
        ]
        return [(split, job.result()) for split, job in jobs]


def held_out_slides(group: pd.DataFrame) -> set[str]:
    """Slides of one tumour and scanner whose crops only test."""
    slides = np.random.default_rng(0).permutation(sorted(group["slide"].unique()))
    return set(slides[: round(HELD_OUT_SHARE * len(slides))])


def _crops_of(source: Path, folder: Path, group: pd.DataFrame, split: str) -> Cohort:
    """The crops of one tumour and scanner whose slides are of one split."""
    held_out = held_out_slides(group)
    chosen = group[group["slide"].isin(held_out) == (split == "test")].sort_values(["slide", "image"])
    crops = [_pixels(source / image) for image in chosen["image"]]
    whole = [number for number, crop in enumerate(crops) if (crop.max(axis=2) < BLACK).mean() < BLACK_SHARE]
    name = "midog-{tumor}-{scanner}".format(**group.iloc[0]).lower().replace(" ", "-")
    size = CROPS_AN_IMAGE if split == "train" else max(1, len(whole))
    made = []
    for start in range(0, len(whole), size):
        case = f"{name}-{split}-{start // size:02d}" if split == "train" else f"{name}-{split}"
        part = whole[start : start + size]
        slide = _mosaic([crops[number] for number in part], folder / f"{case}.png", case, name)
        slide["repeat"] = REPEAT_BREAST if "breast" in name else 1
        if split == "train":
            slide["tissue"] = str(_write_middles(folder / f"{case}.tissue.png", len(part)))
        places = _centres(len(part)).assign(case=case, label=MITOSIS)
        others = _neighbours(chosen.iloc[part].reset_index(drop=True), group).assign(case=case, label=IGNORE)
        made.append(Cohort(slide, pd.concat([places, others])[COLUMNS]))
    return Cohort(pd.concat([one.slides for one in made]), pd.concat([one.points for one in made]))


def _write_middles(path: Path, count: int) -> Path:
    """A tissue mask of the middles of crops: candidates at an edge would be known by the seam beside them."""
    cell = np.zeros((CROP_PX // MASK_SCALE,) * 2, np.bool_)
    edge = EDGE_PX // MASK_SCALE
    cell[edge:-edge, edge:-edge] = True
    rows = -(-count // CROPS_A_ROW)
    mask = TissueMask(np.tile(cell, (rows, CROPS_A_ROW)), MPP * MASK_SCALE, 0.0, 0.0, float(MASK_SCALE))
    path.write_bytes(mask.to_png())
    return path


def _neighbours(crops: pd.DataFrame, every: pd.DataFrame) -> pd.DataFrame:
    """Mitoses that a crop shows besides its own, as places of the image; each has a crop of its own."""
    centres, found = _centres(len(crops)), []
    for number, (slide, x, y) in enumerate(zip(crops["slide"], crops["x"], crops["y"], strict=True)):
        here = every[every["slide"] == slide]
        shift = here[["x", "y"]].to_numpy(np.float64) - (x, y)
        reach = np.abs(shift).max(axis=1)
        found.append(centres.iloc[number].to_numpy() + shift[(reach > 0) & (reach < CROP_PX / 2)])
    return pd.DataFrame(np.concatenate(found), columns=["x", "y"])


def lookalikes(data: Path, folder: Path) -> pd.DataFrame:
    """One image of TUPAC's look-alikes, each continued by its reflection."""
    crops = [_pixels(path) for path in sorted((data / "tupac-lookalikes").glob("*.jpg"))]
    padded = [_reflected(crop) for crop in crops]
    return _mosaic(padded, folder / "tupac-lookalikes.png", "tupac-lookalikes", "tupac")


def without_mitoses(data: Path) -> pd.DataFrame:
    """A whole small slide in which no mitosis was seen."""
    row = {"case": "cmu-1-small-region", "he": str(data / WITHOUT_MITOSES), "centre": "cmu"}
    return pd.DataFrame([row | {"patient": "cmu-1", "mpp": 0.499}])


def _mosaic(crops: list[Pixels], path: Path, case: str, centre: str) -> pd.DataFrame:
    """Write the image of many crops; returns its row of the manifest."""
    rows = -(-len(crops) // CROPS_A_ROW)
    whole = np.full((rows * CROP_PX, CROPS_A_ROW * CROP_PX, 3), 255, np.uint8)
    for number, crop in enumerate(crops):
        top, left = (CROP_PX * place for place in divmod(number, CROPS_A_ROW))
        whole[top : top + CROP_PX, left : left + CROP_PX] = crop
    Image.fromarray(whole).save(path, compress_level=1)
    return pd.DataFrame([{"case": case, "he": str(path), "centre": centre, "patient": case, "mpp": MPP}])


def _centres(count: int) -> pd.DataFrame:
    """Middle of each crop of an image."""
    rows, columns = np.divmod(np.arange(count), CROPS_A_ROW)
    return pd.DataFrame({"x": (columns + 0.5) * CROP_PX, "y": (rows + 0.5) * CROP_PX})


def _pixels(path: Path) -> Pixels:
    return np.asarray(Image.open(path).convert("RGB"))


def _reflected(crop: Pixels) -> Pixels:
    gaps = [CROP_PX - side for side in crop.shape[:2]]
    edges = [(gap // 2, gap - gap // 2) for gap in gaps]
    return np.pad(crop, (*edges, (0, 0)), mode="reflect")


def with_split(slides: pd.DataFrame, split: str) -> pd.DataFrame:
    """Complete fields: MiDeSeC tests, labelled fields of one patient validate, the rest is as asked."""
    chosen = np.where(slides["centre"] == TEST_CENTRE, "test", split)
    theirs = (slides["patient"] == VALIDATION_PATIENT).to_numpy()
    labelled = (slides["centre"] == "icpr2012-aperio").to_numpy()
    return slides.assign(split=np.where(theirs, np.where(labelled, "validation", ""), chosen))


def write_fields(data: Path, folder: Path) -> None:
    """Write manifest and reference table of labelled fields alone."""
    cohorts = [fields(data, name, dataset) for name, dataset in LABELLED.items()]
    slides = pd.concat([with_split(cohort.slides, "train") for cohort in cohorts], ignore_index=True)
    held_out = tuple(f"mitos-atypia14-hamamatsu-{slide}_" for slide in ATYPIA_VALIDATION)
    slides.loc[slides["case"].str.startswith(held_out), "split"] = "validation"
    write_table(folder / "fields.csv", slides.drop(columns="repeat"))
    write_table(folder / "reference.csv", pd.concat([cohort.points for cohort in cohorts], ignore_index=True))


def main() -> None:
    """Write the manifests, the reference table and the images of crops."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    data, folder = options.data.resolve(), options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    complete = {name: fields(data, name, dataset) for name, dataset in FIELDS.items()}
    crops = mosaics(data, folder)
    others = pd.concat([lookalikes(data, folder), without_mitoses(data)])
    every = [with_split(cohort.slides, "train") for cohort in complete.values()]
    one = pd.concat([every[0], every[-1]], ignore_index=True)
    every += [cohort.slides.assign(split=split) for split, cohort in crops]
    every.append(others.assign(split="train"))
    write_table(folder / "icpr.csv", one.drop(columns="repeat"))
    write_table(folder / "all.csv", pd.concat(every, ignore_index=True))
    points = [cohort.points for cohort in (*complete.values(), *(cohort for _, cohort in crops))]
    write_table(folder / "reference.csv", pd.concat(points, ignore_index=True))


if __name__ == "__main__":
    main()
