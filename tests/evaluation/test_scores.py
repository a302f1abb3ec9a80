"""Tasks 1 and 2, tuning for all three, and the guard between tuning and testing."""

from __future__ import annotations

import json
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from metaphase.base.errors import UsageError
from metaphase.base.tables import TableError, write_table
from metaphase.counting.specimen import grade_of
from metaphase.evaluation import (
    BootstrapConfig,
    evaluate_grade,
    evaluate_mitoses,
    evaluate_proliferation,
    tune_grade,
    tune_mitoses,
    tune_proliferation,
)
from metaphase.evaluation.operating_points import load_point, save_point
from metaphase.evaluation.tuning import delta_for_spearman, thetas_for_kappa
from metaphase.networks.cards import OperatingPoint
from metaphase.reports.evaluation import write_agreement_report
from tests.evaluation.cohorts import write_cohort

FEW = BootstrapConfig(samples=100)


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    return write_cohort(tmp_path / "data", slides=40, truths=5)


def scores(cohort: Path, **columns: object) -> Path:
    cases = pd.read_csv(cohort / "manifest.csv")["case"]
    write_table(cohort / "scores.csv", pd.DataFrame({"case": cases, **columns}))
    return cohort / "scores.csv"


def test_grades_equal_scikit_learn_with_picture_and_page(cohort: Path, tmp_path: Path) -> None:
    truth = pd.read_csv(cohort / "manifest.csv")["grade"]
    predicted = np.clip(truth + np.resize([0, 0, 0, 1, -1], len(truth)), 1, 3)
    result = evaluate_grade(cohort, scores(cohort, grade=predicted), by=("centre",), bootstrap=FEW)
    write_agreement_report(result, tmp_path / "o")
    expected = sklearn.metrics.cohen_kappa_score(truth, predicted, weights="quadratic")
    assert result.overall.value == pytest.approx(expected)
    assert result.overall.low < expected < result.overall.high
    assert result.confusion is not None
    np.testing.assert_array_equal(result.confusion, sklearn.metrics.confusion_matrix(truth, predicted))
    assert json.loads((tmp_path / "o/metrics.json").read_text())["results"]["confusion"]
    assert "data:image/png" in (tmp_path / "o/index.html").read_text()


def test_scores_equal_scipy(cohort: Path, tmp_path: Path) -> None:
    truth = pd.read_csv(cohort / "manifest.csv")["proliferation"]
    predicted = np.round(np.exp(truth + np.random.default_rng(0).normal(size=len(truth))), 1)
    result = evaluate_proliferation(cohort, scores(cohort, count=predicted), bootstrap=FEW)
    write_agreement_report(result, tmp_path / "o")
    expected = scipy.stats.spearmanr(truth, predicted).statistic
    assert result.overall.value == pytest.approx(expected)
    assert result.overall.low < expected < result.overall.high
    assert (tmp_path / "o/scatter.png").is_file()


def test_constant_predictions(cohort: Path) -> None:
    grade = evaluate_grade(cohort, scores(cohort, grade=2), bootstrap=FEW)
    assert grade.overall.value == 0
    assert "kappa is 0" in str(grade.warnings[0])
    score = evaluate_proliferation(cohort, scores(cohort, count=5), bootstrap=FEW)
    assert np.isnan(score.overall.value)
    assert "undefined" in str(score.warnings[0])


def test_bad_scores_are_named(cohort: Path) -> None:
    path = scores(cohort, grade=4)
    with pytest.raises(TableError, match="a predicted grade is 4"):
        evaluate_grade(cohort, path)
    table = pd.read_csv(path).assign(grade=1)
    write_table(path, pd.concat([table, table.tail(1)]))
    with pytest.raises(TableError, match="more than once: s39"):
        evaluate_grade(cohort, path)
    write_table(path, table.iloc[2:])
    with pytest.raises(TableError, match="no prediction for 2 of 40 cases: s00, s01"):
        evaluate_grade(cohort, path)
    assert len(evaluate_grade(cohort, path, skip_missing=True, bootstrap=FEW).cases) == 38
    write_table(path, pd.concat([table, pd.DataFrame({"case": ["zz"], "grade": [1]})]))
    with pytest.raises(TableError, match="slide zz is not in"):
        evaluate_grade(cohort, path)
    with pytest.raises(TableError, match="no column proliferation"):
        evaluate_proliferation(cohort, path)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), min_size=4, max_size=15))
def test_thetas_equal_exhaustive_search(cases: list[tuple[int, int]]) -> None:
    counts, grades = np.array(cases).T
    values = {}
    for theta1, theta2 in combinations_with_replacement(sorted(set(counts.tolist())), 2):
        predicted = grade_of(counts, theta1, theta2)
        if len(set(grades)) > 1 or set(grades) != set(predicted):
            values[theta1, theta2] = sklearn.metrics.cohen_kappa_score(grades, predicted, weights="quadratic")
    if not values:
        with pytest.raises(TableError):
            thetas_for_kappa(counts.astype(float), grades)
        return
    theta1, theta2, kappa = thetas_for_kappa(counts.astype(float), grades)
    assert kappa == pytest.approx(max(values.values()), abs=1e-9)
    assert values[theta1, theta2] == pytest.approx(kappa, abs=1e-9)


def test_grades_as_in_the_paper() -> None:
    assert grade_of([0, 6, 7, 20, 21], 6, 20).tolist() == [1, 1, 2, 2, 3]


def test_delta_for_spearman_takes_the_best_and_ignores_constant_counts() -> None:
    truth = np.arange(5.0)
    counts = {0.2: np.array([3.0, 1, 2, 5, 4]), 0.5: np.array([0.0, 1, 2, 3, 5]), 0.9: np.zeros(5)}
    assert delta_for_spearman(counts.__getitem__, list(counts), truth) == (0.5, pytest.approx(1))
    with pytest.raises(TableError, match="lower thresholds"):
        delta_for_spearman(lambda _: np.zeros(5), [0.9], truth)


def test_tuned_threshold_is_used_and_never_on_its_own_cases(cohort: Path, tmp_path: Path) -> None:
    card = tmp_path / "card.json"
    card.write_text('{"architecture": "CNN5"}')
    predictions = cohort / "predictions.csv"
    with pytest.raises(UsageError, match="marked as test"):
        tune_mitoses(cohort, predictions, card)
    tuned = tune_mitoses(cohort, predictions, card, split="tune")
    saved = json.loads(card.read_text())
    assert saved["architecture"] == "CNN5"
    assert saved["thresholds"]["mitoses"]["parameters"] == tuned.parameters
    assert load_point(card, "mitoses") == tuned
    result = evaluate_mitoses(cohort, predictions, split="test", card=card, bootstrap=FEW)
    assert result.threshold == tuned.parameters["delta"]
    with pytest.raises(UsageError, match="20 slides were used to tune"):
        evaluate_mitoses(cohort, predictions, card=card)
    on_tuning_set = evaluate_mitoses(cohort, predictions, split="tune", bootstrap=FEW).overall
    assert tuned.value == on_tuning_set.best_f1


def test_patients_in_both_sets_are_refused_too(cohort: Path, tmp_path: Path) -> None:
    manifest = pd.read_csv(cohort / "manifest.csv")
    manifest["patient"] = [f"p{index // 2}" for index in range(len(manifest))]
    write_table(cohort / "manifest.csv", manifest)
    tune_mitoses(cohort, cohort / "predictions.csv", tmp_path / "card.json", split="tune")
    with pytest.raises(UsageError, match="were used to tune"):
        evaluate_mitoses(cohort, cohort / "predictions.csv", split="test", card=tmp_path / "card.json")


def test_tuning_of_score_and_grade_from_counts(cohort: Path, tmp_path: Path) -> None:
    manifest, card = pd.read_csv(cohort / "manifest.csv"), tmp_path / "card.json"
    generator = np.random.default_rng(2)
    rows = [
        manifest.assign(threshold=delta, count=np.round(np.exp(manifest["proliferation"] + noise)))
        for delta in (0.5, 0.8, 0.97)
        for noise in [generator.normal(0, 0.05 if delta == 0.97 else 2, len(manifest))]
    ]
    write_table(cohort / "counts.csv", pd.concat(rows)[["case", "threshold", "count"]])
    tuned = tune_proliferation(cohort, cohort / "counts.csv", card, split="tune")
    assert tuned.parameters == {"delta": 0.97}
    path = scores(cohort, count=manifest["grade"] * 10 - 5)
    assert tune_grade(cohort, path, card, split="tune").value == pytest.approx(1)
    assert set(json.loads(card.read_text())["thresholds"]) == {"proliferation", "grade"}
    assert evaluate_grade(cohort, path, card=card, split="test", bootstrap=FEW).overall.value == 1
    with pytest.raises(UsageError, match="were used to tune"):
        evaluate_grade(cohort, path, card=card)
    write_table(cohort / "counts.csv", pd.concat(rows)[["case", "threshold", "count"]].iloc[:-1])
    with pytest.raises(TableError, match="counts are missing at some threshold for s39"):
        tune_proliferation(cohort, cohort / "counts.csv", split="tune")


def test_tuning_anew_keeps_what_it_does_not_tune(tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    parameters = {"delta": 0.9, "suppress_um": 15.0}
    first = OperatingPoint(
        task="mitoses",
        parameters=parameters,
        metric="F1",
        value=0.8,
        cases=("a",),
        patients=("a",),
        source="slides",
    )
    save_point(path, first)
    save_point(path, first.model_copy(update={"parameters": {"delta": 0.7}, "cases": ("b",)}))
    again = load_point(path, "mitoses")
    assert again.parameters == {"delta": 0.7, "suppress_um": 15.0}
    assert again.cases == ("b",)


def test_a_card_without_tuning_says_what_to_run(cohort: Path, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text("{}")
    with pytest.raises(TableError, match="no tuned parameters for mitoses"):
        evaluate_mitoses(cohort, cohort / "predictions.csv", card=tmp_path / "card.json")
    (tmp_path / "card.json").write_text("[")
    with pytest.raises(TableError, match="no model card"):
        evaluate_mitoses(cohort, cohort / "predictions.csv", card=tmp_path / "card.json")
