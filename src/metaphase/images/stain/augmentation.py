"""The paper's augmentations, and stain mixing, as batched torch operations on the device of the batch.

>>> import torch
>>> augment = Augmentation("RCSEHBG")
>>> generator = torch.Generator().manual_seed(1)
>>> augment(torch.zeros(64, 128, 128, 3, dtype=torch.uint8), generator).shape
torch.Size([64, 3, 100, 100])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Generator, Tensor, nn
from torch.nn import functional

from metaphase.base.arrays import RGB, Floats
from metaphase.base.errors import UsageError
from metaphase.base.settings import CODE_ONLY, IN_ORDER, settings
from metaphase.images.stain.deconvolution import HED, STAINED_OD, WHITE, StainMatrix, optical_density

Range = Annotated[tuple[float, float], IN_ORDER]
Scale = Annotated[float, Field(ge=1e-3)]
Amounts = Annotated[tuple[NonNegativeFloat, NonNegativeFloat], IN_ORDER]

LETTERS = {
    "R": "rotation and mirroring",
    "C": "stain colour",
    "S": "scaling",
    "E": "elastic deformation",
    "H": "colour, contrast and brightness",
    "B": "blur",
    "G": "noise",
}


@settings
class AugmentationConfig:
    """Ranges of uniform random numbers; the defaults are the paper's, at 0.25 um/px."""

    size_px: Annotated[PositiveInt, CODE_ONLY] = 100
    """Side of the patches that come out, cut from the centre of larger ones."""
    translation_px: NonNegativeInt = 14
    """Largest shift of the crop in x and in y, in whole pixels. It has no letter: every recipe shifts."""
    mirror: bool = True
    """R: flip horizontally, vertically, both or not, with equal odds."""
    rotation_degrees: Range = (0.0, 360.0)
    """R: angle."""
    quarter_turns: bool = False
    """R: round the angle to multiples of 90 degrees, which leaves the pixels as they are."""
    scale: Annotated[tuple[Scale, Scale], IN_ORDER] = (0.75, 1.25)
    """S: above 1 things get larger."""
    elastic_alpha_px: NonNegativeFloat = 100.0
    """E: factor of the smoothed displacement field."""
    elastic_sigma_px: Annotated[float, Field(ge=1)] = 10.0
    """E: standard deviation of the Gaussian that smooths the field."""
    stain_factor: Amounts = (0.95, 1.05)
    """C: factor of each stain's amount."""
    stain_bias: Range = (-0.05, 0.05)
    """C: amount added to each stain, in natural-log density."""
    stain_matrix: Annotated[StainMatrix, CODE_ONLY] = HED
    """C: which stains."""
    stain_epsilon: PositiveFloat = 1 / 255
    """C: added to intensities. One grey level, so that black pixels do not swing the colours around them."""
    colour: Amounts = (0.75, 1.5)
    """H: saturation, 0 is grey."""
    contrast: Amounts = (0.75, 1.5)
    """H: distance from the patch's mean grey."""
    brightness: Amounts = (0.75, 1.25)
    """H: factor of the intensity."""
    blur_sigma_px: Amounts = (0.0, 2.0)
    """B: standard deviation of the Gaussian."""
    noise_sigma: Amounts = (0.0, 0.1)
    """G: standard deviation of the noise, where white is 1."""


def parse_recipe(letters: str) -> frozenset[str]:
    """The letters of a recipe; their order does not matter, as in the paper's table."""
    unknown = sorted(set(letters) - set(LETTERS))
    if unknown or len(set(letters)) != len(letters):
        known = ", ".join(f"{letter} {meaning}" for letter, meaning in LETTERS.items())
        what = f"unknown letters {', '.join(unknown)}" if unknown else "a repeated letter"
        raise UsageError(f"the recipe {letters!r} has {what}", next_step=f"choose from {known}")
    return frozenset(letters)


# ---- the random numbers of one batch ----

NOISE_LEVELS = 1 << 16


@dataclass(frozen=True)
class Draw:
    """Random numbers for n patches: one a patch (n,), or as stated."""

    angle: Tensor
    """Radians."""
    flip: Tensor
    """(n, 2) factors -1 or 1 of x and y."""
    scale: Tensor
    shift_px: Tensor
    """(n, 2) whole pixels in x and y."""
    stain_factor: Tensor
    """(n, 3), one a stain."""
    stain_bias: Tensor
    """(n, 3), one a stain."""
    colour: Tensor
    contrast: Tensor
    brightness: Tensor
    blur_sigma_px: Tensor
    noise_sigma: Tensor
    nodes: Tensor | None
    """(n, 2, k, k) standard normal, from which the elastic field is made; None without one."""
    noise: Tensor | None
    """(n, 3, size, size) standard normal, channels-last in memory; None without noise."""


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


# ---- Gaussian blur with a sigma of its own for each patch ----

NEGLIGIBLE = 1e-10
"""Weights below are 0: they would end up as denormal numbers, which are slow."""


def blur(batch: Tensor, sigma_px: Tensor) -> Tensor:
    """Blur (n, c, s, s) with `sigma_px` (n,); edges are mirrored.

    Along each axis blurring is a product with one matrix a patch, which batches well whatever the
    sigmas are, and sigma 0 is the identity exactly. Column i of a matrix holds the weights with which pixel i
    gathers the pixels of its line.
    """
    count, channels, size, _ = batch.shape
    spread = (2 * sigma_px[:, None] ** 2).clamp(min=torch.finfo(sigma_px.dtype).tiny)
    distance = torch.arange(1 - size, 2 * size, device=sigma_px.device)
    bell = torch.exp(-(distance**2) / spread)  # (n, 3 s - 1), distances 1 - s ... 2 s - 1
    bell = functional.threshold(bell, NEGLIGIBLE, 0)
    windows = bell.unfold(1, size, 1)  # window k holds the distances k + 1 - s ... k
    direct = windows[:, :size].flip(2)  # row i: i - j
    left = windows[:, size : 2 * size]  # row i: i + 1 + j, the line mirrored at its left end
    weights = direct + left + left.flip(1, 2)
    gather = weights / weights.sum(dim=1, keepdim=True)
    across = torch.bmm(batch.reshape(count, channels * size, size), gather)
    turned = across.view(count, channels, size, size).transpose(2, 3)
    down = torch.bmm(turned.reshape(count, channels * size, size), gather)
    return down.view(count, channels, size, size).transpose(2, 3)


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
    same = torch.eye(3, device=colour.device)
    to_grey = torch.stack([torch.full((3,), weight, device=colour.device) for weight in GREY], dim=1)
    vivid = torch.bmm(colour * same + (1 - colour) * to_grey, batch.flatten(2)).clamp_(0, 1)
    red, green, blue = vivid.mean(dim=2).unbind(1)
    grey = (red * GREY[0] + green * GREY[1] + blue * GREY[2])[:, None, None]
    contrasted = vivid.mul_(contrast).add_(grey * (1 - contrast)).clamp_(0, 1)
    return contrasted.mul_(brightness).clamp_(0, 1).view_as(batch)


# ---- elastic displacement (Simard et al. 2003) ----
#
# A sum of some thousand uniform numbers is normal, and a field smoothed with sigma holds no detail finer
# than that. So the field is drawn from the distribution that it has: normal numbers on a coarse lattice
# of nodes, 0.75 sigma apart, each spread by the same Gaussian. Mean, variance and correlation agree
# with the smoothed pixel noise of an endless image to 1e-6, at a tenth of the work, and there is no
# border effect. Two matrix products turn the nodes into the field.

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


def resample(batch: Tensor, positions: Tensor, drawn: Draw) -> Tensor:
    """Sample (n, 3, h, w) at `positions` (n or 1, 2, size, size), turned and shifted as drawn.

    Bilinear; beyond its edges a patch continues as its mirror image.
    """
    height, width = batch.shape[-2:]
    size = positions.shape[-1]
    flat = positions.flatten(2).expand(len(batch), 2, size * size)
    cosine, sine = drawn.angle.cos(), drawn.angle.sin()
    rotation = torch.stack([torch.stack([cosine, -sine], -1), torch.stack([sine, cosine], -1)], -2)
    turns = rotation * drawn.flip[:, None] / drawn.scale[:, None, None]  # from output to input
    x, y = torch.baddbmm(drawn.shift_px[..., None], turns, flat).unbind(1)
    # From pixels around the centre to -1 ... 1. Where an odd number of pixels is cut off, the crop's centre
    # is half a pixel up and left.
    axes = [(at - 0.5 * ((side - size) % 2)) * (2 / side) for at, side in ((x, width), (y, height))]
    grid = torch.stack(axes, dim=-1).view(-1, size, size, 2)
    return functional.grid_sample(
        batch, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )


# ---- a recipe: draw the random numbers, resample once, then colour, blur and noise ----

DEFAULT = AugmentationConfig()


class Augmentation(nn.Module):
    """A recipe of letters: uint8 patches in, patches ready for a network out.

    Takes uint8 (n, h, w, 3) or float32 (n, 3, h, w) in [0, 1]; gives float32 (n, 3, size, size) in [0, 1],
    channels-last in memory. Letters may come in any order and are
    applied as geometry (R, S, E, shift, crop), stain (C), colour (H), blur (B), noise (G).
    """

    pixels: Tensor
    spread: Tensor
    stains: Tensor
    separation: Tensor
    quantiles: Tensor

    def __init__(self, letters: str, config: AugmentationConfig = DEFAULT) -> None:
        super().__init__()
        self.letters = parse_recipe(letters)
        if "R" not in letters:
            config = replace(config, mirror=False, rotation_degrees=(0.0, 0.0))
        if "S" not in letters:
            config = replace(config, scale=(1.0, 1.0))
        self.config = config
        size = config.size_px
        axis = torch.arange(size, dtype=torch.float32) - (size - 1) / 2
        constants = {  # x and y of each pixel of a patch, from its centre
            "pixels": torch.stack([axis.expand(size, size), axis[:, None].expand(size, size)])[None],
            "spread": node_spread(size, config.elastic_sigma_px),
            "stains": torch.from_numpy(config.stain_matrix.array).float(),
            "separation": torch.from_numpy(config.stain_matrix.inverse).float(),
            "quantiles": normal_quantiles(),
        }
        for name, tensor in constants.items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, batch: Tensor, generator: Generator) -> Tensor:
        """Augment a batch with new random numbers from `generator`, which lives on the batch's device."""
        return self.apply_draw(batch, self.draw(len(batch), generator))

    def draw(self, count: int, generator: Generator) -> Draw:
        """Random numbers for `count` patches; moves the recipe to the generator's device."""
        if self.pixels.device.type != generator.device.type:
            self.to(generator.device)
        config, nodes, noise = self.config, None, None
        unit = torch.rand((count, 17), generator=generator, device=generator.device)
        angle = _within(unit[:, 0], config.rotation_degrees)
        if config.quarter_turns:
            angle = (angle / 90).round() * 90
        steps = 2 * config.translation_px + 1
        flip = torch.where(unit[:, 1:3] < 0.5, -1.0, 1.0) if config.mirror else torch.ones_like(unit[:, 1:3])
        if "E" in self.letters:
            side = self.spread.shape[1]
            nodes = standard_normal((count, 2, side, side), self.quantiles, generator)
        if "G" in self.letters:
            size = config.size_px
            noise = standard_normal((count, size, size, 3), self.quantiles, generator).permute(0, 3, 1, 2)
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
            nodes=nodes,
            noise=noise,
        )

    @torch.no_grad()
    def apply_draw(self, batch: Tensor, drawn: Draw) -> Tensor:
        """Augment with given random numbers; nothing random happens here, so it may be compiled."""
        config, positions = self.config, self.pixels
        if drawn.nodes is not None:
            positions = positions + displacement(drawn.nodes, self.spread, config.elastic_alpha_px)
        if batch.dtype == torch.uint8:
            planes = batch.permute(0, 3, 1, 2)
            batch = planes.to(torch.float32, memory_format=torch.contiguous_format).mul_(1 / WHITE)
        patches = resample(batch, positions, drawn)
        if "C" in self.letters:
            amounts = drawn.stain_factor, drawn.stain_bias
            patches = vary_stains(patches, *amounts, self.stains, self.separation, config.stain_epsilon)
        if "H" in self.letters:
            patches = enhance(patches, drawn.colour, drawn.contrast, drawn.brightness)
        if "B" in self.letters:
            patches = blur(patches, drawn.blur_sigma_px)
        patches = patches.contiguous(memory_format=torch.channels_last)
        if drawn.noise is not None:
            patches = torch.addcmul(patches, drawn.noise, drawn.noise_sigma[:, None, None, None]).clamp_(0, 1)
        return patches


# ---- stain mixing: a patch in the colours of another slide, so that no stain goes with one class ----
#
# A slide's appearance is the mean and the spread of its stained pixels' density. A linear map takes the
# appearance of a patch's slide to that of another one; how far it goes is drawn for each patch.

LEAST_PIXELS = 1000
"""Stained pixels that an appearance needs."""
LEAST_VARIANCE = 1e-5
"""Added to the variances, so that a slide of one colour can be mapped too."""


@dataclass(frozen=True)
class Appearance:
    """Density (base 10) of a slide's stained pixels in red, green and blue."""

    mean: Floats
    root: Floats
    """Square root of the covariance."""
    inverse: Floats
    """Inverse of the root."""


def appearance_of(pixels: RGB) -> Appearance | None:
    """The appearance of RGB pixels (..., 3); None where too few of them are stained."""
    density = optical_density(pixels).reshape(-1, 3)
    stained = density[density.mean(axis=1) > STAINED_OD].astype(np.float64)
    if len(stained) < LEAST_PIXELS:
        return None
    values, vectors = np.linalg.eigh(np.cov(stained.T) + LEAST_VARIANCE * np.eye(3))
    root = np.sqrt(values.clip(min=LEAST_VARIANCE))
    return Appearance(stained.mean(axis=0), vectors * root @ vectors.T, vectors / root @ vectors.T)


class StainMixer(nn.Module):
    """Shows a share of the patches in the colours of other slides.

    Slides are numbered as in `appearances`; those without one are neither changed nor imitated.
    """

    means: Tensor
    roots: Tensor
    inverses: Tensor
    imitated: Tensor

    def __init__(self, appearances: Sequence[Appearance | None], share: float) -> None:
        super().__init__()
        self.share = share
        known = [number for number, appearance in enumerate(appearances) if appearance is not None]
        same = Appearance(np.zeros(3), np.eye(3), np.eye(3))
        filled = [appearance or same for appearance in appearances]
        for name in ("mean", "root", "inverse"):
            arrays = np.array([getattr(appearance, name) for appearance in filled], np.float32)
            self.register_buffer(f"{name}s", torch.from_numpy(arrays), persistent=False)
        self.register_buffer("imitated", torch.tensor(known, dtype=torch.int64), persistent=False)

    @torch.no_grad()
    def forward(self, batch: Tensor, slides: Tensor, generator: Generator) -> Tensor:
        """uint8 (n, h, w, 3) of the numbered slides (n,) to float (n, 3, h, w) in [0, 1]."""
        planes = batch.permute(0, 3, 1, 2).float()
        if not len(self.imitated):
            return planes.div_(WHITE)
        unit = torch.rand((3, len(batch)), generator=generator, device=batch.device)
        chosen = (unit[0] * len(self.imitated)).long().clamp_(max=len(self.imitated) - 1)
        mixed = (unit[1] < self.share) & torch.isin(slides, self.imitated)
        weight = torch.where(mixed, unit[2], 0.0)
        matrix, offset = self._map(slides, self.imitated[chosen], weight)
        density = planes.add_(1).div_(WHITE + 1).log10_().neg_().flatten(2)
        shifted = torch.baddbmm(offset[:, :, None], matrix, density)
        light = torch.pow(10, shifted.neg_()).mul_(WHITE + 1).sub_(1).div_(WHITE)
        return light.clamp_(0, 1).view(planes.shape)

    def _map(self, slides: Tensor, others: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Matrix (n, 3, 3) and offset (n, 3): between no change and the other slide's appearance."""
        weight = weight[:, None, None]
        same = torch.eye(3, device=weight.device)
        matrix = torch.lerp(same, self.roots[others] @ self.inverses[slides], weight)
        wanted = torch.lerp(self.means[slides], self.means[others], weight[:, 0])
        return matrix, wanted - (matrix @ self.means[slides][:, :, None])[:, :, 0]
