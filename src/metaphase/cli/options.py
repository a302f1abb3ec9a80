"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Slide = Annotated[Path, typer.Argument(help="Whole-slide image, TIFF or plain image.", metavar="SLIDE")]
Slides = Annotated[
    list[Path], typer.Argument(help="Whole-slide images, TIFFs or plain images.", metavar="SLIDE...")
]
Folder = Annotated[Path, typer.Option("-o", "--output", help="Folder for the results; made if absent.")]
Mpp = Annotated[
    float | None,
    typer.Option(help="Micrometres per pixel of the slide, where the file does not say (40x: about 0.25)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
Device = Annotated[
    str | None,
    typer.Option("--device", help="cpu, cuda or cuda:N; by default a GPU if there is one."),
]
