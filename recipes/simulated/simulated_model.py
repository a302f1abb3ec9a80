"""Make the model `simulated`: a small detector trained on simulated slides of one virtual laboratory.

Renders, cuts, trains with `metaphase train`, measures patch F1 on other virtual laboratories, and writes
16-bit weights with their card. A GPU machine needs about three minutes.

    python recipes/simulated/simulated_model.py --folder WORK -o src/metaphase/models/simulated
"""

from __future__ import annotations

import argparse
from pathlib import Path

from simulated_training import test, train, write_stores

from metaphase.networks.additions import CardAdditions
from metaphase.networks.cards import TrainingData, parse_card
from metaphase.networks.checkpoints import package_model
from metaphase.networks.training.data import open_set
from metaphase.simulation.config import SimulationConfig

FAILURES = (
    "Trained on simulated slides only: on real tissue it shows how the tool works; its counts mean nothing.",
)


USE = "Demonstration of the software. Trained on simulated slides; never for real counts."


def f1_by_laboratory(model: Path, roles: dict[str, list[str]]) -> dict[str, float]:
    """Patch F1 on all but the training slides, at the threshold of the validation slides."""
    threshold = parse_card(model.with_suffix(".json")).thresholds["patches"].delta
    f1 = {role: test(model, stores, threshold)[0] for role, stores in roles.items() if role != "train"}
    for role, value in f1.items():
        print(f"{role:20} F1 {value:.3f}")
    return f1


def data_of(stores: list[str]) -> TrainingData:
    """What the model learned from."""
    labels = open_set(stores).labels
    return TrainingData(
        name="metaphase simulated slides, laboratory aldgate",
        terms="made by this project, no restriction",
        positives=int(labels.sum()),
        negatives=int((1 - labels).sum()),
    )


def main() -> None:
    """Train, test, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="for slides and patches")
    parser.add_argument("-o", "--output", type=Path, required=True, help="model to write")
    parser.add_argument("--cases", type=int, default=32)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--others", type=int, default=4000, help="random negatives a case")
    parser.add_argument("--gamma", type=float, default=0.25)
    parser.add_argument("--normalisation", default="batch")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    config = SimulationConfig(
        cases=options.cases, width=options.side, height=options.side, centres=6, training_share=0.75,
        mitoses_per_mm2=(60.0, 60.0), lookalikes_per_mm2=120.0, seed=31,
    )  # fmt: skip
    options.folder = options.folder.resolve()
    roles = write_stores(options.folder, config, options.processes, options.others)
    model = train(options.folder, roles, "RCSEHBG", options)
    additions = CardAdditions(
        data=(data_of(roles["train"]),),
        metrics={"patch F1 by virtual laboratory": f1_by_laboratory(model, roles)},
        known_failures=FAILURES,
        intended_use=USE,
    )
    package_model(model, options.output, additions=additions)


if __name__ == "__main__":
    main()
