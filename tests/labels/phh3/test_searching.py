"""The candidate stage: what it writes, what it skips, and what it says about bad slides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from metaphase.base.errors import UsageError
from metaphase.base.tables import case_folder
from metaphase.labels.phh3.candidates import BrownConfig, Phh3Error
from metaphase.labels.phh3.cases import CANDIDATES, CANDIDATES_NOTE, PICTURE, read_candidates, search_case
from metaphase.slides.opening import SlideSource
from tests.labels.phh3.slides import BROWN, draw_slide, spread_points, write_slide

CONFIG = BrownConfig(fields=8)


def picture_size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def test_outputs_and_resumption(tmp_path: Path) -> None:
    slide = write_slide(tmp_path / "phh3.tif", draw_slide(900, spread_points(12, 900)))
    first = search_case(SlideSource(slide), tmp_path / "case", CONFIG, threads=1)
    assert (first.candidates, first.resumed, first.warnings) == (12, False, ())
    table = read_candidates(tmp_path / "case")
    assert min(picture_size(first.picture)) > 400
    written = (tmp_path / "case" / CANDIDATES).stat().st_mtime_ns
    again = search_case(SlideSource(slide), tmp_path / "case", CONFIG, threads=1)
    assert (again.candidates, again.resumed) == (12, True)
    assert (tmp_path / "case" / CANDIDATES).stat().st_mtime_ns == written
    pd.testing.assert_frame_equal(read_candidates(tmp_path / "case"), table)


@pytest.mark.slow
def test_other_settings_or_another_slide_are_searched_anew(tmp_path: Path) -> None:
    slide = write_slide(tmp_path / "phh3.tif", draw_slide(900, spread_points(12, 900)))
    search_case(SlideSource(slide), tmp_path / "case", CONFIG, threads=1)
    assert not search_case(
        SlideSource(slide), tmp_path / "case", BrownConfig(fields=8, join_um=0), threads=1
    ).resumed
    write_slide(tmp_path / "phh3.tif", draw_slide(900, spread_points(5, 900)))
    assert (
        search_case(
            SlideSource(slide), tmp_path / "case", BrownConfig(fields=8, join_um=0), threads=1
        ).candidates
        == 5
    )


def test_a_run_killed_before_the_record_is_done_again(tmp_path: Path) -> None:
    slide = write_slide(tmp_path / "phh3.tif", draw_slide(900, spread_points(12, 900)))
    search_case(SlideSource(slide), tmp_path / "case", CONFIG, threads=1)
    (tmp_path / "case" / CANDIDATES_NOTE).unlink()
    with pytest.raises(Phh3Error, match="candidates first"):
        read_candidates(tmp_path / "case")
    assert not search_case(SlideSource(slide), tmp_path / "case", CONFIG, threads=1).resumed


def test_an_he_slide_is_refused_with_a_picture(tmp_path: Path) -> None:
    slide = write_slide(tmp_path / "he.tif", draw_slide(900, he=True))
    with pytest.raises(Phh3Error, match="H&E") as caught:
        search_case(SlideSource(slide), tmp_path / "case", CONFIG, threads=1)
    assert str(tmp_path / "case" / PICTURE) in str(caught.value)
    assert (tmp_path / "case" / PICTURE).is_file()
    assert not (tmp_path / "case" / CANDIDATES_NOTE).exists()
    forced = search_case(SlideSource(slide), tmp_path / "case", CONFIG, force=True, threads=1)
    (warning,) = (one for one in forced.warnings if one.code == "not-phh3")
    assert "H&E" in warning.text
    assert warning.next_step == f"see {forced.picture}"
    assert (
        search_case(SlideSource(slide), tmp_path / "case", CONFIG, threads=1).warnings == forced.warnings
    ), "kept"


def test_a_blank_slide_is_refused_with_a_picture(tmp_path: Path) -> None:
    slide = write_slide(tmp_path / "blank.tif", np.full((900, 900, 3), 243, np.uint8))
    with pytest.raises(Phh3Error, match="no stained tissue"):
        search_case(SlideSource(slide), tmp_path / "case", CONFIG, threads=1)
    assert (tmp_path / "case" / PICTURE).is_file()


def test_no_brown_is_a_warning_and_an_empty_table(tmp_path: Path) -> None:
    slide = write_slide(tmp_path / "phh3.tif", draw_slide(900))
    found = search_case(SlideSource(slide), tmp_path / "case", CONFIG, threads=1)
    assert found.candidates == 0
    assert any("no brown" in warning.text for warning in found.warnings)
    assert len(read_candidates(tmp_path / "case")) == 0


def test_brown_everywhere_is_a_warning(tmp_path: Path) -> None:
    pixels = draw_slide(900)
    pixels[150:750, 150:600] = (pixels[150:750, 150:600] * 0.3 + np.array(BROWN) * 0.7).astype(np.uint8)
    found = search_case(
        SlideSource(write_slide(tmp_path / "p.tif", pixels)), tmp_path / "case", CONFIG, threads=1
    )
    assert any("of the tissue is brown" in warning.text for warning in found.warnings)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\\b"])
def test_case_names_that_are_no_folders_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        case_folder(tmp_path, name)
