"""Experiments 1 to 7 of the paper, and what each part of the method contributes: networks, tests, tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from metaphase.analysis.cohort import cohort_slide
from metaphase.analysis.search import SlideSearched
from metaphase.base.errors import ResultWarning, ResultWarnings, UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import read_json
from metaphase.base.stages import Facts, Report, Stage, States, Watch, run_stages, silent, stage, stage_states
from metaphase.evaluation.metrics import BootstrapConfig, Estimate, estimate
from metaphase.evaluation.operating_points import BenchCounts, counts_of
from metaphase.images.inspection import slide_quality
from metaphase.learn.chain import (
    Chain,
    RunSource,
    data_stages,
    network_stage,
    soft_target_stage,
    source_of,
)
from metaphase.learn.config import (
    CNN3,
    ENSEMBLE,
    EvaluationSection,
    RunConfig,
    Task,
    cnn3,
    members,
    students,
    width_name,
)
from metaphase.learn.mining.sets import HARD
from metaphase.learn.run import tested_network
from metaphase.reports.pages import DASH, TextTable
from metaphase.reports.plots import Line, Panels
from metaphase.reports.run import write_experiments_page

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
    """Students that learn from labels, where no CNN4 is of their width."""
    return [
        replace(task, name=f"label-{width_name(task.gamma)}", target="label")
        for task in students(config)
        if task.gamma != config.ensemble.gamma
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
    plain = {task.gamma: (task.name,) for task in unsoftened(config)}
    return found + [
        Question(
            f"distillation, gamma {task.gamma:g}",
            "labels",
            "soft targets",
            plain.get(task.gamma, every),
            (task.name,),
        )
        for task in students(config)
    ]


def _first(config: RunConfig) -> list[Task]:
    """The members of the ensemble that serve as the seeds of experiment 3."""
    return members(config)[: config.experiments.seeds]


RESULTS = "results"
LABORATORIES = "laboratories.json"
COLOUR_SLIDES = 4
"""Slides of a laboratory and split whose colour is measured."""
Density = tuple[float, float, float]


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

    def stages(self) -> list[Stage]:
        """All stages; what the table needs most comes first, so that a stop leaves a useful one."""
        chain, config = self.chain, self.chain.config
        data = data_stages(chain)
        names = tuple(task.name for task in members(config))
        laboratories = self.compare_laboratories(source=source_of(config, ("train", "test")))
        stages = [*data, laboratories, self._test_stage(CNN3)]
        for member in members(config):  # tasks that use the same difficult set one after the other
            others = [task for task in baselines(config) if task.hard_set == member.hard_set]
            for task in (member, *others):
                stages += self._trained_and_tested(task, HARD)
        stages.append(self._test_stage(ENSEMBLE, names))
        stages.append(soft_target_stage(chain))
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
        config, networks = self.chain.config, networks or (name,)
        source = source_of(config, ("validation", "test"))
        made = test_network((self, name, networks), test=config.test, source=source)
        writes = (f"{RESULTS}/networks/{name}.json",)
        return replace(made, name=f"test {name}", reads=networks, writes=writes)

    @stage(
        "laboratories",
        "how far the test laboratories are",
        writes=(f"{RESULTS}/{LABORATORIES}",),
        after=("slides",),
        sealed=True,
    )
    def compare_laboratories(self, report: Report, *, source: RunSource) -> Facts:
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


@stage("test", "F1 on whole slides", uses=(SlideSearched,), sealed=True)
def test_network(
    tested: tuple[Experiments, str, tuple[str, ...]],
    report: Report,
    *,
    test: EvaluationSection,
    source: RunSource,
) -> Facts:
    """Search the slides with a network, or with several whose mean is taken, and compare with the reference
    standard. `tested` is of which experiments, what to call it, and the networks.
    """
    of, name, networks = tested
    values = tested_network(of.chain, name, networks, report)
    write_text(of.results / "networks" / f"{name}.json", json.dumps(values) + "\n")
    return {
        "threshold": round(values["threshold"], 3),
        "validation F1": round(values["validation_f1"] or 0, 3),
    }


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


# ---- the paper's table and the table of contributions, from what was measured so far ----


@dataclass(frozen=True)
class Row:
    """One experiment: F1 on the laboratories that no network was trained on, and on the others."""

    experiment: Experiment
    done: int
    """Networks (seeds) tested so far."""
    parameters: int
    highest: Estimate
    """Mean over seeds of the highest F1 of any threshold: the paper's figure, optimistic."""
    at_validation: Estimate
    """Mean over seeds of F1 at the threshold chosen on validation slides."""
    each: tuple[float, ...]
    """F1 of each seed at that threshold."""
    home: float
    """F1 on test slides of the training laboratory, at that threshold."""
    by_centre: dict[str, float]


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
    laboratories: Mapping[str, Any]
    held_out: tuple[str, ...]
    slides: int
    mitoses: int
    warnings: ResultWarnings = ()

    @property
    def where(self) -> str:
        """What F1 was measured on."""
        return f"{self.slides} slides with {self.mitoses:,} mitoses of {', '.join(self.held_out)}"


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


def summarise(config: RunConfig, measured: Mapping[str, Any], laboratories: Mapping[str, Any]) -> Summary:
    """Tables of the networks that are there; experiments without any are left out."""
    bootstrap = BootstrapConfig(samples=config.test.bootstrap)
    away = held_out_centres(measured, laboratories)
    rows = [
        _row(one, values, away, bootstrap)
        for one in experiments(config)
        if (values := networks_of(one.networks, measured))
    ]
    parts = [
        _contribution(one, counts_of(without, away), counts_of(with_it, away), bootstrap)
        for one in questions(config)
        if (without := networks_of(one.networks_without, measured))
        and (with_it := networks_of(one.networks_with, measured))
    ]
    some = counts_of([next(iter(measured.values()))], away) if measured else None
    return Summary(
        tuple(rows),
        tuple(parts),
        laboratories,
        tuple(sorted(away)),
        0 if some is None else len(some.truths),
        0 if some is None else int(some.truths.sum()),
        few_patches(config),
    )


def held_out_centres(measured: Mapping[str, Any], laboratories: Mapping[str, Any]) -> set[str]:
    """Laboratories of test slides that gave no training slide; all, where there are no others."""
    centres = {centre for values in measured.values() for centre in values["slides"]["centre"]}
    away = {name for name in centres if not laboratories.get(name, {}).get("trained_on", False)}
    return away or centres


def _row(experiment: Experiment, values: list[Any], away: set[str], bootstrap: BootstrapConfig) -> Row:
    scores, centres = counts_of(values, away), sorted(set(values[0]["slides"]["centre"]))
    home = set(centres) - away
    return Row(
        experiment,
        len(values),
        int(values[0]["parameters"]),
        scores.highest_f1(bootstrap),
        scores.f1_at_validation(bootstrap),
        tuple(scores.each_f1()),
        _mean_f1(counts_of(values, home)) if home else float("nan"),
        {centre: _mean_f1(counts_of(values, {centre})) for centre in centres},
    )


def _contribution(
    question: Question, without: BenchCounts, with_it: BenchCounts, bootstrap: BootstrapConfig
) -> Contribution:
    none = BootstrapConfig(samples=0)
    before, after = (scores.f1_at_validation(none).value for scores in (without, with_it))
    lower, higher = (scores.highest_f1(none).value for scores in (without, with_it))
    difference = Estimate(after - before)
    if bootstrap.samples:
        drawn = with_it.drawn(bootstrap) - without.drawn(bootstrap)
        difference = estimate(after - before, drawn, bootstrap)
    return Contribution(question, before, after, difference, higher - lower)


def networks_of(names: Sequence[str], measured: Mapping[str, Any]) -> list[Any]:
    """What the named networks came to, and their namesakes of other runs."""
    return [
        values for name in names for key, values in measured.items() if key.partition(OTHER_RUN)[0] == name
    ]


def _mean_f1(scores: BenchCounts) -> float:
    return float(np.mean(scores.each_f1()))


def markdown(summary: Summary) -> str:
    """The tables for a page of documentation."""
    warnings = [f"**{str(warning).rstrip('.')}.**" for warning in summary.warnings]
    head = f"F1 on {summary.where}; intervals of 95 % by drawing slides."
    return "\n\n".join([*warnings, head, *(table.markdown for table in tables_of(summary))]) + "\n"


def tables_of(summary: Summary) -> list[TextTable]:
    """All tables of what was measured so far."""
    tables = [main_table(summary)]
    tables += [centre_table(summary)] if summary.rows else []
    return tables + ([contribution_table(summary)] if summary.contributions else [])


def main_table(summary: Summary) -> TextTable:
    """Table III of the paper, as rows."""
    headings = [
        "experiment",
        "augment",
        "ensemble",
        "distilled",
        "parameters",
        "seeds",
        "highest F1",
        "F1 at validation threshold",
        "seeds from to",
        "trained",
        "paper, highest F1",
    ]
    rows = []
    for row in summary.rows:
        item = row.experiment
        spread = f"{min(row.each):.3f} to {max(row.each):.3f}" if len(row.each) > 1 else DASH
        rows.append(
            [
                str(item.number),
                item.augment,
                item.ensemble or DASH,
                item.distilled or DASH,
                f"{row.parameters / 1e6:.1f} M" if row.parameters >= 1e5 else f"{row.parameters:,}",
                f"{row.done} of {max(row.done, len(item.networks))}",
                str(row.highest),
                str(row.at_validation),
                spread,
                _figure(row.home),
                _figure(PAPER_F1.get(item.number, math.nan)),
            ]
        )
    warnings = "".join(f" Warning: {str(warning).rstrip('.')}." for warning in summary.warnings)
    return TextTable("", headings, rows, f"F1 on {summary.where}; 95 % intervals draw slides.{warnings}")


def brief_table(summary: Summary) -> TextTable:
    """The paper's table in five columns, for a terminal."""
    table = main_table(summary)
    rows = [[" ".join(cell for cell in row[:4] if cell != DASH), *row[4:8]] for row in table.rows]
    return TextTable("", ["experiment", *table.headings[4:8]], rows)


def centre_table(summary: Summary) -> TextTable:
    """F1 by laboratory, with how far its colours are from the training slides."""
    centres = list(summary.rows[0].by_centre)
    known = [summary.laboratories.get(name, {}) for name in centres]
    rows = [["colour ratio to training", *(_figure(one.get("furthest_ratio", math.nan)) for one in known)]]
    rows += [
        [f"experiment {row.experiment.number}", *(_figure(row.by_centre[name]) for name in centres)]
        for row in summary.rows
    ]
    titles = [name if name in summary.held_out else f"{name} (trained)" for name in centres]
    note = "Mean over seeds, by laboratory of the test slides."
    return TextTable("", ["F1 at validation threshold", *titles], rows, note)


def contribution_table(summary: Summary) -> TextTable:
    """What each part contributes."""
    headings = ["part", "without", "with", "F1 without", "F1 with", "difference", "difference of highest F1"]
    rows = [
        [
            one.question.part,
            one.question.without,
            one.question.with_it,
            _figure(one.f1_without),
            _figure(one.f1_with),
            _with_sign(one.difference),
            f"{one.highest_difference:+.3f}",
        ]
        for one in summary.contributions
    ]
    note = "What each part contributes, at the thresholds of the validation slides, on the same slides."
    return TextTable("", headings, rows, note)


def _figure(value: float) -> str:
    return DASH if np.isnan(value) else f"{value:.3f}"


def _with_sign(value: Estimate) -> str:
    if np.isnan(value.low):
        return f"{value.value:+.3f}"
    return f"{value.value:+.3f} [{value.low:+.3f}, {value.high:+.3f}]"


def write_results(folder: Path, summary: Summary, measured: Mapping[str, Any], states: States) -> None:
    """Write `results.json`, `table.md`, `curves.png` and `index.html`, a few MB in all."""
    seconds = {state.stage.name: state.seconds for state in states}
    content = {"laboratories": dict(summary.laboratories), "seconds": seconds, "networks": dict(measured)}
    write_text(folder / "results.json", json.dumps(content) + "\n")
    write_text(folder / "table.md", markdown(summary))
    panels = f1_panels(summary, measured) if summary.rows else {}
    write_experiments_page(folder, states, tables_of(summary), panels)


def summarise_job(job: Experiments, also: Sequence[Path] = ()) -> tuple[Summary, dict[str, Any]]:
    """The tables of a job so far, with workspaces of other seeds, and the values behind them."""
    measured = job.measured_values(also)
    return summarise(job.chain.config, measured, job.laboratories()), measured


def run_and_write(
    job: Experiments,
    also: Sequence[Path] = (),
    *,
    report: Report = silent,
    watch: Watch | None = None,
    at_once: int = 1,
) -> States:
    """Do what is left of the experiments, and write tables and page anew after every stage."""
    written = 0

    def keep(states: States) -> None:
        nonlocal written
        done = sum(state.status in ("done", "failed") for state in states)
        if done > written:
            written = done
            write_results(job.results, *summarise_job(job, also), states)
        if watch is not None:
            watch(states)

    stages, workspace = job.stages(), job.chain.workspace
    for state in stage_states(stages, workspace):
        if state.status != "kept" and state.stage.name.startswith("test "):  # of other slides, perhaps
            (workspace / state.stage.writes[0]).unlink(missing_ok=True)
    states = run_stages(stages, workspace, report=report, watch=keep, at_once=at_once)
    write_results(job.results, *summarise_job(job, also), states)
    return states


def f1_panels(summary: Summary, measured: Mapping[str, Any]) -> Panels:
    """F1 against the threshold, on the training laboratory and on the others, as the paper's figure."""
    every, away = set(summary.rows[0].by_centre), set(summary.held_out)
    lines: dict[str, list[Line]] = {}
    for title, centres in (("Training laboratory", every - away), ("Laboratories held out", away)):
        for row in summary.rows if centres else ():
            values = networks_of(row.experiment.networks, measured)
            curves = counts_of(values, centres).curves().tolist()
            item = row.experiment
            name = f"{item.number}: {item.ensemble or item.distilled or item.augment}"
            line = Line(name, curves, [value["threshold"] for value in values])
            lines.setdefault(title, []).append(line)
    return lines
