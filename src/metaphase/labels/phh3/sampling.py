"""Which candidates people shall label, and the labelling project of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.base.arrays import Integers
from metaphase.base.errors import UsageError
from metaphase.base.tables import case_folder, named, phh3_mpp
from metaphase.labels.observers.project import Settings, item_name, read_items, write_project
from metaphase.labels.phh3.cases import Classified, read_candidates, read_classified
from metaphase.labels.phh3.config import Phh3Error

# ---- which candidates people shall label ----


@dataclass(frozen=True)
class SampleConfig:
    """How many candidates to draw, and how."""

    count: int = 2000
    """Candidates to draw; all of them where there are fewer."""
    per_case: bool = False
    """Draw equally many from each case, as far as it has them; otherwise all candidates have equal odds, as
    in the paper."""
    active_share: float = 0.0
    """Share of the sample that is taken nearest to the decision line of the last network, not at random."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.active_share <= 1 or self.seed < 0:
            raise UsageError(
                f"a sample of {self.count} with {self.active_share:g} of it active and seed {self.seed}",
                next_step="give a count of at least 1, a share from 0 to 1 and a seed of at least 0",
            )


def draw_sample(pool: pd.DataFrame, config: SampleConfig, decision: float | None = None) -> pd.DataFrame:
    """Rows of `pool` in random order; `case` names the slide, `turn` is 0 for random ones and 1 for others.

    With an active share, `pool` has a column `probability`, and `decision` is where the network says yes.
    """
    if not len(pool):
        raise Phh3Error("there is no candidate to draw from", next_step="check the manifest and its splits")
    rng = np.random.default_rng(config.seed)
    count = min(config.count, len(pool))
    near = _nearest_to_line(pool, round(config.active_share * count), decision)
    others = np.setdiff1d(np.arange(len(pool)), near)
    draw = _draw_per_case if config.per_case else _draw_any
    random = others[draw(pool["case"].to_numpy()[others], count - len(near), rng)]
    chosen, turn = np.concatenate([random, near]), np.repeat([0, 1], [len(random), len(near)])
    order = rng.permutation(count)
    return pool.iloc[chosen[order]].assign(turn=turn[order]).reset_index(drop=True)


def _nearest_to_line(pool: pd.DataFrame, count: int, decision: float | None) -> Integers:
    if not count:
        return np.zeros(0, np.int64)
    if decision is None or "probability" not in pool.columns:
        raise UsageError(
            "active sampling needs candidates that a network has seen",
            next_step="run metaphase phh3 classify first, or draw at random",
        )
    distance = np.abs(pool["probability"].to_numpy() - decision)
    return np.argsort(distance, kind="stable")[:count]


def _draw_any(cases: npt.NDArray[np.object_], count: int, rng: np.random.Generator) -> Integers:
    return rng.permutation(len(cases))[:count]


def _draw_per_case(cases: npt.NDArray[np.object_], count: int, rng: np.random.Generator) -> Integers:
    """Deal from the cases in turn until `count` are drawn."""
    order = rng.permutation(len(cases))
    turn = pd.Series(cases[order]).groupby(cases[order], sort=False).cumcount().to_numpy()
    return order[np.argsort(turn, kind="stable")[:count]]


# ---- from the candidates of a cohort to a labelling project ----

Purpose = Literal["cnn1", "cnn2"]
HELD_OUT = "test"
"""Cases of this split are not labelled: they judge the result."""
ITEM_COLUMNS = ("item", "slide", "x", "y", "case", "patient", "split", "mpp", "turn")
"""What training and the page may know of an item; nothing that a network or a feature says, but for the turn:
those that a network is unsure about are asked after the random ones. Observers are not told."""
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

    Their order is random.
    """
    pools, skipped, decision = _cohort_pools(manifest, workspace, purpose)
    if not pools:
        raise Phh3Error(
            f"none of these cases is ready: {named(skipped)}",
            path=workspace,
            next_step="run metaphase phh3 candidates" + (" and classify" if purpose == "cnn2" else ""),
        )
    pool = pd.concat(pools, ignore_index=True)
    left = _without(pool, exclude)
    if len(pool) and not len(left):
        kept = "candidates that CNN1 keeps" if purpose == "cnn2" else "candidates"
        raise Phh3Error(
            f"all {len(pool)} {kept} are items of earlier projects already: {named(map(str, exclude))}",
            path=workspace,
            next_step="draw fewer in the first round, add slides, or train with the labels there are",
        )
    drawn = draw_sample(left, config, decision)
    items = drawn[[name for name in ITEM_COLUMNS if name in drawn]]
    settings = Settings(title=f"PHH3 candidates for {purpose.upper()}", question=QUESTIONS[purpose])
    write_project(project, items, settings)
    return DrawnProject(items, tuple(skipped))


def _cohort_pools(
    manifest: pd.DataFrame, workspace: str | Path, purpose: Purpose
) -> tuple[list[pd.DataFrame], list[str], float | None]:
    """The pools of all cases that are ready, the names of the others, and the decision line."""
    pools, skipped = [], []
    decision: float | None = None
    for row in manifest[(manifest["phh3"] != "") & (manifest["split"] != HELD_OUT)].to_dict("records"):
        try:
            pool, line = _case_pool(case_folder(workspace, row["case"]), purpose)
        except Phh3Error:
            skipped.append(str(row["case"]))
            continue
        decision = line if line is not None else decision
        known = {name: row[name] for name in ("case", "patient", "split") if name in row}
        mpp = phh3_mpp(row)
        pools.append(pool.assign(slide=row["phh3"], **known, **({"mpp": mpp} if mpp else {})))
    return pools, skipped, decision


def _case_pool(folder: Path, purpose: Purpose) -> tuple[pd.DataFrame, float | None]:
    """The candidates of a case that may be drawn, with a network's `probability` and decision: for CNN1 those
    of CNN1 where it has seen the case, for CNN2 those of the newest."""
    if purpose == "cnn1":
        table = read_candidates(folder)
        try:
            seen = read_classified(folder)
        except Phh3Error:
            return _named(table, folder.name), None
        return _judged(seen.table, seen, "cnn1", folder.name)
    seen = read_classified(folder)
    if "cnn1" not in seen.decisions:
        raise Phh3Error("was not seen by CNN1", path=folder, next_step="run metaphase phh3 classify --cnn1")
    kept = seen.table[seen.table["cnn1"] >= seen.decisions["cnn1"]]
    return _judged(kept, seen, "cnn2" if "cnn2" in seen.decisions else "cnn1", folder.name)


def _judged(
    table: pd.DataFrame, seen: Classified, network: str, case: str
) -> tuple[pd.DataFrame, float | None]:
    """Candidates with what a network says of them, where it has seen them."""
    if network not in seen.decisions:
        return _named(table, case), None
    return _named(table.assign(probability=table[network]), case), seen.decisions[network]


def _named(table: pd.DataFrame, case: str) -> pd.DataFrame:
    return table.assign(item=[item_name(case, number) for number in table["candidate"]])


def _without(pool: pd.DataFrame, projects: Iterable[str | Path]) -> pd.DataFrame:
    seen = [read_items(project)["item"] for project in projects]
    return pool[~pool["item"].isin(pd.concat(seen))] if seen else pool
