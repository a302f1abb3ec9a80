"""The thresholds section of a model card: what was tuned, on which cases, so that no test reuses them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from metaphase.artifacts import write_text
from metaphase.errors import UsageError
from metaphase.evaluation.cohort import Cohort
from metaphase.tables import TableError, named

SECTION = "thresholds"
TEST_SPLIT = "test"


@dataclass(frozen=True)
class Tuned:
    """Parameters chosen for a task, how good they were on the tuning set, and what that set was."""

    task: str
    """`mitoses`, `proliferation` or `grade`."""
    parameters: dict[str, float]
    metric: str
    value: float
    """The metric on the tuning set: optimistic, not a result."""
    cases: tuple[str, ...]
    patients: tuple[str, ...]
    source: str
    false_per_mm2: float | None = None
    """False detections at these parameters, where that was measured."""


def save_tuned(path: str | Path, tuned: Tuned) -> None:
    """Put the parameters into the card's thresholds section; the rest of the card stays as it is.

    So do parameters of the task that were not tuned now, such as how far apart detections are kept.
    """
    path = Path(path)
    card = _load(path) if path.exists() else {}
    section = card.setdefault(SECTION, {})
    kept = section.get(tuned.task, {}).get("parameters", {})
    entry = {name: value for name, value in asdict(tuned).items() if name != "task"}
    section[tuned.task] = entry | {"parameters": kept | tuned.parameters}
    write_text(path, json.dumps(card, indent=2, ensure_ascii=False) + "\n")


def load_tuned(path: str | Path, task: str) -> Tuned:
    """The parameters of `task` in a card."""
    entry = _load(Path(path)).get(SECTION, {}).get(task)
    try:
        lists = {name: tuple(entry[name]) for name in ("cases", "patients")}
        return Tuned(task=task, **{**entry, **lists})
    except TypeError as error:
        raise TableError(
            f"the model card has no tuned parameters for {task}",
            path=path,
            next_step=f"run `metaphase evaluate tune {task}` on a tuning set first",
        ) from error


def refuse_reuse(tuned: Tuned, cohort: Cohort) -> None:
    """Refuse to test on slides or patients that the parameters were tuned on."""
    patients, cases = set(tuned.patients), set(tuned.cases)
    rows = zip(cohort.manifest["case"], cohort.manifest["patient"], strict=True)
    shared = [case for case, patient in rows if case in cases or patient in patients]
    if shared:
        raise UsageError(
            f"{len(shared)} slides were used to tune these parameters: {named(shared)}",
            path=cohort.source,
            next_step="test on other patients, or choose a split with --split",
        )


def refuse_test_slides(cohort: Cohort) -> None:
    """Refuse to tune on slides that the manifest marks as test."""
    reserved = cohort.manifest["case"][cohort.manifest["split"].str.lower() == TEST_SPLIT]
    if len(reserved):
        raise UsageError(
            f"{len(reserved)} slides are marked as {TEST_SPLIT} and not for tuning: {named(reserved)}",
            path=cohort.source,
            next_step="choose the tuning slides with --split",
        )


def _load(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TableError(f"no model card ({error})", path=path, next_step="give a JSON model card") from error
    if not isinstance(card, dict):
        raise TableError("no model card: not a JSON object", path=path, next_step="give a JSON model card")
    return card
