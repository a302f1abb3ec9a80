"""How far a command is: bars on a terminal, and lines or JSON where nobody watches one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape
from rich.progress import Progress, TaskID, TimeElapsedColumn

from metaphase.base.errors import ResultWarning
from metaphase.base.foreign import printable
from metaphase.base.sharing import batch
from metaphase.base.sharing.batch import BatchWatch, Failure, brief_time
from metaphase.base.sharing.leases import Holder
from metaphase.cli.console import Problems, stderr, tell, warn, warnings_by_kind

if TYPE_CHECKING:
    from metaphase.base.stages import Report


def progress_bar() -> Progress:
    """A bar on stderr that is silent where nobody watches."""
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    return Progress(*columns, console=stderr, disable=not stderr.is_terminal)


@contextmanager
def reporting(what: str = "starting") -> Iterator[Report]:
    """A report that shows on a bar what is being done, and how far that is."""
    with progress_bar() as bar:
        task = bar.add_task(what, total=1)
        yield lambda what, done, total: bar.update(
            task, description=escape(what), completed=done, total=max(total, 1e-9)
        )


# ---- many slides ----


class PacedWatch(BatchWatch):
    """Knows how many items are done, and how long the others will take at the speed so far."""

    def __init__(self) -> None:
        super().__init__()
        self.done = self.total = 0
        self._begun_s: dict[str, float] = {}
        self._first_s = time.monotonic()

    def begin(self, name: str, total: int) -> None:
        """An item begins, of so many."""
        self.total = total
        self._begun_s[name] = time.monotonic()

    def end(self, name: str) -> float:
        """An item is done or failed; returns the seconds that it took."""
        self.done += 1
        return time.monotonic() - self._begun_s.pop(name, time.monotonic())

    @property
    def seconds_left(self) -> float:
        """Seconds for all that is not done."""
        return (time.monotonic() - self._first_s) / max(1, self.done) * max(0, self.total - self.done)


class JsonWatch(PacedWatch):
    """A batch as lines of JSON on stderr, for those who collect logs."""

    def started(self, name: str, number: int, total: int) -> batch.Progress:
        """Print that an item begins; its own progress is not printed."""
        self.begin(name, total)
        self._line("started", name)
        return super().started(name, number, total)

    def finished(self, name: str, result: object) -> None:
        """Print that an item is done, with its warnings."""
        self._end(name, "finished", warnings=[str(warning) for warning in getattr(result, "warnings", ())])

    def failed(self, failure: Failure, log: Path | None) -> None:
        """Print why an item could not be done."""
        where = None if log is None else str(log)
        self._end(failure.name, "failed", message=failure.message, foreseen=failure.foreseen, log=where)

    def taken(self, name: str, holder: Holder) -> None:
        """Print who else works on an item."""
        self._line("taken", name, by=str(holder), message=holder.outlook)

    def noted(self, warning: str) -> None:
        """Print a warning about all items."""
        self._line("warning", None, message=warning)

    def _end(self, name: str, event: str, **facts: Any) -> None:
        facts = {"seconds": round(self.end(name), 3), **facts, "done": self.done, "total": self.total}
        self._line(event, name, **facts, seconds_left=round(self.seconds_left, 1))

    def _line(self, event: str, name: str | None, **facts: Any) -> None:
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        typer.echo(json.dumps({"time": when, "event": event, "name": name, **facts}), err=True)


class BarWatch(PacedWatch):
    """A batch on a progress bar: all items and those worked on, errors as they come, warnings at the end.

    Where nobody watches a terminal, a line for each item in its place.
    """

    def __init__(self, bar: Progress) -> None:
        super().__init__()
        self._bar = bar
        self._all: TaskID | None = None
        self._lines: dict[str, TaskID] = {}
        self.warnings: list[tuple[str, ResultWarning]] = []
        self.problems = Problems()

    def started(self, name: str, number: int, total: int) -> batch.Progress:
        """Start an item's line."""
        if self._all is None:
            self._all = self._bar.add_task("", total=total)
        self.begin(name, total)
        self._bar.update(self._all, description=f"{number} of {total}", completed=number)
        self._remove_line(name)
        line = self._lines[name] = self._bar.add_task(escape(printable(Path(name).name)), total=None)
        return lambda done, whole: self._bar.update(line, completed=done, total=whole)

    def end(self, name: str) -> float:
        """End an item's line."""
        self._remove_line(name)
        if self._all is not None:
            self._bar.advance(self._all)
        return super().end(name)

    def finished(self, name: str, result: object) -> None:
        """Note the warnings of an item, unless it was kept from an earlier run, which printed them."""
        seconds = self.end(name)
        if not stderr.is_terminal:
            left = f", about {brief_time(self.seconds_left)} left" if self.done < self.total else ""
            tell(f"{name}: done in {seconds:.1f} s ({self.done}/{self.total}{left})")
        if not getattr(result, "resumed", False):
            self.warnings += [(name, warning) for warning in getattr(result, "warnings", ())]

    def failed(self, failure: Failure, log: Path | None) -> None:
        """Print what went wrong, the first time that it does."""
        self.end(failure.name)
        message = f"{failure.name}: {failure.message.removeprefix(f'{failure.name}: ')}"
        hint = "" if failure.foreseen or log is None else f". The traceback is in {log}."
        self.problems.tell(failure.name, message + hint)

    def taken(self, name: str, holder: Holder) -> None:
        """Print who else works here."""
        self._remove_line(name)
        tell(f"{name}: {holder.outlook}")

    def noted(self, warning: str) -> None:
        """Print a warning about all items."""
        warn(warning)

    def _remove_line(self, name: str) -> None:
        if name in self._lines:
            self._bar.remove_task(self._lines.pop(name))


@contextmanager
def batch_bar(log_json: bool = False) -> Iterator[BatchWatch]:
    """A progress bar for a batch, or lines of JSON."""
    if log_json:
        yield JsonWatch()
        return
    with progress_bar() as bar:
        watch = BarWatch(bar)
        yield watch
        warn(*warnings_by_kind(watch.warnings))
        watch.problems.end()


@contextmanager
def cohort_work(
    workers: str, *, log_json: bool = False, gpus: int = 0
) -> Iterator[tuple[BatchWatch, batch.Workers | None]]:
    """A progress bar for a cohort, and the workers that do its items, where this process does not."""
    from metaphase.base.sharing.workers import dask_workers

    with dask_workers(workers, gpus=gpus) as pool, batch_bar(log_json) as watch:
        yield watch, pool
