"""`metaphase simulate`: paired H&E and PHH3 slides with exact truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from metaphase.cli.console import print_json, progress_bar, stdout
from metaphase.cli.options import Json
from metaphase.config import read_toml


def simulate(
    out: Annotated[
        Path, typer.Argument(help="Folder for the cohort; finished cases in it are kept.", metavar="OUT")
    ],
    cases: Annotated[int | None, typer.Option(help="Cases, each an H&E and a PHH3 slide.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of a slide in pixels of 0.25 um.")] = None,
    height: Annotated[int | None, typer.Option(help="Height of a slide in pixels of 0.25 um.")] = None,
    centres: Annotated[
        int | None, typer.Option(help="Laboratories; the first trains, the others test.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same files.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any settings; options override it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a cohort of simulated slide pairs with the truth about every mitosis, look-alike and shift."""
    from metaphase.simulation import SimulationConfig, simulate_cohort

    given = {"cases": cases, "width": width, "height": height, "centres": centres, "seed": seed}
    settings = read_toml(config) if config else {}
    settings |= {key: value for key, value in given.items() if value is not None}
    with progress_bar(unit="Mpx") as bar:
        task = bar.add_task("preparing", total=1)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done / 1e6, total=total / 1e6)

        manifest = simulate_cohort(out, SimulationConfig.from_mapping(settings), progress=show)
    if as_json:
        print_json(manifest.to_dict(orient="records"))
    else:
        stdout.print(f"{len(manifest)} cases, manifest {escape(str(out / 'manifest.csv'))}", soft_wrap=True)
