"""How much the hotspot's step matters to the count, and whether the intervals hold what they promise.

python recipes/accuracy/count_intervals.py [--picture docs/images/grading.png] [--sections 40]
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.counting import CountConfig, SlideCount, count_slide
from metaphase.images.tissue import TissueMask

mpl.use("agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Circle, Ellipse

Floats = npt.NDArray[np.float64]
WIDTH_UM, HEIGHT_UM, MPP, MASK_MPP = 14_000.0, 10_000.0, 0.25, 8.0
FOCI = {
    "even": [(1.0, (7000, 5000), 1e9)],
    "one focus": [(0.1, (7000, 5000), 1e9), (0.9, (5000, 5000), 1500)],
    "three foci": [
        (0.05, (7000, 5000), 1e9), (0.95, (4000, 5000), 800),
        (0.7, (9000, 6000), 1000), (0.5, (7000, 3000), 600),
    ],
}  # fmt: skip
"""Activity over the tissue: height, place and width (um) of each part."""
LEVELS = (3, 8, 20, 50, 120)
"""Mitoses in 2 mm2 where the activity is 1."""
CLUMP_UM = 60.0
TUMOURS = [*((kind, kind, 1.0) for kind in FOCI), ("one focus, clumps of 3", "one focus", 3.0)]
STEPS_UM = (10.0, 25.0, 50.0, 100.0, 200.0)
BINS = np.linspace(0, 1, 6)


def tissue() -> TissueMask:
    """An ellipse that fills the slide."""
    y, x = np.mgrid[MASK_MPP / 2 : HEIGHT_UM : MASK_MPP, MASK_MPP / 2 : WIDTH_UM : MASK_MPP]
    return TissueMask(_on_tissue(np.stack([x, y], axis=-1)), MASK_MPP, 0.0, 0.0, MASK_MPP / MPP)


def _on_tissue(points: Floats) -> npt.NDArray[np.bool_]:
    middle = np.array([WIDTH_UM, HEIGHT_UM]) / 2
    return np.asarray((((points - middle) / middle) ** 2).sum(axis=-1) <= 1)


def section(generator: np.random.Generator, kind: str, level: float, clump: float = 1.0) -> Floats:
    """Places (um) of the mitoses of one section: `level` in 2 mm2 where the activity is 1.

    With `clump` above 1 they come in groups of that mean size: neighbours that depend on each other.
    """
    number = generator.poisson(level / clump * WIDTH_UM * HEIGHT_UM / 2e6)
    places = generator.uniform((0, 0), (WIDTH_UM, HEIGHT_UM), (number, 2))
    parts = [
        height * np.exp(-((places - place) ** 2).sum(axis=1) / (2 * width**2))
        for height, place, width in FOCI[kind]
    ]
    places = places[_on_tissue(places) & (generator.uniform(size=number) < np.sum(parts, axis=0))]
    if clump == 1:
        return np.asarray(places)
    groups = np.repeat(places, generator.poisson(clump, len(places)), axis=0)
    return np.asarray(groups + generator.normal(0, CLUMP_UM, groups.shape))


def table(points_um: Floats, probability: float | Floats = 1.0) -> pd.DataFrame:
    """Detections in level-0 pixels."""
    return pd.DataFrame({"x": points_um[:, 0] / MPP, "y": points_um[:, 1] / MPP, "probability": probability})


def sensitivity(sections: int) -> pd.DataFrame:
    """The count at several steps, and under other readings of the definition, relative to a step of 10 um."""
    generator = np.random.default_rng(1)
    rows = []
    for kind in FOCI:
        for level in LEVELS:
            rows += [_readings(section(generator, kind, level)) for _ in range(max(1, sections // 10))]
    frame = pd.DataFrame(rows)
    return frame[frame["10 um"] > 0]


def _readings(points_um: Floats) -> dict[str, float]:
    detections = table(points_um)
    counts = {}
    for step in STEPS_UM:
        config = CountConfig(step_um=step, draws=0)
        counts[f"{step:g} um"] = count_slide(detections, mpp=MPP, config=config).count
    if not len(points_um):
        return counts
    distance2 = ((points_um[:, None] - points_um) ** 2).sum(axis=-1)
    around = (distance2 <= CountConfig().radius_um ** 2).sum(axis=1)
    counts["circles around mitoses"] = float(np.percentile(around, 95))
    counts["busiest circle"] = count_slide(detections, mpp=MPP, config=CountConfig(draws=0)).maximum
    return counts


def report_sensitivity(readings: pd.DataFrame) -> None:
    """How far each reading is from the finest step."""
    away = readings.sub(readings["10 um"], axis=0).drop(columns="10 um")
    relative = 100 * away.div(readings["10 um"], axis=0)
    columns = {"mean %": relative.mean(), "largest %": relative.abs().max(), "largest": away.abs().max()}
    print("count relative to a step of 10 um")
    print(pd.DataFrame(columns).round(1))


def coverage(sections: int, config: CountConfig) -> pd.DataFrame:
    """For each tumour, how often the interval of a section holds the mean count of all its sections."""
    generator = np.random.default_rng(2)
    rows = []
    for name, kind, clump in TUMOURS:
        for level in LEVELS:
            truth = _mean_count(generator, kind, level, clump, 2 * sections, config)
            for _ in range(sections):
                score = _scored(generator, kind, level, clump, config)
                rows.append({"kind": name, "level": level, "truth": truth, **_outcome(score, truth)})
    return pd.DataFrame(rows)


def reliability(frame: pd.DataFrame, tumours: int, config: CountConfig) -> pd.DataFrame:
    """Stated probability of a grade against how often it is true, on tumours of any level, by fifths."""
    generator = np.random.default_rng(3)
    parts = []
    for kind in FOCI:
        truths = frame[frame["kind"] == kind].groupby("level")["truth"].first()
        for log_level in generator.uniform(np.log(LEVELS[0]), np.log(LEVELS[-1]), tumours):
            truth = float(np.interp(log_level, np.log(LEVELS), truths))
            outcome = _outcome(_scored(generator, kind, float(np.exp(log_level)), 1.0, config), truth)
            parts += [
                {"stated": outcome[f"p{grade}"], "true": outcome["grade"] == grade} for grade in (1, 2, 3)
            ]
    chances = pd.DataFrame(parts)
    fifth = np.digitize(chances["stated"], BINS[1:-1])
    return chances.groupby(fifth).agg(
        stated=("stated", "mean"), true=("true", "mean"), number=("true", "size")
    )


def _scored(
    generator: np.random.Generator, kind: str, level: float, clump: float, config: CountConfig
) -> SlideCount:
    """A section read by a detector: mitoses mostly above 0.8, and look-alikes mostly below."""
    mitoses, others = section(generator, kind, level, clump), section(generator, "even", 4)
    probability = np.r_[generator.beta(12, 1.5, len(mitoses)), generator.beta(2, 3, len(others))]
    return count_slide(table(np.concatenate([mitoses, others]), probability), mpp=MPP, config=config)


def _mean_count(
    generator: np.random.Generator, kind: str, level: float, clump: float, times: int, config: CountConfig
) -> float:
    plain = dataclasses.replace(config, draws=0)
    return float(np.mean([_scored(generator, kind, level, clump, plain).count for _ in range(times)]))


def _outcome(score: SlideCount, truth: float) -> dict[str, Any]:
    low, high = score.count_interval
    grade = 1 + int(truth > score.config.theta1) + int(truth > score.config.theta2)
    chances = {f"p{number}": score.grade_probabilities[number - 1] for number in (1, 2, 3)}
    return {
        "count": score.count,
        "covered": low <= truth <= high,
        "width": high - low,
        "grade": grade,
        **chances,
    }


def report_coverage(frame: pd.DataFrame, title: str) -> None:
    """One line a tumour, and the grades' probabilities against what happened."""
    print(f"\n{title}\ntumour               mean count   sd     covered   width of interval (of 3.92 sd)")
    for (kind, _), rows in frame.groupby(["kind", "level"], sort=False):
        sd = rows["count"].std()
        print(
            f"{kind:20} {rows['truth'].iloc[0]:10.1f} {sd:5.1f} {rows['covered'].mean():11.0%} "
            f"{rows['width'].mean():10.1f} ({3.92 * sd:.1f})"
        )
    simple = frame[~frame["kind"].str.contains("clumps")]
    print(f"all without clumps: {simple['covered'].mean():.1%} of {len(simple)}")


def picture(path: Path, frame: pd.DataFrame, grades: pd.DataFrame) -> None:
    """Two tumours with their density and hotspot, coverage and reliability."""
    figure, grid = plt.subplots(2, 2, figsize=(11, 7.4), layout="constrained")
    axes = grid.ravel()
    generator = np.random.default_rng(5)
    for axis, (kind, level) in zip(axes[:2], (("three foci", 30), ("one focus", 8)), strict=True):
        points = section(generator, kind, level)
        _draw_slide(axis, points, count_slide(table(points), mpp=MPP, tissue=tissue()))
    _draw_coverage(axes[2], frame)
    _draw_reliability(axes[3], grades)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _draw_slide(axis: Any, points_um: Floats, score: SlideCount) -> None:
    density, px_mm = score.density, MPP / 1000
    rows, columns = density.values.shape
    extent = (0, columns * density.step_px * px_mm, rows * density.step_px * px_mm, 0)
    colours = axis.imshow(density.values, extent=extent, cmap="magma_r", vmin=0)
    outline = Ellipse((WIDTH_UM / 2000, HEIGHT_UM / 2000), WIDTH_UM / 1000, HEIGHT_UM / 1000, fill=False)
    axis.add_patch(outline)
    colours.set_clip_path(outline)
    axis.plot(*(points_um.T / 1000), ".", color="#0a5fb4", ms=2.5)
    circle = (score.hotspot.x * px_mm, score.hotspot.y * px_mm)
    axis.add_patch(Circle(circle, score.hotspot.radius_px * px_mm, fill=False, color="#00a046", lw=2))
    low, high = score.count_interval
    chance = score.grade_probabilities[score.grade - 1]
    axis.set_title(
        f"count {score.count:g} ({low:.1f} to {high:.1f}), busiest circle {score.maximum}\n"
        f"grade {score.grade} ({chance:.0%}), clustering {score.heterogeneity['clustering']:.1f}",
        fontsize=9,
    )
    axis.set(xlabel="mm")
    axis.figure.colorbar(colours, ax=axis, label="mitoses per mm²", shrink=0.8)


def _draw_coverage(axis: Any, frame: pd.DataFrame) -> None:
    for kind, rows in frame.groupby("kind", sort=False):
        means = rows.groupby("level")[["truth", "covered"]].mean()
        style = "--" if "clumps" in str(kind) else "-"
        axis.plot(means["truth"], 100 * means["covered"], f"o{style}", label=str(kind), ms=4)
    axis.axhline(95, color="grey", lw=0.8)
    ticks = (3, 6, 10, 20, 50, 100)
    axis.set(xscale="log", ylim=(40, 102), xlabel="mean count of the tumour's sections")
    axis.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_ylabel("% of 95 % intervals that hold it")
    axis.legend(fontsize=8)


def _draw_reliability(axis: Any, grades: pd.DataFrame) -> None:
    axis.plot([0, 1], [0, 1], color="grey", lw=0.8)
    axis.plot(grades["stated"], grades["true"], "o-", color="#7a1fa2")
    for x, y, number in zip(grades["stated"], grades["true"], grades["number"], strict=True):
        axis.annotate(f"{number}", (x, y), textcoords="offset points", xytext=(7, -9), fontsize=8)
    axis.set(xlabel="stated probability of a grade", ylabel="how often it was the true one")


def main() -> None:
    """Print the figures of docs/grading.md and draw its picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sections", type=int, default=40, help="simulated sections a tumour")
    parser.add_argument("--picture", type=Path, help="where to draw")
    options = parser.parse_args()
    report_sensitivity(sensitivity(options.sections))
    config = CountConfig(threshold_spread=0.0, step_um=200.0, draws=300)
    still = coverage(options.sections, config)
    report_coverage(still, "coverage, threshold fixed")
    grades = reliability(still, 2 * options.sections, config)
    print(grades.round(2).to_string(index=False))
    drawn = dataclasses.replace(config, threshold_spread=CountConfig().threshold_spread)
    report_coverage(coverage(options.sections // 2, drawn), "coverage, threshold drawn")
    if options.picture is not None:
        picture(options.picture, still, grades)


if __name__ == "__main__":
    main()
