"""Which networks the experiments need and which questions they answer; training and testing all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from metaphase.base.errors import UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import read_json
from metaphase.base.provenance import Ingredients
from metaphase.evaluation.operating_points import Bench, bench_of
from metaphase.images.inspection import slide_quality
from metaphase.jobs.cohort import cohort_slide
from metaphase.jobs.searching import SplitSearch
from metaphase.jobs.stages import Facts, Report, Stage
from metaphase.jobs.training.chain import (
    Chain,
    RunSource,
    data_stages,
    network_stage,
    soft_target_stage,
    source_of,
)
from metaphase.jobs.training.config import (
    CNN3,
    ENSEMBLE,
    RunConfig,
    Task,
    cnn3,
    members,
    students,
    width_name,
)
from metaphase.jobs.training.run import DETECTIONS, NetworksTested, tested_network
from metaphase.labels.mining.sets import HARD

# ---- which networks the experiments need, and which of them answer which question ----

OTHER_RUN = "~"
"""Stands between a network's name and the number of its run, where runs of several seeds are shown."""
PAPER_F1 = {1: 0.018, 2: 0.412, 3: 0.613, 4: 0.660, 5: 0.623, 6: 0.628, 7: 0.636}
"""Highest F1 on TUPAC-aux-train, as the paper reports it."""


@dataclass(frozen=True)
class Experiment:
    """One row of the paper's table."""

    number: int
    augment: str
    ensemble: str
    distilled: str
    networks: tuple[str, ...]
    """Tested answers; several are seeds of the same experiment."""


@dataclass(frozen=True)
class Question:
    """Two sets of networks that differ in one thing."""

    part: str
    without: str
    with_it: str
    networks_without: tuple[str, ...]
    networks_with: tuple[str, ...]


def baselines(config: RunConfig) -> list[Task]:
    """Single networks of experiments 1 and 2, seed by seed; each uses the set of the CNN4 of that seed."""
    return [
        replace(member, name=f"exp{number}-{seed + 1}", augment=recipe)
        for seed, member in enumerate(_first(config))
        for number, recipe in enumerate(config.experiments.recipes, start=1)
    ]


def easy_networks(config: RunConfig) -> list[Task]:
    """Further seeds of CNN3, for what mining contributes; the first is the CNN3 that mined."""
    first = cnn3(config)
    return [
        replace(first, name=f"{first.name}-{seed + 1}", seed=200 + seed)
        for seed in range(1, config.experiments.seeds)
    ]


def unsoftened(config: RunConfig) -> list[Task]:
    """Students that learn from labels, where no CNN4 is of their width and length."""
    return [
        replace(task, name=f"label-{width_name(task.gamma)}", target="label")
        for task in students(config)
        if _has_own_baseline(task, config)
    ]


def experiments(config: RunConfig) -> list[Experiment]:
    """The rows of the paper's table; students beyond the three of the paper count on."""
    seeds, recipe = config.experiments.seeds, config.training.augment
    single = [
        Experiment(number, letters, "", "", tuple(f"exp{number}-{seed + 1}" for seed in range(seeds)))
        for number, letters in enumerate(config.experiments.recipes, start=1)
    ]
    first = tuple(task.name for task in _first(config))
    rows = [*single, Experiment(3, recipe, "", "", first)]
    rows.append(Experiment(4, recipe, f"k = {config.ensemble.networks}", "", (ENSEMBLE,)))
    rows += [
        Experiment(number, recipe, "", f"gamma {task.gamma:g}", (task.name,))
        for number, task in enumerate(students(config), start=5)
    ]
    return rows


def questions(config: RunConfig) -> list[Question]:
    """What each part of the method contributes."""
    rows = {row.number: row.networks for row in experiments(config)}
    easy = (cnn3(config).name, *(task.name for task in easy_networks(config)))
    every = tuple(task.name for task in members(config))
    basic, coloured = config.experiments.recipes
    found = [
        Question("stain augmentation", basic, coloured, rows[1], rows[2]),
        Question("all augmentation", basic, config.training.augment, rows[1], rows[3]),
        Question("mining", "easy set (CNN3)", "difficult set (CNN4)", easy, rows[3]),
        Question("bagging", "one CNN4, mean of all", f"ensemble of {len(every)}", every, (ENSEMBLE,)),
    ]
    for task in students(config):
        plain = (f"label-{width_name(task.gamma)}",) if _has_own_baseline(task, config) else every
        found.append(
            Question(f"distillation, gamma {task.gamma:g}", "labels", "soft targets", plain, (task.name,))
        )
    return found


def _has_own_baseline(student: Task, config: RunConfig) -> bool:
    """Whether a student differs from the members in width, too, not only in what it learns from."""
    return student.gamma != config.ensemble.gamma


def _first(config: RunConfig) -> list[Task]:
    """The members of the ensemble that serve as the seeds of experiment 3."""
    return members(config)[: config.experiments.seeds]


RESULTS = "results"
LABORATORIES = "laboratories.json"
COLOUR_SLIDES = 4
"""Slides of a laboratory and split whose colour is measured."""
Density = tuple[float, float, float]


@dataclass(frozen=True)
class LaboratoriesCompared(Ingredients, stage="laboratories"):
    """The colours of the laboratories that train and test."""

    source: RunSource


@dataclass(frozen=True)
class Experiments:
    """The networks of a chain's configuration, tested one by one."""

    chain: Chain

    def __post_init__(self) -> None:
        config = self.chain.config
        if config.experiments.seeds > config.ensemble.networks:
            raise UsageError(
                f"{config.experiments.seeds} seeds and an ensemble of {config.ensemble.networks}",
                next_step="experiment 3 takes members of the ensemble: give at least as many",
            )

    @property
    def results(self) -> Path:
        """Folder of all that is worth keeping; a few MB."""
        return self.chain.workspace / RESULTS

    @cached_property
    def search(self) -> SplitSearch:
        """What searches the slides of validation and test; nothing but tissue masks is held in memory."""
        chain = self.chain
        return SplitSearch(chain.workspace / DETECTIONS, chain.config.test.peaks, chain.device)

    @cached_property
    def benches(self) -> dict[str, Bench]:
        """What is to be found on them."""
        chain = self.chain
        return {
            split: bench_of(chain.cohort, chain.reference, split, chain.config.test.matching)
            for split in ("validation", "test")
        }

    def stages(self) -> list[Stage]:
        """All stages; what the table needs most comes first, so that a stop leaves a useful one."""
        chain, config = self.chain, self.chain.config
        data = data_stages(chain)
        names = tuple(task.name for task in members(config))
        compared = LaboratoriesCompared(source_of(config, ("train", "test")))
        laboratories = Stage(
            "laboratories", "how far the test laboratories are", (), (f"{RESULTS}/{LABORATORIES}",),
            self._compared, compared, after=("slides",), sealed=True,
        )  # fmt: skip
        stages = [*data, laboratories, self._test_stage(CNN3)]
        for member in members(config):  # tasks that use the same difficult set one after the other
            others = [task for task in baselines(config) if task.hard_set == member.hard_set]
            for task in (member, *others):
                stages += self._trained_and_tested(task, HARD)
        stages.append(self._test_stage(ENSEMBLE, names))
        stages.append(soft_target_stage(chain, names))
        for task in students(config):
            stages += self._trained_and_tested(task, "soft targets")
        for task in unsoftened(config):
            stages += self._trained_and_tested(task, HARD)
        for task in easy_networks(config):
            stages += self._trained_and_tested(task, "easy set")
        return stages

    def measured_values(self, others: Sequence[Path] = ()) -> dict[str, Any]:
        """What every network tested so far came to, by name; `others` are workspaces of other seeds."""
        values = _measured_in(self.chain.workspace)
        for number, workspace in enumerate(others, start=1):
            found = _measured_in(workspace)
            if not found:
                raise UsageError(
                    "no network was tested there",
                    path=workspace,
                    next_step="name workspaces of `metaphase experiments` with the same configuration",
                )
            values |= {f"{name}{OTHER_RUN}{number}": each for name, each in found.items()}
        return values

    def laboratories(self) -> dict[str, Any]:
        """Colour of each laboratory's slides, where measured."""
        path = self.results / LABORATORIES
        return _read(path) if path.is_file() else {}

    def _trained_and_tested(self, task: Task, after: str) -> list[Stage]:
        kind = task.augment or self.chain.config.training.augment
        about = f"gamma {task.gamma:g}, {kind}, learns {task.target}"
        return [network_stage(self.chain, task, (after,), about), self._test_stage(task.name)]

    def _test_stage(self, name: str, networks: tuple[str, ...] = ()) -> Stage:
        """Search the slides with a network, or with several whose mean is taken."""
        names = networks or (name,)
        work = partial(self._tested, name, names)
        writes = (f"{RESULTS}/networks/{name}.json",)
        made_from = NetworksTested.of(self.chain.config)
        return Stage(f"test {name}", "F1 on whole slides", names, writes, work, made_from, sealed=True)

    def _tested(self, name: str, names: tuple[str, ...], report: Report) -> Facts:
        values = tested_network(self.chain, name, names, self.benches, self.search, report)
        write_text(self.results / "networks" / f"{name}.json", json.dumps(values) + "\n")
        return {
            "threshold": round(values["threshold"], 3),
            "validation F1": round(values["validation_f1"] or 0, 3),
        }

    def _compared(self, report: Report) -> Facts:
        """Look at a few slides of each laboratory, and compare their colours with the training slides."""
        cohort = self.chain.cohort
        seen_or_tested = cohort[cohort["split"].isin(("train", "test"))]
        shown = seen_or_tested.groupby(["laboratory", "split"]).head(COLOUR_SLIDES)
        seen: dict[str, list[Density]] = {}
        for number, row in enumerate(shown.to_dict("records")):
            report("colour of laboratories", number, len(shown))
            item = cohort_slide(row)
            with item.slide.open() as slide:
                quality = slide_quality(slide, item.tissue.of(slide), fields=8)
            if quality.fields:
                seen.setdefault(str(row["laboratory"]), []).append(quality.optical_density)
        table = colour_table(seen, set(cohort.loc[cohort["split"] == "train", "laboratory"]))
        write_text(self.results / LABORATORIES, json.dumps(table, indent=1) + "\n")
        return {"laboratories": len(table)}


def _measured_in(workspace: Path) -> dict[str, Any]:
    paths = sorted((workspace / RESULTS).glob("networks/*.json"))
    return {path.stem: _read(path) for path in paths}


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, "holds no measured values", next_step="remove it, and run the experiments again")


def colour_table(seen: Mapping[str, Sequence[Density]], homes: set[str]) -> dict[str, Any]:
    """Mean optical density of each laboratory, and how far it is from the training slides at most."""
    means = {centre: np.mean(values, axis=0) for centre, values in seen.items()}
    home = np.mean([means[centre] for centre in homes if centre in means], axis=0)
    return {
        centre: {
            "trained_on": centre in homes,
            "optical_density": mean.round(4).tolist(),
            "furthest_ratio": round(float(np.exp(np.abs(np.log(mean / home)).max())), 3),
        }
        for centre, mean in sorted(means.items())
    }
