"""`metaphase data`: published data sets as manifests and truth tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.cli.console import print_json, stdout, warn
from metaphase.cli.options import Folder, Json, Mpp

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
    for warning in result.warnings:
        warn(warning)
    if as_json:
        files = {"manifest": str(result.manifest_path), "truth": str(result.truth_path)}
        print_json({**files, "labels": result.labels})
    else:
        counts = ", ".join(f"{count} {label}" for label, count in result.labels.items())
        stdout.print(f"{escape(str(result.truth_path))}: {counts}", soft_wrap=True)


@data.command("list")
def list_data() -> None:
    """List the data sets that can be read, and the files each is expected to have."""
    from metaphase.evaluation.datasets import ADAPTERS

    table = Table("name", "files", box=None)
    for adapter in ADAPTERS:
        table.add_row(adapter.name, escape(adapter.layout))
    stdout.print(table)
