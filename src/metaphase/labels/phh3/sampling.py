"""Which candidates people label: a sample of a cohort's candidates becomes a labelling project."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import NonNegativeInt, PositiveInt

from metaphase.base.arrays import Integers
from metaphase.base.errors import UsageError
from metaphase.base.settings import Share, settings
from metaphase.base.tables import case_folder, named, phh3_mpp
from metaphase.detections.table import MITOSIS
from metaphase.labels.observers.project import (
    ARTEFACT,
    DEFAULT_ANSWERS,
    NOT,
    UNSURE,
    Answer,
    AnswerName,
    Settings,
    item_name,
    read_items,
    write_project,
)
from metaphase.labels.phh3.candidates import Phh3Error
from metaphase.labels.phh3.cases import read_candidates, read_classified

# ---- which candidates people shall label ----

Source = Literal["kept", "all"]


@settings
class DrawConfig:
    """How many candidates to draw, and how."""

    count: PositiveInt = 2000
    """Candidates to label; all of them where there are fewer."""
    per_case: bool = False
    """Draw equally many from each case, as far as it has them; otherwise all candidates have equal odds, as
    in the paper."""
    active_share: Share = 0.0
    """Share of the sample that is taken nearest to the decision line of the last network, not at random."""
    seed: NonNegativeInt = 0
    target: AnswerName = MITOSIS
    """What the marker shows, as observers call it: the answer that is looked for."""
    question: str = ""
    """What observers are asked; by default whether the object is a mitosis (or another target)."""
    source: Source = "kept"
    """Of what CNN2's labels are drawn: `kept` by CNN1, as in the paper, or `all` candidates. CNN1 may drop
    the figures of a stain that it never saw."""

    def __post_init__(self) -> None:
        if self.target in (NOT, ARTEFACT, UNSURE):
            raise UsageError(f"target {self.target!r} is another answer", next_step="call it otherwise")


def draw_sample(pool: pd.DataFrame, config: DrawConfig, decision: float | None = None) -> pd.DataFrame:
    """Rows of `pool` in random order; `case` names the slide, `turn` is 0 for random ones and 1 for others.

    With an active share, `pool` has a column `probability`, and `decision` is where the network says yes.
    """
    if not len(pool):
        raise Phh3Error("there is no candidate to draw from", next_step="check the manifest and its splits")
    rng = np.random.default_rng(config.seed)
    count = min(config.count, len(pool))
    near = _nearest_to_line(pool, round(config.active_share * count), decision)
    others = np.setdiff1d(np.arange(len(pool)), near)
    drawn = rng.permutation(len(others))
    if config.per_case:  # deal from the cases in turn
        cases = pool["case"].to_numpy()[others[drawn]]
        turns = pd.Series(cases).groupby(cases, sort=False).cumcount().to_numpy()
        drawn = drawn[np.argsort(turns, kind="stable")]
    random = others[drawn[: count - len(near)]]
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


# ---- from the candidates of a cohort to a labelling project ----

Purpose = Literal["cnn1", "cnn2"]
HELD_OUT = "test"
"""Cases of this split are not labelled: they judge the result."""
FEW_KEPT, LEAST_CANDIDATES = 0.1, 20
"""Share that CNN1 should keep of a case that has so many candidates."""
FEW_KEPT_WARNING = (
    "%s: CNN1 keeps %d of %d candidates. On a stain that it never saw it may drop mitoses: look at the "
    'others, or draw from all (metaphase phh3 sample --set source=all; in lab.toml source = "all")'
)
_log = logging.getLogger(__name__)
ITEM_COLUMNS = ("item", "slide", "x", "y", "case", "patient", "split", "mpp", "turn")
"""What training and the page may know of an item; nothing that a network or a feature says, but for the turn:
those that a network is unsure about are asked after the random ones. Observers do not know."""
QUESTIONS = {
    "cnn1": "Is the brown object in the middle a cell ({} or not), or an artefact?",
    "cnn2": "Is the brown object in the middle a {}?",
}
"""Question of the observers, by the network that their labels train."""


@dataclass(frozen=True)
class DrawnProject:
    """What was drawn, and which cases could not take part."""

    items: pd.DataFrame
    skipped: tuple[str, ...]


def draw_project(
    manifest: pd.DataFrame,
    workspace: Path,
    project: Path,
    purpose: Purpose,
    config: DrawConfig,
    *,
    exclude: Sequence[Path] = (),
) -> DrawnProject:
    """Write a project with a sample of the cohort's candidates: of all of them for CNN1; for CNN2 of those
    that CNN1 does not call artefacts, or of all as well (`config.source`).

    Candidates that are items of the projects in `exclude` are left out. Their order is random.
    """
    kept_only = purpose == "cnn2" and config.source == "kept"
    pools, skipped, decision = _cohort_pools(manifest, workspace, purpose, kept_only)
    if not pools:
        raise Phh3Error(
            f"none of these cases is ready: {named(skipped)}",
            path=workspace,
            next_step="run metaphase phh3 candidates" + (" and classify" if kept_only else ""),
        )
    pool = pd.concat(pools, ignore_index=True)
    drawn_before = {item for project in exclude for item in read_items(project)["item"]}
    left = pool[~pool["item"].isin(drawn_before)]
    if len(pool) and not len(left):
        kept = "candidates that CNN1 keeps" if kept_only else "candidates"
        raise Phh3Error(
            f"all {len(pool)} {kept} are already items of earlier projects: {named(map(str, exclude))}",
            path=workspace,
            next_step="draw fewer in the first round, add slides, or train with the labels there are",
        )
    drawn = draw_sample(left, config, decision)
    items = drawn[[name for name in ITEM_COLUMNS if name in drawn]]
    write_project(project, items, _asked(purpose, config))
    return DrawnProject(items, tuple(skipped))


def _asked(purpose: Purpose, config: DrawConfig) -> Settings:
    """What observers are asked. Where the paper asks for mitoses or not, an artefact counts as *not*."""
    yes, no, artefact, unsure = DEFAULT_ANSWERS
    if config.target != MITOSIS:
        yes = Answer(name=config.target, key="y", label=config.target.capitalize(), colour=yes.colour)
    if purpose == "cnn2":
        artefact = artefact.model_copy(update={"counts_as": NOT})
    return Settings(
        title=f"PHH3 candidates for {purpose.upper()}",
        question=config.question or QUESTIONS[purpose].format(config.target),
        answers=(yes, no, artefact, unsure),
        target=config.target,
    )


def _cohort_pools(
    manifest: pd.DataFrame, workspace: Path, purpose: Purpose, kept_only: bool
) -> tuple[list[pd.DataFrame], list[str], float | None]:
    """The pools of all cases that are ready, the names of the others, and the decision line."""
    pools, skipped = [], []
    decision: float | None = None
    for row in manifest[(manifest["phh3"] != "") & (manifest["split"] != HELD_OUT)].to_dict("records"):
        try:
            pool, line = _case_pool(case_folder(workspace, row["case"]), purpose, kept_only)
        except Phh3Error:
            skipped.append(str(row["case"]))
            continue
        decision = line if line is not None else decision
        known = {name: row[name] for name in ("case", "patient", "split") if name in row}
        mpp = phh3_mpp(row)
        pools.append(pool.assign(slide=row["phh3"], **known, **({"mpp": mpp} if mpp else {})))
    return pools, skipped, decision


def _case_pool(folder: Path, purpose: Purpose, kept_only: bool) -> tuple[pd.DataFrame, float | None]:
    """The candidates of a case that may be drawn, with a network's `probability` and decision: for CNN1 those
    of CNN1 where it has seen the case, for CNN2 those of the newest."""
    table, decisions = read_candidates(folder), dict[str, float]()
    with nullcontext() if kept_only else suppress(Phh3Error):
        seen = read_classified(folder)
        table, decisions = seen.table, seen.decisions
    if kept_only:
        if "cnn1" not in decisions:
            raise Phh3Error(
                "was not seen by CNN1", path=folder, next_step="run metaphase phh3 classify --cnn1"
            )
        table = table[table["cnn1"] >= decisions["cnn1"]]
        if len(table) < FEW_KEPT * len(seen.table) and len(seen.table) >= LEAST_CANDIDATES:
            _log.warning(FEW_KEPT_WARNING, folder.name, len(table), len(seen.table))
    network = "cnn2" if purpose == "cnn2" and "cnn2" in decisions else "cnn1"
    if network in decisions:
        table = table.assign(probability=table[network])
    items = [item_name(folder.name, number) for number in table["candidate"]]
    return table.assign(item=items), decisions.get(network)
