"""What an augmentation may do: the paper's letters and the ranges of their random numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace

from metaphase.base.config import CODE_ONLY
from metaphase.base.errors import UsageError
from metaphase.images.stain.deconvolution import HED, StainMatrix

Range = tuple[float, float]

LETTERS = {
    "R": "rotation and mirroring",
    "C": "stain colour",
    "S": "scaling",
    "E": "elastic deformation",
    "H": "colour, contrast and brightness",
    "B": "blur",
    "G": "noise",
}
RECIPES = ("RSEB", "RCSEB", "RCSEHBG")
"""The three recipes that the paper compares."""

_NEUTRAL: dict[str, dict[str, object]] = {
    "R": {"mirror": False, "rotation_degrees": (0.0, 0.0)},
    "C": {"stain_factor": (1.0, 1.0), "stain_bias": (0.0, 0.0)},
    "S": {"scale": (1.0, 1.0)},
    "E": {"elastic_alpha_px": 0.0},
    "H": {"colour": (1.0, 1.0), "contrast": (1.0, 1.0), "brightness": (1.0, 1.0)},
    "B": {"blur_sigma_px": (0.0, 0.0)},
    "G": {"noise_sigma": (0.0, 0.0)},
}


@dataclass(frozen=True)
class AugmentationConfig:
    """Ranges of uniform random numbers; the defaults are the paper's, at 0.25 um/px."""

    size_px: int = field(default=100, metadata=CODE_ONLY)
    """Side of the patches that come out, cut from the centre of larger ones."""
    translation_px: int = 14
    """Largest shift of the crop in x and in y, in whole pixels. It has no letter: every recipe shifts."""
    mirror: bool = True
    """R: flip horizontally, vertically, both or not, with equal odds."""
    rotation_degrees: Range = (0.0, 360.0)
    """R: angle."""
    quarter_turns: bool = False
    """R: round the angle to multiples of 90 degrees, which leaves the pixels as they are."""
    scale: Range = (0.75, 1.25)
    """S: above 1 things get larger."""
    elastic_alpha_px: float = 100.0
    """E: factor of the smoothed displacement field."""
    elastic_sigma_px: float = 10.0
    """E: standard deviation of the Gaussian that smooths the field."""
    stain_factor: Range = (0.95, 1.05)
    """C: factor of each stain's amount."""
    stain_bias: Range = (-0.05, 0.05)
    """C: amount added to each stain, in natural-log density."""
    stain_matrix: StainMatrix = field(default=HED, metadata=CODE_ONLY)
    """C: which stains."""
    stain_epsilon: float = 1 / 255
    """C: added to intensities. One grey level, so that black pixels do not swing the colours around them."""
    colour: Range = (0.75, 1.5)
    """H: saturation, 0 is grey."""
    contrast: Range = (0.75, 1.5)
    """H: distance from the patch's mean grey."""
    brightness: Range = (0.75, 1.25)
    """H: factor of the intensity."""
    blur_sigma_px: Range = (0.0, 2.0)
    """B: standard deviation of the Gaussian."""
    noise_sigma: Range = (0.0, 0.1)
    """G: standard deviation of the noise, where white is 1."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, tuple):
                _check_range(one.name, value, least=_LEAST[one.name])
        if self.size_px < 1 or self.translation_px < 0:
            raise UsageError(
                f"patches of {self.size_px} px shifted by {self.translation_px} px cannot be cut",
                next_step="give a size of at least 1 and a translation of at least 0",
            )
        if not (self.elastic_sigma_px >= 1 and self.elastic_alpha_px >= 0 and self.stain_epsilon > 0):
            raise UsageError(
                f"elastic alpha {self.elastic_alpha_px} px with sigma {self.elastic_sigma_px} px, "
                f"or stain epsilon {self.stain_epsilon}, makes no sense",
                next_step="give alpha of at least 0, sigma of at least 1 px and an epsilon above 0",
            )

    def without_shift(self) -> AugmentationConfig:
        """The same with the crop always in the centre."""
        return replace(self, translation_px=0)

    def only(self, letters: str) -> AugmentationConfig:
        """The same with every letter that is not named made neutral."""
        named = parse_recipe(letters)
        neutral = {
            key: value for letter in LETTERS if letter not in named for key, value in _NEUTRAL[letter].items()
        }
        return replace(self, **neutral)  # type: ignore[arg-type]


_LEAST = {
    "rotation_degrees": -math.inf,
    "scale": 1e-3,
    "stain_factor": 0.0,
    "stain_bias": -math.inf,
    "colour": 0.0,
    "contrast": 0.0,
    "brightness": 0.0,
    "blur_sigma_px": 0.0,
    "noise_sigma": 0.0,
}


def parse_recipe(letters: str) -> frozenset[str]:
    """The letters of a recipe; their order does not matter, as in the paper's table."""
    unknown = sorted(set(letters) - set(LETTERS))
    if unknown or len(set(letters)) != len(letters):
        known = ", ".join(f"{letter} {meaning}" for letter, meaning in LETTERS.items())
        what = f"unknown letters {', '.join(unknown)}" if unknown else "a letter twice"
        raise UsageError(f"the recipe {letters!r} has {what}", next_step=f"choose from {known}")
    return frozenset(letters)


def _check_range(name: str, value: Range, *, least: float) -> None:
    if len(value) != 2 or not all(map(math.isfinite, value)) or not least <= value[0] <= value[1]:
        raise UsageError(
            f"{name} = {value} is not a range",
            next_step=f"give a lowest and a highest number, neither below {least:g}",
        )
