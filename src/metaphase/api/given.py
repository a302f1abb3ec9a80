"""What functions are given, as the files and settings that the commands take."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase.analysis.record import SlideResult
from metaphase.base.errors import UsageError
from metaphase.base.settings import refuse_unknown
from metaphase.base.tables import write_table
from metaphase.slides.arrays import is_pixels
from metaphase.slides.contract import Slide
from metaphase.slides.opening import SlideSource, open_slide, source_of

PATH = (str, os.PathLike)
AnySlide = Any
"""A path, an open `Slide`, or pixels of NumPy, PIL, dask, zarr, xarray or HDF5."""
Points = str | os.PathLike[str] | pd.DataFrame | SlideResult


def configured(where: str, given: Mapping[str, Any], *configs: Any) -> list[Any]:
    """Configurations with the settings that are given; a setting that none of them has is refused."""
    names = [[field.name for field in fields(config)] for config in configs]
    refuse_unknown(given, [name for own in names for name in own], where)
    return [
        replace(config, **{name: given[name] for name in own if name in given})
        for config, own in zip(configs, names, strict=True)
    ]


def listed(slide: Any) -> tuple[Iterable[Any], bool]:
    """The slides that are given, and whether it is several."""
    pixels = is_pixels(slide) and np.ndim(slide) > 1  # a column of a table names slides
    single = isinstance(slide, (*PATH, Slide)) or pixels or not isinstance(slide, Iterable)
    return ([slide], False) if single else (slide, True)


def slide_source(slide: object, mpp: float | None, folder: Path) -> SlideSource:
    """The file of a slide and the resolution given for it; pixels in memory are written into the folder."""
    if isinstance(slide, PATH):
        return SlideSource(Path(slide), mpp)
    if isinstance(slide, Slide):
        return source_of(slide, folder, mpp)
    with open_slide(slide, mpp=mpp) as opened:
        return source_of(opened, folder, mpp)


def as_path(value: object, what: str, next_step: str) -> Path:
    """A path; any other value is refused."""
    if isinstance(value, PATH):
        return Path(value)
    raise UsageError(f"{type(value).__name__} is not a {what}", next_step=next_step)


@contextmanager
def file_of(points: object, name: str) -> Iterator[Any]:
    """The file or folder of points; a table becomes a file of that slide's name for as long as it is read."""
    if isinstance(points, SlideResult):
        yield points.folder
    elif isinstance(points, pd.DataFrame):
        with tempfile.TemporaryDirectory(prefix="metaphase-") as folder:
            write_table(Path(folder) / f"{name}.parquet", points)
            yield Path(folder) / f"{name}.parquet"
    else:
        others = "give a file, a folder, a pandas table with x and y, or a Result"
        yield None if points is None else as_path(points, "table of points", others)
