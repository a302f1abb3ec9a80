"""The clinical number of a slide with its evidence."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from metaphase.grading.cells import Cells, cells_around, cells_on_tissue, tissue_in_circle
from metaphase.grading.config import GradingConfig
from metaphase.grading.density import DensityMap, density_map
from metaphase.grading.doubts import doubts
from metaphase.grading.heterogeneity import heterogeneity
from metaphase.grading.hotspot import Hotspot, busiest_circle
from metaphase.grading.lattice import filled_percentile
from metaphase.grading.specimen import Specimen, specimen
from metaphase.grading.uncertainty import estimate_uncertainty, grade_of
from metaphase.tissue import TissueMask


@dataclass(frozen=True, eq=False)
class SlideScore:
    """What a slide's detections say about its proliferation."""

    count: float
    """The mitotic count: the percentile (95th) of the hotspot's counts at non-empty positions."""
    maximum: int
    """Mitoses in the busiest circle at any position."""
    hotspot: Hotspot
    """That circle."""
    grade: int
    """1, 2 or 3, from the count alone."""
    proliferation: float
    """The proliferation score: the paper takes the count itself."""
    count_interval: tuple[float, float]
    """Where the count may lie."""
    grade_probabilities: tuple[float, float, float]
    """Of grades 1, 2 and 3."""
    density: DensityMap
    heterogeneity: dict[str, float]
    """How unevenly mitoses are spread; NaN where the tissue is not known or mitoses are too few."""
    detections: int
    """Detections at or above the threshold."""
    area_mm2: float
    """Tissue on the slide; NaN where it is not known."""
    draws: int
    """Draws behind the interval and the probabilities; 0 if none were made."""
    warnings: tuple[str, ...]
    config: GradingConfig

    def to_dict(self) -> dict[str, Any]:
        """All but the density map, ready for JSON; numbers that are not known are None."""
        circle = {**asdict(self.hotspot), "per_mm2": self.hotspot.per_mm2}
        content = {**vars(self), "hotspot": circle, "config": asdict(self.config)}
        del content["density"]
        return {name: _plain(value) for name, value in content.items()}


def score_slide(
    detections: pd.DataFrame,
    *,
    mpp: float,
    tissue: TissueMask | None = None,
    area_mm2: float | None = None,
    config: GradingConfig | None = None,
) -> SlideScore:
    """Count, grade and map the mitoses of one slide.

    `detections` has x and y in level-0 pixels and probability (1 where absent); rows below the threshold do
    not count, but tell how much the threshold matters. `area_mm2` stands in for a tissue mask. On less tissue
    than the hotspot's area, the count is that of the whole slide.
    """
    config = config or GradingConfig()
    slide = specimen(detections, mpp, tissue, area_mm2, config)
    count = mitotic_count(slide)
    hotspot = find_hotspot(slide)
    uncertainty = estimate_uncertainty(
        slide.places * mpp, slide.probability, count, config, whole_slide=slide.is_small
    )
    cells = _cells(slide)
    return SlideScore(
        count=count,
        maximum=hotspot.count,
        hotspot=hotspot,
        grade=int(grade_of(count, config)),
        proliferation=count,
        count_interval=uncertainty.interval,
        grade_probabilities=uncertainty.grade_probabilities,
        density=density_map(cells, config.radius_um / 2),
        heterogeneity=heterogeneity(slide, cells, hotspot),
        detections=len(slide.mitoses_px),
        area_mm2=slide.area_mm2,
        draws=uncertainty.draws,
        warnings=(
            *(tissue.warnings if tissue is not None else ()),
            *doubts(slide, hotspot, uncertainty.draws),
        ),
        config=config,
    )


def mitotic_count(slide: Specimen) -> float:
    """The percentile of the counts at all positions of the hotspot that hold a mitosis."""
    if slide.is_small:
        return float(len(slide.mitoses_px))
    return float(filled_percentile(slide.counts.reshape(-1, 1), slide.config.percentile)[0])


def find_hotspot(slide: Specimen) -> Hotspot:
    """The busiest circle, anywhere: it may reach beyond the tissue, and says how much tissue it holds."""
    radius_px = slide.config.radius_um / slide.mpp
    if len(slide.mitoses_um):
        x_um, y_um, count = busiest_circle(slide.mitoses_um, slide.config.radius_um)
        x, y = x_um / slide.mpp, y_um / slide.mpp
    else:
        (x, y), count = _middle(slide.tissue), 0
    if slide.tissue is None:
        return Hotspot(x, y, radius_px, count, slide.config.area_mm2)
    return Hotspot(x, y, radius_px, count, tissue_in_circle(slide.tissue, x, y, radius_px))


def _middle(tissue: TissueMask | None) -> tuple[float, float]:
    if tissue is None:
        return 0.0, 0.0
    row, column = (float(np.mean(places)) + 0.5 for places in np.nonzero(tissue.mask))
    return tissue.x + column * tissue.scale, tissue.y + row * tissue.scale


def _cells(slide: Specimen) -> Cells:
    if slide.tissue is None:
        return cells_around(slide.mitoses_px, slide.mpp, 2 * slide.config.radius_um, slide.config.cell_um)
    return cells_on_tissue(slide.mitoses_px, slide.tissue, slide.config.cell_um)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
