"""The kernels of `lite` beside plain PyTorch: on a GPU, else by the interpreter that Triton has."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
from torch import Tensor, nn

from metaphase.networks.architectures import InvertedBlock
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.layers import OtherKindError, fold_logits, padded
from metaphase.networks.engine.settings import EngineConfig
from tests.networks.engine.networks_made import lite_network, residual_network, texture
from tests.networks.engine.test_residual import plain_logits

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"

from metaphase.networks.engine import cell_gpu  # noqa: E402
from metaphase.networks.engine.cell_gpu import Block, Head, LiteDetector, Plan, Stem  # noqa: E402

DEVICE = torch.device("cuda" if CUDA else "cpu")
PLANS = (Plan(whole=False, chunk=16, rows=4, columns=4), Plan(whole=True, chunk=32, rows=8, columns=4))


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel forgets to write is no number."""

    def features(like: Tensor, *shape: int) -> Tensor:
        return torch.full(shape, torch.nan, dtype=torch.float16, device=like.device)

    monkeypatch.setattr(cell_gpu, "_features", features)


def parts() -> tuple[nn.Conv2d, list[InvertedBlock], nn.Conv2d, float, nn.Conv2d]:
    return cell_gpu.parts(fold_logits(lite_network()))


def rows_of(values: Tensor) -> Tensor:
    """Channels first, in double precision."""
    return values.permute(0, 3, 1, 2).double().cpu()


def features(channels: int, padded: int, rows: int, columns: int) -> Tensor:
    torch.manual_seed(rows)
    values = torch.zeros(2, rows, columns, padded, dtype=torch.float16)
    values[..., :channels] = torch.rand(2, rows, columns, channels)
    return values.to(DEVICE)


@torch.inference_mode()
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("index", [0, 1, 2, 3, 5])
def test_a_block_equals_pytorchs(index: int, plan: Plan) -> None:
    block = parts()[1][index]
    channels = padded(block.shape[0], plan.chunk if index == 0 else 8)
    values = features(block.shape[0], channels, 7, 9)
    found = rows_of(Block(block, plan, channels, DEVICE)(values))
    sixths = 1 if isinstance(block._expand_conv, nn.Conv2d) else 6
    expected = block(sixths * rows_of(values)[:, : block.shape[0]])
    torch.testing.assert_close(
        found[:, : expected.shape[1]], expected, atol=0.01 * float(expected.std()), rtol=0
    )
    assert not found[:, expected.shape[1] :].any()


@torch.inference_mode()
def test_the_stem_reads_pixels_and_trims() -> None:
    first = parts()[0]
    image = torch.from_numpy(texture(17, 20))[None].to(DEVICE)
    found = rows_of(Stem(first, 16, DEVICE)(image))
    expected = nn.functional.relu6(first(rows_of(image)))[:, :, 2:-1, 2:-1] / 6
    torch.testing.assert_close(found[:, : expected.shape[1]], expected, atol=3e-3, rtol=0)
    assert not found[:, expected.shape[1] :].any()


@torch.inference_mode()
def test_a_cell_answers_four_times() -> None:
    *_, hidden, slope, answer = parts()
    channels = padded(hidden.in_channels, 8)
    values = features(hidden.in_channels, channels, 5, 4)
    found = Head(hidden, slope, answer, channels, DEVICE)(values, 9, 8).double().cpu()
    inner = nn.functional.leaky_relu(hidden(rows_of(values)[:, : hidden.in_channels]), slope)
    expected = nn.functional.pixel_shuffle(answer(inner), 2)[:, 0, :9]
    torch.testing.assert_close(found, expected, atol=0.01 * float(expected.std()), rtol=0)


def test_other_networks_are_left_to_pytorch() -> None:
    with pytest.raises(OtherKindError):
        LiteDetector(residual_network(), DEVICE)


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
@pytest.mark.parametrize("gamma", [0.3, 1.0, 1.3])
@pytest.mark.parametrize("shape", [(97, 97), (250, 333)])
def test_gpu_equals_the_plain_network(gamma: float, shape: tuple[int, int]) -> None:
    network, image = lite_network(gamma=gamma), texture(*shape)
    engine = Engine([network], EngineConfig(device="cuda"))
    assert isinstance(engine._detectors[0], LiteDetector)
    found = engine.logits(torch.from_numpy(image)[None])[0].cpu()
    expected = torch.as_tensor(plain_logits(network.cpu(), image))[: found.shape[0], : found.shape[1]]
    torch.testing.assert_close(found, expected.float(), atol=0.4, rtol=0)
