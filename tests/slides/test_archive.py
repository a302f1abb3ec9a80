"""Slides at a DICOMweb server: the same pixels, results stored beside them, bad answers in one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pydicom
import pytest
from dicomweb_client import DICOMwebClient
from typer.testing import CliRunner
from wsidicom.codec import Jpeg2kSettings, JpegSettings

from metaphase.base.errors import SlideError, UsageError
from metaphase.base.tables import read_table
from metaphase.cli.main import app
from metaphase.slides import archive as archives
from metaphase.slides.archive import AUTHORISATION, Archive, find_slides, parts_of, store_results
from metaphase.slides.opening import open_slide
from tests.analysis.conftest import he_slide, tiny_model  # noqa: F401
from tests.slides.archives import ORTHANC, SmallServer, orthanc, small_server
from tests.slides.dicoms import write_plain, write_series
from tests.slides.images import blob_image


@pytest.fixture(scope="module")
def series(he_slide: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    with open_slide(he_slide) as slide:
        pixels = slide.read(0, 0, 480, 380)
    return write_series(
        tmp_path_factory.mktemp("series") / "jpeg", pixels, transcoding=JpegSettings(quality=90)
    )


@pytest.fixture(scope="module", params=["orthanc", "small"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "small":
        with small_server() as server:
            yield server.url
    elif ORTHANC is None:
        pytest.skip("no Orthanc (Debian: orthanc, orthanc-dicomweb)")
    else:
        with orthanc(tmp_path_factory.mktemp("orthanc")) as address:
            yield address


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with small_server() as one:
        yield one


def call(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_found_read_searched_and_results_stored(url: str, series: Path, tmp_path: Path) -> None:
    call("archive", "store", url, series)
    study = pydicom.dcmread(next(series.iterdir()), specific_tags=["StudyInstanceUID"]).StudyInstanceUID
    wanted = ("--patient", "P1", "--study", study)
    (row,) = json.loads(call("archive", "find", url, "-o", tmp_path / "slides", *wanted, "--json"))
    slide = Path(row["file"])
    assert slide.name == "C1.dicomweb"
    check_alike(slide, series)
    model, results = tiny_model(tmp_path / "own.safetensors"), tmp_path / "results"
    common = ("--model", model, "--tissue", "whole", "--device", "cpu", "--format", "dicom")
    call("detect", slide, "-o", results, *common)
    call("archive", "store", url, results / "C1")
    stored = {one.Modality: one for one in _others(url, row["study"])}
    assert set(stored) == {"ANN", "SR"}
    found = read_table(results / "C1" / "detections.parquet")
    (group,) = stored["ANN"].AnnotationGroupSequence
    positions = np.frombuffer(group.DoublePointCoordinatesData).reshape(-1, 2)
    assert np.abs(positions - found[["x", "y"]]).to_numpy().max() < 1e-6
    source = stored["ANN"].ReferencedSeriesSequence[0].SeriesInstanceUID
    assert source == row["series"]


@pytest.mark.parametrize("coding", [None, Jpeg2kSettings()], ids=["uncompressed", "JPEG 2000"])
def test_tiles_come_as_they_are_stored(url: str, coding: Jpeg2kSettings | None, tmp_path: Path) -> None:
    series = write_series(tmp_path / "a", blob_image(), transcoding=coding)
    store_results(url, [series])
    header = pydicom.dcmread(next(series.iterdir()), stop_before_pixels=True)
    ((slide, _),) = find_slides(url, tmp_path / "slides", study=header.StudyInstanceUID)
    check_alike(slide, series)


def check_alike(slide: Path, series: Path) -> None:
    with open_slide(slide) as there, open_slide(series, backend="dicom") as here:
        assert (there.levels, there.mpp, there.info.backend) == (here.levels, 0.25, "dicom")
        for mpp in (0.25, 0.7):
            assert np.array_equal(there.read(17, 30, 150, 90, mpp), here.read(17, 30, 150, 90, mpp))


def _others(url: str, study: str) -> list[pydicom.Dataset]:
    """All of a study but the slide, asked from the server by dicomweb-client itself."""
    client = DICOMwebClient(url)
    found = client.search_for_instances(study)
    kinds = [[one[tag]["Value"][0] for tag in ("0020000E", "00080018", "00080060")] for one in found]
    return [client.retrieve_instance(study, series, one) for series, one, kind in kinds if kind != "SM"]


@pytest.mark.parametrize(
    ("fault", "described"),
    [
        ("404", "does not have it (404 Not Found)"),
        ("401", f"denies access (401 Unauthorized). Name its user in ~/.netrc, or set {AUTHORISATION}"),
        ("500", "answered 500 Internal Server Error"),
        ("503", "answered 503 Service Unavailable"),
        ("page", "gave an answer that cannot be used"),
        ("garbage", "gave an answer that cannot be used"),
        ("cut", "gave an answer that cannot be used"),
        ("silent", "did not answer within 0.1 s"),
        ("huge", "sends more than can be taken"),
    ],
)
def test_bad_answers_are_told_in_one_line(
    server: SmallServer,
    series: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    described: str,
) -> None:
    for file in series.glob("*.dcm"):
        Archive(server.url).store(file)
    ((path, position),) = find_slides(server.url, tmp_path)
    slide = open_slide(path)
    server.fault = fault
    if fault == "silent":
        monkeypatch.setattr(archives, "TIMEOUT_S", 0.1)
    asked: list[Callable[[], object]] = [
        lambda: find_slides(server.url, tmp_path),
        lambda: open_slide(path),
        lambda: slide.read(0, 0, 100, 100),
        lambda: Archive(server.url).store(next(series.glob("*.dcm"))),
        lambda: Archive(server.url).headers(position.study, position.series),
    ]
    for one in asked:
        with pytest.raises(SlideError) as caught:
            one()
        assert described in str(caught.value)
        assert "\n" not in str(caught.value)
    slide.close()


def test_what_is_no_slide_is_passed_over(server: SmallServer, series: Path, tmp_path: Path) -> None:
    store_results(server.url, [series])
    label = write_plain(
        tmp_path / "label.dcm", blob_image(), ImageType=["ORIGINAL", "PRIMARY", "LABEL", "NONE"]
    )
    store_results(server.url, [label])
    assert len(Archive(server.url).slides()) == 2
    assert [path.name for path, _ in find_slides(server.url, tmp_path)] == ["C1.dicomweb"]


def test_nobody_there_and_wrong_words(tmp_path: Path) -> None:
    with pytest.raises(SlideError, match="cannot be reached"):
        find_slides("http://127.0.0.1:9/dicom-web", tmp_path)
    with pytest.raises(UsageError, match="is not an address"):
        find_slides("file:///etc", tmp_path)
    with pytest.raises(UsageError, match="holds no DICOM results"):
        store_results("http://127.0.0.1:9", [tmp_path])


@pytest.mark.parametrize(
    "stated",
    [
        "", "[]", "{}", '{"url": "file:///etc/passwd", "study": "1.2", "series": "1.3"}',
        '{"url": "http://127.0.0.1:9", "study": "1.2/../..", "series": "1.3"}',
        '{"url": "http://127.0.0.1:9", "study": "1.2", "series": null}',
    ],
)  # fmt: skip
def test_a_file_that_names_no_slide_is_refused(stated: str, tmp_path: Path) -> None:
    path = tmp_path / "a.dicomweb"
    path.write_text(stated)
    with pytest.raises(SlideError, match=r"a\.dicomweb: (names no slide|the file is empty)"):
        open_slide(path)


def test_authorisation_goes_to_its_own_server_only(
    server: SmallServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AUTHORISATION, f"{server.url} Bearer secret")
    Archive(server.url).slides()
    assert server.asked[-1][1]["Authorization"] == "Bearer secret"
    monkeypatch.setenv(AUTHORISATION, "http://127.0.0.1:80 Bearer secret")
    Archive(server.url).slides()
    assert "Authorization" not in server.asked[-1][1]


def test_answers_of_one_part_and_of_none() -> None:
    kind = "application/octet-stream; transfer-syntax=1.2.840.10008.1.2.4.50"
    assert parts_of(kind, b"abc") == ("1.2.840.10008.1.2.4.50", [b"abc"])
    for kind, body in (
        ("text/html", b""),
        ("multipart/related", b""),
        ("multipart/related; boundary=x", b"--x1--x--"),
    ):
        with pytest.raises(ValueError, match=r"in place of tiles|without headers"):
            parts_of(kind, body)
