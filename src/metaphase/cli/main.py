"""Entry point: the table of commands, and how errors reach the user."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from metaphase import __version__
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.cli.calibrate import calibrate
from metaphase.cli.console import complain
from metaphase.cli.detect import detect
from metaphase.cli.detections import convert, data
from metaphase.cli.evaluate import evaluate, observers
from metaphase.cli.label import label
from metaphase.cli.phh3 import phh3
from metaphase.cli.reference import reference
from metaphase.cli.register import register
from metaphase.cli.run import experiments, run
from metaphase.cli.score import score
from metaphase.cli.slides import info, simulate, tissue
from metaphase.cli.stain import stain
from metaphase.cli.train import model, train

app = typer.Typer(
    help="Whole-slide mitosis detection for breast histology.",
    epilog="Exit codes: 0 all fine, 1 some inputs failed, 2 wrong use.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(detect)
app.command()(info)
app.command()(tissue)
app.command()(register)
app.command()(simulate)
app.command()(score)
app.command()(convert)
app.command()(train)
app.command()(run)
app.command()(experiments)
app.add_typer(phh3, name="phh3")
app.add_typer(label, name="label")
app.add_typer(calibrate, name="calibrate")
app.add_typer(reference, name="reference")
app.add_typer(stain, name="stain")
app.add_typer(data, name="data")
app.add_typer(evaluate, name="evaluate")
app.add_typer(observers, name="observers")
app.add_typer(model, name="model")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"metaphase {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Whole-slide mitosis detection for breast histology."""


def main() -> None:
    """Run the command line; a foreseen error is one line on stderr, never a traceback."""
    logging.getLogger("tifffile").addHandler(logging.NullHandler())  # our errors say it, in one line
    try:
        app()
    except MetaphaseError as error:
        complain(str(error))
        sys.exit(2 if isinstance(error, UsageError) else 1)
