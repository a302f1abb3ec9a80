"""Recipes: draw the random numbers, resample once, then colour, blur and noise."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor, nn

from metaphase.base.errors import UsageError
from metaphase.images.stain.augmentation.config import AugmentationConfig, parse_recipe
from metaphase.images.stain.augmentation.letters import (
    Draw,
    blur,
    displacement,
    draw_numbers,
    enhance,
    node_spread,
    normal_quantiles,
    pixel_places,
    resample,
    standard_normal,
    vary_stains,
)

DEFAULT = AugmentationConfig()


class Augmentation(nn.Module):
    """A recipe of letters: uint8 patches in, patches ready for a network out.

    Takes uint8 (n, h, w, 3), or (n, 3, h, w) as uint8 or float in [0, 1]; gives float32
    (n, 3, size, size) in [0, 1], channels-last in memory. Letters may come in any order and are
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
        self.config = config.only(letters)
        constants = {
            "pixels": pixel_places(config.size_px)[None],
            "spread": node_spread(config.size_px, config.elastic_sigma_px),
            "stains": torch.from_numpy(config.stain_matrix.array).float(),
            "separation": torch.from_numpy(config.stain_matrix.inverse).float(),
            "quantiles": normal_quantiles(),
        }
        for name, tensor in constants.items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, batch: Tensor, generator: Generator) -> Tensor:
        """Augment a batch with new random numbers from `generator`, which lives on the batch's device."""
        if generator.device.type != batch.device.type:
            raise UsageError(
                f"the batch is on {batch.device} and the generator on {generator.device}",
                next_step=f"make torch.Generator({str(batch.device)!r})",
            )
        return self.apply_draw(batch, self.draw(len(batch), generator))

    def draw(self, count: int, generator: Generator) -> Draw:
        """Random numbers for `count` patches; moves the recipe to the generator's device."""
        if self.pixels.device.type != generator.device.type:
            self.to(generator.device)
        numbers = draw_numbers(count, self.config, generator)
        nodes = noise = None
        if "E" in self.letters:
            side = self.spread.shape[1]
            nodes = standard_normal((count, 2, side, side), self.quantiles, generator)
        if "G" in self.letters:
            size = self.config.size_px
            noise = standard_normal((count, size, size, 3), self.quantiles, generator).permute(0, 3, 1, 2)
        return replace(numbers, nodes=nodes, noise=noise)

    @torch.no_grad()
    def apply_draw(self, batch: Tensor, drawn: Draw) -> Tensor:
        """Augment with given random numbers; nothing random happens here, so it may be compiled."""
        config, places = self.config, self.pixels
        if drawn.nodes is not None:
            places = places + displacement(drawn.nodes, self.spread, config.elastic_alpha_px)
        patches = resample(_as_float_planes(batch), places, drawn)
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


def _as_float_planes(batch: Tensor) -> Tensor:
    """Any accepted batch as float32 (n, 3, h, w) in [0, 1]."""
    if batch.ndim != 4 or 3 not in (batch.shape[1], batch.shape[3]) or 0 in batch.shape:
        raise UsageError(
            f"a batch of shape {tuple(batch.shape)} is not one of RGB patches",
            next_step="give (n, h, w, 3) or (n, 3, h, w)",
        )
    planes = batch.permute(0, 3, 1, 2) if batch.shape[3] == 3 else batch
    if planes.dtype == torch.uint8:
        return planes.to(torch.float32, memory_format=torch.contiguous_format).mul_(1 / 255)
    if not planes.is_floating_point():
        raise UsageError(
            f"patches of type {batch.dtype} have no known range", next_step="give uint8 or float"
        )
    return planes.to(torch.float32)
