"""`metaphase info`, `tissue`, `simulate` and `archive`: slides looked at, made up, and found at a server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.base.config import read_settings
from metaphase.base.errors import MetaphaseError
from metaphase.cli import console

if TYPE_CHECKING:
    from metaphase.images.inspection import SlideReport

# ---- `metaphase info`: what a slide is and what to beware of ----


def info(slides: console.Slides, mpp: console.Mpp = None, as_json: console.Json = False) -> None:
    """Show size, resolution and its source, scanner, stain, and warnings."""
    from metaphase.images.inspection import inspect_slide
    from metaphase.slides.opening import sources_with

    reports, failed, chosen = [], False, console.chosen_slides(slides)
    several = len(chosen) > 1 or chosen != slides
    for source in sources_with(chosen, mpp):
        try:
            with source.open() as opened:
                reports.append(inspect_slide(opened))
        except MetaphaseError as error:
            if not several:
                raise
            failed = True
            console.complain(str(error))
    if as_json:
        told = [report.to_dict() for report in reports]
        console.print_json(told if several else told[0])
        raise typer.Exit(int(failed))
    for report in reports:
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, value in _rows(report):
            table.add_row(f"[dim]{name}[/]", escape(value))
        console.stdout.print(table)
    console.warn_once((one.slide.name, warning) for one in reports for warning in one.warnings)
    raise typer.Exit(int(failed))


def _rows(report: SlideReport) -> list[tuple[str, str]]:
    from metaphase.slides.backends import GIVE_MPP

    info, resolution = report.slide.info, report.slide.info.resolution
    width, height = report.slide.width, report.slide.height
    rows = [("slide", str(info.path)), ("size", f"{width:,} x {height:,} px")]
    if resolution:
        extent = f"{width * resolution.mpp / 1000:.1f} x {height * resolution.mpp / 1000:.1f} mm"
        rows += [("resolution", f"{resolution.mpp:.4g} um/px (from {resolution.source})"), ("extent", extent)]
    else:
        rows.append(("resolution", f"unknown: {GIVE_MPP}"))
    rows += [
        ("objective", f"{info.objective_power:g}x" if info.objective_power else "not stated"),
        ("vendor", f"{info.vendor} (read by {info.backend})"),
        ("levels", ", ".join(f"{level.downsample:g}" for level in info.levels)),
        ("stain", f"{report.stain.name} (confidence {report.stain.confidence:.2f})"),
    ]
    return rows


# ---- `metaphase tissue`: where the tissue is ----


def tissue(
    slides: console.Slides, output: console.Folder, mpp: console.Mpp = None, as_json: console.Json = False
) -> None:
    """Outline the tissue of slides: mask (PNG), polygons for QuPath (GeoJSON), picture, area in mm2."""
    from metaphase.jobs.cohort import named_slides, outline_slides

    with console.batch_bar() as watch:
        batch = outline_slides(named_slides(console.chosen_slides(slides), mpp=mpp), output, watch=watch)
    results = [
        {
            "slide": str(one.slide),
            "area_mm2": one.area_mm2,
            "fraction": one.fraction,
            "files": [str(file) for file in one.files],
        }
        for one in batch.results.values()
    ]
    if as_json:
        console.print_json(results)
    elif results:
        console.stdout.print(_table(results))
    raise typer.Exit(int(bool(batch.failures)))


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table("slide", "tissue mm2", "of the scan", "picture", box=None)
    for row in results:
        area, fraction = f"{row['area_mm2']:.2f}", f"{row['fraction']:.0%}"
        table.add_row(escape(Path(row["slide"]).name), area, fraction, escape(row["files"][-1]))
    return table


# ---- `metaphase simulate`: paired H&E and PHH3 slides with exact truth ----


def simulate(
    output: console.Folder,
    cases: Annotated[int | None, typer.Option(help="Cases, each an H&E and a PHH3 slide.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of a slide in pixels of 0.25 um.")] = None,
    height: Annotated[int | None, typer.Option(help="Height of a slide in pixels of 0.25 um.")] = None,
    centres: Annotated[
        int | None, typer.Option(help="Laboratories; the first trains, the others test.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same files.")] = None,
    config: console.Settings = None,
    as_json: console.Json = False,
) -> None:
    """Write a cohort of simulated slide pairs with the truth about every mitosis, look-alike and shift."""
    from metaphase.simulation.cohort import simulate_cohort
    from metaphase.simulation.config import SimulationConfig

    given = {"cases": cases, "width": width, "height": height, "centres": centres, "seed": seed}
    stated = {key: value for key, value in given.items() if value is not None}
    settings = read_settings(SimulationConfig, config, **stated)
    with console.progress_bar(unit="Mpx") as bar:
        task = bar.add_task("preparing", total=1)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done / 1e6, total=total / 1e6)

        manifest = simulate_cohort(output, settings, progress=show)
    if as_json:
        console.print_json(manifest.to_dict(orient="records"))
    else:
        console.say(f"cases: {len(manifest)}, manifest: {output / 'manifest.csv'}")


# ---- `metaphase archive`: slides and results at a DICOMweb server ----

archive = typer.Typer(
    help="Slides and results at a DICOMweb server (an archive); needs metaphase\\[dicom].",
    no_args_is_help=True,
)
ServerUrl = Annotated[
    str, typer.Argument(help="The server's address, as https://HOST/dicom-web.", metavar="URL")
]


@archive.command()
def find(
    url: ServerUrl,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the files; made if absent.")],
    patient: Annotated[str | None, typer.Option("--patient", help="Only slides of this patient ID.")] = None,
    study: Annotated[str | None, typer.Option("--study", help="Only slides of this study (its UID).")] = None,
    as_json: console.Json = False,
) -> None:
    """Write a small file, NAME.dicomweb, for each slide of a server; every command takes it for the slide."""
    from metaphase.slides.archive import find_slides

    found = find_slides(url, output, patient=patient, study=study)
    if as_json:
        console.print_json([{"file": str(path), **asdict(place)} for path, place in found])
        return
    for path, _ in found:
        console.say(path)
    if not found:
        console.say("it has no slides that fit")


@archive.command()
def store(
    url: ServerUrl,
    results: Annotated[
        list[Path], typer.Argument(help="Folders of results, or DICOM files.", metavar="RESULTS...")
    ],
    as_json: console.Json = False,
) -> None:
    """Store DICOM results (`metaphase detect --format dicom`) at a server."""
    from metaphase.slides.archive import store_results

    stored = store_results(url, results)
    if as_json:
        console.print_json([str(path) for path in stored])
        return
    for path in stored:
        console.say(path)
