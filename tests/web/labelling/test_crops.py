"""Pictures: the right place, the right scale, and what happens where there is none."""

from __future__ import annotations

import io
import logging
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metaphase.errors import SlideError
from metaphase.slides import ArraySlide, PyramidFormat, write_pyramid
from metaphase.web.labelling import LabellingError, Project, load_project
from metaphase.web.labelling.crops import BEYOND, SIDE_PX, CropMaker, SlidePool, cut
from metaphase.web.labelling.project import Item


def item_at(x: float, y: float) -> Item:
    return Item("i", Path("s.png"), x, y, "", None, 0)


def test_the_item_is_in_the_middle_at_both_scales() -> None:
    pixels = np.full((2000, 2000, 3), 255, np.uint8)
    pixels[596:604, 1196:1204] = 0
    slide = ArraySlide(pixels, 0.5)
    for side_um in (64.0, 256.0):
        dark = np.argwhere(cut(slide, item_at(1200, 600), side_um)[..., 0] < 128)
        middle = dark.mean(axis=0)
        assert np.abs(middle - (SIDE_PX - 1) / 2).max() < 1.0
        assert len(dark) == pytest.approx((4.0 / side_um * SIDE_PX) ** 2, rel=0.3)


def test_beyond_the_edge_is_dark_and_outside_is_an_error() -> None:
    slide = ArraySlide(np.full((100, 100, 3), 200, np.uint8), 0.5)
    corner = cut(slide, item_at(0, 0), 20.0)
    half = SIDE_PX // 2
    assert (corner[:half] == BEYOND).all()
    assert (corner[:, :half] == BEYOND).all()
    assert (corner[half + 64 :, half + 64 :] == 200).all()
    assert (cut(slide, item_at(99, 99), 20.0)[-100:] == BEYOND).all()
    assert (cut(slide, item_at(50, 50), 20.0) == 200).all()
    for x, y in ((-1, 5), (5, 100), (1e9, 5)):
        with pytest.raises(LabellingError, match="outside the slide of 100 x 100"):
            cut(slide, item_at(x, y), 20.0)


def test_pictures_are_jpegs_without_anything_else(project: Project) -> None:
    crops = CropMaker(project)
    jpeg = crops.jpeg(project.items[0].number, "close")
    assert jpeg is not None
    with Image.open(io.BytesIO(jpeg)) as picture:
        assert picture.size == (SIDE_PX, SIDE_PX)
        assert not picture.getexif()
        assert set(picture.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    assert b"secret" not in jpeg
    assert crops.jpeg(project.items[0].number, "context") != jpeg
    crops.close()


def test_pictures_of_a_tiled_slide(tmp_path: Path) -> None:
    """Its decoder hands out arrays that may not be written to."""
    tiles = iter([np.full((256, 256, 3), 180, np.uint8)] * 4)
    write_pyramid(tmp_path / "s.tif", tiles, 512, 512, PyramidFormat(tile_px=256, mpp=0.5))
    (tmp_path / "items.csv").write_text("item,slide,x,y\na,s.tif,10,250\n")
    project = load_project(tmp_path)
    crops = CropMaker(project)
    for view in ("close", "context"):
        jpeg = crops.jpeg(project.items[0].number, view)
        assert jpeg is not None
        with Image.open(io.BytesIO(jpeg)) as picture:
            assert abs(picture.getpixel((SIDE_PX // 2, SIDE_PX // 2))[0] - 180) < 4
            assert picture.getpixel((0, SIDE_PX // 2))[0] < 60
    crops.close()


def test_an_unreadable_slide_is_logged_once_and_comes_back(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    crops, item = CropMaker(project), project.items[0]
    hidden = item.slide.rename(item.slide.with_suffix(".away"))
    with caplog.at_level(logging.WARNING):
        assert crops.jpeg(item.number, "close") is None
        assert crops.jpeg(item.number, "context") is None
    assert len(caplog.records) == 1
    assert "no such file" in caplog.text
    hidden.rename(item.slide)
    assert crops.jpeg(item.number, "close")


def test_a_slide_without_scale_is_unavailable(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    path = project.folder / "items.csv"
    path.write_text("item,slide,x,y\na,secret-a.png,100,100\n")
    bare = load_project(project.folder)
    assert CropMaker(bare).jpeg(bare.items[0].number, "close") is None
    assert "micrometres per pixel" in caplog.text


def test_the_version_follows_scale(project: Project) -> None:
    before = CropMaker(project).version
    path = project.folder / "items.csv"
    path.write_text(path.read_text().replace(",0.5,", ",0.25,"))
    assert CropMaker(load_project(project.folder)).version != before


def test_the_pool_closes_idle_slides_only(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(ArraySlide, "close", lambda slide: closed.append(slide.name))
    pool = SlidePool(limit=1)
    one, two = (project.folder / f"secret-{letter}.png" for letter in "ab")
    with pool.open(one, 0.5):
        with pool.open(two, 0.5):
            assert not closed
        assert closed == ["secret-b.png"]
    with pool.open(one, 0.5):
        pass
    pool.close()
    assert closed == ["secret-b.png", "secret-a.png"]


def test_threads_share_one_opening(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from metaphase.web.labelling import crops as module

    opened: list[Path] = []
    real = module.open_slide

    def counted(path: Path, *, mpp: float | None) -> object:
        opened.append(path)
        return real(path, mpp=mpp)

    monkeypatch.setattr(module, "open_slide", counted)
    maker = CropMaker(project)
    threads = [
        threading.Thread(target=maker.jpeg, args=(item.number, view))
        for item in project.items
        for view in ("close", "context")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in opened) == ["secret-a.png", "secret-b.png"]


def test_a_failed_opening_is_tried_again(tmp_path: Path) -> None:
    pool = SlidePool()
    for _ in range(2):
        with pytest.raises(SlideError), pool.open(tmp_path / "absent.png", None):
            pass
