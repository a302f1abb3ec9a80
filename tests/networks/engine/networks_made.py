"""Networks and images for the tests of the engine."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

from metaphase.base.arrays import RGB
from metaphase.networks.architectures import build_network, probability
from metaphase.networks.cards import NetworkSpec, Normalisation
from metaphase.networks.engine.streaming import Detections

GAMMA = 0.07


def random_network(
    seed: int = 0, gamma: float = GAMMA, normalisation: Normalisation = "none"
) -> nn.Sequential:
    """He-initialised, with biases, its logits spread over several units."""
    return _with_biases(NetworkSpec(gamma=gamma, normalisation=normalisation), seed)


def residual_network(seed: int = 0, gamma: float = GAMMA) -> nn.Sequential:
    """The same of residual blocks."""
    network = _with_biases(NetworkSpec("residual", gamma, "batch"), seed)
    return _spread(network, network[-1])


def lite_network(seed: int = 0, gamma: float = 0.3) -> nn.Sequential:
    """The same of inverted blocks, with cells of several outputs."""
    network = _with_biases(NetworkSpec("lite", gamma, "batch"), seed)
    return _spread(network, network[-1].answer)


def _spread(network: nn.Sequential, head: nn.Conv2d) -> nn.Sequential:
    """Residual blocks let the signal grow: logits are brought to a spread of 3."""
    with torch.no_grad():
        logits = network(torch.from_numpy(texture(250, 250)).permute(2, 0, 1)[None].float() / 255)
        difference = logits[:, 1] - logits[:, 0]
        head.weight *= 3 / difference.std()
        head.bias *= 3 / difference.std()
        head.bias[: len(head.bias) // 2] += 3 * difference.mean() / difference.std()
    return network


def _with_biases(spec: NetworkSpec, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    network = build_network(spec)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.normal_(layer.bias, std=0.1)
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean, -0.5, 0.5)
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 2)
            nn.init.normal_(layer.bias, std=0.3)
    with torch.no_grad():
        for parameter in network[-1].parameters():
            if parameter.ndim > 1:
                parameter *= 4
    return network.eval()


def darkness_network(gain: float = 60.0, threshold: float = 0.35) -> nn.Sequential:
    """Logit = gain x (darkness around, by a Gaussian of 12 px, - threshold): a blob gives one hill."""
    network = build_network(NetworkSpec(gamma=1 / 32))
    convolutions = [layer for layer in network if isinstance(layer, nn.Conv2d)]
    with torch.no_grad():
        for layer in convolutions:
            layer.weight.zero_()
            layer.bias.zero_()
        first, *middle, wide, head = convolutions
        first.weight[0, :, 1, 1] = -0.25 / 3  # pixels arrive as (value - 0.5) / 0.25
        first.bias[0] = 0.5
        for layer in middle:
            layer.weight[0, 0, 1, 1] = 1
        bell = torch.exp(-0.5 * ((torch.arange(14) - 6.5) / 3) ** 2)
        wide.weight[0, 0] = torch.outer(bell, bell) / bell.sum() ** 2
        head.weight[1, 0], head.bias[1] = gain, -gain * threshold
    return network.eval()


def plain_probabilities(network: nn.Sequential, image: RGB) -> Tensor:
    """What the network gives when called as it is."""
    with torch.inference_mode():
        pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float() / 255
        return probability(network(pixels))[0]


def texture(height: int, width: int, seed: int = 0) -> RGB:
    """Smooth colour at several scales."""
    generator = np.random.default_rng(seed)
    image = np.zeros((height, width, 3))
    for step in (2, 8, 32):
        coarse = generator.normal(size=(height // step + 2, width // step + 2, 3))
        image += coarse.repeat(step, 0).repeat(step, 1)[:height, :width]
    return np.clip(image * 30 + 170, 0, 255).astype(np.uint8)


def assert_same(found: Detections, wanted: Detections, *, px: float = 0.02, by: float = 1e-4) -> None:
    """The same detections in any order: equal values may come in another one on another processor."""
    assert len(found.x) == len(wanted.x)
    away, which = cKDTree(np.column_stack([wanted.x, wanted.y])).query(np.column_stack([found.x, found.y]))
    assert len(set(which.tolist())) == len(which)
    assert away.max(initial=0) <= px
    np.testing.assert_allclose(found.probability, wanted.probability[which], atol=by)
