"""A job as a table of stages: what each reads and writes, whether it is done, and running what is left.

A stage is a function (`stage`): its keyword parameters are all that decides its result, and what it writes
stands above it. Called with them, it gives the row of a table, and the work is done when the table is run.

A stage is done when its note in the workspace says that it was made from the same ingredients as now, by
code of the same schema, after the same stages, and sealed outputs are what it left. Killed at any moment, the
next run goes on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from metaphase.base.errors import MetaphaseError, OutputError
from metaphase.base.files import explained, refuse_link
from metaphase.base.parallel import worker_processes
from metaphase.base.provenance import (
    FileContent,
    Given,
    Ingredients,
    facts_of,
    fingerprint_of,
    made_from,
    why_again,
    write_note,
)

Facts = dict[str, Any]
"""Plain values worth knowing about what a stage made."""
Report = Callable[[str, float, float], None]
"""Called with what is being made, how much is finished and how much there is."""
Status = Literal["waiting", "interrupted", "running", "done", "kept", "failed"]
"""`kept`: done by an earlier run. `interrupted`: begun by an earlier run, and goes on. `failed`: in this run,
or in an earlier one, and is tried again."""
Account = Mapping[str, Any]
FOLDER = "stages"
"""Where a workspace keeps the notes of its stages."""
SEALS = "seals"
"""Entry of a note: fingerprints of sealed outputs."""


def silent(what: str, done: float, total: float) -> None:
    """A report that nobody reads."""


@dataclass(frozen=True)
class Stage:
    """A piece of work whose result is kept."""

    name: str
    """Name in the table; also of its note."""
    about: str
    """What it makes, for people."""
    reads: tuple[str, ...]
    """Stages whose results it uses."""
    writes: tuple[str, ...]
    """Files or folders of the workspace; all must be there for the stage to be done."""
    work: Callable[[Report], Facts]
    """Makes them, or goes on where an earlier call was stopped."""
    ingredients: Ingredients
    """All that decides the result, beside the stages it reads."""
    renew: bool = False
    """Remove what an earlier run made of other ingredients before working."""
    after: tuple[str, ...] = ()
    """Stages that must be done before, though not all of their results decide this one's."""
    sealed: bool = False
    """Nobody else changes the files it writes: one that is damaged, or edited, is made again. Seal what other
    stages read, not pages and exports."""


@dataclass(frozen=True)
class StageState:
    """Whether a stage is kept or done again, and why."""

    stage: Stage
    status: Status
    seconds: float | None = None
    """How long its last uninterrupted work took."""
    facts: Facts = field(default_factory=dict)
    reason: str = ""
    """Why it has to be done, or was; empty where it was kept."""

    @property
    def explanation(self) -> str:
        """One line: kept, or why not."""
        return f"{self.stage.name}: {self.status}" + (f" ({self.reason})" if self.reason else "")


Owner = TypeVar("Owner")
Decides = ParamSpec("Decides")


def stage(
    name: str,
    about: str,
    *,
    reads: tuple[str, ...] = (),
    writes: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    schema: int = 1,
    uses: tuple[type[Ingredients], ...] = (),
    sealed: bool = False,
    renew: bool = False,
) -> Callable[
    [Callable[Concatenate[Owner, Report, Decides], Facts]], Callable[Concatenate[Owner, Decides], Stage]
]:
    """Make a function, `work(owner, report, *, ...)`, give its `Stage` when it is called without the report.

    The owner (a slide, a run, a laboratory) has the workspace; all that decides the result is a keyword.
    `schema` rises whenever new code gives other results, or that of what it `uses` does; the others are
    fields of `Stage`, and a table may replace them.
    """
    row = Stage(name, about, reads, writes, _nothing, Given(name, [], {}), renew, after, sealed)
    schemas = [schema, *(used.schema for used in uses)]

    def decorate(
        work: Callable[Concatenate[Owner, Report, Decides], Facts],
    ) -> Callable[Concatenate[Owner, Decides], Stage]:
        def made(owner: Owner, /, *_: Decides.args, **decides: Decides.kwargs) -> Stage:
            made_from = Given(name, schemas, decides)
            return replace(row, work=partial(_work, made, owner, decides), ingredients=made_from)

        update_wrapper(made, work)
        return made

    return decorate


def _work(made: Any, owner: Any, decides: Mapping[str, Any], report: Report) -> Facts:
    """Do the work of a stage; other processes know it by the name of the function that gives the stage."""
    facts: Facts = made.__wrapped__(owner, report, **decides)
    return facts


States = tuple[StageState, ...]
Watch = Callable[[States], None]
"""Called with all stages whenever one of them changes."""


def stage_states(stages: Sequence[Stage], workspace: str | Path) -> States:
    """Where every stage stands, from the notes in the workspace alone."""
    accounts = _accounts(stages)
    return tuple(_state(stage, accounts[stage.name], Path(workspace)) for stage in stages)


def stage_key(stages: Sequence[Stage]) -> str:
    """Stands for all that decides the last of the stages, those before it included."""
    return fingerprint_of(_accounts(stages)[stages[-1].name])


def kept_facts(workspace: Path, name: str) -> Facts:
    """What a finished stage says about what it made."""
    facts: Facts = facts_of(note_of(workspace, name)).get("facts", {})
    return facts


def kept_key(workspace: Path, name: str) -> str:
    """Stands for all that decided a finished stage."""
    return fingerprint_of(made_from(note_of(workspace, name)))


def kept_stage(workspace: Path, name: str, writes: tuple[str, ...]) -> Stage:
    """A finished stage that reads no other, for those who can work on what follows it, and not on itself."""
    before = made_from(note_of(workspace, name))
    made = Given(name, before.get("schema", []), before.get("ingredients", {}))
    return Stage(name, "", (), writes, _nothing, made, sealed=True)


def settled(states: States) -> States:
    """The states without the work, for keeping: work holds on to whatever it was about to use."""
    return tuple(replace(state, stage=replace(state.stage, work=_nothing)) for state in states)


def _nothing(_report: Report) -> Facts:
    return {}


def run_stages(
    stages: Sequence[Stage],
    workspace: str | Path,
    *,
    report: Report = silent,
    watch: Watch | None = None,
    at_once: int = 1,
) -> States:
    """Do the stages that are not done, in their order; an error stops the run and keeps what was done.

    `at_once` stages that do not wait for each other run side by side, each in a process of its own.
    """
    folder, accounts = Path(workspace), _accounts(stages)
    states = [_state(stage, accounts[stage.name], folder) for stage in stages]
    left = [number for number, state in enumerate(states) if state.status != "kept"]
    for kept in set(range(len(stages))).difference(left):  # killed after its note
        _begun(folder, stages[kept]).unlink(missing_ok=True)

    def show(number: int, status: Status, seconds: float | None = None, facts: Facts | None = None) -> None:
        states[number] = StageState(stages[number], status, seconds, facts or {}, states[number].reason)
        if watch is not None:
            watch(tuple(states))

    def work(number: int, report: Report) -> _Task:
        return partial(_done, stages[number], accounts[stages[number].name], folder, report)

    if at_once > 1:
        try:
            _side_by_side(stages, left, work, show, report, at_once)
        except BrokenProcessPool as error:
            advice = "run the same command again, with fewer stages at once"
            raise OutputError("a stage's process was killed", path=folder, next_step=advice) from error
        return tuple(states)
    for number in left:
        show(number, "running")
        try:
            show(number, "done", *work(number, report)())
        except MetaphaseError:
            show(number, "failed")
            raise
    return tuple(states)


_Task = Callable[[], tuple[float, Facts]]


def _side_by_side(
    stages: Sequence[Stage],
    left: list[int],
    work: Callable[[int, Report], _Task],
    show: Callable[..., None],
    report: Report,
    at_once: int,
) -> None:
    """Start every stage as soon as what it reads is done; after an error those that run may end."""
    running: dict[Future[tuple[float, Facts]], int] = {}
    error: Exception | None = None
    with worker_processes(at_once) as pool:
        while running or (left and error is None):
            unfinished = {stages[number].name for number in (*left, *running.values())}
            ready = [
                number
                for number in left
                if unfinished.isdisjoint((*stages[number].reads, *stages[number].after))
            ]
            for number in ready[: at_once - len(running)] if error is None else ():
                running[pool.submit(work(number, silent))] = number
                left.remove(number)
                show(number, "running")
            names = [stages[number].name for number in running.values()]
            report(", ".join(names), len(stages) - len(left) - len(running), len(stages))
            for job in wait(running, return_when=FIRST_COMPLETED).done:
                number = running.pop(job)
                try:
                    show(number, "done", *job.result())
                except (MetaphaseError, BrokenProcessPool) as raised:
                    error = error or raised
                    show(number, "failed")
    if error is not None:
        raise error


def _done(stage: Stage, account: Account, folder: Path, report: Report) -> tuple[float, Facts]:
    """Work on a stage, and leave its note; the seconds it took, and what it says."""
    begun, note = _begun(folder, stage), note_of(folder, stage.name)
    for name in (FOLDER, *stage.writes):
        refuse_link(folder / name, folder)
    with explained(note):
        note.unlink(missing_ok=True)
    if stage.renew and why_again(begun, account):
        _remove(stage, folder)
    write_note(begun, account)
    report(stage.about, 0, 1)
    started = time.perf_counter()
    try:
        facts = stage.work(report)
    except MetaphaseError as error:
        write_note(begun, account, {"error": str(error)})
        raise
    seconds = round(time.perf_counter() - started, 2)
    missing = [name for name in stage.writes if not (folder / name).exists()]
    if missing:
        raise OutputError(f"stage {stage.name} left no {missing[0]}", path=folder, next_step="run it again")
    if stage.sealed:
        try:
            stage.ingredients.refuse_changed(account, folder)
        except MetaphaseError:
            _remove(stage, folder)
            raise
    seals = {name: FileContent(folder / name).account() for name in stage.writes} if stage.sealed else {}
    write_note(note, account, {"seconds": seconds, "facts": facts, SEALS: seals})
    begun.unlink(missing_ok=True)
    return seconds, facts


def _state(stage: Stage, account: Account, folder: Path) -> StageState:
    note = note_of(folder, stage.name)
    kept = facts_of(note)
    reason = why_again(note, account) or _damage(stage, kept.get(SEALS, {}), folder)
    if not reason:
        return StageState(stage, "kept", kept.get("seconds"), kept.get("facts", {}))
    begun = _begun(folder, stage)
    if not why_again(begun, account):
        error = facts_of(begun).get("error")
        status: Status = "failed" if error else "interrupted"
        return StageState(stage, status, reason=error or "it was started and not finished")
    return StageState(stage, "waiting", reason=reason)


def _damage(stage: Stage, seals: Mapping[str, Any], folder: Path) -> str:
    """What of the outputs is not as the stage left it."""
    for name in stage.writes:
        if not (folder / name).exists():
            return f"{name} is gone"
        if name in seals and FileContent(folder / name).account() != seals[name]:
            return f"{name} has changed"
    return ""


def _accounts(stages: Sequence[Stage]) -> dict[str, Account]:
    """What each stage is made from: its ingredients, and the keys of the stages it reads."""
    accounts: dict[str, Account] = {}
    for stage in stages:
        reads = {name: fingerprint_of(accounts[name]) for name in stage.reads}
        accounts[stage.name] = stage.ingredients.account() | {"reads": reads}
    return accounts


def _remove(stage: Stage, folder: Path) -> None:
    for name in stage.writes:
        with explained(folder / name):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)


def note_of(workspace: Path, name: str) -> Path:
    """The note of a stage."""
    return workspace / FOLDER / f"{name}.json"


def _begun(folder: Path, stage: Stage) -> Path:
    return folder / FOLDER / f"{stage.name}.begun.json"
