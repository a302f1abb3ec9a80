"""Candidates of H&E slides: recall, and how many.

    python recipes/accuracy/he_candidates.py [--data ../shared/data]

Simulated H&E slides of all virtual laboratories with exact truth; with `--data`, fields of real tissue with
labels; with `--picture`, candidates drawn on one of each.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from metaphase.base.arrays import RGB
from metaphase.base.geometry import Box
from metaphase.images.tissue import TissueMask, find_tissue
from metaphase.labels.mining import (
    IGNORED,
    NEGATIVE,
    POSITIVE,
    CandidateConfig,
    LabelConfig,
    find_candidates,
    label_candidates,
    recalled,
)
from metaphase.simulation import LABORATORIES, Case, SimulationConfig, case_truth, cohort_cases, render_region
from metaphase.slides import ArraySlide, open_slide

MPP = 0.25
D_PX, MATCH_PX = 100.0, 30.0
COLOURS = {POSITIVE: (0, 230, 0), IGNORED: (255, 160, 0), NEGATIVE: (255, 255, 255)}
REAL = {"icpr2012-aperio": 0.2456, "midesec": 0.25}
"""Real fields with complete labels, and their um/px (40x taken as 0.25 where none is stated)."""


@dataclasses.dataclass(frozen=True)
class Place:
    """One picture with its mitoses."""

    source: str
    slide: ArraySlide
    tissue: TissueMask
    mitoses: npt.NDArray[np.float64]


def rendered(case: Case) -> RGB:
    """The H&E slide of a case."""
    return render_region(case, "he", 0, 0, case.width, case.height)


def simulated(options: argparse.Namespace) -> Iterator[Place]:
    """A slide of the same kind of tumour in each laboratory."""
    config = SimulationConfig(
        cases=len(LABORATORIES), centres=1, width=options.side, height=options.side, seed=options.seed,
        mitoses_per_mm2=(options.mitoses, options.mitoses),
    )  # fmt: skip
    cases = [
        dataclasses.replace(case, laboratory=laboratory)
        for case, laboratory in zip(cohort_cases(config), LABORATORIES, strict=True)
    ]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for case, pixels in zip(cases, pool.map(rendered, cases), strict=True):
            truth, slide = case_truth(case), ArraySlide(pixels, mpp=MPP)
            mitoses = truth.loc[truth["category"] == "mitosis", ["x_he", "y_he"]].to_numpy()
            yield Place(case.laboratory.name, slide, find_tissue(slide), mitoses)


def real(data: Path) -> Iterator[Place]:
    """Labelled fields; all of a field is taken for tissue."""
    for source, mpp in REAL.items():
        labels = pd.read_csv(data / source / "mitoses.csv")
        named = next(name for name in ("image", "file", "slide", "field") if name in labels.columns)
        for image, points in labels[labels["label"] == "mitosis"].groupby(named):
            path = next((data / source).rglob(f"{Path(str(image)).stem}.*"))
            with open_slide(path, mpp=mpp) as slide:
                pixels = slide.read_level(0, Box(0, 0, slide.width, slide.height))
            field = ArraySlide(pixels, mpp=mpp)
            side = float(max(field.width, field.height))
            whole = TissueMask(np.ones((1, 1), np.bool_), mpp * side, 0, 0, side)
            yield Place(source, field, whole, points[["x", "y"]].to_numpy(float))


def places_by_chance(place: Place, count: int = 5000) -> npt.NDArray[np.float64]:
    """Places drawn evenly from the tissue."""
    mask, rng = place.tissue, np.random.default_rng(0)
    cells = rng.choice(np.argwhere(mask.mask), count) + rng.random((count, 2))
    points = cells[:, ::-1] * mask.scale + (mask.x, mask.y)
    inside = np.flatnonzero((points < (place.slide.width, place.slide.height)).all(axis=1))
    return points[inside]


def measured(place: Place, threshold: float, mpp: float) -> dict[str, float | str]:
    """Counts for one picture."""
    found = find_candidates(place.slide, place.tissue, CandidateConfig(threshold=threshold, mpp=mpp))
    reference = pd.DataFrame(place.mitoses, columns=["x", "y"])
    scale = MPP / place.slide.mpp
    stated = label_candidates(found.table, reference, place.slide, LabelConfig(rule="stated"))["label"] == 1
    nearest = label_candidates(found.table, reference, place.slide)["label"]
    return {
        "source": place.source,
        "mitoses": len(place.mitoses),
        "within d": int(recalled(found.table, place.mitoses, D_PX * scale).sum()),
        "within 7.5 um": int(recalled(found.table, place.mitoses, MATCH_PX * scale).sum()),
        "chance mm2": recalled(found.table, places_by_chance(place), MATCH_PX * scale).mean()
        * found.tissue_mm2,
        "candidates": len(found.table),
        "mm2": found.tissue_mm2,
        "dark mm2": found.dark_share * found.tissue_mm2,
        "stated": int(stated.sum()),
        "negatives": int((nearest == 0).sum()),
    }


def summary(rows: list[dict[str, float | str]]) -> pd.DataFrame:
    """Sums by source, and what follows from them."""
    total = pd.DataFrame(rows).groupby("source", sort=False).sum()
    total.loc["all"] = total.sum()
    return pd.DataFrame(
        {
            "mitoses": total["mitoses"].astype(int),
            "recall within d": (total["within d"] / total["mitoses"]).round(4),
            "recall within 7.5 um": (total["within 7.5 um"] / total["mitoses"]).round(4),
            "chance within 7.5 um": (total["chance mm2"] / total["mm2"]).round(2),
            "candidates per mm2": (total["candidates"] / total["mm2"]).round().astype(int),
            "mitoses per mm2": (total["mitoses"] / total["mm2"]).round(1),
            "negatives per mitosis": (total["negatives"] / total["mitoses"]).round(1),
            "candidates within d of a mitosis": (total["stated"] / total["mitoses"]).round(1),
            "dark share of tissue": (total["dark mm2"] / total["mm2"]).round(2),
        }
    )


def print_markdown(table: pd.DataFrame, first: str) -> None:
    """Print as a table of a Markdown page."""
    print(f"\n| {first} | " + " | ".join(map(str, table.columns)) + " |")
    print("|---|" + "---:|" * len(table.columns))
    for name, row in table.astype(object).iterrows():
        print(f"| {name} | " + " | ".join(map(_cell, row)) + " |", flush=True)


def _cell(value: object) -> str:
    return f"{float(str(value)):,.4f}".rstrip("0").rstrip(".")


def draw(places: list[Place], path: Path, side: int = 640) -> None:
    """Around a mitosis of each place: positives green, with their circle, ignored orange, negatives white."""
    gap = np.full((side, 12, 3), 255, np.uint8)
    views = [view for place in places for view in (gap, drawn(place, side))]
    Image.fromarray(np.concatenate(views[1:], axis=1)).save(path, quality=85)


def drawn(place: Place, side: int) -> RGB:
    """Candidates on the part of a slide around its most central mitosis."""
    size = np.array([place.slide.width, place.slide.height])
    centre = min(place.mitoses, key=lambda point: float(np.abs(point - size / 2).max()))
    left, top = (int(value) for value in np.clip(centre - side / 2, 0, size - side))
    view = place.slide.read_level(0, Box(left, top, side, side))
    reference = pd.DataFrame(place.mitoses, columns=["x", "y"])
    table = label_candidates(find_candidates(place.slide, place.tissue).table, reference, place.slide)
    for x, y, label in table[["x", "y", "label"]].to_numpy():
        at = round(x - left), round(y - top)
        cv2.circle(view, at, 6, (0, 0, 0), -1, cv2.LINE_AA)
        cv2.circle(view, at, 4, COLOURS[int(label)], -1, cv2.LINE_AA)
        if label == POSITIVE:
            radius = round(D_PX / 2 * MPP / place.slide.mpp)
            cv2.circle(view, at, radius, COLOURS[POSITIVE], 3, cv2.LINE_AA)
    return view


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=3072, help="px of each simulated slide")
    parser.add_argument("--mitoses", type=float, default=100.0, help="per mm2 of tumour")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--thresholds", default="0.4,0.5,0.6,0.7")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--data", type=Path, help="folder of real fields")
    parser.add_argument("--picture", type=Path, help="where to draw candidates (PNG or JPEG)")
    options = parser.parse_args()
    places = list(simulated(options))
    print_markdown(summary([measured(place, 0.6, MPP) for place in places]), "laboratory, t = 0.6")
    overall = {
        f"t = {threshold}, {mpp} um/px": summary([measured(p, threshold, mpp) for p in places]).loc["all"]
        for mpp in (0.25, 0.5)
        for threshold in map(float, options.thresholds.split(","))
    }
    print_markdown(pd.DataFrame(overall).T, "all laboratories")
    fields = list(real(options.data)) if options.data else []
    if fields:
        print_markdown(summary([measured(field, 0.6, MPP) for field in fields]), "real, t = 0.6")
    if options.picture:
        draw([*places[:1], *fields[:1]], options.picture)


if __name__ == "__main__":
    main()
