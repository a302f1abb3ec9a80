"""`metaphase info`, `tissue`, `simulate`, `archive`, `stain`: slides looked at, made up, found, stained."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.cli import console, progress
from metaphase.cli.options import Answer, Group, given, takes

if TYPE_CHECKING:
    from metaphase.images.inspection import SlideReport
    from metaphase.images.stain.colours import HsdColours

# ---- `metaphase info`: what a slide is and what to beware of ----


def info(slides: console.Slides, mpp: console.Mpp = None) -> Answer:
    """Show size, resolution and its source, scanner, stain, and warnings."""
    from metaphase.images.inspection import inspect_slide
    from metaphase.images.nuclei import look_warnings
    from metaphase.slides.opening import sources_with

    reports, problems, chosen = [], console.Problems(), console.chosen_slides(slides)
    several = len(chosen) > 1 or chosen != slides
    for source in sources_with(chosen, mpp):
        try:
            with source.open() as opened:
                seen = inspect_slide(opened)
                reports.append(replace(seen, warnings=(*seen.warnings, *look_warnings(opened))))
        except MetaphaseError as error:
            if not several:
                raise
            problems.tell(source.path.name, str(error))
    failed = problems.end()
    plain: Any = [report.to_dict() for report in reports]
    facts = [_facts(report) for report in reports]
    if several:
        rows = [[value for _, value in slide] for slide in facts]
        table = console.rows_table([name for name, _ in facts[0]] if facts else (), rows)
    else:
        table = console.rows_table((), facts[0])
    warnings = ((report.slide.name, warning) for report in reports for warning in report.warnings)
    plain = plain if several else plain[0]
    return Answer(plain, table, warnings=console.warnings_by_kind(warnings), failed=failed)


def _facts(report: SlideReport) -> list[tuple[str, str]]:
    from metaphase.slides.backends import GIVE_MPP

    info, resolution = report.slide.info, report.slide.info.resolution
    width, height = report.slide.width, report.slide.height
    rows = [("slide", str(info.path)), ("size", f"{width:,} x {height:,} px")]
    if resolution:
        extent = f"{width * resolution.mpp / 1000:.1f} x {height * resolution.mpp / 1000:.1f} mm"
        rows += [("resolution", f"{resolution.mpp:.4g} um/px (from {resolution.source})"), ("extent", extent)]
    else:
        rows += [("resolution", f"unknown: {GIVE_MPP}"), ("extent", "unknown")]
    rows += [
        ("objective", f"{info.objective_power:g}x" if info.objective_power else "not stated"),
        ("vendor", f"{info.vendor} (read by {info.backend})"),
        ("levels", ", ".join(f"{level.downsample:g}" for level in info.levels)),
        ("stain", f"{report.stain.name} (confidence {report.stain.confidence:.2f})"),
    ]
    return rows


# ---- `metaphase tissue`: where the tissue is ----


def tissue(slides: console.Slides, output: console.Folder, mpp: console.Mpp = None) -> Answer:
    """Outline the tissue of slides: mask (PNG), polygons for QuPath (GeoJSON), picture, area in mm2."""
    from metaphase.analysis.cohort import named_slides
    from metaphase.analysis.tissue import outline_slides

    with progress.batch_bar() as watch:
        batch = outline_slides(named_slides(console.chosen_slides(slides), mpp=mpp), output, watch=watch)
    outlined = batch.results.values()
    plain = [
        {name: getattr(outline, name) for name in ("slide", "area_mm2", "fraction", "files")}
        for outline in outlined
    ]
    rows = [
        (outline.slide.name, f"{outline.area_mm2:.2f}", f"{outline.fraction:.0%}", outline.files[-1])
        for outline in outlined
    ]
    table = console.rows_table(("slide", "tissue mm2", "of the scan", "picture"), rows)
    return Answer(plain, table, failed=batch.failures)


# ---- `metaphase simulate`: paired H&E and PHH3 slides with exact truth ----


@takes("simulation.config.SimulationConfig", "cases", "width", "height", "centres", "seed", others=())
def simulate(
    output: console.Folder,
    config: console.Settings = None,
) -> Answer:
    """Write a cohort of simulated slide pairs with the truth about every mitosis, look-alike and shift."""
    from metaphase.simulation.cohort import simulate_cohort
    from metaphase.simulation.config import SimulationConfig

    settings = given(SimulationConfig, config)
    with progress.reporting() as report:
        manifest = simulate_cohort(output, settings, progress=report)
    line = f"cases: {len(manifest)}, manifest: {output / 'manifest.csv'}"
    return Answer(manifest.to_dict(orient="records"), line)


# ---- `metaphase archive`: slides and results at a DICOMweb server ----

archive = Group("Slides and results at a DICOMweb server (an archive); needs metaphase\\[dicom].")
ServerUrl = Annotated[
    str, typer.Argument(help="The server's address, as https://HOST/dicom-web.", metavar="URL")
]


@archive.command()
def find(
    url: ServerUrl,
    output: console.Output,
    patient: str | None = None,
    study: str | None = None,
) -> Answer:
    """Write a small file, NAME.dicomweb, for each slide of a server; every command takes it for the slide.

    Parameters:
        output: Folder for the files; made if absent.
        patient: Only slides of this patient ID.
        study: Only slides of this study (its UID).
    """
    from metaphase.slides.archive import find_slides

    found = find_slides(url, output, patient=patient, study=study)
    plain = [{"file": path, **asdict(remote)} for path, remote in found]
    lines = [str(path) for path, _ in found] or ["it has no matching slides"]
    return Answer(plain, *lines)


@archive.command()
def store(
    url: ServerUrl,
    results: Annotated[
        list[Path], typer.Argument(help="Folders of results, or DICOM files.", metavar="RESULTS...")
    ],
) -> Answer:
    """Store DICOM results (`metaphase detect --format dicom`) at a server."""
    from metaphase.slides.archive import store_results

    stored = store_results(url, results)
    return Answer(stored, *stored)


stain = Group("Separate, vary and standardise stains.")


class Stains(StrEnum):
    """Which stains to separate."""

    he = "he"
    dab = "dab"
    hed = "hed"


@stain.command()
def deconvolve(
    slide: console.Slide,
    output: console.Output,
    stains: Stains = Stains.he,
) -> None:
    """Write a picture of each stain of a slide or image.

    Parameters:
        output: Folder for the pictures.
        stains: he: H, E, residual; dab: H, DAB, residual; hed: H, E, DAB.
    """
    from metaphase.images.stain.deconvolution import H_DAB_RESIDUAL, HE_RESIDUAL, HED
    from metaphase.images.stain.standardisation import write_stain_pictures
    from metaphase.slides.opening import open_slide

    matrix = {Stains.he: HE_RESIDUAL, Stains.dab: H_DAB_RESIDUAL, Stains.hed: HED}[stains]
    with open_slide(slide) as opened:
        for path in write_stain_pictures(opened, output, matrix):
            console.say(str(path))


@stain.command()
def standardise(
    slide: console.Slide,
    output: console.Output,
    template: Path | None = None,
    transform: Path | None = None,
    mpp: console.Mpp = None,
) -> None:
    """Give a slide the colours of another laboratory.

    Parameters:
        output: A slide (.tif), a picture (.png, .jpg) or the transform (.json).
        template: Slide, or saved template (.json), to look like; by default breast H&E.
        transform: Apply this saved transform instead of fitting one.
    """
    from metaphase.images.stain.standardisation import StainTransform, fit_slide, standardise_slide
    from metaphase.slides.opening import sources_with

    with sources_with([slide], mpp)[0].open() as opened:
        if transform is not None:
            if template is not None:
                raise UsageError("--transform has a template of its own", next_step="leave --template out")
            chosen = StainTransform.load(transform)
        else:
            chosen = fit_slide(opened, _template(template))
        standardise_slide(opened, chosen, output)
    console.say(str(output))


def _template(path: Path | None) -> HsdColours | None:
    from metaphase.images.stain.colours import HsdColours
    from metaphase.images.stain.standardisation import colours_of
    from metaphase.slides.opening import open_slide

    if path is None:
        return None
    if path.suffix == ".json":
        return HsdColours.load(path)
    with open_slide(path) as reference:
        return colours_of(reference)
