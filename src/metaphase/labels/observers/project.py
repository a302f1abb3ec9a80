"""A labelling project: a folder of what to judge, the question and, once merged, the labels."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from metaphase.base.errors import MetaphaseError, OutputError
from metaphase.base.files import stated_path, stored_path, write_text
from metaphase.base.foreign import is_file, read_bytes, read_json
from metaphase.base.later import pandas as pd
from metaphase.base.tables import (
    TableError,
    as_text,
    named,
    read_table,
    require_columns,
    require_numbers,
    write_table,
)

# ---- a labelling project ----

ITEMS, SETTINGS, ANSWERS = "items.csv", "project.json", "answers.sqlite"
LABELS = "labels.csv"
"""What merging the answers leaves."""
UNAVAILABLE = "unavailable.json"
"""Items that could not be shown, with the reason: nobody is asked about them."""
MITOSIS, NOT, ARTEFACT, UNSURE = "mitosis", "not", "artefact", "unsure"
"""Answers of the labelling page."""
ITEM_COLUMNS = ("item", "slide", "x", "y")
RESERVED_KEYS = frozenset("zgh")
"""Keys of the page itself: undo, grid, hide the marks."""
NUMBER_BYTES = 6
"""48 bits: exact in a browser's numbers, and enough that a million items do not collide."""


class LabellingError(MetaphaseError):
    """A labelling project cannot be used as it is."""


AnswerName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9 _-]{0,31}$")]


class Answer(BaseModel):
    """One of the answers that observers choose from."""

    model_config = ConfigDict(frozen=True)

    name: AnswerName
    """What stands in tables."""
    key: Annotated[str, Field(pattern=r"^[a-z0-9]$")]
    """The key that gives this answer."""
    label: Annotated[str, Field(max_length=32)] = ""
    """What stands on the button; by default the name."""
    colour: Annotated[str, Field(pattern=r"^#[0-9a-fA-F]{6}$")] = "#8a9099"
    counts_as: str = ""
    """Another answer, to which votes for this one are added; by default it counts by itself."""


DEFAULT_ANSWERS = (
    Answer(name=MITOSIS, key="m", label="Mitosis", colour="#e2774a"),
    Answer(name=NOT, key="n", label="Other cell", colour="#5f97d3"),
    Answer(name=ARTEFACT, key="a", label="Artefact", colour="#a3967f"),
    Answer(name=UNSURE, key="u", label="Unsure", colour="#a88fd0"),
)


class Settings(BaseModel):
    """What observers are asked and shown (`project.json`); unknown fields are left to other tools."""

    model_config = ConfigDict(frozen=True)

    title: Annotated[str, Field(min_length=1, max_length=100)] = "Labelling"
    question: Annotated[str, Field(max_length=200)] = "What is in the middle?"
    answers: Annotated[tuple[Answer, ...], Field(min_length=2, max_length=9)] = DEFAULT_ANSWERS
    target: AnswerName = MITOSIS
    """The answer that is looked for: class 1 of a network that learns from the labels."""
    close_um: Annotated[float, Field(ge=8, le=1000)] = 64.0
    """Side of the close view."""
    context_um: Annotated[float, Field(ge=16, le=4000)] = 256.0
    """Side of the view of the surroundings."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for what in ("key", "name"):
            values = [getattr(answer, what) for answer in self.answers]
            if len(set(values)) < len(values):
                raise ValueError(f"two answers have the same {what}")
        taken = sorted(RESERVED_KEYS.intersection(answer.key for answer in self.answers))
        if taken:
            raise ValueError(f"the page itself uses the key {', '.join(taken)}")
        if self.context_um <= self.close_um:
            raise ValueError("context_um must be larger than close_um")
        alone = {answer.name for answer in self.answers if not answer.counts_as}
        if lost := {answer.counts_as for answer in self.answers} - alone - {""}:
            raise ValueError(f"counts_as {named(sorted(lost))} is no answer that counts by itself")
        return self


@dataclass(frozen=True, slots=True)
class Item:
    """One candidate: a position in a slide, in level-0 pixels."""

    name: str
    slide: Path
    x: float
    y: float
    case: str
    mpp: float | None
    number: int
    """How the browser calls it: a hash of name and position, which says nothing and changes with it."""
    turn: int = 0
    """Items of a lower turn are asked first; the browser does not know."""


@dataclass(frozen=True)
class Project:
    """A labelling project as read from its folder."""

    folder: Path
    settings: Settings
    items: tuple[Item, ...]

    @property
    def answers_path(self) -> Path:
        """The database of answers."""
        return self.folder / ANSWERS

    @property
    def identity(self) -> str:
        """Tells this project from others on the same machine, without naming the folder."""
        return _digest(str(self.folder.resolve()).encode()).hex()

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The answers as tables call them, in the order of the buttons."""
        return tuple(answer.name for answer in self.settings.answers)

    @property
    def counted_as(self) -> tuple[str, ...]:
        """What each of them counts as."""
        return tuple(answer.counts_as or answer.name for answer in self.settings.answers)

    @cached_property
    def by_number(self) -> Mapping[int, Item]:
        """Items by the number the browser knows."""
        return {item.number: item for item in self.items}

    @cached_property
    def by_name(self) -> Mapping[str, Item]:
        """Items by their name in `items.csv`."""
        return {item.name: item for item in self.items}

    def order_for(self, observer: str, divided: Collection[str] = ()) -> list[int]:
        """Numbers of all items in this observer's own order, which stays when items are added.

        Items of the first turn come first, then those on which others are `divided`, then the later turns.
        """
        who, first = observer.casefold().encode(), min((item.turn for item in self.items), default=0)

        def position(item: Item) -> tuple[int, bool, int, bytes, int]:
            mine = _digest(who, str(item.number).encode())
            return int(item.turn > first), item.name not in divided, item.turn, mine, item.number

        return [item.number for item in sorted(self.items, key=position)]

    @property
    def unavailable(self) -> dict[str, str]:
        """Items that could not be shown, and why, as far as somebody tried."""
        path = self.folder / UNAVAILABLE
        found = read_json(path, "does not mention items", next_step="remove it") if path.is_file() else {}
        return {str(name): str(why) for name, why in found.items() if name in self.by_name}

    def missing_slides(self) -> dict[Path, int]:
        """Slide files that are not there, with the number of items on each."""
        counts: dict[Path, int] = {}
        for item in self.items:
            counts[item.slide] = counts.get(item.slide, 0) + 1
        return {slide: count for slide, count in counts.items() if not is_file(slide)}


def load_project(folder: str | Path) -> Project:
    """Read and check a project folder; raises an error that names what is wrong and where."""
    folder = Path(folder)
    if not (folder / ITEMS).is_file():
        raise LabellingError(
            f"no labelling project here: it has no {ITEMS}",
            path=folder,
            next_step=f"write {ITEMS} with the columns {', '.join(ITEM_COLUMNS)} and case",
        )
    return Project(folder, _read_settings(folder / SETTINGS), _read_items(folder))


def _read_settings(path: Path) -> Settings:
    if not path.exists():
        return Settings()
    data = read_bytes(path, LabellingError)
    try:
        return Settings.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        message = first["msg"].removeprefix("Value error, ")
        raise LabellingError(
            f"{where}: {message}", path=path, next_step="correct it, or remove the file for the defaults"
        ) from error


def _read_items(folder: Path) -> tuple[Item, ...]:
    path = folder / ITEMS
    frame = read_table(path)
    require_columns(frame, ITEM_COLUMNS, path)
    require_numbers(frame, ("x", "y", "mpp", "turn"), path)
    frame = frame.reindex(columns=[*ITEM_COLUMNS, "case", "mpp", "turn"])
    for name in ("item", "slide", "case"):
        frame[name] = as_text(frame[name]).str.strip()
    _check_items(frame, path)
    return tuple(_item(folder, *row) for row in frame.itertuples(index=False, name=None))


def _check_items(frame: pd.DataFrame, path: Path) -> None:
    if frame.empty:
        raise TableError("has no items", path=path, next_step="add a row for each candidate")
    repeated = frame["item"][frame["item"].duplicated()]
    if len(repeated):
        raise TableError(
            f"items are listed more than once: {named(repeated)}", path=path, next_step="name each item once"
        )
    _refuse_rows((frame["item"] == "") | (frame["slide"] == ""), "has no item or no slide", path)
    positions = frame[["x", "y"]].apply(pd.to_numeric)
    _refuse_rows(~positions.map(math.isfinite).all(axis=1), "has no position (x, y)", path)
    mpp = pd.to_numeric(frame["mpp"])
    _refuse_rows(mpp.notna() & ~((mpp > 0) & (mpp < 100)), "has no valid mpp", path)


def _refuse_rows(bad: pd.Series[bool], what: str, path: Path) -> None:
    if bad.any():
        raise TableError(
            f"row {int(bad.to_numpy().argmax()) + 1} {what}", path=path, next_step="correct the row"
        )


def _item(
    folder: Path, name: str, slide: str, x: float, y: float, case: str, mpp: float, turn: float
) -> Item:
    """Slides may move to another folder: of their path only the file's name counts as identity."""
    file = folder / stated_path(slide, folder)
    x, y = float(x), float(y)
    identity = (name, case, file.name, f"{x:.2f}", f"{y:.2f}")
    number = int.from_bytes(_digest(*(part.encode() for part in identity)))
    stated_mpp, stated_turn = None if pd.isna(mpp) else float(mpp), 0 if pd.isna(turn) else int(turn)
    return Item(name, file, x, y, case, stated_mpp, number, stated_turn)


def _digest(*parts: bytes) -> bytes:
    return blake2b(b"\0".join(parts), digest_size=NUMBER_BYTES).digest()


# ---- projects drawn from candidates, and their merged labels ----


def item_name(case: str, candidate: int) -> str:
    """The identity of an item, the same in every project it is drawn into."""
    return f"{case}-{candidate}"


def write_project(folder: Path, items: pd.DataFrame, settings: Settings) -> None:
    """Write a new project; `items` has `item, slide, x, y, case` and whatever else observers may know.

    Slide paths are stored relative to the project, so that cohort and project can move together. What the
    settings leave as it is, the page brings.
    """
    if (folder / ITEMS).exists():
        raise OutputError(
            "already holds a labelling project", path=folder, next_step="choose another folder, or remove it"
        )
    relative = [stored_path(slide, folder) for slide in items["slide"]]
    content = settings.model_dump(mode="json", exclude_defaults=True)
    write_text(folder / SETTINGS, json.dumps(content, indent=2) + "\n")
    write_table(folder / ITEMS, items.assign(slide=relative))


def read_items(folder: Path) -> pd.DataFrame:
    """The items of a project, with slide paths that can be opened from here."""
    items = read_table(folder / ITEMS)
    require_columns(items, ("item", "slide", "x", "y", "case"), folder / ITEMS)
    return items.assign(slide=[str(folder / stated_path(slide, folder)) for slide in items["slide"]])


def read_target(folder: Path) -> str:
    """The answer that is looked for in a project."""
    return _read_settings(folder / SETTINGS).target


def read_labels(folder: Path) -> pd.DataFrame:
    """The items on which the observers agreed, with their `label`: mitosis (the project's target), not or
    artefact."""
    if not (folder / LABELS).is_file():
        raise LabellingError(
            "has no merged labels", path=folder, next_step="label the items, then run metaphase label merge"
        )
    labels = read_table(folder / LABELS)
    require_columns(labels, ("item", "label", "agreed"), folder / LABELS)
    agreed = labels["agreed"].astype(str).str.lower() == "true"
    target = read_target(folder)
    usable = labels.loc[agreed & labels["label"].isin((target, NOT, ARTEFACT)), ["item", "label"]]
    usable["label"] = usable["label"].replace(target, MITOSIS)
    joined = read_items(folder).merge(usable, on="item", validate="one_to_one")
    if not len(joined):
        unsure = int((agreed & (labels["label"] == UNSURE)).sum())
        raise LabellingError(
            f"none of {len(labels)} items has a label to learn from: {unsure} are unsure by agreement, on "
            f"{int((~agreed).sum())} too few agree or nobody answered",
            path=folder / LABELS,
            next_step="label more, discuss disagreements, or merge with a lower --agree",
        )
    return joined
