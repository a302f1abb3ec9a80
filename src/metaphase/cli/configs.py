"""`metaphase configs` and `metaphase qupath`: configurations and scripts that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.base.config import config_files, copy_files, qupath_scripts, told_config
from metaphase.cli.console import say, stdout

configs = typer.Typer(
    help="Configurations that come with the package, for `metaphase run` and `experiments`.",
    no_args_is_help=True,
)


@configs.command("list")
def list_configs() -> None:
    """List them, with what each is for."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, path in config_files().items():
        table.add_row(name, escape(told_config(path)))
    stdout.print(table)


@configs.command()
def copy(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which of them; by default all.", metavar="NAME...")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for them; made if absent.")] = Path(
        "configs"
    ),
) -> None:
    """Copy them into a folder, to be run and changed there; a file that you changed is not replaced."""
    for path in copy_files(config_files(), names or (), output):
        say(path)


def qupath(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for them, as that of your scripts; made if absent.")
    ],
) -> None:
    """Copy the scripts for QuPath: `metaphase detect` on the open image, and corrections sent back."""
    for path in copy_files(qupath_scripts(), (), output):
        say(path)
