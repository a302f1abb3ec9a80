"""Time a cohort of TUPAC's size: 814 slides, 500,000 detections, bootstrap and report included.

Run: python benchmarks/evaluation_speed.py [--slides 814] [--detections 500000] [--output DIR]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from metaphase.base.tables import write_table
from metaphase.evaluation.marks import MatchingConfig
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.evaluation.mitoses import evaluate_mitoses
from metaphase.reports.evaluation import write_mitosis_report

SIDE_PX, MPP = 80_000, 0.25
JITTER_PX = 8.0


def simulated(slides: int, detections: int, folder: Path) -> tuple[Path, Path]:
    """Truth of which about 60 % is found, and false positives that are mostly less probable."""
    generator = np.random.default_rng(0)
    names = np.array([f"case-{index:04}" for index in range(slides)])
    manifest = pd.DataFrame({"case": names, "mpp": MPP, "width": SIDE_PX, "height": SIDE_PX})
    manifest["laboratory"] = generator.choice([f"centre {index}" for index in range(12)], slides)
    truths = detections // 4
    truth = pd.DataFrame(generator.uniform(0, SIDE_PX, (truths, 2)), columns=["x", "y"])
    truth.insert(0, "slide", generator.choice(names, truths))
    found = truth.sample(frac=0.6, random_state=0).reset_index(drop=True)
    found[["x", "y"]] += generator.normal(0, JITTER_PX, (len(found), 2))
    found["probability"] = generator.beta(5, 2, len(found))
    false = pd.DataFrame(generator.uniform(0, SIDE_PX, (detections - len(found), 2)), columns=["x", "y"])
    false.insert(0, "slide", generator.choice(names, len(false)))
    false["probability"] = generator.beta(2, 4, len(false))
    write_table(folder / "manifest.csv", manifest)
    write_table(folder / "truth.csv", truth.assign(label="mitosis"))
    write_table(folder / "predictions.parquet", pd.concat([found, false], ignore_index=True))
    return folder / "truth.csv", folder / "predictions.parquet"


def main() -> None:
    """Print seconds for both ways of matching."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=int, default=814)
    parser.add_argument("--detections", type=int, default=500_000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--output", type=Path, help="keep the cohort and its results here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.output or Path(name)
        truth, predictions = simulated(options.slides, options.detections, folder)
        for method in ("greedy", "optimal"):
            start = time.perf_counter()
            result = evaluate_mitoses(
                truth,
                predictions,
                by=("laboratory",),
                matching=MatchingConfig(method=method, threshold=0.5),
                bootstrap=BootstrapConfig(samples=options.samples),
            )
            write_mitosis_report(result, folder / method)
            seconds = time.perf_counter() - start
            print(f"{method:8} {seconds:6.1f} s   F1 {result.overall.f1}")


if __name__ == "__main__":
    main()
