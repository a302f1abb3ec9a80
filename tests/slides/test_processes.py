"""Tiles that other processes decode."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from mmap import mmap
from pathlib import Path

import numpy as np
import pytest

from metaphase.base.errors import MetaphaseError, SlideError
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.settings import EngineConfig, PeakConfig
from metaphase.networks.engine.streaming import detect_tiles, plan_detection
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.opening import open_slide
from metaphase.slides.tiles import TileProcesses, plan_tiles, read_tiles
from metaphase.slides.writer import PyramidFormat, write_pyramid
from tests.networks.engine.networks_made import lite_network, texture
from tests.slides.images import with_halo


@pytest.fixture(scope="module")
def processes() -> Iterator[TileProcesses]:
    two = TileProcesses(2)
    yield two
    two.close()


def pyramid(path: Path, side: int = 512, seed: int = 0) -> Path:
    pixels = texture(side, side, seed)
    tiles = (pixels[y : y + 128, x : x + 128] for y in range(0, side, 128) for x in range(0, side, 128))
    write_pyramid(path, tiles, side, side, PyramidFormat(0.25, tile_px=128))
    return path


def test_the_same_pixels_as_by_threads(tmp_path: Path, processes: TileProcesses) -> None:
    for number, (side, tile_px) in enumerate(((512, 96), (640, 300), (256, 64))):  # room grows, slides change
        with open_slide(pyramid(tmp_path / f"{number}.tif", side, number), mpp=0.3) as slide:
            plan = with_halo(plan_tiles(slide.bounds, slide.mpp, tile_px=tile_px), 20)
            kept: list[np.ndarray] = []
            for (tile, pixels), (same, expected) in zip(
                processes.read(slide, plan, ahead=3, hold=2), read_tiles(slide, plan), strict=True
            ):
                assert tile == same
                kept.append(pixels)
                np.testing.assert_array_equal(pixels, expected)
                del kept[:-2]


def test_pixels_hold_as_long_as_promised(tmp_path: Path, processes: TileProcesses) -> None:
    with open_slide(pyramid(tmp_path / "a.tif")) as slide:
        plan = plan_tiles(slide.bounds, slide.mpp, tile_px=64)
        expected = [pixels for _, pixels in read_tiles(slide, plan)]
        taken = []
        for number, (_, pixels) in enumerate(processes.read(slide, plan, ahead=4, hold=5)):
            taken.append(pixels)
            for back in range(min(5, number) + 1):
                np.testing.assert_array_equal(taken[number - back], expected[number - back])


def test_shared_memory_is_prepared_before_its_use_and_let_go(tmp_path: Path) -> None:
    seen: list[str] = []

    def prepare(memory: mmap) -> Callable[[], object]:
        size = len(memory)
        seen.append(f"prepared {size}")
        return lambda: seen.append(f"let go of {size}")

    one = TileProcesses(1, prepare)
    with open_slide(pyramid(tmp_path / "a.tif")) as slide:
        for tile_px in (64, 64, 256):
            plan = plan_tiles(slide.bounds, slide.mpp, tile_px=tile_px)
            assert sum(1 for _ in one.read(slide, plan, ahead=1, hold=1)) == len(plan.tiles)
    one.close()
    small, large = (seen[number].split()[-1] for number in (0, 2))
    assert seen == [f"prepared {small}", f"let go of {small}", f"prepared {large}", f"let go of {large}"]


def test_a_search_finds_the_same(tmp_path: Path, processes: TileProcesses) -> None:
    engine = Engine([lite_network()], EngineConfig(device="cpu"))
    config = PeakConfig(floor=0.3, suppress_um=5)
    with open_slide(pyramid(tmp_path / "a.tif")) as slide:
        plan = plan_detection(slide, engine, config, tile_px=128)
        both = [
            np.concatenate([one.points.x for one in detect_tiles(engine, slide, plan, config, decoders=who)])
            for who in (None, processes)
        ]
    assert len(both[0]) > 5
    np.testing.assert_array_equal(*both)


def test_a_damaged_slide_is_named_and_the_next_one_goes_on(tmp_path: Path, processes: TileProcesses) -> None:
    path = pyramid(tmp_path / "gone.tif")
    with open_slide(path) as slide:
        plan = plan_tiles(slide.bounds, slide.mpp, tile_px=128)
        path.unlink()
        with pytest.raises(SlideError, match=r"gone\.tif"):
            list(processes.read(slide, plan, ahead=2, hold=1))
    with open_slide(pyramid(tmp_path / "next.tif")) as slide:
        plan = plan_tiles(slide.bounds, slide.mpp, tile_px=128)
        assert len(list(processes.read(slide, plan, ahead=2, hold=1))) == len(plan.tiles)
    memory = ArraySlide(texture(200, 200), mpp=0.25)
    with pytest.raises(SlideError, match="in memory"):
        list(processes.read(memory, plan, ahead=2, hold=1))


def test_a_process_that_is_killed_is_told(tmp_path: Path) -> None:
    one = TileProcesses(1)
    with open_slide(pyramid(tmp_path / "a.tif")) as slide:
        plan = plan_tiles(slide.bounds, slide.mpp, tile_px=64)
        reader = one.read(slide, plan, ahead=1, hold=1)
        next(reader)
        (child,) = one._pool._processes
        os.kill(child, signal.SIGKILL)
        with pytest.raises(MetaphaseError, match="was killed"):
            list(reader)
    one.close()
