"""What every method of standardisation offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from metaphase.stain.pixels import RGB
from metaphase.stain.standardisation.density import Floats


@dataclass(frozen=True)
class SlideColours(ABC):
    """How one slide is stained, in the few numbers that a method needs: floats, and tuples of them."""

    method: ClassVar[str]

    @classmethod
    @abstractmethod
    def describe(cls, pixels: RGB) -> Self:
        """Fit on pixels (..., 3) of the slide; too little tissue is an error."""

    @abstractmethod
    def towards(self, template: Self, colours: Floats) -> Floats:
        """Map colours (n, 3) in [0, 255] of this slide to those of the template's."""
