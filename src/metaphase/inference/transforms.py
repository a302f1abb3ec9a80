"""Small matrices that turn convolutions into products: Winograd's for 3 x 3, Fourier's for wide kernels.

A convolution with a transform has three steps: transform blocks of the image, multiply channels at each
transformed place, transform back. Every step is a matrix product, which is what processors do best.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]

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
    both = np.einsum("ay,fcyx,bx->abcf", _KERNEL, weight, _KERNEL)
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

    def kernel_spectra(self, weight: Matrix) -> Iterator[tuple[Single, Single]]:
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
