"""What all commands share: options, messages, progress, and going on after a bad slide."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from metaphase.base.errors import ResultWarning, several
from metaphase.base.files import output_folder
from metaphase.base.foreign import printable
from metaphase.base.sharing import batch
from metaphase.base.sharing.batch import BatchWatch, Failure, brief_time
from metaphase.base.sharing.leases import Holder

if TYPE_CHECKING:
    from metaphase.base.stages import Report, StageState
    from metaphase.counting.clinical import Count, SlideCount

# ---- options that several commands share ----

Slide = Annotated[Path, typer.Argument(help="Whole-slide image, TIFF or plain image.", metavar="SLIDE")]
Slides = Annotated[
    list[Path],
    typer.Argument(help="Whole-slide images, TIFFs, plain images, or folders of them.", metavar="SLIDE..."),
]
MANIFEST = typer.Option("--manifest", help="Table of the cohort: case, he, phh3, split, mpp and so on.")
Manifest = Annotated[Path | None, MANIFEST]
NeededManifest = Annotated[Path, MANIFEST]
Folder = Annotated[
    Path,
    typer.Option("-o", "--output", help="Folder for the results; made if absent.", callback=output_folder),
]
Output = Annotated[Path, typer.Option("-o", "--output")]
Mpp = Annotated[
    float | None,
    typer.Option(help="Micrometres per pixel of slides that state none (40x: about 0.25)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", help="cpu, cuda, cuda:N or mps (untested); by default an NVIDIA GPU if there is one."
    ),
]
Workers = Annotated[
    str,
    typer.Option(
        "--workers",
        help="How many processes of this machine share the slides; or the address of a Dask scheduler; or a "
        "TOML file that asks Slurm, PBS, LSF, ... for workers (docs/cohorts.md).",
        metavar="N|ADDRESS|FILE",
    ),
]
Cnn1 = Annotated[Path | None, typer.Option("--cnn1", help="Model of phh3 train-cnn1, or phh3-cnn1.")]
Cnn2 = Annotated[Path | None, typer.Option("--cnn2", help="Model of phh3 train-cnn2, or phh3-cnn2.")]
Settings = Annotated[
    Path | None, typer.Option("--config", help="TOML file with any settings; options override it.")
]
Models = Annotated[
    list[Path] | None,
    typer.Option(
        "--model", help="A .safetensors or .onnx model; several are averaged. By default the bundled one."
    ),
]
Site = Annotated[
    Path | None,
    typer.Option(
        "--site", help="The laboratory's profile, from `metaphase calibrate`: gives calibrated counts."
    ),
]
Paper = Annotated[
    bool,
    typer.Option("--paper", help="Follow the paper to the letter; docs/paper.md lists what changes."),
]


# ---- what all commands share ----

AREA = "mm2"
WIDEST = 10_000
"""Characters of a line."""
LONGEST = 3000
"""Characters of an error."""


class PlainConsole(Console):
    """A console on which names of files and slides are text and nothing else, whatever they hold."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Render text as `rich` does."""
        return super().render_str(printable(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich does it, but a table that is wider than the terminal is not cut, nor one in a file."""
        whole = self.options.update(max_width=WIDEST)
        tables = [Measurement.get(self, whole, one) for one in objects if isinstance(one, Table)]
        wide = max((table.maximum for table in tables if self._is_cut(table)), default=0)
        if wide:
            wider = PlainConsole(file=self.file, width=wide, force_terminal=self.is_terminal)
            wider.print(*objects, **options)
        else:
            super().print(*objects, **options)

    def _is_cut(self, table: Measurement) -> bool:
        return table.minimum > self.width or (table.maximum > self.width and not self.is_terminal)


stdout = PlainConsole()
stderr = PlainConsole(stderr=True, soft_wrap=True, highlight=False)


def complain(message: str) -> None:
    """One error line on stderr."""
    stderr.print(f"[bold red]error[/]: {escape(_brief(message))}")


def warn(*warnings: object) -> None:
    """A line on stderr for each of them."""
    for warning in warnings:
        stderr.print(f"[yellow]warning[/]: {escape(_brief(str(warning)))}")


def warn_once(found: Iterable[tuple[str, ResultWarning]]) -> None:
    """A line for each kind of warning: of how many slides, which, and what it says of the first."""
    from metaphase.base.tables import named

    kinds: dict[str, list[tuple[str, ResultWarning]]] = {}
    for name, warning in found:
        kinds.setdefault(warning.code, []).append((name, warning))
    for (first, warning), *others in kinds.values():
        names = dict.fromkeys([first, *(name for name, _ in others)])
        many = f"{len(names):,} slides ({named(names)})"
        alike = all(other == warning for _, other in others)
        where = first if len(names) == 1 else many if alike else f"{many}, for example {first}"
        warn(f"{where}: {warning}")


def _brief(message: str) -> str:
    """A message whose middle is left out where some foreign name is far too long."""
    if len(message) <= LONGEST:
        return message
    return f"{message[: LONGEST * 2 // 3]} ... {message[-LONGEST // 3 :]}"


def point_line(point: Mapping[str, Any]) -> str:
    """An operating point in a line."""
    thetas = "" if point.get("theta1") is None else f", grades at {point['theta1']:g} and {point['theta2']:g}"
    return f"threshold {point['delta']:.6g}{thetas} ({point.get('source') or 'of the card'})"


COUNT_COLUMNS = ("count", "true figures", "kind", "score")
"""Of a table of counts: figures found, the interval of the true ones, who found them, and the score."""


def plain_table(*headings: str, right: tuple[str, ...] = ()) -> Table:
    """A table without lines; the headings in `right` are of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=bool(headings))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    return table


def rows_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of values, whatever they hold."""
    table = plain_table(*headings)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    return table


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Names, and what is known of them."""
    table = plain_table()
    for name, value in facts:
        table.add_row(f"[dim]{name}[/]", escape(value))
    return table


DIFFERENT_BASES = "what each interval rests on differs: see the slide's report"


def count_cells(count: SlideCount) -> list[str]:
    """The cells of `COUNT_COLUMNS`."""
    return [count.text, count.interval_text or "-", count.kind, count.score.text]


def explain_counts(counts: Iterable[Count]) -> None:
    """A line for each kind of count, and what its interval rests on, where that is one thing."""
    notes: dict[str, set[str]] = {}
    for one in counts:
        notes.setdefault(one.kind_text, set()).add(one.interval_note)
    for kind, said in notes.items():
        say(f"{kind}; {said.pop() if len(said) == 1 else DIFFERENT_BASES}")


def print_json(value: Any) -> None:
    """Machine-readable result on stdout, nothing else beside it; undefined numbers are null."""
    typer.echo(json.dumps(_without_nan(value), indent=2, allow_nan=False))


def answer(as_json: bool, plain: Any, *shown: object) -> None:
    """What a command found: as JSON for programs, or tables and lines for people."""
    if as_json:
        print_json(plain)
    else:
        for one in shown:
            stdout.print(one) if isinstance(one, Table) else say(one)


@contextmanager
def cohort_work(
    workers: str, unit: str = "", *, log_json: bool = False, gpus: int = 0
) -> Iterator[tuple[BatchWatch, batch.Workers | None]]:
    """A progress bar for a cohort, and those who do its items, where others than this process do."""
    from metaphase.base.sharing.workers import dask_workers

    with dask_workers(workers, gpus=gpus) as pool, batch_bar(unit, log_json=log_json) as watch:
        yield watch, pool


@contextmanager
def reporting(bar: Progress | None = None, what: str = "starting") -> Iterator[Report]:
    """Shows on a bar what is done, and how far that is."""
    with bar or progress_bar() as shown:
        task = shown.add_task(what, total=1)
        yield lambda what, done, total: shown.update(
            task, description=escape(what), completed=done, total=max(total, 1e-9)
        )


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Amount(ProgressColumn):
    """How much is done, of how much, and how fast; a task's field `unit` overrides the bar's."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Render one cell of the progress line."""
        unit = task.fields.get("unit", self._unit)
        digits = 0 if (task.total or 0) >= 100 or unit != AREA else 1
        total = "?" if task.total is None else f"{task.total:.{digits}f}"
        speed = f" {task.speed:.2g} {unit}/s" if unit == AREA and task.speed else ""
        return Text(f"{task.completed:.{digits}f}/{total} {unit}{speed}".rstrip())


def chosen_slides(paths: Iterable[Path]) -> list[Path]:
    """Slides as they were given, and those of folders; what else lies there is named in a line."""
    from metaphase.analysis.cohort import slides_in
    from metaphase.base.tables import named

    paths = list(paths)
    slides, others = slides_in(paths)
    if slides != paths:
        skipped = f"; skipped, because not slides: {named(one.name for one in others)}" if others else ""
        tell(f"{several(len(slides), 'slide')}{skipped}")
    return slides


def progress_bar(unit: str = "") -> Progress:
    """A bar on stderr that is silent where nobody watches."""
    return _bar(_Amount(unit), TimeElapsedColumn(), TimeRemainingColumn())


def step_bar() -> Progress:
    """The same for steps that differ: the share that is done of one, and the time since it began."""
    return _bar(TaskProgressColumn(), TimeElapsedColumn())


def _bar(*columns: ProgressColumn) -> Progress:
    described = (TextColumn("{task.description}"), BarColumn())
    return Progress(*described, *columns, console=stderr, disable=not stderr.is_terminal)


def explain(states: Iterable[StageState], name: str = "", *, shown: bool = True) -> None:
    """A line a stage on stderr: kept, or why it was done."""
    for state in states if shown else ():
        tell(f"{name}: {state.explanation}" if name else state.explanation)


def say(line: object) -> None:
    """A plain line on stdout, whatever it holds and however long it is."""
    stdout.print(str(line), markup=False, highlight=False, soft_wrap=True)


def tell(line: str) -> None:
    """A plain line on stderr."""
    stderr.print(line, markup=False, highlight=False)


class Pace:
    """How far a batch is, and how long it will still take at the speed so far."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self._begun: dict[str, float] = {}
        self._first = time.monotonic()

    def begin(self, name: str, total: int) -> None:
        """Called when an item begins, of how many."""
        self.total = total
        self._begun[name] = time.monotonic()

    def end(self, name: str) -> float:
        """An item is done; the seconds that it took."""
        self.done += 1
        return time.monotonic() - self._begun.pop(name, time.monotonic())

    @property
    def seconds_left(self) -> float:
        """For all that is not done."""
        return (time.monotonic() - self._first) / max(1, self.done) * max(0, self.total - self.done)

    def __str__(self) -> str:
        left = f", about {brief_time(self.seconds_left)} left" if self.done < self.total else ""
        return f"{self.done}/{self.total}{left}"


class JsonWatch(BatchWatch):
    """A batch as lines of JSON on stderr, for those who collect logs."""

    def __init__(self) -> None:
        self._pace = Pace()

    def started(self, name: str, number: int, total: int) -> Callable[[float, float], None]:  # noqa: ARG002
        """Called when an item begins; returns what takes its progress."""
        self._pace.begin(name, total)
        self._line("started", name)
        return lambda *_: None

    def finished(self, name: str, result: object) -> None:
        """An item is done, and what to beware of."""
        seconds = round(self._pace.end(name), 3)
        warnings = [str(warning) for warning in getattr(result, "warnings", ())]
        self._line("finished", name, seconds=seconds, warnings=warnings, **self._far())

    def failed(self, failure: Failure, log: Path | None) -> None:
        """An item could not be done."""
        seconds = round(self._pace.end(failure.name), 3)
        where = None if log is None else str(log)
        facts = {"message": failure.message, "foreseen": failure.foreseen, "log": where}
        self._line("failed", failure.name, seconds=seconds, **facts, **self._far())

    def taken(self, name: str, holder: Holder) -> None:
        """Somebody else works on it."""
        self._line("taken", name, by=str(holder), message=holder.outlook)

    def noted(self, warning: str) -> None:
        """Called with what is to be said of all items."""
        self._line("warning", None, message=warning)

    def _far(self) -> dict[str, Any]:
        pace = self._pace
        return {"done": pace.done, "total": pace.total, "seconds_left": round(pace.seconds_left, 1)}

    def _line(self, event: str, name: str | None, **facts: Any) -> None:
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        typer.echo(json.dumps({"time": when, "event": event, "name": name, **facts}), err=True)


class Problems:
    """What went wrong with slides: the first of a kind is shown at once, and how many others at the end."""

    def __init__(self) -> None:
        self._slides: dict[str, list[str]] = {}

    def tell(self, name: str, message: str) -> None:
        """Complain, unless another slide had the same problem."""
        alike = self._slides.setdefault(message.rpartition(": ")[2], [])
        alike.append(name)
        if len(alike) == 1:
            complain(message)

    def end(self) -> bool:
        """Name those that were not shown; whether there were any problems."""
        from metaphase.base.tables import named

        for problem, (first, *others) in self._slides.items():
            if others:
                more = f"{several(len(others), 'more slide')} ({named(others)})"
                complain(f"{more} failed like {first}: {problem}")
        return bool(self._slides)


class BarWatch(BatchWatch):
    """A batch on a progress bar: all items and those worked on, errors as they come, warnings at the end.

    Where nobody watches a terminal, a line for each item in its place.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar, self._pace = bar, Pace()
        self._all: TaskID | None = None
        self._each: dict[str, TaskID] = {}
        self._warned: list[tuple[str, ResultWarning]] = []
        self._problems = Problems()

    def started(self, name: str, number: int, total: int) -> Callable[[float, float], None]:
        """Called when an item begins: starts its line."""
        if self._all is None:
            self._all = self._bar.add_task("slides", total=total, unit="slides")
        self._pace.begin(name, total)
        shown = escape(printable(Path(name).name))
        self._bar.update(self._all, description=shown, completed=number)
        self._end(name)
        one = self._each[name] = self._bar.add_task(shown, total=None)
        return lambda done, all_of_it: self._bar.update(one, completed=done, total=all_of_it)

    def finished(self, name: str, result: object) -> None:
        """Tell that; of one that was kept as it was, nothing was to be done and there are no news."""
        self._end(name, done=True)
        seconds = self._pace.end(name)
        if not stderr.is_terminal:
            tell(f"{name}: done in {seconds:.1f} s ({self._pace})")
        if not getattr(result, "resumed", False):
            self._warned += [(name, warning) for warning in getattr(result, "warnings", ())]

    def end(self) -> None:
        """All are done: what to beware of, and which items failed as another one did."""
        warn_once(self._warned)
        self._problems.end()

    def failed(self, failure: Failure, log: Path | None) -> None:
        """Tell what went wrong the first time, the others go on."""
        self._end(failure.name, done=True)
        self._pace.end(failure.name)
        text = failure.message
        message = text if text.startswith(f"{failure.name}: ") else f"{failure.name}: {text}"
        hint = "" if failure.foreseen or log is None else f". The traceback is in {log}."
        self._problems.tell(failure.name, message + hint)

    def taken(self, name: str, holder: Holder) -> None:
        """Tell who else works here."""
        self._end(name)
        tell(f"{name}: {holder.outlook}")

    def noted(self, warning: str) -> None:
        """Print what is to be said."""
        warn(warning)

    def _end(self, name: str, *, done: bool = False) -> None:
        if name in self._each:
            self._bar.remove_task(self._each.pop(name))
        if done and self._all is not None:
            self._bar.advance(self._all)


@contextmanager
def batch_bar(unit: str = "", *, log_json: bool = False) -> Iterator[BatchWatch]:
    """A progress bar for a batch, or lines of JSON."""
    if log_json:
        yield JsonWatch()
        return
    with progress_bar(unit) as bar:
        watch = BarWatch(bar)
        yield watch
        watch.end()
