"""What the card of a model of real images says beside what training wrote: data, terms, threshold, failures.

python recipes/breast/breast_card.py --measured TEST.json --cohort OUT -o CARD.json
metaphase model package STUDENT -o MODEL --card CARD.json

STUDENT is that of `metaphase run configs/bundled.toml`, TEST.json what breast_accuracy.py wrote for it, OUT
what breast_cohort.py wrote.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd
from breast_accuracy import OTHER, SEVERAL, UNLABELLED, parts_of
from breast_cohort import VALIDATION_PATIENT, held_out_slides

from metaphase.base.files import write_text
from metaphase.base.tables import read_manifest, read_table
from metaphase.detections import MITOSIS
from metaphase.detections.points import OperatingPoint
from metaphase.networks.cards import CardAdditions, TrainingData

CONTEST = "contest data, research use"
SOURCES = {
    "icpr2012-aperio": ("ICPR 2012 MITOS, Aperio, patients 00 to 03", CONTEST),
    "icpr2012-hamamatsu-painted": ("ICPR 2012 MITOS, Hamamatsu, negatives only", CONTEST),
    "icpr2012-aperio-eval-painted": ("ICPR 2012 MITOS, evaluation fields, negatives only", CONTEST),
    "mitos-atypia14-A03": ("MITOS-ATYPIA-14, slide A03", CONTEST),
    "tupac": ("TUPAC16 look-alikes, negatives only", "challenge data, research use"),
    "cmu": ("OpenSlide's CMU-1-Small-Region, skin, negatives only", "CC0"),
    "midog": ("MIDOG++, crops of mitotic figures and the tissue around them", "CC BY 4.0"),
}
FAILURES = (
    "6 to 12 false detections per mm2 at its threshold, on the laboratories measured: 2 mm2 without mitoses "
    "may count 12 or more. Before grading choose a threshold on your own slides (`metaphase evaluate tune`).",
    "Pale or blurred figures, early prophases and figures cut by the edge of an image are often missed.",
    "Pyknotic nuclei, dark plasma cells and lymphocytes, spindle nuclei of the stroma and grains of pigment "
    "are the usual errors.",
    "20x scanners: tested only on 40x images resampled to 0.5 um/px, where it loses little.",
    "Human breast on a Hamamatsu S360: fewer mitoses found than on other scanners.",
)
USE = "Research only; not for diagnosis. Counts of other laboratories' slides are to be checked by eye."
SEARCH = ("suppress_um", "smooth_um")
"""Settings of the search that belong to the threshold."""


def data_of(cohort: Path) -> tuple[TrainingData, ...]:
    """The training images by source, with their mitoses."""
    slides = read_manifest(cohort / "all.csv")
    train = slides[slides["split"] == "train"][["case", "centre"]]
    points = read_table(cohort / "reference.csv")
    mitoses = points[points["label"] == MITOSIS].merge(train, on="case")["centre"]
    return tuple(
        TrainingData(name=name, terms=terms, positives=int(_of_source(mitoses, key).sum()))
        for key, (name, terms) in SOURCES.items()
    )


def _of_source(centres: pd.Series[str], key: str) -> pd.Series[bool]:
    return centres.str.startswith("midog-") if key == "midog" else centres == key


def point_of(measured: dict[str, Any], cohort: Path, data: Path) -> OperatingPoint:
    """The threshold of several laboratories, and all images that had a part in it."""
    slides, here = parts_of(cohort), measured["at"][SEVERAL]
    crops = pd.read_csv(data / "midog-mitoses" / "patches.csv").groupby(["tumor", "scanner"])
    midog = [f"midog/{Path(name).stem}" for _, group in crops for name in sorted(held_out_slides(group))]
    return OperatingPoint(
        name="mitoses",
        delta=here["threshold"],
        **{name: measured[name] for name in SEARCH},
        metric="F1",
        value=here["validation_f1"],
        cases=tuple(slides.loc[slides["split"] != OTHER, "case"]),
        patients=(VALIDATION_PATIENT, *midog),
        laboratories=("ICPR 2012", "MIDOG++"),
        source="ICPR 2012, patient 04, and MIDOG++ crops left out; the F1 is that of the fields",
        false_per_mm2=here["false_per_mm2"][UNLABELLED],
    )


def additions_of(measured: dict[str, Any], cohort: Path, data: Path) -> CardAdditions:
    """What the model learned from, what it was measured on, what it may be used for."""
    return CardAdditions(
        data=data_of(cohort),
        thresholds={"mitoses": point_of(measured, cohort, data)},
        metrics={"real test": measured},
        known_failures=FAILURES,
        intended_use=USE,
    )


def main() -> None:
    """Read, describe, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--cohort", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("-o", "--output", type=Path, required=True, help="card to write")
    options = parser.parse_args()
    measured = json.loads(options.measured.read_text(encoding="utf-8"))
    additions = additions_of(measured, options.cohort, options.data)
    write_text(options.output, additions.model_dump_json(indent=2, exclude_unset=True) + "\n")


if __name__ == "__main__":
    main()
