"""The bundled CNN1 and CNN2 on real fields with a known number of mitoses, whose positions are not known.

    python recipes/accuracy/phh3_fields.py --data DATA/phh3-counted [--mpp 0.15 0.2 0.25] [--pictures OUT]

The fields' scale is not stated, so that several are tried. For each field: its count, the candidates, those
that CNN1 keeps, and those that both keep. A picture shows every candidate with what the networks say of it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from metaphase.labels.phh3.candidates import BrownConfig, find_brown_candidates, survey_slide
from metaphase.labels.phh3.networks import Classifier, classify_candidates, load_classifier
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.contract import Slide
from metaphase.slides.tiles import cut_squares

SIDE_PX = 100


def seen(slide: Slide, classifiers: list[Classifier]) -> pd.DataFrame:
    """The candidates of a field with what each network says."""
    survey = survey_slide(slide, BrownConfig(), 1)
    if survey.threshold is None:
        return pd.DataFrame(columns=["x", "y", *(one.name for one in classifiers)], dtype=float)
    table = find_brown_candidates(slide, survey.tissue, survey.threshold, BrownConfig(), threads=1).table
    return table.assign(**classify_candidates(slide, table, classifiers))


def counted(image: str, count: int, table: pd.DataFrame, classifiers: list[Classifier]) -> dict[str, Any]:
    """A field's figures."""
    kept = np.ones(len(table), bool)
    row: dict[str, Any] = {"image": image, "mitoses": count, "candidates": len(table)}
    for one in classifiers:
        kept &= table[one.name].to_numpy() >= one.decision
        row[one.name] = int(kept.sum())
    return row


def picture(slide: Slide, table: pd.DataFrame, mpp: float) -> list[npt.NDArray[np.uint8]]:
    """Candidates as patches, their two probabilities written on them."""
    pictures: dict[int, npt.NDArray[np.uint8]] = {}
    for rows, patches in cut_squares(slide, table[["x", "y"]].to_numpy(float), SIDE_PX, mpp):
        for row, patch in zip(rows.tolist(), patches, strict=True):
            drawn = np.ascontiguousarray(patch[..., ::-1])
            said = f"{table['cnn1'].iloc[row]:.2f} {table['cnn2'].iloc[row]:.2f}"
            cv2.putText(drawn, said, (2, SIDE_PX - 4), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (0, 0, 0), 1)
            pictures[row] = drawn
    return [pictures[row] for row in sorted(pictures)]


def write_sheet(path: Path, pictures: list[npt.NDArray[np.uint8]], across: int = 12) -> None:
    """All patches on one sheet."""
    blank = np.full((SIDE_PX, SIDE_PX, 3), 255, np.uint8)
    filled = [*pictures, *[blank] * (-len(pictures) % across)]
    rows = [np.hstack(filled[start : start + across]) for start in range(0, len(filled), across)]
    cv2.imwrite(str(path), np.vstack(rows))


def main() -> None:
    """Search, classify, count, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with counts.csv and its images")
    parser.add_argument("--mpp", type=float, nargs="+", default=[0.15, 0.2, 0.25])
    parser.add_argument("--cnn1", default="phh3-cnn1")
    parser.add_argument("--cnn2", default="phh3-cnn2")
    parser.add_argument("--pictures", type=Path, help="folder for sheets of the candidates")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    classifiers = [load_classifier(name, getattr(options, name), "cpu") for name in ("cnn1", "cnn2")]
    report = {}
    for mpp in options.mpp:
        rows, pictures = [], []
        for image, count in pd.read_csv(options.data / "counts.csv").itertuples(index=False):
            slide = ArraySlide(np.array(Image.open(options.data / image).convert("RGB")), mpp=mpp)
            table = seen(slide, classifiers)
            rows.append(counted(image, int(count), table, classifiers))
            pictures += picture(slide, table, 0.25) if options.pictures else []
        print(f"{mpp} um/px\n{pd.DataFrame(rows).to_string(index=False)}\n", flush=True)
        report[str(mpp)] = rows
        if options.pictures:
            options.pictures.mkdir(parents=True, exist_ok=True)
            write_sheet(options.pictures / f"candidates-{mpp}.png", pictures)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
