"""Where the tissue of a slide comes from: a mask somebody made, the whole slide, or what is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.arrays import Box
from metaphase.base.errors import MetaphaseError, SlideError
from metaphase.base.provenance import ABSENT, account_of
from metaphase.images.tissue.finding import (
    TissueConfig,
    TissueMask,
    TissueSource,
    find_tissue,
    save_tissue,
    whole_slide,
)
from metaphase.slides.arrays import ArraySlide
from tests.images.tissue.test_mask import ring, stained_slide


class PlainSlide(ArraySlide):
    """A slide of any size: one pixel that stands for all of them; the scanner filled `bounds`."""

    def __init__(self, bounds: Box, mpp: float = 0.25) -> None:
        super().__init__(np.full((1, 1, 3), 240, np.uint8), mpp)
        self.bounds = bounds


def blank_slide() -> ArraySlide:
    return ArraySlide(np.full((200, 300, 3), 240, np.uint8), 4.0)


@pytest.mark.parametrize(
    "size", [(70, 53), (2085, 1001), (1, 1), (2047, 2047), (2049, 2049), (10_241, 10_241), (90_001, 3_077)]
)
def test_the_area_of_a_whole_slide_is_right(size: tuple[int, int]) -> None:
    width, height = size
    tissue = whole_slide(PlainSlide(Box(0, 0, width, height)))
    assert tissue.area_mm2 == pytest.approx(width * height * 0.25**2 / 1e6, rel=0.002)


@given(
    st.builds(Box, st.integers(0, 900), st.integers(0, 900), st.integers(1, 5000), st.integers(1, 5000)),
    st.floats(0.1, 2),
)
def test_a_whole_slide_holds_all_that_was_scanned_and_little_more(bounds: Box, mpp: float) -> None:
    tissue = whole_slide(PlainSlide(bounds, mpp))
    assert tissue.area_mm2 == pytest.approx(bounds.area * mpp**2 / 1e6, rel=0.002)
    assert tissue.mpp == pytest.approx(mpp * tissue.scale)
    edge = 0.25
    inside = [
        (x, y)
        for x in (bounds.x + edge, bounds.right - edge)
        for y in (bounds.y + edge, bounds.bottom - edge)
    ]
    far = tissue.scale
    outside = [(bounds.x - edge, bounds.y), (bounds.right + far, bounds.y), (bounds.x, bounds.bottom + far)]
    assert tissue.contains(np.array(inside)).all()
    assert not tissue.contains(np.array(outside, float)).any()


def test_each_source_gives_its_mask(tmp_path: Path) -> None:
    slide = stained_slide()
    path = save_tissue(ring(), tmp_path, "slide").png
    np.testing.assert_array_equal(TissueSource(mask=path).of(slide).mask, ring().mask)
    np.testing.assert_array_equal(TissueSource().of(slide).mask, find_tissue(slide).mask)
    coarse = TissueConfig(mpp=16.0)
    assert TissueSource(config=coarse).of(slide).mpp == 16.0
    assert TissueSource(whole=True).of(slide).mask.all()


def test_sources_are_stated_as_text(tmp_path: Path) -> None:
    assert TissueSource.stated("") == TissueSource()
    assert TissueSource.stated("whole") == TissueSource(whole=True)
    path = tmp_path / "mask.png"
    assert TissueSource.stated(str(path)) == TissueSource(mask=path)


def test_a_slide_without_tissue_is_refused_unless_all_of_it_is_asked_for(tmp_path: Path) -> None:
    empty = TissueMask(np.zeros((5, 6), np.bool_), 8.0, 0, 0, 2.0)
    path = save_tissue(empty, tmp_path, "slide").png
    for source in (TissueSource(), TissueSource(mask=path)):
        with pytest.raises(SlideError, match="no tissue was found") as error:
            source.of(blank_slide())
        assert "--tissue whole" in error.value.next_step
    assert not TissueSource(whole=True).of(blank_slide()).is_empty


def test_a_mask_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(MetaphaseError, match=r"absent\.png"):
        TissueSource(mask=tmp_path / "absent.png").of(blank_slide())


def test_the_account_changes_with_what_decides_the_mask(tmp_path: Path) -> None:
    path = save_tissue(ring(), tmp_path, "slide").png
    source = TissueSource(mask=path)
    before = account_of(source)
    other = ring()
    other.mask[3, 3] = not other.mask[3, 3]
    save_tissue(other, tmp_path, "slide")
    changed = account_of(source)
    assert before != changed
    copy = save_tissue(other, tmp_path / "elsewhere", "another name").png
    assert account_of(TissueSource(mask=copy)) == changed, "what a mask is called does not matter"
    path.unlink()
    assert account_of(source) == {"mask": ABSENT}
    sources = [TissueSource(), TissueSource(config=TissueConfig(mpp=4.0)), TissueSource(whole=True)]
    accounts = [str(account_of(one)) for one in (*sources, TissueSource(mask=copy))]
    assert len(set(accounts)) == 4


def test_settings_do_not_matter_to_a_mask_that_is_given(tmp_path: Path) -> None:
    path = save_tissue(ring(), tmp_path, "slide").png
    coarse = TissueConfig(mpp=16.0)
    assert account_of(TissueSource(path, config=coarse)) == account_of(TissueSource(path))
    assert account_of(TissueSource(whole=True, config=coarse)) == account_of(TissueSource(whole=True))
