"""Task 3 from files to results, bad input included."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.tables import TableError, write_table
from metaphase.detections.files import convert_detections
from metaphase.evaluation.marks import MatchingConfig
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.evaluation.mitoses import evaluate_mitoses
from metaphase.reports.evaluation import write_mitosis_report
from tests.detections.published import drawing, write_asap
from tests.evaluation.cohorts import MPP, SIDE, write_cohort

FEW = BootstrapConfig(samples=50)
NONE = BootstrapConfig(samples=0)


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    return write_cohort(tmp_path / "data")


def predictions_of(cohort: Path) -> pd.DataFrame:
    return pd.read_csv(cohort / "predictions.csv")


def evaluated(cohort: Path, predictions: pd.DataFrame, **options: object):  # type: ignore[no-untyped-def]
    write_table(cohort / "p.csv", predictions)
    return evaluate_mitoses(cohort, cohort / "p.csv", bootstrap=NONE, **options)  # type: ignore[arg-type]


def test_perfect_and_shuffled_predictions(cohort: Path) -> None:
    truth = pd.read_csv(cohort / "truth.csv")
    perfect = evaluated(cohort, truth).overall
    assert (perfect.f1.value, perfect.true, perfect.distance_um) == (1, len(truth), 0)
    shuffled = evaluated(cohort, truth.sample(frac=1, random_state=3)).overall
    assert shuffled == perfect


def test_radius_is_physical_and_each_slide_has_its_own_resolution(cohort: Path) -> None:
    manifest = pd.read_csv(cohort / "manifest.csv")
    manifest["mpp"] = np.where(manifest["case"] < "s06", 0.25, 0.5)
    write_table(cohort / "manifest.csv", manifest)
    truth = pd.read_csv(cohort / "truth.csv")
    moved = truth.assign(x=truth["x"] + 20)  # 5 um at 0.25, 10 um at 0.5
    result = evaluated(cohort, moved)
    by_slide = result.slides.set_index("case")["true"]
    assert (by_slide[:"s05"] >= 28).all()
    assert (by_slide["s06":] <= 3).all()


def test_report_folder(cohort: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = evaluate_mitoses(
        cohort,
        cohort / "predictions.csv",
        by=("laboratory", "split"),
        matching=MatchingConfig(threshold=0.5),
        bootstrap=FEW,
    )
    write_mitosis_report(result, out)
    record = json.loads((out / "metrics.json").read_text())
    assert record["results"]["all"]["f1"]["value"] == pytest.approx(result.overall.f1.value)
    assert set(record["results"]["by"]["laboratory"]) == {"c0", "c1", "c2"}
    table = pd.read_csv(out / "metrics.csv")
    assert table.query("by == 'laboratory'")["true"].sum() == table["true"].iloc[0]
    page = (out / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert (out / "f1.png").stat().st_size > 5000
    assert "| all | 12 |" in (out / "metrics.md").read_text()


def test_groups_add_up_and_optimal_finds_at_least_as_many(cohort: Path) -> None:
    greedy = evaluated(cohort, predictions_of(cohort), by=("laboratory",))
    optimal = evaluated(cohort, predictions_of(cohort), matching=MatchingConfig(method="optimal"))
    assert sum(group.truths for group in greedy.groups["laboratory"].values()) == greedy.overall.truths
    assert optimal.overall.true >= greedy.overall.true


def test_intervals_hold_the_value_and_follow_the_seed(cohort: Path) -> None:
    results = [
        evaluate_mitoses(
            cohort, cohort / "predictions.csv", bootstrap=BootstrapConfig(samples=300, seed=seed)
        ).overall
        for seed in (1, 1, 2)
    ]
    assert results[0] == results[1] != results[2]
    for value in (results[0].f1, results[0].precision, results[0].recall, results[0].average_precision):
        assert value.low < value.value < value.high


def test_missing_slides_are_an_error_unless_taken_as_empty(cohort: Path) -> None:
    some = predictions_of(cohort).query("slide != 's03'")
    with pytest.raises(TableError, match=r"no predictions for 1 of 12 slides: s03.*missing_as_empty=true"):
        evaluated(cohort, some)
    result = evaluated(cohort, some, matching=MatchingConfig(missing_as_empty=True))
    assert result.slides.set_index("case").loc["s03", "missed"] == 30
    assert any("s03" in str(warning) for warning in result.warnings)
    marked_empty = pd.concat([some, pd.DataFrame({"slide": ["s03"]})])
    assert evaluated(cohort, marked_empty).overall == result.overall


def test_unknown_slides_are_named(cohort: Path) -> None:
    other = pd.concat(
        [predictions_of(cohort), pd.DataFrame({"slide": ["zz"], "x": [1], "y": [1], "probability": [1]})]
    )
    with pytest.raises(TableError, match="slide zz is not in"):
        evaluated(cohort, other)


def test_slides_are_known_by_file_name_and_stem(cohort: Path) -> None:
    plain = predictions_of(cohort)
    for change in ("{}.svs", "/elsewhere/{}.svs", "{}.geojson"):
        renamed = plain.assign(slide=plain["slide"].map(change.format))
        assert evaluated(cohort, renamed).overall == evaluated(cohort, plain).overall


def test_empty_predictions_are_a_result(cohort: Path, tmp_path: Path) -> None:
    (cohort / "p.csv").write_text("slide,x,y,probability\n")
    result = evaluate_mitoses(
        cohort,
        cohort / "p.csv",
        bootstrap=FEW,
        matching=MatchingConfig(missing_as_empty=True),
    )
    write_mitosis_report(result, tmp_path / "o")
    assert (result.overall.f1.value, result.overall.recall.value) == (0, 0)
    assert np.isnan(result.overall.precision.value)
    assert any("no detections" in str(warning) for warning in result.warnings)
    assert (
        json.loads((tmp_path / "o/metrics.json").read_text())["results"]["all"]["precision"]["value"] is None
    )
    assert (tmp_path / "o/index.html").is_file()


def test_empty_truth_is_a_result(cohort: Path, tmp_path: Path) -> None:
    write_table(cohort / "truth.csv", pd.read_csv(cohort / "truth.csv").iloc[:0])
    result = evaluate_mitoses(cohort, cohort / "predictions.csv", bootstrap=FEW)
    assert (result.overall.precision.value, result.overall.f1.value) == (0, 0)
    assert np.isnan(result.overall.recall.value)
    assert np.isnan(result.overall.average_precision.value)


def test_constant_probabilities_are_said(cohort: Path) -> None:
    result = evaluated(cohort, predictions_of(cohort).assign(probability=0.5))
    assert any("same probability" in str(warning) for warning in result.warnings)
    assert len(result.curve.threshold) == 1


def test_duplicates_are_merged_and_twins_reported(cohort: Path) -> None:
    plain = predictions_of(cohort)
    copies = plain.head(7).assign(probability=0.01)
    result = evaluated(cohort, pd.concat([plain, copies]))
    assert any("7 exact duplicates were merged" in str(warning) for warning in result.warnings)
    assert result.overall == evaluated(cohort, plain).overall
    twins = plain.head(4).assign(x=plain["x"].head(4) + 2)
    result = evaluated(cohort, pd.concat([plain, twins]))
    (warning,) = [warning for warning in result.warnings if warning.code == "close-detections"]
    assert "8 detections have another one nearer than 2.5 um" in warning.text
    command = re.search(r"`metaphase convert (\S+) -o \S+ --suppress-um ([0-9.]+)`", warning.next_step)
    assert command
    convert_detections(
        [command[1]], cohort / "q.csv", manifest=cohort / "manifest.csv", suppress_um=float(command[2])
    )
    result = evaluate_mitoses(cohort, cohort / "q.csv", bootstrap=NONE)
    assert not [warning for warning in result.warnings if warning.code == "close-detections"]


def test_what_was_left_out_of_the_predictions_is_said(cohort: Path) -> None:
    shapes = [drawing("Dot", "None", (1, 1)), drawing("Measurement", "None", (1, 1))]
    (cohort / "drawn").mkdir()
    for name in pd.read_csv(cohort / "manifest.csv")["case"]:
        write_asap(cohort / f"drawn/{name}.xml", shapes if name == "s03" else [])
    result = evaluate_mitoses(cohort, cohort / "drawn", bootstrap=NONE)
    assert "s03.xml: 1 annotations of the type Measurement left out" in map(str, result.warnings)


def test_a_region_is_no_other_region_of_the_same_number(cohort: Path) -> None:
    manifest = pd.read_csv(cohort / "manifest.csv").head(1).assign(case="tupac/05/01", he="")
    write_table(cohort / "manifest.csv", manifest)
    write_table(cohort / "truth.csv", pd.DataFrame({"slide": ["05/01"], "x": [1], "y": [1]}))
    found = pd.DataFrame({"slide": ["05/01.tif"], "x": [1], "y": [1]})
    assert evaluated(cohort, found).overall.true == 1
    with pytest.raises(TableError, match=r"slide 06/01.tif is not in"):
        evaluated(cohort, found.assign(slide="06/01.tif"))


def test_slides_that_may_all_be_one_case_are_not_merged(cohort: Path) -> None:
    plain = predictions_of(cohort)
    moved = plain.assign(slide=np.where(plain.index % 2, "a/" + plain["slide"], "b/" + plain["slide"]))
    with pytest.raises(TableError, match=r"slides \w/s\d+ and \w/s\d+ could both be s\d+"):
        evaluated(cohort, moved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.assign(x=p["y"], y=p["x"]), "x and y are swapped"),
        (lambda p: p.assign(x=p["x"] * MPP, y=p["y"] * MPP), "micrometres"),
        (lambda p: p.assign(x=p["x"] * MPP / 1000, y=p["y"] * MPP / 1000), "millimetres"),
        (lambda p: p.assign(x=p["x"] / 16, y=p["y"] / 16), "16 times coarser"),
        (lambda p: p.assign(x=p["x"] - 812, y=p["y"] + 3000), "shifted"),
        (lambda p: p.assign(x=p["x"] + 50_000), "shifted"),
        (lambda p: p.assign(x=p["x"] * 3.7, y=p["y"] * 3.7), "outside their slide"),
    ],
)
def test_other_frames_and_units_are_recognised(cohort: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TableError, match=message):
        evaluated(cohort, change(predictions_of(cohort)))


def test_a_bad_detector_is_no_other_frame(cohort: Path) -> None:
    generator = np.random.default_rng(5)
    random = pd.DataFrame(generator.uniform(0, SIDE, (6000, 2)), columns=["x", "y"])
    random["slide"] = [f"s{index % 12:02}" for index in range(6000)]
    assert evaluated(cohort, random).overall.f1.value < 0.1


def test_ignored_regions_count_on_neither_side(cohort: Path) -> None:
    half = SIDE / 2
    rows = [{"slide": f"s{i:02}", "x": 0, "y": 0, "width": half, "height": SIDE} for i in range(12)]
    write_table(cohort / "ignore.csv", pd.DataFrame(rows))
    left_out = MatchingConfig(ignore=str(cohort / "ignore.csv"))
    result = evaluated(cohort, predictions_of(cohort), matching=left_out)
    truth, predictions = pd.read_csv(cohort / "truth.csv"), predictions_of(cohort)
    assert result.overall.truths == (truth["x"] > half).sum()
    assert result.overall.true + result.overall.false == (predictions["x"] > half).sum()
    write_table(cohort / "ignore.csv", pd.DataFrame(rows).assign(width=[np.nan, *[half] * 11]))
    with pytest.raises(TableError, match="a row for slide s00 describes no region"):
        evaluated(cohort, predictions, matching=left_out)


def test_ignore_points_of_the_truth_remove_detections_around_them(cohort: Path) -> None:
    truth = pd.read_csv(cohort / "truth.csv")
    hidden = truth.assign(label=["ignore" if i % 2 else "mitosis" for i in range(len(truth))])
    write_table(cohort / "truth.csv", hidden)
    result = evaluated(cohort, truth)
    assert (result.overall.truths, result.overall.false) == (len(truth) // 2, 0)


def test_qupath_regions_and_discs(cohort: Path) -> None:
    truth = pd.read_csv(cohort / "truth.csv").query("slide == 's00'")
    position = truth[["x", "y"]].iloc[0].tolist()
    folder = cohort / "regions"
    folder.mkdir()
    feature = {"type": "Feature", "geometry": {"type": "Point", "coordinates": position}}
    feature["properties"] = {"radius_um": 5}
    (folder / "s00.geojson").write_text(json.dumps([feature]))
    left_out = MatchingConfig(ignore=str(folder))
    assert evaluated(cohort, predictions_of(cohort), matching=left_out).overall.truths == 12 * 30 - 1
    feature["properties"] = {}
    (folder / "s00.geojson").write_text(json.dumps([feature]))
    with pytest.raises(TableError, match="radius_um"):
        evaluated(cohort, predictions_of(cohort), matching=left_out)


def test_border_is_left_out_for_both_sides_and_for_the_area(cohort: Path) -> None:
    border_px = 1000
    result = evaluated(
        cohort, predictions_of(cohort), matching=MatchingConfig(border_um=border_px * MPP, threshold=0.2)
    )
    truth = pd.read_csv(cohort / "truth.csv")
    inside = truth[["x", "y"]].apply(lambda c: (c >= border_px) & (c < SIDE - border_px)).all(axis=1)
    assert result.overall.truths == inside.sum()
    assert result.area_mm2 == pytest.approx(12 * ((SIDE - 2 * border_px) * MPP / 1000) ** 2)


def test_truth_without_manifest_needs_a_resolution(cohort: Path) -> None:
    alone = cohort.parent / "alone"
    write_table(alone / "t.csv", pd.read_csv(cohort / "truth.csv"))
    with pytest.raises(TableError, match="--mpp"):
        evaluate_mitoses(alone / "t.csv", cohort / "predictions.csv", bootstrap=NONE)
    result = evaluate_mitoses(alone / "t.csv", cohort / "predictions.csv", bootstrap=NONE, mpp=MPP)
    assert result.overall.true == evaluated(cohort, predictions_of(cohort)).overall.true
    assert np.isnan(result.overall.false_per_mm2)


def test_split_and_group_columns_are_checked(cohort: Path) -> None:
    result = evaluated(cohort, predictions_of(cohort), split="test")
    assert result.overall.slides == 6
    with pytest.raises(UsageError, match="The splits are test, tune"):
        evaluated(cohort, predictions_of(cohort), split="valid")
    with pytest.raises(UsageError, match="no column scanner"):
        evaluated(cohort, predictions_of(cohort), by=("scanner",))


def test_manifest_with_a_case_twice_is_refused(cohort: Path) -> None:
    manifest = pd.read_csv(cohort / "manifest.csv")
    write_table(cohort / "manifest.csv", pd.concat([manifest, manifest.head(1)]))
    with pytest.raises(TableError, match="more than once: s00"):
        evaluated(cohort, predictions_of(cohort))


@pytest.mark.parametrize(
    "options",
    [
        {"radius_um": 0},
        {"radius_um": float("nan")},
        {"radius_um": 1e308},
        {"method": "best"},
        {"threshold": 2},
        {"border_um": -1},
    ],
)
def test_settings_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        MatchingConfig(**options)  # type: ignore[arg-type]
    with pytest.raises(MetaphaseError):
        BootstrapConfig(confidence=1)
