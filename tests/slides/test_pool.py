"""Open slides that threads share."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from metaphase.base.errors import SlideError
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.opening import SlidePool


def test_the_pool_closes_idle_slides_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(ArraySlide, "close", lambda slide: closed.append(slide.name))
    pool = SlidePool(limit=1)
    one, two = (tmp_path / f"secret-{letter}.png" for letter in "ab")
    for path in (one, two):
        Image.new("RGB", (8, 8)).save(path)
    with pool.open(one, 0.5):
        with pool.open(two, 0.5):
            assert not closed
        assert closed == ["secret-b.png"]
    with pool.open(one, 0.5):
        pass
    pool.close()
    assert closed == ["secret-b.png", "secret-a.png"]


def test_a_failed_opening_is_tried_again(tmp_path: Path) -> None:
    pool = SlidePool()
    for _ in range(2):
        with pytest.raises(SlideError), pool.open(tmp_path / "absent.png", None):
            pass
