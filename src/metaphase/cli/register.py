"""`metaphase register`: carry points and annotations from PHH3 to H&E."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from metaphase.cli.console import Explain, Folder, Json, explain, print_json, say, stdout, warn

He = Annotated[Path, typer.Argument(help="H&E slide.", metavar="HE")]
Phh3 = Annotated[Path, typer.Argument(help="PHH3 slide of the same section.", metavar="PHH3")]
Points = Annotated[
    Path | None, typer.Option("--points", help="Points on the PHH3 slide, in any detection format.")
]
Shapes = Annotated[
    Path | None, typer.Option("--annotations", help="GeoJSON annotations to carry to the other slide.")
]
HeMpp = Annotated[
    float | None, typer.Option("--mpp", help="Micrometres per pixel, where the H&E file does not say.")
]
Phh3Mpp = Annotated[
    float | None, typer.Option("--phh3-mpp", help="The same for the PHH3 slide; by default that of --mpp.")
]
AnyStains = Annotated[bool, typer.Option("--any-stains", help="The slides need not be H&E and brown PHH3.")]
Accept = Annotated[
    bool,
    typer.Option("--accept-doubtful", help="Carry points and annotations over though the pair is doubtful."),
]
Seed = Annotated[int, typer.Option(help="Where the random tiles lie.")]


class DrawnOn(StrEnum):
    """The slide on which annotations were drawn."""

    phh3 = "phh3"
    he = "he"


Drawn = Annotated[DrawnOn, typer.Option("--drawn-on", help="The slide on which the annotations were drawn.")]


def register(
    he: He,
    phh3: Phh3,
    output: Folder,
    points: Points = None,
    annotations: Shapes = None,
    drawn_on: Drawn = DrawnOn.phh3,
    mpp: HeMpp = None,
    phh3_mpp: Phh3Mpp = None,
    any_stains: AnyStains = False,
    accept_doubtful: Accept = False,
    seed: Seed = 0,
    why: Explain = False,
    as_json: Json = False,
) -> None:
    """Register a PHH3 slide with the H&E slide of the same section, and say how far to trust it.

    Writes the transform, a picture, and the points in H&E coordinates. Those of a doubtful pair are rejected
    unless somebody looked at the picture and says --accept-doubtful. Exit code 1 when registration failed.
    """
    from metaphase.jobs.registration import register_slides
    from metaphase.labels.registration import Annotations, RegistrationConfig
    from metaphase.slides import SlideSource

    config = RegistrationConfig(seed=seed, any_stains=any_stains)
    shapes = None if annotations is None else Annotations(annotations, drawn_on.value)
    slides = SlideSource(he, mpp), SlideSource(phh3, phh3_mpp or mpp)
    summary, states = register_slides(
        *slides, output, points=points, annotations=shapes, config=config, accept_doubtful=accept_doubtful
    )
    explain(states, shown=why)
    if as_json:
        print_json(summary)
    else:
        _tell(summary, output)
    raise typer.Exit(1 if summary["verdict"] == "failed" else 0)


def _tell(summary: dict[str, Any], output: Path) -> None:
    stdout.print(f"[bold]{summary['verdict']}[/]")
    for reason in (*summary["reasons"], *summary["notes"]):
        warn(reason)
    if "scale" in summary:
        stdout.print(
            f"shift {summary['shift_x_um']:.1f}, {summary['shift_y_um']:.1f} um, "
            f"rotation {summary['rotation_deg']:.2f} degrees, scale {summary['scale']:.4f}"
        )
    if "points" in summary:
        stdout.print(
            f"{summary['points_accepted']} of {summary['points']} points accepted, "
            f"mean confidence {summary['mean_confidence']:.2f}"
        )
    if summary["verdict"] == "doubtful" and not summary["accept_doubtful"]:
        warn("nothing was carried over: if registration.png fits, say so with --accept-doubtful")
    say(f"written to {output}")
