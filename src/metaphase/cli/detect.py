"""`metaphase detect`: mitoses of whole slides, with count, grade and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.cli.console import (
    AREA,
    for_each,
    print_json,
    progress_bar,
    refuse_same_names,
    shown_on,
    stdout,
    warn,
)
from metaphase.cli.options import Device, Folder, Json, Mpp
from metaphase.errors import UsageError

if TYPE_CHECKING:
    from metaphase.pipeline.detection import Detector, Findings, SlideOutcome
    from metaphase.web.slide_report import CohortRow

REPORT, INDEX = "report.html", "index.html"


def detect(
    output: Folder,
    slides: Annotated[
        list[Path] | None,
        typer.Argument(help="Whole-slide images, TIFFs or plain images.", metavar="SLIDE..."),
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(help="Search the H&E slides of a cohort instead, named by their cases.")
    ] = None,
    split: Annotated[str, typer.Option(help="Only this split of the manifest.")] = "",
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            help="A .safetensors model; several are averaged. By default the bundled one.",
        ),
    ] = None,
    device: Device = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Probability from which a peak counts; by default the model's own, else 0.8."),
    ] = None,
    mpp: Mpp = None,
    tissue: Annotated[
        str, typer.Option(help="A mask from `metaphase tissue`, or `whole` to search everything.")
    ] = "",
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="Also write: qupath (the default), csv, asap, coco, ..."),
    ] = None,
    probability_map: Annotated[
        bool, typer.Option("--probability-map", help="Also write the probabilities as a pyramidal TIFF.")
    ] = False,
    theta1: Annotated[float, typer.Option(help="Counts up to this are grade 1.")] = 6.0,
    theta2: Annotated[float, typer.Option(help="Counts above this are grade 3.")] = 20.0,
    suppress_um: Annotated[
        float | None,
        typer.Option(
            help="Of two detections nearer than this, the weaker one goes; by default the model's own."
        ),
    ] = None,
    smooth_um: Annotated[
        float | None,
        typer.Option(help="Average probabilities over this distance first; by default the model's own."),
    ] = None,
    floor: Annotated[float, typer.Option(help="Weakest peaks that are kept in candidates.parquet.")] = 0.1,
    any_stain: Annotated[bool, typer.Option("--any-stain", help="Search other stains too.")] = False,
    tile: Annotated[int | None, typer.Option(help="Side of the tiles in pixels; changes no result.")] = None,
    batch: Annotated[int | None, typer.Option(help="Tiles at once on a GPU.")] = None,
    precision: Annotated[str, typer.Option(help="auto, float32 or fast (half, GPU only).")] = "auto",
    as_json: Json = False,
) -> None:
    """Find the mitoses of slides: detections, the count in the 2 mm2 hotspot, grade, and a report to open.

    A run that was stopped goes on where it stopped, and finished slides are left as they are.
    """
    from metaphase.grading import GradingConfig
    from metaphase.inference import Engine, EngineConfig, PeakConfig
    from metaphase.pipeline.detection import DetectionConfig, detect_slide, load_detector

    detector = load_detector(model or ())
    peaks = PeakConfig(
        floor=floor,
        suppress_um=detector.suppress_um if suppress_um is None else suppress_um,
        smooth_um=detector.smooth_um if smooth_um is None else smooth_um,
    )
    config = DetectionConfig(
        threshold=threshold,
        mpp=mpp,
        tissue=tissue,
        any_stain=any_stain,
        tile_px=tile,
        probability_map=probability_map,
        formats=tuple(formats or ("qupath",)),
        peaks=peaks,
        grading=GradingConfig(theta1=theta1, theta2=theta2),
    )
    found = _slides(slides or [], manifest, split)
    settings = EngineConfig(device=device or "auto", precision=precision, batch=batch)  # type: ignore[arg-type]
    engine = Engine(detector.networks, settings)
    rows: list[CohortRow] = []
    bar = progress_bar(AREA)

    def search(item: tuple[str, Path]) -> SlideOutcome:
        name, path = item
        try:
            with shown_on(bar, name) as show:
                outcome = detect_slide(
                    path,
                    output / name,
                    detector,
                    engine,
                    config,
                    name=name,
                    progress=show,
                    report=lambda folder, findings: _report(folder, findings, detector),
                )
        except Exception as error:
            rows.append(_row(name, error=str(error)))
            raise
        for warning in outcome.warnings:
            warn(f"{name}: {warning}")
        rows.append(_row(name, outcome))
        return outcome

    outcomes, code = for_each(found, search, output, bar=bar)
    _finish(outcomes, rows, output, as_json)
    raise typer.Exit(code)


def _slides(paths: list[Path], manifest: Path | None, split: str) -> dict[str, tuple[str, Path]]:
    """Slides by what their results are called."""
    from metaphase.tables import read_manifest

    if bool(paths) == (manifest is not None):
        raise UsageError("slides or a manifest", next_step="give SLIDE... or --manifest, one of the two")
    if manifest is None:
        refuse_same_names(paths)
        return {path.stem: (path.stem, path) for path in paths}
    table = read_manifest(manifest)
    table = table[(table["he"] != "") & ((table["split"] == split) | (not split))]
    if table.empty:
        raise UsageError("no H&E slide to search", path=manifest, next_step="check the columns he and split")
    pairs = zip(table["case"], table["he"], strict=True)
    return {case: (case, Path(path)) for case, path in pairs}


def _report(folder: Path, findings: Findings, detector: Detector) -> str:
    from metaphase.networks import current_versions
    from metaphase.web.slide_report import ReportInput, write_slide_report

    content = ReportInput(
        tissue=findings.tissue,
        detections=findings.peaks,
        score=findings.score,
        card=detector.card,
        threshold=findings.threshold,
        warnings=findings.warnings,
        timings=findings.timings,
        stain=findings.stain,
        name=findings.name,
        versions=current_versions(),
    )
    return write_slide_report(folder / REPORT, findings.slide, content).name


def _row(name: str, outcome: SlideOutcome | None = None, error: str = "") -> CohortRow:
    from metaphase.web.slide_report import CohortRow

    if outcome is None:
        return CohortRow(name, error=error)
    score = outcome.summary["score"]
    return CohortRow(
        name,
        report=outcome.folder / REPORT,
        count=score["count"],
        count_interval=tuple(score["count_interval"]),
        grade=score["grade"],
        proliferation=score["proliferation"],
        area_mm2=outcome.summary["tissue_mm2"],
        warnings=outcome.warnings,
    )


def _finish(outcomes: list[SlideOutcome], rows: list[CohortRow], output: Path, as_json: bool) -> None:
    """The table at the end, and the page that leads to the reports."""
    from metaphase.pipeline.detection import write_cohort_tables
    from metaphase.web.slide_report import write_cohort_index

    if rows:
        write_cohort_index(output / INDEX, rows)
    if outcomes:
        write_cohort_tables(output, outcomes)
    if as_json:
        print_json([{"folder": str(outcome.folder), **outcome.summary} for outcome in outcomes])
    elif outcomes:
        stdout.print(_table(outcomes))
        stdout.print(f"Open {escape(str(output / INDEX))}", soft_wrap=True)


def _table(outcomes: list[SlideOutcome]) -> Table:
    table = Table("slide", "tissue", "found", "count", "95 %", "grade", "s/mm2", box=None, pad_edge=False)
    for outcome in outcomes:
        table.add_row(escape(outcome.folder.name), *_cells(outcome.summary, outcome.resumed))
    return table


def _cells(summary: dict[str, Any], resumed: bool) -> list[str]:
    score, area = summary["score"], summary["tissue_mm2"]
    low, high = score["count_interval"]
    chance = score["grade_probabilities"][score["grade"] - 1]
    sure = "" if chance is None else f" ({chance:.0%})"
    interval = "" if low is None else f"{low:.0f} to {high:.0f}"
    speed = "done before" if resumed else f"{summary['seconds']['detection'] / max(area, 1e-9):.1f}"
    cells = [f"{area:.2f} mm2", str(score["detections"]), f"{score['count']:.1f}", interval]
    return [*cells, f"{score['grade']}{sure}", speed]
