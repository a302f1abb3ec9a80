"""Whether calibrated counts hold in laboratories that no model saw: coverage of their intervals, and width.

python recipes/accuracy/calibration_coverage.py [--repetitions 200] [--answers 100] [--workers 2]

Each repetition makes a laboratory with a detector behaviour of its own (fitted to what the bundled model does
on MiDeSeC and MITOS-ATYPIA-14, and moved at random from there): slides that differ in mitoses and
look-alikes, a reviewer who errs at known rates, 100 answers about the first slides, and the count of slides
that nobody looked at. The truth of a slide is the count of its mitoses by the same definition.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit, logit
from scipy.stats import t as student

from metaphase.counting.calibration import SiteCalibration, evidence
from metaphase.counting.clinical import count_slide, find_hotspot, mitotic_count
from metaphase.counting.populations import ReviewerError
from metaphase.counting.sites import (
    Answered,
    Fitted,
    SampleConfig,
    draw_detections,
    draw_squares,
    fit_site,
    strata,
    supposed_chance,
)
from metaphase.counting.specimen import CountConfig, Specimen, specimen

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Row = dict[str, float]
SIDE_UM = 3600.0
AREA_MM2 = (SIDE_UM / 1000) ** 2
FLOOR = 0.1
DELTAS: dict[Literal["mitoses", "count"], float] = {"mitoses": 0.8946, "count": 0.9629}
FALSE_PER_MM2 = 4.0
"""At the count's point, as the card of the bundled model says."""
CONFIG = CountConfig(step_um=200.0, draws=200, threshold=DELTAS["count"], false_per_mm2=FALSE_PER_MM2)
SLIDES, NEW = 10, 2
"""Slides that are asked about, and new ones that are counted."""
REVIEWER = ReviewerError(missed=0.06, false_alarms=0.03)


@dataclass(frozen=True)
class Laboratory:
    """How a detector behaves there."""

    middle: float
    """Mean log-odds of mitoses."""
    width: float
    blind: float
    """Share of mitoses that it cannot see at all."""
    tail: float
    """Scale of the look-alikes' log-odds above the floor."""
    shape: float
    lookalikes: float
    """Per mm2, from the floor on, in the median slide ..."""
    unlike: float
    """... and how much slides differ."""


@dataclass(frozen=True, eq=False)
class Slide:
    """A slide: what the machine says, and what is there."""

    points_um: Floats
    probability: Floats
    true: Mask
    mitoses_um: Floats
    """All of them, missed ones included."""
    area_mm2: float = AREA_MM2

    @property
    def table(self) -> pd.DataFrame:
        """Detections in pixels of 1 um."""
        x, y = self.points_um.T
        return pd.DataFrame({"x": x, "y": y, "probability": self.probability})

    @property
    def specimen(self) -> Specimen:
        """As counting sees it."""
        return specimen(self.table, 1.0, None, self.area_mm2, CONFIG)

    @property
    def true_count(self) -> float:
        """The count by the same definition if all mitoses were known."""
        x, y = self.mitoses_um.T
        truth = pd.DataFrame({"x": x, "y": y, "probability": 1.0})
        return mitotic_count(specimen(truth, 1.0, None, self.area_mm2, CONFIG))


def laboratory(generator: np.random.Generator) -> Laboratory:
    """One at random around what the bundled model does on real fields."""
    return Laboratory(
        middle=generator.normal(3.0, 0.6),
        width=generator.uniform(1.7, 2.5),
        blind=generator.uniform(0.0, 0.12),
        tail=generator.uniform(1.4, 2.2),
        shape=generator.uniform(1.1, 1.5),
        lookalikes=float(np.exp(generator.normal(np.log(200), 0.4))),
        unlike=generator.uniform(0.2, 0.6),
    )


def slide(lab: Laboratory, generator: np.random.Generator) -> Slide:
    """Mitoses even and in a focus, look-alikes anywhere."""
    level = float(np.exp(generator.normal(np.log(6.0), 0.9)))
    even = generator.uniform(0, SIDE_UM, (generator.poisson(level * AREA_MM2), 2))
    focus = generator.uniform(0.2, 0.8, 2) * SIDE_UM
    more = focus + generator.normal(0, 500, (generator.poisson(level * generator.uniform(0, 3)), 2))
    positions = np.clip(np.concatenate([even, more]), 0, SIDE_UM - 1)
    odds = generator.normal(lab.middle, lab.width, len(positions))
    seen = (odds >= logit(FLOOR)) & (generator.uniform(size=len(positions)) >= lab.blind)
    density = lab.lookalikes * np.exp(generator.normal(0, lab.unlike))
    others = generator.uniform(0, SIDE_UM - 1, (generator.poisson(density * AREA_MM2), 2))
    false = logit(FLOOR) + lab.tail * generator.weibull(lab.shape, len(others)) + generator.normal(0, 0.3)
    kept = false >= logit(FLOOR)
    true = np.r_[np.ones(seen.sum(), bool), np.zeros(kept.sum(), bool)]
    points = np.concatenate([positions[seen], others[kept]])
    return Slide(points, expit(np.r_[odds[seen], false[kept]]), true, positions)


def calibrated(
    slides: Sequence[Slide], sample: SampleConfig, reviewer: ReviewerError, generator: np.random.Generator
) -> tuple[Fitted, list[SiteCalibration]]:
    """Draw the sample, let the reviewer answer, and learn; also what counts need, by slide and for others."""
    side = int(np.ceil(max(one.points_um.max(initial=1.0) for one in slides) / sample.square_um))
    known, hot = [], []
    cells: list[npt.NDArray[np.int64]] = []
    positions: list[npt.NDArray[np.int64]] = []
    for number, one in enumerate(slides):
        known.append(
            evidence(one.points_um, one.probability, counted_from=CONFIG.threshold, area_mm2=one.area_mm2,
                     config=CONFIG)
        )  # fmt: skip
        spot = find_hotspot(one.specimen)
        hot.append(np.hypot(*(one.points_um - (spot.x, spot.y)).T) <= spot.radius_px)
        for where, points in ((cells, one.points_um), (positions, one.mitoses_um)):
            column, row = np.minimum(points // sample.square_um, side - 1).astype(np.int64).T
            where.append((number * side + row) * side + column)
    every, number_of = np.concatenate(known), np.repeat(np.arange(len(slides)), [len(part) for part in known])
    probability = np.concatenate([one.probability for one in slides])
    true, cell, there = (np.concatenate(x) for x in ([one.true for one in slides], cells, positions))
    chance = supposed_chance(every)
    asked, inclusion = draw_detections(
        strata(probability, np.concatenate(hot)), chance, sample.answers - sample.squares, generator
    )
    answer, luck = np.full(len(true), np.nan), generator.uniform(size=len(asked))
    answer[asked] = np.where(true[asked], luck >= reviewer.missed, luck < reviewer.false_alarms)
    expected = np.bincount(cell, chance, minlength=len(slides) * side * side).astype(np.float64)
    squares, _ = draw_squares(np.ones(len(expected)), expected, sample.squares, generator)
    seen = np.isin(there, squares) & (generator.uniform(size=len(there)) >= reviewer.missed)
    given = Answered(
        every, probability, number_of, answer, inclusion, np.isin(cell, squares),
        sum(one.area_mm2 for one in slides), len(squares), float(seen.sum()),
    )  # fmt: skip
    fitted = fit_site(given, DELTAS, reviewer)
    described = [np.column_stack([one.points_um, answer[number_of == k]]) for k, one in enumerate(slides)]
    described = [rows[np.isfinite(rows[:, 2])] for rows in described]
    new = SiteCalibration(fitted.laboratory, CONFIG.threshold, given.answers, reviewer)
    return fitted, [*(replace(new, own_answers=rows) for rows in described), new]


def outcome(one: Slide, site: SiteCalibration) -> Row:
    """How a new slide is counted, with and without calibration, against its truth."""
    whole, truth = one.specimen, one.true_count
    spot = find_hotspot(whole)
    found = site.count(whole, spot)
    plain = count_slide(one.table, mpp=1.0, area_mm2=one.area_mm2, config=CONFIG)
    inside = float((np.hypot(*(one.mitoses_um - (spot.x, spot.y)).T) <= spot.radius_px).sum())
    inside = truth if whole.is_small else inside
    (low, high), (first, last) = found.count_interval, found.in_hotspot_interval
    (least, most), section = plain.count_interval or (truth, truth), found.section_interval
    return {
        "true count": truth,
        "calibrated count": found.count,
        "calibrated interval holds it": low <= truth <= high,
        "  its width": high - low,
        "  truth below it": truth < low,
        "  truth above it": truth > high,
        "calibrated interval of sections holds it": section[0] <= truth <= section[1],
        "true number in the hotspot": inside,
        "calibrated number in the hotspot": found.in_hotspot,
        "  its interval holds it": first <= inside <= last,
        "uncalibrated count": plain.count,
        "uncalibrated interval holds the true count": least <= truth <= most,
        "  its width ": most - least,
    }


def by_answers_alone(slides: Sequence[Slide], truth: float, answers: int, rng: np.random.Generator) -> Row:
    """All answers spent on random squares, without the machine: what they say of a new slide's count.

    Of each slide the mitoses in 2 mm2 are estimated, and a new slide is one more such number (Student's).
    """
    side, each = 256.0, answers // len(slides)
    corners = rng.uniform(0, SIDE_UM - side, (len(slides), each, 1, 2))
    inside = [
        ((one.mitoses_um >= corner) & (one.mitoses_um < corner + side)).all(axis=-1).sum()
        for one, corner in zip(slides, corners, strict=True)
    ]
    counts = np.array(inside) / each * 2e6 / side**2
    half = student.ppf(0.975, len(slides) - 1) * counts.std(ddof=1) * np.sqrt(1 + 1 / len(slides))
    low, high = max(0.0, counts.mean() - half), counts.mean() + half
    return {"answers alone hold the true count": low <= truth <= high, "  their width": high - low}


def repetition(number: int, sample: SampleConfig) -> tuple[list[Row], list[Row], Row]:
    """One laboratory: its new slides, one of those that were asked about, and what is said of itself."""
    generator = np.random.default_rng((7, number))
    lab = laboratory(generator)
    slides = [slide(lab, generator) for _ in range(SLIDES)]
    fitted, sites = calibrated(slides, replace(sample, seed=number), REVIEWER, generator)
    rows = []
    for _ in range(NEW):
        new = slide(lab, generator)
        row = outcome(new, sites[-1])
        rows.append(row | by_answers_alone(slides, row["true count"], sample.answers, generator))
    own = [outcome(one, site) for one, site in zip(slides[:1], sites, strict=False)]
    return rows, own, site_row(slides, fitted)


def site_row(slides: Sequence[Slide], fitted: Fitted) -> Row:
    """Whether what is said of the laboratory itself holds."""
    probability = np.concatenate([one.probability for one in slides])
    true = np.concatenate([one.true for one in slides])
    area, every = sum(one.area_mm2 for one in slides), sum(len(one.mitoses_um) for one in slides)
    found = fitted.mitoses_per_mm2
    site: Row = {"mitoses per mm2": found.low <= every / area <= found.high}
    for point, delta in DELTAS.items():
        above = probability >= delta
        truth = {"precision": true[above].mean(), "recall": true[above].sum() / every,
                 "false_per_mm2": (~true[above]).sum() / area}  # fmt: skip
        for name, value in truth.items():
            said = fitted.at[point][name]
            site[f"{point}: {name}"] = said.low <= value <= said.high
            site[f"{point}: {name}, width"] = said.high - said.low
        by_design = fitted.at[point].get("precision_by_design")
        if by_design is not None:
            site[f"{point}: precision by design"] = by_design.low <= truth["precision"] <= by_design.high
            site[f"{point}: precision by design, width"] = by_design.high - by_design.low
    return site


def report(counts: pd.DataFrame, sites: pd.DataFrame, title: str) -> None:
    """Means of all figures."""
    print(f"{title}: {len(sites)} repetitions, {len(counts)} counts")
    described(counts)
    median = counts[["  its width", "  its width "]].astype(float).median()
    print(f"  median widths, calibrated and not             {median.iloc[0]:8.1f} {median.iloc[1]:8.1f}")
    rank = counts["true count"].rank(method="first")
    quarters = pd.qcut(rank, 4, labels=["lowest", "second", "third", "highest"])
    shown = ["true count", "calibrated count", "calibrated interval holds it", "  its width"]
    print("by quarter of the true counts")
    print(counts[shown].astype(float).groupby(quarters, observed=True).mean().round(3).to_string())
    print("held by the intervals of the laboratory's own figures")
    described(sites)


def described(rows: pd.DataFrame) -> None:
    """The mean of each column in a line."""
    for name, value in rows.astype(float).mean().items():
        print(f"  {name:45} {value:8.3f}")


def main() -> None:
    """Print the figures of docs/calibration.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument(
        "--first", type=int, default=0, help="seed of the first; others check what one set chose"
    )
    parser.add_argument("--answers", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    sample = SampleConfig(answers=options.answers, squares=options.answers // 5)
    with ProcessPoolExecutor(options.workers) as pool:
        done = list(
            pool.map(
                partial(repetition, sample=sample), range(options.first, options.first + options.repetitions)
            )
        )
    counts, own = (pd.DataFrame([row for one in done for row in one[k]]) for k in (0, 1))
    report(counts, pd.DataFrame([site for *_, site in done]), f"simulated, {options.answers} answers")
    print("slides that were asked about")
    described(own)


if __name__ == "__main__":
    main()
