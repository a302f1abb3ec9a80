"""Which networks the experiments need, and which of them answer which question."""

from __future__ import annotations

from dataclasses import dataclass, replace

from metaphase.jobs.training.config import ENSEMBLE, RunConfig, Task, cnn3, members, students, width_name

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
        replace(task, name=f"label-{width_name(task.gamma)}", target="label", teachers=())
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
    """Whether a student differs from the members in more than what it learns from: width, or length."""
    return student.gamma != config.ensemble.gamma or student.epochs is not None


def _first(config: RunConfig) -> list[Task]:
    """The members of the ensemble that serve as the seeds of experiment 3."""
    return members(config)[: config.experiments.seeds]
