"""`metaphase phh3`: from PHH3 slides to the list of their mitoses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.base.config import read_settings
from metaphase.base.errors import UsageError
from metaphase.cli import console
from metaphase.cli.train import report_training, watcher

if TYPE_CHECKING:
    from metaphase.labels.phh3.networks import LearningConfig

Row = dict[str, Any]

phh3 = typer.Typer(help="Mitoses of PHH3 slides: candidates, labels, networks.", no_args_is_help=True)

Project = Annotated[Path, typer.Argument(help="Labelling project with merged labels.", metavar="PROJECT")]
Epochs = Annotated[int, typer.Option(help="Passes over the labels.")]
Batch = Annotated[int, typer.Option(help="Patches a step.")]
Samples = Annotated[int | None, typer.Option(help="Patches an epoch; by default as many as there are.")]
Normalisation = Annotated[str, typer.Option(help="none (the paper) or batch.")]
Augment = Annotated[str, typer.Option(help="Augmentation letters; C and H vary the stain, too.")]
Start = Annotated[
    str, typer.Option(help="Model to start from: a file, or phh3-cnn1, phh3-cnn2; else from nothing.")
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]


@phh3.command()
def candidates(
    manifest: console.NeededManifest,
    output: console.Folder,
    config: console.Settings = None,
    force: Annotated[bool, typer.Option("--force", help="Search slides that look like H&E, too.")] = False,
    shard: console.Shard = "",
    workers: console.Workers = 0,
    scheduler: console.Scheduler = "",
    cluster: console.Cluster = None,
    log_json: console.LogJson = False,
    explained: console.Explain = False,
    as_json: console.Json = False,
) -> None:
    """Find every brown object of the PHH3 slides. Finished slides are skipped."""
    from metaphase.base.sharing.crews import hired
    from metaphase.jobs.phh3 import search_cohort
    from metaphase.labels.phh3.survey import BrownConfig

    settings = read_settings(BrownConfig, config)
    with hired(workers, scheduler, cluster) as crew, console.batch_bar(log_json=log_json) as watch:
        batch = search_cohort(manifest, output, settings, force=force, shard=shard, watch=watch, crew=crew)
    results = [
        {
            "case": one.case,
            "candidates": one.candidates,
            "picture": str(one.picture),
            "warnings": [warning.to_dict() for warning in one.warnings],
            "reused": one.resumed,
        }
        for one in batch.results.values()
    ]
    for one in batch.results.values() if explained else ():
        console.tell(f"{one.case}: search {'done (' + one.reason + ')' if one.reason else 'kept'}")
    _report(results, as_json, ("case", "candidates", "picture"))
    raise typer.Exit(int(bool(batch.failures)))


@phh3.command()
def sample(
    manifest: console.NeededManifest,
    workspace: Annotated[
        Path, typer.Option("-w", "--workspace", help="Folder that candidates and classify wrote.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the new labelling project.")],
    purpose: Annotated[
        str, typer.Option("--for", help="cnn1: of all candidates; cnn2: of those CNN1 keeps.")
    ] = "cnn1",
    count: Annotated[int, typer.Option(help="Candidates to label.")] = 2000,
    per_case: Annotated[bool, typer.Option("--per-case", help="Equally many from each case.")] = False,
    active: Annotated[float, typer.Option(help="Share nearest to the network's decision line.")] = 0.0,
    exclude: Annotated[
        list[Path] | None, typer.Option(help="Project whose items are left out; may be repeated.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Draw candidates of the cases that are not held out (split `test`) into a labelling project."""
    from metaphase.base.tables import named, read_manifest
    from metaphase.labels.phh3.cases import DrawConfig, draw_project

    if purpose not in ("cnn1", "cnn2"):
        raise UsageError(f"--for {purpose}", next_step="give cnn1 or cnn2")
    drawn = draw_project(
        read_manifest(manifest),
        workspace,
        output,
        cast(Literal["cnn1", "cnn2"], purpose),
        DrawConfig(count, per_case, active, seed),
        exclude=exclude or (),
    )
    if drawn.skipped:
        console.warn(f"not ready, hence not drawn from: {named(drawn.skipped)}")
    console.say(f"{len(drawn.items):,} items; label them with: metaphase label serve {output}")


@phh3.command("train-cnn1")
def train_cnn1(
    project: Project,
    output: console.Folder,
    epochs: Epochs = 20,
    batch: Batch = 64,
    samples: Samples = None,
    normalisation: Normalisation = "none",
    augment: Augment = "REB",
    start: Start = "",
    seed: Seed = 0,
    device: console.Device = None,
    as_json: console.Json = False,
) -> None:
    """Train CNN1, which tells objects from artefacts; run it again to continue after a stop."""
    from metaphase.labels.phh3 import networks as training

    config = _learning(epochs, batch, samples, normalisation, augment, seed)
    with console.progress_bar() as bar:
        result = training.train_cnn1(
            project, output, config, start=start, device=device, watch=watcher(bar, epochs)
        )
    report_training(result, as_json)


@phh3.command("train-cnn2")
def train_cnn2(
    project: Project,
    output: console.Folder,
    artefacts: Annotated[
        list[Path] | None,
        typer.Option(help="Labelled project whose artefacts are further negatives (CNN1's)."),
    ] = None,
    epochs: Epochs = 20,
    batch: Batch = 64,
    samples: Samples = None,
    normalisation: Normalisation = "none",
    augment: Augment = "REB",
    start: Start = "",
    seed: Seed = 0,
    device: console.Device = None,
    as_json: console.Json = False,
) -> None:
    """Train CNN2, which tells mitoses from all else; run it again to continue after a stop."""
    from metaphase.labels.phh3 import networks as training

    config = _learning(epochs, batch, samples, normalisation, augment, seed)
    with console.progress_bar() as bar:
        watch = watcher(bar, epochs)
        result = training.train_cnn2(
            project, output, config, artefacts=artefacts or (), start=start, device=device, watch=watch
        )
    report_training(result, as_json)


@phh3.command()
def classify(
    manifest: console.NeededManifest,
    output: console.Folder,
    cnn1: console.Cnn1 = None,
    cnn2: console.Cnn2 = None,
    device: console.Device = None,
    shard: console.Shard = "",
    workers: console.Workers = 0,
    scheduler: console.Scheduler = "",
    cluster: console.Cluster = None,
    log_json: console.LogJson = False,
    as_json: console.Json = False,
) -> None:
    """Classify every candidate; with CNN2, write each slide's mitoses. Finished slides are skipped.

    Without --cnn1 and --cnn2, by the bundled phh3-cnn1 and phh3-cnn2.
    """
    from metaphase.base.sharing.crews import hired
    from metaphase.jobs.phh3 import classify_cohort
    from metaphase.labels.phh3.networks import load_classifier

    bundled = {name: Path(f"phh3-{name}") for name in ("cnn1", "cnn2")}
    given = {name: path for name, path in (("cnn1", cnn1), ("cnn2", cnn2)) if path is not None} or bundled
    classifiers = [load_classifier(name, path, device) for name, path in given.items()]
    with hired(workers, scheduler, cluster) as crew, console.batch_bar(log_json=log_json) as watch:
        batch = classify_cohort(manifest, output, classifiers, shard=shard, watch=watch, crew=crew)
    results = [
        {"case": one.case, "candidates": one.candidates, **one.counts, "reused": one.reused}
        for one in batch.results.values()
    ]
    _report(results, as_json, ("case", "candidates", "objects", "mitoses"))
    raise typer.Exit(int(bool(batch.failures)))


def _learning(
    epochs: int, batch: int, samples: int | None, normalisation: str, augment: str, seed: int
) -> LearningConfig:
    from metaphase.labels.phh3.networks import LearningConfig

    kind = cast(Literal["none", "batch"], normalisation)  # checked when the network is described
    return LearningConfig(
        epochs=epochs, batch=batch, samples_per_epoch=samples, normalisation=kind, augment=augment, seed=seed
    )


def _report(results: list[Row], as_json: bool, columns: tuple[str, ...]) -> None:
    if as_json:
        console.print_json(results)
        return
    table = Table(*columns, box=None)
    for row in results:
        table.add_row(*(escape(str(row.get(name, ""))) for name in columns))
    if results:
        console.stdout.print(table)
