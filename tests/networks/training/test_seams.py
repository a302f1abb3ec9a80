"""Made-up seams leave the middle of a patch alone and bring in another patch, or glass, beyond a line."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from metaphase.networks.training.views import LEAST_PX, WHITE, with_seams

SIDE = 128


def numbered(count: int) -> torch.Tensor:
    """Patches that are their own number everywhere."""
    return torch.arange(count, dtype=torch.uint8)[:, None, None, None].repeat(1, SIDE, SIDE, 3)


@given(share=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_each_patch_is_itself_up_to_its_lines_and_one_other_beyond(share: float, seed: int) -> None:
    patches = numbered(8)
    made = with_seams(patches, share, torch.Generator().manual_seed(seed))
    assert made.shape == patches.shape
    assert made.dtype == patches.dtype
    middle, reach = SIDE // 2, int(LEAST_PX) - 1
    assert torch.equal(
        made[:, middle - reach : middle + reach, middle - reach : middle + reach],
        patches[:, middle - reach : middle + reach, middle - reach : middle + reach],
    )
    for number, patch in enumerate(made[..., 0]):
        own = patch == number
        others = set(patch.unique().tolist()) - {number}
        assert len(others) <= 1, "one other patch, or glass"
        assert others <= {*range(8), WHITE}
        assert torch.equal(own, own.any(dim=1, keepdim=True) & own.any(dim=0, keepdim=True)), "a rectangle"


def test_the_share_is_kept() -> None:
    made = with_seams(numbered(250).repeat(8, 1, 1, 1), 0.5, torch.Generator().manual_seed(0))
    own = made == numbered(250).repeat(8, 1, 1, 1)
    changed = (~own).flatten(1).any(dim=1).float().mean()
    visible = 1 - ((0.6 * SIDE - SIDE / 2) / (0.6 * SIDE - LEAST_PX)) ** 2
    assert abs(float(changed) - 0.5 * visible) < 0.05


def test_what_lies_beyond_does_not_follow_the_order_of_the_batch() -> None:
    """Batches have their negatives first: a neighbour would be of the same class."""
    patches = numbered(250)
    made = with_seams(patches, 1.0, torch.Generator().manual_seed(0))[..., 0]
    own = torch.arange(250, dtype=torch.uint8)[:, None, None]
    beyond = torch.where((made == own) | (made == WHITE), 0, made).flatten(1).amax(dim=1).float()
    shown = beyond > 0
    same_half = ((beyond < 125) == (torch.arange(250) < 125))[shown].float().mean()
    assert int(shown.sum()) > 60
    assert 0.3 < float(same_half) < 0.7


def test_without_a_share_nothing_changes() -> None:
    patches = numbered(4)
    assert torch.equal(with_seams(patches, 0.0, torch.Generator().manual_seed(1)), patches)
