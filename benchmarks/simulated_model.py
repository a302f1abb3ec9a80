"""Make the model `simulated`: a small detector trained on simulated slides of one virtual laboratory.

Renders, cuts, trains with `metaphase train`, measures patch F1 on other virtual laboratories, and writes
16-bit weights with their card. A GPU machine needs about three minutes.

    python benchmarks/simulated_model.py --folder WORK -o src/metaphase/models/simulated [--processes 16]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from metaphase.learning.data import open_set
from metaphase.networks import TrainingData, load_model, save_model
from metaphase.simulation import SimulationConfig
from training_simulated import test, train, write_stores

FAILURES = (
    "Trained on simulated slides only: on real tissue it shows how the tool works; its counts mean nothing.",
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
    network, card = load_model(model)
    threshold = card.thresholds["patches"].parameters["delta"]
    f1 = {}
    for role, stores in roles.items():
        if role != "train":
            f1[role], _ = test(model, stores, threshold)
            print(f"{role:20} F1 {f1[role]:.3f}")
    labels = open_set(roles["train"]).labels
    data = TrainingData(
        name="metaphase simulated slides, laboratory aldgate",
        terms="made by this project, no restriction",
        positives=int(labels.sum()),
        negatives=int((1 - labels).sum()),
    )
    recipe = {key: value for key, value in card.recipe.items() if key not in ("train", "validation")}
    changes = {
        "name": options.output.name,
        "data": (data,),
        "known_failures": FAILURES,
        "recipe": recipe,
        "metrics": card.metrics | {"patch F1 by virtual laboratory": f1},
        "intended_use": "Demonstration of the software. Trained on simulated slides; never for real counts.",
    }
    save_model(options.output, network, card.model_copy(update=changes), half=True)


if __name__ == "__main__":
    main()
