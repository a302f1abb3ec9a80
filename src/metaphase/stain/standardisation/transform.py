"""A fitted standardisation: apply it to any pixels, save it, load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Self

from metaphase.errors import UsageError
from metaphase.stain.pixels import RGB, rgb_uint8
from metaphase.stain.standardisation.contract import SlideColours
from metaphase.stain.standardisation.hsd import HsdColours
from metaphase.stain.standardisation.macenko import MacenkoColours
from metaphase.stain.standardisation.plain import from_plain, read_plain, write_plain
from metaphase.stain.standardisation.reinhard import ReinhardColours
from metaphase.stain.standardisation.table import LookupTable

METHODS: Mapping[str, type[SlideColours]] = {
    colours.method: colours for colours in (HsdColours, MacenkoColours, ReinhardColours)
}
TRANSFORM_FORMAT = "metaphase-stain-transform-1"
TEMPLATE_FORMAT = "metaphase-stain-template-1"


@dataclass(frozen=True)
class Template:
    """What slides are made to look like: one reference, described for every method."""

    colours: Mapping[str, SlideColours]

    @classmethod
    def of(cls, pixels: RGB) -> Self:
        """Describe a reference by a sample of its pixels (..., 3), glass included."""
        return cls({name: method.describe(pixels) for name, method in METHODS.items()})

    @classmethod
    def default(cls) -> Self:
        """Human breast cancer, H&E, UMC Utrecht on an Aperio CS2 (from MIDOG++, CC BY 4.0)."""
        with as_file(files("metaphase.stain.standardisation") / "breast_he.json") as path:
            return cls.load(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        return read_plain(path, TEMPLATE_FORMAT, cls._parse)

    def save(self, path: str | Path) -> None:
        """Write as JSON."""
        plain = {name: asdict(colours) for name, colours in self.colours.items()}
        write_plain(path, TEMPLATE_FORMAT, {"colours": plain})

    @classmethod
    def _parse(cls, data: dict[str, Any]) -> Self:
        return cls({name: from_plain(method, data["colours"][name]) for name, method in METHODS.items()})


@dataclass(frozen=True)
class Transform:
    """The way from one slide's colours to a template's, both described by the same method."""

    source: SlideColours
    template: SlideColours

    @classmethod
    def fit(cls, pixels: RGB, method: str = "hsd", template: Template | None = None) -> Self:
        """Fit on a sample of a slide's pixels (..., 3), glass included."""
        if method not in METHODS:
            raise UsageError(f"no method is called {method!r}", next_step=f"choose from {', '.join(METHODS)}")
        target = (template or Template.default()).colours[method]
        return cls(METHODS[method].describe(pixels), target)

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.source.method

    @cached_property
    def table(self) -> LookupTable:
        """The lookup table; made on first use, which takes about a second."""
        return LookupTable(partial(self.source.towards, self.template))

    def apply(self, image: RGB, threads: int = 1) -> RGB:
        """Standardise an image of any ordinary type; the result is uint8 (..., 3)."""
        return self.table.apply(rgb_uint8(image), threads)

    def save(self, path: str | Path) -> None:
        """Write as JSON."""
        colours = {"source": asdict(self.source), "template": asdict(self.template)}
        write_plain(path, TRANSFORM_FORMAT, {"method": self.method, **colours})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        return read_plain(path, TRANSFORM_FORMAT, cls._parse)

    @classmethod
    def _parse(cls, data: dict[str, Any]) -> Self:
        method = METHODS[data["method"]]
        return cls(from_plain(method, data["source"]), from_plain(method, data["template"]))
