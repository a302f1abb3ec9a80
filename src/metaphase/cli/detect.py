"""`metaphase detect`: mitoses of whole slides, with count, grade and report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from metaphase.base.errors import UsageError
from metaphase.cli import console

if TYPE_CHECKING:
    from metaphase.base.sharing.batch import Batch
    from metaphase.jobs.detection import SlideOutcome


MOST_ROWS = 20
"""Slides whose counts are printed; those of more are in a table beside the index."""


def detect(
    output: console.Folder,
    slides: console.Slides = [],  # noqa: B006 -- as typer wants it
    manifest: console.Manifest = None,
    split: Annotated[str, typer.Option(help="Only this split of the manifest.")] = "",
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            help="A .safetensors or .onnx model; several are averaged. By default the bundled one.",
        ),
    ] = None,
    device: console.Device = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Lowest probability that is listed and counted; by default the model's two thresholds."
        ),
    ] = None,
    mpp: console.Mpp = None,
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
    theta1: console.Theta1 = None,
    theta2: console.Theta2 = None,
    suppress_um: Annotated[
        float | None,
        typer.Option(
            help="Of two detections nearer than this, the weaker one is dropped; by default the model's own."
        ),
    ] = None,
    smooth_um: Annotated[
        float | None,
        typer.Option(help="Average probabilities over this distance first; by default the model's own."),
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(help="Lowest probability that is kept in candidates.parquet; by default 0.1."),
    ] = None,
    site: console.Site = None,
    paper: console.Paper = False,
    any_stain: Annotated[bool, typer.Option("--any-stain", help="Search other stains too.")] = False,
    allow_damage: Annotated[
        bool, typer.Option("--allow-damage", help="Leave out parts of a slide that cannot be decoded.")
    ] = False,
    tile: Annotated[int | None, typer.Option(help="Side of the tiles in pixels; changes no result.")] = None,
    batch: Annotated[int | None, typer.Option(help="Tiles at once on a GPU.")] = None,
    precision: Annotated[str, typer.Option(help="auto, float32 or fast (16 bits).")] = "auto",
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="The second network sees all tissue, too: slow, for checks.")
    ] = False,
    shard: console.Shard = "",
    workers: console.Workers = 0,
    scheduler: console.Scheduler = "",
    cluster: console.Cluster = None,
    allow_failed: Annotated[
        bool,
        typer.Option(
            "--allow-failed",
            help="Exit with 0 even if slides failed (see errors.log): for workflow engines.",
        ),
    ] = False,
    log_json: console.LogJson = False,
    explained: console.Explain = False,
    status: Annotated[
        bool, typer.Option("--status", help="Say what would be done and why, then stop.")
    ] = False,
    as_json: console.Json = False,
) -> None:
    """Find the mitoses of slides: detections, the count in the 2 mm2 hotspot, grade, and a report to open.

    Run the same command again to continue after a stop. Results that still hold are kept: another threshold,
    theta or format costs seconds. Several commands may share one folder: each slide is done by one of them,
    and index and tables cover all slides.
    """
    from metaphase.base.sharing.batch import shard_of
    from metaphase.base.sharing.crews import hired
    from metaphase.counting.sites import load_profile
    from metaphase.jobs.cohort import cohort_slides, named_slides, without_resolution
    from metaphase.jobs.detection import detect_cohort, slide_states
    from metaphase.jobs.detection_config import DetectionConfig
    from metaphase.jobs.results import COUNTS, INDEX
    from metaphase.networks.detector import ReadyDetector, gpu_count, load_detector
    from metaphase.networks.engine import EngineConfig

    if bool(slides) == (manifest is not None):
        raise UsageError("slides or a manifest", next_step="give SLIDE... or --manifest, one of the two")
    slides = console.chosen_slides(slides)
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
        chosen = list(named_slides(slides, mpp=mpp, tissue=tissue).values())
    else:
        chosen = cohort_slides(manifest, split, mpp=mpp, tissue=tissue)
        if not chosen:
            raise UsageError(
                "no H&E slide to search", path=manifest, next_step="check the columns he and split"
            )
    chosen = list(shard_of({slide.name: slide for slide in chosen}, shard).values())
    unknown = without_resolution(chosen)
    if unknown and len(unknown) == len(chosen) and not allow_failed:
        raise next(iter(unknown.values()))
    chosen.sort(key=lambda one: one.name not in unknown)  # these fail at once, not after hours
    engine = EngineConfig(
        device=device,
        precision=precision,  # type: ignore[arg-type]
        exhaustive=exhaustive,
        batch=batch,
    )
    ready = ReadyDetector(load_detector(model or config.models), engine, may_start_processes=True)
    if status:
        for slide in chosen:
            console.explain(slide_states(slide, output / slide.name, ready, config), slide.name)
        return
    gpus = gpu_count() if workers and device in (None, "cuda") else 0
    with (
        hired(workers, scheduler, cluster, gpus=gpus) as crew,
        console.batch_bar(console.AREA, log_json=log_json) as watch,
    ):
        done = detect_cohort(chosen, output, ready, config, watch=watch, crew=crew)
    for name, outcome in done.results.items():
        console.explain(outcome.states, name, shown=explained)
    outcomes = list(done.results.values())
    if as_json:
        console.print_json(_plain(done, ready.detector.card))
    elif outcomes:
        if len(outcomes) <= MOST_ROWS:
            console.stdout.print(_table(outcomes))
        done_of = f"{len(outcomes)} slide{'s' * (len(outcomes) > 1)} counted"
        kept = sum(one.resumed for one in outcomes)
        console.say(f"{done_of} ({kept} kept as they were), {len(done.failures)} failed")
        console.explain_counts(outcome.summary for outcome in outcomes)
        stated = outcomes[0].summary["operating_points"]
        deltas = [stated[name]["delta"] for name in ("mitoses", "count")]
        site = stated.get("site")
        profile = f"calibrated with the profile {site}" if site else "not calibrated (`metaphase calibrate`)"
        console.say(
            f"model {stated['model']}, {profile}; detection threshold {deltas[0]:.3g}, count {deltas[1]:.3g}"
        )
        console.say(f"report: {output / INDEX}; table of counts: {output / COUNTS}")
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
    columns = ("slide", "mm2", "detections", "counted", *console.COUNT_COLUMNS, "s/mm2")
    table = Table(*columns, box=None, pad_edge=False)
    for outcome in outcomes:
        summary, area = outcome.summary, outcome.summary["tissue_mm2"]
        speed = f"{summary['seconds']['detection'] / max(area, 1e-9):.1f}" if outcome.searched else "kept"
        found = (str(summary[name]) for name in ("detections", "counted"))
        cells = (f"{area:.2f}", *found, *console.count_cells(summary), speed)
        table.add_row(escape(outcome.folder.name), *cells)
    return table
