"""A review put in force: files that agree, the machine's count beside it, and back from other programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import metaphase as mp
from metaphase.analysis import index as cohort_module
from metaphase.analysis import slide as reviewing
from metaphase.analysis.cohort import CohortSlide
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.index import write_cohort
from metaphase.analysis.record import SCHEMA, file_of, load_result, load_results, write_stored
from metaphase.analysis.review import (
    SINCE,
    answers_of,
    apply_reviews,
    import_review,
    log_of,
    review_order,
    reviewed_truth,
    withdraw_review,
)
from metaphase.analysis.run import detect_slide
from metaphase.analysis.scoring import count_cohort, count_points, read_cases
from metaphase.analysis.slide import apply_answers
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.sharing.batch import run_batch
from metaphase.base.tables import read_table, write_table
from metaphase.counting.hotspot import Hotspot
from metaphase.counting.specimen import CountConfig
from metaphase.detections.files import FORMATS, read_detections, write_detections
from metaphase.detections.table import DetectionSet
from metaphase.labels.observers.positions import PositionLog, moved_to, position_name
from metaphase.labels.observers.store import AnswerLog
from metaphase.learn.sources import read_points
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.slides.opening import SlideSource
from tests.analysis.conftest import marked_figures
from tests.slides.dicoms import write_plain
from tests.slides.images import blob_image
from tests.web.results import MPP, THRESHOLD, spread_positions, write_result, write_sparse_slide

WIDTH, HEIGHT = 9000, 7000
PLACES = spread_positions(30, WIDTH, HEIGHT)


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse_slide(tmp_path_factory.mktemp("slides") / "one.tif", WIDTH, HEIGHT, PLACES)


@pytest.fixture
def folder(tmp_path: Path, slide: Path) -> Path:
    return write_result(tmp_path / "results" / "one", slide, WIDTH, HEIGHT, PLACES)


def answer(folder: Path, rows: list[int], verdict: str, observer: str = "Anna") -> None:
    with PositionLog(folder, WIDTH, HEIGHT) as log:
        for row in rows:
            log.record(observer, position_name(*PLACES[row]), verdict)


def test_the_files_say_what_people_said_and_agree(folder: Path) -> None:
    before = load_result(folder)
    answer(folder, [0, 1], "not")
    answer(folder, [29], "mitosis")
    with PositionLog(folder, WIDTH, HEIGHT) as log:
        log.record("Ben", position_name(4500, 3500), "mitosis")
    done = apply_answers(folder)
    expected = before.machine.counted - 2 + 2
    assert done.summary["counted"] == expected == done.summary["detections"]
    assert done.beneath == (before.in_force,)
    assert done.summary["machine"]["counted"] == before.summary["counted"]
    assert done.machine.to_dict() == before.machine.to_dict()
    tables = [read_detections(folder / f"detections.{kind}").table for kind in ("parquet", "geojson", "csv")]
    for table in tables:
        assert len(table) == expected
        positions = np.sort(table[["x", "y"]].to_numpy(), axis=0)
        np.testing.assert_allclose(positions, np.sort(tables[0][["x", "y"]].to_numpy(), axis=0), atol=0.01)
    page = (folder / "report.html").read_text()
    assert "accepted by Anna" in page
    assert "added by Ben" in page
    assert "Anna: 2 of 15 counted detections (13%), 2 rejected, 1 below the threshold" in page
    machine = before.in_force
    assert f"By the model alone: {machine.text}, true figures likely {machine.interval_text}." in page
    cases = read_cases([folder / "candidates.parquet"], mpp=MPP)
    points = count_points([folder / "candidates.parquet"])
    (counts,) = count_cohort(cases, points, tissue=False).results.values()
    assert counts[0].counted == expected
    again = (folder / "summary.json").read_text()
    apply_answers(folder)
    assert (folder / "summary.json").read_text() == again


LEFT, RIGHT = (1200.0, 3500.0), (7900.0, 3500.0)
"""Middles of two groups that no circle holds together."""


def test_the_circle_moves_with_a_review_and_its_marks_are_the_count(tmp_path: Path, slide: Path) -> None:
    """Six figures on the left and four on the right; of those on the left, people reject three."""
    middles = np.array([LEFT] * 6 + [RIGHT] * 4 + [LEFT, RIGHT] * 5)
    turn = np.arange(len(middles))
    places = middles + 300 * np.column_stack([np.cos(turn), np.sin(turn)])
    folder = write_result(tmp_path / "one", slide, WIDTH, HEIGHT, places, lowest=0.2)
    before = load_result(folder)
    assert (before.count, marked_figures(folder), before.record.to_look_at) == (6, 6, 5)
    assert abs(before.record.hotspot.x - LEFT[0]) < 900
    with log_of(before) as log:
        for row in range(3):
            log.record("Anna", position_name(*places[row]), "not")
    done = apply_answers(folder)
    circle = done.record.hotspot
    assert (done.count, marked_figures(folder), circle.count, done.record.to_look_at) == (4, 4, 4, 5)
    assert abs(circle.x - RIGHT[0]) < 900
    assert done.beneath == (before.in_force,)
    assert done.likely is not None
    assert done.likely.answers == 0, "all of them are about the other circle"
    assert 'id="count">4</p>' in (folder / "report.html").read_text()
    (drawn,) = (
        one["geometry"]["coordinates"]
        for one in json.loads((folder / "detections.geojson").read_text())["features"]
        if one["properties"]["objectType"] != "detection"
    )
    np.testing.assert_allclose(np.mean(drawn[0][:-1], axis=0), (circle.x, circle.y), atol=60)
    with log_of(done) as log:
        log.record("Anna", position_name(*places[11]), "mitosis")
    more = apply_answers(folder)
    assert (more.count, marked_figures(folder), more.record.to_look_at) == (5, 5, 4)
    assert more.likely is not None
    assert more.likely.answers == 1
    assert mp.score(folder).to_dict() == more.record.to_dict()
    withdraw_review([folder], "Anna")
    assert load_result(folder).record.to_dict() == before.record.to_dict()


def test_answers_in_the_circle_narrow_the_interval(folder: Path) -> None:
    before = load_result(folder)
    circle, table = before.record.hotspot, before.candidates
    away = np.hypot(table["x"] - circle.x, table["y"] - circle.y).to_numpy()
    inside = np.flatnonzero(away <= circle.radius_px)
    sure = table["probability"].to_numpy()[inside] >= THRESHOLD
    assert 5 <= sure.sum() < len(inside)
    widths = []
    for rows, answers in ((inside[:5], 5), (inside, len(inside))):
        answer(folder, [row for row in rows if row in inside[sure]], "mitosis")
        answer(folder, [row for row in rows if row in inside[~sure]], "not")
        likely = apply_answers(folder).likely
        assert likely is not None
        assert likely.answers == answers
        widths.append(likely.interval[1] - likely.interval[0])
    assert before.likely is not None
    assert before.likely.interval[1] - before.likely.interval[0] > widths[0] > widths[1]
    after = load_result(folder)
    assert after.likely is not None
    assert after.likely.interval[0] <= after.count <= after.likely.interval[1]
    (below,) = after.beneath
    assert below.likely == before.likely


def test_a_cohort_s_index_and_tables_follow_and_failed_slides_stay_in_it(folder: Path) -> None:
    root = folder.parent
    run_batch({"lost": Path("lost.tif")}, lambda path, _progress: path.stat(), root)
    write_cohort(root)
    answer(folder, [0], "not")
    (done,) = apply_reviews([root])
    assert len(pd.read_parquet(root / "detections.parquet")) == done.summary["detections"]
    assert "No such file" in (root / "index.html").read_text()


def test_an_index_reads_only_what_changed_and_says_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cohort"
    for name in ("c", "a", "b"):
        copy = shutil.copytree(folder, root / name)
        old = load_result(copy).name
        for file in copy.glob(f"{old}.tissue.*"):
            file.rename(copy / file.name.replace(old, name, 1))
        for file in ("detections.parquet", "candidates.parquet"):
            write_table(copy / file, read_table(copy / file).assign(slide=name))
        described = json.loads((copy / "summary.json").read_text()) | {"name": name}
        write_stored(copy / "summary.json", described)
    whole, files = (
        shutil.copytree(root, tmp_path / "whole"),
        ("detections.parquet", "counts.csv", "index.html"),
    )
    write_cohort(whole)
    added = shutil.move(root / "b", tmp_path / "b")
    assert write_cohort(root).fresh == {"a", "c"}
    shutil.move(added, root / "b")
    read = []
    monkeypatch.setattr(
        cohort_module, "read_table", lambda path: read.append(path.parent.name) or read_table(path)
    )
    assert write_cohort(root).fresh == {"b"}
    assert sorted(read) == ["b", "b", "cohort", "cohort"], "the tables of all, and those of the new slide"
    for file in files:
        assert (root / file).read_bytes() == (whole / file).read_bytes(), file
    assert not write_cohort(root).fresh
    (root / "detections.parquet").write_bytes(b"somebody else's")
    write_cohort(root)
    assert (root / files[0]).read_bytes() == (whole / files[0]).read_bytes()
    shutil.rmtree(root / "a")
    assert [row["case"] for row in write_cohort(root).rows] == ["b", "c"]
    assert set(read_table(root / "detections.parquet")["slide"]) == {"b", "c"}


def test_without_answers_there_is_nothing_to_apply(folder: Path) -> None:
    for path in (folder, folder.parent):
        with pytest.raises(UsageError, match="reviewed"):
            apply_reviews([path])
    assert not (folder / "review.sqlite").exists()


@pytest.mark.parametrize("kind", ["geojson", "csv"])
def test_an_edited_file_comes_back_as_a_review(folder: Path, tmp_path: Path, kind: str) -> None:
    points = read_detections(folder / f"detections.{kind}", slide="one")
    table = points.table.iloc[2:].copy()
    table.iloc[0, table.columns.get_loc("x")] += 8  # moved by 2 um
    extra = pd.DataFrame([{"slide": "one", "x": 4400.0, "y": 3300.0, "probability": 1.0, "label": "mitosis"}])
    edited = tmp_path / "edited.csv"
    pd.concat([table, extra])[["slide", "x", "y", "probability", "label"]].to_csv(edited, index=False)
    results = load_results([folder])
    (taken,) = import_review(results, edited, "Anna")
    assert (taken.mitoses, taken.rejected, taken.added) == (len(table) + 1, 2, 1)
    done = apply_answers(folder)
    assert done.summary["counted"] == len(table) + 1
    xs = read_detections(folder / "detections.parquet").table["x"]
    assert np.isclose(xs, table["x"].iloc[0], atol=0.1).any()
    with PositionLog(folder, WIDTH, HEIGHT) as log:
        known = len(log.changes()), log.changes()
        import_review(results, edited, "Anna")
        assert (len(log.changes()), log.changes()) == known


def test_what_an_edited_file_says_otherwise_is_an_answer_or_is_named(folder: Path, tmp_path: Path) -> None:
    points = read_detections(folder / "detections.csv", slide="one")
    table = points.table[["slide", "x", "y", "probability", "label"]].copy()
    table.loc[table.index[:2], "label"] = ["Necrosis", "ignore"]
    added = [
        (4400.0, 3300.0, "mitosis"),
        (4404.0, 3300.0, "mitosis"),
        (4600.0, 3300.0, "mf"),
        (4700.0, 3300.0, "necrosis"),
    ]
    extra = pd.DataFrame(added, columns=["x", "y", "label"]).assign(slide="one", probability=1.0)
    pd.concat([table, extra]).to_csv(tmp_path / "edited.csv", index=False)
    (taken,) = import_review(load_results([folder]), tmp_path / "edited.csv", "Anna")
    assert (taken.rejected, taken.added, taken.moved) == (1, 1, 0)
    left = {"point of the class mf": 1, "point of the class necrosis": 1, "second mark of a figure": 1}
    assert taken.left == left
    said = [one.answer for one in answers_of(load_result(folder))]
    assert sorted(said) == ["mitosis", "not", "unsure"]


@pytest.mark.parametrize("edits", [0, 2])
def test_a_file_says_the_same_before_and_after_others_are_applied(
    folder: Path, tmp_path: Path, edits: int
) -> None:
    shutil.copy(folder / "detections.csv", tmp_path / "edited.csv")
    table = pd.read_csv(tmp_path / "edited.csv")
    table.iloc[edits:].to_csv(tmp_path / "edited.csv", index=False)
    first = shutil.copytree(folder, tmp_path / "one")
    import_review(load_results([first]), tmp_path / "edited.csv", "Anna")
    before = [(one.item, one.answer) for one in answers_of(load_result(first))]
    answer(folder, [5], "not", "Ben")
    apply_answers(folder)
    (taken,) = import_review(load_results([folder]), tmp_path / "edited.csv", "Anna")
    given = [one for one in answers_of(load_result(folder)) if one.observer == "Anna"]
    assert [(one.item, one.answer) for one in given] == before
    assert len(given) == taken.rejected == edits
    assert taken.left == {SINCE: 1}


def test_an_edited_summary_is_refused_and_detect_makes_it_anew(folder: Path) -> None:
    path = folder / "summary.json"
    text = path.read_text(encoding="utf-8")
    content = json.loads(text) | {"count": 99, "mpp": 0.5}
    path.write_text(json.dumps(content))
    with pytest.raises(MetaphaseError, match=r"summary\.json: was edited.*run metaphase detect again"):
        load_result(folder)


# ---- round trips through every format ----

EVERY = pytest.mark.parametrize("form", [known.name for known in FORMATS])
LISTED = 0.4


@pytest.fixture(scope="module")
def dicom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plain(tmp_path_factory.mktemp("slides") / "one.dcm", blob_image())


@pytest.fixture
def listed(tmp_path: Path, dicom: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A result with detections that are listed and do not count; its page is not what matters here."""
    monkeypatch.setattr(reviewing, "write_slide_report", lambda path, *_: path.touch())
    return write_result(tmp_path / "one", dicom, WIDTH, HEIGHT, PLACES, "one", lowest=LISTED)


def exported(folder: Path, form: str, dicom: Path) -> Path:
    """The detections of a result in a format, beside those that were there."""
    path = folder / file_of(form)
    found = DetectionSet(read_table(folder / "detections.parquet"), ("one",))
    write_detections(found, path, form, mpp=MPP, sources={"one": dicom})
    return path


def state(folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    result = load_result(folder)
    summary = {key: value for key, value in result.summary.items() if key != "files"}
    return summary, read_table(folder / "candidates.parquet")


def assert_unchanged(folder: Path, before: tuple[dict[str, Any], pd.DataFrame]) -> None:
    summary, table = state(folder)
    assert summary == before[0]
    pd.testing.assert_frame_equal(table, before[1])


@EVERY
def test_an_untouched_export_changes_nothing(listed: Path, dicom: Path, form: str) -> None:
    file, before = exported(listed, form, dicom), state(listed)
    (taken,) = import_review(load_results([listed]), file, "Anna")
    assert (taken.rejected, taken.added, taken.accepted, taken.moved) == (0, 0, 0, 0)
    assert answers_of(load_result(listed)) == []
    apply_reviews([listed])
    assert_unchanged(listed, before)


@EVERY
def test_an_untouched_export_of_a_review_changes_nothing(listed: Path, dicom: Path, form: str) -> None:
    exported(listed, form, dicom)
    answer(listed, [0], "not", "Ben")
    answer(listed, [16], "mitosis", "Ben")  # listed, and not counted
    answer(listed, [3], "unsure", "Ben")
    with log_of(load_result(listed)) as log:
        log.record("Ben", position_name(*PLACES[2]), moved_to(*(PLACES[2] + 60)))  # far
        log.record("Ben", position_name(4400.5, 3300.5), "mitosis")
    apply_answers(listed)
    before = state(listed)
    assert before[0]["counted"] == before[0]["machine"]["counted"] + 1
    import_review(load_results([listed]), listed / file_of(form), "Anna")
    assert {one.observer for one in answers_of(load_result(listed))} == {"Ben"}
    apply_answers(listed)
    assert_unchanged(listed, before)


@EVERY
@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2))])
def test_an_edited_export_gives_its_edits_and_no_more(
    listed: Path, dicom: Path, tmp_path: Path, form: str, seed: int
) -> None:
    file = exported(listed, form, dicom)
    table = read_detections(file, mpp=MPP, slide="one").table
    expected: dict[str, str] = {}
    kept = []
    random = np.random.default_rng(seed)
    for row in table.to_dict(orient="records"):
        at = int(np.hypot(*(PLACES - (row["x"], row["y"])).T).argmin())
        item, edit = position_name(*PLACES[at]), random.choice(["", "gone", "other", "moved", "counted"])
        if edit in ("gone", "other"):
            expected[item] = "not"
        elif edit == "counted":
            expected[item] = "not" if row["counted"] else "mitosis"
        elif edit == "moved" and row["counted"]:
            expected[item] = "moved"
        kept += [] if edit == "gone" else [row | {
            "label": "lookalike" if edit == "other" else "mitosis", "x": row["x"] + 5 * (edit == "moved"),
            "counted": row["counted"] != (edit == "counted"),
        }]  # fmt: skip
    extra = {
        "slide": "one",
        "x": 4400.0,
        "y": 3300.0,
        "probability": 1.0,
        "label": "mitosis",
        "counted": True,
    }
    expected[position_name(4400, 3300)] = "mitosis"
    edited = tmp_path / f"edited{file.suffix}"
    found = DetectionSet(pd.DataFrame([*kept, extra])[[*table.columns]], ("one",))
    write_detections(found, edited, form, mpp=MPP, sources={"one": dicom})
    for _ in range(2):
        import_review(load_results([listed]), edited, "Anna")
        assert {one.item: one.answer.split()[0] for one in answers_of(load_result(listed))} == expected
    apply_answers(listed)
    import_review(load_results([listed]), edited, "Anna")  # what is in force already is no new answer
    assert {one.item: one.answer.split()[0] for one in answers_of(load_result(listed))} == expected
    counted = int(read_table(listed / "candidates.parquet")["counted"].sum())
    assert counted == sum(one["counted"] and one["label"] == "mitosis" for one in (*kept, extra))


def test_what_qupath_itself_writes_is_understood(listed: Path, tmp_path: Path) -> None:
    """It takes the name of a class apart, and may know no measurements."""
    content = json.loads((listed / "detections.geojson").read_text())
    points = [one for one in content["features"] if one["properties"]["objectType"] == "detection"]
    names = [one["properties"]["classification"]["name"].split(": ") for one in points]
    assert ["mitotic figure", "below count threshold"] in names
    for feature, name in zip(points, names, strict=True):
        feature["properties"]["classification"] = {"names": name, "color": [1, 2, 3]}
        del feature["properties"]["measurements"]
    (tmp_path / "edited.geojson").write_text(json.dumps(content))
    import_review(load_results([listed]), tmp_path / "edited.geojson", "Anna")
    assert answers_of(load_result(listed)) == []


def test_a_geojson_of_an_earlier_version_still_tells_what_counted(listed: Path, tmp_path: Path) -> None:
    """All had one class, and the column was text in the metadata."""
    content = json.loads((listed / "detections.geojson").read_text())
    content["features"] = [
        one for one in content["features"] if one["properties"]["objectType"] == "detection"
    ]
    for feature in content["features"]:
        given = feature["properties"]
        counted = "below" not in given["classification"]["name"]
        given["classification"]["name"] = "mitotic figure"
        given["metadata"] |= {"counted": str(counted)}
    (tmp_path / "old.geojson").write_text(json.dumps(content))
    import_review(load_results([listed]), tmp_path / "old.geojson", "Anna")
    assert answers_of(load_result(listed)) == []


def test_a_mark_over_one_that_did_not_count_is_that_one(listed: Path, tmp_path: Path) -> None:
    row = 16
    content = json.loads((listed / "detections.geojson").read_text())
    position = {"type": "Point", "coordinates": (PLACES[row] + 3).tolist()}
    content["features"].append({"type": "Feature", "geometry": position, "properties": {}})
    (tmp_path / "edited.geojson").write_text(json.dumps(content))
    for _ in range(2):
        import_review(load_results([listed]), tmp_path / "edited.geojson", "Anna")
        assert [(one.item, one.answer) for one in answers_of(load_result(listed))] == [
            (position_name(*PLACES[row]), moved_to(*(PLACES[row] + 3)))
        ]
        apply_answers(listed)


# ---- a review withdrawn ----


def test_a_withdrawn_review_leaves_what_was_and_stays_in_the_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviewing, "write_slide_report", lambda path, *_: path.touch())
    write_cohort(folder.parent)
    before = state(folder)
    index = (folder.parent / "index.html").read_text()
    answer(folder, [0, 1], "not")
    with log_of(load_result(folder)) as log:
        log.record("Anna", position_name(4500, 3500), "mitosis")
    answer(folder, [2], "not", "Ben")
    apply_reviews([folder])
    assert (folder.parent / "index.html").read_text() != index
    with pytest.raises(UsageError, match=r"Carl has no answer in force.*[Tt]hose who have are Anna, Ben"):
        withdraw_review([folder.parent], "Carl")
    assert withdraw_review([folder.parent], "anna") == {"one": 3}
    assert load_result(folder).summary["counted"] == before[0]["counted"] - 1
    assert withdraw_review([folder], "Ben") == {"one": 1}
    assert_unchanged(folder, before)
    assert (folder.parent / "index.html").read_text() == index
    with log_of(load_result(folder)) as log:
        assert log.current() == []
        assert log.changes() == {"Anna": 3, "Ben": 1}  # each answered and taken back


def test_a_file_about_another_slide_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "edited.csv"
    other.write_text("slide,x,y\nother,1,2\n")
    with pytest.raises(UsageError, match="other"):
        import_review(load_results([folder]), other, "Anna")


def test_decided_ones_are_truth_and_the_rest_is_ignored(folder: Path, tmp_path: Path) -> None:
    answer(folder, [0, 20], "mitosis")
    answer(folder, [1, 2, 25], "not")
    answer(folder, [3], "unsure")
    truth = reviewed_truth(load_results([folder])).table
    labels = truth["label"].value_counts().to_dict()
    assert labels == {"mitosis": 2, "lookalike": 3, "ignore": int((truth["label"] == "ignore").sum())}
    assert (truth.loc[truth["label"] == "ignore", "probability"] >= THRESHOLD).all()
    truth.to_csv(tmp_path / "truth.csv", index=False)
    read = read_points(tmp_path / "truth.csv", ["one"])
    assert read["label"].value_counts().to_dict() == labels


def test_the_hotspot_comes_first_then_what_matters() -> None:
    config = CountConfig(threshold=0.5)
    radius_px = config.radius_um / MPP
    table = pd.DataFrame(
        {
            "x": [0.0, 10, 20, 30, 5 * radius_px, 5 * radius_px + 9, 20 * radius_px],
            "y": 0.0,
            "probability": [0.99, 0.55, 0.4, 0.1, 0.6, 0.6, 0.6],
        }
    )
    circle = Hotspot(x=0.0, y=0.0, radius_px=radius_px, count=2, tissue_mm2=2.0)
    order = review_order(table, circle, config, MPP)
    assert order[:3] == [1, 0, 2]
    assert order.index(4) < order.index(6)
    assert sorted(order) == list(range(7))
    assert review_order(table.iloc[:0], circle, config, MPP) == []


def test_detect_keeps_a_review_in_force(tmp_path: Path, he_slide: Path, model: Path) -> None:
    ready = ReadyDetector(load_detector([model]), EngineConfig(device="cpu"))
    case = CohortSlide("he", SlideSource(he_slide))
    first = detect_slide(case, tmp_path, ready, DetectionConfig(threshold=0.9, tile_px=256))
    table = load_result(tmp_path).candidates
    with log_of(load_result(tmp_path)) as log:
        log.record("Anna", position_name(table["x"][0], table["y"][0]), "not")
    reviewed = apply_answers(tmp_path).summary
    assert reviewed["counted"] == first.summary["counted"] - 1
    kept = detect_slide(case, tmp_path, ready, DetectionConfig(threshold=0.9, tile_px=256))
    assert kept.resumed
    assert kept.summary == reviewed
    other = detect_slide(case, tmp_path, ready, DetectionConfig(threshold=0.8, tile_px=256))
    assert other.summary["review"] == [dict(reviewed["review"][0], of=other.summary["review"][0]["of"])]
    above = int((table["probability"] >= 0.8).sum())
    assert other.summary["machine"]["counted"] == above
    assert other.summary["counted"] == above - 1
    assert len(read_detections(tmp_path / "detections.geojson").table) == above - 1


@pytest.mark.parametrize(
    ("file", "where", "value"),
    [
        ("summary.json", ("mpp",), float("nan")),
        ("summary.json", ("operating_points", "count", "delta"), "0.5"),
        ("summary.json", ("warnings",), 5),
        ("summary.json", ("config", "threshold"), True),
        ("summary.json", ("config", "area_mm2"), -1.0),
        ("summary.json", ("hotspot",), []),
    ],
)
def test_a_result_that_says_nothing_sound_is_refused(
    folder: Path, file: str, where: tuple[str, ...], value: Any
) -> None:
    content = json.loads((folder / file).read_bytes())
    del content["check"]
    parent = content
    for step in where[:-1]:
        parent = parent[step]
    parent[where[-1]] = value
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(MetaphaseError, match=f"{file}: holds no finished result"):
        load_result(folder)


@pytest.mark.parametrize("schema", [1, 3])
def test_a_summary_of_an_earlier_version_names_the_command_that_makes_it_anew(
    folder: Path, schema: int
) -> None:
    content = json.loads((folder / "summary.json").read_bytes())
    content |= {"schema": schema}
    if schema == 1:
        del content["schema"]
    (folder / "summary.json").write_text(json.dumps(content))
    for refused in (load_result, apply_answers):
        with pytest.raises(
            MetaphaseError, match=rf"schema {schema}, not {SCHEMA}.*Run metaphase detect again"
        ):
            refused(folder)


def test_a_setting_of_the_count_that_is_gone_gets_no_default(folder: Path) -> None:
    content = json.loads((folder / "summary.json").read_bytes())
    del content["config"]["threshold"]
    write_stored(folder / "summary.json", content)
    with pytest.raises(MetaphaseError, match="lack, or do not know, threshold"):
        load_result(folder)


def test_answers_off_the_slide_do_not_count_and_a_damaged_review_stops_no_other(
    folder: Path, slide: Path
) -> None:
    other = write_result(folder.parent / "other", slide, WIDTH, HEIGHT, PLACES, "other")
    answer(folder, [0], "not")
    with AnswerLog(folder / "review.sqlite") as log:  # as an earlier version took them
        for number in range(20):
            log.record("Eve", position_name(-5000 - number, 50), "mitosis")
        log.record("Eve", position_name(1e8, 1e8), "mitosis")
    (other / "review.sqlite").write_bytes(b"damaged" * 1000)
    described: list[str] = []
    (done,) = apply_reviews([folder.parent], described.append)
    assert done.summary["counted"] == done.machine.counted - 1
    assert "21 answers" in next(str(one) for one in done.warnings if one.code == "answers-left-out")
    assert len(described) == 1
    assert "review.sqlite" in described[0]
