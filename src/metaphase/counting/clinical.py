"""The clinical number of a slide with its evidence and its doubts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from metaphase.base.cautions import Caution, Cautions
from metaphase.counting.calibration import CalibratedCount, Calibration
from metaphase.counting.hotspot import Hotspot, busiest_circle, filled_percentile
from metaphase.counting.maps import (
    Cells,
    DensityMap,
    cells_around,
    cells_on_tissue,
    density_map,
    heterogeneity,
    tissue_in_circle,
)
from metaphase.counting.specimen import CountConfig, Specimen, specimen, stated_config
from metaphase.counting.uncertainty import estimate_uncertainty, threshold_range
from metaphase.images.tissue import TissueMask

# ---- what a reader of a score should know before relying on it ----

MOST_OFF_TISSUE = 0.05
LEAST_HOTSPOT_TISSUE = 0.5
LEAST_TRUE_SHARE = 0.5
"""A count of which false detections may be a larger share is doubted."""
CERTAIN = 1.0
MORE_TISSUE = (
    "take a slide with more tumour where there is one; the number is not scaled up to the whole circle"
)


def doubts(slide: Specimen, hotspot: Hotspot, draws: int) -> Cautions:
    """Warnings about a slide's score, most serious first."""
    return tuple(
        doubt
        for doubt in (
            _little_tissue(slide),
            _only_area(slide),
            _off_tissue(slide),
            _hotspot_off_tissue(slide, hotspot),
            _cut_at_threshold(slide),
            _fewer_draws(slide, draws),
        )
        if doubt
    )


def _little_tissue(slide: Specimen) -> Caution | None:
    if not slide.is_small:
        return None
    text = (
        f"the slide has {slide.area_mm2:.2f} mm2 of tissue, less than the {slide.config.area_mm2:g} mm2 of a "
        "hotspot: the count is that of all its mitoses, and the grade may be too low"
    )
    return Caution("little-tissue", text, MORE_TISSUE)


def _only_area(slide: Specimen) -> Caution | None:
    """Of 2.01 mm2 a circle of 2 mm2 holds all or, in a narrow core, less than half: an area does not tell."""
    if slide.tissue is not None or slide.is_small or math.isnan(slide.area_mm2):
        return None
    text = (
        "only the area of the tissue is known: where it is narrower than the hotspot "
        f"({2e-3 * slide.config.radius_um:.1f} mm), that holds less tissue, and the count is too low"
    )
    return Caution("only-area", text, "give the slide (--slide), or the mask of its tissue")


def _off_tissue(slide: Specimen) -> Caution | None:
    if slide.tissue is None or not len(slide.mitoses_px):
        return None
    off = int((~slide.tissue.contains(slide.mitoses_px)).sum())
    if off <= MOST_OFF_TISSUE * len(slide.mitoses_px):
        return None
    text = f"{off} of {len(slide.mitoses_px)} detections lie off the tissue: is the mask that of this slide?"
    return Caution("off-tissue", text)


def _hotspot_off_tissue(slide: Specimen, hotspot: Hotspot) -> Caution | None:
    if not hotspot.count or hotspot.tissue_mm2 >= LEAST_HOTSPOT_TISSUE * slide.config.area_mm2:
        return None
    text = f"the hotspot holds only {hotspot.tissue_mm2:.2f} mm2 of tissue: its count may be too low"
    return Caution("hotspot-off-tissue", text, MORE_TISSUE)


def _cut_at_threshold(slide: Specimen) -> Caution | None:
    """Where nothing is known below the threshold, the draws cannot go there."""
    lowest, _ = threshold_range(slide.config)
    probability = slide.probability
    if not slide.config.draws or lowest == slide.config.threshold or not len(probability):
        return None
    if probability.min() == CERTAIN or (probability < slide.config.threshold).any():
        return None
    text = (
        f"no detection is below the threshold of {slide.config.threshold:g}; if the table was cut there, the "
        f"uncertainty leaves out that a lower threshold (down to {lowest:.2f}) would find more"
    )
    return Caution("cut-at-threshold", text, "give the detections below the threshold, too")


def _fewer_draws(slide: Specimen, draws: int) -> Caution | None:
    if draws >= slide.config.draws:
        return None
    text = (
        f"the uncertainty comes from {draws} draws instead of {slide.config.draws}: there are many detections"
    )
    return Caution("fewer-draws", text)


# ---- the grade, where it is earned ----


@dataclass(frozen=True, slots=True)
class ShownGrade:
    """The grade as it may be shown: one, a range, or none."""

    low: int
    high: int
    withheld: bool
    """Whether no grade is given at all."""
    text: str
    """How it is written everywhere: `2 (87 %)`, `1 to 2`, `withheld`."""
    reasons: tuple[str, ...]
    """Why it is not one grade."""

    @property
    def caution(self) -> Caution | None:
        """The same as a warning; None where one grade is given."""
        if not self.reasons:
            return None
        what = "no grade is given" if self.withheld else f"the grade is given as {self.text}"
        advice = TUNE_THETAS if self.withheld else ""
        return Caution("grade-withheld" if self.withheld else "grade-range",
                       f"{what}, for {'; '.join(self.reasons)}", advice)  # fmt: skip


TUNE_THETAS = "tune them (`metaphase evaluate tune count`), or give your own with --theta1 and --theta2"


def shown_grade(
    slide: Specimen,
    count: float,
    false: float,
    chances: tuple[float, float, float],
    calibrated: CalibratedCount | None = None,
) -> ShownGrade:
    """The grade of a count, of which so many may be `false`: one where nothing known can change it.

    A calibrated count has the grades of its interval. Thetas that were not tuned for the model give none.
    """
    config, reasons = slide.config, []
    ends = [count, count] if calibrated is None else list(calibrated.count_interval)
    low, high = (int(config.grade_of(end)) for end in ends)
    if low != high:
        reasons.append(f"the calibrated count may lie between {ends[0]:.0f} and {ends[1]:.0f}")
    elif calibrated is None and (fewer := int(config.grade_of(max(0.0, count - false)))) < low:
        low = fewer
        reasons.append(f"about {min(false, count):.1f} of the {count:g} counted may be false")
    if slide.is_small:
        wider = int(config.grade_of(ends[1] * config.area_mm2 / slide.area_mm2))
        high = max(high, wider)
        reasons.append(f"there are {slide.area_mm2:.2f} mm2 of tissue, and a grade needs {config.area_mm2:g}")
    if not config.thetas_tuned:
        reasons.insert(0, f"theta1 and theta2 ({config.theta1:g}, {config.theta2:g}) were not tuned for "
                          "this model and threshold")  # fmt: skip
        return ShownGrade(low, high, True, "withheld", tuple(reasons))
    chance = chances[low - 1]
    sure = f" ({chance:.0%})" if config.draws and math.isfinite(chance) else ""
    return ShownGrade(low, high, False, f"{low}{sure}" if low == high else f"{low} to {high}", tuple(reasons))


def uncalibrated_doubt(count: SlideCount) -> Cautions:
    """A warning that nobody has checked what the model's answers are worth in this laboratory."""
    if count.calibrated is not None or not count.detections:
        return ()
    text = (
        "the model is not calibrated here: the count is the machine's own, and how many of it are false, and "
        "how many mitoses were missed, is not known for this laboratory"
    )
    advice = "answer about 100 pictures (`metaphase calibrate`), then give the profile with --site"
    return (Caution("uncalibrated", text, advice),)


# ---- the clinical number of a slide with its evidence ----


@dataclass(frozen=True, eq=False)
class SlideCount:
    """What a slide's detections say about its proliferation."""

    count: float
    """The mitotic count: the percentile (95th) of the hotspot's counts at non-empty positions."""
    maximum: int
    """Mitoses in the busiest circle at any position."""
    hotspot: Hotspot
    """That circle."""
    grade: int
    """1, 2 or 3, from count and thetas alone; what may be shown is `grade_shown`."""
    grade_shown: ShownGrade
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
    warnings: Cautions
    config: CountConfig
    calibrated: CalibratedCount | None = None
    """What a profile of the laboratory makes of it; None where there is none."""

    def to_dict(self) -> dict[str, Any]:
        """All but the density map, ready for JSON; numbers that are not known are None."""
        circle = {**asdict(self.hotspot), "per_mm2": self.hotspot.per_mm2}
        content = {**vars(self), "hotspot": circle, "config": asdict(self.config)}
        content["grade_shown"] = asdict(self.grade_shown)
        content["calibrated"] = None if self.calibrated is None else asdict(self.calibrated)
        del content["density"]
        return {name: _plain(value) for name, value in content.items()}


def count_slide(
    detections: pd.DataFrame,
    *,
    mpp: float,
    tissue: TissueMask | None = None,
    area_mm2: float | None = None,
    config: CountConfig | None = None,
    site: Calibration | None = None,
) -> SlideCount:
    """Count, grade and map the mitoses of one slide.

    Without a `config`, the table is counted at the operating point that it carries (tables of `metaphase
    detect` do), else from 0.8 on. With a `site`, the laboratory's calibrated count stands beside it.

    `detections` has x and y in level-0 pixels and probability (1 where absent); rows below the threshold do
    not count, but tell how much the threshold matters. `area_mm2` stands in for a tissue mask. On less tissue
    than the hotspot's area, the count is that of the whole slide.
    """
    config = config or stated_config(detections)
    slide = specimen(detections, mpp, tissue, area_mm2, config)
    count = mitotic_count(slide)
    hotspot = find_hotspot(slide)
    false = config.false_per_mm2 * (slide.area_mm2 if slide.is_small else hotspot.tissue_mm2)
    uncertainty = estimate_uncertainty(
        slide.places * mpp, slide.probability, count, config, whole_slide=slide.is_small, false=false
    )
    calibrated = None if site is None else site.count(slide, hotspot)
    chances = uncertainty.grade_probabilities if calibrated is None else calibrated.grade_probabilities
    shown = shown_grade(slide, count, false, chances, calibrated)
    cells = _cells(slide)
    return SlideCount(
        count=count,
        maximum=hotspot.count,
        hotspot=hotspot,
        grade=int(config.grade_of(count)),
        grade_shown=shown,
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
            *((shown.caution,) if shown.caution else ()),
        ),
        config=config,
        calibrated=calibrated,
    )


def background_doubt(count: SlideCount) -> Cautions:
    """A warning where a count is hardly more than what the model counts where there is nothing."""
    false_per_mm2 = count.config.false_per_mm2
    if not false_per_mm2 or not count.count:
        return ()
    area_mm2 = count.hotspot.tissue_mm2 or count.config.area_mm2
    false = false_per_mm2 * area_mm2
    if false <= LEAST_TRUE_SHARE * count.count:
        return ()
    some = min(false, count.count)
    text = (
        f"of the {count.count:g} mitoses counted in {area_mm2:.2g} mm2 about {some:.0f} may be false: the "
        f"model made {false_per_mm2:.1f} false detections per mm2 where it was tuned"
    )
    advice = "look at them, or choose a higher threshold on slides of your own (`metaphase evaluate tune`)"
    return (Caution("mostly-false", text, advice),)


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
    if isinstance(value, Caution):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- scores of several slides as one table ----

COLUMNS = (
    "case", "threshold", "detections", "count", "count_low", "count_high", "grade", "p_grade1", "p_grade2",
    "p_grade3", "proliferation", "maximum", "hotspot_x", "hotspot_y", "hotspot_radius_px",
    "hotspot_per_mm2", "area_mm2", "grade_shown",
)  # fmt: skip
"""The first columns; the measures of heterogeneity follow."""


def counts_table(scores: Iterable[tuple[str, SlideCount]]) -> pd.DataFrame:
    """One row a case (and threshold, where a case was scored at several)."""
    rows = [_row(case, score) for case, score in scores]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(COLUMNS))


def _row(case: str, score: SlideCount) -> dict[str, Any]:
    first, second, third = score.grade_probabilities
    low, high = score.count_interval
    values = (
        case, score.config.threshold, score.detections, score.count, low, high, score.grade, first, second,
        third, score.proliferation, score.maximum, score.hotspot.x, score.hotspot.y, score.hotspot.radius_px,
        score.hotspot.per_mm2, score.area_mm2, score.grade_shown.text,
    )  # fmt: skip
    return {**dict(zip(COLUMNS, values, strict=True)), **score.heterogeneity}
