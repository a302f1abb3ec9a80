"""`metaphase detect`: mitoses of whole slides, with count, grade and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.base.errors import UsageError
from metaphase.cli.console import (
    AREA,
    COUNT_COLUMNS,
    Cluster,
    Device,
    Explain,
    Folder,
    Json,
    LogJson,
    Mpp,
    Paper,
    Scheduler,
    Shard,
    Site,
    Theta1,
    Theta2,
    Workers,
    batch_bar,
    count_cells,
    explain,
    explain_counts,
    print_json,
    stdout,
    told_point,
    warn,
)

if TYPE_CHECKING:
    from metaphase.base.sharing.batch import Batch
    from metaphase.jobs.detection import SlideOutcome


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
            help="A .safetensors or .onnx model; several are averaged. By default the bundled one.",
        ),
    ] = None,
    device: Device = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Probability from which a detection is a mitosis and counts; by default the model's own two."
        ),
    ] = None,
    mpp: Mpp = None,
    tissue: Annotated[
        str, typer.Option(help="A mask from `metaphase tissue`, or `whole` to search everything.")
    ] = "",
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="Also write: {names of formats}; QuPath's GeoJSON is always there."),
    ] = None,
    probability_map: Annotated[
        bool, typer.Option("--probability-map", help="Also write the probabilities as a pyramidal TIFF.")
    ] = False,
    theta1: Theta1 = None,
    theta2: Theta2 = None,
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
    floor: Annotated[
        float | None, typer.Option(help="Weakest peaks that are kept in candidates.parquet; by default 0.1.")
    ] = None,
    site: Site = None,
    paper: Paper = False,
    any_stain: Annotated[bool, typer.Option("--any-stain", help="Search other stains too.")] = False,
    allow_damage: Annotated[
        bool, typer.Option("--allow-damage", help="Leave out parts of a slide that cannot be decoded.")
    ] = False,
    tile: Annotated[int | None, typer.Option(help="Side of the tiles in pixels; changes no result.")] = None,
    batch: Annotated[int | None, typer.Option(help="Tiles at once on a GPU.")] = None,
    precision: Annotated[str, typer.Option(help="auto, float32 or fast (16 bits).")] = "auto",
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="The model's second look sees everything: slow, for checks.")
    ] = False,
    shard: Shard = "",
    workers: Workers = 0,
    scheduler: Scheduler = "",
    cluster: Cluster = None,
    allow_failed: Annotated[
        bool,
        typer.Option(
            "--allow-failed",
            help="End with 0 though slides are bad, as errors.log and the index say: for workflow engines.",
        ),
    ] = False,
    log_json: LogJson = False,
    explained: Explain = False,
    status: Annotated[
        bool, typer.Option("--status", help="Say what would be done and why, and do nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find the mitoses of slides: detections, the count in the 2 mm2 hotspot, grade, and a report to open.

    A run that was stopped goes on where it stopped. What is there and still holds is kept: another threshold,
    theta or format costs seconds. Several commands may write into one folder: each slide is done by one of
    them, and the index and tables are those of all.
    """
    from metaphase.base.sharing.batch import shard_of
    from metaphase.base.sharing.crews import hired
    from metaphase.counting.sites import load_profile
    from metaphase.jobs.cohort import cohort_slides, named_slides, without_resolution
    from metaphase.jobs.detection import detect_cohort, slide_states
    from metaphase.jobs.detection_config import DetectionConfig
    from metaphase.jobs.results import INDEX
    from metaphase.networks.detector import ReadyDetector, gpu_count, load_detector
    from metaphase.networks.engine import EngineConfig

    if bool(slides) == (manifest is not None):
        raise UsageError("slides or a manifest", next_step="give SLIDE... or --manifest, one of the two")
    config = DetectionConfig(
        threshold=threshold,
        suppress_um=suppress_um,
        smooth_um=smooth_um,
        theta1=theta1,
        theta2=theta2,
        floor=floor,
        site=None if site is None else load_profile(site),
        paper=paper,
        any_stain=any_stain,
        allow_damage=allow_damage,
        tile_px=tile,
        probability_map=probability_map,
        formats=tuple(formats or ()),
    )
    if manifest is None:
        chosen = list(named_slides(slides or [], mpp=mpp, tissue=tissue).values())
    else:
        chosen = cohort_slides(manifest, split, mpp=mpp, tissue=tissue)
        if not chosen:
            raise UsageError(
                "no H&E slide to search", path=manifest, next_step="check the columns he and split"
            )
    chosen = list(shard_of({slide.name: slide for slide in chosen}, shard).values())
    unknown = without_resolution(chosen)
    if unknown and len(unknown) == len(chosen) and not allow_failed:
        raise unknown[0]
    for error in unknown:
        warn(str(error))
    engine = EngineConfig(
        device=device,
        precision=precision,  # type: ignore[arg-type]
        exhaustive=exhaustive,
        batch=batch,
    )
    ready = ReadyDetector(load_detector(model or config.models), engine, may_start_processes=True)
    if status:
        for slide in chosen:
            explain(slide_states(slide, output / slide.name, ready, config), slide.name)
        return
    gpus = gpu_count() if workers and device in (None, "cuda") else 0
    with hired(workers, scheduler, cluster, gpus=gpus) as crew, batch_bar(AREA, log_json=log_json) as watch:
        done = detect_cohort(chosen, output, ready, config, watch=watch, crew=crew)
    for name, outcome in done.results.items():
        explain(outcome.states, name, shown=explained)
    outcomes = list(done.results.values())
    if as_json:
        print_json(_plain(done, ready.detector.card))
    elif outcomes:
        stdout.print(_table(outcomes))
        explain_counts(outcome.summary for outcome in outcomes)
        stated = outcomes[0].summary["operating_points"]
        stdout.print(f"model {stated['model']}", markup=False, highlight=False, soft_wrap=True)
        for name, what in (("mitoses", "detections"), ("count", "counted")):
            stdout.print(f"{what} {told_point(stated[name])}", markup=False, highlight=False, soft_wrap=True)
        told = stated.get("site") or "nothing: give a profile of your laboratory with --site"
        stdout.print(f"calibrated by {told}", markup=False, highlight=False, soft_wrap=True)
        stdout.print(f"Open {escape(str(output / INDEX))}", soft_wrap=True)
    raise typer.Exit(int(any(not (allow_failed and one.bad_input) for one in done.failures)))


def _plain(done: Batch[SlideOutcome], card: dict[str, Any]) -> dict[str, Any]:
    """For programs: the slides without the card, which all of them share, and those that failed."""
    slides = [
        {"folder": str(one.folder), **{key: value for key, value in one.summary.items() if key != "model"}}
        for one in done.results.values()
    ]
    failed = [{"name": one.name, "message": one.message, "foreseen": one.foreseen} for one in done.failures]
    return {"model": card, "slides": slides, "failed": failed}


def _table(outcomes: list[SlideOutcome]) -> Table:
    columns = ("slide", "mm2", "detections", "counted", *COUNT_COLUMNS, "s/mm2")
    table = Table(*columns, box=None, pad_edge=False)
    for outcome in outcomes:
        table.add_row(escape(outcome.folder.name), *_cells(outcome))
    return table


def _cells(outcome: SlideOutcome) -> list[str]:
    summary, area = outcome.summary, outcome.summary["tissue_mm2"]
    speed = f"{summary['seconds']['detection'] / max(area, 1e-9):.1f}" if outcome.searched else "kept"
    found = (str(summary[name]) for name in ("detections", "counted"))
    return [f"{area:.2f}", *found, *count_cells(summary), speed]
