"""Threshold of the count, prior over laboratories, and how both hold on slides laid out from real fields.

python recipes/breast/breast_cohort.py --data FOLDER --folder out/real
metaphase run configs/breast-points.toml -o out/breast-points
python recipes/accuracy/count_fields.py --cohort out/real --run out/breast-points [--slides 400]

The pair did not learn from any of these images; the run has searched them. Printed:

prior       by laboratory, how the log-odds of labelled figures are spread (what is not listed is censored),
            how many look-alikes tissue without mitoses has and how their log-odds fall; from these, a prior
threshold   slides of 50 mm2: drawn look-alikes everywhere, and in one circle a share of squares of 80 um of
            tumour: figures found over labelled ones of the densest circle, by density, and what the densest
            circle of an empty slide holds
interval    how often the interval contains the labelled figures of the circle, on such slides

What cannot be measured on so little is assumed, and said so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import PIL.Image
from count_coverage import (
    ANSWERS,
    IN_CIRCLE,
    SLIDES,
    TrueSlide,
    counted,
    knowledge,
    outcome,
    reviewed,
)
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import norm

from metaphase.base.tables import read_table
from metaphase.counting.clinical import in_circle
from metaphase.counting.hotspot import busiest_circle
from metaphase.counting.likely import CLEAREST, LISTED_FROM, LaboratoryPrior, prior_of
from metaphase.counting.specimen import CountConfig, specimen
from metaphase.detections.matching import NOBODY, match
from metaphase.detections.table import IGNORE, MITOSIS
from metaphase.evaluation.pairs import apply_calibration
from metaphase.learn.delivery import FOUND
from metaphase.learn.dense import OLD
from metaphase.networks.cards import Calibration, bundled_model, parse_card
from metaphase.networks.training.images import MPP, PAINTED_UM

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
FLOOR = float(logit(LISTED_FROM))
RADIUS_UM, TILE_UM, SLIDE_MM2 = 7.5, 80.0, 50.0
CIRCLE_UM = CountConfig().radius_um
FIELDS = ("icpr2012-aperio", "mitos-atypia14-hamamatsu", "midesec")
"""Laboratories whose fields are labelled completely. MiDeSeC tests: nothing is chosen with it."""
TESTED = "midesec"
CROPS = ("tupac-1", "tupac-2", "tupac-3")
EMPTY = ("breakhis-benign", "icpr2012-hamamatsu-painted", "icpr2012-aperio-eval-painted", "tcga-tissue")
"""Benign breast; tumour whose labelled figures are painted over, a few unlabelled ones being left; tissue of
other organs, rich in look-alikes."""
LOOKALIKES_PER_MM2, FALL, SLIDES_DIFFER = 3.75, 1.33, 0.7
"""Of what is drawn: 23 detections, 6 from 0.233 and none from 0.5 on, were seen in 5.0 mm2 of benign breast
and canine mammary tissue that nobody here has, and none in 1.1 mm2 here; slides are supposed to differ."""
THRESHOLDS = (0.233, 0.3, 0.35, 0.4, 0.45, 0.5, 0.56)
SHARES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Of tumour in the circle."""


@dataclass(frozen=True)
class Image:
    """What is listed in an image, which of it is labelled a figure, and the labelled figures (um)."""

    laboratory: str
    points_um: Floats
    probability: Floats
    true: Bools
    figures_um: Floats
    size_um: tuple[float, float]

    @property
    def area_mm2(self) -> float:
        """Of the whole image."""
        return self.size_um[0] * self.size_um[1] / 1e6


def read_images(cohort: Path, run: Path) -> list[Image]:
    """All images that the run searched."""
    manifest = read_table(cohort / "points.csv").set_index("case")
    labels = dict(iter(read_table(cohort / "reference.csv").groupby("case")))
    card = min((run / "model").glob("*.json"), key=lambda path: len(path.name))
    calibration = parse_card(card).calibration or Calibration()
    with np.load(run / FOUND / f"{OLD}.npz") as kept:
        found = apply_calibration({name: kept[name] for name in kept.files}, calibration)
    images = []
    for name, here in found.items():
        path, laboratory = (str(manifest.at[name, column]) for column in ("he", "laboratory"))
        mpp = float(str(manifest.at[name, "mpp"]))
        with PIL.Image.open(path) as picture:
            width, height = (side * mpp for side in picture.size)
        points, probability = here[:, :2] * MPP, here[:, 2]
        known = labels.get(name, pd.DataFrame(columns=["x", "y", "label"]))
        ignored, figures = (
            known.loc[known["label"] == label, ["x", "y"]].to_numpy(float) * mpp
            for label in (IGNORE, MITOSIS)
        )
        listed = probability >= LISTED_FROM
        if len(ignored) and len(points):
            listed &= np.hypot(*(points[:, None] - ignored).T).min(axis=0) > PAINTED_UM
        points, probability = points[listed], np.clip(probability[listed], None, 1 - CLEAREST)
        true = match(points, probability, figures, RADIUS_UM) != NOBODY
        images.append(Image(laboratory, points, probability, np.asarray(true), figures, (width, height)))
    return images


def of(images: Iterable[Image], *laboratories: str) -> list[Image]:
    """Those of some laboratories."""
    return [one for one in images if one.laboratory in laboratories]


# ---- the prior ----


def show_prior(images: Sequence[Image]) -> None:
    """How figures and look-alikes differ between laboratories; printed by laboratory."""
    usual = LaboratoryPrior()
    names = [name for name in (*FIELDS, *CROPS) if name != TESTED]
    odds = [np.concatenate([logit(one.probability[one.true]) for one in of(images, name)]) for name in names]
    missed = [sum(len(one.figures_um) - int(one.true.sum()) for one in of(images, name)) for name in names]

    def unlikely(values: Floats) -> float:
        width = np.exp(values[-1])
        value = 0.0
        for middle, part, unlisted in zip(values, odds, missed, strict=False):
            hidden = usual.unlisted + (1 - usual.unlisted) * norm.cdf((FLOOR - middle) / width)
            value -= norm.logpdf(part, middle, width).sum() + unlisted * np.log(hidden)
        return float(value)

    best = minimize(unlikely, np.r_[np.full(len(names), 0.7), np.log(2.5)], method="L-BFGS-B").x
    shifts, width = best[:-1], float(np.exp(best[-1]))
    for name, shift, part, unlisted in zip(names, shifts, odds, missed, strict=True):
        print(f"{name}: {len(part) + unlisted} figures, {len(part)} listed, mean log-odds {shift:.2f}")
    for name in EMPTY:
        tissue = of(images, name)
        said = np.concatenate([logit(one.probability) for one in tissue]) - FLOOR
        area = sum(one.area_mm2 for one in tissue)
        fall = (len(said) + 1) / (said.sum() + 1 / np.exp(usual.fall[0]))
        print(f"{name}: {area:.2f} mm2, {len(said)} listed, {len(said) / area:.1f} per mm2, fall {fall:.2f}")
    for name in FIELDS:
        fields = of(images, name)
        false = sum(int((~one.true).sum()) for one in fields)
        figures, area = sum(len(one.figures_um) for one in fields), sum(one.area_mm2 for one in fields)
        company = max(0.0, false - LOOKALIKES_PER_MM2 * area) / figures
        print(f"{name}: {figures} figures in {area:.2f} mm2, with each at most {company:.2f} look-alikes")
    wider = np.sqrt(1 + 1 / len(names))
    spread = float(np.std(shifts, ddof=1)) * wider
    prior = replace(
        usual,
        shift=(round(float(np.mean(shifts)), 2), round(max(spread, 0.5), 2)),
        width=round(width, 2),
    )
    print("prior:", json.dumps(asdict(prior)))


def show_ratios(images: Sequence[Image]) -> None:
    """Counted over labelled figures of each laboratory, and detections per mm2 where nothing is labelled."""
    rows = {}
    for name in (*FIELDS, *CROPS, *EMPTY):
        part = of(images, name)
        figures, area = sum(len(one.figures_um) for one in part), sum(one.area_mm2 for one in part)
        known = name in CROPS
        said = np.concatenate([one.probability[one.true] if known else one.probability for one in part])
        found = {f"{threshold:g}": (said >= threshold).sum() / (figures or area) for threshold in THRESHOLDS}
        rows[name] = {"figures": figures, "mm2": round(area, 2), **found}
    table = pd.DataFrame(rows).T.round(2)
    print(f"\ncounted over labelled figures (crops: of the labelled); else per mm2\n{table.to_string()}")


# ---- slides laid out from real fields ----


@dataclass(frozen=True)
class Tile:
    """A square of an image: what is listed in it and labelled, from its corner (um)."""

    points_um: Floats
    probability: Floats
    true: Bools
    figures_um: Floats


def tiles_of(images: Iterable[Image]) -> list[Tile]:
    """Whole squares of images."""
    tiles = []
    for one in images:
        for corner in np.ndindex(*(int(side // TILE_UM) for side in one.size_um)):
            low = np.array(corner) * TILE_UM
            points, figures = (
                ((part >= low) & (part < low + TILE_UM)).all(axis=1)
                for part in (one.points_um, one.figures_um)
            )
            here = one.points_um[points] - low, one.probability[points], one.true[points]
            tiles.append(Tile(*here, one.figures_um[figures] - low))
    return tiles


def laid_out(tumour: Sequence[Tile], share: float, rng: np.random.Generator) -> tuple[pd.DataFrame, Floats]:
    """A slide: look-alikes everywhere, and one circle of which a share of the squares are tumour."""
    side = round(np.sqrt(SLIDE_MM2) * 1e3 / TILE_UM)
    cells = np.indices((side, side)).reshape(2, -1).T * TILE_UM
    middle = rng.uniform(CIRCLE_UM, side * TILE_UM - CIRCLE_UM, 2)
    inside = np.hypot(*(cells + TILE_UM / 2 - middle).T) <= CIRCLE_UM
    active = inside & (rng.uniform(size=len(cells)) < share)
    drawn = [(tumour[int(rng.integers(len(tumour)))], cell) for cell in cells[active]]
    rate = LOOKALIKES_PER_MM2 * np.exp(rng.normal(0, SLIDES_DIFFER))
    number = rng.poisson(rate * SLIDE_MM2)
    points = [rng.uniform(0, side * TILE_UM, (number, 2)), *(one.points_um + cell for one, cell in drawn)]
    odds = FLOOR + rng.exponential(1 / FALL, number)
    figures = [np.zeros((0, 2)), *(one.figures_um + cell for one, cell in drawn)]
    table = pd.DataFrame(np.concatenate(points), columns=["x", "y"])
    table["true"] = np.concatenate([np.zeros(number, bool), *(one.true for one, _ in drawn)])
    table["probability"] = np.concatenate([expit(odds), *(one.probability for one, _ in drawn)])
    return table, np.concatenate(figures)


def within(figures: Floats, x: float, y: float) -> int:
    """Figures in the circle."""
    return int((np.hypot(*(figures - (x, y)).T) <= CIRCLE_UM * (1 + 1e-9)).sum()) if len(figures) else 0


def show_thresholds(images: Sequence[Image], slides: int, rng: np.random.Generator) -> None:
    """Found over labelled figures of the densest circle, by threshold and density."""
    tumour = tiles_of([one for one in of(images, *FIELDS) if one.laboratory != TESTED])
    rows = []
    for share in SHARES:
        for _ in range(slides // len(SHARES)):
            table, figures = laid_out(tumour, share, rng)
            true = busiest_circle(figures, CIRCLE_UM)[2] if len(figures) else 0
            row = {"true": float(true)}
            for threshold in THRESHOLDS:
                points = table.loc[table["probability"] >= threshold, ["x", "y"]].to_numpy(float)
                row[f"{threshold:g}"] = float(busiest_circle(points, CIRCLE_UM)[2]) if len(points) else 0.0
            rows.append(row)
    found = pd.DataFrame(rows)
    names = [f"{threshold:g}" for threshold in THRESHOLDS]
    bare = found[found["true"] == 0][names].quantile([0.5, 0.95])
    print(f"\nempty slides, densest circle, median and 95th percentile\n{bare.to_string()}")
    some = found[found["true"] > 0]
    groups = some.groupby(pd.cut(some["true"], [0, 4, 7, 15, 30, 60, np.inf]), observed=True)
    ratio = groups[names].sum().div(groups["true"].sum(), axis=0).assign(slides=groups.size())
    print(
        f"\nfound over labelled figures of the densest circle, by their number\n{ratio.round(2).to_string()}"
    )


def show_intervals(
    images: Sequence[Image], prior: LaboratoryPrior, threshold: float, slides: int, rng: np.random.Generator
) -> None:
    """Coverage and width: without answers, after some in the laboratory, after some in the circle.

    Observers, who err, say what the labels say; eight slides are the laboratory.
    """
    config = CountConfig(threshold=threshold, prior=prior)
    rows: list[dict[str, float | str]] = []
    for name in FIELDS:
        tumour = tiles_of(of(images, name))

        def drawn(share: float, tumour: Sequence[Tile] = tumour) -> TrueSlide:
            return TrueSlide(*laid_out(tumour, share, rng), SLIDE_MM2)

        own = [drawn(SHARES[number % len(SHARES)]) for number in range(SLIDES)]
        sites = {often: knowledge(own, often, config, rng) if often else None for often in ANSWERS}
        for number in range(slides // len(FIELDS)):
            one = drawn(SHARES[number % len(SHARES)])
            slide, spot = counted(one, config)
            for often, site in sites.items():
                what = f"{often} in the laboratory"
                rows.append({"laboratory": name, "answers": what, **outcome(one, slide, spot, site)})
            for often in IN_CIRCLE:
                table = reviewed(one, in_circle(slide, spot), often, rng)
                seen = specimen(table, 1.0, None, SLIDE_MM2, config)
                what = f"{often} in the circle"
                rows.append({"laboratory": name, "answers": what, **outcome(one, seen, spot, None)})
    table = pd.DataFrame(rows)
    shown = ["holds", "width", "true", "found", "likely"]
    means = table.groupby(["answers", "laboratory"], sort=False)[shown].mean().round(3)
    print(f"\ninterval\n{means.to_string()}")
    none = table[table["answers"] == f"{ANSWERS[0]} in the laboratory"]
    groups = none.groupby(pd.cut(none["true"], [-1, 0, 4, 9, 19, 39, np.inf]), observed=True)
    print(f"\nwithout answers\n{groups[shown].mean().round(3).assign(slides=groups.size()).to_string()}")


def main() -> None:
    """Measure, and tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cohort", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--slides", type=int, default=400)
    parser.add_argument("--threshold", type=float, default=0.4)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    images = read_images(options.cohort, options.run)
    show_prior(images)
    show_ratios(images)
    show_thresholds(images, options.slides, rng)
    shipped = parse_card(bundled_model("breast").with_suffix(".json")).thresholds["count"]
    show_intervals(images, prior_of(shipped.prior or {}), options.threshold, options.slides, rng)


if __name__ == "__main__":
    main()
