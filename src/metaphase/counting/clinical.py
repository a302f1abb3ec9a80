"""The clinical number of a slide: figures in the densest circle, how many are true, scores and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy
from pydantic import computed_field

from metaphase.base.arrays import Floats, Mask
from metaphase.base.errors import ResultWarning, ResultWarnings, several, unique
from metaphase.base.later import pandas as pd
from metaphase.base.typed import Number, Stored
from metaphase.counting.hotspot import Hotspot, filled_percentile
from metaphase.counting.likely import (
    LISTED_FROM,
    ObserverError,
    draw_true_figures,
    log_odds,
    slide_prior,
    tally,
)
from metaphase.counting.regions import ANYWHERE, Scope, notes_of
from metaphase.counting.scores import MitoticScore, mitotic_scores
from metaphase.counting.specimen import (
    FIELDS,
    CountConfig,
    Specimen,
    counted_config,
    field_mm2,
    find_hotspot,
    grade_of,
    specimen,
    stated_config,
    stated_share,
)
from metaphase.counting.spread import DensityMap, cells_of, density_map, heterogeneity
from metaphase.detections.table import OPERATING_POINTS
from metaphase.images.tissue.finding import TissueMask

# ---- what a reader of a count should know before relying on it ----

MOST_OFF_TISSUE = 0.05
LEAST_HOTSPOT_TISSUE = 0.5
ALL_COUNTED = "so all its mitoses are counted and the count may be too low"
NARROW = "only the area of the tissue is known; where the tissue is narrower than the hotspot"
GIVE_TISSUE = "give the slide (--slide), or the mask of its tissue"
OFF_TISSUE = "detections lie off the tissue: is this the mask of this slide?"
MORE_TISSUE = "use a slide with more tumour if there is one; the count is not scaled up to 2 mm2"


def count_warnings(slide: Specimen, hotspot: Hotspot) -> ResultWarnings:
    """Warnings about a slide's count, most serious first."""
    config, scope, tissue, small = slide.config, slide.scope, slide.tissue, slide.is_small
    counted = len(slide.mitoses_px)
    off = 0 if tissue is None else int((~tissue.contains(slide.mitoses_px)).sum())
    area = f"{slide.area_mm2:.2f} mm2 of tissue, less than the {config.area_mm2:g} mm2 of a hotspot"
    where = "the regions of the slide hold" if scope.regions else "the slide has"
    width = f"{2e-3 * config.radius_um:.1f} mm"
    # A 2 mm2 circle holds all of 2.01 mm2 or, in a narrow core, under half: area alone cannot tell.
    only_area = tissue is None and not small and not math.isnan(slide.area_mm2)
    notes = notes_of(scope.regions)
    least_mm2 = LEAST_HOTSPOT_TISSUE * counted_config(config, scope).area_mm2
    empty = not small and hotspot.tissue_mm2 < least_mm2 and bool(hotspot.count or scope.place)
    spot = f"the {'chosen place' if scope.place else 'hotspot'} holds only {hotspot.tissue_mm2:.2f} mm2"
    noticed = (
        (small, "little-tissue", f"{where} {area}, {ALL_COUNTED}", MORE_TISSUE),
        (only_area, "only-area", f"{NARROW} ({width}), the count is too low", GIVE_TISSUE),
        (off > MOST_OFF_TISSUE * counted, "off-tissue", f"{off} of {counted} {OFF_TISSUE}", ""),
        (bool(notes), "regions-mended", notes, "look at their outlines"),
        (empty, "hotspot-off-tissue", f"{spot} of tissue: its count may be too low", MORE_TISSUE),
    )
    return tuple(ResultWarning(*words) for is_so, *words in noticed if is_so)


# ---- how many of the figures are true ----

SURE, LEAST_RIGHT = 0.8, 0.3
"""Of detections at least this probable, people must accept at least this share ..."""
FEWEST_SURE, FEWEST_NONE = 10, 5
"""... if they answered this many; of the second number, at least one."""
SAME_PX = 0.5
"""An answer is about the detection that is no farther away than this."""


class Likely(Stored):
    """How many true mitotic figures the drawn circle holds: what observers would call such."""

    figures: int
    """Median."""
    interval: tuple[int, int]
    """95 % interval."""
    unmarked: Number
    """Of them, those expected where the model lists nothing from 0.1 on."""
    answers: int
    """Answers about detections in the circle."""
    site_answers: int
    """Answers about detections of the laboratory."""


@dataclass(frozen=True, eq=False)
class SiteKnowledge:
    """What a laboratory's profile says to the count of one of its slides."""

    answers: int
    """How many it rests on."""
    shapes: tuple[Floats, ...]
    """Log-likelihoods by shape of the laboratory's other slides; see `counting.likely`."""
    error: ObserverError
    sure: tuple[int, int]
    """Answers about sure detections, and how many of them are yes."""
    own_answers: Floats
    """(n, 3): x and y of detections of this very slide that were asked about, and the answers."""


def in_circle(slide: Specimen, hotspot: Hotspot) -> Mask:
    """Which detections lie in the circle; on a small slide, all of them."""
    if slide.is_small:
        return np.ones(len(slide.positions), bool)
    return hotspot.holds(slide.positions)


def answers_about(slide: Specimen, site: SiteKnowledge | None) -> Floats:
    """What people said of each detection: on the slide, and where the laboratory was calibrated with it."""
    answer = slide.answer.copy()
    if site is not None and len(site.own_answers) and len(answer):
        away, nearest = scipy.spatial.cKDTree(slide.positions).query(site.own_answers[:, :2])
        known = (away <= SAME_PX) & np.isin(site.own_answers[:, 2], (0.0, 1.0))
        ours = nearest[known]
        answer[ours] = np.where(np.isnan(answer[ours]), site.own_answers[known, 2], answer[ours])
    return answer


def model_fits(asked: int, right: int) -> bool:
    """Whether answers about sure detections, so many of them yes, bear the model out at all."""
    return not (
        (asked >= FEWEST_SURE and right < LEAST_RIGHT * asked) or (asked >= FEWEST_NONE and right == 0)
    )


def likely_figures(
    slide: Specimen, hotspot: Hotspot, site: SiteKnowledge | None = None, kept_from: float = 0.0
) -> Likely | str:
    """How many true figures the circle holds, or why that is not said."""
    prior = slide.config.prior
    if kept_from > LISTED_FROM:
        return f"detections below {kept_from:g} were not kept"
    if prior is None:
        return "nothing is known of how this model errs in other laboratories"
    if slide.config.threshold < LISTED_FROM:
        return f"the threshold of the count is below {LISTED_FROM:g}"
    answer, inside = answers_about(slide, site), in_circle(slide, hotspot)
    listed = np.isfinite(slide.machine)
    sure = listed & (slide.machine >= SURE) & np.isfinite(slide.answer)  # a profile has its own answers
    asked, right = (0, 0) if site is None else site.sure
    asked, right = asked + int(sure.sum()), right + int(slide.answer[sure].sum())
    if not model_fits(asked, right):
        return (
            f"of {asked} sure detections that people looked at, {right} are mitotic figures: the model does "
            "not fit"
        )
    odds = log_odds(slide.machine)
    area_mm2 = slide.area_mm2 if slide.is_small else hotspot.tissue_mm2
    added = int((inside & (answer == 1) & ~(slide.machine >= LISTED_FROM)).sum())
    circle = tally(odds[inside & listed], answer[inside & listed], max(area_mm2, 1e-3), added)
    rest_mm2 = 0.0 if slide.is_small or math.isnan(slide.area_mm2) else slide.area_mm2 - area_mm2
    rest = tally(odds[~inside & listed], answer[~inside & listed], rest_mm2)
    error = ObserverError() if site is None else site.error
    expected = slide_prior(() if site is None else site.shapes, prior)
    marked, unmarked = draw_true_figures(circle, rest, expected, prior, error, slide.config.seed)
    low, middle, high = np.quantile(marked + unmarked, (0.025, 0.5, 0.975), method="nearest")
    return Likely(
        figures=int(middle),
        interval=(int(low), int(high)),
        unmarked=float(unmarked.mean()),
        answers=int(np.isfinite(answer[inside]).sum()),
        site_answers=0 if site is None else site.answers,
    )


# ---- the count ----

Kind = Literal["reviewed", "model"]
KINDS: dict[Kind, str] = {"reviewed": "reviewed by people", "model": "by the model alone"}
"""The kinds of a count in words, the better first."""


class Count(Stored):
    """The mitotic figures in the densest circle, and how many are true; the same everywhere it is shown."""

    kind: Kind
    """Who found the figures: people (with the model's call where they gave none), or the model alone."""
    count: int
    """Mitotic figures in the circle, each of which is marked."""
    likely: Likely | None
    """How many true figures the circle holds; null where that cannot be said."""
    no_interval: str = ""
    """Why it cannot be said."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """The count for reading."""
        return f"{self.count:,}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def interval_text(self) -> str:
        """The 95 % interval of the true figures for reading, `4 to 17`; empty where there is none."""
        return "" if self.likely is None else f"{self.likely.interval[0]:,} to {self.likely.interval[1]:,}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def kind_text(self) -> str:
        """What kind of count it is, in words."""
        return KINDS[self.kind]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def interval_note(self) -> str:
        """What the interval rests on, in a line."""
        if self.likely is None:
            return f"no interval: {self.no_interval}"
        basis = [f"{several(self.likely.answers, 'answer')} in the circle"] if self.likely.answers else []
        if self.likely.site_answers:
            basis.append(f"{several(self.likely.site_answers, 'answer')} of the laboratory")
        how = " and ".join(basis) or "the model's errors elsewhere, without any answer"
        return f"95 % interval of the true mitotic figures in this circle, from {how}"

    def __str__(self) -> str:
        interval = self.interval_text and f" (true figures: {self.interval_text})"
        return f"{self.text}{interval}, {self.kind_text}"


def count_text(value: float) -> str:
    """A count for reading, with a decimal where it has one and is not large.

    >>> count_text(13.25), count_text(7.0), count_text(1234.5), count_text(float("nan"))
    ('13.2', '7', '1,234', '–')
    """
    if not math.isfinite(value):
        return "–"
    return f"{value:,.1f}".removesuffix(".0") if value < 100 else f"{value:,.0f}"


class SlideCount(Count):
    """What a slide's detections say about its proliferation: the count in force, and its evidence."""

    counted_mm2: Number
    """Tissue that was counted: in the circle, or all where there is less than 2 mm²."""
    to_look_at: int
    """Detections in the circle that are listed, do not count, and about which nobody decided."""
    beneath: tuple[Count, ...]
    """Of a reviewed slide, the count without people."""
    hotspot: Hotspot
    """The densest circle of 2 mm², anywhere on the slide."""
    scores: tuple[MitoticScore, ...]
    """Mitotic score by each rule, that in force first."""
    proliferation: Number
    """Proliferation score of the paper: 95th percentile of the figures in the circle over its positions."""
    grade: int
    """Grade of the paper: of the proliferation score, by theta1 and theta2."""
    heterogeneity: dict[str, Number]
    """How unevenly mitotic figures are spread, by measure; unknown where there are too few."""
    counted: int
    """Detections of the whole slide at or above the threshold of the count, as people left them."""
    unseen: int
    """How many of them nobody has reviewed."""
    area_mm2: Number
    """Tissue of the slide."""
    warnings: ResultWarnings
    """What to know before relying on the result."""
    config: CountConfig
    """Settings of the count."""
    scope: Scope = ANYWHERE
    """Where people say that figures count: regions, and a place of the count."""

    @property
    def is_small(self) -> bool:
        """Whether all of the slide is counted, because it has less tissue than a hotspot."""
        return self.scope.place is None and self.area_mm2 < self.config.area_mm2

    @property
    def counted_config(self) -> CountConfig:
        """The settings with area and fields of what is counted."""
        return counted_config(self.config, self.scope)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def per_mm2(self) -> Number:
        """Figures per mm² of the counted tissue."""
        return self.count / self.counted_mm2 if self.counted_mm2 > 0 else math.nan

    @computed_field  # type: ignore[prop-decorator]
    @property
    def per_10_fields(self) -> Number:
        """Figures per ten high-power fields of the stated diameter."""
        return self.per_mm2 * FIELDS * field_mm2(self.counted_config.field_diameter_mm)

    @property
    def score(self) -> MitoticScore:
        """The score in force."""
        return self.scores[0]

    @property
    def in_force(self) -> Count:
        """The count in force, without the rest."""
        return Count(**{name: getattr(self, name) for name in Count.model_fields})

    @property
    def count_only(self) -> SlideCount:
        """Only the `SlideCount` part of a record."""
        return SlideCount(**{name: getattr(self, name) for name in SlideCount.model_fields})

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
    site: SiteKnowledge | None = None,
    listed: float | None = None,
    kept_from: float | None = None,
    scope: Scope = ANYWHERE,
) -> SlideCount:
    """Count, score and map the mitotic figures of one slide.

    Without a `config`, the table is counted at the operating point that it carries (tables of `metaphase
    detect` do), else from 0.8 on. With a `site`, the interval rests on the laboratory's answers, too. What is
    `listed` and does not count is to be looked at. An interval needs all detections from 0.1 on: `kept_from`
    says where they begin, by default as the table states.

    `detections` has x and y in level-0 pixels and probability (1 where absent). Of a reviewed table
    (`machine_probability`, `review`, `label`) the count is the reviewed one. `area_mm2` stands in for a
    tissue mask. On less tissue than the hotspot's area, all of the slide is counted. A `scope` says in which
    regions figures count, and at which place.
    """
    config = config or stated_config(detections)
    slide = specimen(detections, mpp, tissue, area_mm2, config, scope)
    hotspot = find_hotspot(slide)
    inside = in_circle(slide, hotspot)
    count = int((inside & slide.counted).sum())
    if kept_from is None:
        kept_from = stated_share(detections.attrs.get(OPERATING_POINTS), "search", "floor") or 0.0
    likely = likely_figures(slide, hotspot, site, kept_from)
    interval = likely.interval if isinstance(likely, Likely) else None
    counted_mm2 = slide.area_mm2 if slide.is_small else hotspot.tissue_mm2
    undecided = inside & ~slide.counted & np.isnan(slide.answer) & (slide.probability >= (listed or 1.0))
    proliferation = proliferation_score(slide)
    return SlideCount(
        kind="reviewed" if slide.is_reviewed else "model",
        count=count,
        likely=likely if isinstance(likely, Likely) else None,
        no_interval=likely if isinstance(likely, str) else "",
        counted_mm2=counted_mm2,
        to_look_at=int(undecided.sum()),
        beneath=(),
        hotspot=hotspot,
        scores=mitotic_scores(counted_config(config, scope), count, interval, counted_mm2),
        proliferation=proliferation,
        grade=int(grade_of(proliferation, config.theta1, config.theta2)),
        heterogeneity=heterogeneity(slide, hotspot),
        counted=len(slide.mitoses_px),
        unseen=slide.unseen,
        area_mm2=slide.area_mm2,
        warnings=unique((*(tissue.warnings if tissue is not None else ()), *count_warnings(slide, hotspot))),
        config=config,
        scope=scope,
    )


def slide_density(
    detections: pd.DataFrame,
    *,
    mpp: float,
    tissue: TissueMask | None,
    config: CountConfig,
    scope: Scope = ANYWHERE,
) -> DensityMap:
    """Mitoses per mm2 of tissue, smoothed, of detections as `count_slide` takes them."""
    slide = specimen(detections, mpp, tissue, None, config, scope)
    return density_map(cells_of(slide), config.radius_um / 2)


def proliferation_score(slide: Specimen) -> float:
    """The percentile of the figures in the circle, over all its positions that hold one."""
    if slide.is_small:
        return float(len(slide.mitoses_px))
    return filled_percentile(slide.counts, slide.config.percentile)


# ---- counts of several slides as one table ----

COLUMNS = (
    "case",
    "count",
    "kind",
    "likely",
    "likely_low",
    "likely_high",
    "per_mm2",
    "per_10_fields",
    "score",
    "counted_mm2",
    "to_look_at",
    "threshold",
    "counted",
    "hotspot_x",
    "hotspot_y",
    "hotspot_radius_px",
    "area_mm2",
    "proliferation",
    "grade",
    "scope",
)
"""The first columns; the measures of heterogeneity follow."""


def counts_table(counts: Iterable[tuple[str, SlideCount]]) -> pd.DataFrame:
    """One row a case (and threshold, where a case was counted at several)."""
    rows = [counts_row(case, count) for case, count in counts]
    return pd.DataFrame(rows, columns=None if rows else COLUMNS)


def counts_row(case: str, count: SlideCount) -> dict[str, Any]:
    """A row of that table, as plain values; what has no entry here is called as in `SlideCount`."""
    likely, circle = count.likely, count.hotspot
    middle, low, high = (None,) * 3 if likely is None else (likely.figures, *likely.interval)
    named: dict[str, Any] = {"case": case, "likely": middle, "likely_low": low, "likely_high": high}
    named |= {"score": count.score.text, "threshold": count.config.threshold, "scope": count.scope.text}
    named |= {"hotspot_x": circle.x, "hotspot_y": circle.y, "hotspot_radius_px": circle.radius_px}
    row = {name: named[name] if name in named else getattr(count, name) for name in COLUMNS}
    return row | count.heterogeneity
