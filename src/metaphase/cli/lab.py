"""`metaphase lab`: the workflow from a folder of slide pairs to a laboratory's own detector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.text import Text

from metaphase.base.sharing.batch import brief_time
from metaphase.cli import console, progress
from metaphase.cli.options import Group

if TYPE_CHECKING:
    from rich.progress import Progress

    from metaphase.base.stages import StageState
    from metaphase.lab.folder import Lab as LabFolder
    from metaphase.lab.parts import Asked, StepProgress

lab = Group(
    "Your own detector, from a folder of slide pairs: init, then next, next, ...", no_args_is_help=False
)

LabOption = Annotated[
    Path | None,
    typer.Option(
        "--lab", help="The laboratory's folder; by default the current one, or one above with lab.toml."
    ),
]
COLOURS = {
    "done": "green",
    "waiting for a person": "yellow",
    "next": "cyan",
    "out of date": "yellow",
    "interrupted": "yellow",
    "failed": "red",
}


@lab.callback(invoke_without_command=True)
def status(context: typer.Context, root: LabOption = None, as_json: console.Json = False) -> None:
    """Where the laboratory's detector stands, and the one next command."""
    if context.invoked_subcommand is not None:
        context.obj = root
        return
    from metaphase.lab.folder import find_lab
    from metaphase.lab.running import next_command, show, standings

    found = find_lab(root)
    standing = standings(found)
    show(found, [row.step for row in standing])
    command = next_command(standing)
    if as_json:
        plain = [
            {"step": row.step.name, "status": row.status, "what": row.what, "seconds": row.state.seconds}
            for row in standing
        ]
        console.print_json({"steps": plain, "next": command})
        return
    rows: list[tuple[object, ...]] = []
    for row in standing:
        seconds = "" if row.state.seconds is None else brief_time(row.state.seconds)
        rows.append((row.step.name, Text(row.status, COLOURS.get(row.status, "dim")), seconds, row.what))
    console.stdout.print(console.rows_table(("step", "status", "time", "what"), rows, right=("time",)))
    if not command:
        _tell_end(found)
    console.tell(f"Page: {found.page}")
    if command:
        console.say(f"next: {command}")


@lab.command()
def init(
    context: typer.Context,
    folder: Path,
    table: Path | None = None,
    start: str = "breast",
) -> None:
    """Find and pair the slides, split them by patient, and write manifest.csv and lab.toml.

    Names propose pairs, the tissue decides. Slides that do not fit are named, and the others go on.

    Parameters:
        folder: Folder with H&E and PHH3 slides.
        table: CSV with slide or case, and patient, laboratory or both.
        start: Pair to start from, a bundled one by name; '' trains from nothing.
    """
    from metaphase.lab.running import begin

    with progress.reporting("looking for slides") as report:
        begun = begin(context.obj or Path(), folder, table=table, start=start, report=report)
    console.warn(*begun.notes)
    splits = begun.manifest["split"].value_counts()
    shares = ", ".join(
        f"{splits[split]} {split}" for split in ("train", "validation", "test") if split in splits
    )
    console.say(f"{len(begun.manifest)} pairs of {begun.manifest['patient'].nunique()} patients: {shares}")
    console.tell(f"Page: {begun.lab.page}")
    console.say("next: metaphase lab next")


@lab.command("next")
def next_(
    context: typer.Context,
    device: console.Device = None,
    no_page: bool = False,
    enough: bool = False,
) -> None:
    """Do all that a machine can do; where people are asked, show the page until they have answered.

    Run the same command again to continue after a stop.

    Parameters:
        no_page: Stop where people are asked, and do not show the page.
        enough: The answers given so far are enough: continue with them.
    """
    from metaphase.lab.folder import find_lab
    from metaphase.lab.parts import say_enough
    from metaphase.lab.running import go_on, hold_folder

    found = find_lab(context.obj, device)
    with hold_folder(found):
        while True:
            with progress.progress_bar() as bar:
                asked = go_on(found, say=_tell_step, watch=_shower(bar))
            if asked is None:
                _tell_end(found)
                console.tell(f"Page: {found.page}")
                return
            if enough:
                say_enough(asked)
                enough = False
                continue
            console.tell(f"{asked.what}: {asked}")
            if no_page or not _answered(found, asked):
                break
    if no_page:
        console.tell(asked.command)
    console.say("next: metaphase lab next")


def _answered(found: LabFolder, asked: Asked) -> bool:
    """Show a page; whether enough is answered then to go on."""
    _serve(found, asked)
    now = _same_page(found, asked)
    if now is not None:
        console.tell(f"{now.what}: {now}")
    return now is not None and now.enough


def _serve(found: LabFolder, asked: Asked) -> None:
    """Show a page until everything on it is answered, or Ctrl-C."""
    from metaphase.web.labelling import serve_project, serve_review
    from metaphase.web.serving import Running

    shown = str(asked)

    def complete() -> bool:
        nonlocal shown
        now = _same_page(found, asked)
        if now is not None and (now.answered % 25 == 0 or now.complete) and str(now) != shown:
            shown = str(now)
            console.tell(shown)
        return now is None or now.complete

    def ready(running: Running) -> None:
        console.tell(
            "It continues when everything is answered. To continue with less, press Ctrl-C and run "
            "metaphase lab next --enough."
        )
        console.tell("Open this address; Ctrl-C stops, and keeps the answers:")
        typer.echo(running.url)

    page = found.settings.page
    if asked.kind == "label":
        serve_project(asked.folder, host=page.host, port=page.port, ready=ready, until=complete)
    else:
        most = asked.items + asked.left_out
        serve_review(asked.folder, port=page.port, most=most, ready=ready, until=complete)


def _same_page(found: LabFolder, asked: Asked) -> Asked | None:
    from metaphase.lab.running import steps_of

    pages = (page for step in steps_of(found) for page in step.pages)
    return next((page for page in pages if page.what == asked.what), None)


def _shower(bar: Progress) -> Callable[[StepProgress], None]:
    """Shows on the bar how many steps are done, and how far the one is that is worked on."""
    task, begun = bar.add_task("checking where it stands", total=1), ""

    def show(now: StepProgress) -> None:
        nonlocal begun
        if now.step != begun:
            begun = now.step
            bar.reset(task)
        bar.update(task, description=f"{now.done}/{now.steps} {escape(now.what)}", completed=now.share)

    return show


def _tell_step(state: StageState, number: int, steps: int) -> None:
    from metaphase.lab.parts import FAILED
    from metaphase.lab.running import fact_line

    console.tell(f"{number}/{steps} {state.stage.name}  {state.seconds or 0:.1f} s  {fact_line(state.facts)}")
    for case, why in state.facts.get(FAILED, {}).items():
        console.warn(f"{case}: {why}")


def _tell_end(found: LabFolder) -> None:
    from metaphase.lab.running import last_words

    lines, warnings = last_words(found)
    console.warn(*warnings)
    for line in lines:
        console.say(line)
