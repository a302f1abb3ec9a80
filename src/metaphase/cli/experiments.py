"""`metaphase experiments`: experiments 1 to 7 of the paper, and what each part contributes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.cli.console import print_json, stdout
from metaphase.cli.options import Device, Json
from metaphase.cli.run import Seed, Status, Workspace, plain, stage_table, watched

if TYPE_CHECKING:
    from metaphase.pipeline.stages import States


def experiments(
    config: Annotated[Path, typer.Argument(help="TOML file; see docs/experiments.md.", metavar="CONFIG")],
    output: Workspace = None,
    device: Device = None,
    seed: Seed = 0,
    also: Annotated[
        list[Path],
        typer.Option("--also", help="Workspace of another seed, for the same table.", metavar="DIR"),
    ] = [],  # noqa: B006 -- typer takes defaults of lists this way
    status: Status = False,
    as_json: Json = False,
) -> None:
    """Train and test the networks of experiments 1 to 7 and of the table of contributions.

    Everything worth keeping is in WORKSPACE/results, written anew after every network. Killed, the same
    command goes on.
    """
    from metaphase.pipeline.experiments import Experiments, run_experiments, summarise
    from metaphase.pipeline.experiments.summary import brief_cells, contribution_cells
    from metaphase.pipeline.stages import stage_states
    from metaphase.pipeline.training.chain import Chain
    from metaphase.pipeline.training.config import read_run_config
    from metaphase.web.run_page import write_experiments_page

    settings, workspace = read_run_config(config).with_seed(seed), output or Path("out") / config.stem
    job = Experiments(Chain(settings, workspace.resolve(), device))

    def keep(states: States) -> None:
        if any(state.status == "running" for state in states):
            return
        measured = job.measured_values(also)
        summary = summarise(settings, measured, job.laboratories())
        write_experiments_page(job.results, summary, measured, states)

    if status:
        states = stage_states(job.stages(), job.chain.workspace)
    else:
        states = watched(lambda report, watch: run_experiments(job, report=report, watch=watch), keep)
        keep(states)
    summary = summarise(settings, job.measured_values(also), job.laboratories())
    if as_json:
        print_json([plain(state) for state in states])
        return
    stdout.print(stage_table(states))
    for headings, rows in (brief_cells(summary), contribution_cells(summary)):
        stdout.print(_table(headings, rows))
    stdout.print(f"results {escape(str(job.results))}")


def _table(headings: list[str], rows: list[list[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*map(escape, row))
    return table
