"""`metaphase convert`, `data` and `score`: detections and data sets of any format, and counts of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.base.cautions import read_cautions
from metaphase.cli.console import (
    COUNT_COLUMNS,
    Folder,
    Json,
    Manifest,
    Mpp,
    Site,
    Theta1,
    Theta2,
    batch_bar,
    count_cells,
    explain_counts,
    print_json,
    say,
    stdout,
    told_point,
    warn,
    warn_once,
)

# ---- `metaphase convert`: detections from any format to any other ----


def convert(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            help="Files or folders: {titles of formats}.",
            metavar="INPUT...",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File, or with --to a folder for one file per slide.")
    ],
    to: Annotated[
        str | None,
        typer.Option(help="{names of formats}; by default what the output's name says."),
    ] = None,
    mpp: Mpp = None,
    manifest: Manifest = None,
    threshold: Annotated[float | None, typer.Option(help="Lowest probability that is kept.")] = None,
    suppress_um: Annotated[
        float | None,
        typer.Option(
            help="Of points of one slide and label nearer than this (um), keep the most probable.",
            metavar="UM",
        ),
    ] = None,
    slide: Annotated[
        Path | None, typer.Option(help="The DICOM slide, file or folder, to which annotations refer.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert detections, to open them in QuPath, ASAP or SlideRunner or to send them to a challenge."""
    from metaphase.detections import convert_detections

    done = convert_detections(
        inputs,
        output,
        to,
        mpp=mpp,
        manifest=manifest,
        threshold=threshold,
        suppress_um=suppress_um,
        slide=slide,
    )
    warn(*done.warnings)
    points, slides = len(done.detections.table), len(done.detections.slides)
    if as_json:
        warnings = [warning.to_dict() for warning in done.warnings]
        files = [str(file) for file in done.files]
        print_json({"points": points, "slides": slides, "files": files, "warnings": warnings})
    else:
        where = str(done.files[0]) if len(done.files) == 1 else f"{len(done.files)} files in {output}"
        say(f"{points:,} points of {slides:,} slides: {where}")


# ---- `metaphase data`: published data sets as manifests and truth tables ----

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
    warn(*result.warnings)
    if as_json:
        files = {"manifest": str(result.manifest_path), "truth": str(result.truth_path)}
        warnings = [warning.to_dict() for warning in result.warnings]
        print_json({**files, "labels": result.labels, "warnings": warnings})
    else:
        counts = ", ".join(f"{count} {label}" for label, count in result.labels.items())
        say(f"{result.truth_path}: {counts}")


@data.command("list")
def list_data() -> None:
    """List the data sets that can be read, and the files each is expected to have."""
    from metaphase.evaluation.datasets import ADAPTERS

    table = Table("name", "files", box=None)
    for adapter in ADAPTERS:
        table.add_row(adapter.name, escape(adapter.layout))
    stdout.print(table)


# ---- `metaphase score`: from detections to the mitotic count and grade ----

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
        help="Lowest probability that counts; several give a row each, for tuning. By default the point for "
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
        with batch_bar("slides") as watch:
            profile = jobs.site_beside(detections) if own_way else None
            profile = profile if site is None else jobs.site_for(site, detections)
            batch = jobs.count_cohort(cases, points, config, tissue=tissue, site=profile, watch=watch)
        counts = [(name, one.to_dict()) for name, several in batch.results.items() for one in several]
        failed = bool(batch.failures)
    told = [(name, caution) for name, one in counts for caution in read_cautions(one["warnings"])]
    warn_once(dict.fromkeys(told))
    if output is not None:
        write_table(output, jobs.stated_counts(counts, points))
    if as_json:
        print_json([{"case": name, **one} for name, one in counts])
    elif counts:
        stdout.print(_table(counts))
        explain_counts(one for _, one in counts)
        for point in points:
            say(f"counted {told_point(point.model_dump())}")
    raise typer.Exit(int(failed))


def _table(counts: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Short enough for a narrow terminal; `most` is the busiest circle's number, at x, y."""
    several = len({one["config"]["threshold"] for _, one in counts}) > 1
    columns = ("counted", *COUNT_COLUMNS, "most", "at x, y")
    table = Table("slide", *(["threshold"] if several else []), *columns, box=None)
    for name, one in counts:
        circle = one["hotspot"]
        table.add_row(
            escape(name),
            *([f"{one['config']['threshold']:g}"] if several else []),
            str(one["counted"]),
            *count_cells(one),
            str(one["maximum"]),
            f"{circle['x']:.0f}, {circle['y']:.0f}" if one["maximum"] else "-",
        )
    return table
