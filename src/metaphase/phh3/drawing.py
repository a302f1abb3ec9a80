"""From the candidates of a cohort to a labelling project."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from metaphase.phh3.errors import Phh3Error
from metaphase.phh3.projects import item_name, read_items, write_project
from metaphase.phh3.sampling import SampleConfig, draw_sample
from metaphase.phh3.scores import Scores, read_scores
from metaphase.phh3.searching import case_folder, read_candidates
from metaphase.tables import named

Purpose = Literal["cnn1", "cnn2"]
HELD_OUT = "test"
"""Cases of this split are not labelled: they judge the result."""
ITEM_COLUMNS = ("item", "slide", "x", "y", "case", "split", "mpp")
"""What observers and training may know of an item; nothing that a network or a feature says."""
QUESTIONS = {
    "cnn1": "Is the brown object in the middle a cell (mitosis or not), or an artefact?",
    "cnn2": "Is the brown object in the middle a mitosis?",
}
"""Question of the observers, by the network that their labels train."""


@dataclass(frozen=True)
class DrawnProject:
    """What was drawn, and which cases could not take part."""

    items: pd.DataFrame
    skipped: tuple[str, ...]


def draw_project(
    manifest: pd.DataFrame,
    workspace: str | Path,
    project: str | Path,
    purpose: Purpose,
    config: SampleConfig,
    *,
    exclude: Sequence[str | Path] = (),
) -> DrawnProject:
    """Write a project with a sample of the cohort's candidates: all of them for CNN1; for CNN2, those that
    CNN1 does not call artefacts. Candidates that are items of the projects in `exclude` are left out.

    Nothing in the items tells what a network thinks of them, and their order is random.
    """
    pools, skipped, decision = _cohort_pools(manifest, workspace, purpose)
    if not pools:
        raise Phh3Error(
            f"none of these cases is ready: {named(skipped)}",
            path=workspace,
            next_step="run metaphase phh3 candidates" + (" and classify" if purpose == "cnn2" else ""),
        )
    drawn = draw_sample(_without(pd.concat(pools, ignore_index=True), exclude), config, decision)
    items = drawn[[name for name in ITEM_COLUMNS if name in drawn]]
    write_project(project, items, f"PHH3 candidates for {purpose.upper()}", QUESTIONS[purpose])
    return DrawnProject(items, tuple(skipped))


def _cohort_pools(
    manifest: pd.DataFrame, workspace: str | Path, purpose: Purpose
) -> tuple[list[pd.DataFrame], list[str], float | None]:
    """The pools of all cases that are ready, the names of the others, and the decision line."""
    pools, skipped = [], []
    decision: float | None = None
    for row in manifest[(manifest["phh3"] != "") & (manifest["split"] != HELD_OUT)].to_dict("records"):
        try:
            pool, decision = _case_pool(case_folder(workspace, row["case"]), purpose)
        except Phh3Error:
            skipped.append(str(row["case"]))
            continue
        known = {name: row[name] for name in ("case", "split", "mpp") if name in row}
        pools.append(pool.assign(slide=row["phh3"], **known))
    return pools, skipped, decision


def _case_pool(folder: Path, purpose: Purpose) -> tuple[pd.DataFrame, float | None]:
    """The candidates of a case that may be drawn, with the newest network's `score` and its decision line."""
    if purpose == "cnn1":
        return _named(read_candidates(folder), folder.name), None
    scores = read_scores(folder)
    if "cnn1" not in scores.decisions:
        raise Phh3Error("has no CNN1 scores", path=folder, next_step="run metaphase phh3 classify --cnn1")
    kept = scores.table[scores.table["cnn1"] >= scores.decisions["cnn1"]]
    newest = _newest(scores)
    return _named(kept.assign(score=kept[newest]), folder.name), scores.decisions[newest]


def _newest(scores: Scores) -> str:
    return "cnn2" if "cnn2" in scores.decisions else "cnn1"


def _named(table: pd.DataFrame, case: str) -> pd.DataFrame:
    return table.assign(item=[item_name(case, number) for number in table["candidate"]])


def _without(pool: pd.DataFrame, projects: Iterable[str | Path]) -> pd.DataFrame:
    seen = [read_items(project)["item"] for project in projects]
    return pool[~pool["item"].isin(pd.concat(seen))] if seen else pool
