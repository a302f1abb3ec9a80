"""`metaphase run`, `experiments` and `configs`: from manifest to CNN5, the ablations, files to start from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from metaphase.base.settings import config_files, config_line, copy_files, qupath_scripts
from metaphase.cli import console, progress
from metaphase.cli.options import Answer, Group

if TYPE_CHECKING:
    from metaphase.base.stages import Report, StageState, States

# ---- `metaphase run`: the whole chain from manifest to CNN5 ----


Workspace = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Workspace; by default a folder named after the file."),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, help="Added to every seed of the file: the same run with other draws.")
]
Status = Annotated[bool, typer.Option("--status", help="Show where it stands and why, and do nothing.")]
AtOnce = Annotated[
    int,
    typer.Option(
        "--at-once",
        min=1,
        max=64,
        help="Stages to run side by side where none waits for another; a large GPU serves about 3.",
    ),
]
COLOURS = {"failed": "red", "running": "cyan", "waiting": "dim", "interrupted": "yellow"}


def run(
    config: Path,
    output: Workspace = None,
    device: console.Device = None,
    method: str | None = None,
    corrections: list[Path] | None = None,
    seed: Seed = 0,
    status: Status = False,
    at_once: AtOnce = 1,
) -> Answer:
    """Train a detector and test it on whole slides: the paper's CNN3, ensemble and CNN5, or a dense pair.

    Run the same command again to continue after a stop. Ends with a page, index.html, in the workspace.

    Parameters:
        config: TOML file; see docs/run.md.
        method: paper or dense; by default what the file says.
        corrections: Reviewed results, or a calibration: what people answered is learnt (dense).
    """
    from metaphase.base.stages import stage_states
    from metaphase.learn.config import read_run_config
    from metaphase.learn.run import chain_of, delivered_model, run_chain, run_table
    from metaphase.learn.summary import run_report
    from metaphase.networks.cards import parse_card, warnings_about
    from metaphase.networks.detector import PAPER_PEAKS
    from metaphase.reports.run import write_run_page

    settings = read_run_config(config, method, corrections or ()).with_seed(seed)
    workspace = output or Path("out") / config.stem
    chain = chain_of(settings, workspace.resolve(), device)
    if status:
        states = stage_states(run_table(chain), workspace)
    else:
        states = watched(lambda report, watch: run_chain(chain, report=report, watch=watch, at_once=at_once))
        write_run_page(workspace / "index.html", **run_report(chain, states))
    if status:
        return _states(states, explained=True)
    model = delivered_model(chain)
    warnings: list[object] = [*warnings_about(parse_card(model.with_suffix(".json")))]
    way = " --paper" if settings.test.peaks == PAPER_PEAKS else ""
    if settings.test.method == "components" and not way:
        warnings.append(
            "`detect` searches by components from 0.8 only (--paper): give its thresholds yourself"
        )
    page = f"Page: {workspace / 'index.html'}"
    return _states(states, page, f"metaphase detect SLIDE... -o DIR --model {model}{way}", warnings=warnings)


LINE_EVERY_S = 10.0
"""Between lines that take the place of a progress bar."""


def watched(work: Callable[[Report, Callable[[States], None]], States]) -> States:
    """Do `work` under a progress bar: a line for each finished stage, the table so far where it stops.

    Without a terminal also a line where a stage begins, and one every few seconds that says how far it is.
    """
    latest: States = ()
    last_line_s = -math.inf
    with progress.progress_bar() as bar:
        task = bar.add_task("starting", total=1)

        def report(what: str, done: float, total: float) -> None:
            nonlocal last_line_s
            bar.update(task, description=what, completed=done, total=max(total, 1e-9))
            if not console.stderr.is_terminal and time.monotonic() - last_line_s >= LINE_EVERY_S:
                last_line_s = time.monotonic()
                console.tell(f"{what}  {done:.4g} of {total:.4g}")

        def watch(states: States) -> None:
            nonlocal latest
            before, latest = dict(enumerate(latest)), states
            for number, state in enumerate(states):
                if number not in before or before[number].status != state.status:
                    _tell_change(state, f"{number + 1}/{len(states)}")

        try:
            return work(report, watch)
        except BaseException:
            console.stderr.print(stage_table(latest))
            raise


def _tell_change(state: StageState, number: str) -> None:
    if state.status == "running" and not console.stderr.is_terminal:
        console.tell(f"{number} {state.stage.name} begins: {state.stage.about}")
    if state.status == "done":
        seconds = f"{state.stage.name}  {state.seconds or 0:.1f} s"
        console.stderr.print(f"[dim]{number}[/] {seconds}  [dim]{escape(_facts(state))}[/]")


def _facts(state: StageState) -> str:
    facts = {name: f"{value:,}" if isinstance(value, int) else value for name, value in state.facts.items()}
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def stage_table(states: States, *, explained: bool = False) -> Table:
    """Every stage with its status and time, and what it made or, `explained`, why it has to be done."""
    rows: list[tuple[object, ...]] = []
    for state in states:
        status = Text(state.status, COLOURS.get(state.status, "green"))
        seconds = "" if state.seconds is None else f"{state.seconds:.1f}"
        what = (state.reason if explained else "") or _facts(state) or state.stage.about
        rows.append((state.stage.name, status, seconds, what))
    total = sum(state.seconds or 0 for state in states)
    rows.append((Text("all", "dim"), "", Text(f"{total:.1f}", "dim"), ""))
    return console.rows_table(("stage", "status", "seconds", "what"), rows, right=("seconds",))


def _states(
    states: States, *shown: object, explained: bool = False, warnings: Iterable[object] = ()
) -> Answer:
    plain = [
        {name: getattr(state, name) for name in ("status", "seconds", "reason", "facts")}
        | {"stage": state.stage.name, "reads": state.stage.reads, "writes": state.stage.writes}
        for state in states
    ]
    return Answer(plain, stage_table(states, explained=explained), *shown, warnings=warnings)


# ---- `metaphase experiments`: experiments 1 to 7 of the paper, and what each part contributes ----


def experiments(
    config: Path,
    output: Workspace = None,
    device: console.Device = None,
    seed: Seed = 0,
    also: Annotated[
        list[Path],
        typer.Option("--also", help="Workspace of another seed, for the same table.", metavar="DIR"),
    ] = [],  # noqa: B006 -- typer takes defaults of lists this way
    status: Status = False,
    at_once: AtOnce = 1,
) -> Answer:
    """Train and test the networks of experiments 1 to 7 and of the table of contributions.

    Everything worth keeping is in WORKSPACE/results, rewritten after every network. Run the same
    command again to continue after a stop.

    Parameters:
        config: TOML file; see docs/experiments.md.
    """
    from metaphase.base.stages import stage_states
    from metaphase.learn.chain import Chain
    from metaphase.learn.comparison import brief_table, contribution_table
    from metaphase.learn.config import read_run_config
    from metaphase.learn.experiments import Experiments, run_and_write, summarise_job

    settings, workspace = read_run_config(config).with_seed(seed), output or Path("out") / config.stem
    job = Experiments(Chain(settings, workspace.resolve(), device))
    if status:
        states = stage_states(job.stages(), job.chain.workspace)
    else:
        states = watched(
            lambda report, watch: run_and_write(job, also, report=report, watch=watch, at_once=at_once)
        )
    summary, _ = summarise_job(job, also)
    tables = (brief_table(summary), contribution_table(summary))
    shown = [console.rows_table(table.headings, table.rows) for table in tables]
    warnings = [f"warning: {warning}" for warning in summary.warnings]
    return _states(states, *shown, *warnings, f"results {job.results}", explained=status)


# ---- `metaphase paper`: every table and figure of the paper, from one's own data ----


def paper(
    config: Path,
    output: console.Folder,
    at_once: AtOnce = 1,
) -> None:
    """Make the paper of your data: labels from PHH3, networks, tests, then tables I to IV and figures 1 to 8.

    Run the same command again to continue after a stop. The page is DIR/index.html.

    Parameters:
        config: TOML file as of `metaphase experiments` with a table [paper], or a manifest of pairs.
    """
    from metaphase.lab.paper import measure_elsewhere, read_paper, run_paper
    from metaphase.lab.paper_parts import paper_parts
    from metaphase.reports.paper import Part, write_paper_page

    job, parts = read_paper(config, output), list[Part]()

    def work(report: Report, watch: Callable[[States], None]) -> States:
        states = run_paper(job, report=report, watch=watch, at_once=at_once)
        parts.extend(paper_parts(job, measure_elsewhere(job, report)))
        return states

    states = watched(work)
    console.stdout.print(stage_table(states))
    for part in parts:
        if part.missing:
            console.say(f"{part.title}: {part.missing}")
    console.say(f"Page: {write_paper_page(output, config.stem, parts, states)}")


# ---- `metaphase configs` and `metaphase qupath`: configurations and scripts that come with the package ----

configs = Group("Configurations that come with the package, for `metaphase run` and `experiments`.")


@configs.command("list")
def list_configs() -> None:
    """List them, with what each is for."""
    rows = [(name, config_line(path)) for name, path in config_files().items()]
    console.stdout.print(console.rows_table((), rows))


@configs.command()
def copy(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which of them; by default all.", metavar="NAME...")
    ] = None,
    output: console.Output = Path("configs"),
) -> None:
    """Copy them into a folder, to be run and changed there; a file that you changed is not replaced.

    Parameters:
        output: Folder for them; made if absent.
    """
    for path in copy_files(config_files(), names or (), output):
        console.say(str(path))


def qupath(
    output: console.Output,
) -> None:
    """Copy the scripts for QuPath: `metaphase detect` on the open image, and corrections sent back.

    Parameters:
        output: Folder for them, as that of your scripts; made if absent.
    """
    for path in copy_files(qupath_scripts(), (), output):
        console.say(str(path))
