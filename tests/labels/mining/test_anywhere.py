"""Negatives anywhere: on the slide or its mask, never near a mitosis."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from metaphase.base.errors import UsageError
from metaphase.images.tissue.mask import TissueMask
from metaphase.labels.mining import LabelConfig, SetConfig
from metaphase.labels.mining.labelling import negatives_anywhere
from metaphase.slides import ArraySlide

MPP = 0.25
LABELS = LabelConfig(positive_um=10.0, ignore_um=20.0)
POINTS = pd.DataFrame({"x": [300.0, 700.0], "y": [200.0, 500.0], "label": ["mitosis", "ignore"]})


def slide() -> ArraySlide:
    return ArraySlide(np.full((600, 1000, 3), 255, np.uint8), mpp=MPP)


def draw(mask: TissueMask | None = None, count: int = 4000, seed: int = 0) -> pd.DataFrame:
    return negatives_anywhere(slide(), mask, POINTS, count, LABELS, np.random.default_rng(seed))


def test_places_cover_the_slide_but_for_the_mitoses() -> None:
    table = draw()
    places = table[["x", "y"]].to_numpy()
    assert (places >= 0).all()
    assert (places < (1000, 600)).all()
    assert set(table["label"]) == {0}
    assert set(table["source"]) == {"anywhere"}
    for (x, y), reach_px in (((300, 200), 40), ((700, 500), 80)):
        away = np.hypot(*(places - (x, y)).T)
        assert away.min() > reach_px
        assert away.min() < reach_px + 10
    counts, *_ = np.histogram2d(*places.T, bins=(5, 3), range=((0, 1000), (0, 600)))
    assert counts.min() > 80, "the circle to ignore takes most of a cell"


def test_a_mask_limits_them() -> None:
    cells = np.zeros((30, 50), np.bool_)
    cells[10:20, 5:25] = True
    table = draw(TissueMask(cells, MPP * 20, 0.0, 0.0, 20.0))
    assert table["x"].between(100, 500).all()
    assert table["y"].between(200, 400).all()
    assert len(table) > 3000


def test_an_empty_mask_gives_none() -> None:
    assert draw(TissueMask(np.zeros((30, 50), np.bool_), MPP * 20, 0.0, 0.0, 20.0)).empty


def test_same_seed_same_places() -> None:
    pd.testing.assert_frame_equal(draw(seed=3), draw(seed=3))
    assert not draw(seed=3).equals(draw(seed=4))


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_shares_that_cannot_be(share: float) -> None:
    with pytest.raises(UsageError, match="anywhere"):
        SetConfig(anywhere=share)
