"""`metaphase detect` for many slides: a folder each, one index, one table of all.

The folder of a cohort holds `index.html`, `detections.parquet` and `candidates.parquet` of all slides, and
`errors.log` where a slide failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metaphase.base.batch import Batch, BatchWatch, Progress, run_batch
from metaphase.base.tables import read_table
from metaphase.detections import DetectionSet, joined, write_detections
from metaphase.detections.table import OPERATING_POINTS
from metaphase.jobs.cohort import CohortSlide
from metaphase.jobs.detection import (
    CANDIDATES,
    DETECTIONS,
    REPORT,
    DetectionConfig,
    SlideOutcome,
    detect_slide,
)
from metaphase.networks.detector import ReadyDetector
from metaphase.reports.cohort import CohortRow, write_cohort_index

INDEX = "index.html"


def detect_cohort(
    slides: Sequence[CohortSlide],
    output: str | Path,
    model: ReadyDetector,
    config: DetectionConfig | None = None,
    *,
    watch: BatchWatch | None = None,
) -> Batch[SlideOutcome]:
    """Detect slides into folders of their names; one that fails is recorded and the others go on.

    Writes the index of all reports and the tables of all slides.
    """
    output = Path(output)

    def work(slide: CohortSlide, progress: Progress) -> SlideOutcome:
        return detect_slide(slide, output / slide.name, model, config, progress=progress)

    batch = run_batch({slide.name: slide for slide in slides}, work, output, watch)
    if batch.outcomes:
        rows = [_row(name, outcome) for name, outcome in batch.results.items()]
        failed = [CohortRow(failure.name, error=failure.message) for failure in batch.failures]
        write_cohort_index(output / INDEX, [*rows, *failed])
    for file in (DETECTIONS, CANDIDATES):
        if batch.results:
            _write_cohort_table(output / file, list(batch.results.values()))
        else:
            (output / file).unlink(missing_ok=True)
    return batch


def _row(name: str, outcome: SlideOutcome) -> CohortRow:
    score = outcome.summary["score"]
    return CohortRow(
        name,
        report=outcome.folder / REPORT,
        count=score["count"],
        count_interval=tuple(score["count_interval"]),
        grade=score["grade"],
        grade_text=score["grade_shown"]["text"],
        proliferation=score["proliferation"],
        area_mm2=outcome.summary["tissue_mm2"],
        warnings=outcome.warnings,
    )


def _write_cohort_table(path: Path, outcomes: Sequence[SlideOutcome]) -> None:
    """Points of all slides as one table; slides without any are named in it too."""
    parts = [
        DetectionSet(read_table(outcome.folder / path.name), (str(outcome.summary["name"]),))
        for outcome in outcomes
    ]
    whole = joined(parts, path)
    whole.table.attrs[OPERATING_POINTS] = outcomes[0].summary[OPERATING_POINTS]
    write_detections(whole, path, "parquet")
