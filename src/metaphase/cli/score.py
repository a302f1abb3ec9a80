"""`metaphase score`: from detections to the mitotic count and grade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.base.cautions import read_cautions
from metaphase.cli import console

Files = Annotated[
    list[Path],
    typer.Argument(
        help="Folders of results, whose counts are shown; or detections in any format that is read.",
        metavar="DETECTIONS...",
    ),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Table to write, .csv or .parquet.")]
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
    manifest: console.Manifest = None,
    slide: OneSlide = None,
    area: Area = None,
    mpp: console.Mpp = None,
    tissue: FindTissue = True,
    threshold: Thresholds = None,
    card: Card = None,
    theta1: console.Theta1 = None,
    theta2: console.Theta2 = None,
    site: console.Site = None,
    draws: Draws = 1000,
    as_json: console.Json = False,
) -> None:
    """Mitotic count in the 2 mm2 hotspot, grade and proliferation score of slides, with their uncertainty."""
    from metaphase.base.tables import write_table
    from metaphase.counting import CountConfig
    from metaphase.jobs import counting as jobs

    config, failed = CountConfig(draws=draws), False
    own_way = not threshold and (card, theta1, theta2) == (None, None, None)
    as_stored = own_way and tissue and config == CountConfig()
    as_stored = as_stored and (manifest, slide, area, mpp, site) == (None, None, None, None, None)
    if stored := jobs.stored_results(detections) if as_stored else []:
        every = [jobs.count_point([one.folder]) for one in stored]
        points = [point for place, point in enumerate(every) if point not in every[:place]]
        counts = [(one.name, one.told) for one in stored]
    else:
        points = jobs.count_points(detections, card, threshold or (), theta1=theta1, theta2=theta2)
        cases = jobs.read_cases(detections, manifest=manifest, slide=slide, mpp=mpp, area_mm2=area)
        with console.batch_bar("slides") as watch:
            profile = jobs.site_beside(detections) if own_way else None
            profile = profile if site is None else jobs.site_for(site, detections)
            batch = jobs.count_cohort(cases, points, config, tissue=tissue, site=profile, watch=watch)
        counts = [(name, one.to_dict()) for name, several in batch.results.items() for one in several]
        failed = bool(batch.failures)
    told = [(name, caution) for name, one in counts for caution in read_cautions(one["warnings"])]
    console.warn_once(dict.fromkeys(told))
    if output is not None:
        write_table(output, jobs.stated_counts(counts, points))
    if as_json:
        console.print_json([{"case": name, **one} for name, one in counts])
    elif counts:
        console.stdout.print(_table(counts))
        console.explain_counts(one for _, one in counts)
        for point in points:
            console.say(f"counted {console.told_point(point.model_dump())}")
    raise typer.Exit(int(failed))


def _table(counts: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Short enough for a narrow terminal; `most` is the busiest circle's number, at x, y."""
    several = len({one["config"]["threshold"] for _, one in counts}) > 1
    columns = ("counted", *console.COUNT_COLUMNS, "most", "at x, y")
    table = Table("slide", *(["threshold"] if several else []), *columns, box=None)
    for name, one in counts:
        circle = one["hotspot"]
        table.add_row(
            escape(name),
            *([f"{one['config']['threshold']:g}"] if several else []),
            str(one["counted"]),
            *console.count_cells(one),
            str(one["maximum"]),
            f"{circle['x']:.0f}, {circle['y']:.0f}" if one["maximum"] else "-",
        )
    return table
