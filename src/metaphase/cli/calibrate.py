"""`metaphase calibrate`: about 100 answers make a laboratory's counts calibrated ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from metaphase.cli.console import Folder, Json, print_json, say, stdout

if TYPE_CHECKING:
    from metaphase.evaluation.sites import SiteProfile

calibrate = typer.Typer(help="Calibrate a model for a laboratory by about 100 answers.", no_args_is_help=True)

Calibrated = Annotated[
    Path, typer.Argument(help="Folder that `metaphase calibrate draw` made.", metavar="CALIBRATION")
]


@calibrate.command()
def draw(
    results: Annotated[
        list[Path],
        typer.Argument(help="Folders of `metaphase detect`: the laboratory's slides.", metavar="RESULTS..."),
    ],
    output: Folder,
    answers: Annotated[int, typer.Option(help="How many pictures are asked about, squares included.")] = 100,
    squares: Annotated[
        int, typer.Option(help="Of them, squares of tissue in which mitoses are counted.")
    ] = 20,
    square_um: Annotated[float, typer.Option(help="Side of the squares.")] = 256.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same sample.")] = 0,
) -> None:
    """Draw what to answer: detections of all probabilities, and squares of tissue, to see what is missed."""
    from metaphase.evaluation.sites import SampleConfig
    from metaphase.jobs.calibration import DETECTIONS, SQUARES, draw_sample

    drawn = draw_sample(results, output, SampleConfig(answers, squares, square_um, seed))
    lines = [
        f"{drawn.detections} detections and {drawn.squares} squares of {drawn.slides} slides. Answer both:",
        f"  metaphase label serve {output / DETECTIONS}",
        f"  metaphase label serve {output / SQUARES}",
        f"then: metaphase calibrate fit {output} -o site.json",
    ]
    for line in lines:
        say(line)


@calibrate.command()
def fit(
    calibration: Calibrated,
    output: Annotated[Path, typer.Option("-o", "--output", help="The site profile to write, JSON.")],
    name: Annotated[
        str, typer.Option(help="What to call the laboratory; by default the folder's name.")
    ] = "",
    answers: Annotated[
        Path | None, typer.Option(help="A CSV with item, answer (and observer) instead of the two projects.")
    ] = None,
    missed: Annotated[
        float, typer.Option(help="Share of mitoses that the reviewers are known to call something else.")
    ] = 0.0,
    false_alarms: Annotated[
        float, typer.Option(help="Share of all else that they are known to call a mitosis.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Make the site profile of the answers, for `metaphase detect --site`."""
    from metaphase.counting.populations import ReviewerError
    from metaphase.evaluation.sites import save_profile
    from metaphase.jobs.calibration import fit_profile

    profile = fit_profile(calibration, name, answers=answers, reviewer=ReviewerError(missed, false_alarms))
    save_profile(output, profile)
    if as_json:
        print_json(profile.model_dump(mode="json", exclude={"draws", "design"}))
        return
    stdout.print(_table(profile))
    say(f"{profile.told()}, model {profile.model}")
    say(f"metaphase detect SLIDE... -o DIR --site {output}")


def _table(profile: SiteProfile) -> Table:
    table = Table("of the laboratory's slides", "value [95 %]", box=None, pad_edge=False)
    for point, delta in profile.deltas.items():
        for name, told in (("precision", "right"), ("recall", "found"), ("false_per_mm2", "false per mm2")):
            if name in profile.at[point]:
                table.add_row(f"{told} at the point {point} ({delta:.4g})", str(profile.at[point][name]))
    table.add_row("share of mitoses with any detection", str(profile.found))
    table.add_row("mitoses per mm2", str(profile.mitoses_per_mm2))
    return table
