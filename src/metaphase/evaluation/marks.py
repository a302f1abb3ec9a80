"""Every detection marked true or false once, but for positions where nothing counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import shapely
from pydantic import BeforeValidator, Field
from shapely.geometry.base import BaseGeometry

from metaphase.base.arrays import Floats, Integers, Mask, Points
from metaphase.base.foreign import files_in
from metaphase.base.later import pandas as pd
from metaphase.base.settings import Share, settings
from metaphase.base.tables import TableError, read_table, require_columns, require_numbers
from metaphase.detections.formats.contract import load_json
from metaphase.detections.formats.qupath import features
from metaphase.detections.matching import NOBODY, Method, match
from metaphase.evaluation.comparison import Cohort, Comparison

# ---- when a detection counts as a truth found ----


FARTHEST_UM = 1000.0
"""What is farther apart than this says nothing about a nucleus."""
Radius = Annotated[float, Field(gt=0, le=FARTHEST_UM)]


@settings
class MatchingConfig:
    """When a detection counts as a truth found."""

    radius_um: Radius = 7.5
    """Farthest distance between a detection and its truth; 7.5 um are 30 px at 0.25 um/px."""

    method: Method = "greedy"
    """`greedy`: most probable first, nearest free truth. `optimal`: as many matches as possible."""

    threshold: Share | None = None
    """Lowest probability that counts."""

    border_um: Annotated[float, Field(ge=0, le=FARTHEST_UM)] = 0.0
    """Width of a margin along the image border in which neither truths nor detections count."""

    ignore_radius_um: Annotated[float, Field(ge=0, le=FARTHEST_UM)] = 7.5
    """Radius around a point labelled `ignore` in which nothing counts, unless its row states `radius_um`."""

    missing_as_empty: bool = False
    """Slides without predictions have no detections."""

    ignore: Annotated[str, BeforeValidator(str)] = ""
    """Regions in which nothing counts: a GeoJSON or CSV file, or a folder of GeoJSON files."""


# ---- positions where neither truth nor detections count ----

SIDES = ("x", "y", "width", "height")
Regions = list[tuple[str, BaseGeometry]]
"""Cases and shapes in their level-0 pixels."""


def read_regions(path: str | Path, cohort: Cohort) -> Regions:
    """Read the regions to ignore.

    GeoJSON (one file, or a folder of them named after their slides): every shape is ignored; a point needs
    `radius_um` among its properties. A CSV has boxes: `slide, x, y` of the top-left corner, `width, height`.
    """
    path = Path(path)
    if path.is_dir() or path.suffix.lower() in (".geojson", ".json"):
        files = files_in(path, "*.*json") if path.is_dir() else [path]
        shapes = [(file.stem, shape) for file in files for shape in _drawn_shapes(file, cohort)]
    else:
        shapes = _boxes(path)
    case_of = cohort.case_names([slide for slide, _ in shapes], str(path))
    return [(case_of[slide], shape) for slide, shape in shapes]


def _boxes(path: Path) -> Regions:
    frame = read_table(path)
    require_columns(frame, ("slide", *SIDES), path)
    require_numbers(frame, SIDES, path)
    sides = frame[list(SIDES)].to_numpy(float)
    incomplete = frame["slide"][np.isnan(sides).any(axis=1)]
    if len(incomplete):
        raise TableError(
            f"a row for slide {incomplete.iloc[0]} describes no region",
            path=path,
            next_step=f"give {', '.join(SIDES)}",
        )
    x, y, width, height = sides.T
    return list(zip(frame["slide"].astype(str), shapely.box(x, y, x + width, y + height), strict=True))


def _drawn_shapes(path: Path, cohort: Cohort) -> list[BaseGeometry]:
    if not load_json(path):
        return []
    mpp = cohort.mpp_by_name()
    shapes = []
    for feature, shape in features(path):
        radius = (feature.get("properties") or {}).get("radius_um")
        if shape.area == 0 and (radius is None or path.stem not in mpp):
            raise TableError(
                f"a {shape.geom_type} has no area and no radius_um",
                path=path,
                next_step="draw a closed shape, or give the point a property radius_um",
            )
        shapes.append(shape.buffer(float(radius) / mpp[path.stem]) if radius is not None else shape)
    return shapes


def point_regions(points: pd.DataFrame, cohort: Cohort, radius_um: float) -> Regions:
    """Discs around the truth's `ignore` points."""
    stated = points.get("radius_um", pd.Series(np.nan, points.index)).fillna(radius_um)
    radius = stated / points["slide"].map(cohort.mpp_by_case()).astype(float)
    centres = shapely.points(points[["x", "y"]].to_numpy(float))
    discs = shapely.buffer(centres, radius.to_numpy(float), quad_segs=32)
    return list(zip(points["slide"], discs, strict=True))


def counts(positions: Points, size: Sequence[float], region: BaseGeometry, border: float) -> Mask:
    """Which points of a slide count: those outside `region` and not within `border`; all in pixels."""
    outside: Mask = ~shapely.intersects_xy(region, positions[:, 0], positions[:, 1])
    if border > 0:
        outside &= ((positions >= border) & (positions < np.array(size) - border)).all(axis=1)
    return outside


# ---- every detection marked true or false once ----

_NO_POINTS: tuple[Points, Floats] = (np.zeros((0, 2)), np.zeros(0))


class SlideMatch(NamedTuple):
    """Truths and detections of a slide that are not ignored, in level-0 pixels, and which belong together."""

    mpp: float
    truths: Points
    positions: Points
    probability: Floats
    matched: Integers
    """The truth that each detection found, or `NOBODY`."""

    def distance_um(self) -> Floats:
        """From each detection to the truth that it found; NaN where it found none."""
        found, distance = self.matched != NOBODY, np.full(len(self.matched), np.nan)
        apart = self.positions[found] - self.truths[self.matched[found]]
        distance[found] = np.linalg.norm(apart, axis=1) * self.mpp
        return distance


@dataclass(frozen=True)
class Marked:
    """Detections with their marks, and for each slide what there was to find."""

    probability: Floats
    """One a detection, falling."""
    found: Mask
    """Whether the detection is matched with a truth."""
    distance_um: Floats
    """To the matched truth; NaN for false positives."""
    slide: Integers
    """Index of the detection's slide."""
    truths: Integers
    """Mitoses to find, one number a slide."""
    area_mm2: Floats
    """Area searched, one number a slide; NaN where unknown."""
    cases: tuple[str, ...]
    patients: tuple[str, ...]

    @classmethod
    def of(
        cls,
        slides: Sequence[SlideMatch],
        area_mm2: npt.ArrayLike,
        cases: Iterable[str],
        patients: Iterable[str],
    ) -> Self:
        """Pool matched slides, most probable detections first; `area_mm2` is the area searched on each."""
        probability = np.concatenate([slide.probability for slide in slides])
        matched = np.concatenate([slide.matched for slide in slides])
        distance_um = np.concatenate([slide.distance_um() for slide in slides])
        number = np.repeat(np.arange(len(slides)), [len(slide.matched) for slide in slides])
        order = np.argsort(-probability, kind="stable")
        return cls(
            probability[order],
            matched[order] != NOBODY,
            distance_um[order],
            number[order],
            np.array([len(slide.truths) for slide in slides], np.int64),
            np.asarray(area_mm2),
            tuple(cases),
            tuple(patients),
        )

    def of_slides(self, chosen: Mask) -> Marked:
        """The same marks for some of the slides."""
        index = np.cumsum(chosen) - 1
        kept = chosen[self.slide]
        return Marked(
            probability=self.probability[kept],
            found=self.found[kept],
            distance_um=self.distance_um[kept],
            slide=index[self.slide[kept]],
            truths=self.truths[chosen],
            area_mm2=self.area_mm2[chosen],
            cases=tuple(np.array(self.cases, object)[chosen]),
            patients=tuple(np.array(self.patients, object)[chosen]),
        )


def matches(
    comparison: Comparison, config: MatchingConfig, drawn: Regions | None = None
) -> Iterator[SlideMatch]:
    """Match every slide of the comparison; what lies in `drawn` regions, around points to ignore or in the
    border counts on neither side."""
    cohort, manifest = comparison.cohort, comparison.cohort.manifest
    unknown = manifest["case"][manifest[["width", "height"]].isna().any(axis=1)]
    if config.border_um > 0 and len(unknown):
        raise TableError(
            f"a border cannot be ignored: the size of {unknown.iloc[0]} is not known",
            next_step="give the columns width and height in the manifest",
        )
    discs = point_regions(comparison.ignored, cohort, config.ignore_radius_um)
    shapes = defaultdict[str, list[BaseGeometry]](list)
    for case, shape in (*(drawn or ()), *discs):
        shapes[case].append(shape)
    truth, predictions = by_slide(comparison.truth.table), by_slide(comparison.predictions.table)
    for case, mpp, *size in cohort.frames():
        region, border = shapely.union_all(shapes[case]), config.border_um / mpp
        real, _ = truth.get(case, _NO_POINTS)
        real = real[counts(real, size, region, border)]
        positions, probability = predictions.get(case, _NO_POINTS)
        kept = counts(positions, size, region, border)
        positions, probability = positions[kept], probability[kept]
        matched = match(positions * mpp, probability, real * mpp, config.radius_um, config.method)
        yield SlideMatch(mpp, real, positions, probability, matched)


def mark(cohort: Cohort, slides: Sequence[SlideMatch], config: MatchingConfig) -> Marked:
    """Pool the matched slides of a cohort; an ignored border does not count as area."""
    manifest = cohort.manifest
    sides = [manifest[name] * manifest["mpp"] / 1000 for name in ("width", "height")]
    inner = np.prod([(side - 2 * config.border_um / 1000).clip(lower=0) for side in sides], axis=0)
    whole = np.isclose(manifest["area_mm2"], sides[0] * sides[1])
    area_mm2 = np.where(whole, inner, manifest["area_mm2"].to_numpy(float))
    return Marked.of(slides, area_mm2, manifest["case"], manifest["patient"])


def by_slide(table: pd.DataFrame) -> dict[str, tuple[Points, Floats]]:
    """Positions and probabilities of each slide."""
    positions, probability = table[["x", "y"]].to_numpy(float), table["probability"].to_numpy(float)
    groups = table.groupby("slide", sort=False).indices
    return {str(slide): (positions[rows], probability[rows]) for slide, rows in groups.items()}
