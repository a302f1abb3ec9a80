"""The laboratory's profile: what a model's probabilities mean in one laboratory, from a sample of answers.

The sample is drawn by chance with known probabilities: detections from strata of probability, inside the
hotspots and elsewhere, weak ones included, and squares of tissue in which every mitosis is counted. Which
detections are asked about thus depends on nothing but what the machine said, and the answers hold for all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
    field_validator,
    model_validator,
)
from scipy.special import expit

from metaphase.base.arrays import Floats, Integers, Mask
from metaphase.base.errors import UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import read_bytes
from metaphase.base.provenance import differences
from metaphase.base.settings import settings
from metaphase.base.tables import TableError
from metaphase.counting.calibration import SiteCalibration
from metaphase.counting.populations import (
    Laboratory,
    Learned,
    Posterior,
    ReviewerError,
    bin_of,
    cells_of,
    learn,
)
from metaphase.detections.points import OperatingPoint, UsedPoints

# ---- what is asked about ----

EDGES = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.98)
"""Probabilities at which the strata begin."""
LEAST_A_STRATUM = 2
MOST_SUPPOSED = 0.7
"""For the sample no detection is surer than this: whether strong ones are right is what is to be learned."""
FEWEST_ANSWERS = 30
CHUNK = 10_000
"""Detections at a time."""
EVEN_SHARE = 0.2
"""Share of the squares' chances that is the same for all tissue; the rest follows the mitoses expected."""


@settings
class SampleConfig:
    """How many are asked about."""

    answers: int = 100
    """Pictures to ask about, squares included."""
    squares: NonNegativeInt = 20
    """Of them, squares of tissue in which mitoses are counted."""
    square_um: Annotated[float, Field(ge=64, le=1000)] = 256.0
    """Side of a square."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.squares < self.answers or self.answers < FEWEST_ANSWERS:
            raise UsageError(
                f"{self.answers} answers, of them {self.squares} squares",
                next_step=f"ask for at least {FEWEST_ANSWERS} answers, and fewer squares than answers",
            )


def supposed_chance(known: Floats) -> Floats:
    """Chance of a mitosis before any answer: it spreads the sample, and no estimate rests on it."""
    odds, around = known.T
    return np.asarray(expit(-4.8 + 1.5 * np.maximum(odds, 0) + 1.3 * np.minimum(odds, 0) + 0.5 * around))


def strata(probability: Floats, in_hotspot: npt.NDArray[np.bool_]) -> Integers:
    """The stratum of each detection: its range of probability, in the hotspots or elsewhere."""
    return np.asarray(2 * (np.searchsorted(EDGES, probability, side="right") - 1) + in_hotspot, np.int64)


def draw_detections(
    stratum: Integers, chance: Floats, number: int, generator: np.random.Generator
) -> tuple[Integers, Floats]:
    """Which detections are asked about, and the probability with which each of all was to be.

    Each stratum gives in proportion to its size and to how unsure its answers are (Neyman), by `chance`, and
    a few in any case.
    """
    likely = np.minimum(chance, MOST_SUPPOSED)
    unsure = np.sqrt(likely * (1 - likely))
    names, index, sizes = np.unique(stratum, return_inverse=True, return_counts=True)
    share = np.bincount(index, unsure, minlength=len(names))
    wanted = np.minimum(LEAST_A_STRATUM, sizes)
    while wanted.sum() < min(number, sizes.sum()):
        open_ = wanted < sizes
        lacking = np.where(open_, share / (wanted + 1), -np.inf)
        wanted[int(lacking.argmax())] += 1
    chosen = [
        generator.choice(np.flatnonzero(index == each), often, replace=False)
        for each, often in enumerate(wanted)
    ]
    return np.sort(np.concatenate([*chosen, np.zeros(0, np.int64)])).astype(np.int64), (wanted / sizes)[index]


def draw_squares(
    tissue_mm2: Floats, expected: Floats, number: int, generator: np.random.Generator
) -> tuple[Integers, Floats]:
    """Which squares are asked about, each once, and the chance of every square in each draw.

    Squares with much expected are the likelier: there, what is missed can be seen. All tissue has a chance.
    """
    if not number:
        return np.zeros(0, np.int64), np.zeros(len(tissue_mm2))
    even, active = (values / values.sum() if values.sum() else values for values in (tissue_mm2, expected))
    chance = EVEN_SHARE * even + (1 - EVEN_SHARE) * active if active.sum() else even
    drawn = generator.choice(len(chance), number, p=chance / chance.sum())
    return np.unique(drawn).astype(np.int64), chance


# ---- what the answers say ----


@dataclass(frozen=True, eq=False)
class Answered:
    """All detections of the searched slides, and what was answered."""

    known: Floats
    """Evidence (n, 2), see `counting.calibration`."""
    probability: Floats
    slide: Integers
    """Number of each detection's slide."""
    answer: Floats
    """From 0 to 1: the share of observers who say mitosis; NaN where nobody was asked."""
    inclusion: Floats
    """Probability with which each was to be asked about."""
    in_square: npt.NDArray[np.bool_]
    """Whether it lies in a square that was answered."""
    area_mm2: float
    """Tissue of all slides."""
    squares: int
    seen: float
    """Mitoses that were counted in all squares together."""

    @property
    def answers(self) -> int:
        """How many there are."""
        return int(np.isfinite(self.answer).sum()) + self.squares


class SiteEstimate(BaseModel):
    """A number with its 95 % interval."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


PointEstimates = dict[Literal["mitoses", "count"], dict[str, SiteEstimate]]


def _estimate(values: Floats) -> SiteEstimate:
    low, high = np.quantile(values, [0.025, 0.975])
    return SiteEstimate(value=float(values.mean()), low=float(low), high=float(high))


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was learned of a laboratory."""

    laboratory: Laboratory
    at: PointEstimates
    """At each operating point: precision, recall, false_per_mm2; and by the sample's design alone,
    precision_by_design."""
    found: SiteEstimate
    """Share of the mitoses that have any detection."""
    mitoses_per_mm2: SiteEstimate
    """In all the tissue of the slides."""


def fit_site(
    given: Answered,
    deltas: Mapping[Literal["mitoses", "count"], float],
    reviewer: ReviewerError,
    seed: int = 0,
) -> Fitted:
    """Learn from the answers, and say what holds for the laboratory's slides at both operating points."""
    asked = np.isfinite(given.answer)
    if asked.sum() < FEWEST_ANSWERS // 2:
        raise UsageError(
            f"detections with an answer: {asked.sum()}", next_step="answer the others, then fit again"
        )
    odds, around = given.known.T
    floor, slides = float(odds.min()), int(given.slide.max()) + 1
    cells = cells_of(odds, around, given.slide, slides, floor, given.answer, given.in_square)
    known = float(given.answer[asked & given.in_square].sum())
    learned = learn(Posterior(cells, floor, given.seen, known, reviewer), seed)
    missed = learned.laboratory.missed
    right = _right(given, learned, reviewer, [0.0, *deltas.values()], seed)
    every = right[0] + np.random.default_rng(seed + 1).poisson(right[0] * missed)
    return Fitted(
        learned.laboratory,
        {
            name: _at_point(given, found, every, deltas[name], reviewer)
            for name, found in zip(deltas, right[1:], strict=True)
        },
        _estimate(1 / (1 + missed)),
        _estimate(every / given.area_mm2),
    )


def _right(
    given: Answered, learned: Learned, reviewer: ReviewerError, deltas: list[float], seed: int
) -> list[Floats]:
    """How many detections from each probability on are mitoses, in every draw."""
    lab, generator = learned.laboratory, np.random.default_rng(seed)
    totals = [np.zeros(len(lab)) for _ in deltas]
    for slide in np.unique(given.slide):
        own, every = learned.own[:, int(slide)], np.flatnonzero(given.slide == slide)
        others, mitoses = lab.densities(own)
        for part in np.array_split(every, len(every) // CHUNK + 1):
            odds, around = given.known[part].T
            curve = lab.shares(own) + around[:, None] * lab.around
            curve = curve + (mitoses - others).T[bin_of(odds, lab.floor)]
            chance, answer = np.asarray(expit(curve)), given.answer[part]
            asked = np.isfinite(answer)
            chance[asked] = reviewer.described(chance[asked], answer[asked, None])
            there = generator.uniform(size=chance.shape) < chance
            for total, delta in zip(totals, deltas, strict=True):
                total += there[given.probability[part] >= delta].sum(axis=0)
    return totals


def _at_point(
    given: Answered, right: Floats, every: Floats, delta: float, reviewer: ReviewerError
) -> dict[str, SiteEstimate]:
    """What holds from one probability on, where `right` are mitoses, and `every` one is counted."""
    above = given.probability >= delta
    found = {
        "recall": _estimate(right / np.maximum(every, 1)),
        "false_per_mm2": _estimate((int(above.sum()) - right) / given.area_mm2),
    }
    if above.any():
        found["precision"] = _estimate(right / int(above.sum()))
    if np.isfinite(given.answer[above]).sum() > 1:
        found["precision_by_design"] = share_by_design(given, above, reviewer)
    return found


def share_by_design(given: Answered, chosen: Mask, reviewer: ReviewerError) -> SiteEstimate:
    """Share of mitoses among the chosen detections: stratified and prediction-powered, with its interval.

    In each stratum, the mean of what was supposed before any answer, put right by its mean error where
    answers are. So it is valid whatever the detector does, and rests on no curve and on no prior.
    """
    supposed = supposed_chance(given.known)
    corrected = (given.answer - reviewer.false_alarms) / reviewer.clear
    asked = np.isfinite(given.answer)
    share, variance = 0.0, 0.0
    pooled = float(np.var((corrected - supposed)[chosen & asked], ddof=1))
    for inclusion in np.unique(given.inclusion[chosen]):
        here = chosen & (given.inclusion == inclusion)
        errors = (corrected - supposed)[here & asked]
        part, often = here.sum() / chosen.sum(), len(errors)
        share += part * (supposed[here].mean() + (errors.mean() if often else 0.0))
        spread = (float(((errors - errors.mean()) ** 2).sum()) + pooled) / max(often, 1) if often else 1.0
        exact = 1 - often / here.sum() if reviewer == ReviewerError() else 1.0
        variance += part**2 * spread / max(often, 1) * exact
    half = 1.96 * float(np.sqrt(variance))
    value = float(np.clip(share, 0, 1))
    return SiteEstimate(value=value, low=max(0.0, float(share) - half), high=min(1.0, float(share) + half))


# ---- the profile ----


Number = Annotated[int, Field(ge=0, le=10**9)]


class SiteProfile(BaseModel):
    """What `metaphase calibrate fit` writes and `metaphase detect --site` reads."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format: Literal[2] = 2
    name: str
    made: date
    """When the answers were taken together."""
    model: str
    """What the model is called ..."""
    searched_with: dict[str, Any]
    """... and what decides its detections: networks and how peaks are taken."""
    slides: tuple[str, ...]
    area_mm2: Annotated[float, Field(ge=0)]
    answers: Number
    squares: Number
    observers: tuple[str, ...]
    design: dict[str, Any]
    """How the sample was drawn."""
    reviewer: dict[str, float]
    deltas: dict[Literal["mitoses", "count"], Annotated[float, Field(ge=0, le=1)]]
    at: PointEstimates
    found: SiteEstimate
    mitoses_per_mm2: SiteEstimate
    draws: dict[str, Any] = Field(repr=False)
    """Of the laboratory; see `counting.populations.Laboratory`."""
    answered: dict[str, list[tuple[float, float, float]]] = Field(repr=False)
    """By slide: x and y of the detections that were asked about, and their answers."""

    @field_validator("draws")
    @classmethod
    def _are_draws(cls, draws: dict[str, Any]) -> dict[str, Any]:
        Laboratory.from_dict(draws)
        return draws

    @model_validator(mode="after")
    def _is_sound(self) -> SiteProfile:
        try:
            ReviewerError(**self.reviewer)
        except (TypeError, UsageError) as error:
            raise ValueError(f"reviewer: {error}") from error
        for name in ("mitoses", "count"):
            if name not in self.deltas or not {"recall", "false_per_mm2"} <= set(self.at.get(name, {})):
                raise ValueError(f"nothing is said of the point {name}")
        return self

    def calibration(self, slide: str = "") -> SiteCalibration:
        """What the count of a slide needs of it."""
        own = np.array(self.answered.get(slide, []), np.float64).reshape(-1, 3)
        return SiteCalibration(
            Laboratory.from_dict(self.draws), self.deltas["count"], self.answers,
            ReviewerError(**self.reviewer), own,
        )  # fmt: skip

    def account(self) -> dict[str, Any]:
        """What of it decides a count."""
        return {"searched_with": self.searched_with, "deltas": dict(self.deltas), "draws": self.draws,
                "answers": self.answers, "answered": self.answered, "reviewer": self.reviewer}  # fmt: skip

    def rated(self, points: UsedPoints) -> UsedPoints:
        """Operating points with the rates of this laboratory, where they are those that were calibrated."""

        def rated(point: OperatingPoint) -> OperatingPoint:
            if point.name == "patches" or self.deltas[point.name] != point.delta:
                return point
            rates = {name: self.at[point.name][name].value for name in ("recall", "false_per_mm2")}
            source = "; ".join(filter(None, (point.source, f"rates of the site {self.name}")))
            return point.model_copy(update={**rates, "source": source})

        return UsedPoints(rated(points.mitoses), rated(points.count))

    def described(self) -> str:
        """In a line."""
        return f"{self.name}, {self.answers} answers on {len(self.slides)} slides, {self.made.isoformat()}"

    def refuse_other(self, model: str, searched_with: Mapping[str, Any], path: Path | None = None) -> None:
        """Refuse slides that were searched with another model, or otherwise."""
        before, now = ({"stage": "search", "ingredients": dict(each)} for each in
                       (self.searched_with, searched_with))  # fmt: skip
        if before["ingredients"] != now["ingredients"]:
            what = differences(before | {"schema": 1}, now | {"schema": 1})
            raise UsageError(
                f"the profile is for the model {self.model}, and these detections are by {model} ({what})",
                path=path,
                next_step="search as it was done there, or calibrate this model (`metaphase calibrate`)",
            )


def save_profile(path: str | Path, profile: SiteProfile) -> None:
    """Write it whole or not at all."""
    write_text(Path(path), json.dumps(profile.model_dump(mode="json"), indent=1) + "\n")


def load_profile(path: str | Path) -> SiteProfile:
    """Read it back; anything else is an error that says so."""
    data = read_bytes(path, TableError)
    try:
        return SiteProfile.model_validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise TableError(
            f"not a laboratory's profile ({'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']})",
            path=path,
            next_step="give what `metaphase calibrate fit` wrote",
        ) from error


def design_table(stratum: Integers, inclusion: Floats, asked: npt.NDArray[np.bool_]) -> list[dict[str, Any]]:
    """One row a stratum: from which probability on, where, how many there are, how many were asked about."""
    frame = pd.DataFrame({"stratum": stratum, "inclusion": inclusion, "asked": asked})
    rows = []
    for number, part in frame.groupby("stratum"):
        level, hot = divmod(int(str(number)), 2)
        rows.append(
            {
                "from": EDGES[level],
                "in_hotspots": bool(hot),
                "detections": len(part),
                "asked": int(part["asked"].sum()),
                "inclusion": round(float(part["inclusion"].iloc[0]), 6),
            }
        )
    return rows
