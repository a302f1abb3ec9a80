"""The networks have the paper's numbers, and a large image gives what its patches give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.errors import UsageError
from metaphase.networks.architectures import build_network, fold_normalisation, parameter_count, probability
from metaphase.networks.cards import (
    OUTPUT_STRIDE_PX,
    PATCH_PX,
    RECEPTIVE_PX,
    Family,
    NetworkSpec,
    Normalisation,
)
from tests.examples import FEW


@pytest.mark.parametrize(("gamma", "millions"), [(1.0, 26.9), (0.8, 17.1), (0.6, 9.6)])
def test_parameter_counts_of_the_paper(gamma: float, millions: float) -> None:
    with torch.device("meta"):
        network = build_network(NetworkSpec(gamma=gamma))
    assert round(parameter_count(network) / 1e6, 1) == millions


def test_filters_and_sizes_of_the_table() -> None:
    network = build_network(NetworkSpec())
    rows = [
        (layer.out_channels, layer.kernel_size[0], layer.stride[0])
        for layer in network
        if isinstance(layer, torch.nn.Conv2d)
    ]
    assert rows == [
        (32, 3, 1), (32, 3, 2), (64, 3, 1), (64, 3, 2), (128, 3, 1), (128, 3, 1), (256, 3, 1), (256, 3, 1),
        (512, 14, 1), (2, 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "spec",
    [NetworkSpec(gamma=0.1), NetworkSpec("residual", 0.1, "batch"), NetworkSpec("classifier")],
    ids=["detector", "residual", "classifier"],
)
def test_a_patch_gives_one_answer(spec: NetworkSpec) -> None:
    logits = build_network(spec)(torch.rand(2, 3, PATCH_PX, PATCH_PX))
    assert logits.shape == (2, 2, 1, 1)
    assert torch.allclose(probability(logits) + probability(logits.flip(1)), torch.ones(2, 1, 1))


def trained_looking(spec: NetworkSpec, seed: int) -> torch.nn.Sequential:
    """A network whose normalisation has seen some images."""
    torch.manual_seed(seed)
    network = build_network(spec)
    network(torch.rand(4, 3, PATCH_PX, PATCH_PX))
    return network.eval()


@given(
    height=st.integers(RECEPTIVE_PX, RECEPTIVE_PX + 14),
    width=st.integers(RECEPTIVE_PX, RECEPTIVE_PX + 14),
    kind=st.sampled_from([("detector", "none"), ("detector", "batch"), ("residual", "batch")]),
    seed=st.integers(0, 9),
)
@FEW
@torch.inference_mode()
def test_dense_output_equals_the_patches(
    height: int, width: int, kind: tuple[Family, Normalisation], seed: int
) -> None:
    network = trained_looking(NetworkSpec(kind[0], 0.06, kind[1]), seed)
    image = torch.rand(1, 3, height, width)
    dense = network(image)
    assert dense.shape[2:] == ((height - RECEPTIVE_PX) // 4 + 1, (width - RECEPTIVE_PX) // 4 + 1)
    for row in range(dense.shape[2]):
        for column in range(dense.shape[3]):
            y, x = OUTPUT_STRIDE_PX * row, OUTPUT_STRIDE_PX * column
            patch = image[:, :, y : y + RECEPTIVE_PX, x : x + RECEPTIVE_PX]
            assert torch.allclose(network(patch)[..., 0, 0], dense[..., row, column], atol=1e-5)


@pytest.mark.parametrize(
    "spec",
    [
        NetworkSpec(gamma=0.2, normalisation="batch"),
        NetworkSpec(gamma=0.2),
        NetworkSpec("residual", 0.2, "batch"),
    ],
)
@torch.inference_mode()
def test_folding_changes_nothing(spec: NetworkSpec) -> None:
    network = trained_looking(spec, 1)
    folded = fold_normalisation(network)
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in folded.modules())
    images = torch.rand(2, 3, 120, 116)
    assert torch.allclose(folded(images), network(images), atol=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [{"gamma": 0}, {"gamma": 99}, {"family": "vgg"}, {"normalisation": "group"}, {"family": "residual"}],
)
def test_unknown_networks_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        NetworkSpec(**wrong)  # type: ignore[arg-type]
