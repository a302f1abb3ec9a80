"""Contact sheets of errors, to be looked at: missed mitoses and false positives of each laboratory.

python recipes/breast/errors.py --cohort OUT --folder SHEETS [--model breast] [--splits validation test]
    [--only NAME ...]

OUT has the tables of breast_cohort.py. The model searches, at its threshold `mitoses`. A sheet has 50 missed
mitoses drawn at random, or the 50 most probable false positives; a table beside it their distances from the
edge, other mitoses and labelled look-alikes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from arithmetic import found_by
from laboratories import LABORATORIES, RADIUS_UM, REPORTED, belongs
from PIL import Image, ImageDraw, ImageFont, ImageOps

from metaphase.base.arrays import RGB
from metaphase.base.tables import read_table, write_table
from metaphase.detections.table import LOOKALIKE, MITOSIS
from metaphase.evaluation.pairs import Found, match_image
from metaphase.images.stain.standardisation import write_picture
from metaphase.learn.sources import image_sources, read_cohort
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.training.images import MPP, LabelledImage, read_images

GROUPS = LABORATORIES | REPORTED
CANDIDATE, MOST, ACROSS = 0.1, 50, 10
SIDE_PX, PITCH_PX, TICKS_PX = 256, 278, (44, 56)
COLUMNS = ["kind", "number", "image", "x", "y", "probability", "edge_um", "mitosis_um", "lookalike_um"]


def errors_in(images: Sequence[LabelledImage], found: Found, threshold: float) -> pd.DataFrame:
    """Missed mitoses, and false positives from a probability of 0.1 on."""
    rows = []
    for number, one in enumerate(images):
        here = match_image(one, found[one.name], RADIUS_UM)
        said, right = np.zeros(len(here.truths)), here.matched >= 0
        said[here.matched[right]] = here.probability[right]
        missed = np.column_stack([here.truths, said])[said < threshold]
        false = np.column_stack([here.positions, here.probability])[~right & (here.probability >= CANDIDATE)]
        for index, (x, y, probability) in enumerate([*missed, *false]):
            edge_um = min(x, y, one.pixels.shape[1] - x, one.pixels.shape[0] - y) * MPP
            apart = (np.hypot(*(one.of(label) - (x, y)).T) * MPP for label in (MITOSIS, LOOKALIKE))
            near = (each[each > 0].min(initial=np.inf) for each in apart)
            kind = "missed" if index < len(missed) else "false"
            rows.append((kind, number, one.name, x, y, probability, edge_um, *near))
    return pd.DataFrame(rows, columns=COLUMNS)


def sheet(images: Sequence[LabelledImage], errors: pd.DataFrame) -> RGB:
    """Squares around errors, ten a row, each between ticks and over its number and probability."""
    page = Image.new("RGB", (ACROSS * SIDE_PX, -(-len(errors) // ACROSS) * PITCH_PX), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(16)
    for index, error in enumerate(errors.to_dict("records")):
        x, y = round(error["x"]), round(error["y"])
        whole = ImageOps.expand(Image.fromarray(images[error["number"]].pixels), SIDE_PX // 2, "grey")
        left, top = index % ACROSS * SIDE_PX, index // ACROSS * PITCH_PX
        page.paste(whole.crop((x, y, x + SIDE_PX, y + SIDE_PX)), (left, top))
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            ends = [(left + SIDE_PX / 2 + far * dx, top + SIDE_PX / 2 + far * dy) for far in TICKS_PX]
            pen.line(ends, fill="yellow", width=2)
        pen.text((left + 4, top + SIDE_PX + 1), f"{index + 1}: {error['probability']:.2f}", "black", font)
    return np.asarray(page)


def main() -> None:
    """Write the sheets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cohort", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", default="breast")
    parser.add_argument("--splits", nargs="+", default=["validation", "test"])
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    options = parser.parse_args()
    cohort = read_cohort(options.cohort / "breast.csv")
    centres = tuple(name for each in options.only for name in GROUPS[each])
    wanted = cohort["split"].isin(options.splits) & cohort["laboratory"].str.startswith(centres)
    cohort = cohort[wanted]
    images = read_images(image_sources(cohort, read_table(options.cohort / "reference.csv")), 16.0)
    ready = ReadyDetector(load_detector([options.model]))
    threshold = ready.detector.points.mitoses.delta
    for name in options.only:
        chosen = [one for one in images if belongs(one, name)]
        found = found_by(ready, chosen)
        for kind, errors in errors_in(chosen, found, threshold).groupby("kind"):
            low, high = ((errors["probability"] < limit).sum() for limit in (CANDIDATE, threshold))
            print(f"{name}, {kind}: {len(errors)}; {low} below {CANDIDATE}, {high} below {threshold:.3f}")
            shown = errors.nlargest(MOST, "probability")
            shown = errors.sample(len(shown), random_state=0) if kind == "missed" else shown
            target = options.folder / f"{name}, {kind}.png"
            write_picture(target, sheet(chosen, shown))
            write_table(target.with_suffix(".csv"), shown.assign(number=range(1, len(shown) + 1)))


if __name__ == "__main__":
    main()
