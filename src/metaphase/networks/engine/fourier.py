"""The wide convolution and the head on the CPU: Fourier transforms of blocks as matrix products.

At gamma 0.6 a 14 x 14 kernel costs 575,000 multiply-adds a pixel directly. Over blocks of 32 x 32 outputs
each frequency costs one small matrix product (three real ones for a complex one), 9,000 a pixel in all. The
transforms are products with cosine and sine matrices, at most 23 x 23, along the leading axis of
(frequency, ..., block, channel) arrays: no transposed copies, and full speed of the matrix routines.

A convolution with a transform has three steps: transform blocks of the image, multiply channels at each
transformed place, transform back. Every step is a matrix product, which is what processors do best.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
from torch import Tensor

from metaphase.base.arrays import Floats32
from metaphase.networks.engine.layers import Features, FoldedDetector, Scratch

# ---- small matrices that turn convolutions into products ----

Matrix = npt.NDArray[np.float64]

WINOGRAD_OUT = 4
"""Outputs a side of one Winograd block."""
WINOGRAD_IN = 6
"""Inputs a side of one Winograd block, for a kernel of 3."""
WINOGRAD_ONE = 1
"""The row of `WINOGRAD_IN` at which a 1 alone transforms back to all ones: where a bias is added."""

_INPUT = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    float,
)
_KERNEL = (
    np.array(
        [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]],
        float,
    )
    / 24
)
_OUTPUT = np.array(
    [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], float
)


def winograd_input() -> Matrix:
    """(36, 36): from the 6 x 6 pixels of a block, row by row, to its 36 transformed values."""
    return np.kron(_INPUT, _INPUT)


def winograd_output() -> Matrix:
    """(16, 36): from 36 products to the 4 x 4 outputs of a block."""
    return np.kron(_OUTPUT, _OUTPUT)


def winograd_kernel(weight: Matrix) -> Matrix:
    """(36, channels, filters): transformed 3 x 3 kernels (filters, channels, 3, 3)."""
    both = np.einsum("ay,fcyx,bx->abcf", _KERNEL, weight, _KERNEL, optimize=True)
    return _double(both.reshape(WINOGRAD_IN**2, *both.shape[2:]))


class FourierBlocks:
    """The transform of blocks of `outputs` x `outputs` correlation results with a kernel of `kernel` pixels.

    A block reads `size` = `outputs` + `kernel` - 1 pixels a side, an odd number, so that positions and
    frequencies come in pairs +-j around one middle: cosines see their sums, sines their differences.
    Positions count from the middle of the block (inputs) and from the middle of the outputs; the kernel's
    spectrum holds the difference. Frequencies are ordered 0, 1, .., half, -1, .., -half; those of x below 0
    follow from the rest.
    """

    def __init__(self, outputs: int, kernel: int) -> None:
        if (outputs + kernel) % 2 or outputs % 2:
            raise ValueError(f"{outputs} outputs of a kernel of {kernel}: both must be even")
        self.outputs, self.kernel = outputs, kernel
        self.size = outputs + kernel - 1
        self.half = self.size // 2
        self.step = 2 * np.pi / self.size
        self.order = np.concatenate([np.arange(self.half + 1), -np.arange(1, self.half + 1)])

    def forward_cosine(self) -> Matrix:
        """(half + 1, half + 1): frequencies 0.. from positions 0..; symmetric."""
        return _double(np.cos(self.step * np.outer(np.arange(self.half + 1), np.arange(self.half + 1))))

    def forward_sine(self) -> Matrix:
        """(half, half): frequencies 1.. from positions 1..; symmetric."""
        return _double(np.sin(self.step * np.outer(np.arange(1, self.half + 1), np.arange(1, self.half + 1))))

    def backward_cosine(self) -> Matrix:
        """(outputs / 2 + 1, half + 1): outputs 0.. from frequencies 0.., with the transform's 1 / size."""
        positions = np.arange(self.outputs // 2 + 1)
        return _double(np.cos(self.step * np.outer(positions, np.arange(self.half + 1))) / self.size)

    def backward_sine(self) -> Matrix:
        """(outputs / 2, half): outputs 1.. from frequencies 1.., with the transform's 1 / size."""
        positions = np.arange(1, self.outputs // 2 + 1)
        return _double(np.sin(self.step * np.outer(positions, np.arange(1, self.half + 1))) / self.size)

    def kernel_spectra(self, weight: Matrix) -> Iterator[tuple[Floats32, Floats32]]:
        """Real and imaginary part (size, channels, filters) for each frequency of x from 0 on.

        `weight` is (filters, channels, y, x).
        """
        filters, channels = weight.shape[:2]
        offsets = np.arange(self.kernel) + self.outputs // 2 - self.half
        along_y = self.step * np.outer(self.order, offsets)
        cosine, sine = np.cos(along_y).astype(np.float32), np.sin(along_y).astype(np.float32)
        taps = np.ascontiguousarray(weight.transpose(3, 2, 1, 0), np.float32).reshape(self.kernel, -1)
        for frequency in range(self.half + 1):
            along_x = self.step * frequency * offsets
            parts = np.stack([np.cos(along_x), np.sin(along_x)]).astype(np.float32) @ taps
            real, imaginary = parts.reshape(2, self.kernel, -1)
            shape = (self.size, channels, filters)
            yield (
                (cosine @ real - sine @ imaginary).reshape(shape),
                (cosine @ imaginary + sine @ real).reshape(shape),
            )


def _double(values: npt.ArrayLike) -> Matrix:
    return np.asarray(values, np.float64)


# ---- the wide convolution and the head on the CPU ----

BLOCKS_AT_ONCE = 64


class FourierConv:
    """Wide convolution, bias, leaky ReLU and weighted sum of the filters: features to logits."""

    def __init__(self, detector: FoldedDetector, outputs: int) -> None:
        weight = detector.wide.weight.numpy()
        self.filters, self.channels, self.kernel, _ = (int(side) for side in weight.shape)
        if self.kernel % 2:  # blocks want even kernels: a row and a column of zeros make them so
            weight = np.pad(weight, ((0, 0), (0, 0), (0, 1), (0, 1)))
        self.blocks = FourierBlocks(outputs, weight.shape[2])
        self.slope, self.head, self.head_bias = detector.slope, detector.head.float(), detector.head_bias
        plan = self.blocks
        self.cosine, self.sine = _float(plan.forward_cosine()), _float(plan.forward_sine())
        self.back_cosine, self.back_sine = _float(plan.backward_cosine()), _float(plan.backward_sine())
        twice = torch.full((plan.half + 1,), 2.0)  # frequencies of x below 0 count through their mirror
        twice[0] = 1
        self.last_cosine, self.last_sine = self.back_cosine * twice, self.back_sine * 2
        self.bias = detector.wide.bias.float() * plan.size**2
        self.spectrum = self._spectrum(weight)

    def _spectrum(self, weight: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Tensor:
        """(half + 1, 3 size, channels, filters): real, imaginary - real and real + imaginary parts."""
        size, half = self.blocks.size, self.blocks.half
        out = torch.empty(half + 1, 3 * size, self.channels, self.filters)
        for target, (real, imaginary) in zip(out, self.blocks.kernel_spectra(weight), strict=True):
            target[:size], target[size : 2 * size], target[2 * size :] = (
                torch.from_numpy(part) for part in (real, imaginary - real, real + imaginary)
            )
        return out

    def block_count(self, size: int) -> int:
        """Blocks along a side of `size` features."""
        return -(-(size - self.kernel + 1) // self.blocks.outputs)

    def room(self, size: int) -> int:
        """Features that whole blocks read along a side of which `size` are meant."""
        return (self.block_count(size) - 1) * self.blocks.outputs + self.blocks.size

    def bands(self, features: Features) -> list[range]:
        """Rows of blocks that are computed at once."""
        rows, step = (
            self.block_count(features.height),
            max(1, BLOCKS_AT_ONCE // self.block_count(features.width)),
        )
        return [range(first, min(rows, first + step)) for first in range(0, rows, step)]

    def compute(self, features: Features, out: Tensor, band: range, scratch: Scratch) -> None:
        """Fill the logits `out` (rows of blocks, outputs, columns of blocks, outputs) of one band.

        Of several maps, a band counts maps and `out` the rows of blocks of all.
        """
        rows_each = self.block_count(features.height) if features.data.ndim == 4 else 1
        columns = self.block_count(features.width)
        count, size = len(band) * rows_each * columns, self.blocks.size
        half, outputs = self.blocks.half, self.blocks.outputs
        by_x = scratch.take("by_x", half + 1, 2, size, count * self.channels)
        self._forward_x(features, band, columns, by_x, scratch)
        rows = scratch.take("rows", 2, half + 1, outputs, count * self.filters)
        spectrum = scratch.take("spectrum", 3, size, count * self.channels)
        products = scratch.take("products", 3, size, count * self.filters)
        for frequency in range(half + 1):
            self._forward_y(by_x[frequency], spectrum, scratch)
            torch.bmm(
                spectrum.view(3 * size, count, self.channels),
                self.spectrum[frequency],
                out=products.view(3 * size, count, self.filters),
            )
            products[1] += products[0]  # imaginary part
            products[0] -= products[2]  # real part
            if frequency == 0:
                products[0, 0].view(count, self.filters).add_(self.bias)
            self._backward_y(products, rows[:, frequency], scratch)
        self._backward_x(rows, out[rows_each * band.start : rows_each * band.stop], scratch)

    def _forward_x(
        self, features: Features, band: range, columns: int, by_x: Tensor, scratch: Scratch
    ) -> None:
        """Real blocks to frequencies of x: `by_x` (frequency, real or imaginary, row, block and channel)."""
        half, outputs = self.blocks.half, self.blocks.outputs
        row, column = features.strides
        steps: tuple[int, ...] = (outputs * row, outputs * column, 1)
        shape: tuple[int, ...] = (len(band), columns, self.channels)
        if features.data.ndim == 4:
            steps = (features.data.stride(0), *steps)
            shape = (len(band), self.block_count(features.height), columns, self.channels)
        sums, differences = scratch.take("sums", half + 1, *shape), scratch.take("differences", half, *shape)
        by_x[0, 1].zero_()
        for slot, y in enumerate(self.blocks.order):
            offset = band.start * steps[0] + (half + int(y)) * row
            pixels = features.data.as_strided((self.blocks.size, *shape), (column, *steps), offset)
            sums[0].copy_(pixels[half])
            for j in range(1, half + 1):
                torch.add(pixels[half + j], pixels[half - j], out=sums[j])
                torch.sub(pixels[half - j], pixels[half + j], out=differences[j - 1])
            torch.mm(self.cosine, sums.view(half + 1, -1), out=by_x[:, 0, slot])
            torch.mm(self.sine, differences.view(half, -1), out=by_x[1:, 1, slot])

    def _forward_y(self, by_x: Tensor, spectrum: Tensor, scratch: Scratch) -> None:
        """(real or imaginary, row, ...) to `spectrum` (sum | real | imaginary, frequency, ...)."""
        cosine, sine = self._products(by_x, self.cosine, self.sine, scratch)
        half = self.blocks.half
        _, real, imaginary = spectrum
        real[0].copy_(cosine[0, 0])
        imaginary[0].copy_(cosine[1, 0])
        torch.add(cosine[0, 1:], sine[1], out=real[1 : half + 1])
        torch.sub(cosine[0, 1:], sine[1], out=real[half + 1 :])
        torch.sub(cosine[1, 1:], sine[0], out=imaginary[1 : half + 1])
        torch.add(cosine[1, 1:], sine[0], out=imaginary[half + 1 :])
        torch.add(real, imaginary, out=spectrum[0])

    def _backward_y(self, products: Tensor, rows: Tensor, scratch: Scratch) -> None:
        """(real | imaginary | -, frequency, ...) to output rows (real or imaginary, row, ...)."""
        cosine, sine = self._products(products[:2], self.back_cosine, self.back_sine, scratch)
        middle = self.blocks.outputs // 2
        rows[:, 0].copy_(cosine[:, 0])
        for part, sign in ((0, -1.0), (1, 1.0)):
            other = sine[1 - part]
            torch.add(cosine[part, 1:middle], other[:-1], alpha=sign, out=rows[part, 1:middle])
            torch.sub(cosine[part, 1:], other, alpha=sign, out=rows[part, middle:])

    def _products(
        self, values: Tensor, cosine: Tensor, sine: Tensor, scratch: Scratch
    ) -> tuple[Tensor, Tensor]:
        """Cosines of the sums and sines of the differences of pairs, each for real and imaginary parts."""
        half, width = self.blocks.half, values.shape[-1]
        positive, negative = values[:, 1 : half + 1], values[:, half + 1 :]
        sums = scratch.take("pair_sums", 2, half + 1, width)
        sums[:, 0].copy_(values[:, 0])
        torch.add(positive, negative, out=sums[:, 1:])
        differences = torch.sub(positive, negative, out=scratch.take("pair_differences", 2, half, width))
        of_sums = scratch.take("of_sums", 2, len(cosine), width)
        of_differences = scratch.take("of_differences", 2, len(sine), width)
        for part in range(2):
            torch.mm(cosine, sums[part], out=of_sums[part])
            torch.mm(sine, differences[part], out=of_differences[part])
        return of_sums, of_differences

    def _backward_x(self, rows: Tensor, out: Tensor, scratch: Scratch) -> None:
        """Output rows (real or imaginary, frequency of x, row, ...) to logits, row by row."""
        bands, outputs, columns, _ = out.shape
        middle, width = outputs // 2, rows.shape[-1]
        even, odd = scratch.take("even", middle + 1, width), scratch.take("odd", middle, width)
        values = scratch.take("values", outputs, width)
        for slot, y in enumerate(self._output_order()):
            torch.mm(self.last_cosine, rows[0, :, slot], out=even)
            torch.mm(self.last_sine, rows[1, 1:, slot], out=odd)
            values[middle].copy_(even[0])
            torch.sub(even[1:middle], odd[:-1], out=values[middle + 1 :])
            for j in range(1, middle + 1):
                torch.add(even[j], odd[j - 1], out=values[middle - j])
            functional.leaky_relu_(values, self.slope)
            logits = torch.mv(values.view(-1, self.filters), self.head) + self.head_bias
            out[:, y].copy_(logits.view(outputs, bands, columns).permute(1, 2, 0))

    def _output_order(self) -> list[int]:
        """Which output row each slot of `_backward_y` holds: from the middle down, then from it up."""
        middle = self.blocks.outputs // 2
        return [*range(middle, 2 * middle), *range(middle - 1, -1, -1)]


def _float(matrix: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(matrix)).float()
