"""`metaphase detect` for many slides: a folder each, one index, one table of all.

The folder of a cohort holds `index.html`, `detections.parquet` and `candidates.parquet` of all slides, and
`errors.log` where a slide failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metaphase.base.batch import Batch, BatchWatch, Progress, run_batch
from metaphase.jobs.cohort import CohortSlide
from metaphase.jobs.detection import DetectionConfig, SlideOutcome, detect_slide
from metaphase.jobs.results import SlideResult, write_cohort
from metaphase.networks.detector import ReadyDetector
from metaphase.reports.cohort import CohortRow


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
        results = [SlideResult(one.folder, one.summary) for one in batch.results.values()]
        failed = [CohortRow(failure.name, error=failure.message) for failure in batch.failures]
        write_cohort(output, results, failed)
    return batch
