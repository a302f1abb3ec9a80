"""Results as DICOM: read back by pydicom, highdicom and wsidicom, and checked against the standard."""

from __future__ import annotations

import json
from pathlib import Path

import highdicom
import numpy as np
import pandas as pd
import pytest
from pydicom import Dataset, dcmread
from typer.testing import CliRunner
from wsidicom import WsiDicom

from metaphase.base.errors import OutputError
from metaphase.base.tables import TableError
from metaphase.cli.main import app
from metaphase.counting.clinical import count_slide
from metaphase.counting.likely import LaboratoryPrior
from metaphase.counting.specimen import CountConfig
from metaphase.detections.files import read_detections, write_detections
from metaphase.detections.table import DetectionSet
from metaphase.reports.dicom import write_count, write_probabilities
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.dicom import source_image
from tests.dicom_checks import DCIODVFY, faults, objections
from tests.slides.dicoms import write_plain, write_series
from tests.slides.images import blob_image

MPP = 0.25
STATED = {
    "model": "ours",
    "mitoses": {"delta": 0.4, "suppress_um": 7.5},
    "count": {"delta": 0.5, "suppress_um": 7.5},
}

WRITTEN = ("detections.dcm", "count.dcm", "probability.dcm")


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_series(tmp_path_factory.mktemp("dicom") / "slide", blob_image())


def points(count: int = 40, seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0, 337, count), rng.uniform(0, 301, count)
    labels = np.where(rng.random(count) < 0.8, "mitosis", "lookalike")
    table = pd.DataFrame(
        {"slide": "slide", "x": x, "y": y, "probability": rng.random(count), "label": labels}
    )
    table.attrs["operating_points"] = STATED
    return table


def refers_to(dataset: Dataset, source: Dataset) -> None:
    """Same patient, study and glass; the very instance is named."""
    for name in ("StudyInstanceUID", "PatientID", "PatientName", "AccessionNumber"):
        assert dataset[name].value == source[name].value
    assert str(source.SOPInstanceUID) in str(dataset)
    assert str(source.SeriesInstanceUID) in str(dataset)
    assert dataset.SeriesInstanceUID != source.SeriesInstanceUID


def test_annotations(slide: Path, tmp_path: Path) -> None:
    table = points()
    path = tmp_path / "slide.dcm"
    write_detections(DetectionSet(table, ("slide",)), path, "dicom", sources={"slide": slide})
    dataset, source = dcmread(path), source_image(slide)
    assert faults(dataset) == []
    refers_to(dataset, source)
    assert source.TotalPixelMatrixColumns == 337
    mitoses = table[table["label"] == "mitosis"]
    group = highdicom.ann.annread(path).get_annotation_group(number=1)
    assert group.annotated_property_type.meaning == "mitotic figure"
    found = np.concatenate(group.get_graphic_data("2D"))
    order = (found, mitoses[["x", "y"]].to_numpy())
    np.testing.assert_allclose(*(np.array(sorted(map(tuple, each))) for each in order), atol=1e-3 / MPP)
    flat = np.frombuffer(dataset.AnnotationGroupSequence[0].DoublePointCoordinatesData).reshape(-1, 2)
    np.testing.assert_array_equal(flat, found)
    back = read_detections(path).table
    assert list(back.columns[:5]) == ["slide", "x", "y", "probability", "label"]
    ordered = [each.sort_values(["x", "y"]).reset_index(drop=True) for each in (back, table)]
    pd.testing.assert_frame_equal(*ordered, check_dtype=False, rtol=0, atol=1e-6)


def test_more_annotations_than_places_are_an_error_at_once(slide: Path, tmp_path: Path) -> None:
    path = tmp_path / "slide.dcm"
    write_detections(DetectionSet(points(), ("slide",)), path, "dicom", sources={"slide": slide})
    dataset = dcmread(path)
    dataset.AnnotationGroupSequence[0].NumberOfAnnotations = 10**9
    dataset.save_as(path)
    with pytest.raises(TableError, match="positions of 1,000,000,000 annotations"):
        read_detections(path)


def test_wsidicom_shows_them_on_the_slide(slide: Path, tmp_path: Path) -> None:
    table = points(5)
    path = tmp_path / "slide.dcm"
    write_detections(DetectionSet(table, ("slide",)), path, "dicom", sources={"slide": slide})
    with WsiDicom.open([*slide.iterdir(), path]) as opened:
        (annotations,) = opened.annotations
        assert sum(len(group.annotations) for group in annotations.groups) == 5


def test_the_same_result_is_the_same_object(slide: Path, tmp_path: Path) -> None:
    for name, table in (("a", points()), ("b", points()), ("c", points(seed=2))):
        write_detections(DetectionSet(table, ("slide",)), tmp_path / f"{name}.dcm", sources={"slide": slide})
    a, b, c = (dcmread(tmp_path / f"{name}.dcm").SOPInstanceUID for name in "abc")
    assert a == b != c


def test_a_slide_without_mitoses(slide: Path, tmp_path: Path) -> None:
    write_detections(DetectionSet(points(0), ("slide",)), tmp_path / "slide.dcm", sources={"slide": slide})
    found = read_detections(tmp_path / "slide.dcm")
    assert (len(found.table), found.slides) == (0, ("slide",))


def test_count(slide: Path, tmp_path: Path) -> None:
    table = points()
    config = CountConfig(threshold=0.5, prior=LaboratoryPrior())
    count = count_slide(table, mpp=MPP, area_mm2=3.0, config=config)
    path = tmp_path / "count.dcm"
    write_count(path, slide, count, STATED)
    dataset = dcmread(path)
    assert faults(dataset) == []
    refers_to(dataset, source_image(slide))
    assert (dataset.VerificationFlag, dataset.PreliminaryFlag) == ("UNVERIFIED", "PRELIMINARY")
    report = highdicom.sr.srread(path).content
    (hotspot,) = report.get_planar_roi_measurement_groups()
    values = {each.name.meaning: each.value for each in hotspot.get_measurements()}
    assert values["Mitotic count"] == count.count
    name = "end of the 95 % interval of the true mitotic figures"
    assert count.likely is not None
    assert (values[f"Lower {name}"], values[f"Upper {name}"]) == count.likely.interval
    assert values["Area"] == pytest.approx(count.counted_mm2)
    said = {each.name.meaning: each.value.meaning for each in hotspot.get_qualitative_evaluations()}
    assert said["Kind of the mitotic count"] == count.in_force.kind_text
    score = count.score
    known = f"Mitotic score {score.low}" if score.low == score.high else None
    assert said.get(f"Mitotic score, {score.rule}") == known, "a range is no code"
    middle, edge = hotspot.roi.value
    reach = np.hypot(*(edge - middle))
    assert (*middle, reach) == pytest.approx(
        (count.hotspot.x, count.hotspot.y, count.hotspot.radius_px), abs=1e-2 / MPP
    )
    assert hotspot.roi.PixelOriginInterpretation == "VOLUME"


def test_a_count_without_an_interval_states_none(slide: Path, tmp_path: Path) -> None:
    write_count(tmp_path / "count.dcm", slide, count_slide(points(), mpp=MPP, area_mm2=3.0), STATED)
    report = highdicom.sr.srread(tmp_path / "count.dcm").content
    (hotspot,) = report.get_planar_roi_measurement_groups()
    assert [each.name.meaning for each in hotspot.get_measurements()] == ["Mitotic count", "Area"]


def test_probabilities_lie_where_they_belong(slide: Path, tmp_path: Path) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (76, 85), dtype=np.uint8)
    path = tmp_path / "probability.dcm"
    write_probabilities(path, slide, levels, 4 * MPP, STATED)
    dataset, source = dcmread(path), source_image(slide)
    assert faults(dataset) == []
    refers_to(dataset, source)
    seg = highdicom.seg.segread(path)
    found = seg.get_total_pixel_matrix(segment_numbers=[1], rescale_fractional=True)[..., 0]
    np.testing.assert_allclose(found[:76, :85], levels / 255, atol=1e-6)
    to_glass = [_geometry(each) for each in (source, dataset)]
    ours, theirs = (
        to_glass[0].map_indices_to_reference(np.array([[4 * 30 + 1.5, 4 * 20 + 1.5, 0]])),
        to_glass[1].map_indices_to_reference(np.array([[30.0, 20.0, 0]])),
    )
    np.testing.assert_allclose(ours[:, :2], theirs[:, :2], atol=1e-6)


class _geometry:
    """Pixels (column, row) of a total pixel matrix to millimetres on the glass."""

    def __init__(self, dataset: Dataset) -> None:
        origin = dataset.TotalPixelMatrixOriginSequence[0]
        offsets = origin.XOffsetInSlideCoordinateSystem, origin.YOffsetInSlideCoordinateSystem
        measures = dataset.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]
        orientation = np.array(dataset.ImageOrientationSlide, float).reshape(2, 3)
        self._first = np.array([*map(float, offsets), 0.0])
        self._steps = orientation * np.array(measures.PixelSpacing, float)[::-1, None]

    def map_indices_to_reference(self, positions: np.ndarray) -> np.ndarray:
        return self._first + positions[:, :2] @ self._steps


def test_wrong_use_is_told(slide: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="--slide"):
        write_detections(DetectionSet(points(), ("slide",)), tmp_path / "a.dcm")
    with pytest.raises(TableError, match="not Microscopy Bulk Simple Annotations"):
        read_detections(next(slide.iterdir()))
    bare = write_plain(tmp_path / "bare.dcm", blob_image())
    header = dcmread(bare)
    del header.StudyInstanceUID
    header.save_as(bare)
    with pytest.raises(OutputError, match="header does not allow"):
        write_detections(DetectionSet(points(), ("slide",)), tmp_path / "b.dcm", sources={"slide": bare})


@pytest.fixture(scope="module")
def detected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A DICOM slide through the command, and the folder of its results: annotations, report and map."""
    work = tmp_path_factory.mktemp("detected")
    (case,) = cohort_cases(SimulationConfig(cases=1, centres=1, width=512, height=512, seed=1))
    slide = write_series(work / "case1", render_region(case, "he", 0, 0, 512, 512))
    command = ["detect", str(slide), "-o", str(work / "out"), "--model", "simulated", "--format", "dicom"]
    command += ["--tissue", "whole", "--any-stain", "--threshold", "0.3", "--probability-map", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    (summary,) = json.loads(result.stdout)["slides"]
    assert set(WRITTEN) <= set(summary["files"])
    return slide, work / "out" / "case1"


@pytest.mark.skipif(DCIODVFY is None, reason="no dciodvfy (Debian: dicom3tools)")
@pytest.mark.parametrize("name", WRITTEN)
def test_an_outside_checker_finds_no_error(detected: tuple[Path, Path], name: str) -> None:
    assert objections(detected[1] / name) == []


def test_detect_and_convert(detected: tuple[Path, Path], tmp_path: Path) -> None:
    """Whole objects, and from annotations back to a table."""
    slide, folder = detected
    for name in WRITTEN:
        assert faults(dcmread(folder / name)) == []
    expected = pd.read_parquet(folder / "detections.parquet")
    assert len(expected) > 0
    converted = CliRunner().invoke(
        app, ["convert", str(folder / "detections.dcm"), "-o", str(tmp_path / "a.csv")]
    )
    assert converted.exit_code == 0, converted.output
    back = pd.read_csv(tmp_path / "a.csv")
    moved_um = np.hypot(back["x"] - expected["x"], back["y"] - expected["y"]) * MPP
    assert moved_um.max() < 1e-3
    again = ["convert", str(tmp_path / "a.csv"), "-o", str(tmp_path / "b.dcm"), "--slide", str(slide)]
    assert CliRunner().invoke(app, again).exit_code == 0
    assert len(read_detections(tmp_path / "b.dcm").table) == len(expected)


def test_other_slides_are_refused_before_the_search(tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(blob_image()).save(tmp_path / "a.png")
    command = ["detect", str(tmp_path / "a.png"), "-o", str(tmp_path / "out"), "--mpp", "0.25"]
    result = CliRunner().invoke(app, [*command, "--model", "simulated", "--format", "dicom"])
    assert result.exit_code == 1
    assert "is not a DICOM slide" in result.output
