"""Regions of a slide: from files and people into the count, its files and its status, and out again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from typer.testing import CliRunner

from metaphase.analysis.cohort import CohortSlide, cohort_slides, named_slides, with_regions
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.record import load_result
from metaphase.analysis.review import apply_reviews, export_regions, import_review, log_of, scope_of
from metaphase.analysis.run import SlideOutcome, detect_slide, slide_states
from metaphase.base.errors import UsageError
from metaphase.base.tables import read_table
from metaphase.cli.main import app
from metaphase.counting.region_files import read_regions, write_regions
from metaphase.counting.regions import Place, Region, region_of
from metaphase.images.tissue.finding import TissueSource
from metaphase.labels.observers.positions import PLACE, position_name, region_entry
from metaphase.labels.observers.project import NOT
from metaphase.labels.observers.store import Entry
from metaphase.learn.calibration import draw_sample
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.slides.opening import SlideSource
from tests.analysis.conftest import HEIGHT, WIDTH, tiny_model, with_prior

LEFT = region_of("include", "tumour", shapely.box(0, 0, 260, HEIGHT))
LOW = region_of("exclude", "DCIS", shapely.box(0, 300.5, 500, 400))
CORNER = region_of("exclude", "follicle", shapely.Polygon([(100, 0), (260, 0), (260, 150)]))


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> ReadyDetector:
    model = with_prior(tiny_model(tmp_path_factory.mktemp("models") / "tiny.safetensors"))
    return ReadyDetector(load_detector([model]), EngineConfig(device="cpu"))


def detect(slide: CohortSlide, folder: Path, ready: ReadyDetector) -> SlideOutcome:
    return detect_slide(slide, folder / "he", ready, DetectionConfig(tile_px=256))


def slide_of(he_slide: Path, regions: Path | None = None) -> CohortSlide:
    slide = CohortSlide("he", SlideSource(he_slide), TissueSource(whole=True))
    return slide if regions is None else with_regions([slide], regions)[0]


def done(outcome: SlideOutcome) -> list[str]:
    return [state.stage.name for state in outcome.states if state.status == "done"]


def counted(table: Any, *regions: Region) -> int:
    """By shapely alone."""
    points = table[["x", "y"]].to_numpy()
    shapes = {kind: [one.shape for one in regions if one.kind == kind] for kind in ("include", "exclude")}
    inside = np.ones(len(points), bool)
    if shapes["include"]:
        inside = shapely.contains_xy(shapely.union_all(shapes["include"]), points)
    inside &= ~shapely.contains_xy(shapely.union_all(shapes["exclude"]), points)
    return int((inside & (table["probability"] >= 0.85)).sum())


def test_a_file_of_regions_changes_the_count_without_a_new_search(
    tmp_path: Path, he_slide: Path, ready: ReadyDetector
) -> None:
    file, folder = tmp_path / "he.geojson", tmp_path / "out"
    whole = detect(slide_of(he_slide), folder, ready)
    found = read_table(whole.folder / "search.parquet")
    assert whole.record.counted == counted(found)
    search = (whole.folder / "search.parquet").stat().st_mtime_ns
    last = whole.record.counted
    for regions in ([LEFT], [LEFT, LOW], [LEFT, LOW, CORNER], [LEFT, CORNER]):
        write_regions(regions, file)
        slide = slide_of(he_slide, tmp_path)
        status = slide_states(slide, folder / "he", ready, DetectionConfig(tile_px=256))
        reasons = {one.stage.name: one.reason for one in status if one.status != "kept"}
        assert "scope.regions" in reasons["count"]
        outcome = detect(slide, folder, ready)
        assert done(outcome)[-3:] == ["count", "export", "report"]
        record = outcome.record
        assert record.counted == counted(found, *regions) != last
        last = record.counted
        table = read_table(outcome.folder / "candidates.parquet")
        assert table["counted"].sum() == record.counted
        assert [one.id for one in record.scope.regions] == [one.id for one in regions]
        assert record.likely is not None
        shape = shapely.union_all([one.shape for one in regions if one.kind == "include"])
        shape = shapely.difference(
            shape, shapely.union_all([one.shape for one in regions if one.kind == "exclude"])
        )
        assert record.counted_mm2 == pytest.approx(shape.area * 0.25**2 / 1e6, rel=0.05)
    assert (outcome.folder / "search.parquet").stat().st_mtime_ns == search
    assert detect(slide_of(he_slide, file), folder, ready).resumed
    assert detect(slide_of(he_slide), folder, ready).resumed  # without a file, they stay
    report = (outcome.folder / "report.html").read_text()
    assert "tumour" in report
    assert (
        json.loads((outcome.folder / "summary.json").read_text())["scope"]["regions"][0]["name"] == "tumour"
    )


def test_what_people_drew_stays_where_a_file_is_taken_again(
    tmp_path: Path, he_slide: Path, ready: ReadyDetector
) -> None:
    file = tmp_path / "he.xml"
    write_regions([LEFT, LOW], file)
    outcome = detect(slide_of(he_slide, file), tmp_path, ready)
    changed = region_of("include", "tumour", shapely.box(0, 0, 300, HEIGHT), id=LEFT.id)
    with log_of(outcome) as log:
        log.record_many([region_entry("Anna", changed), region_entry("Anna", CORNER)])
    assert [one.name for one in scope_of(outcome).regions] == ["tumour", "DCIS", "follicle"]
    again = detect(slide_of(he_slide, file), tmp_path, ready)  # the same file: what Anna said stands
    assert again.record.scope.regions[0].polygons == changed.polygons
    write_regions([LEFT], file)
    other = detect(slide_of(he_slide, file), tmp_path, ready)
    assert [one.name for one in other.record.scope.regions] == ["tumour", "follicle"]
    assert other.record.scope.regions[0].polygons == LEFT.polygons
    table = read_table(other.folder / "search.parquet")
    assert other.record.counted == counted(table, LEFT, CORNER)


def test_export_and_import_change_nothing(tmp_path: Path, he_slide: Path, ready: ReadyDetector) -> None:
    one = detect(slide_of(he_slide), tmp_path / "one", ready)
    two = detect(slide_of(he_slide), tmp_path / "two", ready)
    with log_of(one) as log:
        log.record_many(region_entry("Anna", region) for region in (LEFT, LOW, CORNER))
        log.record("Anna", PLACE, Place(x=100, y=100).model_dump_json())
        log.record("Anna", PLACE, None)
    (applied,) = apply_reviews([tmp_path / "one"])
    for ending in ("geojson", "xml"):
        first, again = tmp_path / f"first.{ending}", tmp_path / f"again.{ending}"
        export_regions([applied], first)
        (taken,) = import_review([load_result(two.folder)], first, "Ben")
        assert (taken.regions, taken.rejected, taken.added) == (3, 0, 0)
        (imported,) = apply_reviews([tmp_path / "two"])
        export_regions([imported], again)
        assert first.read_bytes() == again.read_bytes()
        assert imported.count == applied.count
    before = (two.folder / "review.sqlite").stat().st_size, scope_of(imported)
    import_review([imported], first, "Ben")
    assert ((two.folder / "review.sqlite").stat().st_size, scope_of(imported)) == before
    detections = applied.folder / "detections.geojson"  # the rest of an untouched export says nothing either
    if detections.exists():
        (nothing,) = import_review([applied], detections, "Ben")
        assert (nothing.rejected, nothing.added, nothing.accepted) == (0, 0, 0)


def test_an_untouched_export_rejects_nothing_outside_the_regions(
    tmp_path: Path, he_slide: Path, ready: ReadyDetector
) -> None:
    file = tmp_path / "he.geojson"
    write_regions([LEFT], file)
    config = DetectionConfig(tile_px=256, formats=("csv",))
    outcome = detect_slide(slide_of(he_slide, file), tmp_path / "he", ready, config)
    for name in ("detections.geojson", "detections.csv"):
        if not (outcome.folder / name).exists():
            continue
        (taken,) = import_review([outcome], outcome.folder / name, "Anna")
        assert (taken.rejected, taken.added, taken.accepted, taken.moved) == (0, 0, 0, 0), name
        assert taken.mitoses == outcome.record.detections, "as all pages and tables say"


def test_answers_and_regions_stand_beside_each_other(
    tmp_path: Path, he_slide: Path, ready: ReadyDetector
) -> None:
    outcome = detect(slide_of(he_slide), tmp_path, ready)
    table = read_table(outcome.folder / "search.parquet")
    inside = table[(table["x"] < 260) & (table["probability"] >= 0.85)]
    outside = table[(table["x"] > 270) & (table["probability"] >= 0.85)]
    with log_of(outcome) as log:
        rejected = position_name(*inside[["x", "y"]].iloc[0])
        away = position_name(*outside[["x", "y"]].iloc[0])
        log.record_many([region_entry("Anna", LEFT), Entry("Anna", rejected, NOT), Entry("Anna", away, NOT)])
        assert len(log.current()) == 2
        assert log.left_out() == 0
    (applied,) = apply_reviews([tmp_path])
    assert applied.record.counted == len(inside) - 1
    assert applied.record.kind == "reviewed"
    (share,) = applied.record.review
    assert (share.counted, share.rejected, share.of) == (1, 1, len(inside))
    assert applied.record.beneath[0].count == len(inside)  # without people, in the same regions
    with log_of(outcome) as log:
        log.record_many([region_entry("Ben", LEFT, there=False)])  # of all observers, the latest word stands
    (again,) = apply_reviews([tmp_path])
    assert again.record.counted == outcome.record.counted - 2


def test_calibration_draws_only_from_the_regions(
    tmp_path: Path, he_slide: Path, ready: ReadyDetector
) -> None:
    file = tmp_path / "he.geojson"
    write_regions([LEFT, LOW], file)
    outcome = detect(slide_of(he_slide, file), tmp_path / "results", ready)
    draw_sample([tmp_path / "results"], tmp_path / "lab")
    sample = read_table(tmp_path / "lab" / "sample.parquet")
    found = read_table(outcome.folder / "search.parquet")
    points = sample[["x", "y"]].to_numpy()
    assert 0 < len(sample) < len(found)
    assert outcome.record.scope.holds(points).all()


def test_manifests_and_folders_name_a_file_for_each_slide(tmp_path: Path, he_slide: Path) -> None:
    write_regions([LEFT], tmp_path / "one.geojson")
    (tmp_path / "cohort.csv").write_text(f"case,he,regions\na,{he_slide},one.geojson\nb,{he_slide},\n")
    first, second = cohort_slides(tmp_path / "cohort.csv")
    assert first.regions == read_regions(tmp_path / "one.geojson")
    assert second.regions is None
    slides = list(named_slides([he_slide]).values())
    with pytest.raises(UsageError, match="holds no regions of he"):
        with_regions(slides, tmp_path)
    with pytest.raises(UsageError, match="one file of regions is given for 2 slides"):
        with_regions([*slides, *slides], tmp_path / "one.geojson")


def test_a_region_off_the_slide_is_refused_before_the_search(
    tmp_path: Path, he_slide: Path, ready: ReadyDetector
) -> None:
    far = region_of("include", "tumour", shapely.box(WIDTH + 10, 0, WIDTH + 90, 90))
    write_regions([far], tmp_path / "he.geojson")
    with pytest.raises(UsageError, match="is not on the slide of 500 x 400 px"):
        detect(slide_of(he_slide, tmp_path), tmp_path / "out", ready)
    assert not list((tmp_path / "out").rglob("search.parquet"))


def test_commands_take_and_give_regions(tmp_path: Path, he_slide: Path, ready: ReadyDetector) -> None:
    write_regions([LEFT, LOW], tmp_path / "drawn.geojson")
    detect(slide_of(he_slide), tmp_path / "out", ready)
    run = CliRunner().invoke
    folder, file = str(tmp_path / "out"), str(tmp_path / "drawn.geojson")
    said = run(app, ["review", "import", folder, "--from", file, "--observer", "Anna"])
    assert said.exit_code == 0, said.output
    assert "2 regions" in said.output
    said = run(app, ["review", "export", folder, "--to", "regions", "-o", str(tmp_path / "again.geojson")])
    assert said.exit_code == 0, said.output
    assert (tmp_path / "again.geojson").read_bytes() == (tmp_path / "drawn.geojson").read_bytes()


def test_score_counts_results_in_their_regions(tmp_path: Path, he_slide: Path, ready: ReadyDetector) -> None:
    file = tmp_path / "he.geojson"
    write_regions([LEFT, LOW], file)
    outcome = detect(slide_of(he_slide, file), tmp_path / "out", ready)
    table = tmp_path / "counts.csv"
    options = ["--threshold", "0.85", "-o", str(table)]
    said = CliRunner().invoke(app, ["score", str(tmp_path / "out"), *options])
    assert said.exit_code == 0, said.output
    row = read_table(table).iloc[0]
    assert row["counted"] == outcome.record.counted
    assert row["scope"] == "in tumour, without DCIS"
    assert row["counted_mm2"] == pytest.approx(outcome.record.counted_mm2)
