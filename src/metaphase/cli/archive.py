"""`metaphase archive`: slides and results at a DICOMweb server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from metaphase.cli.console import print_json, say

archive = typer.Typer(
    help="Slides and results at a DICOMweb server (an archive); needs metaphase\\[dicom].",
    no_args_is_help=True,
)
ServerUrl = Annotated[
    str, typer.Argument(help="The server's address, as https://HOST/dicom-web.", metavar="URL")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]


@archive.command()
def find(
    url: ServerUrl,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the files; made if absent.")],
    patient: Annotated[str | None, typer.Option("--patient", help="Only slides of this patient ID.")] = None,
    study: Annotated[str | None, typer.Option("--study", help="Only slides of this study (its UID).")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a small file, NAME.dicomweb, for each slide of a server; every command takes it for the slide."""
    from metaphase.slides.archive import find_slides

    found = find_slides(url, output, patient=patient, study=study)
    if as_json:
        print_json([{"file": str(path), **asdict(place)} for path, place in found])
        return
    for path, _ in found:
        say(path)
    if not found:
        say("it has no slides that fit")


@archive.command()
def store(
    url: ServerUrl,
    results: Annotated[
        list[Path], typer.Argument(help="Folders of results, or DICOM files.", metavar="RESULTS...")
    ],
    as_json: AsJson = False,
) -> None:
    """Store DICOM results (`metaphase detect --format dicom`) at a server."""
    from metaphase.slides.archive import store_results

    stored = store_results(url, results)
    if as_json:
        print_json([str(path) for path in stored])
        return
    for path in stored:
        say(path)
