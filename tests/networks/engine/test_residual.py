from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from metaphase.base.arrays import RGB
from metaphase.base.errors import ModelError
from metaphase.networks.cards import OUTPUT_STRIDE_PX, RECEPTIVE_PX
from metaphase.networks.engine import arithmetic
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.layers import PlainDetector, PortableDetector, fold_detector
from metaphase.networks.engine.settings import EngineConfig, Precision
from tests.examples import FEW
from tests.networks.engine.networks_made import plain_probabilities, random_network, residual_network, texture

CPU = EngineConfig(device="cpu", workers=2)
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine([residual_network()], CPU)


def plain_logits(network: nn.Sequential, image: RGB) -> Tensor:
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].double() / 255
    with torch.inference_mode():
        logits = network.double()(pixels)[0]
    network.float()
    return logits[1] - logits[0]


@FEW
@given(height=st.integers(97, 330), width=st.integers(97, 330))
def test_equals_the_plain_network_at_any_size(engine: Engine, height: int, width: int) -> None:
    image = texture(height, width, seed=height * 1000 + width)
    expected = plain_logits(residual_network(), image)
    found = engine.logits(torch.from_numpy(image)[None])[0]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_probabilities_of_the_comparison_are_spread() -> None:
    expected = plain_probabilities(residual_network(), texture(330, 330))
    assert expected.min() < 0.3
    assert expected.max() > 0.7


@pytest.mark.parametrize("gamma", [1 / 32, 0.1, 0.2])
def test_widths(gamma: float) -> None:
    network, image = residual_network(1, gamma), texture(210, 260)
    expected = plain_logits(network, image)
    found = Engine([network], CPU).logits(torch.from_numpy(image)[None])[0]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.parametrize("make", [random_network, residual_network])
def test_forms_for_gpus_equal_the_plain_network(make: type[nn.Sequential]) -> None:
    network, image = make(2), texture(321, 290)
    device = torch.device("cpu")
    forms: list[arithmetic.PreparedNetwork] = [PlainDetector(network, device, torch.float32)]
    if make is random_network:
        forms.append(PortableDetector(fold_detector(network), device, 50))
    expected = plain_logits(network, image)
    with torch.inference_mode():
        for detector in forms:
            found = detector.logits(torch.from_numpy(np.stack([image, image[::-1]])))
            assert found.shape[0] == 2
            np.testing.assert_allclose(found[0], expected, atol=TOLERANCE)


def test_half_precision_is_near() -> None:
    network, image = residual_network(2), texture(150, 170)
    detector = PlainDetector(network, torch.device("cpu"), torch.float16)
    with torch.inference_mode():
        found = detector.logits(torch.from_numpy(image)[None])[0]
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, plain_logits(network, image), atol=arithmetic.TOLERANCE["fast"])


def test_a_mixed_ensemble_is_the_mean_of_probabilities() -> None:
    networks, image = [random_network(), residual_network(), residual_network(1)], texture(140, 130)
    found = Engine(networks, CPU).probability_map(image)
    expected = torch.stack([plain_probabilities(network, image) for network in networks]).mean(0)
    np.testing.assert_allclose(found, expected.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize("outputs", [7, 20])
def test_tiles_join_to_the_whole(engine: Engine, outputs: int) -> None:
    image = torch.from_numpy(texture(300, 300))[None]
    whole = engine.logits(image)[0]
    for row in range(0, len(whole), outputs):
        side = RECEPTIVE_PX + OUTPUT_STRIDE_PX * (outputs - 1)
        first = OUTPUT_STRIDE_PX * row
        part = engine.logits(image[:, first : first + side, 8 : 8 + side])[0]
        np.testing.assert_allclose(part, whole[row : row + outputs, 2 : 2 + outputs], atol=TOLERANCE)


@pytest.mark.parametrize("name", ["first.weight", "second_norm.running_var", "shortcut.weight"])
def test_spoilt_weights_are_refused(name: str) -> None:
    network = residual_network()
    blocks = [layer for layer in network if hasattr(layer, "shortcut")]
    tensor = blocks[2].state_dict().get(name)
    assert tensor is not None
    tensor.flatten()[0] = math.nan
    with pytest.raises(ModelError, match="NaN"):
        Engine([network], CPU)


class _Off:
    """Answers as another detector, but for a difference; or fails."""

    def __init__(self, exact: arithmetic.PreparedNetwork, by: float) -> None:
        self.exact, self.by = exact, by

    def logits(self, image: torch.Tensor) -> torch.Tensor:
        if math.isnan(self.by):
            raise RuntimeError("no such arithmetic")
        return self.exact.logits(image) + self.by


@pytest.mark.parametrize(
    ("precision", "differences", "words"),
    [
        ("auto", {"float16": 0.01}, "float16"),
        ("auto", {"float16": 0.5, "TensorFloat-32": 0.01}, "TensorFloat-32"),
        ("auto", {"float16": 0.5, "TensorFloat-32": 0.6}, "float32"),
        ("auto", {"float16": math.nan, "TensorFloat-32": 0.0}, "TensorFloat-32"),
        ("fast", {"float16": 0.6}, "float16"),
        ("fast", {"float16": 1.1}, "float32"),
        ("float32", {"float16": 0.0}, "float32"),
        ("auto", {}, "float32"),
    ],
)
def test_rounded_arithmetic_is_used_where_it_agrees(
    precision: Precision, differences: dict[str, float], words: str
) -> None:
    exact = PlainDetector(residual_network(), torch.device("cpu"), torch.float32)
    ways = [(name, partial(_Off, exact, by)) for name, by in differences.items()]
    with torch.inference_mode():
        assert arithmetic.fastest(ways, exact, torch.device("cpu"), precision)[1] == words


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(("precision", "tolerance"), [("auto", 0.05), ("fast", 0.05), ("float32", 1e-4)])
def test_gpu_equals_the_plain_network(precision: str, tolerance: float) -> None:
    network, image = residual_network(gamma=0.3), texture(500, 430)
    engine = Engine([network], EngineConfig(device="cuda", precision=precision))  # type: ignore[arg-type]
    expected = {"auto": "float16", "fast": "float16", "float32": "float32"}
    assert engine.arithmetic == expected[precision]
    found = engine.probability_map(image)
    np.testing.assert_allclose(found, plain_probabilities(network, image).numpy(), atol=tolerance)
