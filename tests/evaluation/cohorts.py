"""Small cohorts on disk for the tests of the evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from metaphase.base.tables import write_table

MPP, SIDE = 0.25, 20_000


def write_cohort(folder: Path, slides: int = 12, truths: int = 30, found: float = 0.7, seed: int = 0) -> Path:
    """A folder with manifest, truth and predictions: `found` of the truths, and as many false positives."""
    generator = np.random.default_rng(seed)
    names = [f"s{index:02}" for index in range(slides)]
    manifest = pd.DataFrame({"case": names, "he": [f"{name}.svs" for name in names], "mpp": MPP})
    manifest = manifest.assign(width=SIDE, height=SIDE, laboratory=[f"c{i % 3}" for i in range(slides)])
    manifest["split"] = ["tune" if i % 2 else "test" for i in range(slides)]
    manifest["grade"] = generator.integers(1, 4, slides)
    manifest["proliferation"] = generator.normal(size=slides)
    truth = pd.DataFrame(generator.uniform(0, SIDE, (slides * truths, 2)), columns=["x", "y"])
    truth.insert(0, "slide", np.repeat(names, truths))
    hits = truth.sample(frac=found, random_state=seed)
    hits[["x", "y"]] += generator.normal(0, 5, (len(hits), 2))
    misses = truth.assign(x=generator.uniform(0, SIDE, len(truth)), y=generator.uniform(0, SIDE, len(truth)))
    predictions = pd.concat([hits, misses], ignore_index=True)
    predictions["probability"] = np.r_[
        generator.beta(4, 2, len(hits)), generator.beta(2, 4, len(misses))
    ].round(3)
    write_table(folder / "manifest.csv", manifest)
    write_table(folder / "truth.csv", truth.assign(label="mitosis"))
    write_table(folder / "predictions.csv", predictions)
    return folder
