"""Answers about positions of a slide: which detections are mitoses, which are not, and where one was missed.

An item is a position in level-0 pixels, to a tenth. Where a detection lies there, the answer is about it; a
mitosis where none lies was missed by the machine. A new search that moves a detection by less than `SAME_UM`
keeps its answers, and nobody's mitosis is lost with the detection it was given to.

Regions and the place of the count are items of the same log. They are nobody's own: of all observers, the
latest word stands. Marks are there as well: figures that a person calls atypical, and notes at positions. No
count reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import shapely

from metaphase.base.errors import UsageError
from metaphase.base.foreign import described
from metaphase.base.later import pandas as pd
from metaphase.base.provenance import fingerprint_of
from metaphase.counting.regions import ANYWHERE, LEAST_PX2, Place, Region, Scope, on_slide, region_of
from metaphase.detections.table import ATYPICAL, CERTAIN, LOOKALIKE, MACHINE, MITOSIS, REVIEWED, REVIEWERS
from metaphase.labels.observers.project import NOT, UNSURE
from metaphase.labels.observers.store import AnswerLog, Entry, Given

ANSWERS = "review.sqlite"
"""The answers about a slide, in the folder of its results."""
SAME_UM = 4.0
"""Positions nearer than this are one figure: less than a metaphase plate is long."""
VERDICTS = (MITOSIS, NOT, UNSURE)
NOTE = "note"
MOST_NOTE = 300
"""Characters of a note."""

PLACE, FILED = "place", "regions of a file"
"""Items: the place of the count, and which file of regions was taken last."""
_REGION = re.compile(r"region [0-9a-f-]{36}")
_LATEST = """
SELECT item, answer FROM log
WHERE sequence IN (SELECT MAX(sequence) FROM log WHERE item IN (?, ?) OR item LIKE 'region %' GROUP BY item)
    AND answer IS NOT NULL
ORDER BY (SELECT MIN(sequence) FROM log AS first WHERE first.item = log.item)
"""
_PLACE = re.compile(r"(-?\d{1,9}\.\d) (-?\d{1,9}\.\d)")
_MOVED = re.compile(rf"moved {_PLACE.pattern}")
_MARK = re.compile(rf"({ATYPICAL}|{NOTE}) {_PLACE.pattern}")


# ---- positions and answers as text ----


def position_name(x: float, y: float) -> str:
    """How a position is called.

    >>> position_name(1234.56, 7)
    '1234.6 7.0'
    """
    return f"{x:.1f} {y:.1f}"


def position_of(name: str) -> tuple[float, float] | None:
    """The position of a name; None where it names none."""
    found = _PLACE.fullmatch(name)
    return None if found is None else (float(found[1]), float(found[2]))


def moved_to(x: float, y: float) -> str:
    """The answer that there is a mitosis, but at another position.

    >>> moved_to(10, 20.04)
    'moved 10.0 20.0'
    """
    return f"moved {position_name(x, y)}"


def region_entry(observer: str, region: Region, *, there: bool = True, **more: Any) -> Entry:
    """What is written of a region: how it is now, or that it is there no more."""
    return Entry(observer, f"region {region.id}", region.model_dump_json() if there else None, **more)


def _is_of_scope(item: str) -> bool:
    return item in (PLACE, FILED) or _REGION.fullmatch(item) is not None


@dataclass(frozen=True, slots=True)
class Mark:
    """What somebody put at a position, beside the answers."""

    observer: str
    kind: str
    """`atypical`, or `note`."""
    x: float
    y: float
    text: str
    """Of a note."""


def mark_name(kind: str, x: float, y: float) -> str:
    """How a mark is called.

    >>> mark_name("note", 10, 20.04)
    'note 10.0 20.0'
    """
    return f"{kind} {position_name(x, y)}"


class PositionLog(AnswerLog):
    """The answers about one slide, of this size in level-0 pixels, in the folder of its results."""

    def __init__(self, folder: Path, width: int, height: int) -> None:
        self._size = width, height
        super().__init__(folder / ANSWERS)

    def current(self, observer: str | None = None) -> list[Given]:
        """The answers that stand, as ever; those that are about no position of the slide are left out."""
        return [one for one in self._sound(observer) if not _MARK.fullmatch(one.item)]

    def marks(self, observer: str | None = None) -> list[Mark]:
        """The marks that stand, oldest first; of one observer, or of all."""
        found = ((one, _MARK.fullmatch(one.item)) for one in self._sound(observer))
        return [Mark(one.observer, at[1], float(at[2]), float(at[3]), one.answer) for one, at in found if at]

    def _sound(self, observer: str | None) -> list[Given]:
        given = (one for one in super().current(observer) if not _is_of_scope(one.item))
        return [one for one in given if not self._problem(one.item, one.answer)]

    def left_out(self) -> int:
        """How many answers stand that `current` and `scope` leave out."""
        return sum(bool(self._problem(one.item, one.answer)) for one in super().current())

    def scope(self) -> Scope:
        """Where figures count, by the latest word of anybody."""
        return self._standing()[0]

    def region(self, name: str, drawn: str) -> Entry:
        """What is to be written of a region as a page sends it, mended where it crosses itself."""
        try:
            region = Region.model_validate_json(drawn)
            shape = shapely.MultiPolygon([(polygon[0], polygon[1:]) for polygon in region.polygons])
        except ValueError as error:
            raise UsageError(f"is no region ({described(error)})", next_step="draw it again") from error
        made = region_of(region.kind, region.name, shape, id=name)
        return region_entry("", on_slide(made, *self._size))

    def filed(self, regions: Sequence[Region], observer: str) -> tuple[Scope, list[Entry]]:
        """The scope with the regions of a file, and what is to be written for it.

        Nothing, where the file was taken before as it is. What people drew or changed stays; what an earlier
        file said and this one does not, goes.
        """
        scope, taken = self._standing()
        key = fingerprint_of([one.model_dump(mode="json") for one in regions])
        if taken == key:
            return scope, []
        placed = [on_slide(one, *self._size) if self._size[0] else one for one in regions]
        names = {one.id for one in placed}
        gone = [one for one in scope.regions if one.filed and one.id not in names]
        by_id = {one.id: one for one in scope.regions if one not in gone} | {one.id: one for one in placed}
        entries = [region_entry(observer, one, there=False) for one in gone]
        entries += [region_entry(observer, one) for one in placed if one not in scope.regions]
        return Scope(regions=tuple(by_id.values()), place=scope.place), [
            *entries,
            Entry(observer, FILED, key),
        ]

    def _standing(self) -> tuple[Scope, str]:
        """The scope, and the file of regions that was taken last."""
        rows = [(item, answer) for item, answer in self._rows(_LATEST, (PLACE, FILED)) if _is_of_scope(item)]
        known = {item: answer for item, answer in rows if not self._problem(item, answer)}
        regions = (
            Region.model_validate_json(answer) for item, answer in known.items() if _REGION.match(item)
        )
        place = Place.model_validate_json(known[PLACE]) if PLACE in known else None
        return Scope(regions=tuple(regions), place=place), known.get(FILED, "")

    def _check(self, entry: Entry) -> None:
        super()._check(entry)
        if problem := self._problem(entry.item, entry.answer):
            steps = "give x and y on the slide, in level-0 pixels, and " + ", ".join(VERDICTS)
            raise UsageError(problem, next_step=steps)

    def _problem(self, item: str, answer: str | None) -> str:
        """What is wrong with an answer; empty where nothing is."""
        if _is_of_scope(item):
            return "" if answer is None or item == FILED else self._wrong(item, answer)
        moved, mark = _MOVED.fullmatch(answer or ""), _MARK.fullmatch(item)
        if mark is not None:
            fits = answer in (None, ATYPICAL) if mark[1] == ATYPICAL else len(answer or " ") <= MOST_NOTE
            if not fits or not (answer or " ").isprintable():
                return f"{str(answer)[:64]!r} is no mark: a note has up to {MOST_NOTE} printable characters"
            item = item.partition(" ")[2]
        elif moved is None and answer is not None and answer not in VERDICTS:
            return f"{answer[:64]!r} is not an answer"
        positions = [position_of(item), *([position_of(f"{moved[1]} {moved[2]}")] if moved else [])]
        width, height = self._size
        if all(
            position and 0 <= position[0] <= width and 0 <= position[1] <= height for position in positions
        ):
            return ""
        return (
            f"{(f'{item}, {answer}' if moved else item)[:64]!r} is not on the slide of {width} x {height} px"
        )

    def _wrong(self, item: str, answer: str) -> str:
        """What is wrong with a region or a place; empty where nothing is."""
        width, height = self._size
        try:
            if item == PLACE:
                place = Place.model_validate_json(answer)
                corners = np.array([[place.x, place.y]])
            else:
                region = Region.model_validate_json(answer)
                if (
                    item != f"region {region.id}"
                    or not region.shape.is_valid
                    or region.shape.area < LEAST_PX2
                ):
                    return f"{item!r} is no region with an area"
                corners = region.edges[:, :2]
        except ValueError as error:
            return f"{item!r} cannot be understood ({described(error)})"
        if width and not ((corners >= 0) & (corners <= (width, height))).all():
            return f"{item!r} is not on the slide of {width} x {height} px"
        return ""


# ---- from answers to a table ----


@dataclass
class _Votes:
    """What observers say of one figure: the latest of each."""

    x: float
    y: float
    probability: float
    """What the network said; NaN where it saw nothing."""
    given: dict[str, Given] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """What most say: those who are unsure do not vote, and as many against as for is no verdict."""
        answers = [one.answer for one in self.given.values()]
        against = answers.count(NOT)
        balance = len(answers) - against - answers.count(UNSURE) - against
        if balance:
            return MITOSIS if balance > 0 else NOT
        return UNSURE if answers else ""

    @property
    def position(self) -> tuple[float, float]:
        """Where it was moved to last, or where it was found."""
        moves = (_MOVED.fullmatch(one.answer) for one in reversed(self.given.values()))
        last = next((move for move in moves if move), None)
        return (self.x, self.y) if last is None else (float(last[1]), float(last[2]))


@dataclass(frozen=True)
class Share:
    """What one observer looked at."""

    __pydantic_config__: ClassVar = {"strict": True, "allow_inf_nan": False, "use_attribute_docstrings": True}

    observer: str
    """Name of the observer."""
    counted: int
    """Detections looked at that the model counts."""
    of: int
    """All detections that the model counts."""
    below: int
    """Detections looked at below the threshold of the count."""
    added: int
    """Mitotic figures that the model did not detect."""
    rejected: int
    """Detections that the model counts and the observer rejects."""

    def __str__(self) -> str:
        part = f" ({self.counted / self.of:.0%})" if self.of else ""
        parts = [
            f"{self.counted} of {self.of} counted detections{part}",
            f"{self.rejected} rejected" if self.rejected else "",
            f"{self.below} below the threshold" if self.below else "",
            f"{self.added} added" if self.added else "",
        ]
        return f"{self.observer}: {', '.join(filter(None, parts))}"


@dataclass(frozen=True, eq=False)
class Reviewed:
    """Detections as people left them."""

    table: pd.DataFrame
    """`slide, x, y, probability, label` and the columns of a review. What people call a mitosis is certain,
    what they reject is a look-alike with the network's probability, all else is as the network left it."""
    shares: tuple[Share, ...]

    @property
    def mitoses(self) -> pd.DataFrame:
        """All that may count: everything but what was rejected."""
        return self.table[self.table["label"] == MITOSIS]


def reviewed_detections(
    slide: str,
    candidates: pd.DataFrame,
    given: Sequence[Given],
    *,
    mpp: float,
    threshold: float,
    scope: Scope = ANYWHERE,
) -> Reviewed:
    """The detections `x, y, probability` of a slide with the answers that stand, oldest first.

    Who looked at what is said of those within the regions of the scope.
    """
    columns = (candidates[name].astype(float) for name in ("x", "y", "probability"))
    figures = [_Votes(x, y, probability) for x, y, probability in zip(*columns, strict=True)]
    for one, figure in _placed(figures, given, SAME_UM / mpp):
        figure.given.pop(one.observer, None)
        figure.given[one.observer] = one
    kept = [one for one in figures if not (np.isnan(one.probability) and one.verdict != MITOSIS)]
    within = scope.holds(np.array([one.position for one in figures]).reshape(-1, 2))
    rows = []
    for figure in kept:
        verdict, machine = figure.verdict, figure.probability
        label = LOOKALIKE if verdict == NOT else MITOSIS
        probability = CERTAIN if verdict == MITOSIS else machine
        rows.append((*figure.position, probability, label, machine, verdict, "; ".join(figure.given)))
    names = ["x", "y", "probability", "label", MACHINE, REVIEWED, REVIEWERS]
    table = pd.DataFrame(rows, columns=names)
    table.insert(0, "slide", slide)
    return Reviewed(
        table.astype(dict.fromkeys(("x", "y", "probability", MACHINE), float)),
        _shares([one for one, inside in zip(figures, within, strict=True) if inside], threshold),
    )


def _placed(
    figures: list[_Votes], given: Sequence[Given], radius_px: float
) -> Iterable[tuple[Given, _Votes]]:
    """Each answer with the figure it is about; mitoses where there is none become figures."""
    names = {position_name(one.x, one.y): one for one in figures}
    loose = [one for one in given if one.item not in names]
    positions = np.array([(one.x, one.y) for one in figures]).reshape(-1, 2)
    for one in sorted(loose, key=lambda one: one.answer in (NOT, UNSURE)):
        position = position_of(one.item)
        if position is None:
            continue
        distance = np.linalg.norm(positions - position, axis=1)
        if distance.min(initial=np.inf) <= radius_px:
            names[one.item] = figures[int(distance.argmin())]
        elif one.answer not in (NOT, UNSURE):
            names[one.item] = _Votes(*position, float("nan"))
            figures.append(names[one.item])
            positions = np.vstack([positions, position])
    return [(one, names[one.item]) for one in given if one.item in names]


def _shares(figures: Sequence[_Votes], threshold: float) -> tuple[Share, ...]:
    rows = [
        (name, figure.probability, given.answer) for figure in figures for name, given in figure.given.items()
    ]
    votes = pd.DataFrame(rows, columns=["observer", "probability", "answer"])
    votes["counted"] = votes["probability"] >= threshold
    return tuple(
        Share(
            str(name),
            counted=int(own["counted"].sum()),
            of=sum(figure.probability >= threshold for figure in figures),
            below=int((own["probability"] < threshold).sum()),
            added=int((own["probability"].isna() & ~own["answer"].isin((NOT, UNSURE))).sum()),
            rejected=int((own["counted"] & (own["answer"] == NOT)).sum()),
        )
        for name, own in votes.groupby("observer")
    )
