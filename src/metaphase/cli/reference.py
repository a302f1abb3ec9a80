"""`metaphase reference`: the reference standard of H&E slides from the mitoses of their PHH3 partners."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.base.config import read_settings
from metaphase.cli import console

if TYPE_CHECKING:
    from metaphase.jobs.reference import Built

reference = typer.Typer(help="Mitoses of PHH3 slides as labels of H&E slides.", no_args_is_help=True)

Workspace = Annotated[Path, typer.Argument(help="Folder that build made.", metavar="WORKSPACE")]


@reference.command()
def build(
    manifest: console.NeededManifest,
    output: console.Folder,
    cnn1: console.Cnn1 = None,
    cnn2: console.Cnn2 = None,
    points: Annotated[
        Path | None,
        typer.Option(help="PHH3 mitoses of another tool: a folder with a file for each case, or one table."),
    ] = None,
    config: console.Settings = None,
    accept_doubtful: Annotated[
        bool, typer.Option("--accept-doubtful", help="Take pairs whose registration is doubtful, too.")
    ] = False,
    device: console.Device = None,
    shard: console.Shard = "",
    workers: console.Workers = 0,
    scheduler: console.Scheduler = "",
    cluster: console.Cluster = None,
    log_json: console.LogJson = False,
    explained: console.Explain = False,
    as_json: console.Json = False,
) -> None:
    """Carry the mitoses of every PHH3 slide to its H&E slide. Run again, it does only what is missing.

    Without models and points, the mitoses that `metaphase phh3 classify` left in the workspace are taken.
    Exit code 1 when a pair failed or is doubtful.
    """
    from metaphase.base.crews import hired
    from metaphase.jobs.reference import BuildConfig, build_cohort, point_source

    settings = read_settings(BuildConfig, config)
    if accept_doubtful:
        settings = replace(settings, reference=replace(settings.reference, accept_doubtful=True))
    models = {name: path for name, path in (("cnn1", cnn1), ("cnn2", cnn2)) if path is not None}
    source = point_source(manifest, points, models, device)
    with hired(workers, scheduler, cluster) as crew, console.batch_bar("cases", log_json=log_json) as watch:
        built = build_cohort(
            manifest, output, source, settings, points=points, shard=shard, watch=watch, crew=crew
        )
    for one in built.cases if explained else ():
        console.tell(f"{one.case}: registration {'done (' + one.again + ')' if one.again else 'kept'}")
    _report(built, output, as_json)
    raise typer.Exit(int(bool(built.failures)))


@reference.command()
def review(
    workspace: Workspace,
    port: Annotated[int, typer.Option(help="Port; 0 takes any free one.")] = 8501,
    case: Annotated[list[str] | None, typer.Option(help="Only these cases; repeat for each.")] = None,
    most: Annotated[
        int | None, typer.Option(min=1, help="Only so many points, the least sure; by default all.")
    ] = None,
) -> None:
    """Look at points in both stains, the least sure first, and say by key whether each is a mitosis.

    Stop with Ctrl-C; every decision is on the disk at once. `metaphase reference apply` puts them in force.
    """
    from metaphase.web.review import serve_review

    serve_review(
        workspace, port=port, cases=case or (), most=most,
        ready=lambda running: console.announce(f"{running.items} points", running.url),
    )  # fmt: skip


@reference.command()
def apply(
    workspace: Workspace,
    decisions: Annotated[
        Path | None,
        typer.Option(help="CSV of decisions made elsewhere, to be added to those of the review page."),
    ] = None,
    as_json: console.Json = False,
) -> None:
    """Put the reviewers' decisions into the tables of the reference standard: who, when, accepted or not."""
    from metaphase.jobs.reference import finish_cohort
    from metaphase.jobs.review import collect_decisions

    collect_decisions(workspace, decisions)
    built = finish_cohort(workspace)
    done = built.review
    facts = {"reviewed": done.reviewed, "changed": done.changed, "stale": done.stale}
    if as_json:
        console.print_json(
            {**facts, "points": len(done.table), "accepted": int(done.table["accepted"].sum())}
        )
        return
    if done.stale:
        console.warn(
            f"{done.stale} decisions are about points that are there no more, or have moved: review again"
        )
    console.stdout.print(
        f"{done.reviewed} points reviewed, {done.changed} decided otherwise than automatically; "
        f"{int(done.table['accepted'].sum())} of {len(done.table)} accepted"
    )


def _report(built: Built, output: Path, as_json: bool) -> None:
    if as_json:
        console.print_json([asdict(one) for one in built.cases])
        return
    table = Table("case", "status", "points", "accepted", "why", box=None)
    for one in built.cases:
        table.add_row(escape(one.case), one.status, str(one.points), str(one.accepted), escape(one.reason))
    console.stdout.print(table)
    for one in built.failures:
        console.complain(f"{one.case} ({one.status}): {one.reason}")
    causes = built.table["cause"][built.table["cause"] != ""].value_counts()
    for cause, count in causes.items():
        console.stdout.print(f"{count} refused: {cause}", highlight=False)
    accepted = int(built.table["accepted"].sum())
    console.say(
        f"{accepted} of {len(built.table)} points accepted; see {output / 'reference.csv'}, and look at them "
        f"with: metaphase reference review {output}"
    )
