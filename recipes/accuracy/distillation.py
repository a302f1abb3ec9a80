"""What it takes for a student to come near its ensemble: students of one width, taught in several ways.

metaphase experiments configs/experiments.toml -o WORK
python recipes/accuracy/distillation.py configs/experiments.toml WORK

The networks of WORK are the teachers. Every student learns from the same first difficult set (or, `all
patches`, from the patches of all sets) with the same seeds, and is tested on the same slides. Writes
WORK/results/distillation.json and .md anew after every student; stopped, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metaphase.base.arrays import Floats
from metaphase.base.files import write_text
from metaphase.base.parallel import end_with_parent
from metaphase.evaluation import BootstrapConfig, Estimate
from metaphase.evaluation.benches import BenchCounts, counts_of
from metaphase.evaluation.metrics import estimate
from metaphase.images.stain.augmentation import Augmentation
from metaphase.jobs.experiments.running import Experiments
from metaphase.jobs.experiments.summary import held_out_centres
from metaphase.jobs.stages import silent
from metaphase.jobs.training.chain import NETWORKS, Chain
from metaphase.jobs.training.config import ENSEMBLE, Task, members, read_run_config, students, width_name
from metaphase.jobs.training.run import tested_network
from metaphase.labels.mining import SOFT_TARGET
from metaphase.networks.architectures import centre_crop
from metaphase.networks.checkpoints import choose_device
from metaphase.networks.training.data import open_set
from metaphase.networks.training.loop import train
from metaphase.networks.training.views import teacher_answers

LOOKED_AT = 2048
"""Patches about which the teachers' answers are described."""
DOUBT = 0.05
"""An answer this far from 0 and 1 says more than a label does."""


@dataclass(frozen=True)
class Lesson:
    """One way to teach a student."""

    learns: str
    """`labels`, `stored` answers about patches as they were cut, or `augmented`: about each image shown."""
    epochs: int
    all_patches: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.learns}, {self.epochs} epochs" + (", all patches" if self.all_patches else "")

    def task(self, gamma: float, seed: int, teachers: tuple[str, ...]) -> Task:
        """The student of one width and seed."""
        kind = f"{self.learns}-{self.epochs}" + ("-all" if self.all_patches else "")
        return Task(
            f"lesson-{kind}-{width_name(gamma)}-{seed}", gamma, seed=300 + seed, hard_set=0,
            epochs=self.epochs, target="label" if self.learns == "labels" else SOFT_TARGET,
            teachers=teachers if self.learns == "augmented" else (),
        )  # fmt: skip


def lessons(short: int, long: int) -> list[Lesson]:
    """What is compared, the most telling first."""
    return [
        Lesson("stored", short),
        Lesson("augmented", short),
        Lesson("augmented", long),
        Lesson("augmented", long, all_patches=True),
        Lesson("stored", long),
        Lesson("labels", short),
        Lesson("labels", long),
    ]


def taught(job: Experiments, lesson: Lesson, gamma: float, seed: int) -> dict[str, Any]:
    """Train one student and test it on the slides of the experiments."""
    chain = job.chain
    task = lesson.task(gamma, seed, tuple(task.name for task in members(chain.config)))
    stores, held_out = chain.hard_stores(), chain.validation_stores()
    teachers = tuple(str(chain.model(name)) for name in task.teachers)
    config = chain.config.training.of_task(task, tuple(stores), tuple(held_out), teachers)
    if lesson.all_patches:
        easy = [store for store in chain.easy_stores() if store not in stores]
        config = replace(config, train=(*stores, *easy), draws="")
    train(config, chain.workspace / NETWORKS / task.name, device=chain.device)
    return tested_network(chain, task.name, (task.name,), job.benches, job.search, silent)


def spoken(job: Experiments) -> dict[str, dict[str, float]]:
    """How the teachers answer about patches as they were cut, and about the images that a student sees."""
    chain, device = job.chain, choose_device(job.chain.device)
    names = [str(chain.model(task.name)) for task in members(chain.config)]
    ask = teacher_answers(names, device)
    training = chain.config.training
    augment = Augmentation(training.augment, training.augmentation)
    generator = torch.Generator(device).manual_seed(0)
    said = {}
    for kind, stores in (("learnt", chain.hard_stores()), ("validation", chain.validation_stores())):
        patches = open_set(stores)
        rows = np.sort(
            np.random.default_rng(0).choice(len(patches.index), min(LOOKED_AT, len(patches.index)), False)
        )
        pixels = torch.from_numpy(patches.take(rows)).to(device)
        labels = patches.labels[rows]
        for view, make in (("as cut", centre_crop), ("augmented", partial(augment, generator=generator))):
            parts = [ask(make(part), rows).cpu().numpy() for part in pixels.split(256)]
            said[f"{kind}, {view}"] = _described(np.concatenate(parts).astype(np.float64), labels == 1)
    return said


def _described(answers: Floats, labels: Any) -> dict[str, float]:
    return {
        "doubtful": float(np.mean((answers > DOUBT) & (answers < 1 - DOUBT))),
        "against the label": float(np.mean((answers > 0.5) != labels)),
        "mean distance from the label": float(np.abs(answers - labels).mean()),
    }


def table(results: dict[str, Any], measured: dict[str, Any], away: set[str]) -> str:
    """Every lesson against the ensemble that taught it, on the same slides."""
    ensemble = counts_of([measured[ENSEMBLE]], away)
    draws = BootstrapConfig()
    lines = ["| student | gamma | seeds | highest F1 | below the ensemble | F1 at validation threshold |",
             "|---|---|---|---|---|---|",
             f"| ensemble | | 1 | {ensemble.highest_f1(draws)} | | {ensemble.f1_at_validation(draws)} |",
             ]  # fmt: skip
    groups: dict[tuple[str, float], list[Any]] = {}
    for entry in results.values():
        groups.setdefault((entry["lesson"], entry["gamma"]), []).append(entry["values"])
    for (name, gamma), values in groups.items():
        counts = counts_of(values, away)
        lines.append(
            f"| {name} | {gamma:g} | {len(values)} | {counts.highest_f1(draws)} | "
            f"{_below(ensemble, counts, draws)} | {counts.f1_at_validation(draws)} |"
        )
    return "\n".join(lines) + "\n"


def _below(ensemble: BenchCounts, students: BenchCounts, draws: BootstrapConfig) -> Estimate:
    """How much lower the students' highest F1 is than the ensemble's, in the same draws of slides."""
    value = ensemble.highest_f1(draws).value - students.highest_f1(draws).value
    return estimate(value, ensemble.drawn_highest(draws) - students.drawn_highest(draws), draws)


def main() -> None:
    """Teach, test, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--gammas", type=float, nargs="+", default=[0.6, 1.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--long", type=int, help="epochs of the longer lessons; by default the students'")
    parser.add_argument("--at-once", type=int, default=1, help="students side by side, in processes")
    parser.add_argument("--device")
    options = parser.parse_args()
    config = read_run_config(options.config)
    job = Experiments(Chain(config, options.workspace.resolve(), options.device))
    short, usual = config.training.epochs, students(config)[0].epochs
    path = job.results / "distillation.json"
    content = json.loads(path.read_text()) if path.is_file() else {"students": {}, "teachers": spoken(job)}
    wanted = {
        lesson.task(gamma, seed, ()).name: (lesson, gamma, seed)
        for seed in range(options.seeds)
        for gamma in options.gammas
        for lesson in lessons(short, options.long or usual or 2 * short)
    }
    left = {name: how for name, how in wanted.items() if name not in content["students"]}
    spawn = get_context("spawn")
    with ProcessPoolExecutor(options.at_once, mp_context=spawn, initializer=end_with_parent) as pool:
        jobs = {pool.submit(taught, job, *how): name for name, how in left.items()}
        for done in as_completed(jobs):
            lesson, gamma, _ = left[jobs[done]]
            entry = {"lesson": lesson.name, "gamma": gamma, "values": done.result()}
            content["students"][jobs[done]] = entry
            write_text(path, json.dumps(content) + "\n")
            measured = job.measured_values()
            away = held_out_centres(measured, job.laboratories())
            told = {name: content["students"][name] for name in wanted if name in content["students"]}
            write_text(job.results / "distillation.md", table(told, measured, away))
            print(f"{jobs[done]} done", flush=True)
    print((job.results / "distillation.md").read_text())
    print(json.dumps(content["teachers"], indent=1))


if __name__ == "__main__":
    main()
