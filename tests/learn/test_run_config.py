"""Configurations: the paper's numbers, and refusals that name the setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metaphase.base.errors import UsageError
from metaphase.base.settings import config_files
from metaphase.lab.paper import read_paper
from metaphase.learn.config import StudentSection, read_run_config, run_config
from metaphase.networks.detector import PAPER_PEAKS

CONFIGS = config_files()["paper"].parent
TABLE = {"cohort": {"manifest": "m.csv"}, "reference": {"table": "r.csv"}}


def config_with(**tables: Any) -> Any:
    return run_config({**TABLE, **tables}, Path("/base"))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_configurations_of_the_project_are_valid(path: Path) -> None:
    if "[paper." in path.read_text():
        read_paper(path, Path("out"))
    else:
        read_run_config(path)


def test_the_papers_numbers_are_the_defaults() -> None:
    paper, plain = read_run_config(CONFIGS / "paper.toml"), config_with()
    for name in ("training", "ensemble", "experiments"):
        assert getattr(paper, name) == getattr(plain, name)
    assert paper.mining.candidates == plain.mining.candidates
    assert paper.mining.sets == plain.mining.sets
    assert (paper.mining.sets.easy_negatives, paper.mining.sets.hard_negatives) == (100_000, 400_000)
    assert paper.mining.standardise == "hsd"
    assert (paper.mining.labels.rule, plain.mining.labels.rule) == ("stated", "nearest")
    assert (plain.test.peaks.method, plain.test.floor, plain.test.threshold) == ("maxima", 0.05, "steady")
    assert (paper.test.peaks, paper.test.threshold) == (PAPER_PEAKS, "highest")
    assert (paper.students.gammas, plain.students.deliver) == (plain.students.gammas, "last")
    assert (paper.cohort.random_split, plain.cohort.random_split) == ((11, 3, 4), None)
    assert (paper.reference.all_registered, plain.reference.all_registered) == (True, False)
    assert paper.ensemble.networks == paper.mining.sets.hard_sets == 10


@pytest.mark.parametrize(
    ("f1", "chosen"),
    [
        ({1.0: 0.634, 0.8: 0.646, 0.6: 0.629}, 0.6),  # the paper's
        ({1.0: 0.634, 0.8: 0.646, 0.6: 0.620}, 0.8),
        ({0.8: 0.646, 0.6: 0.640, 1.0: 0.680}, 1.0),
        ({}, 0.6),  # nothing is known yet
    ],
)
def test_the_narrowest_student_that_loses_little_is_delivered(f1: dict[float, float], chosen: float) -> None:
    assert StudentSection(deliver="narrowest").delivered(f1) == chosen
    assert StudentSection(gammas=(0.6, 1.0)).delivered(f1) == 1.0, "the last as a rule"


def test_another_seed_draws_sets_and_networks_anew() -> None:
    once = config_with()
    again = once.with_seed(2)
    assert (again.training.seed, again.mining.sets.seed) == (2000, 2000)
    assert again.with_seed(0) == again
    assert (again.cohort, again.ensemble, again.test) == (once.cohort, once.ensemble, once.test)


def test_paths_are_relative_to_the_file() -> None:
    config = config_with()
    assert config.cohort.manifest == str(Path("/base/m.csv"))
    assert config.reference.table == str(Path("/base/r.csv"))


def test_lists_and_whole_numbers_become_what_fields_declare() -> None:
    config = config_with(
        students={"gammas": [1, 0.5]}, training={"augmentation": {"scale": [0.9, 1.1]}, "learning_rate": 1}
    )
    assert config.students.gammas == (1, 0.5)
    assert config.training.augmentation.scale == (0.9, 1.1)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"trainin": {}}, "no setting trainin"),
        ({"training": {"epoch": 3, "bach": 1}}, r"\[training\] has no setting bach, epoch"),
        ({"training": {"epochs": "three"}}, "training.epochs is 'three'"),
        ({"training": {"epochs": True}}, "training.epochs is True"),
        ({"training": {"batch": 0}}, "training.batch is 0. Give a number above 0"),
        ({"training": {"augment": "RX"}}, "unknown letters X"),
        ({"training": {"augmentation": {"stain_matrix": 1}}}, "no setting stain_matrix"),
        ({"training": 3}, "training is 3"),
        ({"sets": {"hard_sets": 3}}, "no setting hard_sets"),
        ({"ensemble": {"networks": 0}}, "ensemble.networks is 0"),
        ({"ensemble": {"gamma": 9.0}}, "ensemble.gamma is 9.0. Give a number from 0.03125 to 4"),
        ({"students": {"gammas": []}}, "students.gammas"),
        ({"students": {"gammas": [0.5, 0.5]}}, "students.gammas"),
        ({"students": {"answers": "augmented"}}, r"\[students\] has no setting answers"),
        ({"test": {"floor": 1.5}}, "1.5"),
        ({"training": {"normalisation": "group"}}, "training.normalisation is 'group'. Give 'none'"),
        ({"training": {"family": "lite"}}, r"\[training\] has no setting family"),
        ({"training": {"stain_mix": 1.5}}, "training.stain_mix is 1.5. Give a number from 0 to 1"),
        ({"training": {"seams": 0.5}}, r"\[training\] has no setting seams"),
        ({"training": {"stain_mix": 0.5, "augment": ""}}, "needs augmentation"),
        ({"sets": {"validation_positives": 2.0}}, "validation_positives is 2.0"),
        ({"students": {"epochs": 3}}, r"\[students\] has no setting epochs"),
        ({"experiments": {"recipes": ["R"]}}, r"experiments.recipes\[1\] is missing"),
        ({"dense": {"gammas": [1, "wide"]}}, r"dense.gammas\[1\] is 'wide'. Give a number"),
        ({"simulate": {"cases": 3}}, "a manifest and simulated slides"),
        ({"cohort": {}}, "names no slides"),
        ({"reference": {"source": "guess", "table": "x.csv"}}, "reference.source is 'guess'"),
        ({"reference": {"source": "simulated"}}, "the slides are not"),
        ({"reference": {"source": "phh3"}}, "Name a table"),
        ({"cohort": {"manifest": "m.csv", "random_split": [1, 0, 1]}}, r"random_split\[1\] is 0"),
        ({"test": {"threshold": "best"}}, "test.threshold is 'best'. Give 'steady' or 'highest'"),
        ({"training": {"method": "dense"}, "test": {"method": "components"}}, "its pair knows only maxima"),
        ({"training": {"method": "dense"}, "cohort": {"manifest": "m", "standardise": "hsd"}}, "as they are"),
        ({"candidates": {"recall": 1.0}}, "candidates.recall is 1.0"),
    ],
)
def test_what_makes_no_sense_is_named(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config_with(**tables)
