"""Manifests and the reference table of the public real images that docs/model.md names.

python recipes/breast/breast_cohort.py --data FOLDER --folder OUT [--most N] [--left-out NAME ...]

OUT/breast.csv     for configs/breast.toml: fields, negatives and crops of several laboratories; MiDeSeC, and
                   part of benign tissue, of tissue of other organs and of TUPAC's look-alikes test
OUT/points.csv     for configs/breast-points.toml: those of them that the bundled pair did not learn from, by
                   patients (so none of MIDOG++)
OUT/fields.csv     for configs/paper-fields.toml: fields alone in which every mitosis is labelled
OUT/icpr.csv       for configs/icpr.toml: ICPR 2012 Aperio trains, patient 04 validates, MiDeSeC tests
OUT/own.csv        for configs/own-fields.toml: ICPR 2012 Aperio 00 to 02 train, 03 validates, 04 and
                   MiDeSeC test
OUT/reference.csv  mitoses, look-alikes and points to ignore of all of them

`--most` takes so many images of each folder and split, to try it out. Laboratories whose names begin with one
of `--left-out` test in breast.csv: what is made without them is judged by them (laboratories.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from metaphase.base.tables import write_table
from metaphase.detections.table import IGNORE, LOOKALIKE, MITOSIS

BREAST, OTHER_TUMOUR, FEW = 4, 2, 1
"""How often a laboratory is drawn, beside others."""
VALIDATION_PATIENT = "04"
SHARED_PATIENT = "03"
"""Of both contests: windows of their slides show the same cells (they correlate by 0.84 or more)."""
ATYPIA_VALIDATION = ("H05", "H07", "H14", "H17", "H18")
"""Slides of MITOS-ATYPIA-14 that validate."""
BENIGN_TEST = "SOB_B_F"
"""Fibroadenomas test."""
SHARED_TISSUE = (("P0_00", "P0_01", "P0_02"), ("P0_12", "P0_21"), ("P0_15", "P0_16"), ("P0_19", "P0_20"))
"""MiDeSeC fields that overlap: shifted onto one another they correlate by 0.93 or more, all others by 0.71 at
most (where 900 px or more, each of 1 um, meet)."""
CROP_PX, LOOKALIKE_PX, HELD_OUT_SHARE = 128, 80, 0.15
"""Side of crops with a mitosis, and with a look-alike; share of the slides of each tumour and scanner of
MIDOG++ whose crops validate."""
TUPAC_LABORATORIES = ((23, "tupac-1"), (48, "tupac-2"), (73, "tupac-3"))
"""Last slide of each laboratory."""
TUPAC_VALIDATION = (4, 2)
"""Slides whose number divided by the first leaves the second validate; their look-alikes test."""
LIKE_FIGURES = {
    "TCGA-50-6591-01Z-00-DX1_001": ((513, 621), (535, 440), (593, 417), (602, 311), (410, 1192), (186, 951)),
    "TCGA-A2-A04X-01Z-00-DX1_002": ((290, 697),),
    "TCGA-49-6743-01Z-00-DX2_005": ((368, 833), (394, 1441)),
    "TCGA-55-7573-01Z-00-DX1_004": ((420, 46),),
}
"""Positions in tissue without labels that look like mitoses to engineers, of all that the bundled pair found
there from 0.4 on: they count for nothing."""


@dataclass(frozen=True)
class Folder:
    """A folder of fields, or of tissue without mitoses."""

    name: str
    mpp: float
    labels: str
    kind: str
    patient: Callable[[str], str]
    split: Callable[[str], str]
    """Of the image's name."""


def _icpr(name: str) -> str:
    return f"icpr2012/{name[1:3]}"


def _atypia(name: str) -> str:
    return _icpr(name) if name[1:3] == SHARED_PATIENT else f"atypia14/{name[1:3]}"


def _midesec(name: str) -> str:
    return f"midesec/{next((group[0] for group in SHARED_TISSUE if name in group), name)}"


def _of_patient(name: str) -> str:
    return "validation" if name[1:3] == VALIDATION_PATIENT else "train"


def _of_site(name: str) -> str:
    """A third of the laboratories of The Cancer Genome Atlas, by the two letters that name each."""
    return "test" if sum(map(ord, name[5:7])) % 3 == 2 else "train"


def _of_atypia(name: str) -> str:
    return "validation" if name[:3] in ATYPIA_VALIDATION else "train"


FOLDERS = (
    Folder("icpr2012-aperio", 0.2456, "mitoses.csv", "field", _icpr, _of_patient),
    Folder("icpr2012-hamamatsu-painted", 0.2275, "painted.csv", "negatives", _icpr, _of_patient),
    Folder("icpr2012-aperio-eval-painted", 0.2456, "painted.csv", "negatives", _icpr, _of_patient),
    Folder("icpr2012-aperio-eval-mitoses", 0.2456, "labels.csv", "field", _icpr,
           lambda name: "" if name[1:3] == VALIDATION_PATIENT else "train"),
    Folder("mitos-atypia14-A03", 0.2456, "labels.csv", "field", _atypia, lambda _: "train"),
    Folder("mitos-atypia14-hamamatsu", 0.2273, "labels.csv", "field", _atypia, _of_atypia),
    Folder("breakhis-benign", 0.18, "", "negatives", lambda name: name.split("-400-")[0],
           lambda name: "test" if name.startswith(BENIGN_TEST) else "train"),
    Folder("tcga-tissue", 0.25, "", "negatives", lambda name: name[:12], _of_site),
    Folder("midesec", 0.25, "mitoses.csv", "field", _midesec, lambda _: "test"),
)  # fmt: skip
LABELLED = ("icpr2012-aperio", "icpr2012-aperio-eval-mitoses", "mitos-atypia14-A03",
            "mitos-atypia14-hamamatsu", "midesec")  # fmt: skip
"""Folders of fields in which every mitosis is labelled and none painted over."""
POINTS = ["case", "x", "y", "label"]
Cohort = tuple[pd.DataFrame, pd.DataFrame]
"""Rows of a manifest, and of a reference table."""


def fields(data: Path, folder: Folder) -> Cohort:
    """The images of a folder of fields."""
    names = sorted(path.stem for path in (data / folder.name).glob("*.jpg"))
    slides = pd.DataFrame({
        "case": [f"{folder.name}-{name}" for name in names],
        "he": [str(data / folder.name / f"{name}.jpg") for name in names],
        "laboratory": folder.name, "patient": [folder.patient(name) for name in names],
        "split": [folder.split(name) for name in names], "kind": folder.kind, "mpp": folder.mpp,
        "repeat": BREAST, "tissue": "whole",
    })  # fmt: skip
    if not folder.labels:
        rows = [
            (f"{folder.name}-{name}", x, y, IGNORE) for name in names for x, y in LIKE_FIGURES.get(name, ())
        ]
        return slides, pd.DataFrame(rows, columns=POINTS)
    points = pd.read_csv(data / folder.name / folder.labels)
    points["case"] = folder.name + "-" + points["image"].str.removesuffix(".jpg")
    return slides, points[POINTS]


def crops(data: Path, name: str, table: pd.DataFrame, near: pd.DataFrame) -> Cohort:
    """Crops with a mitosis in the middle, and what lies near it; a row of `table` each."""
    case = name + "-" + table["image"].str.removesuffix(".jpg")
    he = [str(data / name / image) for image in table["image"]]
    slides = table[["laboratory", "patient", "split", "repeat"]].assign(
        case=case, he=he, kind="crop", mpp=0.25
    )
    middle = pd.DataFrame({"case": case, "x": CROP_PX / 2, "y": CROP_PX / 2, "label": MITOSIS})
    middle["atypical"] = table["atypical"].astype(int)
    near = near.assign(case=name + "-" + near["image"].str.removesuffix(".jpg"))
    return slides.assign(tissue="whole"), pd.concat([middle, near[POINTS]])


def midog(data: Path) -> Cohort:
    """MIDOG++, seven tumours: some slides of each tumour and scanner validate."""
    table = pd.read_csv(data / "midog-mitoses" / "patches.csv")
    table["laboratory"] = "midog " + table["tumor"] + ", " + table["scanner"]
    table["patient"] = "midog/" + table["slide"].astype(str)
    table["repeat"] = np.where(table["tumor"].str.contains("breast"), BREAST, OTHER_TUMOUR)
    held_out: set[str] = set()
    for _, group in table.groupby(["tumor", "scanner"]):
        slides = np.random.default_rng(0).permutation(sorted(group["slide"].unique()))
        held_out |= set(slides[: round(HELD_OUT_SHARE * len(slides))])
    table["split"] = np.where(table["slide"].isin(held_out), "validation", "train")
    return crops(data, "midog-mitoses", table, pd.read_csv(data / "midog-neighbours.csv"))


def tupac(data: Path) -> Cohort:
    """TUPAC16, three laboratories."""
    table = pd.read_csv(data / "tupac-mitoses" / "patches.csv")
    number = table["slide"].str[:2].astype(int)
    table["laboratory"] = number.map(
        lambda slide: next(name for last, name in TUPAC_LABORATORIES if slide <= last)
    )
    table["patient"], table["repeat"] = "tupac/" + table["slide"].str[:2], BREAST
    every, left = TUPAC_VALIDATION
    table["split"] = np.where(number % every == left, "validation", "train")
    near = []
    for _, rows in table.groupby("slide"):
        positions = rows[["x", "y"]].to_numpy(np.float64)
        for image, position in zip(rows["image"], positions, strict=True):
            shift = positions - position
            reach = np.abs(shift).max(axis=1)
            shown = shift[(reach > 0) & (reach < CROP_PX / 2)] + CROP_PX / 2
            near.append(pd.DataFrame(shown, columns=["x", "y"]).assign(image=image, label=MITOSIS))
    return crops(data, "tupac-mitoses", table, pd.concat(near))


def lookalikes(data: Path) -> Cohort:
    """TUPAC16's look-alikes: crops without a mitosis."""
    folder, (every, left) = data / "tupac-lookalikes", TUPAC_VALIDATION
    names = pd.Series(sorted(path.stem for path in folder.glob("*.jpg")))
    slide = names.str[:2]
    slides = pd.DataFrame({
        "case": "tupac-lookalikes-" + names, "he": [str(folder / f"{name}.jpg") for name in names],
        "laboratory": "tupac-lookalikes", "patient": "tupac-lookalikes/" + slide,
        "split": np.where(slide.astype(int) % every == left, "test", "train"),
        "kind": "crop", "mpp": 0.25, "repeat": FEW, "tissue": "whole",
    })  # fmt: skip
    middle = LOOKALIKE_PX / 2
    return slides, slides[["case"]].assign(x=middle, y=middle, label=LOOKALIKE)


def main() -> None:
    """Write the manifests and the reference table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--most", type=int)
    parser.add_argument("--left-out", nargs="+", default=[])
    options = parser.parse_args()
    data, folder = options.data.resolve(), options.folder.resolve()
    cohorts = [fields(data, one) for one in FOLDERS if (data / one.name).is_dir()]
    cohorts += [midog(data), tupac(data), lookalikes(data)]
    slides = pd.concat([slides for slides, _ in cohorts], ignore_index=True)
    if options.most:
        slides = slides.groupby(["laboratory", "split"]).head(options.most).reset_index(drop=True)
    points = pd.concat([points for _, points in cohorts if len(points)], ignore_index=True)
    labelled = slides[slides["laboratory"].isin(LABELLED)].drop(columns=["repeat", "kind"])
    away = slides["laboratory"].str.startswith(tuple(options.left_out or ["none"])) & (slides["split"] != "")
    write_table(folder / "breast.csv", slides.assign(split=slides["split"].mask(away, "test")))
    tissue = slides["laboratory"].isin(("tcga-tissue",))
    known = slides.assign(split=slides["split"].mask(tissue, "test"))
    unseen = (known["split"] != "train") & ~known["laboratory"].str.startswith(("midog", "tupac-look"))
    write_table(folder / "points.csv", known[unseen])
    write_table(folder / "fields.csv", labelled)
    icpr = labelled[labelled["laboratory"].isin(("icpr2012-aperio", "midesec"))]
    write_table(folder / "icpr.csv", icpr)
    own = {f"icpr2012/{number:02}": "train" for number in range(3)}
    own |= {"icpr2012/03": "validation", f"icpr2012/{VALIDATION_PATIENT}": "test"}
    write_table(folder / "own.csv", icpr.assign(split=icpr["patient"].map(own).fillna("test")))
    write_table(folder / "reference.csv", points[points["case"].isin(slides["case"])])


if __name__ == "__main__":
    main()
