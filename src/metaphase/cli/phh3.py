"""`metaphase phh3`, `reference` and `register`: mitoses of PHH3 slides, and from there to H&E slides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from metaphase.base.errors import UsageError
from metaphase.base.settings import read_settings
from metaphase.cli import console, progress
from metaphase.cli.options import Answer, Group, given, restated, takes
from metaphase.cli.train import trained
from metaphase.cli.view import Port, announce

if TYPE_CHECKING:
    import pandas as pd

    from metaphase.base.sharing.batch import Failure

phh3 = Group("Mitoses of PHH3 slides: candidates, labels, networks.")

Project = Annotated[Path, typer.Argument(help="Labelling project with merged labels.", metavar="PROJECT")]
Learning = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file: epochs, batch, augment, ...; by default as in the paper."),
]
Start = Annotated[
    str, typer.Option(help="Model to start from: a file, or phh3-cnn1, phh3-cnn2; else from nothing.")
]


@phh3.command()
def candidates(
    manifest: console.NeededManifest,
    output: console.Folder,
    config: console.Settings = None,
    force: bool = False,
    workers: console.Workers = "",
) -> Answer:
    """Find every brown object of the PHH3 slides. Finished slides are skipped.

    Parameters:
        force: Search slides that look like H&E, too.
    """
    from metaphase.labels.phh3.candidates import BrownConfig
    from metaphase.labels.phh3.cases import search_cohort

    settings = read_settings(BrownConfig, config)
    with progress.cohort_work(workers) as (watch, pool):
        batch = search_cohort(manifest, output, settings, force=force, watch=watch, pool=pool)
    results = [
        {"case": case, "reused": found.resumed}
        | {name: getattr(found, name) for name in ("candidates", "picture", "warnings")}
        for case, found in batch.results.items()
    ]
    return _cases(results, ("case", "candidates", "picture"), batch.failures)


@phh3.command()
@takes("labels.phh3.sampling.DrawConfig", "count")
def sample(
    manifest: console.NeededManifest,
    workspace: Annotated[
        Path, typer.Option("-w", "--workspace", help="Folder that candidates and classify wrote.")
    ],
    output: console.Output,
    purpose: Annotated[
        str, typer.Option("--for", help="cnn1: of all candidates; cnn2: of those CNN1 keeps.")
    ] = "cnn1",
    exclude: list[Path] | None = None,
) -> None:
    """Draw candidates of the cases that are not held out (split `test`) into a labelling project.

    Parameters:
        output: Folder of the new labelling project.
        exclude: Project whose items are left out; may be repeated.
    """
    from metaphase.base.tables import named, read_manifest
    from metaphase.labels.phh3.sampling import DrawConfig, draw_project

    if purpose not in ("cnn1", "cnn2"):
        raise UsageError(f"--for {purpose}", next_step="give cnn1 or cnn2")
    network, config = cast(Literal["cnn1", "cnn2"], purpose), given(DrawConfig)
    cohort = read_manifest(manifest)
    drawn = draw_project(cohort, workspace, output, network, config, exclude=exclude or ())
    if drawn.skipped:
        console.warn(f"not ready, so nothing was drawn from: {named(drawn.skipped)}")
    console.say(f"{len(drawn.items):,} items; label them with: metaphase label serve {output}")


@phh3.command("train-cnn1")
def train_cnn1(
    project: Project,
    output: console.Folder,
    start: Start = "",
    config: Learning = None,
    device: console.Device = None,
) -> Answer:
    """Train CNN1, which tells objects from artefacts; run it again to continue after a stop."""
    from metaphase.labels.phh3.networks import cnn1_rows

    return _train("cnn1", cnn1_rows(project), project, output, start, config, device)


@phh3.command("train-cnn2")
def train_cnn2(
    project: Project,
    output: console.Folder,
    artefacts: list[Path] | None = None,
    start: Start = "",
    config: Learning = None,
    device: console.Device = None,
) -> Answer:
    """Train CNN2, which tells mitoses from all else; run it again to continue after a stop.

    Parameters:
        artefacts: Labelled project whose artefacts are further negatives (CNN1's).
    """
    from metaphase.labels.phh3.networks import cnn2_rows

    return _train("cnn2", cnn2_rows(project, artefacts or ()), project, output, start, config, device)


def _train(
    name: str,
    rows: pd.DataFrame,
    project: Path,
    output: Path,
    start: str,
    config: Path | None,
    device: str | None,
) -> Answer:
    from metaphase.labels.observers.project import read_target
    from metaphase.labels.phh3.networks import LearningConfig, train_classifier

    learning, target = read_settings(LearningConfig, config), read_target(project)
    with progress.reporting() as report:
        result = train_classifier(
            name, rows, output, learning, start=start, target=target, device=device, report=report
        )
    return trained(result)


@phh3.command()
def classify(
    manifest: console.NeededManifest,
    output: console.Folder,
    cnn1: console.Cnn1 = None,
    cnn2: console.Cnn2 = None,
    device: console.Device = None,
    workers: console.Workers = "",
) -> Answer:
    """Classify every candidate; with CNN2, write each slide's mitoses. Finished slides are skipped.

    Without --cnn1 and --cnn2, by the bundled phh3-cnn1 and phh3-cnn2.
    """
    from metaphase.labels.phh3.networks import classify_cohort, load_classifier

    given = _models(cnn1, cnn2) or {name: Path(f"phh3-{name}") for name in ("cnn1", "cnn2")}
    classifiers = [load_classifier(name, path, device) for name, path in given.items()]
    with progress.cohort_work(workers) as (watch, pool):
        batch = classify_cohort(manifest, output, classifiers, watch=watch, pool=pool)
    results = [
        {"case": case, "candidates": found.candidates, **found.counts, "reused": found.reused}
        for case, found in batch.results.items()
    ]
    return _cases(results, ("case", "candidates", "objects", "mitoses"), batch.failures)


def _models(cnn1: Path | None, cnn2: Path | None) -> dict[str, Path]:
    return {name: path for name, path in (("cnn1", cnn1), ("cnn2", cnn2)) if path is not None}


def _cases(results: list[dict[str, Any]], columns: tuple[str, ...], failures: Sequence[Failure]) -> Answer:
    rows = [[row.get(name, "") for name in columns] for row in results]
    return Answer(results, console.rows_table(columns, rows), failed=failures)


reference = Group("Mitoses of PHH3 slides as labels for H&E slides.")

Workspace = Annotated[Path, typer.Argument(help="Folder that build made.", metavar="WORKSPACE")]


@reference.command()
@takes("labels.registration.similarity.RegistrationConfig")
@takes("labels.reference.ReferenceConfig")
def build(
    manifest: console.NeededManifest,
    output: console.Folder,
    cnn1: console.Cnn1 = None,
    cnn2: console.Cnn2 = None,
    points: Path | None = None,
    config: console.Settings = None,
    device: console.Device = None,
    workers: console.Workers = "",
) -> Answer:
    """Carry the mitoses of every PHH3 slide to its H&E slide. Run it again to do what is missing.

    Without models and points, the mitoses that `metaphase phh3 classify` left in the workspace are taken.
    Exit code 1 when a pair failed or is doubtful.

    Parameters:
        points: PHH3 mitoses of another tool: a folder with a file for each case, or one table.
    """
    from metaphase.labels.building import BuildConfig, build_cohort, point_source

    settings = read_settings(BuildConfig, config)
    settings = replace(
        settings, registration=restated(settings.registration), reference=restated(settings.reference)
    )
    source = point_source(manifest, points, _models(cnn1, cnn2), device)
    with progress.cohort_work(workers) as (watch, pool):
        built = build_cohort(manifest, output, source, settings, points=points, watch=watch, pool=pool)
    for case in built.failures:
        console.complain(f"{case.case} ({case.status}): {case.reason}")
    rows = [(case.case, case.status, case.points, case.accepted, case.reason) for case in built.cases]
    causes = built.table["cause"][built.table["cause"] != ""].value_counts()
    accepted = f"{int(built.table['accepted'].sum())} of {len(built.table)} points accepted"
    return Answer(
        built.cases,
        console.rows_table(("case", "status", "points", "accepted", "why"), rows),
        *(f"{count} refused: {cause}" for cause, count in causes.items()),
        f"{accepted}; see {output / 'reference.csv'}, and look at them with: "
        f"metaphase reference review {output}",
        failed=built.failures,
    )


@reference.command()
def review(
    workspace: Workspace,
    port: Port = 8501,
    most: Annotated[
        int | None, typer.Option(min=1, help="Only this many points, the least certain; by default all.")
    ] = None,
) -> None:
    """Look at points in both stains, the least sure first, and say by key whether each is a mitosis.

    Stop with Ctrl-C; every decision is saved at once. `metaphase reference apply` applies them.
    """
    from metaphase.web.labelling import serve_review

    serve_review(workspace, port=port, most=most, ready=announce("point"))


@reference.command()
def apply(
    workspace: Workspace,
    decisions: Path | None = None,
) -> Answer:
    """Put the observers' decisions into the tables of the reference standard: who, when, accepted or not.

    Parameters:
        decisions: CSV of decisions made elsewhere, to be added to those of the review page.
    """
    from metaphase.labels.building import finish_cohort
    from metaphase.labels.reviewing import collect_decisions

    collect_decisions(workspace, decisions)
    done = finish_cohort(workspace)
    points, accepted = len(done.table), int(done.table["accepted"].sum())
    if done.stale:
        console.warn(f"{done.stale} decisions are about points that have gone or moved: review again")
    plain = {name: getattr(done, name) for name in ("reviewed", "changed", "stale")}
    plain |= {"points": points, "accepted": accepted}
    decided = f"{done.reviewed} points reviewed, {done.changed} decisions changed"
    return Answer(plain, f"{decided}; {accepted} of {points} accepted")


# ---- `metaphase register`: carry points and annotations from PHH3 to H&E ----


Points = Annotated[
    Path | None, typer.Option("--points", help="Points on the PHH3 slide, in any detection format.")
]


class DrawnOn(StrEnum):
    """The slide on which annotations were drawn."""

    phh3 = "phh3"
    he = "he"


@takes("labels.registration.similarity.RegistrationConfig")
def register(
    he: Path,
    phh3: Path,
    output: console.Folder,
    points: Points = None,
    annotations: Path | None = None,
    drawn_on: DrawnOn = DrawnOn.phh3,
    mpp: float | None = None,
    accept_doubtful: bool = False,
) -> Answer:
    """Register a PHH3 slide with the H&E slide of the same section, and say how far to trust it.

    Writes the transform, a picture, and the points in H&E coordinates. Of a doubtful pair only those are
    accepted that are sure by themselves, unless somebody looked at the picture and says --accept-doubtful.
    Exit code 1 when registration failed.

    Parameters:
        he: H&E slide.
        phh3: PHH3 slide of the same section.
        annotations: GeoJSON annotations to carry to the other slide.
        drawn_on: The slide on which the annotations were drawn.
        mpp: Micrometres per pixel, where the H&E file does not say.
        accept_doubtful: Carry points and annotations over even if the pair is doubtful.
    """
    from metaphase.labels.registration.outputs import Annotations, register_slides
    from metaphase.labels.registration.similarity import RegistrationConfig
    from metaphase.slides.opening import sources_with

    config = given(RegistrationConfig)
    shapes = None if annotations is None else Annotations(annotations, drawn_on.value)
    one, other = sources_with([he, phh3], mpp)
    summary, _ = register_slides(
        one, other, output, points=points, annotations=shapes, config=config, accept_doubtful=accept_doubtful
    )
    warnings = [*summary["reasons"], *summary["notes"]]
    if summary["verdict"] == "doubtful" and not accept_doubtful:
        sure = summary.get("points_accepted", 0)
        carried = "only points that are sure by themselves were" if sure else "nothing was"
        warnings.append(f"{carried} carried over: if registration.png fits, say so with --accept-doubtful")
    return Answer(summary, *_lines(summary, output), warnings=warnings, failed=summary["verdict"] == "failed")


def _lines(summary: dict[str, Any], output: Path) -> list[str]:
    lines = [summary["verdict"]]
    if "scale" in summary:
        lines.append(
            f"shift {summary['shift_x_um']:.1f}, {summary['shift_y_um']:.1f} um, "
            f"rotation {summary['rotation_deg']:.2f} degrees, scale {summary['scale']:.4f}"
        )
    if "points" in summary:
        accepted = f"{summary['points_accepted']} of {summary['points']} points accepted"
        lines.append(f"{accepted}, mean confidence {summary['mean_confidence']:.2f}")
    return [*lines, f"written to {output}"]
