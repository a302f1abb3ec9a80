"""The laboratory's profile: how a model errs in one laboratory, from answers about detections of its slides.

The sample is drawn by chance from strata of probability, inside the hotspots and elsewhere, so that it
depends on nothing but what the machine said. What the answers say is kept slide by slide, as the likelihood
of each shape of the mixture (`counting.likely`): a slide is then placed among the others of its laboratory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from metaphase.base.arrays import Floats, Integers, Mask
from metaphase.base.errors import UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import read_bytes
from metaphase.base.later import pandas as pd
from metaphase.base.provenance import differences
from metaphase.base.settings import settings
from metaphase.base.tables import TableError
from metaphase.counting.clinical import SiteKnowledge
from metaphase.counting.likely import LEVELS, SHAPES, ObserverError

# ---- what is asked about ----

EDGES = (0.2, 0.4, 0.6, 0.8, 0.92)
"""Probabilities at which the strata end."""
FEWEST_ANSWERS = 10


@settings
class SampleConfig:
    """How many detections are asked about."""

    answers: int = 100
    """Detections to ask about."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.answers < FEWEST_ANSWERS:
            raise UsageError(f"{self.answers} answers", next_step=f"ask for at least {FEWEST_ANSWERS}")


def strata(probability: Floats, in_hotspot: Mask) -> Integers:
    """The stratum of each detection: its range of probability, in the hotspots or elsewhere."""
    return np.asarray(2 * np.searchsorted(EDGES, probability, side="right") + in_hotspot, np.int64)


def draw_detections(
    stratum: Integers, number: int, generator: np.random.Generator
) -> tuple[Integers, Floats]:
    """Which detections are asked about, the strata in turn, and with which probability each was to be."""
    key = generator.uniform(size=len(stratum))
    order = np.lexsort((key, stratum))
    first = np.searchsorted(stratum[order], stratum[order])
    turn = np.empty(len(stratum), np.int64)
    turn[order] = np.arange(len(stratum)) - first
    chosen = np.sort(np.lexsort((key, turn))[:number])
    names, index, sizes = np.unique(stratum, return_inverse=True, return_counts=True)
    asked = np.bincount(index[chosen], minlength=len(names))
    return chosen, (asked / sizes)[index]


# ---- what the answers say ----


class SiteEstimate(BaseModel):
    """A number with its 95 % interval."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


PointEstimates = dict[Literal["mitoses", "count"], SiteEstimate]


def precision_by_design(
    answer: Floats, inclusion: Floats, chosen: Mask, error: ObserverError
) -> SiteEstimate | None:
    """Share of mitotic figures among the chosen detections, by the sample's design alone: stratified."""
    right = (answer - error.false_alarms) / (1 - error.missed - error.false_alarms)
    asked = np.isfinite(answer)
    if (chosen & asked).sum() < FEWEST_ANSWERS // 2:
        return None
    share = variance = 0.0
    pooled = float(np.var(right[chosen & asked], ddof=1))
    for each in np.unique(inclusion[chosen]):
        here = chosen & (inclusion == each)
        values, part = right[here & asked], here.sum() / chosen.sum()
        often = max(1, len(values))
        share += part * (float(values.mean()) if len(values) else 0.5)
        spread = (float(((values - values.mean()) ** 2).sum()) + pooled) / often if len(values) else 0.25
        variance += part**2 * spread / often
    half = 1.96 * float(np.sqrt(variance))
    value, low, high = (float(np.clip(end, 0, 1)) for end in (share, share - half, share + half))
    return SiteEstimate(value=value, low=low, high=high)


# ---- the profile ----


Number = Annotated[int, Field(ge=0, le=10**9)]


class SiteProfile(BaseModel):
    """What `metaphase calibrate fit` writes and `metaphase detect --site` reads."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format: Literal[4] = 4
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
    observers: tuple[str, ...]
    design: dict[str, Any]
    """How the sample was drawn."""
    error: dict[str, float]
    """How often an observer's answer is wrong."""
    deltas: dict[Literal["mitoses", "count"], Annotated[float, Field(ge=0, le=1)]]
    precision: PointEstimates
    """Share of mitotic figures at both points, by the sample's design."""
    sure: tuple[Number, Number]
    """Answers about sure detections, and how many of them are yes."""
    shapes: dict[str, list[float]] = Field(repr=False)
    """By slide: log-likelihood of each level and shape, level by level; see `counting.likely`."""
    answered: dict[str, list[tuple[float, float, float]]] = Field(repr=False)
    """By slide: x and y of the detections that were asked about, and their answers."""

    @field_validator("shapes")
    @classmethod
    def _are_shapes(cls, shapes: dict[str, list[float]]) -> dict[str, list[float]]:
        number = len(LEVELS) * len(SHAPES)
        if any(len(each) != number for each in shapes.values()):
            raise ValueError(f"a slide needs {number} numbers")
        return shapes

    @model_validator(mode="after")
    def _is_sound(self) -> SiteProfile:
        try:
            ObserverError(**self.error)
        except (TypeError, UsageError) as error:
            raise ValueError(f"error: {error}") from error
        if set(self.deltas) != {"mitoses", "count"}:
            raise ValueError("the points mitoses and count are needed")
        return self

    def knowledge(self, slide: str = "") -> SiteKnowledge:
        """What the count of a slide needs of it; what was asked on the slide itself are its own answers."""
        own = np.array(self.answered.get(slide, []), np.float64).reshape(-1, 3)
        others = tuple(
            np.array(each).reshape(len(LEVELS), -1) for name, each in self.shapes.items() if name != slide
        )
        return SiteKnowledge(self.answers - len(own), others, ObserverError(**self.error), self.sure, own)

    def account(self) -> dict[str, Any]:
        """What of it decides a count."""
        return {
            "searched_with": self.searched_with,
            "deltas": dict(self.deltas),
            "shapes": self.shapes,
            "answers": self.answers,
            "answered": self.answered,
            "error": self.error,
            "sure": self.sure,
        }

    def described(self) -> str:
        """The profile in one line: name, answers, slides, date."""
        return f"{self.name}, {self.answers} answers on {len(self.slides)} slides, {self.made.isoformat()}"

    def refuse_other(self, model: str, searched_with: Mapping[str, Any], path: Path | None = None) -> None:
        """Refuse slides that were searched with another model, or otherwise."""
        before, now = (
            {"stage": "search", "ingredients": dict(each)} for each in (self.searched_with, searched_with)
        )
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
    """Read a laboratory's profile, which `calibrate` made.

    Parameters:
        path: Its file (JSON).

    Returns:
        The profile, for `detect(..., site=profile)`.

    Raises:
        TableError: The file is no profile.

    Examples:
        >>> load_profile("absent.json")
        Traceback (most recent call last):
        metaphase.base.tables.TableError: absent.json: no such file, so it cannot be read. ...
    """
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


def design_table(stratum: Integers, inclusion: Floats, asked: Mask) -> list[dict[str, Any]]:
    """One row a stratum: from which probability on, where, how many there are, how many were asked about."""
    frame = pd.DataFrame({"stratum": stratum, "inclusion": inclusion, "asked": asked})
    rows = frame.groupby("stratum").agg(
        detections=("asked", "size"), asked=("asked", "sum"), inclusion=("inclusion", "first")
    )
    rows.insert(0, "from", np.array((0.0, *EDGES))[rows.index // 2])
    rows.insert(1, "in_hotspots", rows.index % 2 == 1)
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]
