"""`metaphase label`: several observers judge candidates in the browser, and their answers become labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.cli.console import Json, announce, print_json, say, stdout, warn

if TYPE_CHECKING:
    from metaphase.labels.observers.consensus import Merged
    from metaphase.web.labelling import Running

label = typer.Typer(help="Label candidates with several observers.", no_args_is_help=True)

ProjectFolder = Annotated[
    Path, typer.Argument(help="Folder with items.csv (item, slide, x, y, case).", metavar="PROJECT")
]
AnswersFile = Annotated[
    Path, typer.Argument(help="CSV with observer, item, answer, seconds, time.", metavar="FILE")
]


@label.command()
def serve(
    project: ProjectFolder,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to the network.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port; 0 takes any free one.")] = 8500,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=["METAPHASE_TOKEN", "METAPHASE_LABEL_TOKEN"],
            help="Secret of the link, 16 characters or more; else made, and kept in the project.",
        ),
    ] = None,
) -> None:
    """Start the labelling page; stop it with Ctrl-C. Every answer is on the disk at once."""
    from metaphase.web.labelling import serve_project

    serve_project(project, host=host, port=port, token=token, ready=_announce)


@label.command()
def merge(
    project: ProjectFolder,
    agree: Annotated[int, typer.Option(help="How many observers must give the same answer.")] = 3,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the results; by default the project's.")
    ] = None,
    observer: Annotated[
        list[str] | None, typer.Option(help="Only these observers; repeat for each. By default all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make labels of the answers: labels.csv, what to discuss, and how well the observers agree."""
    from metaphase.jobs.labelling import merge_project
    from metaphase.reports.agreement import REPORT, record, told_kappa

    merged = merge_project(project, agree, output, observer or None)
    if as_json:
        print_json(record(merged))
        return
    stdout.print(_table(merged))
    counts = merged.labels["label"].value_counts()
    found = ", ".join(f"{counts[name]} {name}" for name in counts.index if name)
    say(
        f"{merged.labelled} of {len(merged.labels)} items have a label ({found or 'none'}); "
        f"{len(merged.disagreements)} to discuss; "
        f"Fleiss' kappa {told_kappa(merged.fleiss, *merged.fleiss_interval)} over the {merged.complete} "
        "that all observers answered"
    )
    say(f"see {(output or project) / REPORT}")


@label.command()
def export(
    project: ProjectFolder,
    output: Annotated[Path, typer.Option("-o", "--output", help="CSV to write.")],
) -> None:
    """Write the answers to a CSV, for other tools."""
    from metaphase.labels.observers.exchange import export_answers

    say(f"{export_answers(project, output)} answers in {output}")


@label.command(name="import")
def import_(project: ProjectFolder, file: AnswersFile) -> None:
    """Take answers from a CSV of another tool; all of them or, if one is wrong, none."""
    from metaphase.labels.observers.exchange import import_answers

    done = import_answers(project, file)
    say(f"{done.added} new answers, {done.replaced} replaced, {done.unchanged} known already")


def _announce(running: Running) -> None:
    missing = running.project.missing_slides()
    if missing:
        warn(
            f"{len(missing)} slides are not there, so {sum(missing.values())} of "
            f"{len(running.project.items)} items have no picture; the first is {next(iter(missing))}"
        )
    announce(f"{len(running.project.items)} items", running.url)


def _table(merged: Merged) -> Table:
    table = Table("observer", "answers", "median s", "minutes", "changed", "kappa with others", box=None)
    for row in merged.observers.to_dict("records"):
        pairs = merged.pairs
        own = pairs["kappa"][(pairs["observer"] == row["observer"]) | (pairs["other"] == row["observer"])]
        span = f"{own.min():.2f} to {own.max():.2f}" if own.notna().any() else "-"
        table.add_row(
            escape(str(row["observer"])), str(row["answers"]), f"{row['seconds']:.1f}",
            f"{row['minutes']:.1f}", str(row["changes"]), span,
        )  # fmt: skip
    return table
