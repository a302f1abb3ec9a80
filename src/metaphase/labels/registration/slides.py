"""`metaphase register`: one pair of slides, kept or done again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from metaphase.base.files import explained
from metaphase.base.foreign import read_json
from metaphase.base.provenance import FileContent
from metaphase.base.stages import Facts, Report, States, run_stages, settled, stage
from metaphase.base.tables import read_table
from metaphase.labels.registration.outputs import (
    OF_ANNOTATIONS,
    OF_POINTS,
    PICTURE,
    SUMMARY,
    TRANSFORM,
    Annotations,
    Frame,
    register_to_folder,
)
from metaphase.labels.registration.similarity import RegistrationConfig
from metaphase.labels.registration.transform import Transform, load_transform
from metaphase.slides.opening import SlideSource


@dataclass(frozen=True, eq=False)
class Registered:
    """The folder of a pair, as `metaphase register` left it."""

    folder: Path
    summary: Mapping[str, Any] = field(repr=False)

    @property
    def verdict(self) -> str:
        """`reliable`, `doubtful` or `failed`; the summary's `reasons` tell why."""
        return str(self.summary["verdict"])

    @cached_property
    def transform(self) -> Transform:
        """Positions of one slide on the other, in level-0 pixels: `phh3_to_he` and `he_to_phh3`."""
        return load_transform(self.folder / TRANSFORM)

    @cached_property
    def points(self) -> pd.DataFrame:
        """The points that were given, in H&E coordinates, with their confidence; rejected ones are empty."""
        return read_table(self.folder / OF_POINTS[0])


def register_slides(
    he: SlideSource,
    phh3: SlideSource,
    folder: Path,
    *,
    points: Path | None = None,
    annotations: Annotations | None = None,
    config: RegistrationConfig | None = None,
    accept_doubtful: bool = False,
) -> tuple[dict[str, Any], States]:
    """Register a pair into `folder` unless that is done; returns the summary, and whether there was work.

    The files are those of `metaphase.labels.registration.register_to_folder`.
    """
    row = _register(
        folder,
        he=he,
        phh3=phh3,
        points=None if points is None else FileContent(Path(points)),
        annotations=None if annotations is None else FileContent(annotations.path),
        drawn_on="" if annotations is None else annotations.drawn_on,
        config=config or RegistrationConfig(),
        accept_doubtful=accept_doubtful,
    )
    writes = (*row.writes, *(OF_POINTS if points is not None else ()))
    states = settled(run_stages([replace(row, writes=writes)], folder))
    return read_json(folder / SUMMARY, "no registration", next_step="remove it, and run it again"), states


@stage("registration", "PHH3 onto H&E", writes=(SUMMARY, TRANSFORM, PICTURE), schema=3, sealed=True)
def _register(
    folder: Path,
    _report: Report,
    *,
    he: SlideSource,
    phh3: SlideSource,
    points: FileContent | None,
    annotations: FileContent | None,
    drawn_on: Frame | Literal[""],
    config: RegistrationConfig,
    accept_doubtful: bool,
) -> Facts:
    """Register a pair, and carry over what was given."""
    for name in (*OF_POINTS, OF_ANNOTATIONS):
        with explained(folder / name):
            (folder / name).unlink(missing_ok=True)
    with he.open() as first, phh3.open() as second:
        summary = register_to_folder(
            first,
            second,
            folder,
            points=None if points is None else points.path,
            annotations=None if annotations is None else Annotations(annotations.path, drawn_on or "phh3"),
            config=config,
            accept_doubtful=accept_doubtful,
        )
    return {"verdict": summary["verdict"]}
