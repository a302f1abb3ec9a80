"""Items of a cohort, worked on one after the other: a bad one is recorded and the others go on."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from metaphase.base.errors import MetaphaseError, OutputError
from metaphase.base.files import write_text

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[float, float], None]
"""Called with how much of an item is done, and how much there is."""
ERRORS = "errors.log"


@dataclass(frozen=True)
class Failure:
    """An item that could not be done."""

    name: str
    message: str
    """What went wrong, in one line."""
    foreseen: bool
    """Whether the message says what to do; if not, the traceback in the log does."""
    trace: str

    @classmethod
    def of(cls, name: str, error: Exception) -> Failure:
        """The failure that is being handled; the error itself is let go, with all that its frames hold."""
        foreseen = isinstance(error, MetaphaseError)
        message = str(error) if foreseen else f"{type(error).__name__}: {error}"
        return cls(name, message, foreseen, traceback.format_exc())


class BatchWatch:
    """What is told while a batch runs; a base class that listens to nothing."""

    def started(self, name: str, number: int, total: int) -> Progress:  # noqa: ARG002 -- for those who listen
        """An item begins; returns what to call with its own progress."""
        return lambda *_: None

    def finished(self, name: str, result: object) -> None:
        """An item is done."""

    def failed(self, failure: Failure, log: Path | None) -> None:
        """An item could not be done; `log` is where tracebacks go."""


@dataclass(frozen=True)
class Batch(Generic[Result]):
    """What became of each item, in their order."""

    outcomes: Mapping[str, Result | Failure]

    @property
    def results(self) -> dict[str, Result]:
        """Of the items that were done."""
        return {name: one for name, one in self.outcomes.items() if not isinstance(one, Failure)}

    @property
    def failures(self) -> list[Failure]:
        """The others."""
        return [one for one in self.outcomes.values() if isinstance(one, Failure)]


def run_batch(
    items: Mapping[str, Item],
    work: Callable[[Item, Progress], Result],
    folder: Path | None = None,
    watch: BatchWatch | None = None,
) -> Batch[Result]:
    """Do `work` on every named item. Tracebacks of those that fail go to `errors.log` in `folder`."""
    watch = watch or BatchWatch()
    log = None if folder is None else folder / ERRORS
    outcomes: dict[str, Result | Failure] = {}
    for number, (name, item) in enumerate(items.items()):
        progress = watch.started(name, number, len(items))
        try:
            result = work(item, progress)
        except Exception as error:  # noqa: BLE001 -- one item must not stop a cohort
            failure = Failure.of(name, error)
            outcomes[name] = failure
            written = log is not None and _write_log(log, Batch(outcomes).failures)
            watch.failed(failure, log if written else None)
        else:
            outcomes[name] = result
            watch.finished(name, result)
    batch = Batch(outcomes)
    if log is not None and not batch.failures:
        with suppress(OSError):
            log.unlink(missing_ok=True)
    return batch


def _write_log(log: Path, failures: list[Failure]) -> bool:
    """Whether the log could be written: a full disk, or a folder of its name, stops no cohort."""
    try:
        write_text(log, "\n".join(f"{failure.name}\n{failure.trace}" for failure in failures))
    except OutputError:
        return False
    return True
