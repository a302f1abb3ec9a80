"""The clinical number of a slide: the count in force and those beneath it, evidence and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import computed_field

from metaphase.base.errors import ResultWarning, ResultWarnings, unique
from metaphase.base.typed import Number, Stored
from metaphase.counting.calibration import (
    CalibratedCount,
    SiteCalibration,
    estimate_uncertainty,
    threshold_range,
)
from metaphase.counting.hotspot import Hotspot, busiest_circle, filled_percentile
from metaphase.counting.specimen import (
    CountConfig,
    DensityMap,
    Specimen,
    density_map,
    heterogeneity,
    specimen,
    stated_config,
    tissue_in_circle,
)
from metaphase.detections.table import OPERATING_POINTS
from metaphase.images.tissue.finding import TissueMask

# ---- what a reader of a score should know before relying on it ----

MOST_OFF_TISSUE = 0.05
LEAST_HOTSPOT_TISSUE = 0.5
LEAST_TRUE_SHARE = 0.5
"""A count of which false positives may be a larger share is doubted."""
CERTAIN = 1.0
MORE_TISSUE = "use a slide with more tumour if there is one; the count is not scaled up to 2 mm2"


def warnings(slide: Specimen, hotspot: Hotspot, draws: int, is_own: bool = False) -> ResultWarnings:
    """Warnings about a slide's score, most serious first; what `is_own` was not cut by others."""
    config, found = slide.config, []
    if slide.is_small:
        text = (
            f"the slide has {slide.area_mm2:.2f} mm2 of tissue, less than the {config.area_mm2:g} mm2 of a "
            "hotspot, so all its mitoses are counted and the count may be too low"
        )
        found.append(ResultWarning("little-tissue", text, MORE_TISSUE))
    elif slide.tissue is None and not math.isnan(slide.area_mm2):
        # Of 2.01 mm2 a circle of 2 mm2 holds all or, in a narrow core, less than half: an area does not tell.
        text = (
            "only the area of the tissue is known; where the tissue is narrower than the hotspot "
            f"({2e-3 * config.radius_um:.1f} mm), the count is too low"
        )
        advice = "give the slide (--slide), or the mask of its tissue"
        found.append(ResultWarning("only-area", text, advice))
    counted = len(slide.mitoses_px)
    off = int((~slide.tissue.contains(slide.mitoses_px)).sum()) if slide.tissue is not None and counted else 0
    if off > MOST_OFF_TISSUE * counted:
        text = f"{off} of {counted} detections lie off the tissue: is this the mask of this slide?"
        found.append(ResultWarning("off-tissue", text))
    empty = hotspot.tissue_mm2 < LEAST_HOTSPOT_TISSUE * config.area_mm2
    if empty and hotspot.count and not slide.is_small:
        text = f"the hotspot holds only {hotspot.tissue_mm2:.2f} mm2 of tissue: its count may be too low"
        found.append(ResultWarning("hotspot-off-tissue", text, MORE_TISSUE))
    lowest, _ = threshold_range(config)
    probability = slide.machine[np.isfinite(slide.machine)]
    drawn = config.draws and lowest != config.threshold and len(probability) and not is_own
    if drawn and probability.min() != CERTAIN and not (probability < config.threshold).any():
        text = (
            f"no detection is below the threshold of {config.threshold:.3g}: the counting range does not "
            f"show what a slightly lower threshold ({lowest:.2f}) would add"
        )
        advice = "give the detections below the threshold, too"
        found.append(ResultWarning("cut-at-threshold", text, advice))
    if draws < config.draws:
        text = f"with so many detections the uncertainty rests on {draws} draws, not {config.draws}"
        found.append(ResultWarning("fewer-draws", text))
    return tuple(found)


# ---- the grade, where it is earned ----


@dataclass(frozen=True, slots=True)
class ShownGrade:
    """The grade as it may be shown: one, a range, or none."""

    __pydantic_config__: ClassVar = {"strict": True, "allow_inf_nan": False, "use_attribute_docstrings": True}

    low: int
    """Lowest grade that is possible."""
    high: int
    """Highest grade that is possible."""
    withheld: bool
    """Whether no grade is shown."""
    text: str
    """The grade as it is shown: `2 (87 %)`, `1 to 2`, `withheld`."""
    reasons: tuple[str, ...]
    """Why it is not a single grade."""

    @property
    def warning(self) -> ResultWarning | None:
        """The same as a warning; None where one grade is given."""
        if not self.reasons:
            return None
        what = "no grade is given" if self.withheld else f"the grade is given as {self.text}"
        advice = TUNE_THETAS if self.withheld else ""
        return ResultWarning("grade-withheld" if self.withheld else "grade-range",
                       f"{what} because {', and '.join(self.reasons)}", advice)  # fmt: skip


TUNE_THETAS = "tune both (`metaphase evaluate tune count`), or give your own theta1 and theta2 (--set)"


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
        reasons.append(f"a grade needs {config.area_mm2:g} mm2 of tissue (there are {slide.area_mm2:.2f})")
    if not config.thetas_tuned:
        reasons.insert(0, f"theta1 and theta2 ({config.theta1:g}, {config.theta2:g}) were not tuned for "
                          "this model and threshold")  # fmt: skip
        return ShownGrade(low, high, True, "withheld", tuple(reasons))
    chance = chances[low - 1]
    sure = f" ({chance:.0%})" if config.draws and math.isfinite(chance) else ""
    return ShownGrade(low, high, False, f"{low}{sure}" if low == high else f"{low} to {high}", tuple(reasons))


# ---- the counts of a slide: which one is in force, and what its interval means ----

Kind = Literal["reviewed", "calibrated", "model"]
KINDS: dict[Kind, str] = {
    "reviewed": "reviewed by people",
    "calibrated": "calibrated for the laboratory",
    "model": "by the model alone, not calibrated",
}
"""The kinds of a count in words, the best first."""
COUNTING_RANGE = "counting range"
"""What an interval is called that knows nothing of the model's own errors."""


class Count(Stored):
    """A mitotic count of a slide, and how far it is to be trusted. Computed once, and shown everywhere."""

    kind: Kind
    """Where the count comes from: people (what they did not answer counts as without them), the laboratory's
    profile, or the model alone."""
    count: Number
    """Mitotic count in 2 mm²."""
    count_interval: tuple[Number, Number] | None
    """Lower and upper end of its interval; null where none was drawn."""
    interval_name: str
    """`95 % interval`, or `counting range` where the model's own errors are not included."""
    interval_means: str
    """What the interval covers."""
    leaves_out: str
    """What the interval does not cover."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """The count for reading."""
        return count_text(self.count)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def interval_text(self) -> str:
        """Its interval for reading, `3.9 to 16.7`; empty where there is none, or where both ends agree."""
        low, high = map(count_text, self.count_interval or (math.nan, math.nan))
        return f"{low} to {high}" if low != high else ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def kind_text(self) -> str:
        """Its kind for reading."""
        return KINDS[self.kind]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def interval_note(self) -> str:
        """What the interval means and leaves out, in a line."""
        return f"{self.interval_name}: {self.interval_means}; it does not include {self.leaves_out}"

    def __str__(self) -> str:
        interval = self.interval_text and f" ({self.interval_text})"
        return f"{self.text}{interval}, {self.kind_text}"


def count_text(value: float) -> str:
    """A count for reading, with a decimal where it has one and is not large.

    >>> count_text(13.25), count_text(7.0), count_text(1234.5), count_text(float("nan"))
    ('13.2', '7', '1,234', '–')
    """
    if not math.isfinite(value):
        return "–"
    return f"{value:,.1f}".removesuffix(".0") if value < 100 else f"{value:,.0f}"


def _counted_by(
    slide: Specimen, interval: tuple[float, float] | None, calibrated: CalibratedCount | None, answers: int
) -> tuple[Count, ...]:
    """The counts of a slide, the best first; its own `interval` knows nothing of the model's errors."""
    unknown = "the model's own errors (false positives and missed mitoses)"
    machine = Count(
        kind="model",
        count=mitotic_count(slide),
        count_interval=interval,
        interval_name=COUNTING_RANGE,
        interval_means="how the count varies between sections and with a slightly different threshold",
        leaves_out=unknown,
    )
    people = "errors of the observers, and mitoses that nobody marked"
    looked = f"{people}; {unknown} among those that nobody looked at" if slide.unseen else people
    if calibrated is None:
        reviewed = {"kind": "reviewed", "leaves_out": looked}
        return (machine.model_copy(update=reviewed) if slide.is_reviewed else machine,)
    best = Count(
        kind="calibrated",
        count=calibrated.count,
        count_interval=calibrated.count_interval,
        interval_name=f"{slide.config.confidence:.0%} interval".replace("%", " %"),
        interval_means=f"the true count of this slide, estimated from {answers} answers of its laboratory",
        leaves_out="errors of the observers, and slides unlike those they answered about",
    )
    if not slide.is_reviewed:
        return (best, machine)
    meaning = f"the true count; where nobody looked, estimated from {answers} answers of the laboratory"
    reviewed = {"kind": "reviewed", "interval_means": meaning, "leaves_out": people}
    return (best.model_copy(update=reviewed),)


# ---- the clinical number of a slide with its evidence ----


class SlideCount(Count):
    """What a slide's detections say about its proliferation: the count in force, and its evidence."""

    counted_mm2: Number
    """Area of the count: 2 mm², or all tissue where there is less."""
    beneath: tuple[Count, ...]
    """Counts of the other kinds, the better first."""
    maximum: int
    """Mitotic figures in the busiest circle."""
    hotspot: Hotspot
    """The busiest circle of 2 mm², anywhere on the slide."""
    grade: int
    """Grade that follows from count, theta1 and theta2 alone. Show `grade_shown` instead."""
    grade_shown: ShownGrade
    """The grade, as far as it can be defended."""
    proliferation: Number
    """Proliferation score: the count."""
    grade_probabilities: tuple[Number, Number, Number]
    """Probabilities of grades 1, 2 and 3."""
    heterogeneity: dict[str, Number]
    """How unevenly mitotic figures are spread, by measure; unknown where there are too few."""
    counted: int
    """Detections of the whole slide at or above the threshold of the count, as people left them."""
    unseen: int
    """How many of them nobody has reviewed."""
    area_mm2: Number
    """Tissue of the slide."""
    draws: int
    """Bootstrap draws behind the interval and the probabilities; 0 if none were made."""
    warnings: ResultWarnings
    """What to know before relying on the result."""
    config: CountConfig
    """Settings of the count."""
    calibrated: CalibratedCount | None = None
    """The calibrated count; null without a profile of the laboratory."""

    @property
    def in_force(self) -> Count:
        """The best count there is, by itself: reviewed, else calibrated, else the model's."""
        return Count(**{name: getattr(self, name) for name in Count.model_fields})

    @property
    def counts(self) -> tuple[Count, ...]:
        """The count in force, and those beneath it."""
        return (self.in_force, *self.beneath)

    def to_dict(self) -> dict[str, Any]:
        """The count alone as plain values, ready for JSON; what is not known is None."""
        fields = {*SlideCount.model_fields, *SlideCount.model_computed_fields}
        return self.model_dump(mode="json", include=fields)


def count_slide(
    detections: pd.DataFrame,
    *,
    mpp: float,
    tissue: TissueMask | None = None,
    area_mm2: float | None = None,
    config: CountConfig | None = None,
    site: SiteCalibration | None = None,
) -> SlideCount:
    """Count, grade and map the mitoses of one slide.

    Without a `config`, the table is counted at the operating point that it carries (tables of `metaphase
    detect` do), else from 0.8 on. With a `site`, the count in force is the laboratory's calibrated one.

    `detections` has x and y in level-0 pixels and probability (1 where absent); rows below the threshold do
    not count, but tell how much the threshold matters. Of a reviewed table (`machine_probability`, `review`,
    `label`) the count is the reviewed one. `area_mm2` stands in for a tissue mask. On less tissue
    than the hotspot's area, the count is that of the whole slide.
    """
    config = config or stated_config(detections)
    slide = specimen(detections, mpp, tissue, area_mm2, config)
    hotspot = find_hotspot(slide)
    false = _false_per_mm2(config, slide.unseen, len(slide.mitoses_px))
    false *= slide.area_mm2 if slide.is_small else hotspot.tissue_mm2
    uncertainty = estimate_uncertainty(
        slide.positions * mpp,
        slide.probability,
        mitotic_count(slide),
        config,
        whole_slide=slide.is_small,
        false=false,
    )
    calibrated = None if site is None else site.count(slide, hotspot)
    drawn = uncertainty.interval if uncertainty.draws else None
    counts = _counted_by(slide, drawn, calibrated, 0 if site is None else site.answers)
    best, count = counts[0], counts[0].count
    chances = uncertainty.grade_probabilities if calibrated is None else calibrated.grade_probabilities
    shown = shown_grade(slide, count, false, chances, calibrated)
    made = SlideCount(
        **dict(best),
        counted_mm2=min(config.area_mm2, slide.area_mm2),
        beneath=counts[1:],
        maximum=hotspot.count,
        hotspot=hotspot,
        grade=int(config.grade_of(count)),
        grade_shown=shown,
        proliferation=count,
        grade_probabilities=chances,
        heterogeneity=heterogeneity(slide, slide.cells, hotspot),
        counted=len(slide.mitoses_px),
        unseen=slide.unseen,
        area_mm2=slide.area_mm2,
        draws=uncertainty.draws,
        warnings=(
            *(tissue.warnings if tissue is not None else ()),
            *warnings(slide, hotspot, uncertainty.draws, OPERATING_POINTS in detections.attrs),
            *((shown.warning,) if shown.warning else ()),
        ),
        config=config,
        calibrated=calibrated,
    )
    against = unique((*_background_warning(made), *made.warnings, *_uncalibrated_warning(made)))
    return made.model_copy(update={"warnings": against})


def slide_density(
    detections: pd.DataFrame, *, mpp: float, tissue: TissueMask | None, config: CountConfig
) -> DensityMap:
    """Mitoses per mm2 of tissue, smoothed, of detections as `count_slide` takes them."""
    return density_map(specimen(detections, mpp, tissue, None, config).cells, config.radius_um / 2)


def _false_per_mm2(config: CountConfig, unseen: int, counted: int) -> float:
    """False positives per mm2 among those that count: what people looked at is not false."""
    return config.false_per_mm2 * (unseen / counted if counted else 1.0)


def _uncalibrated_warning(count: SlideCount) -> ResultWarnings:
    """A warning that nobody has checked the model's answers, where that is so."""
    if count.calibrated is not None or not count.unseen:
        return ()
    text = (
        f"the model is not calibrated for this laboratory: how many of the {count.unseen} counted that "
        "nobody looked at are false, and how many were missed, is not known"
    )
    advice = "answer about 100 pictures (`metaphase calibrate`), then use the profile with --site"
    return (ResultWarning("uncalibrated", text, advice),)


def _background_warning(count: SlideCount) -> ResultWarnings:
    """A warning where a count is hardly more than what the model counts where there is nothing."""
    false_per_mm2 = _false_per_mm2(count.config, count.unseen, count.counted)
    if not false_per_mm2 or not count.count or count.calibrated is not None:
        return ()
    area_mm2 = count.hotspot.tissue_mm2 or count.config.area_mm2
    false = false_per_mm2 * area_mm2
    if false <= LEAST_TRUE_SHARE * count.count:
        return ()
    some = min(false, count.count)
    text = (
        f"of the {count.count:g} mitoses counted in {area_mm2:.2g} mm2 about {some:.0f} may be false: the "
        f"model made {false_per_mm2:.1f} false positives per mm2 where it was tuned"
    )
    advice = "review them, or choose a higher threshold on slides of your own (`metaphase evaluate tune`)"
    return (ResultWarning("mostly-false", text, advice),)


def mitotic_count(slide: Specimen) -> float:
    """The percentile of the counts at all positions of the hotspot that hold a mitosis."""
    if slide.is_small:
        return float(len(slide.mitoses_px))
    return float(filled_percentile(slide.counts.reshape(-1, 1), slide.config.percentile)[0])


def find_hotspot(slide: Specimen) -> Hotspot:
    """The busiest circle, anywhere: it may reach beyond the tissue, and says how much tissue it holds."""
    radius_px, tissue, x, y, count = slide.config.radius_um / slide.mpp, slide.tissue, 0.0, 0.0, 0
    if len(slide.mitoses_um):
        x_um, y_um, count = busiest_circle(slide.mitoses_um, slide.config.radius_um)
        x, y = x_um / slide.mpp, y_um / slide.mpp
    elif tissue is not None:
        row, column = (float(np.mean(positions)) + 0.5 for positions in np.nonzero(tissue.mask))
        x, y = tissue.x + column * tissue.scale, tissue.y + row * tissue.scale
    area_mm2 = slide.config.area_mm2 if tissue is None else tissue_in_circle(tissue, x, y, radius_px)
    return Hotspot(x=x, y=y, radius_px=radius_px, count=count, tissue_mm2=area_mm2)


# ---- scores of several slides as one table ----

COLUMNS = (
    "case", "count", "kind", "count_low", "count_high", "interval", "grade", "grade_shown", "proliferation",
    "threshold", "counted", "maximum", "hotspot_x", "hotspot_y", "hotspot_radius_px", "hotspot_per_mm2",
    "area_mm2", "p_grade1", "p_grade2", "p_grade3",
)  # fmt: skip
"""The first columns; the measures of heterogeneity follow."""


def counts_table(counts: Iterable[tuple[str, SlideCount]]) -> pd.DataFrame:
    """One row a case (and threshold, where a case was counted at several)."""
    rows = [counts_row(case, count) for case, count in counts]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(COLUMNS))


def counts_row(case: str, count: SlideCount) -> dict[str, Any]:
    """One of them, as plain values."""
    one = count.to_dict()
    low, high = one["count_interval"] or (one["count"], one["count"])
    circle = one["hotspot"]
    values = (
        case, one["count"], one["kind"], low, high, one["interval_name"], one["grade"],
        one["grade_shown"]["text"], one["proliferation"], one["config"]["threshold"], one["counted"],
        one["maximum"], circle["x"], circle["y"], circle["radius_px"], circle["per_mm2"], one["area_mm2"],
        *one["grade_probabilities"],
    )  # fmt: skip
    return {**dict(zip(COLUMNS, values, strict=True)), **one["heterogeneity"]}
