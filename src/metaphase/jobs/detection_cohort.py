"""`metaphase detect` for many slides: a folder each, one index, one table of all.

The folder of a cohort holds `index.html`, `detections.parquet` and `candidates.parquet` of all slides, and
`errors.log` where a slide failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metaphase.base.batch import Batch, BatchWatch, Hands, Progress, run_batch
from metaphase.base.tables import named
from metaphase.detections.table import OPERATING_POINTS
from metaphase.jobs.cohort import CohortSlide
from metaphase.jobs.detection import SlideOutcome, detect_slide
from metaphase.jobs.detection_config import DetectionConfig
from metaphase.jobs.results import OTHERWISE, write_cohort
from metaphase.networks.detector import ReadyDetector


def detect_cohort(
    slides: Sequence[CohortSlide],
    output: str | Path,
    model: ReadyDetector,
    config: DetectionConfig | None = None,
    *,
    watch: BatchWatch | None = None,
    crew: Hands | None = None,
) -> Batch[SlideOutcome]:
    """Detect slides into folders of their names; one that fails is recorded and the others go on.

    Writes the index of all reports and the tables of all slides in the folder, those of other runs too.
    """
    output = Path(output)
    (config or DetectionConfig()).check(model)

    def work(slide: CohortSlide, progress: Progress) -> SlideOutcome:
        return detect_slide(slide, output / slide.name, model, config, progress=progress)

    batch = run_batch({slide.name: slide for slide in slides}, work, output, watch, crew)
    if batch.outcomes:
        points = next((one.summary[OPERATING_POINTS] for one in batch.results.values()), None)
        cohort = write_cohort(output, points)
        if cohort.otherwise and watch is not None:
            watch.noted(f"{named(one['case'] for one in cohort.otherwise)}: {OTHERWISE}")
    return batch
