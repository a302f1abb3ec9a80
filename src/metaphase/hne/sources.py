"""The slides that networks learn from, as they are or with a common stain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from metaphase.errors import UsageError
from metaphase.geometry import Box
from metaphase.slides import RGB, Slide, open_slide
from metaphase.stain.standardisation import Transform
from metaphase.tables import require_columns


@dataclass(frozen=True, eq=False)
class TrainingSlide:
    """An H&E slide with its reference standard."""

    name: str
    """The case; also the name of its files."""
    path: Path
    """The slide's file."""
    reference: pd.DataFrame
    """Points of this slide: x, y in level-0 pixels and, where there are others than mitoses, label."""
    mpp: float | None = None
    """Micrometres per level-0 pixel, where the file states none."""
    tissue: Path | None = None
    """Tissue mask as `save_tissue` writes it; without one, tissue is found."""
    centre: str = ""
    """Laboratory that it comes from."""
    repeat: int = 1
    """How often each of its mitoses counts, where a small collection shall not drown in a large one."""

    def __post_init__(self) -> None:
        if self.name in ("", ".", "..") or Path(self.name).name != self.name:
            raise UsageError(f"a slide cannot be called {self.name!r}", next_step="give a plain name")
        if self.repeat < 1:
            raise UsageError(f"slide {self.name} has repeat = {self.repeat}", next_step="give 1 or more")
        require_columns(self.reference, ("x", "y"), self.name)


class StandardisedSlide(Slide):
    """Another slide's pixels with their colours mapped as they are read; nothing is written."""

    def __init__(self, slide: Slide, transform: Transform) -> None:
        super().__init__(slide.info)
        self._slide, self._table = slide, transform.table

    def _decode(self, level: int, box: Box) -> RGB:
        return self._table.apply(self._slide.read_level(level, box))

    def close(self) -> None:
        """Release the slide beneath."""
        self._slide.close()


@contextmanager
def opened(source: TrainingSlide, transform: Transform | None = None) -> Iterator[Slide]:
    """The slide, with its stain standardised where a transform is given."""
    with open_slide(source.path, mpp=source.mpp) as slide:
        yield slide if transform is None else StandardisedSlide(slide, transform)
