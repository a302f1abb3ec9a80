"""Every detection marked true or false once; all detection metrics follow from these marks alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from shapely.geometry.base import BaseGeometry

from metaphase.detections import match
from metaphase.detections.matching import NOBODY, Points
from metaphase.evaluation.config import MatchingConfig
from metaphase.evaluation.inputs import Comparison
from metaphase.evaluation.regions import counts
from metaphase.tables import TableError

Floats = npt.NDArray[np.float64]
_NO_POINTS: tuple[Points, Floats] = (np.zeros((0, 2)), np.zeros(0))


@dataclass(frozen=True)
class Marked:
    """Detections with their marks, and for each slide what there was to find."""

    probability: Floats
    """One a detection, falling."""
    found: npt.NDArray[np.bool_]
    """Whether the detection is matched with a truth."""
    distance_um: Floats
    """To the matched truth; NaN for false detections."""
    slide: npt.NDArray[np.int64]
    """Index of the detection's slide."""
    truths: npt.NDArray[np.int64]
    """Mitoses to find, one number a slide."""
    area_mm2: Floats
    """Area searched, one number a slide; NaN where unknown."""
    cases: tuple[str, ...]
    patients: tuple[str, ...]

    def of_slides(self, chosen: npt.NDArray[np.bool_]) -> Marked:
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


def mark(comparison: Comparison, ignored: Mapping[str, BaseGeometry], config: MatchingConfig) -> Marked:
    """Match every slide of the comparison; what lies in `ignored` or in the border counts on neither side."""
    manifest = comparison.cohort.manifest
    _check_sizes(manifest, config)
    truth, predictions = by_slide(comparison.truth.table), by_slide(comparison.predictions.table)
    parts, truths = [], []
    for index, field in enumerate(comparison.cohort.fields()):
        region, size = ignored.get(field.case), (field.width, field.height)
        border = config.border_um / field.mpp
        real, _ = truth.get(field.case, _NO_POINTS)
        real = real[counts(real, size, region, border)]
        places, probability = predictions.get(field.case, _NO_POINTS)
        kept = counts(places, size, region, border)
        parts.append(
            _mark_slide(places[kept] * field.mpp, probability[kept], real * field.mpp, index, config)
        )
        truths.append(len(real))
    return _joined(parts, np.array(truths, np.int64), manifest, config)


def by_slide(table: pd.DataFrame) -> dict[str, tuple[Points, Floats]]:
    """Places and probabilities of each slide."""
    places, probability = table[["x", "y"]].to_numpy(float), table["probability"].to_numpy(float)
    groups = table.groupby("slide", sort=False).indices
    return {str(slide): (places[rows], probability[rows]) for slide, rows in groups.items()}


def _mark_slide(
    places_um: Points, probability: Floats, truth_um: Points, index: int, config: MatchingConfig
) -> pd.DataFrame:
    matched = match(places_um, probability, truth_um, config.radius_um, config.method)
    found = matched != NOBODY
    distance = np.full(len(matched), np.nan)
    distance[found] = np.linalg.norm(places_um[found] - truth_um[matched[found]], axis=1)
    return pd.DataFrame({"probability": probability, "found": found, "distance": distance, "slide": index})


def _joined(
    parts: list[pd.DataFrame], truths: npt.NDArray[np.int64], manifest: pd.DataFrame, config: MatchingConfig
) -> Marked:
    rows = pd.concat(parts, ignore_index=True)
    order = np.argsort(-rows["probability"].to_numpy(float), kind="stable")
    return Marked(
        probability=rows["probability"].to_numpy(float)[order],
        found=rows["found"].to_numpy(bool)[order],
        distance_um=rows["distance"].to_numpy(float)[order],
        slide=rows["slide"].to_numpy(np.int64)[order],
        truths=truths,
        area_mm2=_searched_area(manifest, config.border_um),
        cases=tuple(manifest["case"]),
        patients=tuple(manifest["patient"]),
    )


def _searched_area(manifest: pd.DataFrame, border_um: float) -> Floats:
    """The stated area, or where that is the whole image, the image without its border."""
    sides = [manifest[name] * manifest["mpp"] / 1000 for name in ("width", "height")]
    inner = np.prod([(side - 2 * border_um / 1000).clip(lower=0) for side in sides], axis=0)
    whole = np.isclose(manifest["area_mm2"], sides[0] * sides[1])
    return np.where(whole, inner, manifest["area_mm2"].to_numpy(float))


def _check_sizes(manifest: pd.DataFrame, config: MatchingConfig) -> None:
    unknown = manifest["case"][manifest[["width", "height"]].isna().any(axis=1)]
    if config.border_um > 0 and len(unknown):
        raise TableError(
            f"a border cannot be ignored: the size of {unknown.iloc[0]} is not known",
            next_step="give the columns width and height in the manifest",
        )
