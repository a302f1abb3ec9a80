"""Which candidates are mitoses, and which of them each network learns from: draws over many slides.

A set is a table a slide, of the rows whose patches are to be cut. Draws with replacement do not repeat rows:
columns `hard_0`, `hard_1`, ... say how often each was drawn, so that a patch is stored once for all sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from scipy.spatial import cKDTree

from metaphase.base.arrays import Floats, Integers, Points
from metaphase.base.errors import UsageError
from metaphase.base.provenance import decides
from metaphase.base.settings import CODE_ONLY, PositiveShare, settings
from metaphase.detections.table import IGNORE, MITOSIS
from metaphase.learn.mining.candidates import CandidateError
from metaphase.slides.contract import WORKING_MPP, Slide

PositiveRule = Literal["nearest", "stated"]


@settings
class LabelConfig:
    """When a candidate is a mitosis."""

    rule: PositiveRule = "nearest"
    """`nearest`: the nearest candidate within `own_um` of a reference point is positive (where there is none,
    a patch on the point itself), all others within `positive_um` are ignored. `stated`: as in the paper's
    text, every candidate within `positive_um` is positive, cells next to a mitosis included."""
    positive_um: PositiveFloat = 25.0
    """d of the paper: a candidate at most this far from a reference point is no negative."""
    own_um: PositiveFloat = 7.5
    """How far the dark centre of a mitosis may lie from its reference point."""
    ignore_um: NonNegativeFloat = 0.0
    """Candidates at most this far from a point labelled `ignore` are left out; 0: as `positive_um`."""

    def __post_init__(self) -> None:
        if self.own_um > self.positive_um:
            raise UsageError(
                f"own_um = {self.own_um}, positive_um = {self.positive_um}",
                next_step="give own_um of at most positive_um",
            )


POSITIVE, NEGATIVE, IGNORED = 1, 0, -1
FROM_CANDIDATE, FROM_REFERENCE = "candidate", "reference"
"""Source of a patch: centred on a dark point, or on a reference point that has none."""


def label_candidates(
    table: pd.DataFrame, reference: pd.DataFrame, slide: Slide, config: LabelConfig | None = None
) -> pd.DataFrame:
    """Candidates with `label` (1, 0, or -1 for ignored), `distance_um` to the nearest mitosis, and `source`.

    `reference` has x, y in level-0 pixels of this slide and, where there are others than mitoses, `label`
    (`mitosis`, `ignore`; look-alikes are negatives like any other position).
    """
    config = config or LabelConfig()
    check_reference(reference, slide)
    mitoses, ignored = points_of(reference, MITOSIS), points_of(reference, IGNORE)
    positions = table[["x", "y"]].to_numpy(np.float64)
    distance_um = _nearest(positions, mitoses)[0] * slide.mpp
    near = distance_um <= config.positive_um
    label = np.where(near, POSITIVE if config.rule == "stated" else IGNORED, NEGATIVE).astype(np.int8)
    reach_um = config.ignore_um or config.positive_um
    label[(_nearest(positions, ignored)[0] * slide.mpp <= reach_um) & ~near] = IGNORED
    labelled = table.assign(label=label, distance_um=distance_um.astype(np.float32), source=FROM_CANDIDATE)
    if config.rule == "nearest":
        labelled = _with_own_patches(labelled, mitoses, config.own_um / slide.mpp)
    return labelled.astype({"source": "category"})


def points_of(reference: pd.DataFrame, label: str) -> Points:
    """Positions of one label; a table without labels holds mitoses."""
    labels = reference["label"] if "label" in reference.columns else pd.Series(MITOSIS, reference.index)
    chosen = reference[labels == label]
    return chosen[["x", "y"]].to_numpy(np.float64)


def darkest_near(table: pd.DataFrame, points: Points, within_px: float) -> Floats:
    """Of each point: intensity of the darkest candidate at most so far from it; 1 where there is none."""
    if not len(table) or not len(points):
        return np.ones(len(points))
    near = cKDTree(table[["x", "y"]].to_numpy(np.float64)).query_ball_point(points, within_px)
    intensity = table["intensity"].to_numpy(np.float64)
    return np.array([intensity[rows].min() if rows else 1.0 for rows in near])


def check_reference(reference: pd.DataFrame, slide: Slide) -> None:
    """Refuse points that are not on the slide: they belong to another slide or frame."""
    positions = reference[["x", "y"]].to_numpy(np.float64)
    inside = ((positions >= 0) & (positions < (slide.width, slide.height))).all(axis=1)
    if not inside.all():
        x, y = positions[~inside][0]
        raise CandidateError(
            f"{int((~inside).sum())} of {len(positions)} reference points lie outside the "
            f"{slide.width} x {slide.height} px of the slide, the first at ({x:g}, {y:g})",
            path=slide.info.path or slide.name,
            next_step="check that they are level-0 pixels of this H&E slide, not of its PHH3 pair",
        )


def _with_own_patches(labelled: pd.DataFrame, mitoses: Points, own_px: float) -> pd.DataFrame:
    """Make the nearest candidate of each mitosis positive, and add the mitoses that have none."""
    if not len(mitoses):
        return labelled
    positions = labelled[["x", "y"]].to_numpy(np.float64)
    away, nearest = _nearest(mitoses, positions)
    found = away <= own_px
    label = labelled["label"].to_numpy(copy=True)
    label[nearest[found]] = POSITIVE
    own = pd.DataFrame(mitoses[~found], columns=["x", "y"])
    own = own.assign(intensity=np.float32(np.nan), label=np.int8(POSITIVE), distance_um=np.float32(0))
    own["source"] = FROM_REFERENCE
    parts = [part for part in (labelled.assign(label=label), own) if len(part)]
    return pd.concat(parts, ignore_index=True)[list(labelled.columns)]


def _nearest(positions: Points, others: Points) -> tuple[Floats, Integers]:
    """Distance to, and number of, the nearest of `others`; infinite where there are none."""
    if not len(others) or not len(positions):
        return np.full(len(positions), np.inf), np.zeros(len(positions), np.int64)
    distance, number = cKDTree(others).query(positions)
    return np.asarray(distance), np.asarray(number, np.int64)


HARD = "difficult sets"
"""The stage that alone depends on some of the numbers."""


@settings
class SetConfig:
    """How many patches each network learns from."""

    easy_negatives: PositiveInt = 100_000
    """Negatives of the easy set, drawn evenly from all candidates of the training slides."""
    hard_negatives: PositiveInt = field(default=400_000, metadata=decides(HARD))
    """Negatives of each difficult set, drawn with replacement, in proportion to CNN3's probability."""
    hard_sets: Annotated[PositiveInt, CODE_ONLY] = field(default=10, metadata=decides(HARD))
    """k, the number of difficult sets, one a network of the ensemble."""
    validation_positives: PositiveShare = 0.1
    """Share of the positives of the validation slides that the validation set holds."""
    validation_negatives: PositiveShare = 0.1
    """Share of their negatives."""
    side_px: Annotated[int, Field(ge=2)] = 128
    """Side of the stored patches: the networks' 100 px and room for turning and shifting them."""
    mpp: PositiveFloat = WORKING_MPP
    """Resolution of the stored patches, in um/px."""
    seed: NonNegativeInt = 0
    """Of all draws."""


Tables = Mapping[str, pd.DataFrame]
"""A table for each slide, by its name; the order of the slides is part of the draw."""

_EASY, _HARD, _VALIDATION = 0, 1, 2
"""Purposes: each has its own random numbers."""


def hard_column(number: int) -> str:
    """Column of an index that says how often a patch is in difficult set `number`."""
    return f"hard_{number}"


def easy_negatives(labelled: Tables, config: SetConfig) -> dict[str, pd.DataFrame]:
    """Negatives of the easy set: every negative is as likely; all, where there are fewer."""
    negatives = with_label(labelled, NEGATIVE)
    rng = np.random.default_rng((config.seed, _EASY))
    sizes = [len(table) for table in negatives.values()]
    return _take_rows(negatives, draw_evenly(sizes, config.easy_negatives, rng))


def validation_set(labelled: Tables, config: SetConfig) -> dict[str, pd.DataFrame]:
    """A share of the positives and of the negatives of the validation slides, at least one of each."""
    rng = np.random.default_rng((config.seed, _VALIDATION))
    parts = []
    for label, share in ((POSITIVE, config.validation_positives), (NEGATIVE, config.validation_negatives)):
        tables = with_label(labelled, label)
        counts = [len(table) for table in tables.values()]
        parts.append(_take_rows(tables, draw_evenly(counts, max(1, round(share * sum(counts))), rng)))
    return {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in labelled}


def hard_negatives(judged: Tables, config: SetConfig) -> dict[str, pd.DataFrame]:
    """Negatives of the difficult sets, drawn with replacement, in proportion to their column `probability`.

    Rows drawn for any set come with their counts.
    """
    negatives = with_label(judged, NEGATIVE)
    found = [table["probability"].to_numpy(np.float64) for table in negatives.values()]
    total = sum(float(values.sum()) for values in found) or 1.0
    weights = [values / total for values in found]
    counts = [
        draw_weighted(weights, config.hard_negatives, np.random.default_rng((config.seed, _HARD, number)))
        for number in range(config.hard_sets)
    ]
    drawn = np.split(np.stack(counts, axis=1), np.cumsum([len(values) for values in weights])[:-1])
    return {
        name: _times_drawn(table, times)
        for (name, table), times in zip(negatives.items(), drawn, strict=True)
    }


def draw_evenly(sizes: Sequence[int], wanted: int, rng: np.random.Generator) -> list[Integers]:
    """Rows of several tables, `wanted` in all, each row as likely and none twice; in order."""
    total = sum(sizes)
    chosen = np.sort(rng.choice(total, min(wanted, total), replace=False, shuffle=False))
    starts = np.cumsum([0, *sizes])
    parts = np.split(chosen, np.searchsorted(chosen, starts[1:-1]))
    return [part - start for part, start in zip(parts, starts[:-1], strict=True)]


def draw_weighted(weights: Sequence[Floats], wanted: int, rng: np.random.Generator) -> Integers:
    """How often each row of several tables, one after the other, comes in `wanted` draws with replacement."""
    every = np.concatenate(weights)
    if not np.isfinite(every).all() or (every < 0).any() or not every.sum() > 0:
        raise CandidateError(
            "the probabilities of the negatives are not probabilities, or all are 0",
            next_step="check the network that was asked",
        )
    edges = np.cumsum(every)
    drawn = np.searchsorted(edges, rng.random(wanted) * edges[-1], side="right")
    return np.bincount(drawn.clip(max=len(every) - 1), minlength=len(every))


ABSENT = {
    POSITIVE: ("positive", "check that the reference standard names these slides and holds mitoses"),
    NEGATIVE: ("negative", "check the tissue masks and the threshold of the candidates"),
}
"""What is missing where no candidate has a label, and what to do."""


def with_label(labelled: Tables, label: int) -> dict[str, pd.DataFrame]:
    """The rows of a label; none at all is an error."""
    found = {name: table[table["label"] == label].reset_index(drop=True) for name, table in labelled.items()}
    if not sum(map(len, found.values())):
        what, advice = ABSENT[label]
        raise CandidateError(f"no {what} among the candidates of {len(labelled)} slides", next_step=advice)
    return found


def _take_rows(tables: Tables, rows: Sequence[Integers]) -> dict[str, pd.DataFrame]:
    return {
        name: table.iloc[chosen].reset_index(drop=True)
        for (name, table), chosen in zip(tables.items(), rows, strict=True)
    }


def _times_drawn(table: pd.DataFrame, times: Integers) -> pd.DataFrame:
    """Rows that were drawn, and how often for each set."""
    counts = {hard_column(number): column.astype(np.int32) for number, column in enumerate(times.T)}
    return table.assign(**counts).iloc[np.flatnonzero(times.sum(axis=1))].reset_index(drop=True)
