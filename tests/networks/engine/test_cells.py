"""A detector of cells: several outputs each, no wide convolution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.errors import ModelError, UsageError
from metaphase.networks.architectures import build_network, patch_probability
from metaphase.networks.cards import OUTPUT_STRIDE_PX, PATCH_PX, RECEPTIVE_PX, NetworkSpec
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.layers import PlainDetector
from metaphase.networks.engine.settings import EngineConfig, PeakConfig
from metaphase.networks.engine.streaming import find_detections
from metaphase.slides.arrays import ArraySlide
from tests.examples import FEW
from tests.networks.engine.networks_made import (
    assert_same,
    lite_network,
    residual_network,
    texture,
)
from tests.networks.engine.test_residual import plain_logits

CPU = EngineConfig(device="cpu", workers=2, precision="float32")
TOLERANCE = 1e-4


def outputs(side: int) -> int:
    return (side - RECEPTIVE_PX) // OUTPUT_STRIDE_PX + 1


@FEW
@given(height=st.integers(97, 330), width=st.integers(97, 330))
def test_equals_the_plain_network_at_any_size(height: int, width: int) -> None:
    image = texture(height, width, seed=height * 1000 + width)
    expected = plain_logits(lite_network(), image)[: outputs(height), : outputs(width)]
    found = Engine([lite_network()], CPU).logits(torch.from_numpy(image)[None])[0]
    assert found.shape == (outputs(height), outputs(width))
    np.testing.assert_allclose(torch.sigmoid(found), 1 / (1 + np.exp(-np.asarray(expected))), atol=TOLERANCE)


def test_the_first_output_of_a_patch_is_the_patchs() -> None:
    network, image = lite_network(), texture(260, 260)
    whole = Engine([network], CPU).logits(torch.from_numpy(image)[None])[0]
    for row, column in ((0, 0), (4, 6), (16, 10)):  # the first of each cell
        y, x = OUTPUT_STRIDE_PX * row, OUTPUT_STRIDE_PX * column
        patch = torch.from_numpy(image[y : y + PATCH_PX, x : x + PATCH_PX]).permute(2, 0, 1)[None] / 255
        with torch.inference_mode():
            said = patch_probability(network(patch))
        assert float(said) == pytest.approx(float(torch.sigmoid(whole[row, column])), abs=1e-4)


def test_tile_size_changes_nothing() -> None:
    slide = ArraySlide(texture(700, 620), mpp=0.25)
    engine = Engine([lite_network()], CPU)
    config = PeakConfig(floor=0.3, suppress_um=5, smooth_um=1.0)
    whole = find_detections(engine, slide, config, tile_px=1024)
    assert len(whole.x) > 5
    for tile_px in (64, 136, 256):
        tiled = find_detections(engine, slide, config, tile_px=tile_px)
        assert_same(tiled, whole)
    with pytest.raises(UsageError, match="multiple of 8 px"):
        find_detections(engine, slide, config, tile_px=132)


def test_answers_together_with_a_detector_of_another_kind() -> None:
    image = torch.from_numpy(texture(200, 220))[None]
    alone = [torch.sigmoid(Engine([make()], CPU).logits(image)) for make in (lite_network, residual_network)]
    both = torch.sigmoid(Engine([lite_network(), residual_network()], CPU).logits(image))
    np.testing.assert_allclose(both, (alone[0] + alone[1]) / 2, atol=1e-5)


def test_an_output_sees_what_lies_around_it() -> None:
    network = lite_network()
    pixels = torch.rand(1, 3, PATCH_PX, PATCH_PX, requires_grad=True)
    (network(pixels)[0, 1, 0, 0]).backward()
    seen = pixels.grad.abs().sum((0, 1)).nonzero()  # type: ignore[union-attr]
    middle = (seen.amin(0) + seen.amax(0)) / 2
    assert float((middle - (PATCH_PX / 2 + OUTPUT_STRIDE_PX / 2)).abs().max()) <= OUTPUT_STRIDE_PX
    assert int(seen.amax()) < RECEPTIVE_PX


def test_weights_that_are_no_numbers_and_other_networks_are_refused() -> None:
    broken = lite_network()
    with torch.no_grad():
        broken[1].weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(ModelError, match="NaN"):
        Engine([broken], CPU)
    with pytest.raises(ModelError, match="other than convolutions"):
        PlainDetector(build_network(NetworkSpec("classifier")), torch.device("cpu"), torch.float32)
    with pytest.raises(UsageError, match="lite"):
        NetworkSpec("lite", 1.0, "none")
