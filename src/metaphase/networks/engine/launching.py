"""The Triton kernels as functions on tensors: sizes of their outputs, grids and block shapes.

Leading axis of most tensors: planes, one for half precision, two for pairs (value, remainder).
"""

# mypy: disable-error-code="import-not-found, no-untyped-call"

from __future__ import annotations

import torch
import triton
from torch import Tensor

from metaphase.networks.engine import kernels


def first_layers(
    image: Tensor, weight1: Tensor, weight2: Tensor, filters: int, scale: float, centre: float, slope: float
) -> Tensor:
    """Two convolutions (stride 1, then 2) of uint8 pixels (tiles, rows, columns, 3) in one pass.

    Weights are (planes, 32, width) with the bias in row 27, and (planes, 9, width, width).
    """
    tiles, in_h, in_w, _ = image.shape
    out_h, out_w = (in_h - 5) // 2 + 1, (in_w - 5) // 2 + 1
    planes, _, width = weight1.shape
    out = torch.empty(planes, tiles, out_h, out_w, filters, dtype=torch.float16, device=image.device)
    total, positions = tiles * out_h * out_w, 128
    kernels.first_layers[(triton.cdiv(total, positions),)](
        image,
        weight1,
        weight2,
        out,
        out.stride(0),
        total,
        in_h,
        in_w,
        out_h,
        out_w,
        slope,
        scale,
        centre,
        filters=filters,
        positions=positions,
        width=width,
        split=planes == 2,
        num_warps=4,
    )
    return out


def convolution(image: Tensor, weight: Tensor, stride: int, slope: float) -> Tensor:
    """3 x 3 convolution and leaky ReLU of (planes, tiles, rows, columns, channels).

    The weight is (planes, 3, 3 channels, filters).
    """
    planes, tiles, in_h, in_w, channels = image.shape
    out_h, out_w, filters = (in_h - 3) // stride + 1, (in_w - 3) // stride + 1, weight.shape[-1]
    out = torch.empty(planes, tiles, out_h, out_w, filters, dtype=torch.float16, device=image.device)
    total = tiles * out_h * out_w
    positions, columns, depth, warps = (128, 64, 32, 4) if planes == 2 else (256, 64, 32, 8)
    kernels.convolution[(triton.cdiv(total, positions), triton.cdiv(filters, columns))](
        image,
        weight,
        out,
        image.stride(0),
        weight.stride(0),
        out.stride(0),
        total,
        in_h,
        in_w,
        out_h,
        out_w,
        slope,
        stride=stride,
        channels=channels,
        filters=filters,
        positions=positions,
        columns=columns,
        depth=depth,
        split=planes == 2,
        num_warps=warps,
    )
    return out


def forward_x(
    features: Tensor, matrix: Tensor, out: Tensor, outputs: int, size: int, grid: tuple[int, int]
) -> None:
    """Features (planes, tiles, rows, columns, channels) to (planes, x, 2, rows, blocks, channels)."""
    planes, frequencies, _, padded, blocks, channels = out.shape
    kernels.forward_x[(size, blocks)](
        features,
        matrix,
        out,
        features.stride(0),
        out.stride(0),
        features.stride(2),
        features.stride(1),
        grid[0] * grid[1],
        grid[1],
        blocks,
        outputs=outputs,
        size=size,
        padded=padded,
        frequencies=frequencies,
        channels=channels,
        chunk=64 if planes == 1 else 32,
        split=planes == 2,
        num_warps=4,
    )


def along_y(values: Tensor, matrix: Tensor, out: Tensor) -> None:
    """(planes, x, inner, width) to (planes, x, rows, width) by a matrix (planes, rows, inner)."""
    planes, frequencies, inner, width = values.shape
    rows, columns = matrix.shape[1], 128
    padded_rows = triton.next_power_of_2(rows)
    kernels.along_y[(triton.cdiv(width, columns), frequencies)](
        values,
        matrix,
        out,
        values.stride(0),
        out.stride(0),
        width,
        rows=rows,
        padded_rows=padded_rows,
        inner=inner,
        columns=columns,
        depth=min(32, inner),
        split=planes == 2,
        num_warps=8,
    )


def complex_products(values: Tensor, weight: Tensor, out: Tensor, size: int) -> None:
    """(planes, x, 2, y, blocks, channels) times (planes, x, y, 2, channels, filters) over channels."""
    planes, frequencies, _, padded, blocks, channels = values.shape
    filters = out.shape[-1]
    rows, columns, depth, warps = (64, 64, 32, 4) if planes == 2 else (64, 128, 32, 4)
    grid = (triton.cdiv(blocks, rows), triton.cdiv(filters, columns), frequencies * size)
    kernels.complex_products[grid](
        values,
        weight,
        out,
        values.stride(0),
        weight.stride(0),
        out.stride(0),
        blocks,
        size=size,
        padded=padded,
        channels=channels,
        filters=filters,
        rows=rows,
        columns=columns,
        depth=depth,
        split=planes == 2,
        num_warps=warps,
    )


def finish(
    rows: Tensor, matrix: Tensor, bias: Tensor, head: Tensor, head_bias: float, slope: float
) -> Tensor:
    """(planes, x, 2, output rows, blocks, filters) to logits (blocks, rows, columns)."""
    planes, frequencies, _, outputs, blocks, filters = rows.shape
    out = torch.empty(blocks, outputs, outputs, dtype=torch.float32, device=rows.device)
    kernels.finish[(outputs, blocks)](
        rows,
        matrix,
        bias,
        head,
        out,
        rows.stride(0),
        blocks,
        slope,
        head_bias,
        outputs=outputs,
        padded_outputs=matrix.shape[1],
        frequencies=frequencies,
        filters=filters,
        chunk=64 if planes == 1 else 32,
        split=planes == 2,
        num_warps=4,
    )
    return out
