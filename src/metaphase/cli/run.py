"""`metaphase run`: the whole chain from manifest to CNN5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.cli.console import print_json, progress_bar, stderr, stdout
from metaphase.cli.options import Device, Json

if TYPE_CHECKING:
    from metaphase.pipeline.stages import Report, StageState, States

Config = Annotated[Path, typer.Argument(help="TOML file; see docs/run.md.", metavar="CONFIG")]
Workspace = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Workspace; by default a folder named after the file."),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, help="Added to every seed of the file: the same run, drawn anew.")
]
Status = Annotated[bool, typer.Option("--status", help="Show where it stands and do nothing.")]
COLOURS = {"failed": "red", "running": "cyan", "waiting": "dim", "interrupted": "yellow"}


def run(
    config: Config,
    output: Workspace = None,
    device: Device = None,
    seed: Seed = 0,
    status: Annotated[
        bool, typer.Option("--status", help="Show where the run stands and do nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a detector: candidates, CNN3, hard negatives, ensemble, CNN5 and its test on whole slides.

    Killed at any moment, the same command goes on. Ends with a page, index.html, in the workspace.
    """
    from metaphase.pipeline.stages import stage_states
    from metaphase.pipeline.training.chain import Chain
    from metaphase.pipeline.training.config import read_run_config
    from metaphase.pipeline.training.run import run_chain, run_table
    from metaphase.web.run_page import write_run_page

    settings, workspace = read_run_config(config).with_seed(seed), output or Path("out") / config.stem
    chain = Chain(settings, workspace.resolve(), device)
    if status:
        states = stage_states(run_table(chain), workspace)
    else:
        states = watched(lambda report, watch: run_chain(chain, report=report, watch=watch))
        write_run_page(workspace / "index.html", chain, states)
    if as_json:
        print_json([plain(state) for state in states])
        return
    stdout.print(stage_table(states))
    if not status:
        stdout.print(f"page {escape(str(workspace / 'index.html'))}", soft_wrap=True)


def watched(
    work: Callable[[Report, Callable[[States], None]], States], after: Callable[[States], None] | None = None
) -> States:
    """Do `work` under a progress bar: a line for each finished stage, the table so far where it stops."""
    latest: States = ()
    told: set[str] = set()
    with progress_bar() as bar:
        task = bar.add_task("starting", total=1)

        def report(what: str, done: float, total: float) -> None:
            bar.update(task, description=what, completed=done, total=max(total, 1e-9))

        def watch(states: States) -> None:
            nonlocal latest
            latest = states
            for number, state in enumerate(states, start=1):
                if state.status == "done" and state.stage.name not in told:
                    told.add(state.stage.name)
                    stderr.print(f"[dim]{number}/{len(states)}[/] {_line(state)}")
            if after is not None:
                after(states)

        try:
            return work(report, watch)
        except BaseException:
            stderr.print(stage_table(latest))
            raise


def _line(state: StageState) -> str:
    return f"{state.stage.name}  {state.seconds or 0:.1f} s  [dim]{escape(_facts(state))}[/]"


def _facts(state: StageState) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in state.facts.items())


def stage_table(states: States) -> Table:
    """Every stage with its status and time."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("stage", "status", "seconds", "what"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left")
    for state in states:
        colour = COLOURS.get(state.status, "green")
        seconds = "" if state.seconds is None else f"{state.seconds:.1f}"
        what = _facts(state) or state.stage.about
        table.add_row(state.stage.name, f"[{colour}]{state.status}[/]", seconds, escape(what))
    total = sum(state.seconds or 0 for state in states)
    table.add_row("[dim]all[/]", "", f"[dim]{total:.1f}[/]", "")
    return table


def plain(state: StageState) -> dict[str, Any]:
    """A stage's state for programs."""
    facts = {"stage": state.stage.name, "status": state.status, "seconds": state.seconds}
    return facts | {"reads": state.stage.reads, "writes": state.stage.writes, "facts": state.facts}


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
