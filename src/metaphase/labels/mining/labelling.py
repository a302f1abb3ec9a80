"""Which candidates are mitoses, by their distance from the reference standard, and negatives anywhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.base.arrays import Points
from metaphase.detections import IGNORE, MITOSIS
from metaphase.images.tissue.mask import TissueMask
from metaphase.labels.mining.candidates import CandidateError
from metaphase.labels.mining.config import LabelConfig
from metaphase.slides import Slide

# ---- which candidates are mitoses ----

POSITIVE, NEGATIVE, IGNORED = 1, 0, -1
FROM_CANDIDATE, FROM_REFERENCE = "candidate", "reference"
"""Source of a patch: centred on a dark point, or on a reference point that has none."""


def label_candidates(
    table: pd.DataFrame, reference: pd.DataFrame, slide: Slide, config: LabelConfig | None = None
) -> pd.DataFrame:
    """Candidates with `label` (1, 0, or -1 for ignored), `distance_um` to the nearest mitosis, and `source`.

    `reference` has x, y in level-0 pixels of this slide and, where there are others than mitoses, `label`
    (`mitosis`, `ignore`; look-alikes are negatives like any other place).
    """
    config = config or LabelConfig()
    check_reference(reference, slide)
    mitoses, ignored = points_of(reference, MITOSIS), points_of(reference, IGNORE)
    places = table[["x", "y"]].to_numpy(np.float64)
    distance_um = _distance(places, mitoses) * slide.mpp
    near = distance_um <= config.positive_um
    label = np.where(near, POSITIVE if config.rule == "stated" else IGNORED, NEGATIVE).astype(np.int8)
    label[(_distance(places, ignored) * slide.mpp <= config.reach_um) & ~near] = IGNORED
    labelled = table.assign(label=label, distance_um=distance_um.astype(np.float32), source=FROM_CANDIDATE)
    if config.rule == "nearest":
        labelled = _with_own_patches(labelled, mitoses, config.own_um / slide.mpp)
    return labelled.astype({"source": "category"})


def points_of(reference: pd.DataFrame, label: str) -> Points:
    """Places of one label; a table without labels holds mitoses."""
    if "label" not in reference.columns:
        chosen = reference if label == MITOSIS else reference.iloc[:0]
    else:
        chosen = reference[reference["label"] == label]
    return chosen[["x", "y"]].to_numpy(np.float64)


def check_reference(reference: pd.DataFrame, slide: Slide) -> None:
    """Refuse points that are not on the slide: they belong to another slide or frame."""
    places = reference[["x", "y"]].to_numpy(np.float64)
    inside = ((places >= 0) & (places < (slide.width, slide.height))).all(axis=1)
    if not inside.all():
        x, y = places[~inside][0]
        raise CandidateError(
            f"{int((~inside).sum())} of {len(places)} reference points lie outside the "
            f"{slide.width} x {slide.height} px of the slide, the first at ({x:g}, {y:g})",
            path=slide.info.path or slide.name,
            next_step="check that they are level-0 pixels of this H&E slide, not of its PHH3 pair",
        )


def recalled(table: pd.DataFrame, mitoses: Points, within_px: float) -> npt.NDArray[np.bool_]:
    """Whether each mitosis has a candidate at most `within_px` level-0 pixels away."""
    return _distance(mitoses, table[["x", "y"]].to_numpy(np.float64)) <= within_px


def _with_own_patches(labelled: pd.DataFrame, mitoses: Points, own_px: float) -> pd.DataFrame:
    """Make the nearest candidate of each mitosis positive, and add the mitoses that have none."""
    if not len(mitoses):
        return labelled
    places = labelled[["x", "y"]].to_numpy(np.float64)
    away, nearest = _nearest(mitoses, places)
    found = away <= own_px
    label = labelled["label"].to_numpy(copy=True)
    label[nearest[found]] = POSITIVE
    own = pd.DataFrame(mitoses[~found], columns=["x", "y"])
    own = own.assign(intensity=np.float32(np.nan), label=np.int8(POSITIVE), distance_um=np.float32(0))
    own["source"] = FROM_REFERENCE
    parts = [part for part in (labelled.assign(label=label), own) if len(part)]
    return pd.concat(parts, ignore_index=True)[list(labelled.columns)]


def _distance(places: Points, others: Points) -> npt.NDArray[np.float64]:
    return _nearest(places, others)[0]


def _nearest(places: Points, others: Points) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Distance to, and number of, the nearest of `others`; infinite where there are none."""
    if not len(others) or not len(places):
        return np.full(len(places), np.inf), np.zeros(len(places), np.int64)
    distance, number = cKDTree(others).query(places)
    return np.asarray(distance), np.asarray(number, np.int64)


# ---- negatives anywhere on a slide, glass included ----

FROM_ANYWHERE = "anywhere"
"""Source of such a patch."""


def negatives_anywhere(
    slide: Slide,
    within: TissueMask | None,
    reference: pd.DataFrame,
    count: int,
    config: LabelConfig,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Up to `count` places that are no mitosis, labelled like candidates; on the whole slide, or `within` a
    mask. Places near a mitosis, or near one to ignore, are left out."""
    places = _on_mask(within, count, rng) if within else rng.random((count, 2)) * (slide.width, slide.height)
    inside = ((places >= 0) & (places < (slide.width, slide.height))).all(axis=1)
    table = pd.DataFrame(places[inside], columns=["x", "y"]).assign(intensity=np.float32(np.nan))
    labelled = label_candidates(table, reference, slide, config)
    kept = labelled[labelled["label"] == NEGATIVE].reset_index(drop=True)
    return kept.astype({"source": object}).assign(source=FROM_ANYWHERE)


def _on_mask(mask: TissueMask, count: int, rng: np.random.Generator) -> Points:
    """Level-0 places drawn evenly from the area of a mask."""
    grid = mask.grid
    rows, columns = np.nonzero(grid.mask)
    if not len(rows):
        return np.empty((0, 2))
    chosen = rng.integers(0, len(rows), count)
    cells = np.stack([columns[chosen], rows[chosen]], axis=1) + rng.random((count, 2))
    return cells * grid.scale + (grid.x, grid.y)
