"""The random numbers of one batch: drawn once, apart from what is done with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from metaphase.stain.augmentation.config import AugmentationConfig, Range

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
