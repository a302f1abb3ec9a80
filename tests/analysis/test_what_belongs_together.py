"""What lies in one folder and does not belong together is refused, and nothing is emptied or half done."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from metaphase.analysis.cohort import CohortSlide, asker
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.index import ask_for, write_cohort
from metaphase.analysis.record import SCHEMA, load_result, write_stored
from metaphase.analysis.review import answers_of, apply_reviews, withdraw_review
from metaphase.analysis.run import detect_slide
from metaphase.analysis.slide import apply_answers
from metaphase.base.errors import MetaphaseError, SlideError, UsageError
from metaphase.base.sharing.batch import SHARED, one_at_a_time, run_batch
from metaphase.base.tables import read_table
from metaphase.counting.clinical import COLUMNS, counts_row
from metaphase.counting.specimen import CountConfig
from metaphase.labels.observers.positions import PositionLog, position_name
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.slides.opening import SlideSource
from tests.analysis.conftest import he_pixels, write_slide
from tests.web.results import THRESHOLD, spread_positions, write_result, write_sparse_slide

WIDTH, HEIGHT = 3000, 2200
PLACES = spread_positions(12, WIDTH, HEIGHT)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two results of slides of their own, with an index."""
    for name in ("one", "two"):
        slide = write_sparse_slide(tmp_path / f"{name}.tif", WIDTH, HEIGHT, PLACES)
        write_result(tmp_path / "results" / name, slide, WIDTH, HEIGHT, PLACES, name)
    write_cohort(tmp_path / "results")
    return tmp_path / "results"


def answer(folder: Path, row: int, verdict: str, observer: str = "Anna") -> None:
    with PositionLog(folder, WIDTH, HEIGHT) as log:
        log.record(observer, position_name(*PLACES[row]), verdict)


def counts(results: Path) -> dict[str, float]:
    table = read_table(results / "counts.csv")
    return dict(zip(table["case"], table["count"], strict=True))


def test_the_table_of_counts_is_for_reading_and_the_record_has_all_digits(results: Path) -> None:
    plain = CountConfig(threshold=THRESHOLD)
    slide = write_sparse_slide(results.parent / "three.tif", WIDTH, HEIGHT, PLACES)
    write_result(results / "three", slide, WIDTH, HEIGHT, PLACES, "three", counting=plain)
    write_cohort(results)
    table = read_table(results / "counts.csv").set_index("case")
    assert tuple(table.columns[: len(COLUMNS) - 1]) == COLUMNS[1:]
    for name in ("one", "three"):
        row, record = table.loc[name], load_result(results / name).record
        exact = counts_row(name, record)
        for column in ("per_mm2", "per_10_fields", "counted_mm2", "area_mm2"):
            assert row[column] == float(f"{exact[column]:.4g}")
        assert row["per_10_fields"] != exact["per_10_fields"], "of which some are cut"
        assert row["hotspot_x"] == round(record.hotspot.x, 1), "a position is no measure"
        assert (row["count"], row["score"], row["kind"]) == (record.count, record.score.text, "model")
        assert (record.likely is None) == (name == "three") == pd.isna(row["likely_low"])
    lines = (results / "counts.csv").read_text().splitlines()
    likely = load_result(results / "one").record.likely
    assert likely is not None
    whole = f"model,{likely.figures},{likely.interval[0]},{likely.interval[1]},"
    assert whole in lines[1], "whole numbers, though one slide has none"


def test_a_profile_that_is_not_the_stated_one_is_refused(results: Path) -> None:
    folder = results / "one"
    settings = json.loads((folder / "settings.json").read_text())
    write_stored(folder / "settings.json", settings | {"site": "another"})
    answer(folder, 0, "not")
    with pytest.raises(MetaphaseError, match=r"site\.json: is not the profile by which the slide was read"):
        apply_answers(folder)


def test_answers_about_one_slide_are_not_taken_for_another(tmp_path: Path, model: Path) -> None:
    ready = ReadyDetector(load_detector([model]), EngineConfig(device="cpu"))
    slide = write_slide(tmp_path / "he.tif", he_pixels()[:300, :400])
    case, config = CohortSlide("he", SlideSource(slide)), DetectionConfig(threshold=0.9)
    before = detect_slide(case, tmp_path / "out", ready, config).summary
    with PositionLog(tmp_path / "out", 400, 300) as log:
        log.record("Anna", position_name(50, 50), "mitosis")
    write_slide(slide, he_pixels()[40:340, 60:460])
    with pytest.raises(SlideError, match=r"people answered about another slide .*move review\.sqlite away"):
        detect_slide(case, tmp_path / "out", ready, config)
    assert load_result(tmp_path / "out").summary == before, "and it stays what it was"


def test_another_slide_at_the_same_path_is_not_drawn(results: Path, tmp_path: Path) -> None:
    answer(results / "one", 0, "not")
    kept = tmp_path / "elsewhere" / "kept.tif"
    kept.parent.mkdir()
    (tmp_path / "one.tif").rename(kept)
    content = bytearray(kept.read_bytes())
    content[-1] ^= 1
    (tmp_path / "one.tif").write_bytes(content)
    with pytest.raises(SlideError, match=r"one\.tif: the slide of .*one is another slide now\. Put it back"):
        apply_reviews([results])
    (done,) = apply_reviews([results], slides=kept.parent)
    assert done.source.path == kept


def test_what_cannot_be_applied_empties_no_table(results: Path) -> None:
    before = counts(results)
    tables = {name: (results / name).read_bytes() for name in ("counts.csv", "detections.parquet")}
    for name in ("one", "two"):
        path = results / name / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2}))
    problems: list[str] = []
    assert apply_reviews([results], problems.append) == []
    assert [(f"schema 2, not {SCHEMA}" in problem) for problem in problems] == [True, True]
    assert {name: (results / name).read_bytes() for name in tables} == tables
    assert counts(results) == before


def test_a_damaged_search_is_refused_and_can_be_put_back(results: Path) -> None:
    search = results / "one" / "search.parquet"
    content = search.read_bytes()
    answer(results / "one", 0, "not")
    search.write_bytes(content[:-100])
    with pytest.raises(MetaphaseError, match=r"has to be searched again \(search\.parquet has changed\)"):
        apply_reviews([results / "one"])
    search.write_bytes(content)
    (done,) = apply_reviews([results / "one"])
    assert done.record.counted == done.machine.counted - 1


def test_one_slide_in_other_hands_stops_no_other(results: Path) -> None:
    for name in ("one", "two"):
        answer(results / name, 0, "not")
    before, problems = counts(results), list[str]()
    with one_at_a_time(results, "one", wait=False):
        (done,) = apply_reviews([results], problems.append)
    assert done.name == "two"
    assert "is working on it" in problems[0]
    assert counts(results) == before | {"two": done.count}
    apply_reviews([results])
    assert counts(results)["one"] == done.count
    assert not (results / SHARED).exists()


def test_a_folder_named_from_inside_is_that_folder(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(results / "one", 0, "not")
    monkeypatch.chdir(results / "one")
    (done,) = apply_reviews(["."])
    assert counts(results)["one"] == done.count


def test_a_result_without_answers_among_others_is_named_and_the_others_are_done(
    results: Path, tmp_path: Path
) -> None:
    answer(results / "one", 0, "not")
    other = write_result(tmp_path / "other", tmp_path / "two.tif", WIDTH, HEIGHT, PLACES, "other")
    problems: list[str] = []
    (done,) = apply_reviews([results, other], problems.append)
    assert done.name == "one"
    assert "nobody has reviewed it" in problems[0]
    with pytest.raises(UsageError, match="nobody has reviewed it"):
        apply_reviews([other], problems.append)


def test_a_withdrawal_that_could_not_reach_the_files_is_finished_by_the_next(
    results: Path, tmp_path: Path
) -> None:
    before = counts(results)
    for name in ("one", "two"):
        answer(results / name, 0, "not")
    apply_reviews([results])
    (tmp_path / "one.tif").rename(tmp_path / "gone.tif")
    with pytest.raises(MetaphaseError, match=r"files still speak of them: .*no longer there"):
        withdraw_review([results], "Anna")
    assert answers_of(load_result(results / "one")) == []
    assert counts(results)["two"] == before["two"]
    (tmp_path / "gone.tif").rename(tmp_path / "one.tif")
    assert withdraw_review([results], "anna") == {"one": 0}
    assert counts(results) == before
    with pytest.raises(UsageError, match="Anna has no answer in force"):
        withdraw_review([results], "Anna")


def test_a_manifest_that_is_gone_asks_for_nothing_and_one_that_changed_for_what_it_names(
    results: Path, tmp_path: Path
) -> None:
    points = load_result(results / "one").summary["operating_points"]
    first, second = tmp_path / "cohort.csv", tmp_path / "cohort 2.csv"
    first.touch()
    ask_for(results, points, {asker(first, "test"): ["one", "two"]})
    assert [row["case"] for row in write_cohort(results).rows] == ["one", "two"]
    ask_for(results, points, {asker(first, "test"): ["two"]})
    cohort = write_cohort(results)
    assert [row["case"] for row in cohort.rows] == ["two"]
    assert [(row["case"], row["reason"]) for row in cohort.apart] == [("one", "no longer asked for")]
    first.rename(second)
    ask_for(results, points, {asker(second): ["one"]})
    assert list(counts(results)) == ["two"]
    assert [row["case"] for row in write_cohort(results).rows] == ["one"]
    run_batch({"lost": Path("lost.tif")}, lambda path, _progress: path.stat(), results)
    assert "lost" in (results / "errors.log").read_text()
    pruned = write_cohort(results, prune=True)
    assert (pruned.pruned, pruned.apart) == (("two",), ())
    assert not (results / "errors.log").exists()
    assert (results / "removed" / "two" / "summary.json").is_file()


def test_results_that_were_there_before_are_still_asked_for(results: Path, tmp_path: Path) -> None:
    points = load_result(results / "one").summary["operating_points"]
    write_result(results / "three", tmp_path / "one.tif", WIDTH, HEIGHT, PLACES, "three")
    ask_for(results, points, {"three.tif": ["three"]})
    assert {row["folder"] for row in write_cohort(results).rows} == {"one", "two", "three"}
