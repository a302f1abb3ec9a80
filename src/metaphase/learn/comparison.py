"""What the experiments compare: networks, the paper's table, contributions of the method's parts, curves."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metaphase.base.errors import ResultWarning, ResultWarnings
from metaphase.evaluation.metrics import BootstrapConfig, Estimate, estimate
from metaphase.evaluation.operating_points import counts_of
from metaphase.learn.config import ENSEMBLE, RunConfig, Task, cnn3, members, students, width_name
from metaphase.reports.pages import DASH, TextTable
from metaphase.reports.plots import Line, Panels

OTHER_RUN = "~"
"""Stands between a network's name and the number of its run, where runs of several seeds are shown."""
PAPER_F1 = {1: 0.018, 2: 0.412, 3: 0.613, 4: 0.660, 5: 0.623, 6: 0.628, 7: 0.636}
"""Highest F1 on TUPAC-aux-train, as the paper reports it."""
NO_DRAWS = BootstrapConfig(samples=0)
Tested = Mapping[str, Sequence[Any]]
"""Measured values of networks, of one seed or several, by the name of their line or row."""

# ---- which networks the experiments need, and which of them answer which question ----


@dataclass(frozen=True)
class Experiment:
    """One row of the paper's table."""

    number: int
    augment: str
    ensemble: str
    distilled: str
    networks: tuple[str, ...]
    """Tested answers; several are seeds of the same experiment."""

    @property
    def name(self) -> str:
        """Its number, and what is special about it."""
        return f"{self.number}: {self.ensemble or self.distilled or self.augment}"


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
        replace(member, name=f"exp{number}-{seed}", augment=recipe)
        for seed, member in enumerate(members(config)[: config.experiments.seeds], start=1)
        for number, recipe in enumerate(config.experiments.recipes, start=1)
    ]


def easy_networks(config: RunConfig) -> list[Task]:
    """Further seeds of CNN3, for what mining contributes; the first is the CNN3 that mined."""
    first = cnn3(config)
    return [
        replace(first, name=f"{first.name}-{seed + 1}", seed=200 + seed)
        for seed in range(1, config.experiments.seeds)
    ]


def label_students(config: RunConfig) -> list[Task]:
    """Students that learn from labels, where no CNN4 is of their width."""
    return [
        replace(task, name=f"label-{width_name(task.gamma)}", target="label")
        for task in students(config)
        if task.gamma != config.ensemble.gamma
    ]


def experiments(config: RunConfig) -> list[Experiment]:
    """The rows of the paper's table; students beyond the three of the paper count on."""
    recipe, first = config.training.augment, members(config)[: config.experiments.seeds]
    rows = [
        Experiment(number, letters, "", "", tuple(f"exp{number}-{seed}" for seed in range(1, len(first) + 1)))
        for number, letters in enumerate(config.experiments.recipes, start=1)
    ]
    rows.append(Experiment(3, recipe, "", "", _names(first)))
    rows.append(Experiment(4, recipe, f"k = {config.ensemble.networks}", "", (ENSEMBLE,)))
    for number, task in enumerate(students(config), start=5):
        rows.append(Experiment(number, recipe, "", f"gamma {task.gamma:g}", (task.name,)))
    return rows


def questions(config: RunConfig) -> list[Question]:
    """What each part of the method contributes."""
    rows = {row.number: row.networks for row in experiments(config)}
    easy, every = _names([cnn3(config), *easy_networks(config)]), _names(members(config))
    basic, coloured = config.experiments.recipes
    plain = {task.gamma: (task.name,) for task in label_students(config)}
    return [
        Question("stain augmentation", basic, coloured, rows[1], rows[2]),
        Question("all augmentation", basic, config.training.augment, rows[1], rows[3]),
        Question("mining", "easy set (CNN3)", "difficult set (CNN4)", easy, rows[3]),
        Question("bagging", "one CNN4, mean of all", f"ensemble of {len(every)}", every, (ENSEMBLE,)),
        *(
            Question(
                f"distillation, gamma {task.gamma:g}",
                "labels",
                "soft targets",
                plain.get(task.gamma, every),
                (task.name,),
            )
            for task in students(config)
        ),
    ]


def _names(tasks: Iterable[Task]) -> tuple[str, ...]:
    return tuple(task.name for task in tasks)


# ---- what was measured so far ----


@dataclass(frozen=True)
class Row:
    """One experiment: F1 on the laboratories that no network was trained on."""

    experiment: Experiment
    networks: Sequence[Any]
    """Measured values of the networks (seeds) tested so far."""
    highest: Estimate
    """Mean over seeds of the highest F1 of any threshold: the paper's figure, optimistic."""
    at_validation: Estimate
    """Mean over seeds of F1 at the threshold chosen on validation slides."""
    each: Sequence[float]
    """F1 of each seed at that threshold."""


@dataclass(frozen=True)
class Contribution:
    """F1 without and with one part of the method, on the same slides."""

    question: Question
    f1_without: float
    f1_with: float
    difference: Estimate
    highest_difference: float
    """The same for the highest F1 of any threshold."""


@dataclass(frozen=True)
class Summary:
    """All that the page and the tables say."""

    rows: tuple[Row, ...]
    contributions: tuple[Contribution, ...]
    home: set[str]
    """Laboratories of test slides that gave training slides, too."""
    held_out: set[str]
    """The others; all, where there are no others."""
    where: str
    """What F1 was measured on."""
    warnings: ResultWarnings

    @property
    def tested(self) -> Tested:
        """The measured values by the names of the experiments."""
        return {row.experiment.name: row.networks for row in self.rows}


def summarise(config: RunConfig, measured: Mapping[str, Any], trained_on: Collection[str]) -> Summary:
    """Tables of the networks that are there; experiments without any are left out.

    `trained_on` are the laboratories of the training slides.
    """
    bootstrap = BootstrapConfig(samples=config.test.bootstrap)
    home, held_out = by_training(measured.values(), trained_on)
    rows, contributions = [], []
    for experiment in experiments(config):
        if values := networks_of(experiment.networks, measured):
            counts = counts_of(values, held_out)
            f1 = counts.highest_f1(bootstrap), counts.f1_at_validation(bootstrap)
            rows.append(Row(experiment, values, *f1, counts.each_f1()))
    for question in questions(config):
        without = networks_of(question.networks_without, measured)
        with_it = networks_of(question.networks_with, measured)
        if without and with_it:
            contributions.append(_contribution(question, without, with_it, held_out, bootstrap))
    truths = counts_of([next(iter(measured.values()))], held_out).truths if measured else np.empty(0)
    where = f"{len(truths)} slides with {int(truths.sum()):,} mitoses of {', '.join(sorted(held_out))}"
    return Summary(tuple(rows), tuple(contributions), home, held_out, where, few_patches(config))


def by_training(networks: Iterable[Any], trained_on: Collection[str]) -> tuple[set[str], set[str]]:
    """Laboratories of test slides that trained, too, and the others; all where there are no others."""
    every = {name for values in networks for name in values["slides"]["centre"]}
    home = every & set(trained_on)
    return home, every - home or every


def _contribution(
    question: Question,
    networks_without: list[Any],
    networks_with: list[Any],
    held_out: set[str],
    bootstrap: BootstrapConfig,
) -> Contribution:
    without, with_it = counts_of(networks_without, held_out), counts_of(networks_with, held_out)
    before, after = (float(np.mean(counts.each_f1())) for counts in (without, with_it))
    lower, higher = (counts.highest_f1(NO_DRAWS).value for counts in (without, with_it))
    difference = Estimate(after - before)
    if bootstrap.samples:
        drawn = with_it.drawn(bootstrap) - without.drawn(bootstrap)
        difference = estimate(after - before, drawn, bootstrap)
    return Contribution(question, before, after, difference, higher - lower)


def networks_of(names: Sequence[str], measured: Mapping[str, Any]) -> list[Any]:
    """Measured values of the named networks, and of their namesakes of other runs."""
    return [
        values for name in names for key, values in measured.items() if key.partition(OTHER_RUN)[0] == name
    ]


ENOUGH_PATCHES = 100_000
"""Networks that saw fewer have not learnt enough for a comparison; the paper's saw 8.4 million."""


def few_patches(config: RunConfig) -> ResultWarnings:
    """What stands beside the tables where the networks hardly learnt."""
    learning = config.training
    seen = learning.epochs * (learning.samples_per_epoch or config.mining.sets.hard_negatives)
    if seen >= ENOUGH_PATCHES:
        return ()
    text = f"each network saw {seen:,} patches, the paper's 8.4 million: these figures show that all parts "
    text += "run, no more, and a difference may have the wrong sign"
    return (ResultWarning("few-patches", text, "compare with configs/experiments.toml on a GPU"),)


# ---- tables and curves ----


def markdown(summary: Summary) -> str:
    """The tables for a page of documentation."""
    warnings = [f"**{str(warning).rstrip('.')}.**" for warning in summary.warnings]
    head = f"F1 on {summary.where}; intervals of 95 % by drawing slides."
    return "\n\n".join([*warnings, head, *(table.markdown for table in tables_of(summary))]) + "\n"


def tables_of(summary: Summary) -> list[TextTable]:
    """All tables of what was measured so far."""
    tables = [main_table(summary)]
    tables += [laboratory_table(summary.tested, summary.home)] if summary.rows else []
    return tables + ([contribution_table(summary)] if summary.contributions else [])


def main_table(summary: Summary) -> TextTable:
    """Table III of the paper, as rows."""
    headings = ["experiment", "augment", "ensemble", "distilled", "parameters", "seeds", "highest F1"]
    headings += ["F1 at validation threshold", "seeds from to", "trained", "paper, highest F1"]
    rows = []
    for row in summary.rows:
        experiment, parameters = row.experiment, int(row.networks[0]["parameters"])
        rows.append(
            [
                str(experiment.number),
                experiment.augment,
                experiment.ensemble or DASH,
                experiment.distilled or DASH,
                f"{parameters / 1e6:.1f} M" if parameters >= 1e5 else f"{parameters:,}",
                f"{len(row.each)} of {max(len(row.each), len(experiment.networks))}",
                str(row.highest),
                str(row.at_validation),
                f"{min(row.each):.3f} to {max(row.each):.3f}" if len(row.each) > 1 else DASH,
                f1_of(row.networks, summary.home),
                f1_text(PAPER_F1.get(experiment.number, math.nan)),
            ]
        )
    warnings = "".join(f" Warning: {str(warning).rstrip('.')}." for warning in summary.warnings)
    return TextTable("", headings, rows, f"F1 on {summary.where}; 95 % intervals draw slides.{warnings}")


def brief_table(summary: Summary) -> TextTable:
    """The paper's table in five columns, for a terminal."""
    table = main_table(summary)
    rows = [[" ".join(cell for cell in row[:4] if cell != DASH), *row[4:8]] for row in table.rows]
    return TextTable("", ["experiment", *table.headings[4:8]], rows)


def laboratory_table(tested: Tested, home: set[str]) -> TextTable:
    """F1 of networks by laboratory of the test slides, those of `home` marked as trained on."""
    first, *_ = tested.values()
    centres = sorted(set(first[0]["slides"]["centre"]))
    titles = [f"{name} (trained on)" if name in home else name for name in centres]
    rows = [[name, *(f1_of(values, {centre}) for centre in centres)] for name, values in tested.items()]
    note = "Mean over seeds, by laboratory of the test slides."
    return TextTable("", ["F1 at validation threshold", *titles], rows, note)


def contribution_table(summary: Summary) -> TextTable:
    """What each part contributes."""
    headings = ["part", "without", "with", "F1 without", "F1 with", "difference", "difference of highest F1"]
    rows = []
    for part in summary.contributions:
        question, difference = part.question, part.difference
        interval = f" [{difference.low:+.3f}, {difference.high:+.3f}]" if np.isfinite(difference.low) else ""
        compared = [question.part, question.without, question.with_it]
        f1 = [f1_text(part.f1_without), f1_text(part.f1_with), f"{difference.value:+.3f}{interval}"]
        rows.append([*compared, *f1, f"{part.highest_difference:+.3f}"])
    note = "What each part contributes, at the thresholds of the validation slides, on the same slides."
    return TextTable("", headings, rows, note)


def f1_panels(tested: Tested, home: set[str], held_out: set[str]) -> Panels:
    """F1 against the threshold, on the laboratories held out and on the training laboratory."""
    return {
        title: [
            Line(
                name,
                counts_of(list(values), centres).curves().tolist(),
                [each["threshold"] for each in values],
            )
            for name, values in tested.items()
        ]
        for title, centres in (("Laboratories held out", held_out), ("Training laboratory", home))
        if centres and tested
    }


def f1_of(networks: Sequence[Any], centres: set[str]) -> str:
    """Mean F1 of networks at their validation thresholds, on the test slides of some laboratories."""
    return f1_text(float(np.mean(counts_of(list(networks), centres).each_f1()))) if centres else DASH


def f1_text(value: float) -> str:
    """F1 in a table."""
    return DASH if np.isnan(value) else f"{value:.3f}"
