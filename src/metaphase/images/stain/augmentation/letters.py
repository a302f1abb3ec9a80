"""What each letter of a recipe does to a batch, on any device.

A sum of some thousand uniform numbers is normal, and a field smoothed with sigma holds no detail finer
than that. So the field is drawn from the distribution that it has: normal numbers on a coarse lattice
of nodes, 0.75 sigma apart, each spread by the same Gaussian. Mean, variance and correlation agree
with the smoothed pixel noise of an endless image to 1e-6, at a tenth of the work, and there is no
border effect. Two matrix products turn the nodes into the field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from metaphase.images.stain.augmentation.config import AugmentationConfig, Range
from metaphase.images.stain.deconvolution import EPSILON, HE_RESIDUAL, StainMatrix

# ---- the random numbers of one batch ----

NOISE_LEVELS = 1 << 16


@dataclass(frozen=True)
class Draw:
    """Random numbers for n patches, each with its own row."""

    angle: Tensor
    """(n,) radians."""
    flip: Tensor
    """(n, 2) factors -1 or 1 of x and y."""
    scale: Tensor
    """(n,)"""
    shift_px: Tensor
    """(n, 2) whole pixels in x and y."""
    stain_factor: Tensor
    """(n, 3), one a stain."""
    stain_bias: Tensor
    """(n, 3), one a stain."""
    colour: Tensor
    """(n,)"""
    contrast: Tensor
    """(n,)"""
    brightness: Tensor
    """(n,)"""
    blur_sigma_px: Tensor
    """(n,)"""
    noise_sigma: Tensor
    """(n,)"""
    nodes: Tensor | None = None
    """(n, 2, k, k) standard normal, from which the elastic field is made; None without one."""
    noise: Tensor | None = None
    """(n, 3, size, size) standard normal, channels-last in memory; None without noise."""


def draw_numbers(count: int, config: AugmentationConfig, generator: Generator) -> Draw:
    """All but the elastic nodes and the noise, for `count` patches, on the generator's device."""
    unit = torch.rand((count, 17), generator=generator, device=generator.device)
    angle = _within(unit[:, 0], config.rotation_degrees)
    if config.quarter_turns:
        angle = (angle / 90).round() * 90
    steps = 2 * config.translation_px + 1
    flip = torch.where(unit[:, 1:3] < 0.5, -1.0, 1.0) if config.mirror else torch.ones_like(unit[:, 1:3])
    return Draw(
        angle=angle * (math.pi / 180),
        flip=flip,
        scale=_within(unit[:, 3], config.scale),
        shift_px=(unit[:, 4:6] * steps).floor().clamp(max=steps - 1) - config.translation_px,
        stain_factor=_within(unit[:, 6:9], config.stain_factor),
        stain_bias=_within(unit[:, 9:12], config.stain_bias),
        colour=_within(unit[:, 12], config.colour),
        contrast=_within(unit[:, 13], config.contrast),
        brightness=_within(unit[:, 14], config.brightness),
        blur_sigma_px=_within(unit[:, 15], config.blur_sigma_px),
        noise_sigma=_within(unit[:, 16], config.noise_sigma),
    )


def _within(unit: Tensor, limits: Range) -> Tensor:
    return unit * (limits[1] - limits[0]) + limits[0]


def standard_normal(shape: tuple[int, ...], quantiles: Tensor, generator: Generator) -> Tensor:
    """Normal numbers at a quarter of the price of `torch.randn` on a CPU.

    Four at a time are cut from 64 random bits, and each looks up one of `normal_quantiles`.
    """
    count = math.prod(shape)
    bits = torch.empty(-(-count // 4), dtype=torch.int64, device=generator.device)
    bits.random_(-(2**63), None, generator=generator)
    index = bits.view(torch.int16)[:count].to(torch.int32) + NOISE_LEVELS // 2
    return torch.index_select(quantiles, 0, index).view(shape)


def normal_quantiles() -> Tensor:
    """65,536 equally likely numbers with the normal distribution: mean 0, variance 1, extremes at 4.3."""
    middles = (torch.arange(NOISE_LEVELS, dtype=torch.float64) + 0.5) / NOISE_LEVELS
    quantiles = torch.special.ndtri(middles)
    return torch.div(quantiles, quantiles.std(correction=0)).float()


# ---- torch twins of `metaphase.images.stain.deconvolution` ----


def separate(batch: Tensor, matrix: StainMatrix = HE_RESIDUAL, *, epsilon: float = EPSILON) -> Tensor:
    """Stain amounts (n, 3, h, w) of a float batch (n, 3, h, w) in [0, 1]."""
    return _mix(-(batch + epsilon).log(), torch.from_numpy(matrix.inverse))


def combine(stains: Tensor, matrix: StainMatrix = HE_RESIDUAL, *, epsilon: float = EPSILON) -> Tensor:
    """RGB (n, 3, h, w) in [0, 1] of stain amounts (n, 3, h, w): the inverse of `separate`."""
    density = _mix(stains, torch.from_numpy(matrix.array))
    return (torch.exp(-density) - epsilon).clamp(0, 1)


def _mix(planes: Tensor, matrix: Tensor) -> Tensor:
    """Row vectors along the channel axis, times `matrix`."""
    return torch.einsum("nchw,cd->ndhw", planes, matrix.to(planes))


# ---- Gaussian blur with a sigma of its own for each patch ----

NEGLIGIBLE = 1e-10
"""Weights below are 0: they would end up as denormal numbers, which are slow."""


def blur(batch: Tensor, sigma_px: Tensor) -> Tensor:
    """Blur (n, c, s, s) with `sigma_px` (n,); edges are mirrored.

    Along each axis blurring is a product with one matrix a patch, which batches well whatever the
    sigmas are, and sigma 0 is the identity exactly.
    """
    count, channels, size, _ = batch.shape
    gather = _gathering(sigma_px, size)
    across = torch.bmm(batch.reshape(count, channels * size, size), gather)
    turned = across.view(count, channels, size, size).transpose(2, 3)
    down = torch.bmm(turned.reshape(count, channels * size, size), gather)
    return down.view(count, channels, size, size).transpose(2, 3)


def _gathering(sigma_px: Tensor, size: int) -> Tensor:
    """(n, s, s): column i holds the weights with which pixel i gathers the pixels of its line."""
    spread = (2 * sigma_px[:, None] ** 2).clamp(min=torch.finfo(sigma_px.dtype).tiny)
    distance = torch.arange(1 - size, 2 * size, device=sigma_px.device)
    bell = torch.exp(-(distance**2) / spread)  # (n, 3 s - 1), distances 1 - s ... 2 s - 1
    bell = functional.threshold(bell, NEGLIGIBLE, 0)
    windows = bell.unfold(1, size, 1)  # window k holds the distances k + 1 - s ... k
    direct = windows[:, :size].flip(2)  # row i: i - j
    left = windows[:, size : 2 * size]  # row i: i + 1 + j, the line mirrored at its left end
    weights = direct + left + left.flip(1, 2)
    return weights / weights.sum(dim=1, keepdim=True)


# ---- stain and colour ----

GREY = (0.299, 0.587, 0.114)
"""Luma weights (ITU-R 601), as Pillow has them."""


def vary_stains(
    batch: Tensor, factor: Tensor, bias: Tensor, stains: Tensor, separation: Tensor, epsilon: float
) -> Tensor:
    """Change each stain's amount to factor * amount + bias in (n, 3, h, w); `factor`, `bias` are (n, 3).

    `stains` is M and `separation` its inverse. Separating, scaling and combining are linear in
    density, so one matrix a patch does all three.
    """
    mixing = separation @ (factor[:, :, None] * stains)  # (n, 3, 3), for rows of log intensity
    offset = -(bias @ stains)[..., None]  # (n, 3, 1)
    logs = (batch + epsilon).log_().flatten(2)
    varied = torch.baddbmm(offset, mixing.transpose(1, 2), logs)
    return varied.exp_().sub_(epsilon).clamp_(0, 1).view_as(batch)


def enhance(batch: Tensor, colour: Tensor, contrast: Tensor, brightness: Tensor) -> Tensor:
    """Saturation, then contrast, then brightness as Pillow's ImageEnhance has them; factors (n,)."""
    colour, contrast, brightness = (factor[:, None, None] for factor in (colour, contrast, brightness))
    vivid = torch.bmm(_saturation(colour), batch.flatten(2)).clamp_(0, 1)
    red, green, blue = vivid.mean(dim=2).unbind(1)
    grey = (red * GREY[0] + green * GREY[1] + blue * GREY[2])[:, None, None]
    contrasted = vivid.mul_(contrast).add_(grey * (1 - contrast)).clamp_(0, 1)
    return contrasted.mul_(brightness).clamp_(0, 1).view_as(batch)


def _saturation(colour: Tensor) -> Tensor:
    """(n, 3, 3): the colour's share of a pixel as it is, the rest as its grey; `colour` is (n, 1, 1)."""
    same = torch.eye(3, device=colour.device)
    to_grey = torch.stack([torch.full((3,), weight, device=colour.device) for weight in GREY], dim=1)
    return colour * same + (1 - colour) * to_grey


# ---- elastic displacement (Simard et al. 2003) ----

NODE_SPACING = 0.75
"""Distance of nodes in units of sigma; wider ones would show as a lattice."""
REACH = 4.0
"""Nodes outside the patch count up to this many sigma away."""
UNIFORM_VARIANCE = 1 / 3


def node_spread(size_px: int, sigma_px: float) -> Tensor:
    """(size, k): what each of k standard normal nodes gives to each pixel along one axis."""
    spacing = NODE_SPACING * sigma_px
    count = math.ceil((size_px - 1 + 2 * REACH * sigma_px) / spacing) + 1
    nodes = (torch.arange(count, dtype=torch.float64) - (count - 1) / 2) * spacing
    pixels = torch.arange(size_px, dtype=torch.float64) - (size_px - 1) / 2
    bell = torch.exp(-0.5 * ((pixels[:, None] - nodes) / sigma_px) ** 2)
    height = UNIFORM_VARIANCE**0.25 * math.sqrt(spacing) / (math.sqrt(2 * math.pi) * sigma_px)
    return torch.mul(bell, height).float()


def displacement(nodes: Tensor, spread: Tensor, alpha_px: float) -> Tensor:
    """Displacements (n, 2, size, size) in pixels from standard normal nodes (n, 2, k, k)."""
    return alpha_px * (spread @ nodes @ spread.T)


# ---- rotation, mirroring, scaling, deformation, shift and crop as one resampling ----


def pixel_places(size_px: int) -> Tensor:
    """(2, size, size): x and y of each pixel of a patch, from the patch's centre."""
    axis = torch.arange(size_px, dtype=torch.float32) - (size_px - 1) / 2
    return torch.stack([axis.expand(size_px, size_px), axis[:, None].expand(size_px, size_px)])


def resample(batch: Tensor, places: Tensor, drawn: Draw) -> Tensor:
    """Sample (n, 3, h, w) at `places` (n or 1, 2, size, size), turned and shifted as drawn.

    Bilinear; beyond its edges a patch continues as its mirror image.
    """
    height, width = batch.shape[-2:]
    size = places.shape[-1]
    flat = places.flatten(2).expand(len(batch), 2, size * size)
    x, y = torch.baddbmm(drawn.shift_px[..., None], _turns(drawn), flat).unbind(1)
    grid = torch.stack([_normalised(x, width, size), _normalised(y, height, size)], dim=-1)
    return functional.grid_sample(
        batch,
        grid.view(-1, size, size, 2),
        mode="bilinear",
        padding_mode="reflection",
        align_corners=False,
    )


def _turns(drawn: Draw) -> Tensor:
    """(n, 2, 2), from output to input: rotation times mirroring over scale."""
    cosine, sine = drawn.angle.cos(), drawn.angle.sin()
    rotation = torch.stack([torch.stack([cosine, -sine], -1), torch.stack([sine, cosine], -1)], -2)
    return rotation * drawn.flip[:, None] / drawn.scale[:, None, None]


def _normalised(place: Tensor, side: int, size: int) -> Tensor:
    """Pixels from the centre to the -1 ... 1 of `grid_sample`.

    Where an odd number of pixels is cut off, the crop's centre is half a pixel up and left.
    """
    return (place - 0.5 * ((side - size) % 2)) * (2 / side)
