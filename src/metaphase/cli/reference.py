"""`metaphase reference` and `register`: mitoses, points and annotations from PHH3 slides to H&E slides."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.base.config import read_settings
from metaphase.cli import console
from metaphase.cli.label import announce

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
    from metaphase.base.sharing.crews import hired
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
    from metaphase.web.labelling import serve_review

    serve_review(workspace, port=port, cases=case or (), most=most, ready=announce("points"))


@reference.command()
def apply(
    workspace: Workspace,
    decisions: Annotated[
        Path | None,
        typer.Option(help="CSV of decisions made elsewhere, to be added to those of the review page."),
    ] = None,
    as_json: console.Json = False,
) -> None:
    """Put the observers' decisions into the tables of the reference standard: who, when, accepted or not."""
    from metaphase.jobs.reference import finish_cohort
    from metaphase.jobs.reference_review import collect_decisions

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
    console.say(
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
        console.say(f"{count} refused: {cause}")
    accepted = int(built.table["accepted"].sum())
    console.say(
        f"{accepted} of {len(built.table)} points accepted; see {output / 'reference.csv'}, and look at them "
        f"with: metaphase reference review {output}"
    )


# ---- `metaphase register`: carry points and annotations from PHH3 to H&E ----

He = Annotated[Path, typer.Argument(help="H&E slide.", metavar="HE")]
Phh3 = Annotated[Path, typer.Argument(help="PHH3 slide of the same section.", metavar="PHH3")]
Points = Annotated[
    Path | None, typer.Option("--points", help="Points on the PHH3 slide, in any detection format.")
]
Shapes = Annotated[
    Path | None, typer.Option("--annotations", help="GeoJSON annotations to carry to the other slide.")
]
HeMpp = Annotated[
    float | None, typer.Option("--mpp", help="Micrometres per pixel, where the H&E file does not say.")
]
Phh3Mpp = Annotated[
    float | None, typer.Option("--phh3-mpp", help="The same for the PHH3 slide; by default that of --mpp.")
]
AnyStains = Annotated[bool, typer.Option("--any-stains", help="The slides need not be H&E and brown PHH3.")]
Accept = Annotated[
    bool,
    typer.Option("--accept-doubtful", help="Carry points and annotations over though the pair is doubtful."),
]
Seed = Annotated[int, typer.Option(help="Where the random tiles lie.")]


class DrawnOn(StrEnum):
    """The slide on which annotations were drawn."""

    phh3 = "phh3"
    he = "he"


Drawn = Annotated[DrawnOn, typer.Option("--drawn-on", help="The slide on which the annotations were drawn.")]


def register(
    he: He,
    phh3: Phh3,
    output: console.Folder,
    points: Points = None,
    annotations: Shapes = None,
    drawn_on: Drawn = DrawnOn.phh3,
    mpp: HeMpp = None,
    phh3_mpp: Phh3Mpp = None,
    any_stains: AnyStains = False,
    accept_doubtful: Accept = False,
    seed: Seed = 0,
    why: console.Explain = False,
    as_json: console.Json = False,
) -> None:
    """Register a PHH3 slide with the H&E slide of the same section, and say how far to trust it.

    Writes the transform, a picture, and the points in H&E coordinates. Those of a doubtful pair are rejected
    unless somebody looked at the picture and says --accept-doubtful. Exit code 1 when registration failed.
    """
    from metaphase.jobs.registration import register_slides
    from metaphase.labels.registration.files import Annotations
    from metaphase.labels.registration.similarity import RegistrationConfig
    from metaphase.slides.opening import sources_with

    config = RegistrationConfig(seed=seed, any_stains=any_stains)
    shapes = None if annotations is None else Annotations(annotations, drawn_on.value)
    (one,), (other,) = sources_with([he], mpp), sources_with([phh3], phh3_mpp or mpp)
    summary, states = register_slides(
        one, other, output, points=points, annotations=shapes, config=config, accept_doubtful=accept_doubtful
    )
    console.explain(states, shown=why)
    if as_json:
        console.print_json(summary)
    else:
        _tell(summary, output)
    raise typer.Exit(1 if summary["verdict"] == "failed" else 0)


def _tell(summary: dict[str, Any], output: Path) -> None:
    console.stdout.print(f"[bold]{summary['verdict']}[/]")
    for reason in (*summary["reasons"], *summary["notes"]):
        console.warn(reason)
    if "scale" in summary:
        console.say(
            f"shift {summary['shift_x_um']:.1f}, {summary['shift_y_um']:.1f} um, "
            f"rotation {summary['rotation_deg']:.2f} degrees, scale {summary['scale']:.4f}"
        )
    if "points" in summary:
        console.say(
            f"{summary['points_accepted']} of {summary['points']} points accepted, "
            f"mean confidence {summary['mean_confidence']:.2f}"
        )
    if summary["verdict"] == "doubtful" and not summary["accept_doubtful"]:
        console.warn("nothing was carried over: if registration.png fits, say so with --accept-doubtful")
    console.say(f"written to {output}")
