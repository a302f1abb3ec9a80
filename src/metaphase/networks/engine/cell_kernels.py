"""Triton kernels of a `lite` detector on a GPU: little of what a block computes leaves the chip.

Arrays are float16, channels last, sums float32. Channels are padded with zeros as `cell_gpu.py` states; tiles
are the grid's second axis, so that positions inside one count in 32 bits. Imported only with Triton.
"""

# ruff: noqa: D103
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found, misc, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

SIZES = ["in_h", "in_w", "out_h", "out_w"]
"""Arguments of which no kernel is made anew."""


@triton.jit
def _limited(value):
    """ReLU6 in sixths, which a GPU does in passing."""
    return tl.minimum(tl.maximum(value, 0.0), 1.0)


@triton.jit
def _square(out_h, out_w, rows: tl.constexpr, columns: tl.constexpr):
    """Rows and columns of a program's outputs; those beyond the last are doubles of it, and not inside."""
    across = tl.cdiv(out_w, columns)
    m = tl.arange(0, rows * columns)
    y = tl.program_id(0) // across * rows + m // columns
    x = tl.program_id(0) % across * columns + m % columns
    inside = (y < out_h) & (x < out_w)
    return tl.minimum(y, out_h - 1), tl.minimum(x, out_w - 1), inside


@triton.jit(do_not_specialize=SIZES)
def stem(
    image,
    weight,
    bias,
    out,
    in_h,
    in_w,
    out_h,
    out_w,
    trim,
    scale,
    centre,
    sixth,
    filters: tl.constexpr,
    width: tl.constexpr,
    positions: tl.constexpr,
):
    m = tl.program_id(0) * positions + tl.arange(0, positions)
    inside = m < out_h * out_w
    m = tl.minimum(m, out_h * out_w - 1)
    tile = tl.program_id(1).to(tl.int64)
    corner = (2 * (m // out_w) + trim) * in_w * 3 + (2 * (m % out_w) + trim) * 3
    k, n = tl.arange(0, 32), tl.arange(0, width)
    tap = (k // 9) * in_w * 3 + k % 9
    position = image + tile * in_h * in_w * 3 + corner[:, None] + tap[None, :]
    pixels = tl.load(position, mask=(k < 27)[None, :], other=0).to(tl.float32)
    exact = ((pixels - centre) * scale).to(tl.float16)
    total = tl.dot(exact, tl.load(weight + k[:, None] * width + n[None, :]))
    total = _limited(total * sixth + tl.load(bias + n)[None, :]).to(tl.float16)
    position = out + tile * out_h * out_w * filters + m[:, None] * filters + n[None, :]
    tl.store(position, total, mask=inside[:, None] & (n < filters)[None, :])


@triton.jit(do_not_specialize=["total"])
def widened(
    values,
    weight,
    bias,
    out,
    total,
    sixth,
    channels: tl.constexpr,
    depth: tl.constexpr,
    inner: tl.constexpr,
    padded: tl.constexpr,
    chunk: tl.constexpr,
    positions: tl.constexpr,
):
    m = tl.program_id(0) * positions + tl.arange(0, positions)
    inside = m < total
    tile = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, depth)
    position = values + tile * total * channels + m[:, None] * channels + k[None, :]
    a = tl.load(position, mask=inside[:, None] & (k < channels)[None, :], other=0.0)
    target = out + tile * total * inner + m[:, None] * inner
    for first in range(0, padded, chunk):
        c = first + tl.arange(0, chunk)
        b = tl.load(weight + k[:, None] * padded + c[None, :])
        wide = _limited(tl.dot(a, b) * sixth + tl.load(bias + c)[None, :])
        tl.store(target + c[None, :], wide.to(tl.float16), mask=inside[:, None] & (c < inner)[None, :])


@triton.jit
def _finished(
    total,
    bias,
    before,
    out,
    tile,
    y,
    x,
    inside,
    in_h,
    in_w,
    out_h,
    out_w,
    lost: tl.constexpr,
    filters: tl.constexpr,
    width: tl.constexpr,
):
    n = tl.arange(0, width)
    total += tl.load(bias + n)[None, :]
    written = inside[:, None] & (n < filters)[None, :]
    if lost > 0:
        position = before + tile * in_h * in_w * filters + ((y + lost) * in_w + x + lost)[:, None] * filters
        total += tl.load(position + n[None, :], mask=(n < filters)[None, :], other=0.0).to(tl.float32)
    position = out + tile * out_h * out_w * filters + (y * out_w + x)[:, None] * filters
    tl.store(position + n[None, :], total.to(tl.float16), mask=written)


@triton.jit(do_not_specialize=SIZES)
def filtered(
    values,
    weight,
    bias,
    narrow,
    narrow_bias,
    before,
    out,
    in_h,
    in_w,
    out_h,
    out_w,
    size: tl.constexpr,
    stride: tl.constexpr,
    lost: tl.constexpr,
    inner: tl.constexpr,
    filters: tl.constexpr,
    width: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    y, x, inside = _square(out_h, out_w, rows, columns)
    tile, n = tl.program_id(1).to(tl.int64), tl.arange(0, width)
    source = values + tile * in_h * in_w * inner + (stride * (y * in_w + x) * inner)[:, None]
    total = tl.zeros((rows * columns, width), dtype=tl.float32)
    for first in range(0, inner, chunk):
        c = first + tl.arange(0, chunk)
        sums = tl.zeros((rows * columns, chunk), dtype=tl.float32) + tl.load(bias + c)[None, :]
        for dy in range(size):  # a true loop: else each tap would be laid out anew for the product
            for dx in tl.static_range(size):
                one = tl.load(source + ((dy * in_w + dx) * inner + c)[None, :]).to(tl.float32)
                sums += one * tl.load(weight + (dy * size + dx) * inner + c)[None, :]
        b = tl.load(narrow + c[:, None] * width + n[None, :])
        total = tl.dot(_limited(sums).to(tl.float16), b, total)
    _finished(
        total, narrow_bias, before, out, tile, y, x, inside, in_h, in_w, out_h, out_w, lost, filters, width
    )


@triton.jit(do_not_specialize=SIZES)
def whole_block(
    values,
    widen,
    widen_bias,
    weight,
    bias,
    narrow,
    narrow_bias,
    out,
    in_h,
    in_w,
    out_h,
    out_w,
    sixth,
    size: tl.constexpr,
    stride: tl.constexpr,
    lost: tl.constexpr,
    channels: tl.constexpr,
    depth: tl.constexpr,
    inner: tl.constexpr,
    filters: tl.constexpr,
    width: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    y, x, inside = _square(out_h, out_w, rows, columns)
    tile, k, n = tl.program_id(1).to(tl.int64), tl.arange(0, depth), tl.arange(0, width)
    source = values + tile * in_h * in_w * channels + (stride * (y * in_w + x) * channels)[:, None]
    total = tl.zeros((rows * columns, width), dtype=tl.float32)
    for first in range(0, inner, chunk):
        c = first + tl.arange(0, chunk)
        b = tl.load(widen + k[:, None] * inner + c[None, :])
        offset = tl.load(widen_bias + c)[None, :]
        sums = tl.zeros((rows * columns, chunk), dtype=tl.float32) + tl.load(bias + c)[None, :]
        for dy in range(size):
            for dx in tl.static_range(size):
                position = source + ((dy * in_w + dx) * channels + k)[None, :]
                a = tl.load(position, mask=(k < channels)[None, :], other=0.0)
                wide = _limited(tl.dot(a, b) * sixth + offset)
                sums += wide * tl.load(weight + (dy * size + dx) * inner + c)[None, :]
        b = tl.load(narrow + c[:, None] * width + n[None, :])
        total = tl.dot(_limited(sums).to(tl.float16), b, total)
    _finished(
        total, narrow_bias, values, out, tile, y, x, inside, in_h, in_w, out_h, out_w, lost, filters, width
    )


@triton.jit(do_not_specialize=SIZES)
def answers(
    values,
    weight,
    bias,
    answer,
    answer_bias,
    out,
    in_h,
    in_w,
    out_h,
    out_w,
    slope,
    channels: tl.constexpr,
    depth: tl.constexpr,
    inner: tl.constexpr,
    chunk: tl.constexpr,
    positions: tl.constexpr,
):
    m = tl.program_id(0) * positions + tl.arange(0, positions)
    inside = m < in_h * in_w
    tile = tl.program_id(1).to(tl.int64)
    k, j = tl.arange(0, depth), tl.arange(0, 16)
    position = values + tile * in_h * in_w * channels + m[:, None] * channels + k[None, :]
    a = tl.load(position, mask=inside[:, None] & (k < channels)[None, :], other=0.0)
    total = tl.zeros((positions, 16), dtype=tl.float32)
    for first in range(0, inner, chunk):
        c = first + tl.arange(0, chunk)
        hidden = tl.dot(a, tl.load(weight + k[:, None] * inner + c[None, :])) + tl.load(bias + c)[None, :]
        hidden = tl.where(hidden > 0, hidden, hidden * slope).to(tl.float16)
        total = tl.dot(hidden, tl.load(answer + c[:, None] * 16 + j[None, :]), total)
    total += tl.load(answer_bias + j)[None, :]
    y, x = 2 * (m // in_w)[:, None] + (j // 2)[None, :], 2 * (m % in_w)[:, None] + (j % 2)[None, :]
    written = inside[:, None] & (j < 4)[None, :] & (y < out_h) & (x < out_w)
    tl.store(out + tile * out_h * out_w + y * out_w + x, total, mask=written)
