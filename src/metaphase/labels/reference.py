"""The reference standard: mitoses of a PHH3 slide in H&E coordinates, each with where it came from.

`place_points` registers a pair and carries its points over, `decide` says which of them are accepted and why,
and `apply_decisions` lets people overrule it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field, NonNegativeFloat, PositiveFloat
from scipy.spatial import cKDTree

from metaphase.base.arrays import RGB, Floats, Floats32, Integers, Mask, Points
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.files import write_text
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.base.settings import Share, settings
from metaphase.base.tables import as_text, read_table, require_columns, require_numbers, write_table
from metaphase.detections.table import DetectionSet
from metaphase.labels.registration.outputs import points_geojson
from metaphase.labels.registration.pair import Registration, register_pair, register_points
from metaphase.labels.registration.similarity import RegistrationConfig
from metaphase.labels.registration.tiles import nuclear_density
from metaphase.slides.contract import Slide
from metaphase.slides.tiles import cut_square

# ---- what can be wrong with a reference standard ----


class ReferenceStandardError(MetaphaseError):
    """A reference standard cannot be built, read or changed."""


# ---- which points of a PHH3 slide become part of the reference standard ----


@settings
class ReferenceConfig:
    """Conditions for a point to be accepted; one that fails any is kept in the table with the reason."""

    min_probability: Share = 0.0
    """Least probability of the PHH3 network; its own decision has been taken already."""
    min_confidence: Share = 0.5
    """Least probability that the place in H&E is right to 2 um."""
    min_contrast: NonNegativeFloat = 1.1
    """Least darkness of the object in H&E relative to dark nuclei around it; see `VisibilityConfig`."""
    require_visible: bool = True
    """Whether what PHH3 shows must show in H&E, too. If not, the flag is set and nothing else."""
    keep: Literal["sure", "all"] = "sure"
    """`all`, as in the paper: every point that has a position in H&E, whatever else is said here."""
    accept_doubtful: bool = False
    """Whether points of a pair whose registration is doubtful are accepted: after looking at its picture."""
    min_distance_um: NonNegativeFloat = 7.5
    """Accepted points closer than this are one figure, such as the two plates of an anaphase: the more
    probable one stands for both."""


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
    "observer",
    "reviewed",
)
"""Positions are level-0 pixels of the H&E slide (x, y) and of the PHH3 slide; `registration` is the verdict
on the pair, or `reliable` of a point that is sure although its pair is not; `automatic` is the decision
without any observer, `cause` (one of `CAUSES`) and `reason` say what speaks against the point, as a word and
in words."""
CAUSES = ("registration", "doubtful", "probability", "confidence", "invisible", "double")
PLACED_COLUMNS = tuple(
    name
    for name in COLUMNS
    if name not in ("accepted", "cause", "reason", "visible", "automatic", "observer", "reviewed")
)
"""What is known of a point before the decision, beside `problem`: what registration says against it."""
REJECTED, FAILED, DOUBTFUL = "rejected", "failed", "doubtful"

Objections = list[tuple[npt.ArrayLike, str, npt.ArrayLike]]
"""For which points, in a word, and in words."""


def decide(placed: pd.DataFrame, he_mpp: float, config: ReferenceConfig | None = None) -> pd.DataFrame:
    """The reference-standard table of placed points: the same rows in the same order, each accepted or not.

    `placed` has `PLACED_COLUMNS` and `problem`. The first reason against a point is given.
    """
    config = config or ReferenceConfig()
    visible = (placed["contrast"] >= config.min_contrast).to_numpy()
    bad, causes, reasons = zip(*_objections(placed, visible, config), strict=True)
    cause = np.select(bad, [np.full(len(placed), text, object) for text in causes], "")
    reason = np.select(bad, [np.broadcast_to(np.asarray(text, object), len(placed)) for text in reasons], "")
    apart_um = 0.0 if config.keep == "all" else config.min_distance_um
    for row, other in _doubles(placed, cause == "", apart_um / he_mpp):
        cause[row], reason[row] = "double", f"the same figure as {placed['candidate'].iloc[other]}"
    accepted = cause == ""
    decided = placed.assign(visible=visible, accepted=accepted, cause=cause, reason=reason)
    return decided.assign(automatic=accepted, observer="", reviewed="")[list(COLUMNS)]


def _objections(placed: pd.DataFrame, visible: Mask, config: ReferenceConfig) -> Objections:
    """All that may speak against a point, the first first."""
    if config.keep == "all":
        return [(placed["x"].isna(), "registration", placed["problem"])]
    verdict = placed["registration"]
    lost, doubtful = (verdict == FAILED) | (placed["method"] == REJECTED), verdict == DOUBTFUL
    found: Objections = [(lost, "registration", placed["problem"])]
    if not config.accept_doubtful:
        found.append((doubtful, "doubtful", "the registration of the pair is doubtful"))
    for cause, least in (("probability", config.min_probability), ("confidence", config.min_confidence)):
        values = placed[cause]
        found.append((values < least, cause, [f"{cause} {value:.2f} is below {least:g}" for value in values]))
    if config.require_visible:
        found.append((~visible, "invisible", "H&E shows nothing dark here"))
    return found


def _doubles(placed: pd.DataFrame, passed: Mask, radius_px: float) -> Iterator[tuple[int, int]]:
    """Of points that pass and lie close together, all but the most probable, each with the one that stays."""
    rows, free = np.flatnonzero(passed), passed.copy()
    if not len(rows) or radius_px <= 0:
        return
    points = placed[["x", "y"]].to_numpy(float)[rows]
    close = cKDTree(points).query_ball_point(points, radius_px)
    for first in np.argsort(-placed["probability"].to_numpy(float)[rows], kind="stable"):
        for other in rows[close[first]] if free[rows[first]] else ():
            if free[other] and other != rows[first]:
                free[other] = False
                yield int(other), int(rows[first])


# ---- writing a reference standard and reading it back ----

TABLE, SHEET, SHAPES = "reference.parquet", "reference.csv", "reference.geojson"
TEXTS = ("case", "cause", "reason", "method", "registration", "candidate", "observer", "reviewed")
TRUTHS = ("accepted", "visible", "automatic")


def write_reference(folder: Path, table: pd.DataFrame, *, shapes: bool = False) -> None:
    """Write the table as Parquet and CSV; with `shapes` (one slide), accepted points for QuPath as well."""
    if shapes:
        named = table.assign(slide=table["case"], label="mitosis")
        write_text(folder / SHAPES, json.dumps(points_geojson(named)))
    write_table(folder / SHEET, table)
    write_table(folder / TABLE, table)


def read_reference(path: Path) -> pd.DataFrame:
    """A reference standard from its file, or from the folder that holds it."""
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


# ---- does the H&E slide show a dark figure where PHH3 says that a mitosis is? ----
#
# The measure is a contrast: the darkest spot of the size of a chromosome plate close to the place, in nuclear
# density, relative to how dark the darkest nuclei around it are. An ordinary nucleus has a contrast of about
# 0.8, a metaphase of 2. Only the tissue around decides what is dark, so stain and scanner matter little.

FLOOR = 0.02
"""Density that is added to that of the surroundings: on empty glass nothing stands out."""


@settings
class VisibilityConfig:
    """Sizes of the measurement, in micrometres."""

    mpp: PositiveFloat = 0.5
    """Resolution at which the crop is read, in um/px."""
    spot_radius_um: PositiveFloat = 1.5
    """Density is averaged over a disc of this radius: 7 um2, half of a small plate."""
    reach_um: PositiveFloat = 4.0
    """The figure is looked for this far from its place: the plates of a late anaphase lie apart."""
    gap_um: PositiveFloat = 8.0
    """The surroundings begin at this distance ..."""
    window_um: PositiveFloat = 64.0
    """... and fill a square of this side."""
    dark_percent: Annotated[float, Field(gt=0, le=100)] = 95.0
    """Percentile of the surroundings that stands for dark nuclei."""

    def __post_init__(self) -> None:
        order = (self.mpp, self.spot_radius_um, self.reach_um, self.gap_um, self.window_um / 2)
        if list(order) != sorted(set(order)):
            raise UsageError(
                "the sizes of the visibility measurement contradict each other",
                next_step="pixel < spot radius < reach < gap < half the window",
            )

    @property
    def side_px(self) -> int:
        """Side of the crop in pixels."""
        return round(self.window_um / self.mpp)


def contrast(crop: RGB, config: VisibilityConfig | None = None) -> float:
    """Contrast of what lies in the middle of an H&E crop of `config.side_px` pixels at `config.mpp`."""
    config = config or VisibilityConfig()
    spots = cv2.filter2D(nuclear_density(crop, "H&E"), -1, _disc(config.spot_radius_um / config.mpp))
    y, x = (np.arange(side) + 0.5 - side / 2 for side in crop.shape[:2])
    distance = np.hypot(x[None, :], y[:, None]) * config.mpp
    around = float(np.percentile(spots[distance > config.gap_um], config.dark_percent))
    return float(spots[distance <= config.reach_um].max()) / (around + FLOOR)


def measure_contrast(slide: Slide, points: npt.ArrayLike, config: VisibilityConfig | None = None) -> Floats:
    """Contrast of each level-0 position (n, 2) of an H&E slide; NaN where there is no place or no slide."""
    config = config or VisibilityConfig()
    positions = np.asarray(points, np.float64).reshape(-1, 2)
    inside = ((positions >= 0) & (positions < (slide.width, slide.height))).all(axis=1)

    def measure(position: Points) -> float:
        x, y = position.tolist()
        return contrast(cut_square(slide, x, y, config.side_px, config.mpp), config)

    contrasts = np.full(len(positions), np.nan)
    threads = available_cores()
    contrasts[inside] = list(ordered_map(measure, positions[inside], threads=threads, ahead=2 * threads))
    return contrasts


def _disc(radius_px: float) -> Floats32:
    """A disc that sums to 1."""
    reach = math.ceil(radius_px)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disc = (x**2 + y**2 <= radius_px**2).astype(np.float32)
    return np.asarray(disc / disc.sum(), np.float32)


# ---- from a pair of slides and the mitoses of its PHH3 slide to the reference standard of its H&E ----


@dataclass(frozen=True)
class PlacedPoints:
    """Points in H&E coordinates with all that the decision about them needs, and the registration."""

    table: pd.DataFrame
    """`PLACED_COLUMNS` and `problem`, one row a point in the given order."""
    registration: Registration
    points: pd.DataFrame
    """What `register_points` said about each."""


def place_points(
    he: Slide,
    phh3: Slide,
    points: DetectionSet,
    case: str,
    *,
    registration: RegistrationConfig | None = None,
    visibility: VisibilityConfig | None = None,
) -> PlacedPoints:
    """Register a pair, carry the PHH3 points over, and measure what H&E shows there. The slow part.

    A point that registration rejects keeps the place where the smooth transform puts it, so that nobody takes
    the spot for free of mitoses; after a failed registration points have no place.
    """
    registered = register_pair(he, phh3, registration)
    found = register_points(registered, points.table[["x", "y"]].to_numpy())
    guess = registered.transform.phh3_to_he(found[["x_phh3", "y_phh3"]].to_numpy())
    guess[((guess < 0) | (guess >= (he.width, he.height))).any(axis=1)] = np.nan
    verdict, problem = registered.verdict, found["reason"].astype(object)
    if verdict.status == FAILED:
        guess[:] = np.nan
        problem[:] = f"the registration failed: {'; '.join(verdict.reasons)}"
    rejected = (found["method"] == REJECTED).to_numpy()
    positions = np.where(rejected[:, None], guess, found[["x_he", "y_he"]].to_numpy(float))
    table = found.assign(
        case=case,
        x=positions[:, 0],
        y=positions[:, 1],
        contrast=measure_contrast(he, positions, visibility),
        probability=points.table["probability"].to_numpy(float),
        registration=np.where(verdict.sure(found["confidence"]), "reliable", verdict.status),
        candidate=[str(name) for name in points.table.get("candidate", range(len(found)))],
        problem=problem,
    )
    return PlacedPoints(table[[*PLACED_COLUMNS, "problem"]], registered, found)


# ---- people overrule the decision ----

ACCEPT, REJECT = "accept", "reject"
PLACES = ("x", "y", "x_phh3", "y_phh3")
DECISION_COLUMNS = ("case", *PLACES, "decision", "observer", "time")
SAME_PX = 4.0
"""A decision holds for a point as long as its places, in both slides, move by less than this."""


@dataclass(frozen=True)
class Applied:
    """A reference table after its review."""

    table: pd.DataFrame
    reviewed: int
    """Points with a decision of a person."""
    changed: int
    """Those of them for which it differs from the automatic one."""
    stale: int
    """Decisions about positions that are in the table no more."""


def apply_decisions(table: pd.DataFrame, decisions: pd.DataFrame) -> Applied:
    """The table with people's decisions in `accepted`, `observer` and `reviewed`; `automatic` stays.

    Of several decisions about one point the latest counts.
    """
    latest = decisions.sort_values("time", kind="stable")
    latest = latest.assign(row=rows_of(table, latest))
    stale = int((latest["row"] < 0).sum())
    latest = latest[latest["row"] >= 0].drop_duplicates("row", keep="last")
    rows = latest["row"].to_numpy(int)
    accepted = table["automatic"].to_numpy(bool).copy()
    accepted[rows] = (latest["decision"] == ACCEPT).to_numpy()
    observer, reviewed = (np.full(len(table), "", object) for _ in range(2))
    observer[rows], reviewed[rows] = latest["observer"].to_numpy(object), latest["time"].to_numpy(object)
    changed = int((accepted != table["automatic"].to_numpy(bool)).sum())
    done = table.assign(accepted=accepted, observer=observer, reviewed=reviewed)
    return Applied(done, len(rows), changed, stale)


def rows_of(table: pd.DataFrame, decisions: pd.DataFrame) -> Integers:
    """Row of the point that each decision is about, or -1."""
    rows = np.full(len(decisions), -1, np.int64)
    for case, some in decisions.reset_index(drop=True).groupby("case"):
        own = np.flatnonzero((table["case"] == case) & table["x"].notna())
        if len(own):
            tree = cKDTree(table[list(PLACES)].to_numpy(float)[own])
            _, nearest = tree.query(
                some[list(PLACES)].to_numpy(float), p=np.inf, distance_upper_bound=SAME_PX
            )
            rows[some.index] = np.append(own, -1)[nearest]  # the tree answers its size where nothing is near
    return rows


def read_decisions(path: Path) -> pd.DataFrame:
    """Read and check a table of decisions, from `metaphase reference apply` or made elsewhere."""
    table = read_table(path)
    require_columns(table, DECISION_COLUMNS, path)
    require_numbers(table, PLACES, path)
    texts = {name: as_text(table[name]).str.strip() for name in ("case", "decision", "observer", "time")}
    wrong = ~texts["decision"].isin((ACCEPT, REJECT))
    if wrong.any():
        raise ReferenceStandardError(
            f"row {int(wrong.to_numpy().argmax()) + 1} decides {texts['decision'][wrong].iloc[0]!r}",
            path=path,
            next_step=f"write {ACCEPT} or {REJECT}",
        )
    return table.assign(**texts)[list(DECISION_COLUMNS)]
