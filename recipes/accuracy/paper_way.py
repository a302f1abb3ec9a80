"""The paper's way beside the defaults, setting by setting, on simulated pairs with exact truth.

    python recipes/accuracy/paper_way.py --folder OUT                        # two cores
    python recipes/accuracy/paper_way.py --folder OUT --full --device cuda   # a large GPU

PHH3 points with the errors of the paper's CNN2 are carried to H&E by `metaphase reference build`: networks
learn from that, and it chooses thresholds. Test slides have the exact truth. A row is a `metaphase run` with
some settings of configs/paper.toml; rows that differ in [test] alone have the same networks. The difference
to the first row has an interval of the same draws of slides. Run it again to go on after a stop.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
from reference_standard import simulated_points

from metaphase.base.provenance import fingerprint_of
from metaphase.base.tables import read_manifest, write_table
from metaphase.detections.table import PAPER_FLOOR
from metaphase.evaluation.metrics import BootstrapConfig, estimate
from metaphase.evaluation.operating_points import counts_of
from metaphase.labels.building import BuildConfig, build_cohort, given_points
from metaphase.learn.config import run_config, student_name
from metaphase.learn.run import chain_of, delivered_model, read_results, run_chain
from metaphase.learn.sources import truth_of
from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import SimulationConfig

Tables = dict[str, dict[str, Any]]
COMPONENTS = {"method": "components", "floor": PAPER_FLOOR}
HIGHEST = {"threshold": "highest"}
VARIANTS: dict[str, Tables] = {
    "defaults": {},
    "components from 0.8": {"test": COMPONENTS},
    "threshold of the highest F1": {"test": HIGHEST},
    "both": {"test": COMPONENTS | HIGHEST},
    "every registered figure": {"reference": {"all_registered": True}},
    "standardised": {"cohort": {"standardise": "hsd"}},
    "every candidate within d": {"labels": {"rule": "stated"}},
    "all of it": {
        "test": COMPONENTS | HIGHEST,
        "reference": {"all_registered": True},
        "cohort": {"standardise": "hsd"},
        "labels": {"rule": "stated"},
    },
}
TINY: dict[str, Any] = {
    "cases": 10, "side": 2048, "workers": 2, "gamma": 0.1, "mitoses": (250, 450),
    "sets": {"easy_negatives": 400, "hard_negatives": 2_000, "validation_positives": 1.0,
             "validation_negatives": 0.3},
    "training": {"normalisation": "batch", "batch": 32, "epochs": 5, "samples_per_epoch": 800,
                 "learning_rate": 2e-3, "final_learning_rate": 2e-4},
    "ensemble": 2,
}  # fmt: skip
FULL: dict[str, Any] = {
    "cases": 40, "side": 2048, "workers": 16, "gamma": 0.6, "mitoses": (60, 240),
    "sets": {"easy_negatives": 6_000, "hard_negatives": 16_000, "validation_positives": 1.0,
             "validation_negatives": 0.25},
    "training": {"batch": 256, "epochs": 3, "samples_per_epoch": 30_000},
    "ensemble": 2,
}  # fmt: skip


def prepared(folder: Path, size: dict[str, Any], seed: int) -> None:
    """Slides, and the reference standard: what `reference build` gives, and the truth of test slides."""
    side, workers = size["side"], size["workers"]
    config = SimulationConfig(
        cases=size["cases"], centres=4, training_share=0.6, width=side, height=side,
        mitoses_per_mm2=size["mitoses"], lookalikes_per_mm2=120, seed=seed, workers=workers,
    )  # fmt: skip
    cohort = folder / "slides"
    simulate_cohort(cohort, config)
    rows = read_manifest(cohort / "manifest.csv")
    for number, case in enumerate(rows["case"]):
        truth = pd.read_parquet(cohort / case / "truth.parquet")
        write_table(folder / "points" / f"{case}.csv", simulated_points(truth, 0.1, 0.1, seed + number))
    built = build_cohort(
        cohort / "manifest.csv", folder / "pairs", given_points, BuildConfig(), points=folder / "points"
    ).table
    learnt = built[built["case"].isin(rows.loc[rows["split"] != "test", "case"])]
    tests = [truth_of(row) for row in rows[rows["split"] == "test"].to_dict("records")]
    exact = pd.concat(tests).assign(accepted=True)
    print(f"{len(learnt)} registered figures, {int(learnt['accepted'].sum())} accepted, {len(exact)} to find")
    columns = ["case", "x", "y", "accepted", "cause", "observer"]
    write_table(folder / "reference.csv", pd.concat([learnt, exact]).reindex(columns=columns))


def merged(first: Tables, *others: Tables) -> Tables:
    """Tables of a configuration, the later ones before the earlier."""
    found = {name: dict(values) for name, values in first.items()}
    for tables in others:
        for name, values in tables.items():
            found[name] = found.get(name, {}) | values
    return found


def tested(folder: Path, size: dict[str, Any], tables: Tables, device: str | None) -> dict[str, Any]:
    """What the test of a run says of its student, and the laboratories it learnt from."""
    common: Tables = {
        "cohort": {"manifest": str(folder / "slides" / "manifest.csv")},
        "reference": {"table": str(folder / "reference.csv")},
        "sets": size["sets"],
        "training": size["training"],
        "ensemble": {"networks": size["ensemble"], "gamma": size["gamma"]},
        "students": {"gammas": [size["gamma"]]},
        "test": {"suppress_um": 12.5},
    }
    learning = {name: values for name, values in tables.items() if name != "test"}
    config = run_config(merged(common, tables), folder)
    chain = chain_of(config, folder / f"run-{fingerprint_of(learning)[:8]}", device)
    run_chain(chain)
    results = read_results(chain.workspace)
    assert delivered_model(chain).stem == student_name(size["gamma"])
    found: dict[str, Any] = results["networks"][student_name(size["gamma"])]
    return found | {"homes": results["training_centres"]}


def f1_rows(name: str, values: dict[str, Any], first: dict[str, Any]) -> list[str]:
    """F1 in the training laboratory and elsewhere, and how it differs from the first row's."""
    bootstrap, homes = BootstrapConfig(), set(values["homes"])
    row = [name, f"{values['threshold']:.3f}"]
    for centres in (homes, set(values["slides"]["centre"]) - homes):
        mine, theirs = (counts_of([one], centres) for one in (values, first))
        f1, before = (one.f1_at_validation(bootstrap) for one in (mine, theirs))
        drawn = mine.drawn(bootstrap) - theirs.drawn(bootstrap)
        difference = estimate(f1.value - before.value, drawn, bootstrap)
        row += [str(f1), "" if values is first else str(difference), str(mine.highest_f1(bootstrap))]
    return row


def main() -> None:
    """Simulate, run every variant, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--full", action="store_true", help="the size for a large GPU")
    parser.add_argument("--device")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--cases", type=int, help="another number of slides")
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), help="some of the rows")
    options = parser.parse_args()
    size = (FULL if options.full else TINY) | ({"cases": options.cases} if options.cases else {})
    folder = options.folder.resolve()
    prepared(folder, size, options.seed)
    first: dict[str, Any] = {}
    headings = ["settings", "threshold", "F1 own laboratory", "difference", "highest"]
    headings += ["F1 other laboratories", "difference", "highest"]
    rows = []
    for name in options.only:
        values = tested(folder, size, VARIANTS[name], options.device)
        first = first or values
        rows.append(f1_rows(name, values, first))
        print(" | ".join(rows[-1]), flush=True)
    for line in (headings, ["---"] * len(headings), *rows):
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main()
