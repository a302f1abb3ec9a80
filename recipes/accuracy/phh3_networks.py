"""The whole PHH3 label factory on a simulated cohort: candidates, observers, CNN1, CNN2, held-out F1.

    python recipes/accuracy/phh3_networks.py --folder OUT [--cases 16] [--side 4096] [--device cuda]

Observers with known error rates answer through the labelling database, and `metaphase label merge` makes the
labels: one student for CNN1, four observers of whom three must agree for CNN2, as in the paper. Networks see
the training laboratory alone; F1 is told for its held-out cases and for other laboratories. Run it again to
go on after a stop.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase.base.tables import case_folder, read_manifest, write_table
from metaphase.detections import match
from metaphase.jobs.labelling import merge_project
from metaphase.labels.observers.project import ARTEFACT, MITOSIS, item_name, read_items, read_labels
from metaphase.labels.observers.rehearsal import (
    FOUR_OBSERVERS,
    RADIUS_UM,
    Observer,
    simulate_answers,
    true_labels,
)
from metaphase.labels.observers.store import import_answers
from metaphase.labels.phh3.cases import (
    MITOSES,
    Purpose,
    SampleConfig,
    draw_project,
    read_candidates,
    read_classified,
    search_case,
)
from metaphase.labels.phh3.networks import (
    LearningConfig,
    classify_case,
    load_classifier,
    train_cnn1,
    train_cnn2,
)
from metaphase.labels.phh3.survey import BrownConfig
from metaphase.simulation import SimulationConfig, simulate_cohort

MPP = 0.25
RADIUS_PX = RADIUS_UM / MPP
STUDENT = FOUR_OBSERVERS[1]


class Chain:
    """A cohort in a folder, and the steps of the factory."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.workspace = folder / "workspace"
        config = SimulationConfig(
            cases=options.cases, width=options.side, height=options.side, centres=options.centres,
            mitoses_per_mm2=tuple(options.mitoses), training_share=options.training_share,
            seed=options.seed, workers=options.workers,
        )  # fmt: skip
        simulate_cohort(folder / "cohort", config)
        self.manifest = read_manifest(folder / "cohort" / "manifest.csv")
        self.truth = {
            case: pd.read_parquet(folder / "cohort" / case / "truth.parquet")
            for case in self.manifest["case"]
        }

    def search(self) -> dict[str, float]:
        """Candidates of all slides: how many PHH3-positive mitoses they hold, and what else."""
        right, found, mitoses = [], 0, 0
        for case, slide in zip(self.manifest["case"], self.manifest["phh3"], strict=True):
            table = search_case(slide, case_folder(self.workspace, case), BrownConfig()).table
            right.append(true_labels(table, self.truth[case], MPP))
            wanted = self.positive(case)
            mitoses += len(wanted)
            found += int((match(_points(table), np.ones(len(table)), wanted, RADIUS_PX) >= 0).sum())
        labels = np.concatenate(right)
        return {
            "candidates": len(labels),
            "mitoses": mitoses,
            "recall": found / mitoses,
            "artefact_share": float(np.mean(labels == ARTEFACT)),
        }

    def label(self, purpose: Purpose, observers: Sequence[Observer], agree: int) -> dict[str, Any]:
        """Draw a project and let simulated observers answer it through the labelling database."""
        project = self.folder / f"label-{purpose}"
        if not (project / "labels.csv").exists():
            if not (project / "items.csv").exists():
                sample = SampleConfig(self.options.labels, seed=self.options.seed)
                earlier = [self.folder / "label-cnn1"] if purpose == "cnn2" else []
                draw_project(self.manifest, self.workspace, project, purpose, sample, exclude=earlier)
            answers = simulate_answers(self.right_answers(project), observers, self.options.seed)
            write_table(project / "answers.csv", answers)
            import_answers(project, project / "answers.csv")
            merge_project(project, agree)
        answers, labels = pd.read_csv(project / "answers.csv"), read_labels(project)
        return {
            "items": len(read_items(project)),
            "answers": len(answers),
            "hours": float(answers["seconds"].sum() / 3600),
            "hours_of_the_slowest": float(answers.groupby("observer")["seconds"].sum().max() / 3600),
            "agreed": labels["label"].value_counts().to_dict(),
            "right": float(
                (self.right_answers(project)[labels["item"]].to_numpy() == labels["label"]).mean()
            ),
        }

    def right_answers(self, project: Path) -> pd.Series[str]:
        """The truth about each item of a project, indexed by item."""
        every: dict[str, str] = {}
        for case, truth in self.truth.items():
            table = read_candidates(case_folder(self.workspace, case))
            names = (item_name(case, number) for number in table["candidate"])
            every |= dict(zip(names, true_labels(table, truth, MPP), strict=True))
        return pd.Series(every)[read_items(project)["item"]]

    def train(self, purpose: Purpose) -> float:
        """Train CNN1 or CNN2 and classify all candidates with it; returns the validation F1."""
        config = LearningConfig(
            epochs=self.options.epochs, normalisation=self.options.normalisation,
            samples_per_epoch=self.options.samples, augment=self.options.augment, seed=self.options.seed,
        )  # fmt: skip
        project, device = self.folder / f"label-{purpose}", self.options.device
        if purpose == "cnn1":
            result = train_cnn1(project, self.folder / purpose, config, device=device)
        else:
            artefacts = [self.folder / "label-cnn1"]
            result = train_cnn2(project, self.folder / purpose, config, artefacts=artefacts, device=device)
        classifier = load_classifier(purpose, result.model, device)
        for case, slide in zip(self.manifest["case"], self.manifest["phh3"], strict=True):
            classify_case(slide, case_folder(self.workspace, case), case, [classifier])
        return result.best

    def judge(self, cases: pd.DataFrame) -> dict[str, float]:
        """F1 of the final mitoses of some cases against the truth, and of CNN2 on their candidates."""
        counts = np.zeros(3, int)
        calls, answers = [], []
        for case in cases["case"]:
            folder = case_folder(self.workspace, case)
            mitoses, wanted = pd.read_parquet(folder / MITOSES), self.positive(case)
            matched = match(_points(mitoses), mitoses["probability"].to_numpy(float), wanted, RADIUS_PX)
            counts += [(matched >= 0).sum(), len(mitoses), len(wanted)]
            scores = read_classified(folder)
            calls.append(scores.table["cnn2"].to_numpy() >= scores.decisions["cnn2"])
            answers.append(true_labels(scores.table, self.truth[case], MPP) == MITOSIS)
        called, true = np.concatenate(calls), np.concatenate(answers)
        hits, detected, wanted_count = counts.tolist()
        return {
            "cases": len(cases),
            "mitoses": wanted_count,
            "precision": hits / max(1, detected),
            "recall": hits / max(1, wanted_count),
            "f1": 2 * hits / max(1, detected + wanted_count),
            "f1_candidates": 2 * int((called & true).sum()) / max(1, int(called.sum() + true.sum())),
        }

    def positive(self, case: str) -> Any:
        """Places (n, 2) of the PHH3-positive mitoses of a case."""
        truth = self.truth[case]
        wanted = truth["phh3_positive"] & truth["in_phh3"] & (truth["category"] == "mitosis")
        return truth.loc[wanted, ["x_phh3", "y_phh3"]].to_numpy(float)


def _points(table: pd.DataFrame) -> Any:
    return table[["x", "y"]].to_numpy(float)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All steps, each reported as it ends."""
    chain = Chain(options.folder.resolve(), options)
    report: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        report[name] = value
        print(f"{name}: {json.dumps(value)}", flush=True)

    note("candidates", chain.search())
    if options.only_candidates:
        return report
    note("labels for CNN1", chain.label("cnn1", [STUDENT], 1))
    note("CNN1 validation F1", chain.train("cnn1"))
    note("labels for CNN2", chain.label("cnn2", FOUR_OBSERVERS, 3))
    note("CNN2 validation F1", chain.train("cnn2"))
    held_out = chain.manifest[chain.manifest["split"] == "test"]
    note("held-out cases", chain.judge(held_out))
    for centre, cases in held_out.groupby("centre"):
        note(f"held-out cases of {centre}", chain.judge(cases))
    return report


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=16)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--centres", type=int, default=4)
    parser.add_argument("--training-share", type=float, default=0.625)
    parser.add_argument("--mitoses", type=float, nargs=2, default=(60.0, 250.0), help="per mm2 of tumour")
    parser.add_argument("--labels", type=int, default=2000, help="items of each project")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, help="patches an epoch")
    parser.add_argument("--normalisation", default="none", choices=("none", "batch"))
    parser.add_argument("--augment", default="REB", help="letters of the recipe")
    parser.add_argument("--workers", type=int, default=2, help="processes that render")
    parser.add_argument("--only-candidates", action="store_true", help="stop before the labels")
    parser.add_argument("--device")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = run(options)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
