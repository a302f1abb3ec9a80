from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from metaphase.base.errors import ModelError, UsageError
from metaphase.networks.architectures import build_network
from metaphase.networks.cards import NetworkSpec
from metaphase.networks.checkpoints import choose_device
from metaphase.networks.engine.engine import Engine, combine
from metaphase.networks.engine.layers import PortableDetector, fold_detector
from metaphase.networks.engine.settings import DeviceError, EngineConfig
from tests.examples import FEW
from tests.networks.engine.networks_made import plain_probabilities, random_network, texture

TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine([random_network()], EngineConfig(device="cpu", workers=2))


@FEW
@given(height=st.integers(97, 330), width=st.integers(97, 330))
def test_equals_the_plain_network_at_any_size(engine: Engine, height: int, width: int) -> None:
    image = texture(height, width, seed=height * 1000 + width)
    expected = plain_probabilities(random_network(), image).numpy()
    found = engine.probability_map(image)
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_probabilities_of_the_comparison_are_spread() -> None:
    expected = plain_probabilities(random_network(), texture(330, 330))
    assert expected.min() < 0.3
    assert expected.max() > 0.7


@pytest.mark.parametrize("gamma", [1 / 32, 0.12, 0.25])
def test_normalisation_is_folded(gamma: float) -> None:
    network, image = random_network(3, gamma, "batch"), texture(150, 170)
    found = Engine([network], EngineConfig(device="cpu")).probability_map(image)
    np.testing.assert_allclose(found, plain_probabilities(network, image).numpy(), atol=1e-4)


@pytest.mark.parametrize("outputs", [16, 32, 50])
def test_every_block_size_gives_the_same(outputs: int) -> None:
    network, image = random_network(2), texture(321, 290)
    with torch.inference_mode():
        detector = PortableDetector(fold_detector(network), torch.device("cpu"), outputs)
        logits = detector.logits(torch.from_numpy(image)[None])
    np.testing.assert_allclose(torch.sigmoid(logits[0]), plain_probabilities(network, image), atol=TOLERANCE)


def test_ensemble_is_the_mean_of_probabilities() -> None:
    networks, image = [random_network(seed) for seed in range(3)], texture(140, 130)
    found = Engine(networks, EngineConfig(device="cpu")).probability_map(image)
    expected = torch.stack([plain_probabilities(network, image) for network in networks]).mean(0)
    np.testing.assert_allclose(found, expected.numpy(), atol=TOLERANCE)


@given(st.lists(st.floats(-80, 80), min_size=2, max_size=5))
def test_combined_logit_is_that_of_the_mean_and_does_not_saturate(values: list[float]) -> None:
    logits = torch.tensor(values, dtype=torch.float64)
    found = float(combine(list(logits[:, None])))
    mean = float(torch.sigmoid(logits).mean())
    rest = float(torch.sigmoid(-logits).mean())
    assert math.isclose(found, math.log(mean) - math.log(rest), rel_tol=1e-9, abs_tol=1e-9)


def test_the_network_is_left_as_it_was() -> None:
    network, image = random_network(), texture(100, 100)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    Engine([network], EngineConfig(device="cpu")).probability_map(image)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_a_classifier_is_refused() -> None:
    with pytest.raises(ModelError, match="detector"):
        Engine([build_network(NetworkSpec(family="classifier"))], EngineConfig(device="cpu"))


def test_spoilt_weights_are_refused() -> None:
    network = random_network()
    with torch.no_grad():
        network[1].weight[0, 0, 0, 0] = math.nan
    with pytest.raises(ModelError, match="NaN"):
        Engine([network], EngineConfig(device="cpu"))


@pytest.mark.parametrize("shape", [(96, 200, 3), (200, 96, 3), (200, 200, 4)])
def test_tiles_without_outputs_are_refused(engine: Engine, shape: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="97"):
        engine.probability_map(np.zeros(shape, np.uint8))


def test_no_network_and_unknown_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="network"):
        Engine([])
    with pytest.raises(UsageError, match="precision"):
        EngineConfig(precision="double")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="workers"):
        EngineConfig(workers=0)
    missing = () if torch.backends.mps.is_available() else ("mps",)
    for name in ("cuda:99", "abacus", "xpu", *missing):
        with pytest.raises(UsageError, match="device"):
            choose_device(name)


def test_a_device_without_an_exact_form_is_compared_with_the_cpu(engine: Engine) -> None:
    engine._compare_with_cpu([random_network()])
    with pytest.raises(DeviceError, match="differs from the CPU by"):
        engine._compare_with_cpu([random_network(3)])


class _Crowded:
    """Stands in for a GPU with memory for some tiles only."""

    def __init__(self, most: int) -> None:
        self.most, self.seen = most, [0]

    def logits(self, image: Tensor) -> Tensor:
        if len(image) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        self.seen.append(len(image))
        return image[:, ::97, ::97, 0].float()


def test_a_batch_too_large_is_halved(engine: Engine) -> None:
    crowded = Engine([random_network()], EngineConfig(device="cpu"))
    crowded._detectors = [_Crowded(2)]
    tiles = torch.arange(7, dtype=torch.uint8)[:, None, None, None].expand(7, 97, 97, 3)
    assert crowded.logits(tiles).flatten().tolist() == list(range(7))
    crowded._detectors = [_Crowded(0)]
    with pytest.raises(DeviceError, match="memory"):
        crowded.logits(tiles)


@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="needs CUDA and Triton",
)
@pytest.mark.parametrize(("precision", "tolerance"), [("auto", 1e-3), ("fast", 0.25), ("float32", 1e-4)])
def test_gpu_equals_the_plain_network(precision: str, tolerance: float) -> None:
    network, image = random_network(gamma=0.3), texture(500, 430)
    engine = Engine([network], EngineConfig(device="cuda", precision=precision))  # type: ignore[arg-type]
    assert engine.arithmetic == {"auto": "float16 pairs", "fast": "float16", "float32": "float32"}[precision]
    found = engine.probability_map(image)
    np.testing.assert_allclose(found, plain_probabilities(network, image).numpy(), atol=tolerance)
