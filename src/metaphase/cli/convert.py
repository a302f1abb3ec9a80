"""`metaphase convert`: detections from any format to any other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from metaphase.cli.console import print_json, stdout
from metaphase.cli.options import Json, Mpp


def convert(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            help="Files or folders: CSV, Parquet, QuPath GeoJSON, ASAP XML, Grand-Challenge JSON, COCO, "
            "SlideRunner SQLite.",
            metavar="INPUT...",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File, or with --to a folder for one file a slide.")
    ],
    to: Annotated[
        str | None,
        typer.Option(
            help="csv, parquet, qupath, asap, grand-challenge, coco or sliderunner; "
            "by default what the output's name says.",
        ),
    ] = None,
    mpp: Mpp = None,
    manifest: Annotated[Path | None, typer.Option(help="Table of case, mpp, width and height.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Least probability that is kept.")] = None,
    as_json: Json = False,
) -> None:
    """Convert detections, to open them in QuPath, ASAP or SlideRunner or to send them to a challenge."""
    from metaphase.detections import convert_detections

    done = convert_detections(inputs, output, to, mpp=mpp, manifest=manifest, threshold=threshold)
    points, slides = len(done.detections.table), len(done.detections.slides)
    if as_json:
        print_json({"points": points, "slides": slides, "files": [str(file) for file in done.files]})
    else:
        where = str(done.files[0]) if len(done.files) == 1 else f"{len(done.files)} files in {output}"
        stdout.print(f"{points:,} points of {slides:,} slides: {escape(where)}", soft_wrap=True)
