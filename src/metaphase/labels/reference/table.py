"""The reference-standard table, the decision about each of its points, and its files."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.base.arrays import Mask
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.files import write_text
from metaphase.base.tables import as_text, read_table, require_columns, require_numbers, write_table
from metaphase.labels.registration import points_geojson

# ---- what can be wrong with a reference standard ----


class ReferenceStandardError(MetaphaseError):
    """A reference standard cannot be built, read or changed."""


# ---- which points of a PHH3 slide become part of the reference standard ----


@dataclass(frozen=True, slots=True)
class ReferenceConfig:
    """Conditions for a point to be accepted; one that fails any is kept in the table with the reason."""

    min_probability: float = 0.0
    """Least probability of the PHH3 network; its own decision has been taken already."""
    min_confidence: float = 0.5
    """Least probability that the place in H&E is right to 2 um."""
    min_contrast: float = 1.1
    """Least darkness of the object in H&E relative to dark nuclei around it; see `VisibilityConfig`."""
    require_visible: bool = True
    """Whether what PHH3 shows must show in H&E, too. If not, the flag is set and nothing else."""
    accept_doubtful: bool = False
    """Whether points of a pair whose registration is doubtful are accepted: after looking at its picture."""
    min_distance_um: float = 7.5
    """Accepted points closer than this are one figure, such as the two plates of an anaphase: the more
    probable one stands for both."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            share = field.name in ("min_probability", "min_confidence")
            if not math.isfinite(value) or value < 0 or (share and value > 1):
                raise UsageError(
                    f"reference setting {field.name} is {value}",
                    next_step="give a number from 0 to 1" if share else "give a number of at least 0",
                )


# ---- the reference-standard table ----

COLUMNS = (
    "case",
    "x",
    "y",
    "accepted",
    "cause",
    "reason",
    "visible",
    "contrast",
    "probability",
    "confidence",
    "method",
    "shift_x_um",
    "shift_y_um",
    "peak",
    "peak_ratio",
    "registration",
    "x_phh3",
    "y_phh3",
    "candidate",
    "automatic",
    "reviewer",
    "reviewed",
)
"""Places are level-0 pixels of the H&E slide (x, y) and of the PHH3 slide; `registration` is the verdict on
the pair; `automatic` is the decision without any reviewer, `cause` (one of `CAUSES`) and `reason` say what
speaks against the point, as a word and in words."""
CAUSES = ("registration", "doubtful", "probability", "confidence", "invisible", "double")
PLACED_COLUMNS = tuple(
    name
    for name in COLUMNS
    if name not in ("accepted", "cause", "reason", "visible", "automatic", "reviewer", "reviewed")
)
"""What is known of a point before the decision, beside `problem`: what registration says against it."""
REJECTED, FAILED, DOUBTFUL = "rejected", "failed", "doubtful"

Texts = npt.NDArray[np.object_]


def decide(placed: pd.DataFrame, he_mpp: float, config: ReferenceConfig | None = None) -> pd.DataFrame:
    """The reference-standard table of placed points: the same rows in the same order, each accepted or not.

    `placed` has `PLACED_COLUMNS` and `problem`. The first reason against a point is told.
    """
    config = config or ReferenceConfig()
    visible = (placed["contrast"] >= config.min_contrast).to_numpy()
    against = _objections(placed, visible, config)
    _refuse_doubles(placed, against, config.min_distance_um / he_mpp)
    accepted = against.cause == ""
    decided = placed.assign(visible=visible, accepted=accepted, cause=against.cause, reason=against.reason)
    return decided.assign(automatic=accepted, reviewer="", reviewed="")[list(COLUMNS)]


@dataclass(frozen=True)
class _Objections:
    """The first thing that speaks against each point; empty where nothing does."""

    cause: Texts
    reason: Texts

    def add(self, bad: npt.ArrayLike, cause: str, reason: npt.ArrayLike) -> None:
        """Note it for the bad points against which nothing speaks yet."""
        fresh = (self.cause == "") & np.asarray(bad, bool)
        self.cause[fresh] = cause
        self.reason[fresh] = np.broadcast_to(np.asarray(reason, object), fresh.shape)[fresh]


def _objections(placed: pd.DataFrame, visible: Mask, config: ReferenceConfig) -> _Objections:
    verdict, probability, confidence = placed["registration"], placed["probability"], placed["confidence"]
    against = _Objections(*(np.full(len(placed), "", object) for _ in range(2)))
    lost = (verdict == FAILED) | (placed["method"] == REJECTED)
    against.add(lost, "registration", placed["problem"])
    if not config.accept_doubtful:
        against.add(verdict == DOUBTFUL, "doubtful", "the registration of the pair is doubtful")
    for cause, values, least in (
        ("probability", probability, config.min_probability),
        ("confidence", confidence, config.min_confidence),
    ):
        against.add(values < least, cause, [f"{cause} {value:.2f} is below {least:g}" for value in values])
    if config.require_visible:
        against.add(~visible, "invisible", "nothing dark here in H&E")
    return against


def _refuse_doubles(placed: pd.DataFrame, against: _Objections, radius_px: float) -> None:
    """Of points that pass and lie close together, refuse all but the most probable."""
    rows = np.flatnonzero(against.cause == "")
    if not len(rows) or radius_px <= 0:
        return
    points = placed[["x", "y"]].to_numpy(float)[rows]
    close = cKDTree(points).query_ball_point(points, radius_px)
    names = placed["candidate"].to_numpy(object)
    for first in np.argsort(-placed["probability"].to_numpy(float)[rows], kind="stable"):
        if against.cause[rows[first]] == "":
            others = np.zeros(len(placed), bool)
            others[rows[close[first]]] = True
            others[rows[first]] = False
            against.add(others, "double", f"the same figure as {names[rows[first]]}")


# ---- writing a reference standard and reading it back ----

TABLE, SHEET, SHAPES = "reference.parquet", "reference.csv", "reference.geojson"
TEXTS = ("case", "cause", "reason", "method", "registration", "candidate", "reviewer", "reviewed")
TRUTHS = ("accepted", "visible", "automatic")


def write_reference(folder: str | Path, table: pd.DataFrame, *, shapes: bool = False) -> None:
    """Write the table as Parquet and CSV; with `shapes` (one slide), accepted points for QuPath as well."""
    folder = Path(folder)
    if shapes:
        named = table.assign(slide=table["case"], label="mitosis")
        write_text(folder / SHAPES, json.dumps(points_geojson(named)))
    write_table(folder / SHEET, table)
    write_table(folder / TABLE, table)


def read_reference(path: str | Path) -> pd.DataFrame:
    """A reference standard from its file, or from the folder that holds it."""
    path = Path(path)
    path = path / TABLE if path.is_dir() else path
    table = read_table(path)
    require_columns(table, COLUMNS, path)
    require_numbers(table, ("x", "y", "contrast", "probability", "confidence"), path)
    texts = {name: as_text(table[name]) for name in TEXTS}
    truths = {name: table[name].astype(bool) for name in TRUTHS}
    return table.assign(**texts, **truths)[list(COLUMNS)]


def empty_reference() -> pd.DataFrame:
    """A table without rows, its columns of the usual types."""
    kinds = dict.fromkeys(TEXTS, object) | dict.fromkeys(TRUTHS, bool)
    return pd.DataFrame({name: pd.Series(dtype=kinds.get(name, float)) for name in COLUMNS})
