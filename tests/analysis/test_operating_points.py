"""Mitoses are listed at one operating point and counted at another; every route names the one it uses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from metaphase.analysis import scoring
from metaphase.analysis.cohort import CohortSlide
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.run import SlideOutcome, detect_cohort, detect_slide
from metaphase.analysis.scoring import count_cohort, count_point, count_points, read_cases, stated_counts
from metaphase.base.errors import UsageError
from metaphase.base.tables import TableError, read_table, table_attributes
from metaphase.detections.points import (
    PAPER_POINTS,
    UNTUNED,
    OperatingPoint,
    changed_point,
    paper_points,
    points_of,
)
from metaphase.evaluation import comparison
from metaphase.evaluation.marks import MatchingConfig
from metaphase.evaluation.mitoses import evaluate_mitoses
from metaphase.evaluation.operating_points import load_points, save_point
from metaphase.evaluation.tuning import tune_count, tune_mitoses
from metaphase.images.tissue.finding import TissueSource
from metaphase.networks.cards import parse_card
from metaphase.networks.detector import PAPER_PEAKS, ReadyDetector, load_detector
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.settings import EngineConfig
from metaphase.networks.engine.streaming import find_detections
from metaphase.slides.opening import SlideSource, open_slide
from tests.analysis.conftest import tiny_model

MITOSES = OperatingPoint(
    name="mitoses", delta=0.7, metric="F1", value=0.7, cases=("he",), source="our fields"
)
TABLES = ("candidates", "detections")
COUNT = OperatingPoint(
    name="count", delta=0.9, theta1=3.0, theta2=9.0, source="our graded slides", recall=0.6, false_per_mm2=3.9
)


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A model whose card holds both points."""
    model = tiny_model(tmp_path / "models" / "own.safetensors")
    for point in (MITOSES, COUNT):
        save_point(model.with_suffix(".json"), point)
    return model


def detect(he_slide: Path, folder: Path, model: Path, **settings: object) -> SlideOutcome:
    ready = ReadyDetector(load_detector([model]), EngineConfig(device="cpu"))
    config = DetectionConfig(tile_px=256, **settings)  # type: ignore[arg-type]
    return detect_slide(CohortSlide("he", SlideSource(he_slide)), folder, ready, config)


def test_detect_lists_at_one_point_and_counts_at_the_other(
    tmp_path: Path, he_slide: Path, tuned: Path
) -> None:
    outcome = detect(he_slide, tmp_path / "out", tuned)
    candidates, listed = (
        read_table(tmp_path / "out" / f"{name}.parquet") for name in ("candidates", "detections")
    )
    assert 0 < listed["counted"].sum() < len(listed) < len(candidates)
    assert (listed["probability"] >= 0.7).all()
    assert (candidates["counted"] == (candidates["probability"] >= 0.9)).all()
    summary = outcome.summary
    assert summary["detections"] == len(listed)
    assert summary["counted"] == listed["counted"].sum()
    assert summary["threshold"] == summary["config"]["threshold"] == 0.9
    assert [summary["config"][name] for name in ("theta1", "theta2")] == [3.0, 9.0]
    stated = summary["operating_points"]
    assert (stated["mitoses"]["delta"], stated["count"]["theta2"]) == (0.7, 9.0)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "our graded slides" in page
    assert "found 60% of the mitoses and made 3.9 false positives per mm²" in page
    assert "1 up to 3, 2 up to 9" in page


@pytest.mark.parametrize("name", TABLES)
def test_score_uses_the_point_for_counts_of_the_table(
    tmp_path: Path, he_slide: Path, tuned: Path, name: str
) -> None:
    summary = detect(he_slide, tmp_path / "out", tuned).summary
    table = tmp_path / "out" / f"{name}.parquet"
    point = count_point([table])
    assert (point.delta, point.theta1, point.theta2) == (0.9, 3.0, 9.0)
    assert "our graded slides" in point.source
    ((count,),) = count_cohort(read_cases([table], slide=he_slide), [point]).results.values()
    assert (count.count, count.grade) == (summary["count"], summary["grade"])
    assert (count.config.theta1, count.config.theta2) == (3.0, 9.0)


def test_a_card_tells_how_to_count_tables_that_state_nothing(tmp_path: Path, tuned: Path) -> None:
    (tmp_path / "points.csv").write_text("slide,x,y,probability\na,1,1,0.9\n")
    files, card = [tmp_path / "points.csv"], tuned.with_suffix(".json")
    assert count_point(files).numbers == UNTUNED.count.numbers
    assert (
        count_point(files, card).numbers | {"delta": 0.9, "theta1": 3.0} == count_point(files, card).numbers
    )
    high, higher = count_points(files, card, [0.8, 0.95], theta2=12.0)
    assert (high.delta, higher.delta, higher.theta1, higher.theta2) == (0.8, 0.95, 3.0, 12.0)
    with pytest.raises(UsageError, match="threshold is 7"):
        count_points(files, card, [7.0])


def test_points_of_one_card_are_searched_alike(tmp_path: Path, tuned: Path) -> None:
    """A point for counts that was tuned from a table of counts states no search: the other point's holds."""
    save_point(tuned.with_suffix(".json"), MITOSES.model_copy(update={"suppress_um": 12.5, "smooth_um": 1.0}))
    save_point(tuned.with_suffix(".json"), COUNT)
    used = load_detector([tuned]).points
    assert (used.suppress_um, used.smooth_um) == (12.5, 1.0)
    assert (used.mitoses.suppress_um, used.mitoses.smooth_um) == (12.5, 1.0)
    nested = tmp_path / "nested.json"
    entry = {"parameters": {"delta": 0.9, "suppress_um": 12.5, "smooth_um": 1.0}}
    nested.write_text(json.dumps({"thresholds": {"mitoses": entry}}))
    save_point(nested, OperatingPoint(name="mitoses", delta=0.8))
    assert load_points(nested).mitoses.numbers == {"delta": 0.8, "suppress_um": 12.5, "smooth_um": 1.0}


def test_every_file_of_a_result_gives_its_count(tmp_path: Path, he_slide: Path, tuned: Path) -> None:
    summary = detect(he_slide, tmp_path / "out", tuned, formats=("csv", "qupath")).summary
    for name in ("search.parquet", "candidates.parquet", "detections.parquet", "detections.csv"):
        point = count_point([tmp_path / "out" / name])
        cases = read_cases([tmp_path / "out" / name], slide=he_slide)
        ((count,),) = count_cohort(cases, [point]).results.values()
        assert count.count == summary["count"]
    moved = Path(shutil.copy(tmp_path / "out" / "detections.csv", tmp_path / "moved.csv"))
    with pytest.raises(UsageError, match="column counted says what was counted"):
        count_point([moved])


def test_where_more_is_counted_than_listed_both_are_told(tmp_path: Path, he_slide: Path, tuned: Path) -> None:
    save_point(tuned.with_suffix(".json"), MITOSES.model_copy(update={"delta": 0.95}))
    summary = detect(he_slide, tmp_path / "out", tuned).summary
    table = read_table(tmp_path / "out" / "detections.parquet")
    assert table["listed"].sum() == summary["detections"] < len(table) == table["counted"].sum()


def test_a_changed_point_claims_no_merit_of_the_old_one() -> None:
    point = COUNT.model_copy(update={"metric": "Spearman", "value": 0.7, "kappa": 0.6, "false_per_mm2": 3.0})
    stricter = changed_point(point, delta=0.95)
    assert (stricter.metric, stricter.value, stricter.kappa, stricter.false_per_mm2) == ("", None, None, None)
    regraded = changed_point(point, theta1=1.0)
    assert (regraded.value, regraded.kappa, regraded.false_per_mm2) == (0.7, None, 3.0)
    assert regraded.source == "our graded slides; theta1 given by the user"


def test_one_point_stands_in_for_the_other_and_says_so() -> None:
    both = points_of({"mitoses": MITOSES})
    assert both.count.delta == both.mitoses.delta == 0.7
    assert "that for mitoses" in both.count.source
    assert (both.count.theta1, both.count.theta2) == (6.0, 20.0)
    assert points_of({"count": COUNT}).mitoses.delta == 0.9
    assert points_of({}) == UNTUNED


def test_what_the_user_gives_holds_for_both(tmp_path: Path, he_slide: Path, tuned: Path) -> None:
    summary = detect(he_slide, tmp_path / "out", tuned, threshold=0.5, theta1=1.0).summary
    stated = summary["operating_points"]
    assert stated["mitoses"]["delta"] == stated["count"]["delta"] == 0.5
    assert (stated["count"]["theta1"], stated["count"]["theta2"]) == (1.0, 9.0)
    assert stated["count"]["source"] == "delta, theta1 given by the user"
    with pytest.raises(UsageError, match=r"the threshold is 0\.05, and nothing below 0\.1 is kept"):
        detect(he_slide, tmp_path / "low", tuned, threshold=0.05)
    with pytest.raises(UsageError, match="theta1 is 30"):
        detect(he_slide, tmp_path / "other", tuned, theta1=30.0)


def test_what_a_models_own_low_threshold_needs_is_kept(tuned: Path) -> None:
    detector = load_detector([tuned])
    card = detector.cards[0]
    low = {name: point.model_copy(update={"delta": 0.05}) for name, point in card.thresholds.items()}
    lower = replace(detector, cards=(card.model_copy(update={"thresholds": low}),))
    assert DetectionConfig().peaks(detector).floor == 0.1
    assert DetectionConfig().peaks(lower).floor == 0.05
    with pytest.raises(UsageError, match=r"the threshold is 0\.05, and nothing below 0\.2 is kept"):
        DetectionConfig(floor=0.2).peaks(lower)


def test_evaluation_uses_and_guards_the_point_that_tables_state(
    tmp_path: Path, he_slide: Path, tuned: Path
) -> None:
    detect(he_slide, tmp_path / "out", tuned)
    found = read_table(tmp_path / "out" / "candidates.parquet")
    truth = found.head(3)[["x", "y"]].assign(slide="he", label="mitosis")
    truth.to_csv(tmp_path / "truth.csv", index=False)
    for threshold in (None, 0.5):
        with pytest.raises(UsageError, match="used to tune the operating point mitoses: he"):
            evaluate_mitoses(
                tmp_path / "truth.csv", tmp_path / "out" / "candidates.parquet", mpp=0.25,
                matching=MatchingConfig(threshold=threshold),
            )  # fmt: skip
    untested = MITOSES.model_copy(update={"cases": ("another",)})
    save_point(tuned.with_suffix(".json"), untested)
    detect(he_slide, tmp_path / "out", tuned)
    result = evaluate_mitoses(tmp_path / "truth.csv", tmp_path / "out" / "candidates.parquet", mpp=0.25)
    assert result.threshold == 0.7
    assert result.settings["operating_point"] == "mitoses, our fields"


def test_the_papers_way(tmp_path: Path, he_slide: Path, tuned: Path) -> None:
    usual, paper = (
        detect(he_slide, tmp_path / name, tuned, paper=name == "paper") for name in ("usual", "paper")
    )
    stated = paper.summary["operating_points"]
    assert (stated["mitoses"]["delta"], stated["count"]["delta"]) == (0.919, 0.970)
    assert (stated["count"]["theta1"], stated["count"]["theta2"]) == (6, 20)
    assert (stated["count"]["suppress_um"], stated["count"]["smooth_um"]) == (25.0, 0.0)
    assert "the paper's" in stated["count"]["source"]
    assert stated["search"] == {"method": "components", "floor": 0.8}
    assert usual.summary["operating_points"]["search"] == {"method": "maxima", "floor": 0.1}
    assert DetectionConfig(paper=True).peaks(load_detector([tuned])) == PAPER_PEAKS
    assert (PAPER_PEAKS.floor, PAPER_PEAKS.method) == (0.8, "components")
    found = read_table(tmp_path / "paper" / "candidates.parquet")
    with open_slide(he_slide) as slide:
        tissue = TissueSource().of(slide)
        engine = Engine(load_detector([tuned]).built().networks, EngineConfig(device="cpu"))
        expected = find_detections(engine, slide, PAPER_PEAKS, mask=tissue.grid)
    np.testing.assert_allclose(found[["x", "y"]], np.column_stack([expected.x, expected.y]), atol=0.01)
    with pytest.raises(UsageError, match="nothing below 0"):
        detect(he_slide, tmp_path / "low", tuned, paper=True, threshold=0.5)
    with pytest.raises(UsageError, match="floor and paper are both given"):
        DetectionConfig(paper=True, floor=0.3)
    assert usual.summary["operating_points"]["count"]["delta"] == 0.9
    again = detect(he_slide, tmp_path / "paper", tuned, paper=True)
    assert again.resumed


def test_the_papers_way_keeps_deltas_that_were_tuned_for_it(tuned: Path) -> None:
    for suppress_um, delta, method, floor, own in (
        (25.0, 0.998, "components", 0.8, True),
        (15.0, 0.998, "components", 0.8, False),
        (25.0, 0.7, "components", 0.8, False),
        (25.0, 0.998, "maxima", 0.05, False),
        (25.0, 0.998, "components", 0.5, False),
        (25.0, 0.998, None, None, False),  # cards of earlier versions
    ):
        point = OperatingPoint(
            name="mitoses", delta=delta, suppress_um=suppress_um, smooth_um=0.0, cases=("he",),
            method=method, floor=floor,
        )  # fmt: skip
        used = paper_points(points_of({"mitoses": point}))
        assert used.mitoses.delta == (delta if own else 0.919)
        assert used.count.delta == (delta if own else 0.970)
        assert (used.count.theta1, used.count.theta2, used.suppress_um) == (6, 20, 25.0)
        other = point.model_copy(update={"name": "count", "method": "maxima", "floor": 0.05})
        both = paper_points(points_of({"mitoses": point, "count": other}))
        assert (both.mitoses.delta, both.count.delta) == (used.mitoses.delta, 0.970)
    assert paper_points(UNTUNED) == PAPER_POINTS
    bundled = DetectionConfig(paper=True).points(load_detector(["paper"]))
    assert bundled.mitoses.delta == bundled.count.delta == 0.9695162773132324
    assert "connected components from 0.8" in bundled.mitoses.source
    assert DetectionConfig(paper=True).points(load_detector([tuned])).mitoses.delta == 0.919


def test_tuning_notes_the_search_of_its_tables(tmp_path: Path, he_slide: Path, tuned: Path) -> None:
    for name, method, floor in (("usual", "maxima", 0.1), ("paper", "components", 0.8)):
        detect(he_slide, tmp_path / name, tuned, paper=name == "paper", threshold=0.9)
        table = tmp_path / name / "candidates.parquet"
        read_table(table).iloc[:3].assign(slide="he")[["slide", "x", "y"]].to_csv(tmp_path / "truth.csv")
        point = tune_mitoses(tmp_path / "truth.csv", table, mpp=0.25)
        assert point.search == (method, floor, 25.0, 0.0)
        assert tune_mitoses(tmp_path / "truth.csv", table, mpp=0.25, floor=0.9).floor == 0.9
        points = count_points([table], None, [0.9, 0.95])
        counts = count_cohort(read_cases([table]), points, tissue=False).results
        stated = stated_counts([("he", one) for one in counts["he"]], points, [table])
        more = stated.assign(case="other", proliferation=stated["proliferation"] + 5)
        both = pd.concat([stated, more])
        both.attrs = stated.attrs
        both.to_parquet(tmp_path / "counts.parquet")
        (tmp_path / "cohort.csv").write_text("case,proliferation\nhe,1\nother,2\n")
        count = tune_count(tmp_path / "cohort.csv", tmp_path / "counts.parquet", parts=["proliferation"])
        assert (count.method, count.floor) == (method, floor)


def test_the_papers_way_takes_the_network_of_its_kind_and_refuses_two_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (DetectionConfig(paper=True).models, DetectionConfig().models) == (("paper",), ())
    monkeypatch.setattr(SlideSource, "open", lambda _: pytest.fail("a slide was opened first"))
    slides = [CohortSlide("he", SlideSource(tmp_path / "he.png", 0.25))]
    ready = ReadyDetector(load_detector(["breast"]), EngineConfig(device="cpu"))
    with pytest.raises(UsageError, match="--model paper"):
        detect_cohort(slides, tmp_path, ready, DetectionConfig(paper=True))
    DetectionConfig(paper=True).check(replace(ready, config=EngineConfig(device="cpu", exhaustive=True)))
    DetectionConfig().check(ready)


def test_run_and_tune_write_points_that_a_card_can_hold(tuned: Path) -> None:
    card = parse_card(tuned.with_suffix(".json"))
    assert set(card.thresholds) >= {"mitoses", "count"}
    assert json.loads(tuned.with_suffix(".json").read_text())["thresholds"]["count"]["theta1"] == 3.0
    assert PAPER_POINTS.mitoses.delta == 0.919


def test_tables_carry_their_points(tmp_path: Path, he_slide: Path, tuned: Path) -> None:
    detect(he_slide, tmp_path / "out", tuned)
    for name in TABLES:
        stated = table_attributes(tmp_path / "out" / f"{name}.parquet")["operating_points"]
        assert stated["model"] == "tiny"
        assert stated["mitoses"]["cases"] == ["he"]
    assert isinstance(read_table(tmp_path / "out" / "detections.parquet"), pd.DataFrame)


def test_a_foreign_file_in_a_results_folder_is_not_the_models(
    tmp_path: Path, he_slide: Path, tuned: Path
) -> None:
    detect(he_slide, tmp_path / "out", tuned)
    (tmp_path / "out" / "other.csv").write_text("slide,x,y,probability\nhe,1,1,0.85\n")
    assert "the paper's floor" in count_point([tmp_path / "out" / "other.csv"]).source


def test_one_threshold_serves_tables_of_different_points(tmp_path: Path) -> None:
    for name, delta in (("a", 0.5), ("b", 0.7)):
        table = pd.DataFrame({"slide": [name], "x": [1.0], "y": [1.0], "probability": [0.9]})
        table.attrs = {
            "operating_points": {"model": name, "mitoses": {"delta": delta}, "count": {"delta": delta}}
        }
        (tmp_path / "tables").mkdir(exist_ok=True)
        table.to_parquet(tmp_path / "tables" / f"{name}.parquet")
    (tmp_path / "truth.csv").write_text("slide,x,y\na,1,1\nb,1,1\n")
    where = tmp_path / "truth.csv", tmp_path / "tables"
    with pytest.raises(UsageError, match="different operating points"):
        evaluate_mitoses(*where, mpp=0.25)
    assert evaluate_mitoses(*where, mpp=0.25, matching=MatchingConfig(threshold=0.9)).overall.true == 2
    broken = pd.DataFrame({"slide": ["a"], "x": [1.0], "y": [1.0], "probability": [0.9]})
    broken.attrs = {"operating_points": {"model": "a", "count": {"delta": 7}}}
    broken.to_parquet(tmp_path / "broken.parquet")
    assert count_points([tmp_path / "broken.parquet"], None, [0.9])[0].delta == 0.9


def test_labels_are_understood_or_named_and_never_dropped_without_a_word(tmp_path: Path) -> None:
    table = tmp_path / "points.csv"
    rows = [
        f"a,{number * 900},5,0.9,{label}" for number, label in enumerate(("1", "0", "1", "mitosis", "no"))
    ]
    table.write_text("\n".join(["slide,x,y,probability,label", *rows]) + "\n")
    (case,) = read_cases([table], mpp=0.25)
    assert (len(case.points), case.warnings) == (3, ())
    table.write_text("\n".join(["slide,x,y,probability,label", *rows, "a,7,7,0.9,tumour"]) + "\n")
    (case,) = read_cases([table], mpp=0.25)
    assert "1 points are labelled tumour, and are not counted" in str(case.warnings[0])
    table.write_text("slide,x,y,probability,label\na,7,7,0.9,tumour\nb,7,7,0.9,2\n")
    with pytest.raises(TableError, match=r"points\.csv: 2 points are labelled tumour, 2"):
        read_cases([table], mpp=0.25)


def test_a_slide_without_a_file_is_looked_for_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the current folder, which costs a look at all its files for each slide."""
    table = tmp_path / "points.csv"
    table.write_text("slide,x,y\na,1,1\nb,2,2\n")
    for module in (scoring, comparison):
        monkeypatch.setattr(module, "is_slide_there", lambda path: pytest.fail(f"looked at {path}"))
    assert [case.slide for case in read_cases([table], mpp=0.25)] == [None, None]
