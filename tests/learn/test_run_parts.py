"""Parts of a run by themselves: drawn sets, test benches, scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.evaluation.marks import Marked
from metaphase.evaluation.metrics import BootstrapConfig, curve, detection_metrics, steady_threshold
from metaphase.evaluation.operating_points import GRID, Bench, bench_of, counts_of, measure
from metaphase.learn.config import EvaluationSection, LearningSection, Task
from metaphase.networks.engine.streaming import even_tile_px
from metaphase.networks.training.data import open_set
from metaphase.networks.training.patches import PatchWriter

SIDE = 8


def stores_with_counts(folder: Path, times: list[int]) -> list[str]:
    """Two positives, and a negative for each entry of `times`; every patch has its own grey."""
    rng = np.random.default_rng(0)
    for kind, rows in (("positives", [None, None]), ("hard", times)):
        with PatchWriter(folder / kind, side_px=SIDE) as writer:
            for number, count in enumerate(rows):
                patch = rng.integers(0, 255, (SIDE, SIDE, 3), np.uint8)
                row = {"label": int(count is None), "slide": "s", "x": float(number), "y": 0.0, "source": "t"}
                row |= {} if count is None else {"hard_0": 1, "hard_1": count}
                writer.add(patch, **row)
    return [str(folder / "positives"), str(folder / "hard")]


def test_a_network_of_a_difficult_set_sees_each_patch_as_often_as_it_was_drawn(tmp_path: Path) -> None:
    stores = stores_with_counts(tmp_path, [0, 3, 1, 0, 2])
    config = LearningSection().of_task(Task("cnn4-2", 0.1, hard_set=1), tuple(stores), ("validation",))
    assert open_set(stores).drawn_rows(config.draws).tolist() == [0, 1, 3, 3, 3, 4, 6, 6]
    easy = LearningSection().of_task(Task("cnn3", 0.1), tuple(stores), ("validation",))
    assert open_set(stores).drawn_rows(easy.draws).tolist() == list(range(7))


@given(side_px=st.floats(1, 3e5), best_px=st.integers(64, 4096))
def test_tiles_cover_a_slide_in_fours_and_stay_near_the_best_size(side_px: float, best_px: int) -> None:
    tile_px = even_tile_px(side_px, best_px, 4)
    assert tile_px % 4 == 0
    assert tile_px <= 1.1 * best_px + 4
    tiles = -(-side_px // tile_px)
    assert tiles * tile_px - side_px <= 4 * tiles + 4 or side_px > 10 * best_px


def random_marks(seed: int, slides: int = 12, detections: int = 300) -> Marked:
    rng = np.random.default_rng(seed)
    names = tuple(f"case{number}" for number in range(slides))
    found = rng.random(detections) < 0.5
    probability = np.sort(np.clip(rng.random(detections) * 0.6 + 0.4 * found, 0.02, 0.985))[::-1]
    truths = np.bincount(rng.integers(0, slides, 60), minlength=slides) + 30
    return Marked(
        probability, found, np.where(found, 1.0, np.nan), rng.integers(0, slides, detections), truths,
        np.ones(slides), names, names,
    )  # fmt: skip


def test_scores_agree_with_the_evaluation(tmp_path: Path) -> None:
    """The same F1 and the same interval as `metaphase evaluate`, from the counts that results.json keeps."""
    validation, test = random_marks(1), random_marks(2)
    bootstrap = BootstrapConfig(samples=300)
    values = measure(validation, test, ["a"] * 6 + ["b"] * 6)
    assert values["threshold"] == steady_threshold(curve(validation))[0]
    wanted = detection_metrics(test, values["threshold"], bootstrap).f1
    found = counts_of([values]).f1_at_validation(bootstrap)
    assert (found.value, found.low, found.high) == pytest.approx((wanted.value, wanted.low, wanted.high))
    part = detection_metrics(test.of_slides(np.arange(12) < 6), values["threshold"], bootstrap).f1
    assert counts_of([values], {"a"}).f1_at_validation(bootstrap).value == pytest.approx(part.value)


def test_the_highest_f1_is_that_of_the_best_threshold_of_the_grid() -> None:
    test = random_marks(3)
    values = measure(random_marks(1), test, ["a"] * 12)
    none = BootstrapConfig(samples=0)
    on_grid = [detection_metrics(test, threshold, none).f1.value for threshold in GRID]
    assert counts_of([values]).highest_f1(none).value == pytest.approx(max(on_grid))
    np.testing.assert_allclose(counts_of([values]).curves()[0], on_grid)


def test_seeds_are_averaged_after_f1() -> None:
    marks = [random_marks(4), random_marks(5)]
    truths = marks[0].truths
    marks = [Marked(**{**vars(mark), "truths": truths}) for mark in marks]
    values = [measure(random_marks(1), mark, ["a"] * 12) for mark in marks]
    none = BootstrapConfig(samples=0)
    single = [counts_of([value]).f1_at_validation(none).value for value in values]
    both = counts_of(values)
    assert both.f1_at_validation(none).value == pytest.approx(np.mean(single))
    assert both.each_f1() == pytest.approx(single)


def bench(reference: pd.DataFrame) -> Bench:
    cohort = pd.DataFrame(
        {"case": ["one", "two"], "he": "", "phh3": "", "laboratory": ["a", "b"], "split": "test",
         "patient": ["one", "two"], "mpp": 0.25, "width": 1000.0, "height": 1000.0}
    )  # fmt: skip
    return bench_of(cohort, reference, "test", EvaluationSection().matching)


def test_marks_respect_the_radius_and_places_to_ignore() -> None:
    rows = [("one", 100.0, 100.0, "mitosis"), ("one", 500.0, 500.0, "ignore"), ("two", 50.0, 50.0, "mitosis")]
    points = bench(pd.DataFrame(rows, columns=["case", "x", "y", "label"]))
    positions = {"x": [129.0, 131.0, 505.0], "y": [100.0, 100.0, 500.0], "probability": [0.9, 0.8, 0.7]}
    marked = points.mark({"one": pd.DataFrame(positions), "two": pd.DataFrame(positions).iloc[:0]})
    assert marked.found.tolist() == [True, False]
    assert marked.truths.tolist() == [1, 1]
    assert points.centres() == ["a", "b"]
