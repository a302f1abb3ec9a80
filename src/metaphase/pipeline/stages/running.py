"""Running the stages that are not done, in order; killed at any moment, the next run goes on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from metaphase.artifacts import explained
from metaphase.errors import MetaphaseError, OutputError
from metaphase.pipeline.stages.stage import Facts, Report, Stage, silent
from metaphase.records import Record, facts_of

Status = Literal["waiting", "interrupted", "running", "done", "kept", "failed"]
"""`kept`: done by an earlier run. `interrupted`: begun by an earlier run, and goes on."""
FOLDER = "stages"


@dataclass(frozen=True)
class StageState:
    """Where a stage stands."""

    stage: Stage
    status: Status
    seconds: float | None = None
    """How long its last uninterrupted work took."""
    facts: Facts = field(default_factory=dict)


States = tuple[StageState, ...]
Watch = Callable[[States], None]
"""Called with all stages whenever one of them changes."""


def stage_states(stages: Sequence[Stage], workspace: str | Path) -> States:
    """Where every stage stands, from the records in the workspace alone."""
    records = _records(stages)
    return tuple(_state(stage, records[stage.name], Path(workspace)) for stage in stages)


def run_stages(
    stages: Sequence[Stage], workspace: str | Path, *, report: Report = silent, watch: Watch | None = None
) -> States:
    """Do the stages that are not done, in their order; an error stops the run and keeps what was done."""
    folder, records = Path(workspace), _records(stages)
    states = list(stage_states(stages, folder))

    def show(number: int, state: StageState) -> None:
        states[number] = state
        if watch is not None:
            watch(tuple(states))

    for number, stage in enumerate(stages):
        if states[number].status == "kept":
            continue
        show(number, StageState(stage, "running"))
        try:
            show(number, _done(stage, records[stage.name], folder, report))
        except MetaphaseError:
            show(number, StageState(stage, "failed"))
            raise
    return tuple(states)


def _done(stage: Stage, record: Record, folder: Path, report: Report) -> StageState:
    """Work on a stage, and leave its record."""
    begun = _begun(folder, stage)
    if not record.matches(begun):
        if stage.renew:
            _remove(stage, folder)
        record.write(begun)
    started = time.perf_counter()
    facts = stage.work(report)
    seconds = round(time.perf_counter() - started, 2)
    missing = [name for name in stage.writes if not (folder / name).exists()]
    if missing:
        raise OutputError(f"stage {stage.name} left no {missing[0]}", path=folder, next_step="run it again")
    record.write(_note(folder, stage), {"seconds": seconds, "facts": facts})
    begun.unlink(missing_ok=True)
    return StageState(stage, "done", seconds, facts)


def _state(stage: Stage, record: Record, folder: Path) -> StageState:
    note = _note(folder, stage)
    if record.matches(note) and all((folder / name).exists() for name in stage.writes):
        kept = facts_of(note)
        return StageState(stage, "kept", kept.get("seconds"), kept.get("facts", {}))
    if record.matches(_begun(folder, stage)):
        return StageState(stage, "interrupted")
    return StageState(stage, "waiting")


def _records(stages: Sequence[Stage]) -> dict[str, Record]:
    """What each stage is made from: its settings, its files, and the records of the stages it reads."""
    records: dict[str, Record] = {}
    for stage in stages:
        inputs = dict(stage.inputs) | {name: records[name].fingerprint for name in stage.reads}
        records[stage.name] = Record(stage.name, dict(stage.settings), inputs)
    return records


def _remove(stage: Stage, folder: Path) -> None:
    for name in stage.writes:
        with explained(folder / name):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)


def _note(folder: Path, stage: Stage) -> Path:
    return folder / FOLDER / f"{stage.name}.json"


def _begun(folder: Path, stage: Stage) -> Path:
    return folder / FOLDER / f"{stage.name}.begun.json"
