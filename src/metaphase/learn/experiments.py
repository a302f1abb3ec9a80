"""`metaphase experiments`: experiments 1 to 7 of the paper, network by network, with tables that grow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metaphase.analysis.search import SlideSearched
from metaphase.base.errors import UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import read_json
from metaphase.base.stages import Facts, Report, Stage, States, Watch, run_stages, silent, stage, stage_states
from metaphase.learn.chain import (
    Chain,
    RunSource,
    data_stages,
    network_stage,
    soft_target_stage,
    source_of,
)
from metaphase.learn.comparison import (
    OTHER_RUN,
    Summary,
    baselines,
    easy_networks,
    f1_panels,
    label_students,
    markdown,
    summarise,
    tables_of,
)
from metaphase.learn.config import CNN3, ENSEMBLE, EvaluationSection, Task, members, students
from metaphase.learn.mining.sets import HARD
from metaphase.learn.run import tested_network
from metaphase.reports.run import write_experiments_page

NETWORKS = "results/networks"
"""Where a workspace keeps what every tested network came to."""


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
        return self.chain.workspace / "results"

    def stages(self) -> list[Stage]:
        """All stages; what the table needs most comes first, so that a stop leaves a useful one."""
        config, every = self.chain.config, members(self.chain.config)
        stages = [*data_stages(self.chain), self._test_stage(CNN3)]
        for member in every:  # tasks that use the same difficult set one after the other
            others = [task for task in baselines(config) if task.hard_set == member.hard_set]
            stages += self._train_and_test([member, *others], HARD)
        stages.append(self._test_stage(ENSEMBLE, tuple(task.name for task in every)))
        stages.append(soft_target_stage(self.chain))
        stages += self._train_and_test(students(config), "soft targets")
        stages += self._train_and_test(label_students(config), HARD)
        return stages + self._train_and_test(easy_networks(config), "easy set")

    def _train_and_test(self, tasks: Sequence[Task], after: str) -> list[Stage]:
        stages = []
        for task in tasks:
            recipe = task.augment or self.chain.config.training.augment
            about = f"gamma {task.gamma:g}, {recipe}, learns {task.target}"
            stages += [network_stage(self.chain, task, (after,), about), self._test_stage(task.name)]
        return stages

    def _test_stage(self, name: str, networks: tuple[str, ...] = ()) -> Stage:
        config, networks = self.chain.config, networks or (name,)
        source = source_of(config, ("validation", "test"))
        row = test_network((self, name, networks), test=config.test, source=source)
        return replace(row, name=f"test {name}", reads=networks, writes=(f"{NETWORKS}/{name}.json",))

    def measured_values(self, others: Sequence[Path] = ()) -> dict[str, Any]:
        """What every network tested so far came to, by name; `others` are workspaces of other seeds."""
        values = _values_in(self.chain.workspace)
        for number, workspace in enumerate(others, start=1):
            more = _values_in(workspace)
            if not more:
                raise UsageError(
                    "no network was tested there",
                    path=workspace,
                    next_step="name workspaces of `metaphase experiments` with the same configuration",
                )
            values |= {f"{name}{OTHER_RUN}{number}": network for name, network in more.items()}
        return values


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
    job, name, networks = tested
    values = tested_network(job.chain, name, networks, report)
    write_text(job.chain.workspace / NETWORKS / f"{name}.json", json.dumps(values) + "\n")
    return {
        "threshold": round(values["threshold"], 3),
        "validation F1": round(values["validation_f1"] or 0, 3),
    }


def _values_in(workspace: Path) -> dict[str, Any]:
    advice = "remove it, and run the experiments again"
    paths = sorted((workspace / NETWORKS).glob("*.json"))
    return {path.stem: read_json(path, "holds no measured values", next_step=advice) for path in paths}


def write_results(folder: Path, summary: Summary, measured: Mapping[str, Any], states: States) -> None:
    """Write `results.json`, `table.md`, `curves.png` and `index.html`, a few MB in all."""
    seconds = {state.stage.name: state.seconds for state in states}
    write_text(folder / "results.json", json.dumps({"seconds": seconds, "networks": dict(measured)}) + "\n")
    write_text(folder / "table.md", markdown(summary))
    panels = f1_panels(summary.tested, summary.home, summary.held_out)
    write_experiments_page(folder, states, tables_of(summary), panels)


def summarise_job(job: Experiments, also: Sequence[Path] = ()) -> tuple[Summary, dict[str, Any]]:
    """The tables of a job so far, with workspaces of other seeds, and the values behind them."""
    measured = job.measured_values(also)
    return summarise(job.chain.config, measured, job.chain.homes if measured else ()), measured


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
