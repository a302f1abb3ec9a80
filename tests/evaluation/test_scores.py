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
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.errors import UsageError, several
from metaphase.base.tables import TableError, write_table
from metaphase.counting.specimen import grade_of
from metaphase.detections.points import OperatingPoint
from metaphase.evaluation.grades import evaluate_scores
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.evaluation.mitoses import evaluate_mitoses
from metaphase.evaluation.operating_points import load_point, save_point
from metaphase.evaluation.tuning import delta_for_spearman, thetas_for_kappa, tune_count, tune_mitoses
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
    result = evaluate_scores(
        "grade", cohort, scores(cohort, grade=predicted), by=("laboratory",), bootstrap=FEW
    )
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
    result = evaluate_scores("proliferation", cohort, scores(cohort, count=predicted), bootstrap=FEW)
    write_agreement_report(result, tmp_path / "o")
    expected = scipy.stats.spearmanr(truth, predicted).statistic
    assert result.overall.value == pytest.approx(expected)
    assert result.overall.low < expected < result.overall.high
    assert (tmp_path / "o/scatter.png").is_file()


def test_constant_predictions(cohort: Path) -> None:
    grade = evaluate_scores("grade", cohort, scores(cohort, grade=2), bootstrap=FEW)
    assert grade.overall.value == 0
    assert "kappa is 0" in str(grade.warnings[0])
    score = evaluate_scores("proliferation", cohort, scores(cohort, count=5), bootstrap=FEW)
    assert np.isnan(score.overall.value)
    assert "undefined" in str(score.warnings[0])


def test_bad_scores_are_named(cohort: Path) -> None:
    path = scores(cohort, grade=4)
    with pytest.raises(TableError, match="a predicted grade is 4"):
        evaluate_scores("grade", cohort, path)
    table = pd.read_csv(path).assign(grade=1)
    write_table(path, pd.concat([table, table.tail(1)]))
    with pytest.raises(TableError, match="case given more than once: s39"):
        evaluate_scores("grade", cohort, path)
    write_table(path, table.iloc[2:])
    with pytest.raises(TableError, match="no prediction for 2 of 40 cases: s00, s01"):
        evaluate_scores("grade", cohort, path)
    assert len(evaluate_scores("grade", cohort, path, skip_missing=True, bootstrap=FEW).cases) == 38
    write_table(path, pd.concat([table, pd.DataFrame({"case": ["zz"], "grade": [1]})]))
    with pytest.raises(TableError, match="slide zz is not in"):
        evaluate_scores("grade", cohort, path)
    write_table(path, table)
    with pytest.raises(TableError, match="no column proliferation"):
        evaluate_scores("proliferation", cohort, path)


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
    assert delta_for_spearman(counts, truth) == (0.5, pytest.approx(1))
    with pytest.raises(TableError, match="lower thresholds"):
        delta_for_spearman({0.9: np.zeros(5)}, truth)


def test_tuned_threshold_is_used_and_never_on_its_own_cases(cohort: Path, tmp_path: Path) -> None:
    card = tmp_path / "card.json"
    card.write_text('{"architecture": "CNN5"}')
    predictions = cohort / "predictions.csv"
    with pytest.raises(UsageError, match="marked test"):
        tune_mitoses(cohort, predictions, card)
    tuned = tune_mitoses(cohort, predictions, card, split="tune")
    saved = json.loads(card.read_text())
    assert saved["architecture"] == "CNN5"
    assert saved["thresholds"]["mitoses"]["delta"] == tuned.delta
    assert load_point(card, "mitoses") == tuned
    result = evaluate_mitoses(cohort, predictions, split="test", card=card, bootstrap=FEW)
    assert result.threshold == tuned.delta
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
    tuned = tune_count(cohort, cohort / "counts.csv", card, split="tune", parts=("proliferation",))
    assert tuned.numbers == {"delta": 0.97}
    path = scores(cohort, count=manifest["grade"] * 10 - 5)
    graded = tune_count(cohort, path, card, split="tune", parts=("grade",))
    assert graded.kappa == pytest.approx(1)
    assert graded.numbers == {"delta": 0.97, "theta1": 5, "theta2": 15}
    assert (graded.metric, graded.value) == ("Spearman", tuned.value)
    assert set(json.loads(card.read_text())["thresholds"]) == {"count"}
    assert evaluate_scores("grade", cohort, path, card=card, split="test", bootstrap=FEW).overall.value == 1
    with pytest.raises(UsageError, match="were used to tune"):
        evaluate_scores("grade", cohort, path, card=card)
    write_table(cohort / "counts.csv", pd.concat(rows)[["case", "threshold", "count"]].iloc[:-1])
    with pytest.raises(TableError, match="counts are missing at some threshold for s39"):
        tune_count(cohort, cohort / "counts.csv", split="tune")


def test_delta_and_thetas_belong_to_the_papers_percentile_where_a_table_has_it(cohort: Path) -> None:
    """Tables of `metaphase score` hold the figures in the circle, too: these are something else."""
    manifest = pd.read_csv(cohort / "manifest.csv")
    whole, plain = cohort / "whole.csv", cohort / "plain.csv"
    values = manifest[["case"]].assign(threshold=0.5, proliferation=manifest["grade"] * 10 - 5)
    write_table(whole, values.assign(count=7, grade=manifest["grade"], score="1 to 2"))
    write_table(plain, values.rename(columns={"proliferation": "count"}))
    cards = [cohort / f"{name}.json" for name in ("whole", "plain")]
    points = [
        tune_count(cohort, table, card, split="tune", parts=("grade",))
        for table, card in zip((whole, plain), cards, strict=True)
    ]
    assert points[0] == points[1]
    assert points[0].numbers == {"delta": 0.5, "theta1": 5, "theta2": 15}
    for card in (None, cards[0]):
        result = evaluate_scores("grade", cohort, whole, card=card, split="test", bootstrap=FEW)
        assert result.overall.value == 1
    results = [evaluate_scores("proliferation", cohort, table, bootstrap=FEW) for table in (whole, plain)]
    assert results[0].overall == results[1].overall


def test_tuning_anew_keeps_what_it_does_not_tune(tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    first = OperatingPoint(
        name="mitoses",
        delta=0.9,
        suppress_um=15.0,
        metric="F1",
        value=0.8,
        cases=("a",),
        patients=("a",),
        source="slides",
    )
    save_point(path, first)
    save_point(path, first.model_copy(update={"delta": 0.7, "suppress_um": None, "cases": ("b",)}))
    again = load_point(path, "mitoses")
    assert again.numbers == {"delta": 0.7, "suppress_um": 15.0}
    assert again.cases == ("b",)


def test_a_card_without_tuning_says_what_to_run(cohort: Path, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text("{}")
    with pytest.raises(TableError, match="no operating point for mitoses"):
        evaluate_mitoses(cohort, cohort / "predictions.csv", card=tmp_path / "card.json")
    (tmp_path / "card.json").write_text("[")
    with pytest.raises(TableError, match="no model card"):
        evaluate_mitoses(cohort, cohort / "predictions.csv", card=tmp_path / "card.json")


# ---- cases under any of their names, each once


def files_named(cohort: Path) -> Path:
    """The cohort with slides called otherwise than their cases."""
    manifest = pd.read_csv(cohort / "manifest.csv")
    write_table(
        cohort / "manifest.csv", manifest.assign(he=[f"slides/x-{case}.svs" for case in manifest["case"]])
    )
    return cohort


@pytest.mark.parametrize("name", ["x-{}.svs", "x-{}", "/elsewhere/x-{}.svs", "{}"])
def test_scores_may_name_slides_by_file_or_stem(cohort: Path, name: str) -> None:
    truth = pd.read_csv(cohort / "manifest.csv")["grade"]
    predicted = np.clip(truth + np.resize([0, 0, 1], len(truth)), 1, 3)
    plain = evaluate_scores("grade", cohort, scores(cohort, grade=predicted), bootstrap=FEW)
    table = pd.read_csv(scores(files_named(cohort), grade=predicted))
    half = len(table) // 2
    table.loc[half:, "case"] = [name.format(case) for case in table["case"][half:]]
    write_table(cohort / "scores.csv", table)
    for skip in (False, True):
        result = evaluate_scores("grade", cohort, cohort / "scores.csv", bootstrap=FEW, skip_missing=skip)
        assert result.overall == plain.overall
        assert list(result.cases["case"]) == list(plain.cases["case"])
    counts = pd.concat([table.assign(count=table["grade"], threshold=delta) for delta in (0.5, 0.9)])
    write_table(cohort / "counts.csv", counts)
    assert len(tune_count(cohort, cohort / "counts.csv", split="tune").cases) == 20


def test_two_names_of_one_slide_are_refused(cohort: Path) -> None:
    path = scores(files_named(cohort), grade=2, count=3)
    table = pd.read_csv(path)
    write_table(path, pd.concat([table, table.head(1).assign(case="x-s00.svs", grade=3)]))
    with pytest.raises(TableError, match=r"slides s00 and x-s00\.svs could both be s00"):
        evaluate_scores("grade", cohort, path)
    with pytest.raises(TableError, match="could both be s00"):
        tune_count(cohort, path, split="tune", parts=("grade",))


# ---- values that cannot be


@pytest.mark.parametrize(("grade", "described"), [(5, "a true grade is 5"), (2.5, r"a true grade is 2\.5")])
def test_tuning_refuses_what_is_no_grade(cohort: Path, grade: float, described: str) -> None:
    path = scores(cohort, count=3, threshold=0.9)
    manifest = pd.read_csv(cohort / "manifest.csv").astype({"grade": float})
    manifest.loc[manifest.index[manifest["split"] == "tune"][0], "grade"] = grade
    write_table(cohort / "manifest.csv", manifest)
    with pytest.raises(TableError, match=described):
        tune_count(cohort, path, split="tune", parts=("grade",))


def test_counts_for_tuning_are_each_given_once_and_of_known_cases(cohort: Path) -> None:
    path = scores(cohort, count=np.arange(40), threshold=0.9)
    table = pd.read_csv(path)
    write_table(path, pd.concat([table, table.head(1).assign(count=100)]))
    with pytest.raises(TableError, match="case and threshold given more than once: s00"):
        tune_count(cohort, path, split="tune")
    write_table(path, pd.concat([table, table.head(1).assign(case="zz")]))
    with pytest.raises(TableError, match="slide zz is not in"):
        tune_count(cohort, path, split="tune")


@pytest.mark.parametrize("column", ["count", "proliferation"])
def test_infinite_scores_are_refused(cohort: Path, column: str) -> None:
    path = scores(cohort, **{column: [np.inf, *range(39)]})
    with pytest.raises(TableError, match=f"column {column} of case s00 is infinite"):
        evaluate_scores("proliferation", cohort, path)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_few_cases_give_no_interval(cohort: Path, count: int) -> None:
    write_table(cohort / "manifest.csv", pd.read_csv(cohort / "manifest.csv").head(count))
    result = evaluate_scores("proliferation", cohort, scores(cohort, count=np.arange(count)), bootstrap=FEW)
    assert np.isnan([result.overall.low, result.overall.high]).all()
    assert f"there are only {several(count, 'patient')}: no interval can be given" in [
        one.text for one in result.warnings
    ]


def test_constant_on_both_sides_is_undefined_and_says_only_that(cohort: Path) -> None:
    manifest = pd.read_csv(cohort / "manifest.csv").assign(grade=2)
    write_table(cohort / "manifest.csv", manifest)
    result = evaluate_scores("grade", cohort, scores(cohort, grade=2), bootstrap=FEW)
    assert str(result.overall) == "undefined"
    said = " ".join(one.text for one in result.warnings)
    assert "kappa is undefined" in said
    assert "kappa is 0" not in said


# ---- one operating point for count, grade and score


def counted(cohort: Path, noise: dict[float, float]) -> Path:
    """A table of counts at several thresholds, each as close to the true score as its noise allows."""
    manifest, generator = pd.read_csv(cohort / "manifest.csv"), np.random.default_rng(2)
    rows = [
        manifest.assign(
            threshold=delta,
            count=np.round(np.exp(manifest["proliferation"] + generator.normal(0, sigma, len(manifest)))),
        )
        for delta, sigma in noise.items()
    ]
    write_table(cohort / "counts.csv", pd.concat(rows)[["case", "threshold", "count"]])
    return cohort / "counts.csv"


def test_both_are_tuned_from_one_table_and_tested_at_that_point(cohort: Path, tmp_path: Path) -> None:
    card, path = tmp_path / "card.json", counted(cohort, {0.5: 2, 0.8: 2, 0.97: 0.05})
    tuned = tune_count(cohort, path, card, split="tune")
    assert (tuned.name, tuned.delta, tuned.metric) == ("count", 0.97, "Spearman")
    here = pd.read_csv(path).merge(pd.read_csv(cohort / "manifest.csv")[["case", "grade", "split"]])
    here = here[(here["split"] == "tune") & (here["threshold"] == 0.97)]
    expected = thetas_for_kappa(here["count"].to_numpy(float), here["grade"].to_numpy(np.int64))
    assert (tuned.theta1, tuned.theta2, tuned.kappa) == expected
    assert load_point(card, "count") == tuned
    assert set(tuned.laboratories) == {"c0", "c1", "c2"}
    at_point = pd.read_csv(path)
    at_point = at_point[at_point["threshold"] == 0.97]
    for task in ("grade", "proliferation"):
        from_all = evaluate_scores(task, cohort, path, card=card, split="test", bootstrap=FEW)
        assert from_all.settings["point_delta"] == 0.97
        write_table(cohort / "one.csv", at_point)
        assert (
            evaluate_scores(task, cohort, cohort / "one.csv", card=card, split="test", bootstrap=FEW).overall
            == from_all.overall
        )
        with pytest.raises(UsageError, match="20 slides were used to tune the operating point count"):
            evaluate_scores(task, cohort, path, card=card, bootstrap=FEW)
        write_table(cohort / "other.csv", at_point.assign(threshold=0.5))
        with pytest.raises(TableError, match=r"delta of 0\.97 \(its thresholds: 0\.5\)"):
            evaluate_scores(task, cohort, cohort / "other.csv", card=card, split="test")
    with pytest.raises(TableError, match="counts at 3 thresholds"):
        evaluate_scores("proliferation", cohort, path, split="test")


def test_another_delta_takes_the_thetas_with_it(cohort: Path, tmp_path: Path) -> None:
    card = tmp_path / "card.json"
    tune_count(cohort, counted(cohort, {0.5: 2, 0.97: 0.05}), card, split="tune")
    again = tune_count(
        cohort, counted(cohort, {0.5: 0.05, 0.97: 2}), card, split="tune", parts=("proliferation",)
    )
    assert again.numbers == load_point(card, "count").numbers == {"delta": 0.5}
    with pytest.raises(TableError, match="has no thetas"):
        evaluate_scores("grade", cohort, cohort / "counts.csv", card=card, split="test")
    path = counted(cohort, {0.9: 0.1})
    with pytest.raises(TableError, match=r"no row at the point's delta of 0\.5 \(its thresholds: 0\.9\)"):
        tune_count(cohort, path, card, split="tune", parts=("grade",))
    alone = tune_count(cohort, path, split="tune", parts=("grade",))
    assert alone.delta == 0.9
    with pytest.raises(TableError, match="has counts at 2 thresholds, and no delta is known"):
        tune_count(cohort, counted(cohort, {0.5: 1, 0.9: 1}), split="tune", parts=("grade",))


def test_the_papers_way_knows_nothing_below_its_floor(cohort: Path) -> None:
    path = counted(cohort, {0.5: 0.05, 0.8: 1, 0.97: 2})
    assert tune_count(cohort, path, split="tune").delta == 0.5
    assert tune_count(cohort, path, split="tune", floor=0.8).delta >= 0.8
    free, strict = (
        tune_mitoses(cohort, cohort / "predictions.csv", split="tune", floor=floor) for floor in (0.0, 0.95)
    )
    assert free.delta < 0.95 <= strict.delta
    assert strict.value is not None
    assert free.value is not None
    assert strict.value <= free.value


def test_a_point_says_how_far_its_delta_depends_on_the_patients(cohort: Path) -> None:
    sure = tune_count(cohort, counted(cohort, {0.5: 9, 0.8: 9, 0.97: 0.01}), split="tune").delta_range
    unsure = tune_count(cohort, counted(cohort, {0.5: 3, 0.8: 3, 0.97: 3}), split="tune").delta_range
    assert sure == (0.97, 0.97)
    assert unsure is not None
    assert unsure[0] < unsure[1]
    mitoses = tune_mitoses(cohort, cohort / "predictions.csv", split="tune")
    assert mitoses.delta_range is not None
    low, high = mitoses.delta_range
    assert low <= mitoses.delta <= high


def test_points_of_a_card_share_one_search(tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    save_point(path, OperatingPoint(name="mitoses", delta=0.9, suppress_um=15.0))
    save_point(path, OperatingPoint(name="count", delta=0.95))
    with pytest.raises(
        TableError, match=r"suppress_um differs between the operating points: \[15\.0, 25\.0\]"
    ):
        save_point(path, OperatingPoint(name="count", delta=0.95, suppress_um=25.0))
    assert load_point(path, "count").delta == 0.95


@pytest.mark.parametrize(
    "wrong",
    [
        {"delta": 1.5}, {"delta": float("nan")}, {"delta": 0.9, "suppress_um": -1.0},
        {"delta": 0.9, "theta1": 3.0},
        {"delta": 0.9, "theta1": 9.0, "theta2": 3.0}, {"delta": 0.9, "colour": 1.0},
    ],
)  # fmt: skip
def test_points_that_cannot_be_are_refused(tmp_path: Path, wrong: dict[str, float]) -> None:
    (tmp_path / "card.json").write_text(json.dumps({"thresholds": {"count": wrong}}))
    with pytest.raises(TableError, match="operating point"):
        load_point(tmp_path / "card.json", "count")


@pytest.mark.parametrize("section", [[], {"count": [1]}, {"grade": {"delta": 0.9}}])
def test_a_spoilt_section_of_points_is_told(tmp_path: Path, section: object) -> None:
    card = tmp_path / "card.json"
    card.write_text(json.dumps({"thresholds": section}))
    for use in (
        lambda: load_point(card, "count"),
        lambda: save_point(card, OperatingPoint(name="count", delta=1)),
    ):
        with pytest.raises(TableError, match="operating points are invalid"):
            use()


@pytest.mark.parametrize(
    ("changes", "described"),
    [({"threshold": 90.0}, "column threshold holds 90"), ({"count": -1}, "column count holds -1")],
)  # fmt: skip
def test_counts_that_cannot_be_are_refused(cohort: Path, changes: dict[str, float], described: str) -> None:
    path = scores(cohort, **{"count": 3, "threshold": 0.9} | changes)
    with pytest.raises(TableError, match=described):
        tune_count(cohort, path, split="tune")
    with pytest.raises(TableError, match=r"no threshold reaches 0\.95"):
        tune_count(cohort, scores(cohort, count=3, threshold=0.9), split="tune", floor=0.95)


def test_a_table_that_carries_its_point_is_not_tested_on_its_tuning_cases(cohort: Path) -> None:
    table = pd.read_csv(scores(cohort, count=np.arange(40), grade=2))
    point = {"delta": 0.9, "cases": ["s01"]}
    table.attrs["operating_points"] = {"model": "m", "count": point}
    write_table(cohort / "scores.parquet", table)
    for task in ("grade", "proliferation"):
        with pytest.raises(UsageError, match="used to tune the operating point count: s01"):
            evaluate_scores(task, cohort, cohort / "scores.parquet")
        evaluate_scores(task, cohort, cohort / "scores.parquet", split="test", bootstrap=FEW)
