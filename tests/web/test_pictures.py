"""Pictures: the right place, the right scale, and what happens where there is none."""

from __future__ import annotations

import io
import logging
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metaphase.labels.observers.project import Project, load_project
from metaphase.slides.writer import PyramidFormat, write_pyramid
from metaphase.web.labelling import SIDE_PX, CropMaker


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
    assert "cannot be shown and is left out" in caplog.text
    assert "no such file" in project.unavailable[item.name]
    hidden.rename(item.slide)
    assert crops.jpeg(item.number, "close")
    assert not project.unavailable


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


def test_threads_share_one_opening(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from metaphase.slides import opening as module

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
