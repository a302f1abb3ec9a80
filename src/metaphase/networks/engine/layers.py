"""A network as a list of plain layers, checked and folded; and how PyTorch computes each kind of network."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from metaphase.base.errors import ModelError, UsageError
from metaphase.networks.architectures import (
    InvertedBlock,
    PixelScale,
    ResidualBlock,
    Subcells,
    fold_normalisation,
    is_finite,
)
from metaphase.networks.cards import OUTPUT_STRIDE_PX, PATCH_PX, RECEPTIVE_PX, outputs_along

# ---- a detector brought into the form that the engine computes ----

PIXEL_MAX = 255.0
PIXEL_MIDDLE, PIXEL_STEP = 128.0, 1 / 64
"""Half precision takes pixels as (value - middle) x step, which is exact."""


@dataclass(frozen=True)
class FoldedConv:
    """A valid convolution: weight (filters, channels, size, size), bias (filters,)."""

    weight: Tensor
    bias: Tensor
    stride: int = 1


@dataclass(frozen=True)
class FoldedDetector:
    """A detector of the paper's kind: small convolutions, a wide one, and a weighted sum.

    Leaky ReLU follows each convolution. The head gives the logit of "yes" against "no": softmax over two
    classes is its sigmoid.
    """

    chain: tuple[FoldedConv, ...]
    wide: FoldedConv
    head: Tensor
    head_bias: float
    slope: float


def fold_detector(network: nn.Sequential) -> FoldedDetector:
    """Fold normalisation, pixel scale and the two classes of a detector, in double precision.

    Raises `ModelError` for any other kind of network, and for weights that are not finite.
    """
    folded = fold_normalisation(network)
    *body, last = folded
    convolutions, head = [_folded(layer) for layer in body[::2]], _folded(last)
    slopes = {layer.negative_slope for layer in body[1::2] if isinstance(layer, nn.LeakyReLU)}
    paired = len(body) == 2 * len(convolutions) > 2 and len(slopes) == 1
    if not paired or head.weight.shape[0] != 2 or head.weight.shape[2:] != (1, 1):
        raise other_kind()
    _check_finite(folded)
    first, *middle, wide = convolutions
    first = FoldedConv(first.weight / PIXEL_MAX, first.bias, first.stride)
    difference = head.weight[1, :, 0, 0] - head.weight[0, :, 0, 0]
    bias = float(head.bias[1] - head.bias[0])
    return FoldedDetector((first, *middle), wide, difference, bias, float(slopes.pop()))


def centred(conv: FoldedConv) -> FoldedConv:
    """The first layer for centred pixels."""
    bias = conv.bias + conv.weight.sum((1, 2, 3)) * PIXEL_MIDDLE
    return FoldedConv(conv.weight / PIXEL_STEP, bias, conv.stride)


def padded(count: int, multiple: int) -> int:
    """The next multiple of a number."""
    return -(-count // multiple) * multiple


def power_of_2(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


def _folded(layer: nn.Module) -> FoldedConv:
    if not isinstance(layer, nn.Conv2d):
        raise other_kind()
    if layer.padding not in ((0, 0), "valid") or layer.dilation != (1, 1) or layer.groups != 1:
        raise other_kind()
    weight = layer.weight.detach().double().cpu()
    bias = torch.zeros(len(weight), dtype=torch.float64) if layer.bias is None else layer.bias.detach()
    return FoldedConv(weight, bias.double().cpu(), layer.stride[0])


class OtherKindError(ModelError):
    """A network of other layers than ours."""


def other_kind() -> ModelError:
    """What a network is refused with that is made of other layers."""
    return OtherKindError(
        "this network has layers other than convolutions and residual blocks",
        next_step="let PyTorch compute it as it is",
    )


def _check_finite(network: nn.Module) -> None:
    if not is_finite(network.parameters()):
        raise ModelError("the weights hold NaN or infinity", next_step="train or fetch the model again")


# ---- a detector with its wide convolution in Fourier's form ----

BLOCK_OUTPUTS = 32
"""Outputs a side of a block, which reads 45 features a side in the paper's detector: a fast length."""


class PortableDetector:
    """One network in float32, its wide layer in Fourier's form over blocks of 32 x 32 outputs.

    That needs 20 times less arithmetic than the convolution, and on a CPU a fifth of ONNX Runtime's time.
    """

    def __init__(self, detector: FoldedDetector, device: torch.device, outputs: int = BLOCK_OUTPUTS) -> None:
        self._chain = [
            FoldedConv(
                conv.weight.to(device, torch.float32).contiguous(memory_format=torch.channels_last),
                conv.bias.to(device, torch.float32),
                conv.stride,
            )
            for conv in detector.chain
        ]
        self._slope, self._head_bias = detector.slope, detector.head_bias
        self._head = detector.head.to(device, torch.float32)
        self._bias = detector.wide.bias.to(device, torch.float32)
        weight = detector.wide.weight.to(device, torch.float32)
        self._kernel, self._outputs = weight.shape[2], outputs
        self._size = outputs + self._kernel - 1
        spectrum = torch.fft.rfft2(weight, s=(self._size, self._size)).conj()
        self._spectrum = spectrum.permute(2, 3, 1, 0).flatten(0, 1).contiguous()

    def logits(self, image: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3) on the device."""
        with tensor_float(False):
            values = image.permute(0, 3, 1, 2).float()
            for conv in self._chain:
                values = functional.conv2d(values, conv.weight, conv.bias, conv.stride)
                functional.leaky_relu_(values, self._slope)
            return torch.cat([self._wide(tile) for tile in values])

    def _wide(self, features: Tensor) -> Tensor:
        """Logits (1, rows, columns) of the features (channels, rows, columns) of one tile."""
        outputs, size, lost = self._outputs, self._size, self._kernel - 1
        channels, height, width = features.shape[0], features.shape[1] - lost, features.shape[2] - lost
        rows, columns = -(-height // outputs), -(-width // outputs)
        features = functional.pad(features, (0, columns * outputs - width, 0, rows * outputs - height))
        channel, row, column = features.stride()
        blocks = features.as_strided(
            (rows, columns, channels, size, size), (outputs * row, outputs * column, channel, row, column)
        )
        spectrum = torch.fft.rfft2(blocks.reshape(rows * columns, channels, size, size))
        products = torch.bmm(spectrum.permute(2, 3, 0, 1).flatten(0, 1), self._spectrum)
        products = products.view(size, size // 2 + 1, rows * columns, -1).permute(2, 3, 0, 1)
        values = torch.fft.irfft2(products, s=(size, size))[..., :outputs, :outputs]
        values = functional.leaky_relu_(values + self._bias[:, None, None], self._slope)
        logits = torch.einsum("bfyx,f->byx", values, self._head) + self._head_bias
        logits = logits.view(rows, columns, outputs, outputs).transpose(1, 2)
        return logits.reshape(1, rows * outputs, columns * outputs)[:, :height, :width]


# ---- a detector of small convolutions, which may answer by cells of several outputs ----

CELL_PX = 2 * OUTPUT_STRIDE_PX
"""Side of a cell."""
LAYERS = (nn.Conv2d, nn.LeakyReLU, nn.ReLU6, nn.ZeroPad2d, ResidualBlock, InvertedBlock)
"""What our networks are made of, once they are folded."""


def is_ours(network: nn.Module) -> bool:
    """Whether a network begins as ours do, with pixels scaled: others are not folded."""
    return isinstance(network, nn.Sequential) and isinstance(next(iter(network), None), PixelScale)


def fold_logits(network: nn.Sequential) -> nn.Sequential:
    """A detector without normalisation, for pixels from 0 to 255, in double precision.

    Its last layer gives the logits of "yes" against "no": one, or those of a cell's four outputs.
    """
    folded = fold_normalisation(copy.deepcopy(network).double())
    *body, last = folded
    head = last.answer if isinstance(last, Subcells) else last
    known = all(isinstance(layer, LAYERS) for layer in body)
    if not known or not isinstance(head, nn.Conv2d) or not isinstance(body[0], nn.Conv2d):
        raise other_kind()
    _check_finite(folded)
    half = head.out_channels // 2
    difference = nn.Conv2d(head.in_channels, half, 1, dtype=torch.float64)
    with torch.no_grad():
        body[0].weight /= PIXEL_MAX
        difference.weight.copy_(head.weight[half:] - head.weight[:half])
        difference.bias.copy_(head.bias[half:] - head.bias[:half])  # type: ignore[union-attr, index]
    return nn.Sequential(*body, difference).eval().requires_grad_(False)


class PlainDetector:
    """One network, ready to compute logits of tiles by PyTorch's own convolutions.

    `dtype` is that of weights and features; where products may be `rounded`, those of float32 are to
    TensorFloat-32 on a GPU.
    """

    def __init__(
        self, network: nn.Sequential, device: torch.device, dtype: torch.dtype, *, rounded: bool = False
    ) -> None:
        layers = fold_logits(network).to(device, dtype)
        self._layers = layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._dtype, self._rounded = dtype, rounded
        self._outputs = CELL_PX // OUTPUT_STRIDE_PX if isinstance(network[-1], Subcells) else 1

    def logits(self, image: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3) on the device."""
        rows, columns = map(outputs_along, image.shape[1:3])
        with tensor_float(self._rounded):
            answers = self._layers(image.permute(0, 3, 1, 2).to(self._dtype))
            values = functional.pixel_shuffle(answers, self._outputs)
        return values[:, 0, :rows, :columns].float()


# ---- any other network, computed as it is ----

SHIFTED_TOLERANCE = 1e-3
"""Largest difference, of the spread of its logits, by which an answer may depend on what lies around."""


class ForeignDetector:
    """Any network of the right geometry, by PyTorch in float32."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self._network = copy.deepcopy(network).float().to(device).eval().requires_grad_(False)
        self._device = device
        _check_finite(self._network)
        self._check_geometry()

    def logits(self, image: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3) on the device."""
        rows, columns = (side - (side - RECEPTIVE_PX) % OUTPUT_STRIDE_PX for side in image.shape[1:3])
        with tensor_float(False):
            pixels = image[:, :rows, :columns].permute(0, 3, 1, 2).float() / PIXEL_MAX
            values: Tensor = self._network(pixels)
        return values[:, 1] - values[:, 0]

    def _check_geometry(self) -> None:
        """Refuse a network whose answers do not mean the positions that the engine takes them for."""
        side = RECEPTIVE_PX + 3 * OUTPUT_STRIDE_PX
        pixels = torch.randint(0, 256, (1, side, side, 3), generator=torch.Generator().manual_seed(0))
        image = pixels.to(self._device, torch.uint8)
        row, column = 2, 1
        top, left = row * OUTPUT_STRIDE_PX, column * OUTPUT_STRIDE_PX
        try:
            whole = self.logits(image)
            alone = self.logits(image[:, top : top + RECEPTIVE_PX, left : left + RECEPTIVE_PX])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise _other_geometry(f"it fails on {side} px ({first_line(error)})") from error
        if whole.shape != (1, 4, 4) or alone.shape != (1, 1, 1):
            shapes = (
                f"{tuple(whole.shape[1:])} on {side} px and {tuple(alone.shape[1:])} on {RECEPTIVE_PX} px"
            )
            raise _other_geometry(f"it answers {shapes}, and not (4, 4) and (1, 1)")
        spread = float(whole.std()) + float(whole.abs().mean()) + 1e-6
        if not float((whole[0, row, column] - alone[0, 0, 0]).abs()) <= SHIFTED_TOLERANCE * spread:
            raise _other_geometry("its answer about a position depends on what lies around its 97 px")


def first_line(error: Exception) -> str:
    """What is the matter, in short."""
    return str(error).strip().split("\n")[0][:200]


def _other_geometry(why: str) -> ModelError:
    return ModelError(
        f"the network's geometry is not that of a detector: {why}",
        next_step=f"give one that sees {RECEPTIVE_PX} px a side, answers (n, 2, ...) every "
        f"{OUTPUT_STRIDE_PX} px and pads nothing",
    )


# ---- a classifier of single patches, shown every window of a tile by itself ----


def windows_px(device: torch.device) -> int:
    """Pixels of windows that a network sees at once."""
    return 4_000_000 if device.type == "cpu" else 30_000_000


class PatchNetwork(nn.Module):
    """Any classifier of patches as a detector: slow, for windows overlap and nothing is shared.

    It takes RGB (n, 3, patch_px, patch_px) from 0 to 1 and gives one logit each, or those of "no" and "yes".
    It is shown a window every `stride_px`; between these, logits are interpolated.
    """

    def __init__(self, network: nn.Module, patch_px: int, stride_px: int) -> None:
        super().__init__()
        if patch_px < 1 or stride_px < 1 or stride_px % OUTPUT_STRIDE_PX:
            raise UsageError(
                f"patches of {patch_px} px every {stride_px} px",
                next_step=f"give the side it was trained on, and a multiple of {OUTPUT_STRIDE_PX} as stride",
            )
        self.network = copy.deepcopy(network).float().cpu().eval().requires_grad_(False)
        _check_finite(self.network)
        self.patch_px, self.stride_px, self._step = patch_px, stride_px, stride_px // OUTPUT_STRIDE_PX
        beyond = patch_px - patch_px // 2 - (RECEPTIVE_PX - PATCH_PX // 2)
        self._edge = max(0, -(-beyond // stride_px)) * self._step
        """Outputs at the ends of a tile whose windows it may not hold."""
        self.margin = self._edge + self._step - 1
        """Outputs at the ends of a tile that are not known."""
        patches = torch.arange(9 * patch_px**2).view(3, 3, patch_px, patch_px) % 251
        try:
            with torch.inference_mode():
                self(patches)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise ModelError(
                f"the network, given patches {tuple(patches.shape)}, fails ({first_line(error)})",
                next_step="give patch_px as it was trained, and a network with logits (n, 1) or (n, 2)",
            ) from error

    def extra_repr(self) -> str:
        """What else decides its answers."""
        return f"patch_px={self.patch_px}, stride_px={self.stride_px}"

    def forward(self, patches: Tensor) -> Tensor:
        """Logits (n,) of uint8 pixels (n, 3, patch_px, patch_px)."""
        with tensor_float(False):
            answers: Tensor = self.network(patches.float() / PIXEL_MAX)
        values = answers.reshape(len(patches), -1)
        if values.shape[1] > 2:
            raise ValueError(f"it answers {tuple(answers.shape)}")
        return values[:, -1] - (values[:, 0] if values.shape[1] == 2 else 0)

    def logits(self, image: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3), 0 where not known."""
        sides = [outputs_along(side) for side in image.shape[1:3]]
        out, first = torch.zeros(len(image), *sides, device=image.device), self._edge
        shape = [len(image), *((side - 1 - 2 * first) // self._step + 1 for side in sides)]
        if min(shape) < 1:
            return out
        start, windows = PATCH_PX // 2 + OUTPUT_STRIDE_PX * first - self.patch_px // 2, image
        for axis in (1, 2):
            windows = windows.narrow(axis, start, windows.shape[axis] - start)
            windows = windows.unfold(axis, self.patch_px, self.stride_px).narrow(axis, 0, shape[axis])
        at_once = max(1, windows_px(image.device) // self.patch_px**2)
        numbers = torch.arange(math.prod(shape), device=image.device).split(at_once)
        logits = torch.cat([self(windows[torch.unravel_index(some, shape)]) for some in numbers]).view(shape)
        size = [self._step * (count - 1) + 1 for count in shape[1:]]
        between = functional.interpolate(logits[:, None], size, mode="bilinear", align_corners=True)
        out[:, first : first + size[0], first : first + size[1]] = between[:, 0]
        return out


@contextmanager
def tensor_float(allowed: bool) -> Iterator[None]:
    """Whether products of float32 numbers on a GPU may be rounded to TensorFloat-32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
