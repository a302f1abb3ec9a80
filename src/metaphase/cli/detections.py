"""`metaphase convert` and `metaphase data`: detections and data sets from any format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.cli.console import Folder, Json, Manifest, Mpp, print_json, say, stdout, warn

# ---- `metaphase convert`: detections from any format to any other ----


def convert(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            help="Files or folders: {titles of formats}.",
            metavar="INPUT...",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File, or with --to a folder for one file a slide.")
    ],
    to: Annotated[
        str | None,
        typer.Option(help="{names of formats}; by default what the output's name says."),
    ] = None,
    mpp: Mpp = None,
    manifest: Manifest = None,
    threshold: Annotated[float | None, typer.Option(help="Least probability that is kept.")] = None,
    suppress_um: Annotated[
        float | None,
        typer.Option(
            help="Of points of one slide and label nearer than this (um), keep the most probable.",
            metavar="UM",
        ),
    ] = None,
    slide: Annotated[
        Path | None, typer.Option(help="The DICOM slide, file or folder, to which annotations refer.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert detections, to open them in QuPath, ASAP or SlideRunner or to send them to a challenge."""
    from metaphase.detections import convert_detections

    done = convert_detections(
        inputs,
        output,
        to,
        mpp=mpp,
        manifest=manifest,
        threshold=threshold,
        suppress_um=suppress_um,
        slide=slide,
    )
    warn(*done.warnings)
    points, slides = len(done.detections.table), len(done.detections.slides)
    if as_json:
        warnings = [warning.to_dict() for warning in done.warnings]
        files = [str(file) for file in done.files]
        print_json({"points": points, "slides": slides, "files": files, "warnings": warnings})
    else:
        where = str(done.files[0]) if len(done.files) == 1 else f"{len(done.files)} files in {output}"
        say(f"{points:,} points of {slides:,} slides: {where}")


# ---- `metaphase data`: published data sets as manifests and truth tables ----

data = typer.Typer(help="Read published data sets.", no_args_is_help=True)


@data.command("import")
def import_data(
    name: Annotated[str, typer.Argument(help="Data set; see `metaphase data list`.", metavar="NAME")],
    folder: Annotated[Path, typer.Argument(help="Where it lies, as it was published.", metavar="FOLDER")],
    output: Folder,
    mpp: Mpp = None,
    as_json: Json = False,
) -> None:
    """Write the manifest and the truth table of a data set."""
    from metaphase.evaluation.datasets import import_dataset

    result = import_dataset(name, folder, output, mpp=mpp)
    warn(*result.warnings)
    if as_json:
        files = {"manifest": str(result.manifest_path), "truth": str(result.truth_path)}
        warnings = [warning.to_dict() for warning in result.warnings]
        print_json({**files, "labels": result.labels, "warnings": warnings})
    else:
        counts = ", ".join(f"{count} {label}" for label, count in result.labels.items())
        say(f"{result.truth_path}: {counts}")


@data.command("list")
def list_data() -> None:
    """List the data sets that can be read, and the files each is expected to have."""
    from metaphase.evaluation.datasets import ADAPTERS

    table = Table("name", "files", box=None)
    for adapter in ADAPTERS:
        table.add_row(adapter.name, escape(adapter.layout))
    stdout.print(table)
