"""Whether the interval of the count holds, and how narrow it is, on simulated laboratories of known truth.

python recipes/accuracy/count_coverage.py [--laboratories 200] [--first 0] [--workers 2] [--kinds usual ...]

A laboratory has eight searched slides, about which people answer, and two more that are counted: slides of 5
to 250 mm2, on most of which figures lie in foci. Scores of figures and look-alikes are drawn around the
bundled pair's behaviour, not from the prior of the estimator; the kinds of laboratories depart from it in
ways that the estimator does not know. Observers miss 6 % and see 3 % too many. Printed for each kind: the
share of slides whose interval contains the true number of figures in the circle, its mean and median width,
and the mean of the estimate; then all that by the true number. First, how circle and percentile rank slides,
and what the step of the lattice and the meaning of *empty* change about the percentile (`--kinds` without a
name ends there).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit, logit

from metaphase.counting.clinical import (
    SiteKnowledge,
    in_circle,
    likely_figures,
    proliferation_score,
)
from metaphase.counting.hotspot import (
    Hotspot,
    busiest_circle,
    filled_percentile,
    lattice_around,
    lattice_counts,
)
from metaphase.counting.likely import (
    LISTED_FROM,
    ObserverError,
    by_shape,
    prior_of,
    slide_likelihood,
    tally,
)
from metaphase.counting.sites import draw_detections, strata
from metaphase.counting.specimen import CountConfig, Specimen, find_hotspot, grade_of, specimen
from metaphase.detections.table import LOOKALIKE, MACHINE, MITOSIS, REVIEWED
from metaphase.evaluation.grades import quadratic_kappa
from metaphase.networks.cards import bundled_model, parse_card

Floats = npt.NDArray[np.float64]
ERROR = ObserverError()
FLOOR = float(logit(LISTED_FROM))
SLIDES, COUNTED = 8, 2
"""Slides of a laboratory that are asked about, and those that are counted."""
ANSWERS = (0, 20, 100)
IN_CIRCLE = (5, 10_000)
SPACING_UM = 1000.0
"""Look-alikes differ in number between patches of this side."""


@dataclass(frozen=True)
class World:
    """How laboratories, slides and scores vary: log-odds, and densities per mm2."""

    figures: tuple[float, float, float] = (0.7, 0.8, 0.3)
    """Mean log-odds of the figures, its spread between laboratories and between slides."""
    fall: tuple[float, float, float] = (1.33, 0.15, 0.15)
    lookalikes: tuple[float, float, float] = (3.6, 0.4, 0.6)
    patches: float = 0.4
    company: tuple[float, float, float] = (0.35, 0.5, 0.3)
    """Look-alikes that come with a figure."""
    company_fall: float = 0.65
    shifted: float = 0.0
    """Spread between slides of a shift of all log-odds."""
    nests: float = 0.0
    """Nests of about twelve look-alikes per mm2."""
    nests_there: float = 0.0
    """Such nests among the figures of a focus."""
    heavy: bool = False
    """Figures' log-odds with the tails of Student's t."""
    mixed: bool = False
    """Every other slide is of another laboratory."""
    share: float = 1.0
    """What is left of each probability."""
    missed: float = ERROR.missed
    """Share of the figures that observers call something else, whatever is supposed of them."""
    false_alarms: float = ERROR.false_alarms


USUAL = World()
KINDS = {
    "usual": USUAL,
    "four times as many look-alikes": World(lookalikes=(14.4, 0.4, 0.6)),
    "slides shifted, sd 0.8": World(shifted=0.8),
    "a mixture of two": World(mixed=True),
    "unlike: 40 look-alikes per mm2, flat tail": World(lookalikes=(40.0, 0.1, 0.6), fall=(0.7, 0.15, 0.15)),
    "weak model": World(figures=(-1.5, 0.2, 0.3)),
    "look-alikes in nests": World(nests=0.15),
    "heavier tails": World(heavy=True),
    "look-alikes among the figures only": World(
        lookalikes=(0.3, 0.4, 0.6), company=(1.0, 0.3, 0.3), company_fall=1.1
    ),
    "nests in the circle": World(nests_there=1.5),
    "blurred: half of each probability": World(share=0.5),
    "out of scale": World(figures=(-1.0, 0.8, 0.6), lookalikes=(9.0, 0.6, 0.8), fall=(0.9, 0.15, 0.3)),
    "careless observer": World(missed=0.2, false_alarms=0.12),
    "an observer who says no to all": World(missed=1.0, false_alarms=0.0),
}


@dataclass(frozen=True)
class Laboratory:
    """What its slides vary around."""

    world: World
    shift: float
    width: float
    fall: float
    lookalikes: float
    company: float
    blind: float


@dataclass(frozen=True)
class TrueSlide:
    """A slide whose figures are known: what is listed, and where every figure lies (um)."""

    table: pd.DataFrame
    figures_um: Floats
    area_mm2: float


def drawn_laboratory(world: World, rng: np.random.Generator) -> Laboratory:
    """One of its kind."""
    fall, lookalikes, company = (
        middle * np.exp(rng.normal(0, spread))
        for middle, spread, _ in (world.fall, world.lookalikes, world.company)
    )
    shift = rng.normal(*world.figures[:2])
    return Laboratory(world, shift, rng.uniform(2.2, 2.8), fall, lookalikes, company, rng.uniform(0, 0.08))


def drawn_figures(side_um: float, rng: np.random.Generator) -> Floats:
    """Figures of a slide: none on some, else a few everywhere and most in up to three foci."""
    if rng.uniform() < 0.15:
        return np.zeros((0, 2))
    peak = 0.8 * np.exp(rng.uniform(np.log(1.5), np.log(50)))
    spread = rng.poisson(peak * rng.uniform(0.03, 0.35) * side_um**2 / 2e6)
    parts = [rng.uniform(0, side_um, (spread, 2))]
    for focus in range(rng.integers(1, 4)):
        sd_um = rng.uniform(300, 1500)
        share = 1 - np.exp(-2e6 / np.pi / 2 / sd_um**2)
        number = rng.poisson(peak * rng.uniform(0.2, 1.0) / share * (rng.uniform(0.2, 1) if focus else 1.0))
        points = rng.uniform(0, side_um, 2) + rng.normal(0, sd_um, (number, 2))
        parts.append(points[((points >= 0) & (points <= side_um)).all(axis=1)])
    return np.concatenate(parts)


def drawn_lookalikes(
    lab: Laboratory, rate: float, side_um: float, there: Floats, rng: np.random.Generator
) -> Floats:
    """Positions: more in some patches, and in nests where there are such."""
    cells = max(1, round(side_um / SPACING_UM))
    spread = lab.world.patches
    expected = (
        rate * np.exp(rng.normal(-(spread**2) / 2, spread, (cells, cells))) * (side_um / cells / 1e3) ** 2
    )
    number = rng.poisson(expected).ravel()
    corners = np.repeat(np.indices((cells, cells)).reshape(2, -1).T, number, axis=0)
    points = (corners + rng.uniform(size=corners.shape)) * side_um / cells
    middles = rng.uniform(0, side_um, (rng.poisson(lab.world.nests * side_um**2 / 1e6), 2))
    middles = np.concatenate([middles, there])
    nests = np.repeat(middles, 12, axis=0) + rng.normal(0, 60, (12 * len(middles), 2))
    return np.asarray(np.concatenate([points, nests]) % side_um)


def drawn_slide(lab: Laboratory, rng: np.random.Generator) -> TrueSlide:
    """One of its slides, as the model lists it."""
    world = lab.world
    area_mm2 = float(np.exp(rng.uniform(np.log(5), np.log(250))))
    side_um = 1e3 * np.sqrt(area_mm2)
    shift = rng.normal(0, world.shifted) if world.shifted else 0.0
    figures = drawn_figures(side_um, rng)
    noise = rng.standard_t(4, len(figures)) / np.sqrt(2) if world.heavy else rng.normal(size=len(figures))
    odds = lab.shift + rng.normal(0, world.figures[2]) + lab.width * noise + shift
    seen = (odds >= FLOOR) & (rng.uniform(size=len(figures)) >= lab.blind)
    fall = lab.fall * np.exp(rng.normal(0, world.fall[2]))
    least = FLOOR - 3.0 if shift else FLOOR
    rate = lab.lookalikes * np.exp(rng.normal(0, world.lookalikes[2]) + fall * (FLOOR - least))
    nests = min(len(figures), rng.poisson(world.nests_there)) if world.nests_there else 0
    others = drawn_lookalikes(lab, rate, side_um, figures[len(figures) - nests :], rng)
    number = rng.poisson(lab.company * np.exp(rng.normal(0, world.company[2])), len(figures))
    company = np.repeat(figures, number, axis=0) + rng.normal(0, 300, (int(number.sum()), 2))
    their_odds = (
        np.concatenate(
            [
                least + rng.exponential(1 / fall, len(others)),
                FLOOR + rng.exponential(1 / world.company_fall, len(company)),
            ]
        )
        + shift
    )
    others = np.concatenate([others, company]) % side_um
    kept = their_odds >= FLOOR
    points = np.concatenate([figures[seen], others[kept]])
    table = pd.DataFrame(points, columns=["x", "y"]).assign(
        probability=world.share * expit(np.concatenate([odds[seen], their_odds[kept]])),
        true=np.repeat([True, False], [int(seen.sum()), int(kept.sum())]),
    )
    return TrueSlide(table[table["probability"] >= LISTED_FROM], figures, area_mm2)


def answered(true: npt.NDArray[np.bool_], world: World, rng: np.random.Generator) -> Floats:
    """What an observer who errs says."""
    chance = np.where(true, 1 - world.missed, world.false_alarms)
    return (rng.uniform(size=len(true)) < chance).astype(np.float64)


def counted(one: TrueSlide, config: CountConfig) -> tuple[Specimen, Hotspot]:
    """The slide as counting sees it, and its densest circle."""
    slide = specimen(one.table, 1.0, None, one.area_mm2, config)
    return slide, find_hotspot(slide)


def reviewed(
    one: TrueSlide,
    inside: npt.NDArray[np.bool_],
    number: int,
    rng: np.random.Generator,
    world: World = USUAL,
) -> pd.DataFrame:
    """The table with answers about so many detections in the circle, the most doubtful first."""
    doubt = np.abs(logit(one.table["probability"].to_numpy(np.float64)))
    chosen = np.flatnonzero(inside)[np.argsort(doubt[inside])][:number]
    yes = answered(one.table["true"].to_numpy(bool)[chosen], world, rng) == 1
    label = np.full(len(one.table), MITOSIS, object)
    said = np.full(len(one.table), "", object)
    label[chosen], said[chosen] = np.where(yes, MITOSIS, LOOKALIKE), np.where(yes, MITOSIS, "not")
    table = one.table.assign(label=label)
    table[MACHINE], table[REVIEWED] = one.table["probability"], said
    return table


def knowledge(
    slides: Sequence[TrueSlide],
    answers: int,
    config: CountConfig,
    rng: np.random.Generator,
    world: World = USUAL,
) -> SiteKnowledge:
    """What answers about the slides say of their laboratory, drawn as `metaphase calibrate` draws them."""
    seen = [counted(one, config) for one in slides]
    hot = [in_circle(*each) for each in seen]
    probability = np.concatenate([slide.probability for slide, _ in seen])
    number = np.concatenate([np.full(len(part), index) for index, part in enumerate(hot)])
    true = np.concatenate([one.table["true"].to_numpy(bool) for one in slides])
    chosen, _ = draw_detections(strata(probability, np.concatenate(hot)), answers, rng)
    answer = np.full(len(true), np.nan)
    answer[chosen] = answered(true[chosen], world, rng)
    assert config.prior is not None
    shapes = []
    for index, (slide, spot) in enumerate(seen):
        odds, said = logit(np.clip(slide.probability, 1e-4, 1 - 1e-4)), answer[number == index]
        circle = tally(odds[hot[index]], said[hot[index]], spot.tissue_mm2)
        rest = tally(odds[~hot[index]], said[~hot[index]], slide.area_mm2 - spot.tissue_mm2)
        shapes.append(by_shape(slide_likelihood(circle, rest, config.prior, ERROR)))
    sure = np.isfinite(answer) & (probability >= 0.8)
    return SiteKnowledge(
        answers, tuple(shapes), ERROR, (int(sure.sum()), int(answer[sure].sum())), np.zeros((0, 3))
    )


def outcome(one: TrueSlide, slide: Specimen, spot: Hotspot, site: SiteKnowledge | None) -> dict[str, float]:
    """The truth and what is said of it."""
    within = (
        np.hypot(*(one.figures_um - (spot.x, spot.y)).T) <= spot.radius_px
        if len(one.figures_um)
        else np.zeros(0)
    )
    found = likely_figures(slide, spot, site)
    row = {"true": float(within.sum()), "found": float(spot.count), "refused": float(isinstance(found, str))}
    if isinstance(found, str):
        return row
    low, high = found.interval
    return row | {"holds": float(low <= row["true"] <= high), "width": high - low, "likely": found.figures}


def laboratory_rows(number: int, kind: str, config: CountConfig) -> list[dict[str, float | str]]:
    """The two slides of one laboratory, counted with more and more answers."""
    rng, world = np.random.default_rng((number, list(KINDS).index(kind))), KINDS[kind]
    lab = drawn_laboratory(world, rng)
    other = replace(lab, shift=lab.shift - 3.0) if world.mixed else lab
    slides = [drawn_slide((lab, other)[index % 2], rng) for index in range(SLIDES + COUNTED)]
    rows: list[dict[str, float | str]] = []
    sites = {
        answers: knowledge(slides[:SLIDES], answers, config, rng, world) if answers else None
        for answers in ANSWERS
    }
    for one in slides[SLIDES:]:
        slide, spot = counted(one, config)
        for answers, site in sites.items():
            rows.append({"answers": f"{answers} in the laboratory", **outcome(one, slide, spot, site)})
        for often in IN_CIRCLE:
            table = reviewed(one, in_circle(slide, spot), often, rng, world)
            with_people = specimen(table, 1.0, None, one.area_mm2, config)
            what = "all in the circle" if often == IN_CIRCLE[-1] else f"{often} in the circle"
            rows.append({"answers": what, **outcome(one, with_people, spot, None)})
    return rows


def rank_rows(number: int, config: CountConfig) -> list[dict[str, float]]:
    """Slides of one laboratory: figures of the truly densest circle, count, and the paper's percentile."""
    rng = np.random.default_rng((number, 99))
    lab, rows = drawn_laboratory(KINDS["usual"], rng), []
    for one in (drawn_slide(lab, rng) for _ in range(SLIDES + COUNTED)):
        slide, spot = counted(one, config)
        true = busiest_circle(one.figures_um, config.radius_um)[2] if len(one.figures_um) else 0
        rows.append({"true": true, "circle": spot.count, "percentile": proliferation_score(slide)})
    return rows


def show_ranks(config: CountConfig, numbers: Sequence[int], pool: ProcessPoolExecutor) -> None:
    """Spearman's correlation with the truth, and quadratic kappa of thirds: circle and percentile."""
    work = partial(rank_rows, config=config)
    table = pd.DataFrame([row for part in pool.map(work, numbers) for row in part])
    thirds = table.rank(method="first").apply(lambda column: pd.qcut(column, 3, labels=False))
    for name in ("circle", "percentile"):
        order = float(table["true"].corr(table[name], method="spearman"))
        kappa = float(quadratic_kappa(pd.crosstab(thirds["true"], thirds[name])))
        print(f"{name}: Spearman {order:.3f}, kappa of thirds {kappa:.3f}, {len(table)} slides")


STEPS_UM = (50.0, 25.0, 10.0, 5.0)


def lattice_rows(number: int, config: CountConfig) -> list[dict[str, float]]:
    """Slides with figures: the percentile by the lattice's step, and where every place on tissue counts."""
    rng, rows = np.random.default_rng((number, 98)), []
    for _ in range(SLIDES + COUNTED):
        side_um = float(1e3 * np.sqrt(np.exp(rng.uniform(np.log(5), np.log(250)))))
        figures = drawn_figures(side_um, rng)
        if not len(figures):
            continue
        row = {}
        for step in STEPS_UM:
            lattice = lattice_around(figures, config.radius_um, step)
            counts = lattice_counts(figures, lattice, config.radius_um)
            row[f"{step:g}"] = filled_percentile(counts, config.percentile)
            inside = np.ix_(*((axis >= 0) & (axis <= side_um) for axis in (lattice.ys_um, lattice.xs_um)))
            places = max(counts[inside].size, round((side_um / step) ** 2))
            on_tissue = np.zeros(places, np.int64)
            on_tissue[: counts[inside].size] = counts[inside].ravel()
            row[f"{step:g} on tissue"] = float(np.percentile(on_tissue, config.percentile))
        rows.append(row)
    return rows


def show_lattice(config: CountConfig, numbers: Sequence[int], pool: ProcessPoolExecutor) -> None:
    """Differences of the percentile from that at the finest step, and grades that change with it."""
    work = partial(lattice_rows, config=config)
    table = pd.DataFrame([row for part in pool.map(work, numbers) for row in part])
    best = f"{STEPS_UM[-1]:g}"
    finest, thetas = table[best], (config.theta1, config.theta2)
    for name in table.columns.drop(best):
        off = (table[name] - finest).abs()
        other = (grade_of(table[name], *thetas) != grade_of(finest, *thetas)).mean()
        order = table[name].corr(finest, method="spearman")
        print(
            f"percentile, step {name}: mean |difference| {off.mean():.3f}, largest {off.max():.2f}, other "
            f"grade {other:.2%}, Spearman {order:.5f}, {len(table)} slides"
        )


def main() -> None:
    """Simulate, count, tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--laboratories", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first: others are other draws")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--threshold", type=float, default=0.4)
    options = parser.parse_args()
    point = parse_card(bundled_model("breast").with_suffix(".json")).thresholds["count"]
    config = CountConfig(threshold=options.threshold, prior=prior_of(point.prior or {}))
    numbers = range(options.first, options.first + options.laboratories)
    with ProcessPoolExecutor(options.workers) as pool:
        show_ranks(config, numbers, pool)
        show_lattice(config, numbers, pool)
        for kind in options.kinds:
            work = partial(laboratory_rows, kind=kind, config=config)
            rows = pd.DataFrame([row for part in pool.map(work, numbers) for row in part])
            order = list(dict.fromkeys(rows["answers"]))
            table = (
                rows.groupby("answers")[["holds", "width", "true", "found", "likely", "refused"]]
                .mean()
                .loc[order]
            )
            table.insert(2, "median width", rows.groupby("answers")["width"].median())
            print(f"\n{kind}\n{table.round(3).to_string()}", flush=True)
            if kind == "usual":
                none = rows[rows["answers"] == order[0]]
                parts = pd.cut(none["true"], [-1, 0, 4, 9, 19, 39, np.inf])
                print(
                    none.groupby(parts, observed=True)[["holds", "width", "true", "found", "likely"]]
                    .mean()
                    .round(3)
                )


if __name__ == "__main__":
    main()
