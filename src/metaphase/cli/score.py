"""`metaphase score`: from detections to the mitotic count and grade."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.base.cautions import unique
from metaphase.cli.console import (
    Json,
    Mpp,
    Site,
    Theta1,
    Theta2,
    batch_bar,
    print_json,
    stdout,
    told_calibrated,
    told_point,
    warn,
)

if TYPE_CHECKING:
    from metaphase.counting import SlideCount

Files = Annotated[
    list[Path],
    typer.Argument(help="Detections: files or folders, in any format that is read.", metavar="DETECTIONS..."),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Table to write, .csv or .parquet.")]
Manifest = Annotated[Path | None, typer.Option(help="Manifest with the um/px of each slide (mpp, or he).")]
OneSlide = Annotated[Path | None, typer.Option("--slide", help="The slide itself: its um/px and tissue.")]
Area = Annotated[
    float | None, typer.Option("--area", help="Tissue in mm2, where there is no slide to look at.")
]
FindTissue = Annotated[bool, typer.Option("--tissue/--no-tissue", help="Find the tissue of slides at hand.")]
Thresholds = Annotated[
    list[float] | None,
    typer.Option(
        help="Least probability that counts; several give a row each, for tuning. By default the point for "
        "counts of the model which made the tables, else 0.8."
    ),
]
Card = Annotated[
    Path | None, typer.Option(help="Model card whose operating point is used, whatever the tables state.")
]
Draws = Annotated[int, typer.Option(help="Draws behind interval and probabilities; 0 for none.")]


def score(
    detections: Files,
    output: Output = None,
    manifest: Manifest = None,
    slide: OneSlide = None,
    area: Area = None,
    mpp: Mpp = None,
    tissue: FindTissue = True,
    threshold: Thresholds = None,
    card: Card = None,
    theta1: Theta1 = None,
    theta2: Theta2 = None,
    site: Site = None,
    draws: Draws = 1000,
    as_json: Json = False,
) -> None:
    """Mitotic count in the 2 mm2 hotspot, grade and proliferation score of slides, with their uncertainty."""
    from metaphase.base.tables import write_table
    from metaphase.counting import CountConfig
    from metaphase.jobs.counting import count_cohort, count_points, read_cases, site_for, stated_counts

    points = count_points(detections, card, threshold or (), theta1=theta1, theta2=theta2)
    config = CountConfig(draws=draws)
    cases = read_cases(detections, manifest=manifest, slide=slide, mpp=mpp, area_mm2=area)
    with batch_bar("slides") as watch:
        profile = None if site is None else site_for(site, detections)
        batch = count_cohort(cases, points, config, tissue=tissue, site=profile, watch=watch)
    counts = [(name, count) for name, several in batch.results.items() for count in several]
    for name, several in batch.results.items():
        for caution in unique(caution for count in several for caution in count.warnings):
            warn(f"{name}: {caution}")
    if output is not None:
        write_table(output, stated_counts(counts, points))
    if as_json:
        print_json([{"case": name, **count.to_dict()} for name, count in counts])
    elif counts:
        stdout.print(_table(counts))
        for point in points:
            told = told_point(point.model_dump())
            stdout.print(f"counted {told}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(int(bool(batch.failures)))


def _table(counts: list[tuple[str, SlideCount]]) -> Table:
    """Short enough for a narrow terminal; `most` is the busiest circle's number, at x, y."""
    several = len({count.config.threshold for _, count in counts}) > 1
    sites = any(count.calibrated for _, count in counts)
    columns = ("found", "count", "95 %", *(("calibrated",) if sites else ()), "grade", "most", "at x, y")
    table = Table("slide", *(["threshold"] if several else []), *columns, box=None)
    for name, count in counts:
        low, high = count.count_interval
        table.add_row(
            escape(name),
            *([f"{count.config.threshold:g}"] if several else []),
            str(count.detections),
            f"{count.count:.4g}",
            f"{low:.1f}-{high:.1f}" if count.draws else "-",
            *([told_calibrated(asdict(count.calibrated))] if count.calibrated else []),
            count.grade_shown.text,
            str(count.maximum),
            f"{count.hotspot.x:.0f}, {count.hotspot.y:.0f}" if count.maximum else "-",
        )
    return table
