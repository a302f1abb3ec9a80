"""Triton kernels of the GPU path: each does in one pass over memory what separate operations do in several.

Arrays are float16, sums float32. With `split`, every number is a pair of float16 (value, remainder) in two
planes, `plane` elements apart, and every product three: about 21 bits at the speed of tensor cores.
Imported only where Triton is installed; `launching.py` states the layouts.
"""

# ruff: noqa: D103
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found, misc, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load(position, plane, mask, split: tl.constexpr):
    value = tl.load(position, mask=mask, other=0.0)
    remainder = value
    if split:
        remainder = tl.load(position + plane, mask=mask, other=0.0)
    return value, remainder


@triton.jit
def _store(position, plane, value, mask, split: tl.constexpr):
    rounded = value.to(tl.float16)
    tl.store(position, rounded, mask=mask)
    if split:
        tl.store(position + plane, (value - rounded.to(tl.float32)).to(tl.float16), mask=mask)


@triton.jit
def _multiply(a, a_rest, b, b_rest, total, split: tl.constexpr):
    if split:
        total = tl.dot(a_rest, b, total)
        total = tl.dot(a, b_rest, total)
    return tl.dot(a, b, total)


@triton.jit
def _leaky(value, slope):
    return tl.where(value > 0, value, value * slope)


@triton.jit
def first_layers(
    image,
    weight1,
    weight2,
    out,
    plane,
    total,
    in_h,
    in_w,
    out_h,
    out_w,
    slope,
    scale,
    centre,
    filters: tl.constexpr,
    positions: tl.constexpr,
    width: tl.constexpr,
    split: tl.constexpr,
):
    m = tl.program_id(0) * positions + tl.arange(0, positions)
    inside = m < total
    batch, rest = m // (out_h * out_w), m % (out_h * out_w)
    corner = ((batch * in_h + 2 * (rest // out_w)) * in_w + 2 * (rest % out_w)) * 3
    k, n = tl.arange(0, 32), tl.arange(0, width)
    tap = (k // 9) * in_w * 3 + k % 9
    everywhere = n[None, :] < width
    first, first_rest = _load(weight1 + k[:, None] * width + n[None, :], 32 * width, everywhere, split)
    result = tl.zeros((positions, width), dtype=tl.float32)
    for y in tl.static_range(3):
        for x in tl.static_range(3):
            position = corner + (y * in_w + x) * 3
            valid = inside[:, None] & (k < 27)[None, :]
            pixels = tl.load(image + position[:, None] + tap[None, :], mask=valid, other=0).to(tl.float32)
            pixels = tl.where((k < 27)[None, :], (pixels - centre) * scale, (k == 27)[None, :].to(tl.float32))
            exact = pixels.to(tl.float16)
            hidden = tl.dot(exact, first)
            if split:
                hidden = tl.dot(exact, first_rest, hidden)
            hidden = _leaky(hidden, slope)
            value = hidden.to(tl.float16)
            remainder = (hidden - value.to(tl.float32)).to(tl.float16)
            place2 = weight2 + ((y * 3 + x) * width + n[:, None]) * width + n[None, :]
            second, second_rest = _load(place2, 9 * width * width, everywhere, split)
            result = _multiply(value, remainder, second, second_rest, result, split)
    mask = inside[:, None] & (n < filters)[None, :]
    _store(out + m[:, None] * filters + n[None, :], plane, _leaky(result, slope), mask, split)


@triton.jit
def convolution(
    image,
    weight,
    out,
    in_plane,
    weight_plane,
    out_plane,
    total,
    in_h,
    in_w,
    out_h,
    out_w,
    slope,
    stride: tl.constexpr,
    channels: tl.constexpr,
    filters: tl.constexpr,
    positions: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    split: tl.constexpr,
):
    m = tl.program_id(0) * positions + tl.arange(0, positions)
    n = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = m < total
    batch, rest = m // (out_h * out_w), m % (out_h * out_w)
    corner = ((batch * in_h + stride * (rest // out_w)) * in_w + stride * (rest % out_w)) * channels
    run: tl.constexpr = 3 * channels
    result = tl.zeros((positions, columns), dtype=tl.float32)
    for y in tl.static_range(3):
        for first in range(0, run, depth):
            k = first + tl.arange(0, depth)
            position = image + (corner + y * in_w * channels)[:, None] + k[None, :]
            a, a_rest = _load(position, in_plane, inside[:, None] & (k < run)[None, :], split)
            position = weight + (y * run + k)[:, None] * filters + n[None, :]
            b, b_rest = _load(position, weight_plane, (k < run)[:, None] & (n < filters)[None, :], split)
            result = _multiply(a, a_rest, b, b_rest, result, split)
    mask = inside[:, None] & (n < filters)[None, :]
    _store(out + m[:, None] * filters + n[None, :], out_plane, _leaky(result, slope), mask, split)


@triton.jit
def forward_x(
    features,
    matrix,
    out,
    in_plane,
    out_plane,
    row_stride,
    tile_stride,
    tile_blocks,
    columns,
    blocks,
    outputs: tl.constexpr,
    size: tl.constexpr,
    padded: tl.constexpr,
    frequencies: tl.constexpr,
    channels: tl.constexpr,
    chunk: tl.constexpr,
    split: tl.constexpr,
):
    y, block = tl.program_id(0), tl.program_id(1)
    tile, position = block // tile_blocks, block % tile_blocks
    top, left = (position // columns) * outputs + y, (position % columns) * outputs
    x, f = tl.arange(0, padded), tl.arange(0, 2 * frequencies)
    transform, transform_rest = _load(
        matrix + f[:, None] * padded + x[None, :], 2 * frequencies * padded, x[None, :] < padded, split
    )
    source = features + tile.to(tl.int64) * tile_stride + top * row_stride + left * channels
    target = out + (f[:, None].to(tl.int64) * padded + y) * blocks * channels + block * channels
    for first in range(0, channels, chunk):
        c = first + tl.arange(0, chunk)
        mask = (x < size)[:, None] & (c < channels)[None, :]
        pixels, pixels_rest = _load(source + x[:, None] * channels + c[None, :], in_plane, mask, split)
        result = tl.zeros((2 * frequencies, chunk), dtype=tl.float32)
        result = _multiply(transform, transform_rest, pixels, pixels_rest, result, split)
        _store(target + c[None, :], out_plane, result, (c < channels)[None, :], split)


@triton.jit
def along_y(
    values,
    matrix,
    out,
    in_plane,
    out_plane,
    width,
    rows: tl.constexpr,
    padded_rows: tl.constexpr,
    inner: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    split: tl.constexpr,
):
    frequency = tl.program_id(1).to(tl.int64)
    m, n = tl.arange(0, padded_rows), tl.program_id(0) * columns + tl.arange(0, columns)
    result = tl.zeros((padded_rows, columns), dtype=tl.float32)
    for first in range(0, inner, depth):
        k = first + tl.arange(0, depth)
        a, a_rest = _load(matrix + m[:, None] * inner + k[None, :], rows * inner, (m < rows)[:, None], split)
        position = values + (frequency * inner + k)[:, None] * width + n[None, :]
        b, b_rest = _load(position, in_plane, (n < width)[None, :], split)
        result = _multiply(a, a_rest, b, b_rest, result, split)
    position = out + (frequency * rows + m)[:, None] * width + n[None, :]
    _store(position, out_plane, result, (m < rows)[:, None] & (n < width)[None, :], split)


@triton.jit
def complex_products(
    values,
    weight,
    out,
    in_plane,
    weight_plane,
    out_plane,
    blocks,
    size: tl.constexpr,
    padded: tl.constexpr,
    channels: tl.constexpr,
    filters: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    split: tl.constexpr,
):
    frequency = tl.program_id(2)
    x, y = frequency // size, frequency % size
    m = tl.program_id(0) * rows + tl.arange(0, rows)
    n = tl.program_id(1) * columns + tl.arange(0, columns)
    real_row = ((2 * x).to(tl.int64) * padded + y) * blocks
    imaginary_row = real_row + padded * blocks
    kernel = weight + frequency.to(tl.int64) * (2 * channels * filters)
    real = tl.zeros((rows, columns), dtype=tl.float32)
    imaginary = tl.zeros((rows, columns), dtype=tl.float32)
    for first in range(0, channels, depth):
        k = first + tl.arange(0, depth)
        here = (m < blocks)[:, None] & (k < channels)[None, :]
        there = (k < channels)[:, None] & (n < filters)[None, :]
        offset = m[:, None] * channels + k[None, :]
        a, a_rest = _load(values + real_row * channels + offset, in_plane, here, split)
        b, b_rest = _load(values + imaginary_row * channels + offset, in_plane, here, split)
        offset = k[:, None] * filters + n[None, :]
        c, c_rest = _load(kernel + offset, weight_plane, there, split)
        d, d_rest = _load(kernel + channels * filters + offset, weight_plane, there, split)
        real = _multiply(a, a_rest, c, c_rest, real, split)
        real = _multiply(-b, -b_rest, d, d_rest, real, split)
        imaginary = _multiply(a, a_rest, d, d_rest, imaginary, split)
        imaginary = _multiply(b, b_rest, c, c_rest, imaginary, split)
    write = (m < blocks)[:, None] & (n < filters)[None, :]
    offset = m[:, None] * filters + n[None, :]
    _store(out + real_row * filters + offset, out_plane, real, write, split)
    _store(out + imaginary_row * filters + offset, out_plane, imaginary, write, split)


@triton.jit
def finish(
    rows_in,
    matrix,
    bias,
    head,
    out,
    plane,
    blocks,
    slope,
    head_bias,
    outputs: tl.constexpr,
    padded_outputs: tl.constexpr,
    frequencies: tl.constexpr,
    filters: tl.constexpr,
    chunk: tl.constexpr,
    split: tl.constexpr,
):
    y, block = tl.program_id(0), tl.program_id(1)
    f, x = tl.arange(0, 2 * frequencies), tl.arange(0, padded_outputs)
    position = matrix + x[:, None] * (2 * frequencies) + f[None, :]
    matrix_plane: tl.constexpr = padded_outputs * 2 * frequencies
    transform, transform_rest = _load(position, matrix_plane, f[None, :] < 2 * frequencies, split)
    source = rows_in + (f[:, None].to(tl.int64) * outputs + y) * blocks * filters + block * filters
    logits = tl.zeros((padded_outputs,), dtype=tl.float32)
    for first in range(0, filters, chunk):
        n = first + tl.arange(0, chunk)
        values, values_rest = _load(source + n[None, :], plane, (n < filters)[None, :], split)
        weights = tl.load(head + n, mask=n < filters, other=0.0)
        offset = tl.load(bias + n, mask=n < filters, other=0.0)
        result = tl.zeros((padded_outputs, chunk), dtype=tl.float32)
        result = _multiply(transform, transform_rest, values, values_rest, result, split)
        logits += tl.sum(_leaky(result + offset[None, :], slope) * weights[None, :], axis=1)
    tl.store(out + (block * outputs + y) * outputs + x, logits + head_bias, mask=x < outputs)
