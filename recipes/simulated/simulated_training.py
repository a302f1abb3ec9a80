"""Does the engine learn mitoses, and does stain augmentation carry them to other laboratories?

Renders H&E slides of one virtual laboratory for training, held-out slides of the same one, and slides
of others for testing; cuts patches around mitoses, look-alikes and other positions; trains with
`metaphase train` for each recipe; prints the patch F1 on each laboratory, at the threshold of the
validation slides and at the best one.

    python recipes/simulated/simulated_training.py --folder OUT [--cases 24] [--processes 2] [--epochs 10]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from metaphase.base.arrays import RGB
from metaphase.networks.architectures import centre_crop, probability
from metaphase.networks.checkpoints import choose_device, load_model
from metaphase.networks.training.data import Feeder, open_set
from metaphase.networks.training.patches import PatchWriter
from metaphase.networks.training.progress import best_f1
from metaphase.simulation.cohort import case_truth
from metaphase.simulation.config import Case, SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.tiles import cut_squares

STORED_PX = 128
KEEP_AWAY_PX = 100
"""Negatives keep this distance from every mitosis (the paper's d)."""


def case_patches(case: Case, others_per_case: int) -> tuple[RGB, pd.DataFrame]:
    """All labelled patches of a case's H&E slide; negatives are its look-alikes and random positions."""
    truth = case_truth(case)
    mitoses = truth.loc[truth["category"] == "mitosis", ["x_he", "y_he"]].to_numpy()
    lookalikes = truth.loc[truth["category"] == "lookalike", ["x_he", "y_he"]].to_numpy()
    rng = np.random.default_rng(case.seed % 2**32)
    others = rng.uniform((0, 0), (case.width, case.height), (others_per_case, 2))
    negatives = np.concatenate([lookalikes, others])
    distance = np.linalg.norm(negatives[:, None] - mitoses[None], axis=2).min(axis=1, initial=np.inf)
    kept = negatives[distance > KEEP_AWAY_PX]
    table = pd.DataFrame(np.concatenate([mitoses, kept]), columns=["x", "y"])
    table["label"] = [1] * len(mitoses) + [0] * len(kept)
    table["slide"], table["source"] = case.name, "simulation"
    slide = ArraySlide(render_region(case, "he", 0, 0, case.width, case.height), mpp=0.25)
    patches = np.empty((len(table), STORED_PX, STORED_PX, 3), np.uint8)
    for rows, squares in cut_squares(slide, table[["x", "y"]].to_numpy(float), STORED_PX, threads=1):
        patches[rows] = squares
    return patches, table


def write_stores(
    folder: Path, config: SimulationConfig, processes: int, others_per_case: int = 400
) -> dict[str, list[str]]:
    """A store a case; returns the stores by role: train, validation, and `test NAME` for each laboratory."""
    roles: dict[str, list[str]] = {}
    cases = cohort_cases(config)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = pool.map(case_patches, cases, repeat(others_per_case))
        for case, (patches, table) in zip(cases, found, strict=True):
            role = case.split if case.split != "test" else f"test {case.laboratory.name}"
            store = folder / "patches" / case.name
            roles.setdefault(role, []).append(str(store))
            if not (store / "store.json").exists():
                with PatchWriter(store) as writer:
                    for patch, row in zip(patches, table.to_dict("records"), strict=True):
                        writer.add(patch, **{str(key): value for key, value in row.items()})
    return roles


def train(folder: Path, roles: dict[str, list[str]], recipe: str, options: argparse.Namespace) -> Path:
    """Run the command."""
    name = recipe or "none"
    lines = [
        f"train = {json.dumps(roles['train'])}",
        f"validation = {json.dumps(roles['validation'])}",
        f'name = "{name}"\naugment = "{recipe}"\nseed = {options.seed}',
        f"epochs = {options.epochs}\nsamples_per_epoch = {options.samples}",
        f'[network]\ngamma = {options.gamma}\nnormalisation = "{options.normalisation}"',
    ]
    toml = folder / f"{name}.toml"
    toml.write_text("\n".join(lines))
    command = [sys.executable, "-m", "metaphase", "train", str(toml), "-o", str(folder / name)]
    subprocess.run(command, check=True)
    return folder / name / f"{name}.safetensors"


@torch.inference_mode()
def test(model: Path, stores: list[str], threshold: float) -> tuple[float, float]:
    """(F1 at the given threshold, F1 at the best) of a model on patches."""
    device = choose_device(None)
    network, _ = load_model(model, device)
    patches = open_set(stores)
    batches = Feeder(patches, device)(np.arange(len(patches.labels)), 256)
    answers = torch.cat([probability(network(centre_crop(b))).flatten().cpu() for b in batches]).numpy()
    called, positive = answers >= threshold, patches.labels == 1
    fixed = 2 * (called & positive).sum() / max(1, called.sum() + positive.sum())
    return float(fixed), best_f1(answers, patches.labels).f1


def main() -> None:
    """Render, cut, train, test, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--centres", type=int, default=4)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--mitoses", type=float, default=60.0, help="per mm2 of tumour")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--gamma", type=float, default=0.6)
    parser.add_argument("--normalisation", default="none")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=40_000, help="patches an epoch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipes", default="RSEB,RCSEB,RCSEHBG")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = SimulationConfig(
        cases=options.cases, width=options.side, height=options.side, centres=options.centres,
        mitoses_per_mm2=(options.mitoses, options.mitoses), seed=11 + options.seed,
    )  # fmt: skip
    options.folder = options.folder.resolve()
    roles = write_stores(options.folder, config, options.processes)
    results = {}
    for recipe in options.recipes.split(","):
        model = train(options.folder, roles, recipe, options)
        threshold = load_model(model)[1].thresholds["patches"].delta
        tests = {role: test(model, stores, threshold) for role, stores in roles.items() if role != "train"}
        results[recipe] = tests
        for role, (fixed, best) in tests.items():
            print(f"{recipe:8} {role:20} F1 {fixed:.3f} (best threshold {best:.3f})", flush=True)
    if options.json:
        counts = {role: int(open_set(stores).labels.sum()) for role, stores in roles.items()}
        options.json.write_text(json.dumps({"positives": counts, "f1": results}, indent=2))


if __name__ == "__main__":
    main()
