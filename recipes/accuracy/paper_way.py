"""The paper's way beside our defaults, on a simulated cohort: detection, tuning and test of the three tasks.

python recipes/accuracy/paper_way.py --folder WORK

Slides of the laboratory that the bundled model `simulated` was trained on, none of them seen in training.
Every other case tunes, the others test. Both ways are tuned by the paper's procedure on the same cases;
beside it stands what the points do that come with them: the card's, and the paper's deltas.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from metaphase.base.tables import read_manifest, write_table
from metaphase.counting import CountConfig, counts_table
from metaphase.evaluation import (
    MatchingConfig,
    evaluate_grade,
    evaluate_mitoses,
    evaluate_proliferation,
    tune_count,
    tune_mitoses,
)
from metaphase.evaluation.operating_points import save_point
from metaphase.jobs.cohort import cohort_slides
from metaphase.jobs.counting import count_cohort, read_cases
from metaphase.jobs.detection_cohort import detect_cohort
from metaphase.jobs.detection_config import DetectionConfig
from metaphase.jobs.results import CANDIDATES
from metaphase.jobs.training.cohort import truth_of
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.points import PAPER_POINTS, changed_point
from metaphase.simulation import SimulationConfig, simulate_cohort

STEPS = 40
"""Thresholds at which slides are counted for tuning, evenly spaced in log-odds from the lowest to 0.9999."""


def simulated(folder: Path, cases: int, side: int, seed: int) -> Path:
    """A cohort with truth; returns its manifest."""
    config = SimulationConfig(
        cases=cases, centres=1, width=side, height=side, mitoses_per_mm2=(2.0, 40.0), seed=seed, workers=2
    )
    simulate_cohort(folder, config, frames=("he",))
    manifest = read_manifest(folder / "manifest.csv")
    manifest["split"] = np.where(np.arange(len(manifest)) % 2, "held out", "tuning")
    manifest = manifest.assign(phh3="")
    write_table(folder / "cohort.csv", manifest)
    write_table(folder / "truth.csv", pd.concat([truth_of(row) for row in manifest.to_dict("records")]))
    return folder / "cohort.csv"


def counted(manifest: Path, table: Path, deltas: list[float], output: Path) -> Path:
    """Counts of every case at every threshold."""
    cases = read_cases([table], manifest=manifest)
    base = ReadyDetector(load_detector(["simulated"])).detector.points.count
    points = [changed_point(base, delta=delta) for delta in deltas]
    batch = count_cohort(cases, points, CountConfig(draws=0))
    rows = [(name, count.to_dict()) for name, several in batch.results.items() for count in several]
    write_table(output, counts_table(rows))
    return output


def tested(
    way: str, manifest: Path, folder: Path, card: Path, counts: Path, matching: MatchingConfig
) -> list[str]:
    """Task 3, 1 and 2 on the cases held out, at the points of a card."""
    held_out = "held out"
    table, truth = folder / CANDIDATES, manifest.parent / "truth.csv"
    found = evaluate_mitoses(
        truth, table, manifest=manifest, split=held_out, card=card, matching=matching
    ).overall
    grade = evaluate_grade(manifest, counts, split=held_out, card=card)
    score = evaluate_proliferation(manifest, counts, split=held_out, card=card)
    return [
        way,
        str(found.f1),
        str(found.precision),
        str(found.recall),
        str(grade.overall),
        str(score.overall),
    ]


def main() -> None:
    """Simulate, detect both ways, tune both, test both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--side", type=int, default=6144, help="pixels of 0.25 um")
    parser.add_argument("--seed", type=int, default=101)
    options = parser.parse_args()
    manifest = simulated(options.folder / "slides", options.cases, options.side, options.seed)
    ready = ReadyDetector(load_detector(["simulated"]))
    matching, rows, points = MatchingConfig(), [], []
    for way, paper in (("default", False), ("paper", True)):
        folder, config = options.folder / way, DetectionConfig(paper=paper)
        detect_cohort(cohort_slides(manifest), folder, ready, config)
        floor = config.peaks(ready.detector).floor
        used = PAPER_POINTS if paper else config.points(ready.detector)
        odds = np.linspace(np.log(floor / (1 - floor)), np.log(0.9999 / 0.0001), STEPS)
        deltas = [*np.round(1 / (1 + np.exp(-odds)), 6).tolist(), used.count.delta]
        counts = counted(manifest, folder / CANDIDATES, deltas, folder / "counts.parquet")
        given, tuned = folder / "given.json", folder / "tuned.json"
        for card in (given, tuned):
            card.unlink(missing_ok=True)
        for point in (used.mitoses, used.count):
            save_point(given, point.model_copy(update={"cases": (), "patients": ()}))
        truth = manifest.parent / "truth.csv"
        mitoses = tune_mitoses(
            truth,
            folder / CANDIDATES,
            tuned,
            manifest=manifest,
            split="tuning",
            matching=matching,
            floor=floor,
        )
        count = tune_count(manifest, counts, tuned, split="tuning", floor=floor)
        points.append((way, mitoses.delta, count.delta, count.theta1, count.theta2))
        untuned = "with its deltas" if paper else "as it comes"
        rows.append(tested(f"{way}, {untuned}", manifest, folder, given, counts, matching))
        rows.append(tested(f"{way}, tuned", manifest, folder, tuned, counts, matching))
    columns = ["way", "F1", "precision", "recall", "kappa of grades", "Spearman"]
    for line in (columns, ["---"] * len(columns), *rows):
        print("| " + " | ".join(line) + " |")
    print(pd.DataFrame(points, columns=["way", "delta mitoses", "delta count", "theta1", "theta2"]).round(4))


if __name__ == "__main__":
    main()
