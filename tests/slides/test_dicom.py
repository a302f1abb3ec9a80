"""DICOM whole slides by OpenSlide and by wsidicom: the same pixels, whatever the files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread
from wsidicom import ConcatenationByFrames
from wsidicom.codec import Jpeg2kSettings, JpegLsSettings, JpegSettings

from metaphase.analysis.cohort import named_slides
from metaphase.base.arrays import Box
from metaphase.base.errors import MissingResolutionError, SlideError
from metaphase.slides.contract import Slide
from metaphase.slides.opening import SlideSource, open_slide
from tests.slides import test_backends
from tests.slides.conformance import Image
from tests.slides.dicoms import TILE_PX, write_plain, write_series
from tests.slides.images import blob_image, noise_image


class TestDicom(test_backends.TestArray):
    """Uncompressed levels in several files, by wsidicom."""

    @pytest.fixture(scope="class")
    @classmethod
    def slide(cls, pixels: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slide]:
        folder = write_series(tmp_path_factory.mktemp("dicom") / "slide", pixels)
        with open_slide(folder, backend="dicom") as slide:
            assert slide.info.backend == "dicom"
            assert len(slide.levels) == 4
            yield slide


KINDS = {
    "JPEG": {"transcoding": JpegSettings(quality=95), "force_transcoding": True},
    "JPEG 2000": {"transcoding": Jpeg2kSettings(), "force_transcoding": True},
    "concatenation": {"concatenation": ConcatenationByFrames(5)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_openslide_and_wsidicom_agree(tmp_path: Path, kind: str) -> None:
    image = blob_image()
    folder = write_series(tmp_path / "slide", image, **KINDS[kind])
    with open_slide(folder) as slide, open_slide(folder, backend="dicom") as other:
        assert (slide.info.backend, other.info.backend) == ("openslide", "dicom")
        assert slide.levels == other.levels
        assert slide.mpp == other.mpp == pytest.approx(0.25)
        for level, size in enumerate(slide.levels):
            box = Box(0, 0, size.width, size.height)
            ours, theirs = (each.read_level(level, box).astype(int) for each in (slide, other))
            assert np.abs(ours - theirs).max() <= 2
        assert np.abs(other.read_level(0, Box(0, 0, 337, 301)).astype(int) - image).max() < 20


@pytest.mark.parametrize("backend", ["auto", "dicom"])
def test_sparse_tiles_are_white(tmp_path: Path, backend: str) -> None:
    image = noise_image(200, 130)
    path = write_plain(tmp_path / "sparse", image, left_out=(1, 6))
    expected = image.copy()
    expected[:TILE_PX, TILE_PX : 2 * TILE_PX] = 255
    expected[TILE_PX : 2 * TILE_PX, 2 * TILE_PX : 3 * TILE_PX] = 255
    with open_slide(path, backend=backend) as slide:  # type: ignore[arg-type]
        np.testing.assert_array_equal(slide.read_level(0, Box(0, 0, 200, 130)), expected)


def test_what_openslide_refuses_is_read(tmp_path: Path) -> None:
    image = blob_image()
    lossless = {"transcoding": JpegLsSettings(), "force_transcoding": True}
    folder = write_series(tmp_path / "slide", image, **lossless)
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    for path in (folder, largest):
        with open_slide(path) as slide:
            assert slide.info.backend == "dicom"
            np.testing.assert_array_equal(slide.read_level(0, Box(0, 0, 337, 301)), image)


def test_files_need_no_ending_and_others_may_lie_beside(tmp_path: Path) -> None:
    folder = write_series(tmp_path / "1.2.3.4", blob_image())
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(folder / f"IM{number}")
    (folder / "README").write_text("exported")
    with open_slide(folder) as slide:
        assert len(slide.levels) == 4
    assert [*named_slides([folder])] == ["1.2.3.4"]
    before = SlideSource(folder).account(), SlideSource(folder / "IM0").account()
    assert before[0]["mpp"] == pytest.approx(0.25)
    (folder / "IM1").unlink()
    after = SlideSource(folder).account(), SlideSource(folder / "IM0").account()
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_two_slides_in_a_folder_are_not_mixed(tmp_path: Path) -> None:
    write_plain(tmp_path / "both" / "a.dcm", noise_image(100, 90))
    write_plain(tmp_path / "both" / "b.dcm", noise_image(80, 70))
    with pytest.raises(SlideError, match=r"holds 2 DICOM whole slides \(a.dcm, b.dcm\). Name a file"):
        open_slide(tmp_path / "both")
    with open_slide(tmp_path / "both" / "b.dcm", backend="dicom") as slide:
        assert (slide.width, slide.height) == (80, 70)


def test_bad_files_are_errors(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "slide.dcm", noise_image(100, 90))
    data = path.read_bytes()
    for end in (200, 700, len(data) - 20_000):
        cut = tmp_path / f"cut{end}.dcm"
        cut.write_bytes(data[:end])
        for backend in ("auto", "dicom"):
            with pytest.raises(SlideError) as caught, open_slide(cut, backend=backend) as slide:  # type: ignore[arg-type]
                slide.read_level(0, Box(0, 0, 100, 90))
            assert str(cut) in str(caught.value)
        cut.unlink()
    other = dcmread(path)
    other.SOPClassUID = other.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.88.33"
    other.save_as(tmp_path / "report.dcm")
    with pytest.raises(SlideError, match=r"is DICOM, but not a whole slide \(Comprehensive SR"):
        open_slide(tmp_path / "report.dcm")
    shutil.rmtree(tmp_path / "none", ignore_errors=True)
    (tmp_path / "none").mkdir()
    with pytest.raises(SlideError, match="is a folder"):
        open_slide(tmp_path / "none")


def test_resolution_is_not_guessed(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "slide.dcm", noise_image(100, 90), None)
    with pytest.raises((MissingResolutionError, SlideError)) as caught, open_slide(path) as slide:
        _ = slide.mpp
    assert "slide.dcm" in str(caught.value)
    with open_slide(path, mpp=0.5) as slide:
        assert slide.mpp == 0.5
