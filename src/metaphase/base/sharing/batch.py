"""Items of a cohort, worked on one after the other: a bad one is recorded and the others go on.

Several processes may share a folder. Each item is done under a lease, what failed is recorded item by item,
and both are kept in its subfolder `.batch`, which is removed when nobody works and nothing has failed.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from metaphase.base.errors import MetaphaseError, OutputError
from metaphase.base.files import output_folder, write_text
from metaphase.base.foreign import read_json
from metaphase.base.sharing.leases import Holder, Lease, LeaseLostError, file_name, holding

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[float, float], None]
"""Called with how much of an item is done, and how much there is."""
ERRORS = "errors.log"
SHARED = ".batch"
"""Where those who share a folder leave leases and failures."""
LOOK_AGAIN_S = 2.0
"""Between looks at items that others work on."""
REPORT_EVERY_S = 600.0
"""Time between reports of who is waited for."""


def brief_time(seconds: float) -> str:
    """About how long something takes.

    >>> brief_time(100), brief_time(600), brief_time(9000)
    ('100 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{max(1, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Failure:
    """An item that could not be done."""

    name: str
    message: str
    """What went wrong, in one line."""
    foreseen: bool
    """Whether the message says what to do; if not, the traceback in the log does."""
    trace: str = ""
    """Of an unforeseen error."""
    bad_input: bool = False
    """Whether the item itself is at fault, so that another try would end the same way."""

    @classmethod
    def of(cls, name: str, error: Exception) -> Failure:
        """The failure that is being handled; the error itself is let go, with all that its frames hold."""
        if not isinstance(error, MetaphaseError):
            return cls(name, f"{type(error).__name__}: {error}", False, traceback.format_exc())
        return cls(name, str(error), True, bad_input=not isinstance(error, OutputError))

    @property
    def account(self) -> str:
        """The message as a line that begins with the name; below it, the traceback where there is one."""
        named = f"{self.name}: "
        line = named + " ".join(self.message.removeprefix(named).split())
        return f"{line}\n{self.trace}" if self.trace else line


class BatchWatch:
    """What is reported while a batch runs; a base class that listens to nothing but the progress of items."""

    _progress: Progress | None = None

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress

    def started(self, name: str, number: int, total: int) -> Progress:  # noqa: ARG002 -- for those who listen
        """An item begins; returns what to call with its own progress."""
        return self._progress or (lambda *_: None)

    def finished(self, name: str, result: object) -> None:
        """Called when an item is done."""

    def failed(self, failure: Failure, log: Path | None) -> None:
        """An item could not be done; `log` is where it is recorded."""

    def taken(self, name: str, holder: Holder) -> None:
        """Somebody else works on an item, or did: `holder.outlook` says what is done about it."""

    def noted(self, warning: str) -> None:
        """Something to beware of about all of them."""


@dataclass(frozen=True)
class Batch(Generic[Result]):
    """What became of each item, in their order."""

    outcomes: Mapping[str, Result | Failure]

    @property
    def results(self) -> dict[str, Result]:
        """Of the items that were done."""
        return {name: done for name, done in self.outcomes.items() if not isinstance(done, Failure)}

    @property
    def failures(self) -> list[Failure]:
        """Items that failed, with their errors."""
        return [failure for failure in self.outcomes.values() if isinstance(failure, Failure)]


Work = Callable[[Item, Progress], Result]


class Workers:
    """Who does the work: this process, one item after the other, or a cluster's (`workers.DaskWorkers`)."""

    def __init__(self) -> None:
        self._work: Work[Any, Any] | None = None
        self._done: tuple[str, Any] | None = None

    @property
    def has_room(self) -> bool:
        """Whether more may be handed out."""
        return self._done is None

    @property
    def is_busy(self) -> bool:
        """Whether anything is handed out that did not come back."""
        return self._done is not None

    @contextmanager
    def at(self, work: Work[Any, Any]) -> Iterator[None]:
        """Be ready for this work inside; what is handed out at the end is given up."""
        self._work = work
        yield

    def hand_out(self, attempt: Attempt[Any], begin: Callable[[], Progress]) -> None:
        """Have an item tried; `begin` is called where somebody really begins."""
        if self._work is not None:
            self._done = attempt.name, attempt.run(self._work, begin)

    def next_done(self, timeout_s: float | None) -> tuple[str, Any] | None:  # noqa: ARG002 -- for those of a cluster
        """The next item that was tried, and what came of it; None where nothing came in time."""
        done, self._done = self._done, None
        return done


def run_batch(
    items: Mapping[str, Item],
    work: Work[Item, Result],
    folder: Path | None = None,
    watch: BatchWatch | None = None,
    pool: Workers | None = None,
) -> Batch[Result]:
    """Do `work` on every named item. Those that fail are named in `errors.log` in `folder`.

    Where other processes work on items of the same folder, theirs come last, and are waited for. A `pool`
    does it instead of this process.
    """
    watch, queue, pool = watch or BatchWatch(), Queue(list(items)), pool or Workers()
    log = None if folder is None else output_folder(folder) / ERRORS
    outcomes: dict[str, Result | Failure] = {}

    def begin(name: str) -> Progress:
        return watch.started(name, len(outcomes), len(items))

    with pool.at(work):
        while queue or pool.is_busy:
            while pool.has_room and (name := queue.next(wait=not pool.is_busy)) is not None:
                pool.hand_out(Attempt(name, items[name], folder, queue.lapsed(name)), partial(begin, name))
            done = pool.next_done(LOOK_AGAIN_S if queue else None)
            if done is None:
                continue
            name, outcome = done
            if isinstance(outcome, Holder):
                if queue.put_back(name, outcome):
                    watch.taken(name, outcome)
                continue
            outcomes[name] = outcome
            if isinstance(outcome, Failure):
                written = log is not None and _add_to_log(log, outcome)
                watch.failed(outcome, log if written else None)
            else:
                watch.finished(name, outcome)
    batch = Batch({name: outcomes[name] for name in items})
    if folder is not None:
        write_log(folder / ERRORS)
        known = {failure.name for failure in known_failures(folder)}
        lost = [failure.name for failure in batch.failures if failure.name not in known]
        if lost:
            watch.noted(f"could not be recorded as failed (disk full, or path too long): {', '.join(lost)}")
        _tidy(folder)
    return batch


class Queue:
    """Items to be done; those that others work on are looked at again when all else is done."""

    def __init__(self, names: list[str]) -> None:
        self._free, self._taken = deque(names), deque[str]()
        self._seen: dict[str, tuple[Holder, float]] = {}
        """What a lease said, and since when by this process's clock."""
        self._reported_s: dict[str, float] = {}
        self._looked_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._free or self._taken)

    def next(self, *, wait: bool = True) -> str | None:
        """The next item to try; what others hold is tried again only after a pause."""
        if self._free:
            return self._free.popleft()
        pause_s = self._looked_s + LOOK_AGAIN_S - time.monotonic()
        if not self._taken or (pause_s > 0 and not wait):
            return None
        time.sleep(max(0.0, pause_s))
        self._looked_s = time.monotonic()
        return self._taken.popleft()

    def put_back(self, name: str, holder: Holder) -> bool:
        """Try it again later, or at once where its holder has ended; returns whether that is worth saying:
        the first time, and then once in a while."""
        (self._free if holder.ended else self._taken).append(name)
        now = time.monotonic()
        if name not in self._seen or self._seen[name][0] != holder:
            self._seen[name] = holder, now
        if now - self._reported_s.get(name, -REPORT_EVERY_S) < REPORT_EVERY_S:
            return False
        self._reported_s[name] = now
        return True

    def lapsed(self, name: str) -> bytes | None:
        """The content of its lease, where that has stood still for too long."""
        if name not in self._seen:
            return None
        holder, since = self._seen[name]
        return holder.content if time.monotonic() - since >= holder.lapse_s else None


@dataclass(frozen=True)
class Attempt(Generic[Item]):
    """One try at an item, wherever it is made."""

    name: str
    item: Item
    folder: Path | None
    lapsed: bytes | None = None
    """Content of a lease that may be taken over."""

    def run(self, work: Work[Item, Result], begin: Callable[[], Progress]) -> Result | Failure | Holder:
        """Do the work under the item's lease, and record it where it fails; or learn who works on it."""
        try:
            if self.folder is None:
                return work(self.item, begin())
            with holding(_lease_of(self.folder, self.name), self.lapsed) as lease:
                if isinstance(lease, Holder):
                    return lease
                outcome = self._outcome(lease, work, begin())
                lease.check()  # while the item is still ours
                _record(self.folder, self.name, outcome)
                return outcome
        except LeaseLostError:
            return Holder(b"")
        except Exception as error:  # noqa: BLE001 -- one item must not stop a cohort
            return Failure.of(self.name, error)

    def _outcome(self, lease: Lease, work: Work[Item, Result], progress: Progress) -> Result | Failure:
        def step(done: float, total: float) -> None:
            lease.check()
            progress(done, total)

        try:
            return work(self.item, step)
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001 -- as above
            return Failure.of(self.name, error)


@contextmanager
def one_at_a_time(
    folder: Path, what: str, watch: BatchWatch | None = None, *, wait: bool = True
) -> Iterator[None]:
    """Hold the lease of an item, or of anything else that those who share a folder do one at a time.

    Whoever is next sees all that was done before. Without `wait`, that somebody else holds it is an error;
    of another machine, this is only sure once the lease is renewed: one that a power cut left lapses.
    """
    before: Holder | None = None
    queue, path = Queue([what]), _lease_of(folder, what, "=" if wait else "")
    while queue.next() is not None:
        with holding(path, queue.lapsed(what)) as lease:
            if isinstance(lease, Lease):
                yield
                continue
            if not wait and not lease.ended and (lease.is_here or before not in (None, lease)):
                advice = "try again when it is done"
                raise OutputError(f"{lease} is working on it", path=folder / what, next_step=advice)
            before = lease
            if queue.put_back(what, lease) and watch is not None:
                watch.taken(what, lease)
    _tidy(folder)


def _lease_of(folder: Path, name: str, mark: str = "") -> Path:
    """Where a lease lies; a `mark` tells those of other things from those of items."""
    return folder / SHARED / f"{mark}{file_name(name)}.lease"


def _tidy(folder: Path) -> None:
    """Remove the folder of leases and failures where nothing is in it."""
    with suppress(OSError):
        (folder / SHARED).rmdir()


# ---- what failed, kept item by item so that those who share a folder add up ----


def known_failures(folder: str | Path) -> list[Failure]:
    """Items of a folder that failed when they were last tried, whoever tried them."""
    found = []
    for path in sorted((Path(folder) / SHARED).glob("*.failed.json")):
        with suppress(MetaphaseError, TypeError):  # one that is being removed, or was edited
            found.append(Failure(**read_json(path, "is not a record of a failure", next_step="remove it")))
    return sorted(found, key=lambda failure: failure.name)


def forget_failures(folder: Path, wanted: Collection[str]) -> None:
    """Forget the failures of all items but those that are wanted; nothing where none failed."""
    others = [failure.name for failure in known_failures(folder) if failure.name not in wanted]
    for name in others:
        _record(folder, name, None)
    if others:
        write_log(folder / ERRORS)


def _record(folder: Path, name: str, outcome: object) -> None:
    """Keep what failed until it is done; a full disk, or a folder of its name, stops no cohort."""
    with suppress(OutputError, OSError):
        if isinstance(outcome, Failure):
            write_text(_record_of(folder, name), json.dumps(asdict(outcome)))
        else:
            _record_of(folder, name).unlink(missing_ok=True)


def _record_of(folder: Path, name: str) -> Path:
    return folder / SHARED / f"{file_name(name)}.failed.json"


def _add_to_log(log: Path, failure: Failure) -> bool:
    """Add what failed just now, and say whether that worked; no pipe is waited for, no link followed."""
    try:
        careful = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | careful, 0o666)
        with os.fdopen(file, "a", encoding="utf-8", errors="backslashreplace", newline="\n") as opened:
            opened.write(f"{failure.account}\n")
    except OSError:
        return False
    return True


def write_log(log: Path) -> None:
    """Write what failed in a folder, a line each, with the traceback of what was unforeseen.

    Written until nothing changed meanwhile, so that of several writers the last one knows of all.
    """
    written, failures = None, known_failures(log.parent)
    while written != failures:
        with suppress(OutputError, OSError):
            if failures:
                write_text(log, "".join(f"{failure.account}\n" for failure in failures))
            else:
                log.unlink(missing_ok=True)
        written, failures = failures, known_failures(log.parent)
