"""People overrule the automatic decision: a table of who decided what about which place, and when."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.base.tables import as_text, read_table, require_columns, require_numbers, write_table
from metaphase.labels.reference.table import ReferenceStandardError

ACCEPT, REJECT = "accept", "reject"
PLACES = ("x", "y", "x_phh3", "y_phh3")
DECISION_COLUMNS = ("case", *PLACES, "decision", "reviewer", "time")
SAME_PX = 4.0
"""A decision holds for a point as long as its places, in both slides, move by less than this."""


@dataclass(frozen=True)
class Applied:
    """A reviewed table."""

    table: pd.DataFrame
    reviewed: int
    """Points with a decision of a person."""
    changed: int
    """Those of them for which it differs from the automatic one."""
    stale: int
    """Decisions about places that are in the table no more."""


def apply_decisions(table: pd.DataFrame, decisions: pd.DataFrame) -> Applied:
    """The table with people's decisions in `accepted`, `reviewer` and `reviewed`; `automatic` stays.

    Of several decisions about one point the latest counts.
    """
    latest = decisions.sort_values("time", kind="stable")
    latest = latest.assign(row=rows_of(table, latest))
    stale = int((latest["row"] < 0).sum())
    latest = latest[latest["row"] >= 0].drop_duplicates("row", keep="last")
    rows = latest["row"].to_numpy(int)
    accepted = table["automatic"].to_numpy(bool).copy()
    accepted[rows] = (latest["decision"] == ACCEPT).to_numpy()
    reviewer, reviewed = (np.full(len(table), "", object) for _ in range(2))
    reviewer[rows], reviewed[rows] = latest["reviewer"].to_numpy(object), latest["time"].to_numpy(object)
    changed = int((accepted != table["automatic"].to_numpy(bool)).sum())
    done = table.assign(accepted=accepted, reviewer=reviewer, reviewed=reviewed)
    return Applied(done, len(rows), changed, stale)


def rows_of(table: pd.DataFrame, decisions: pd.DataFrame) -> npt.NDArray[np.int64]:
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


def write_decisions(path: str | Path, decisions: pd.DataFrame) -> None:
    """Write a table of decisions."""
    write_table(path, decisions[list(DECISION_COLUMNS)])


def read_decisions(path: str | Path) -> pd.DataFrame:
    """Read and check a table of decisions, from `metaphase reference apply` or made elsewhere."""
    table = read_table(path)
    require_columns(table, DECISION_COLUMNS, path)
    require_numbers(table, PLACES, path)
    texts = {name: as_text(table[name]).str.strip() for name in ("case", "decision", "reviewer", "time")}
    wrong = ~texts["decision"].isin((ACCEPT, REJECT))
    if wrong.any():
        raise ReferenceStandardError(
            f"row {int(wrong.to_numpy().argmax()) + 1} decides {texts['decision'][wrong].iloc[0]!r}",
            path=path,
            next_step=f"write {ACCEPT} or {REJECT}",
        )
    return table.assign(**texts)[list(DECISION_COLUMNS)]
