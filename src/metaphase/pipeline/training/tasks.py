"""Which networks a run trains, on which sets."""

from __future__ import annotations

from dataclasses import replace

from metaphase.hne import SOFT_TARGET
from metaphase.pipeline.training.config import RunConfig, Task

CNN3 = "cnn3"


def cnn3(config: RunConfig) -> Task:
    """The network of the easy set."""
    return Task(CNN3, config.ensemble.gamma)


def members(config: RunConfig) -> list[Task]:
    """CNN4-1 to CNN4-k, each with its own difficult set and seed."""
    return [
        Task(f"cnn4-{number + 1}", config.ensemble.gamma, seed=1 + number, hard_set=number)
        for number in range(config.ensemble.networks)
    ]


def students(config: RunConfig) -> list[Task]:
    """A CNN5 of each width; all learn from the first difficult set."""
    asked = config.students.answers == "augmented"
    teachers = tuple(task.name for task in members(config)) if asked else ()
    shared = Task("", 1.0, hard_set=0, target=SOFT_TARGET, teachers=teachers, epochs=config.students.epochs)
    return [
        replace(shared, name=f"cnn5-{width_name(gamma)}", gamma=gamma, seed=101 + number)
        for number, gamma in enumerate(config.students.gammas)
    ]


def width_name(gamma: float) -> str:
    """A width as part of a file name, where a dot would look like the beginning of an ending.

    >>> width_name(0.6), width_name(1.0)
    ('0p6', '1')
    """
    return f"{gamma:g}".replace(".", "p")
