"""What people answered about detections as labels of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from metaphase.base.errors import UsageError
from metaphase.base.tables import write_table
from metaphase.detections.table import LOOKALIKE, MITOSIS
from metaphase.images.tissue.finding import TissueSource
from metaphase.labels.observers.positions import PositionLog, position_name
from metaphase.labels.observers.project import load_project, write_project
from metaphase.labels.observers.store import AnswerStore
from metaphase.learn.calibration import ASK, DETECTIONS, SAMPLE
from metaphase.learn.config import run_config
from metaphase.learn.sources import corrected_points, correction_sources, trained_by_corrections
from metaphase.networks.training.images import ImageSource, read_images
from metaphase.networks.training.windows import ANY, NO, YES, label_cells
from metaphase.slides.opening import SlideSource
from tests.web.results import spread_positions, write_result, write_sparse_slide

SIDE = 1200
PLACES = spread_positions(6, SIDE, SIDE)


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse_slide(tmp_path_factory.mktemp("slides") / "one.tif", SIDE, SIDE, PLACES)


@pytest.fixture
def reviewed(tmp_path: Path, slide: Path) -> Path:
    """Results in which one detection is a mitosis and another one is none."""
    folder = write_result(tmp_path / "results" / "one", slide, SIDE, SIDE, PLACES)
    with PositionLog(folder, SIDE, SIDE) as log:
        log.record("Anna", position_name(*PLACES[0]), "mitosis")
        log.record("Anna", position_name(*PLACES[1]), "not")
    return tmp_path / "results"


def test_a_review_gives_what_was_decided_and_nothing_else(reviewed: Path, slide: Path) -> None:
    points = corrected_points([reviewed])
    assert set(points["slide"]) == {str(slide.resolve())}
    assert dict(zip(points["label"], points["x"], strict=True)) == {
        MITOSIS: pytest.approx(PLACES[0][0]), LOOKALIKE: pytest.approx(PLACES[1][0])}  # fmt: skip


def test_a_calibration_gives_the_answers_of_its_detections(tmp_path: Path, slide: Path) -> None:
    positions = {"slide": str(slide), "x": [10.0, 20, 30], "y": 5.0, "case": "one", "mpp": 0.25}
    items = pd.DataFrame({"item": ["a", "b", "c"]} | positions)
    write_project(tmp_path / DETECTIONS, items, ASK)
    write_table(tmp_path / SAMPLE, items.drop(columns="slide"))
    with AnswerStore(load_project(tmp_path / DETECTIONS)) as store:
        for item, answer in (("a", "mitosis"), ("b", "artefact"), ("c", "unsure")):
            store.record("Anna", item, answer)
    points = corrected_points([tmp_path])
    assert list(zip(points["x"], points["label"], strict=True)) == [(10.0, MITOSIS), (20.0, LOOKALIKE)]


def test_results_that_nobody_answered_are_refused(tmp_path: Path, slide: Path) -> None:
    write_result(tmp_path / "results" / "one", slide, SIDE, SIDE, PLACES)
    with pytest.raises(UsageError, match="nobody has answered"):
        corrected_points([tmp_path / "results"])


def test_a_corrected_slide_is_never_a_test_slide(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.tif" for name in "abcd"]
    cohort = pd.DataFrame({
        "case": list("abcd"), "he": [str(file) for file in files], "patient": ["p", "q", "r", "r"],
        "split": ["train", "validation", "test", "test"],
    })  # fmt: skip
    corrections = pd.DataFrame({"slide": [str(files[2])]})
    with pytest.raises(UsageError, match="every slide of the split test was corrected"):
        trained_by_corrections(cohort, corrections)
    more = pd.concat([cohort, cohort[-1:].assign(case="e", patient="s", he=str(tmp_path / "e.tif"))])
    moved = trained_by_corrections(more, corrections)
    assert list(moved["split"]) == ["train", "validation", "train", "train", "test"], (
        "its patient trains, too"
    )


def test_answers_replace_labels_near_them_and_the_rest_of_the_slide_says_nothing(slide: Path) -> None:
    labels = pd.DataFrame({"x": [100.0, 900], "y": [100.0, 900], "label": MITOSIS})
    source = SlideSource(slide, 0.25)
    known = ImageSource("one", source, "here", "p", "train", labels, "field", 2.0, TissueSource(whole=True))
    points = pd.DataFrame({"x": [104.0, 600], "y": [100.0, 600], "label": [LOOKALIKE, MITOSIS]})
    points = points.assign(slide=str(slide.resolve()), mpp=0.25)
    before, corrected = correction_sources([known], points)
    assert before.points["x"].tolist() == [900.0]
    assert (corrected.laboratory, corrected.patient, corrected.split, corrected.weight) == (
        "here",
        "p",
        "train",
        2.0,
    )
    images = read_images([corrected], 1.0)
    assert len(images) == 1, "pieces without an answer teach nothing"
    cells = label_cells(images[0])
    assert (cells[25, 26], cells[150, 150], cells[80, 80]) == (NO, YES, ANY)
    assert np.count_nonzero(cells != ANY) < 0.02 * cells.size


def test_the_paper_learns_no_corrections(tmp_path: Path) -> None:
    tables = {"cohort": {"manifest": "m.csv"}, "reference": {"table": "r.csv", "corrections": ["results"]}}
    with pytest.raises(UsageError, match="paper cannot learn corrections"):
        run_config(tables, tmp_path)
    dense = run_config(tables | {"training": {"method": "dense"}}, tmp_path)
    assert dense.reference.corrections == (str(tmp_path / "results"),)
