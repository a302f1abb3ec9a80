"""`metaphase observers`: let people judge detections, blind."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from metaphase.cli.console import print_json, stdout
from metaphase.cli.options import Folder, Json, Mpp

observers = typer.Typer(help="Blinded observer studies.", no_args_is_help=True)


@observers.command()
def export(
    detections: Annotated[Path, typer.Argument(help="Detections to judge.", metavar="DETECTIONS")],
    manifest: Annotated[Path, typer.Option(help="Manifest with the slides.")],
    output: Folder,
    key: Annotated[
        Path, typer.Option(help="File that tells which patch is what; keep it from the observer.")
    ],
    distractors: Annotated[Path | None, typer.Option(help="Table of points to mix in.")] = None,
    threshold: Annotated[float, typer.Option(help="Least probability of a detection.")] = 0.0,
    count: Annotated[int | None, typer.Option(help="Detections to draw; by default all.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draw and the order.")] = 0,
    mpp: Mpp = None,
) -> None:
    """Write shuffled patches of detections and distractors, and an answer sheet."""
    from metaphase.evaluation import StudyConfig, export_observers

    study = export_observers(
        detections, manifest, output, key=key, distractors=distractors, threshold=threshold, mpp=mpp,
        config=StudyConfig(detections=count, seed=seed),
    )  # fmt: skip
    stdout.print(f"{len(study.key)} patches in {study.folder}, key in {study.key_path}", markup=False)


@observers.command()
def read(
    key: Annotated[Path, typer.Option(help="The key of the study.")],
    answers: Annotated[
        list[Path], typer.Argument(help="Answer sheets, one an observer.", metavar="ANSWERS...")
    ],
    recall: Annotated[
        float | None, typer.Option(help="Recall of the detector, for the alternative F1.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Precision according to the observers, and the F1 that follows from it."""
    from metaphase.evaluation import read_observers

    results = read_observers(key, answers, recall=recall)
    if as_json:
        print_json([asdict(result) for result in results])
        return
    table = Table("observer", "confirmed", "precision", "95 %", "F1", box=None)
    for result in results:
        share, precision = f"{result.confirmed} of {result.judged}", result.precision
        interval = f"{precision.low:.3f} to {precision.high:.3f}"
        table.add_row(
            result.observer, share, f"{precision.value:.3f}", interval, f"{result.alternative_f1:.3f}"
        )
    stdout.print(table)
