"""Candidates of slides: definition, tissue, tiling, floods."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.errors import UsageError
from metaphase.images.tissue.finding import TissueMask, TissueSource
from metaphase.learn.mining.candidates import (
    FULL_SUM,
    CandidateConfig,
    CandidateError,
    find_candidates,
    intensity_limit,
    intensity_sums,
)
from metaphase.learn.mining.mining import CandidatesFound, SeenSlide
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.opening import SlideSource, open_slide
from tests.examples import FEW
from tests.learn.mining.pictures import MPP, dotted, everywhere, noisy_tissue, write_slide
from tests.learn.mining.test_darkest import greedy

CONFIG = CandidateConfig(diameter_um=5.0)


def patchy_tissue(slide: ArraySlide, seed: int = 0) -> TissueMask:
    """Random tissue on a grid that does not line up with pixels or tiles."""
    rng = np.random.default_rng(seed)
    side = 37.3
    shape = int(slide.height / side) + 1, int(slide.width / side) + 1
    return TissueMask(rng.random(shape) < 0.5, MPP * side, 3.7, -5.2, side)


def test_whole_slide_equals_plain_definition() -> None:
    slide = ArraySlide(noisy_tissue(150, 210), mpp=MPP)
    found = find_candidates(slide, everywhere(slide), CONFIG, tile_px=64)
    expected = greedy(intensity_sums(noisy_tissue(150, 210)), 10.0, intensity_limit(0.6))
    np.testing.assert_array_equal(found[["x", "y"]], expected[:, :2] + 0.5)
    np.testing.assert_allclose(found["intensity"], expected[:, 2] / FULL_SUM, atol=1e-6)
    assert (found["intensity"] < 0.6).all()


@FEW
@given(st.integers(20, 300), st.integers(0, 3), st.sampled_from([0.25, 0.5]))
def test_same_candidates_whatever_the_tiling(tile_px: int, seed: int, mpp: float) -> None:
    slide = ArraySlide(noisy_tissue(230, 170, seed), mpp=MPP)
    tissue = patchy_tissue(slide, seed)
    config = dataclasses.replace(CONFIG, mpp=mpp)
    whole = find_candidates(slide, tissue, config, tile_px=1000)
    tiled = find_candidates(slide, tissue, config, tile_px=tile_px)
    assert len(whole) > 10
    assert tiled.equals(whole)


def test_inside_tissue_only() -> None:
    slide = ArraySlide(noisy_tissue(230, 170), mpp=MPP)
    tissue = patchy_tissue(slide)
    table = find_candidates(slide, tissue, CONFIG)
    columns = ((table["x"] - tissue.x) // tissue.scale).astype(int)
    rows = ((table["y"] - tissue.y) // tissue.scale).astype(int)
    assert len(table) > 10
    assert tissue.mask[rows, columns].all()


def test_empty_tissue_has_no_candidates() -> None:
    slide = ArraySlide(noisy_tissue(64, 64), mpp=MPP)
    none = TissueMask(np.zeros((4, 4), np.bool_), 4.0, 0, 0, 16)
    found = find_candidates(slide, none, CONFIG)
    assert len(found) == 0
    assert list(found.columns) == ["x", "y", "intensity"]


def test_dots_on_a_file_are_found_where_they_are(tmp_path: Path) -> None:
    dots = [(60, 70), (200, 40), (130, 300), (290, 255)]
    path = write_slide(tmp_path / "dots.tif", dotted(400, 350, dots))
    with open_slide(path) as slide:
        mask = TissueMask(np.ones((1, 1), np.bool_), MPP, 0, 0, 400.0)
        table = find_candidates(slide, mask, CandidateConfig())
    positions = table.loc[table["intensity"] < 0.2, ["x", "y"]].to_numpy()
    assert sorted(map(tuple, (positions - 0.5).astype(int).tolist())) == sorted(dots)


def test_coarser_slides_are_brought_to_the_working_resolution() -> None:
    slide = ArraySlide(dotted(300, 300, [(150, 100)], radius_px=4), mpp=0.5)
    mask = TissueMask(np.ones((1, 1), np.bool_), 0.5, 0, 0, 300.0)
    table = find_candidates(slide, mask)
    darkest = table.loc[table["intensity"].idxmin()]
    assert abs(darkest["x"] - 150.5) <= 1
    assert abs(darkest["y"] - 100.5) <= 1


def test_dark_slide_is_refused_with_its_name() -> None:
    slide = ArraySlide(np.full((100, 100, 3), 20, np.uint8), mpp=MPP, path=Path("night.tif"))
    with pytest.raises(CandidateError, match=r"night\.tif.*100\.0% of the tissue is darker"):
        find_candidates(slide, everywhere(slide))


def test_flood_stops_early() -> None:
    slide = ArraySlide(noisy_tissue(200, 200), mpp=MPP)
    with pytest.raises(CandidateError, match="more than 5 candidates"):
        find_candidates(slide, everywhere(slide), CandidateConfig(diameter_um=5, max_candidates=5))


def test_what_decides_candidates_is_told(tmp_path: Path) -> None:
    seen = SeenSlide(SlideSource(tmp_path / "absent.tif", MPP), TissueSource(whole=True), "")
    record = CandidatesFound(seen, CONFIG)
    record.write(tmp_path / "a.parquet.json")
    assert record.matches(tmp_path / "a.parquet.json")
    other = CandidatesFound(seen, CandidateConfig())
    assert other.why(tmp_path / "a.parquet.json").startswith("config.diameter_um was 5 and is ")
    more = CandidatesFound(seen, dataclasses.replace(CONFIG, max_candidates=7))
    assert more.matches(tmp_path / "a.parquet.json"), "a limit that only stops a run decides nothing"


@pytest.mark.parametrize(
    ("threshold", "limit"), [(0.6, 459), (1.0, 765), (0.2, 153), (0.601, 460), (1 / 765, 1)]
)
def test_threshold_is_of_white(threshold: float, limit: int) -> None:
    assert intensity_limit(threshold) == limit


@pytest.mark.parametrize(
    "setting",
    [{"diameter_um": 0}, {"threshold": 1.2}, {"mpp": -1}, {"diameter_um": 0.3}],
)
def test_senseless_settings(setting: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        CandidateConfig(**setting)  # type: ignore[arg-type]
