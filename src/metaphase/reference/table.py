"""The reference-standard table, and the decision about each of its points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.reference.config import ReferenceConfig

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

Bools = npt.NDArray[np.bool_]
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


def _objections(placed: pd.DataFrame, visible: Bools, config: ReferenceConfig) -> _Objections:
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
