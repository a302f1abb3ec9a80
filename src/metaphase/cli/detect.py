"""`metaphase detect`, `score`, `convert` and `data`: mitoses of whole slides, their counts, any format."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaphase.base.errors import UsageError, sentence, several
from metaphase.base.files import output_folder
from metaphase.cli import console, progress
from metaphase.cli.options import Answer, Group, given, takes

if TYPE_CHECKING:
    from rich.table import Table

    from metaphase.analysis.run import SlideOutcome
    from metaphase.base.sharing.batch import Batch
    from metaphase.counting.clinical import SlideCount


@takes(
    "analysis.config.DetectionConfig",
    "threshold",
    "any_stain",
    "allow_damage",
    "probability_map",
    "paper",
    formats="--format",
)
@takes("networks.engine.settings.EngineConfig", "device")
@takes("counting.specimen.CountConfig", others=(), field_diameter_mm="--field-diameter")
def detect(
    output: console.Folder,
    slides: console.Slides = [],  # noqa: B006 -- as typer wants it
    manifest: console.Manifest = None,
    split: str = "",
    model: console.Models = None,
    mpp: console.Mpp = None,
    tissue: str = "",
    region: Path | None = None,
    site: console.Site = None,
    workers: console.Workers = "",
    prune: bool = False,
    allow_failed: bool = False,
    log_json: bool = False,
    explain: bool = False,
    status: bool = False,
) -> Answer | None:
    """Find the mitoses of slides: detections, the count in the densest 2 mm2, and a report to open.

    Run the same command again to continue after a stop. Results that still hold are kept: another threshold,
    theta or format costs seconds. Several commands may share one folder: each slide is done by one of them,
    and index and tables cover what all of them ask for.

    Parameters:
        split: Only this split of the manifest.
        tissue: A mask from `metaphase tissue`, or `whole` to search everything.
        region: Where figures count, or do not (GeoJSON, ASAP XML); or a folder with a file for each slide.
        prune: Move results that this command does not ask for to `removed` in DIR.
        allow_failed: Exit with 0 even if slides failed (see errors.log): for workflow engines.
        log_json: Log to stderr as JSON, one line per event.
        explain: Say of every stage whether it was kept, or why it was done again.
        status: Say what would be done and why, then stop.
    """
    from metaphase.analysis.cohort import (
        asked_by,
        asker,
        cohort_slides,
        named_slides,
        with_regions,
        without_resolution,
    )
    from metaphase.analysis.config import DetectionConfig
    from metaphase.analysis.run import detect_cohort, slide_states
    from metaphase.base.tables import named
    from metaphase.counting.sites import load_profile
    from metaphase.counting.specimen import CountConfig
    from metaphase.networks.detector import ReadyDetector, gpu_count, load_detector
    from metaphase.networks.engine.settings import EngineConfig

    if bool(slides) == (manifest is not None):
        raise UsageError("slides or a manifest are needed", next_step="give SLIDE... or --manifest, not both")
    arguments, slides = slides, console.chosen_slides(slides)
    profile = None if site is None else load_profile(site)
    config = given(DetectionConfig, site=profile, counting=given(CountConfig))
    if manifest is None:
        chosen = list(named_slides(slides, mpp=mpp, tissue=tissue).values())
    else:
        chosen = cohort_slides(manifest, split, mpp=mpp, tissue=tissue)
        if not chosen:
            raise UsageError(
                "no H&E slide to search", path=manifest, next_step="check the columns he and split"
            )
    chosen = chosen if region is None else with_regions(chosen, region)
    if manifest is None:
        asked = asked_by(arguments, chosen)
    else:
        asked = {asker(manifest, split): [slide.name for slide in chosen]}
    unknown = without_resolution(chosen)
    if unknown and len(unknown) == len(chosen) and not allow_failed:
        if len(unknown) > 1:
            console.warn(f"slides without resolution: {named(unknown)}")
        raise next(iter(unknown.values()))
    chosen.sort(key=lambda slide: slide.name not in unknown)  # these fail at once, not after hours
    engine = given(EngineConfig)
    ready = ReadyDetector(load_detector(model or config.models), engine, may_start_processes=True)
    if status:
        for slide in chosen:
            console.explain(slide_states(slide, output / slide.name, ready, config), slide.name)
        return None
    gpus = gpu_count() if workers and engine.device in (None, "cuda") else 0
    with progress.cohort_work(workers, log_json=log_json, gpus=gpus) as (watch, pool):
        done = detect_cohort(chosen, output, ready, config, watch=watch, pool=pool, asked=asked, prune=prune)
    for name, outcome in done.results.items() if explain else ():
        console.explain(outcome.states, name)
    outcomes = list(done.results.values())
    failed = [failure for failure in done.failures if not (allow_failed and failure.bad_input)]
    plain = _plain(done, ready.detector.card)
    return Answer(plain, *_summary_lines(outcomes, len(done.failures), output), failed=failed)


FAILURE = ("name", "message", "foreseen")
"""What `detect --json` says of a slide that failed."""
DEMO_MPP = 0.25
DemoFolder = Annotated[Path, typer.Argument(metavar="FOLDER", callback=output_folder)]


def demo(folder: DemoFolder = Path("metaphase-demo")) -> None:
    """Find the mitotic figures of a real breast carcinoma that comes with the package.

    Four fields of BreCaHAD (Aksac et al. 2019, CC BY 4.0) become a small slide of 0.25 um/px, which the
    bundled model searches as `metaphase detect` does. They are a little soft, and the report says so.

    Parameters:
        folder: Folder for slide and results; made if absent.
    """
    import numpy as np
    from PIL import Image

    from metaphase.analysis.record import REPORT
    from metaphase.base.settings import fields_of_view
    from metaphase.slides.writer import write_fields

    slide, results = folder / "carcinoma.tif", folder / "results"
    if slide.exists() and not results.exists():
        raise UsageError(
            "exists, but is not from this demonstration", path=slide, next_step="name another folder"
        )
    fields = [np.asarray(Image.open(path)) for path in fields_of_view().values()]
    write_fields(slide, fields, DEMO_MPP)
    answer = detect(results, [slide])
    for line in (*(answer.shown if answer else ()), f"Open {results / slide.stem / REPORT} in a browser."):
        console.say(line)


def _plain(done: Batch[SlideOutcome], card: dict[str, Any]) -> dict[str, Any]:
    """For programs: the slides without the card, which all of them share, and those that failed."""
    slides = [{"folder": outcome.folder, **outcome.summary} for outcome in done.results.values()]
    for summary in slides:
        del summary["model"]
    failed = [{name: getattr(failure, name) for name in FAILURE} for failure in done.failures]
    return {"model": card, "slides": slides, "failed": failed}


def _summary_lines(outcomes: Sequence[SlideOutcome], failed: int, output: Path) -> list[str]:
    """What a person wants to know when all is done, in five lines for any number of slides."""
    from metaphase.analysis.record import COUNTS, INDEX
    from metaphase.base.sharing.batch import ERRORS
    from metaphase.counting.clinical import count_text

    kept = sum(outcome.resumed for outcome in outcomes)
    unchanged = f" ({kept:,} unchanged since an earlier run)" if kept else ""
    bad = f", {failed:,} failed: see {output / ERRORS}" if failed else ""
    lines = [f"{several(len(outcomes), 'slide')} counted{unchanged}{bad}."]
    if not outcomes:
        return lines
    counts = [outcome.in_force for outcome in outcomes]
    stated, score = outcomes[0].record.operating_points, outcomes[0].record.score
    values = [count.count for count in counts]
    low, high, middle = map(count_text, (min(values), max(values), statistics.median(values)))
    if len(counts) == 1:
        lines.append(f"Mitotic count: {counts[0]}. Mitotic score: {score.text} ({score.rule}).")
    else:
        every = f"Counts are {low} to {high}, median {middle}."
        lines.append(every if low != high else f"All counts are {low}.")
    if len({(count.kind, count.interval_note) for count in counts}) == 1:
        lines.append(sentence(counts[0].interval_note))
    else:
        lines.append("The counts differ in kind or in what their intervals rest on: see each report.")
    used = f"calibrated ({stated.site})" if stated.site else "not calibrated for this laboratory"
    listed, counted = (f"{point.delta:.3g}" for point in (stated.mitoses, stated.count))
    lines += [f"Model {stated.model}, {used}. Thresholds: {listed} to list, {counted} to count."]
    return [*lines, f"Report: {output / INDEX}. Table of counts: {output / COUNTS}."]


# ---- `metaphase convert`: detections from any format to any other ----


def convert(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            help="Files or folders: {titles_of_formats}.",
            metavar="INPUT...",
        ),
    ],
    output: console.Output,
    to: str | None = None,
    mpp: console.Mpp = None,
    manifest: console.Manifest = None,
    threshold: float | None = None,
    suppress_um: Annotated[
        float | None,
        typer.Option(
            help="Of points of one slide and label nearer than this (um), keep the most probable.",
            metavar="UM",
        ),
    ] = None,
    slide: Path | None = None,
) -> Answer:
    """Convert detections, to open them in QuPath, ASAP or SlideRunner or to send them to a challenge.

    Parameters:
        output: File, or with --to a folder for one file per slide.
        to: {names_of_formats}; by default what the output's name says.
        threshold: Lowest probability to keep.
        slide: The DICOM slide, file or folder, to which annotations refer.
    """
    from metaphase.detections.files import convert_detections

    detections, written = convert_detections(
        inputs,
        output,
        to,
        mpp=mpp,
        manifest=manifest,
        threshold=threshold,
        suppress_um=suppress_um,
        slide=slide,
    )
    console.warn(*detections.warnings)
    points, slides, files = len(detections.table), len(detections.slides), written
    where = files[0] if len(files) == 1 else f"{len(files)} files in {output}"
    plain = {"points": points, "slides": slides, "files": files, "warnings": detections.warnings}
    return Answer(plain, f"{several(points, 'point')} of {several(slides, 'slide')}: {where}")


# ---- `metaphase data`: published data sets as manifests and truth tables ----

data = Group("Read published data sets.")


@data.command("import")
def import_data(
    name: str,
    folder: Path,
    output: console.Folder,
    mpp: console.Mpp = None,
) -> Answer:
    """Write the manifest and the truth table of a data set.

    Parameters:
        name: Data set; see `metaphase data list`.
        folder: Folder of the data set, as published.
    """
    from metaphase.evaluation.datasets import import_dataset

    result = import_dataset(name, folder, output, mpp=mpp)
    console.warn(*result.dataset.warnings)
    counts = ", ".join(f"{count} {label}" for label, count in result.labels.items())
    plain: dict[str, Any] = {"manifest": result.manifest_path, "truth": result.truth_path}
    plain |= {"labels": result.labels, "warnings": result.dataset.warnings}
    return Answer(plain, f"{result.truth_path}: {counts}")


@data.command("list")
def list_data() -> None:
    """List the data sets that can be read, and the files each is expected to have."""
    from metaphase.evaluation.datasets import ADAPTERS

    rows = [(name, layout) for name, (layout, _) in ADAPTERS.items()]
    console.stdout.print(console.rows_table(("name", "files"), rows))


# ---- `metaphase score`: from detections to the mitotic count and grade ----

Files = Annotated[
    list[Path],
    typer.Argument(
        help="Folders of results, whose counts are shown; or detections in any format that is read.",
        metavar="DETECTIONS...",
    ),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Table to write, .csv or .parquet.")]

Area = Annotated[
    float | None, typer.Option("--area", help="Area of the tissue in mm2, where there is no slide.")
]
FindTissue = Annotated[bool, typer.Option("--tissue/--no-tissue", help="Find the tissue of the slides.")]
Thresholds = Annotated[
    list[float] | None,
    typer.Option(
        help="Lowest probability that counts; several give a row each, for tuning. By default the threshold "
        "for counts of the model that made the tables, else 0.8."
    ),
]


@takes("counting.specimen.CountConfig", others=("field_diameter_mm", "percentile", "seed"))
@takes("analysis.config.DetectionConfig", others=("theta1", "theta2"))
def score(
    detections: Files,
    output: Output = None,
    manifest: console.Manifest = None,
    slide: Path | None = None,
    area: Area = None,
    mpp: console.Mpp = None,
    tissue: FindTissue = True,
    threshold: Thresholds = None,
    card: Path | None = None,
    site: console.Site = None,
) -> Answer:
    """Mitotic count in the densest 2 mm2, its interval, mitotic score and proliferation score of slides.

    Parameters:
        slide: The slide itself: its um/px and tissue.
        card: Model card whose operating point is used, whatever the tables state.
    """
    from metaphase.analysis.config import DetectionConfig
    from metaphase.analysis.scoring import score_detections, stated_counts
    from metaphase.base.tables import write_table
    from metaphase.counting.specimen import CountConfig

    config, asked = given(CountConfig), given(DetectionConfig)
    with progress.batch_bar() as watch:
        scored = score_detections(
            detections,
            manifest=manifest,
            slide=slide,
            mpp=mpp,
            area_mm2=area,
            tissue=tissue,
            thresholds=threshold or (),
            theta1=asked.theta1,
            theta2=asked.theta2,
            card=card,
            site=site,
            config=None if config == CountConfig() else config,
            watch=watch,
        )
    warnings = ((name, warning) for name, count in scored.counts for warning in count.warnings)
    console.warn(*console.warnings_by_kind(dict.fromkeys(warnings)))
    if output is not None:
        write_table(output, stated_counts(scored.counts, scored.points, detections))
    plain = [{"case": name, **count.to_dict()} for name, count in scored.counts]
    shown = [_counts_table(scored.counts), *console.count_notes(count for _, count in scored.counts)]
    for point in scored.points if scored.counts else ():
        grades = "" if point.theta1 is None else f", grades at {point.theta1:g} and {point.theta2:g}"
        shown.append(f"count: threshold {point.delta:.6g}{grades} ({point.source or 'of the card'})")
    return Answer(plain, *shown, failed=scored.failures)


def _counts_table(counts: Sequence[tuple[str, SlideCount]]) -> Table:
    """Short enough for a narrow terminal; the middle of the hotspot is at x, y."""
    several = len({count.config.threshold for _, count in counts}) > 1
    rows = []
    for name, count in counts:
        threshold = [f"{count.config.threshold:g}"] if several else []
        interval, hotspot = count.interval_text or "-", count.hotspot
        where = f"{hotspot.x:.0f}, {hotspot.y:.0f}" if hotspot.count else "-"
        figures = (count.counted, count.text, interval, count.kind, count.score.text, where)
        rows.append([name, *threshold, *figures])
    headings = ["slide", "threshold", "counted", "count", "true figures", "kind", "score", "at x, y"]
    return console.rows_table([name for name in headings if several or name != "threshold"], rows)
