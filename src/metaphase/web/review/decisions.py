"""From the review page's answers to the table of decisions that the reference standard takes."""

from __future__ import annotations

from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import pandas as pd

from metaphase.errors import UsageError
from metaphase.pipeline.reference import DECISIONS, REVIEW
from metaphase.reference import read_decisions, write_decisions
from metaphase.reference.decisions import DECISION_COLUMNS, PLACES, rows_of
from metaphase.tables import read_table
from metaphase.web.labelling import AnswerStore, Entry, load_project
from metaphase.web.labelling.project import ITEMS
from metaphase.web.labelling.store import now
from metaphase.web.review.points import Review, load_review


def collect_decisions(workspace: str | Path, elsewhere: str | Path | None = None) -> pd.DataFrame:
    """Write the decisions of all reviewers to `decisions.csv` of the workspace, and return them.

    Decisions made `elsewhere` (a CSV) are first taken into the review's own database; taking them twice does
    no harm.
    """
    workspace = Path(workspace)
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
        given = [(one.item, one.answer, one.observer, one.time) for one in store.current()]
    places = read_table(folder / ITEMS).set_index("item")[["case", *PLACES]]
    found = pd.DataFrame(given, columns=["item", "decision", "reviewer", "time"]).join(places, on="item")
    decisions = found.sort_values("time", kind="stable", ignore_index=True)[list(DECISION_COLUMNS)]
    write_decisions(workspace / DECISIONS, decisions)
    return decisions


def _take(review: Review, decisions: pd.DataFrame, source: str | Path) -> None:
    """Put decisions into the database; those about points that do not exist are an error."""
    rows = rows_of(review.table, decisions)
    if (rows < 0).any():
        raise UsageError(
            f"row {int((rows < 0).argmax()) + 1} is about no point of the reference standard",
            path=source,
            next_step="take case, x, y, x_phh3 and y_phh3 from reference.csv",
        )
    items = review.table["item"].to_numpy(object)[rows]
    names = ("reviewer", "decision", "time")
    with AnswerStore(review.project) as store:
        store.record_many(
            _entry(str(item), *map(str, row))
            for item, row in zip(items, decisions[list(names)].to_numpy(object), strict=True)
        )


def _entry(item: str, reviewer: str, decision: str, time: str) -> Entry:
    """The same decision has the same identity, so that it is written once."""
    identity = uuid5(NAMESPACE_URL, "\0".join((item, reviewer, decision, time)))
    return Entry(reviewer, item, decision, time=time or now(), uuid=str(identity))
