"""A `lite` detector on a GPU: kernels that keep the wide middle of a block on the chip.

Features are float16 (tiles, rows, columns, channels), channels padded with zeros to a multiple of 8; products
are of float16 numbers, sums float32. The first layer reads the uint8 pixels, the last writes logits.
"""

# mypy: disable-error-code="import-not-found, no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
import triton
from torch import Tensor, nn

from metaphase.networks.architectures import LITE_TRIM, InvertedBlock
from metaphase.networks.cards import outputs_along
from metaphase.networks.engine import cell_kernels
from metaphase.networks.engine.layers import (
    PIXEL_MIDDLE,
    PIXEL_STEP,
    FoldedConv,
    centred,
    fold_logits,
    other_kind,
    padded,
    power_of_2,
)

CHANNEL_MULTIPLE, SMALLEST_DOT = 8, 16
STEM_PLACES, HEAD_PLACES, HEAD_CHUNK = 128, 64, 64
"""The head takes its hidden channels in two chunks at least: of a single one Triton 3 makes wrong code."""
TRIM = -LITE_TRIM[0]
SIXTH = 1 / 6
"""Wide features are held in sixths: ReLU6 then keeps them between 0 and 1."""


@dataclass(frozen=True)
class Plan:
    """How a block is computed: as a whole, or its wide features by one kernel and all else by another.

    A program does `rows` x `columns` outputs, `chunk` wide channels at a time. As a whole, wide features are
    computed once for each output that wants them: nothing is stored, and matrix units have time.
    """

    whole: bool
    chunk: int
    rows: int
    columns: int
    warps: int = 4
    stages: int = 1
    widen_positions: int = 128
    widen_chunk: int = 64


def plan_of(block: InvertedBlock) -> Plan:
    """What runs fastest on an H200."""
    channels, inner, _, size, stride = block.shape
    if inner == channels:
        return Plan(whole=False, chunk=32, rows=8, columns=16)
    if stride == 2:  # few outputs want a wide feature
        small = inner <= 128
        return Plan(True, 32, 8, 16, stages=2) if small else Plan(True, 64, 8, 8, stages=2)
    return Plan(False, 64, 8, 8) if size == 5 and inner > 192 else Plan(False, 32, 4, 16)


class LiteDetector:
    """One `lite` network of any width, ready to compute logits of batches of tiles."""

    def __init__(
        self, network: nn.Sequential, device: torch.device, plan: Callable[[InvertedBlock], Plan] = plan_of
    ) -> None:
        first, blocks, hidden, slope, answer = parts(fold_logits(network))
        plans = [plan(block) for block in blocks]
        channels = padded(first.out_channels, max(plans[0].chunk, CHANNEL_MULTIPLE))
        self._stem = Stem(first, channels, device)
        self._blocks = []
        for block, chosen in zip(blocks, plans, strict=True):
            self._blocks.append(Block(block, chosen, channels, device))
            channels = self._blocks[-1].filters
        self._head = Head(hidden, slope, answer, channels, device)

    def logits(self, image: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3) on the device."""
        rows, columns = map(outputs_along, image.shape[1:3])
        values = self._stem(image.contiguous())
        for block in self._blocks:
            values = block(values)
        return self._head(values, rows, columns)


class Stem:
    """The first convolution, 3 x 3 with a stride of 2, and what is trimmed of it."""

    def __init__(self, conv: nn.Conv2d, filters: int, device: torch.device) -> None:
        self.filters, self.width = filters, power_of_2(filters)
        folded = centred(FoldedConv(conv.weight, _bias(conv)))
        weight = folded.weight.permute(2, 3, 1, 0).reshape(27, -1)
        self.weight = _matrix(weight, 32, self.width, device)
        self.bias = _vector(folded.bias * SIXTH, self.width, device)

    def __call__(self, image: Tensor) -> Tensor:
        """Features of uint8 pixels (tiles, rows, columns, 3)."""
        tiles, in_h, in_w, _ = image.shape
        out_h, out_w = ((side - 3) // 2 + 1 + LITE_TRIM[0] + LITE_TRIM[1] for side in (in_h, in_w))
        out = _features(image, tiles, out_h, out_w, self.filters)
        cell_kernels.stem[(triton.cdiv(out_h * out_w, STEM_PLACES), tiles)](
            image,
            self.weight,
            self.bias,
            out,
            in_h,
            in_w,
            out_h,
            out_w,
            2 * TRIM,
            PIXEL_STEP,
            PIXEL_MIDDLE,
            SIXTH,
            filters=self.filters,
            width=self.width,
            positions=STEM_PLACES,
            num_warps=4,
        )
        return out


class Block:
    """Weights of an inverted block, as the kernels take them."""

    def __init__(self, block: InvertedBlock, plan: Plan, channels: int, device: torch.device) -> None:
        _, inner, filters, self.size, self.stride = block.shape
        self.plan, self.channels, self.lost = plan, channels, block.lost_px
        self.depth = max(power_of_2(channels), SMALLEST_DOT)
        self.filters = padded(filters, CHANNEL_MULTIPLE)
        self.width = max(power_of_2(self.filters), SMALLEST_DOT)
        self.inner = padded(inner, plan.chunk)
        narrow, each = block._project_conv, block._depthwise_conv
        project = _matrix(narrow.weight[:, :, 0, 0].T / SIXTH, self.inner, self.width, device)
        project_bias = _vector(_bias(narrow), self.width, device)
        taps = _matrix(each.weight[:, 0].flatten(1).T, self.size**2, self.inner, device, torch.float32)
        each_bias = _vector(_bias(each) * SIXTH, self.inner, device)
        self._after = taps, each_bias, project, project_bias
        self._settings = {
            "size": self.size,
            "stride": self.stride,
            "lost": self.lost,
            "inner": self.inner,
            "filters": self.filters,
            "width": self.width,
            "chunk": plan.chunk,
            "rows": plan.rows,
            "columns": plan.columns,
            "num_warps": plan.warps,
            "num_stages": plan.stages,
        }
        self.widen: Tensor | None = None
        if isinstance(block._expand_conv, nn.Conv2d):
            columns = self.inner if plan.whole else padded(self.inner, plan.widen_chunk)
            self.widen = _matrix(block._expand_conv.weight[:, :, 0, 0].T, self.depth, columns, device)
            self.widen_bias = _vector(_bias(block._expand_conv) * SIXTH, columns, device)

    def __call__(self, values: Tensor) -> Tensor:
        """Features after the block."""
        if self.widen is None:
            return self._narrowed(values, values)
        return self._whole(values) if self.plan.whole else self._narrowed(self._widened(values), values)

    def _whole(self, values: Tensor) -> Tensor:
        assert self.widen is not None
        out, sizes, grid = self._out(values)
        cell_kernels.whole_block[grid](
            values,
            self.widen,
            self.widen_bias,
            *self._after,
            out,
            *sizes,
            SIXTH,
            channels=self.channels,
            depth=self.depth,
            **self._settings,
        )
        return out

    def _widened(self, values: Tensor) -> Tensor:
        assert self.widen is not None
        tiles, rows, columns, _ = values.shape
        out, plan = _features(values, tiles, rows, columns, self.inner), self.plan
        cell_kernels.widened[(triton.cdiv(rows * columns, plan.widen_positions), tiles)](
            values,
            self.widen,
            self.widen_bias,
            out,
            rows * columns,
            SIXTH,
            channels=self.channels,
            depth=self.depth,
            inner=self.inner,
            padded=self.widen.shape[1],
            chunk=plan.widen_chunk,
            positions=plan.widen_positions,
            num_warps=4,
        )
        return out

    def _narrowed(self, wide: Tensor, values: Tensor) -> Tensor:
        """All that comes after widening; the shortcut's values are those before it."""
        out, sizes, grid = self._out(wide)
        cell_kernels.filtered[grid](wide, *self._after, values, out, *sizes, **self._settings)
        return out

    def _out(self, values: Tensor) -> tuple[Tensor, tuple[int, int, int, int], tuple[int, int]]:
        """Room for the result, sizes before and after, and the programs that it takes."""
        tiles, in_h, in_w, _ = values.shape
        out_h, out_w = ((side - self.size) // self.stride + 1 for side in (in_h, in_w))
        squares = triton.cdiv(out_h, self.plan.rows) * triton.cdiv(out_w, self.plan.columns)
        out = _features(values, tiles, out_h, out_w, self.filters)
        return out, (in_h, in_w, out_h, out_w), (squares, tiles)


class Head:
    """A 1 x 1 convolution with leaky ReLU, and the four answers of each cell."""

    def __init__(
        self, hidden: nn.Conv2d, slope: float, answer: nn.Conv2d, channels: int, device: torch.device
    ) -> None:
        self.slope, self.channels = slope, channels
        self.depth = max(power_of_2(channels), SMALLEST_DOT)
        self.chunk = HEAD_CHUNK if hidden.out_channels > HEAD_CHUNK else HEAD_CHUNK // 2
        self.inner = padded(max(hidden.out_channels, HEAD_CHUNK), self.chunk)
        self.weight = _matrix(hidden.weight[:, :, 0, 0].T, self.depth, self.inner, device)
        self.bias = _vector(_bias(hidden), self.inner, device)
        self.answer = _matrix(answer.weight[:, :, 0, 0].T, self.inner, SMALLEST_DOT, device)
        self.answer_bias = _vector(_bias(answer), SMALLEST_DOT, device)

    def __call__(self, values: Tensor, rows: int, columns: int) -> Tensor:
        """Logits (tiles, rows, columns) of the last features."""
        tiles, in_h, in_w, _ = values.shape
        out = torch.empty(tiles, rows, columns, dtype=torch.float32, device=values.device)
        cell_kernels.answers[(triton.cdiv(in_h * in_w, HEAD_PLACES), tiles)](
            values,
            self.weight,
            self.bias,
            self.answer,
            self.answer_bias,
            out,
            in_h,
            in_w,
            rows,
            columns,
            self.slope,
            channels=self.channels,
            depth=self.depth,
            inner=self.inner,
            chunk=self.chunk,
            positions=HEAD_PLACES,
            num_warps=4,
        )
        return out


def parts(folded: nn.Sequential) -> tuple[nn.Conv2d, list[InvertedBlock], nn.Conv2d, float, nn.Conv2d]:
    """Stem, blocks, hidden layer with its slope, and answers; `OtherKindError` for other networks."""
    first, _, trim, *blocks, hidden, leaky, answer = folded
    inverted = [block for block in blocks if isinstance(block, InvertedBlock)]
    fits = len(inverted) == len(blocks) > 0 and isinstance(trim, nn.ZeroPad2d) and trim.padding == LITE_TRIM
    if not fits or not isinstance(leaky, nn.LeakyReLU):
        raise other_kind()
    assert isinstance(first, nn.Conv2d)
    assert isinstance(hidden, nn.Conv2d)
    assert isinstance(answer, nn.Conv2d)
    return first, inverted, hidden, float(leaky.negative_slope), answer


def _features(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float16, device=like.device)


def _bias(conv: nn.Module) -> Tensor:
    assert isinstance(conv, nn.Conv2d)
    return torch.zeros(conv.out_channels, dtype=torch.float64) if conv.bias is None else conv.bias


def _matrix(
    values: Tensor, rows: int, columns: int, device: torch.device, dtype: torch.dtype = torch.float16
) -> Tensor:
    """(rows, columns), zeros after what there is."""
    padding = (0, columns - values.shape[1], 0, rows - values.shape[0])
    return functional.pad(values, padding).to(device, dtype).contiguous()


def _vector(values: Tensor, count: int, device: torch.device) -> Tensor:
    return functional.pad(values, (0, count - len(values))).to(device, torch.float32)
