"""What there is to review of a reference standard, and what people decided.

The project lies in the folder `review` of the workspace, so that decisions are kept and locked as all answers
are (`metaphase.web.labelling`). An item is named after its case and its places in both slides: a point that a
new registration has moved is a new item, and nobody's decision is carried to a position they have not seen.
Items that are no longer in the table stay in the project and are not shown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import pandas as pd

from metaphase.base.arrays import Floats
from metaphase.base.errors import UsageError
from metaphase.base.files import write_text
from metaphase.base.tables import named, read_table, write_table
from metaphase.labels.building import DECISIONS, REVIEW, Pair, read_pairs
from metaphase.labels.observers.project import ITEMS, SETTINGS, Answer, Project, Settings, load_project
from metaphase.labels.observers.store import AnswerStore, Entry
from metaphase.labels.reference import (
    ACCEPT,
    DECISION_COLUMNS,
    PLACES,
    REJECT,
    ReferenceStandardError,
    read_decisions,
    read_reference,
    rows_of,
)

Row = dict[Any, Any]
CLOSE_UM = 64.0
CLEAR_CONTRAST = 2.0
"""From this contrast on a figure is plain to see in H&E."""
SETTINGS_OF_REVIEW = Settings(
    title="Reference standard",
    question="Is there a mitosis at the mark in H&E?",
    answers=(
        Answer(name=ACCEPT, key="m", label="Mitosis", colour="#e2774a"),
        Answer(name=REJECT, key="n", label="Not a mitosis", colour="#5f97d3"),
    ),
    close_um=CLOSE_UM,
)


@dataclass(frozen=True)
class Review:
    """The points of a workspace and the project that keeps the decisions about them."""

    workspace: Path
    table: pd.DataFrame
    """Points with a position in H&E, the least sure first, with `item` and its `number`."""
    pairs: Mapping[str, Pair]
    project: Project

    @cached_property
    def by_number(self) -> Mapping[int, Row]:
        """Rows of the table by the number that the browser knows."""
        return {row["number"]: row for row in self.table.to_dict("records")}

    @property
    def order(self) -> list[int]:
        """Numbers of the points in the order in which they are shown."""
        return list(self.by_number)


def load_review(workspace: Path, cases: Collection[str] = (), most: int | None = None) -> Review:
    """Bring the project of a workspace up to date and open it, for all cases or for some.

    With `most`, only so many of the least sure points are shown.
    """
    pairs = read_pairs(workspace)
    table = read_reference(workspace)
    if unknown := sorted(set(cases) - set(pairs)):
        raise UsageError(f"there is no case {named(unknown)}", path=workspace, next_step="check --case")
    table = table[table["x"].notna() & table["y"].notna()]
    table = table.assign(item=[item_name(row) for row in table.to_dict("records")])
    if table.empty:
        raise ReferenceStandardError("there is no point to review", path=workspace)
    project = _updated(workspace / REVIEW, table, pairs)
    shown = table[table["case"].isin(cases)] if cases else table
    shown = shown.iloc[np.argsort(sureness(shown), kind="stable")[:most]].reset_index(drop=True)
    numbers = [project.by_name[name].number for name in shown["item"]]
    return Review(workspace, shown.assign(number=numbers), pairs, project)


def sureness(table: pd.DataFrame) -> Floats:
    """How sure all agree about each point, from 0 to 1: its place, its PHH3 network, and the eye in H&E."""
    visible = (table["contrast"].fillna(0) / CLEAR_CONTRAST).clip(0, 1)
    return (table["confidence"] * table["probability"] * visible).to_numpy(float)


def item_name(row: Row) -> str:
    """How a point is called; positions to a tenth of a pixel."""
    return " ".join([str(row["case"]), *(f"{row[name]:.1f}" for name in PLACES)])


def _updated(folder: Path, table: pd.DataFrame, pairs: Mapping[str, Pair]) -> Project:
    """The project with the items of the table; earlier ones stay."""
    items = table[["item", "case", *PLACES]].round(dict.fromkeys(PLACES, 1))
    items = items.assign(
        slide=[str(pairs[case].he.path) for case in table["case"]],
        mpp=pd.Series([pairs[case].he.mpp for case in table["case"]], index=table.index, dtype=float),
    ).drop_duplicates("item")
    path = folder / ITEMS
    if path.is_file():
        old = read_table(path)
        gone = old[~old["item"].isin(items["item"])]
        items = pd.concat([items, gone], ignore_index=True) if len(gone) else items
    write_table(path, items)
    write_text(folder / SETTINGS, SETTINGS_OF_REVIEW.model_dump_json(indent=1) + "\n")
    return load_project(folder)


# ---- from the review page's answers to the table of decisions that the reference standard takes ----


def collect_decisions(workspace: Path, elsewhere: Path | None = None) -> pd.DataFrame:
    """Write the decisions of all observers to `decisions.csv` of the workspace, and return them.

    Decisions made `elsewhere` (a CSV) are first taken into the review's own database; taking them twice does
    no harm.
    """
    if elsewhere is not None:
        _take(load_review(workspace), read_decisions(elsewhere), elsewhere)
    folder = workspace / REVIEW
    if not (folder / ITEMS).is_file():
        raise UsageError(
            "nobody has reviewed anything here",
            path=workspace,
            next_step="run metaphase reference review, or give --decisions",
        )
    with AnswerStore(load_project(folder)) as store:
        given = [(answer.item, answer.answer, answer.observer, answer.time) for answer in store.current()]
    decisions = pd.DataFrame(given, columns=["item", "decision", "observer", "time"])
    decisions = decisions.merge(read_table(folder / ITEMS)[["item", "case", *PLACES]], on="item")
    decisions = decisions.sort_values("time", kind="stable", ignore_index=True)[list(DECISION_COLUMNS)]
    write_table(workspace / DECISIONS, decisions)
    return decisions


def _take(review: Review, decisions: pd.DataFrame, source: Path) -> None:
    """Put decisions into the database; those about points that do not exist are an error."""
    rows = rows_of(review.table, decisions)
    if (rows < 0).any():
        raise UsageError(
            f"row {int((rows < 0).argmax()) + 1} does not match a point of the reference standard",
            path=source,
            next_step="take case, x, y, x_phh3 and y_phh3 from reference.csv",
        )
    said = decisions[["observer", "decision", "time"]].astype(str)
    items = review.table["item"].to_numpy(object)[rows]
    entries = []
    for item, (observer, decision, time) in zip(items, said.to_numpy(object), strict=True):
        uuid = str(uuid5(NAMESPACE_URL, "\0".join((item, observer, decision, time))))  # written once
        entries.append(Entry(observer, item, decision, time=time, uuid=uuid))
    with AnswerStore(review.project) as store:
        store.record_many(entries)
