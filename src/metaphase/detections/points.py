"""Operating points: from which probability on a detection is a mitosis, and from which on it is counted.

A card holds them by name, each with all that belongs to it and the cases it was tuned on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from metaphase.base.errors import UsageError
from metaphase.base.typed import Stored
from metaphase.detections.table import (
    PAPER_FLOOR,
    PAPER_SUPPRESS_UM,
    PAPER_THETA1,
    PAPER_THETA2,
    PeakMethod,
)

# ---- one point ----

PointName = Literal["patches", "mitoses", "count"]
"""What an operating point is for: single patches, single mitoses, or the count with grade and score."""
SHARED_BY_POINTS = ("suppress_um", "smooth_um")
"""A slide is searched once: what decides the search is the same for mitoses and count."""
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Amount = Annotated[float, Field(ge=0, le=1e6, strict=True)]


class OperatingPoint(BaseModel):
    """Numbers chosen for one purpose, how good they were, and on which cases: never to be tested on these."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    name: PointName = Field(exclude=True)
    """Its key in the card."""
    delta: Share
    """Least probability that counts."""
    delta_range: tuple[Share, Share] | None = None
    """Where delta lay in 95 % of the draws of patients: how much it depends on who was in the tuning set."""
    suppress_um: Amount | None = None
    """Of two detections nearer than this, the weaker one goes."""
    smooth_um: Amount | None = None
    """Probabilities are averaged over this distance first."""
    method: PeakMethod | None = None
    """How the detections that it was tuned on were taken from the probability map ..."""
    floor: Share | None = None
    """... and from which probability on; None where nobody said."""
    theta1: Amount | None = None
    """Counts up to this are grade 1 ..."""
    theta2: Amount | None = None
    """... and counts above this are grade 3; for the count only."""
    thetas_given: bool | None = None
    """Whether the user chose the thetas for this very threshold."""
    metric: str = ""
    """The metric by which delta was chosen."""
    value: float | None = None
    """Its value on the tuning set: optimistic, not a result."""
    kappa: float | None = None
    """Quadratic kappa of the grades that the thetas gave on the tuning set."""
    cases: tuple[str, ...] = ()
    """Cases of the tuning set ..."""
    patients: tuple[str, ...] = ()
    """... their patients ..."""
    laboratories: tuple[str, ...] = ()
    """... and their laboratories."""
    source: str = ""
    """Where the numbers come from, in words."""
    false_per_mm2: Amount | None = None
    """False positives at this point, on images that no network was trained on ..."""
    recall: Share | None = None
    """... and the share of the mitoses that is found on them."""
    prior: dict[str, Any] | None = None
    """Of the count: how the model errs in laboratories that it does not know (`counting.likely`)."""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, values: Any) -> Any:
        """Numbers may also stand in a table `parameters`."""
        if not isinstance(values, dict) or not isinstance(values.get("parameters"), dict):
            return values
        return values["parameters"] | {key: value for key, value in values.items() if key != "parameters"}

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if (self.theta1 is None) != (self.theta2 is None):
            raise ValueError("theta1 and theta2 belong together")
        if self.theta1 is not None and self.theta2 is not None and self.theta2 < self.theta1:
            raise ValueError(f"theta2 ({self.theta2:g}) is below theta1 ({self.theta1:g})")
        return self

    @property
    def search(self) -> tuple[PeakMethod | float | None, ...]:
        """What it was tuned on."""
        return self.method, self.floor, self.suppress_um, self.smooth_um

    @property
    def numbers(self) -> dict[str, float]:
        """What it sets, by name."""
        return self.model_dump(
            include={"delta", "suppress_um", "smooth_um", "theta1", "theta2"}, exclude_none=True
        )


def named_points(thresholds: Any) -> Any:
    """Operating points as a card holds them, each with its own name."""
    if not isinstance(thresholds, dict):
        return thresholds
    return {
        name: value | {"name": name} if isinstance(value, dict) else value
        for name, value in thresholds.items()
    }


OperatingPoints = Annotated[dict[PointName, OperatingPoint], BeforeValidator(named_points)]


def refuse_two_searches(points: Mapping[PointName, OperatingPoint]) -> None:
    """Refuse points that would need a search each: `suppress_um` and `smooth_um` must agree where stated."""
    for name in SHARED_BY_POINTS:
        stated = {getattr(point, name) for key, point in points.items() if key != "patches"} - {None}
        if len(stated) > 1:
            raise ValueError(f"{name} differs between the operating points: {sorted(stated)}")


def _point_named(name: PointName) -> BeforeValidator:
    return BeforeValidator(lambda value: value | {"name": name} if isinstance(value, dict) else value)


class StatedPoints(Stored):
    """The operating points at which a slide was read, as its tables and its summary state them."""

    model: str = ""
    """Name of the model. Its card has the cases that chose the thresholds: `metaphase model info NAME`."""
    mitoses: Annotated[OperatingPoint, _point_named("mitoses")]
    """The threshold of what is listed."""
    count: Annotated[OperatingPoint, _point_named("count")]
    """The threshold of what is counted."""
    search: dict[str, Any] = Field(default_factory=dict)
    """How detections were taken from the probability map."""
    searched_with: dict[str, Any] = Field(default_factory=dict)
    """Networks and settings that decide detections. A profile holds for these alone."""
    site: str | None = None
    """The laboratory's profile, where one was given."""

    @property
    def lowest(self) -> float:
        """Probability from which a detection is listed or counted."""
        return min(self.mitoses.delta, self.count.delta)


# ---- the two points that a slide is read at ----


@dataclass(frozen=True)
class UsedPoints:
    """The operating points that a slide is read at, complete: every number that applies is stated."""

    mitoses: OperatingPoint
    """From here on a detection is listed as a mitosis."""
    count: OperatingPoint
    """From here on it enters the count, grade and proliferation score."""

    @property
    def lowest(self) -> float:
        """Detections from here on matter to one of them."""
        return min(self.mitoses.delta, self.count.delta)

    @property
    def suppress_um(self) -> float:
        """Of two detections nearer than this, the weaker one goes; one search serves both points."""
        return self.count.suppress_um or 0.0

    @property
    def smooth_um(self) -> float:
        """Probabilities are averaged over this distance first."""
        return self.count.smooth_um or 0.0

    def changed(self, **numbers: float | None) -> UsedPoints:
        """With some numbers given by the user."""
        return UsedPoints(changed_point(self.mitoses, **numbers), changed_point(self.count, **numbers))


MEASURED = ("false_per_mm2", "recall", "value", "kappa", "delta_range")
"""What is known of a point as it was tuned, and of no other."""
OPTIONS = {"delta": "threshold"}
"""What the user calls a number, where that is another word."""


def changed_point(point: OperatingPoint, **numbers: float | None) -> OperatingPoint:
    """The point with those numbers that it has and the user gave; how good it is, is not known then.

    Thetas alone change nothing about the detections.
    """
    own = point.numbers
    given = {name: float(value) for name, value in numbers.items() if value is not None and name in own}
    if not given:
        return point
    source, lost = f"{', '.join(given)} given by the user", dict.fromkeys(MEASURED)
    changes: dict[str, Any] = lost | {"metric": "", "source": source, "thetas_given": None}
    if given.keys() <= {"theta1", "theta2"}:
        changes = {"source": "; ".join(filter(None, (point.source, source))), "kappa": None}
    if given.keys() <= {"theta1", "theta2"} or {"theta1", "theta2"} <= given.keys():
        changes["thetas_given"] = True
    try:
        return OperatingPoint.model_validate(dict(point) | given | changes)
    except ValidationError as error:
        what = ", ".join(f"{OPTIONS.get(name, name)} is {value:g}" for name, value in given.items())
        raise UsageError(
            f"{what}: {error.errors()[0]['msg']}",
            next_step="give a probability from 0 to 1, distances of at least 0, and theta2 not below theta1",
        ) from error


def _points(mitoses: float, count: float, source: str, **search: Any) -> UsedPoints:
    """Two deltas with the paper's distances and thetas."""
    search |= {"suppress_um": PAPER_SUPPRESS_UM, "smooth_um": 0.0, "source": source}
    return UsedPoints(
        OperatingPoint(name="mitoses", delta=mitoses, **search),
        OperatingPoint(name="count", delta=count, theta1=PAPER_THETA1, theta2=PAPER_THETA2, **search),
    )


PAPER_POINTS = _points(
    0.919, 0.970, "the paper's, tuned there for its own network", method="components", floor=PAPER_FLOOR
)
"""Chosen on TUPAC-aux-train (mitoses) and TUPAC-train (count, grade, score)."""
UNTUNED = _points(PAPER_FLOOR, PAPER_FLOOR, "the paper's floor, because no operating point was tuned for it")
"""For an ensemble, and where a card says nothing."""


def paper_points(own: UsedPoints) -> UsedPoints:
    """Each point of a model that states that it was tuned on the paper's search (components from 0.8, 25 um
    apart, nothing smoothed), for deltas belong to a network; else the paper's."""

    def kept(mine: OperatingPoint, theirs: OperatingPoint) -> OperatingPoint:
        tuned = mine.cases and mine.search == theirs.search
        return mine if tuned and mine.delta >= PAPER_FLOOR else theirs

    return UsedPoints(kept(own.mitoses, PAPER_POINTS.mitoses), kept(own.count, PAPER_POINTS.count))


def plain_point(point: OperatingPoint) -> dict[str, Any]:
    """An operating point as plain values; its name is the key under which it stands."""
    return point.model_dump(mode="json", exclude_none=True)


def points_of(thresholds: Mapping[PointName, OperatingPoint]) -> UsedPoints:
    """What a card comes to: one point stands in for the other, the paper's floor for both."""
    mitoses, count = thresholds.get("mitoses"), thresholds.get("count")
    return UsedPoints(_completed(mitoses, count, UNTUNED.mitoses), _completed(count, mitoses, UNTUNED.count))


def _completed(
    tuned: OperatingPoint | None, other: OperatingPoint | None, untuned: OperatingPoint
) -> OperatingPoint:
    """What was tuned, else the other point in its place, with the paper's numbers where neither says."""
    stated = tuned or other
    if stated is None:
        return untuned
    values: dict[str, Any] = dict(untuned)
    if other is not None:
        values |= {name: value for name in SHARED_BY_POINTS if (value := getattr(other, name)) is not None}
    values |= {name: value for name, value in stated if value is not None and name != "name"}
    if tuned is None:
        values["source"] = f"that for {stated.name}, for the card has none for the {untuned.name}"
    if untuned.theta1 is None:
        values |= {"theta1": None, "theta2": None}
    return OperatingPoint.model_validate(values)
