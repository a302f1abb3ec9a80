"""The paper's augmentations as batched torch operations, on the device where the batch lives.

>>> import torch
>>> augment = Augmentation("RCSEHBG")
>>> generator = torch.Generator().manual_seed(1)
>>> augment(torch.zeros(64, 128, 128, 3, dtype=torch.uint8), generator).shape
torch.Size([64, 3, 100, 100])
"""

from metaphase.images.stain.augmentation.augment import Augmentation
from metaphase.images.stain.augmentation.config import LETTERS, RECIPES, AugmentationConfig, parse_recipe
from metaphase.images.stain.augmentation.letters import Draw
from metaphase.images.stain.augmentation.mixing import Appearance, StainMixer, appearance_of

__all__ = [
    "LETTERS",
    "RECIPES",
    "Appearance",
    "Augmentation",
    "AugmentationConfig",
    "Draw",
    "StainMixer",
    "appearance_of",
    "parse_recipe",
]
