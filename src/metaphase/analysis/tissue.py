"""`metaphase tissue`: the outlines of slides, for people and for `--tissue`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from metaphase.analysis.cohort import CohortSlide
from metaphase.base.errors import ResultWarnings
from metaphase.base.sharing.batch import Batch, BatchWatch, run_batch
from metaphase.images.tissue.finding import find_tissue, save_overlay, save_tissue


@dataclass(frozen=True)
class Outlined:
    """The tissue of a slide, and the files that show it, the picture last."""

    slide: Path
    area_mm2: float
    fraction: float
    """Of what the scanner filled."""
    files: tuple[Path, ...]
    warnings: ResultWarnings


def outline_slides(
    slides: Mapping[str, CohortSlide], output: str | Path, *, watch: BatchWatch | None = None
) -> Batch[Outlined]:
    """Write mask, polygons and picture of each slide's tissue; a bad slide is recorded, the others go on."""
    folder = Path(output)

    def outline(item: CohortSlide, _progress: object) -> Outlined:
        with item.slide.open() as slide:
            mask = find_tissue(slide)
            files = (*save_tissue(mask, folder, item.name), save_overlay(slide, mask, folder, item.name))
            whole_mm2 = slide.bounds.area * (slide.mpp / 1000) ** 2
        return Outlined(item.slide.path, mask.area_mm2, mask.area_mm2 / whole_mm2, files, mask.warnings)

    return run_batch({str(item.slide.path): item for item in slides.values()}, outline, folder, watch)
