"""What all commands share: messages, progress, and going on after a bad slide."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from metaphase.artifacts import write_text
from metaphase.errors import MetaphaseError, UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")

AREA = "mm2"
stdout = Console()
stderr = Console(stderr=True, soft_wrap=True)


def complain(message: str) -> None:
    """One error line on stderr."""
    stderr.print(f"[bold red]error[/]: {escape(message)}")


def warn(message: str) -> None:
    """One warning line on stderr."""
    stderr.print(f"[yellow]warning[/]: {escape(message)}")


def print_json(value: Any) -> None:
    """Machine-readable result on stdout, nothing else beside it; undefined numbers are null."""
    typer.echo(json.dumps(_without_nan(value), indent=2, allow_nan=False))


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
        """One cell."""
        unit = task.fields.get("unit", self._unit)
        digits = 0 if (task.total or 0) >= 100 or unit != AREA else 1
        total = "?" if task.total is None else f"{task.total:.{digits}f}"
        speed = f" {task.speed:.2g} {unit}/s" if unit == AREA and task.speed else ""
        return Text(f"{task.completed:.{digits}f}/{total} {unit}{speed}".rstrip())


def progress_bar(unit: str = "") -> Progress:
    """A bar on stderr that is silent where nobody watches."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        _Amount(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=stderr, disable=not stderr.is_terminal)


@contextmanager
def shown_on(bar: Progress, name: str) -> Iterator[Callable[[float, float], None]]:
    """A line of `bar` while an item is worked on; yields what to call with the amount done and in all."""
    task = bar.add_task(escape(name), total=None)
    try:
        yield lambda done, total: bar.update(task, completed=done, total=total)
    finally:
        bar.remove_task(task)


def for_each_slide(
    slides: Iterable[Path], work: Callable[[Path], Result], folder: Path
) -> tuple[list[Result], int]:
    """Do `work` on every slide file, as `for_each` does; their names must differ, for outputs carry them."""
    paths = list(slides)
    refuse_same_names(paths)
    return for_each({str(path): path for path in paths}, work, folder)


def for_each(
    items: Mapping[str, Item], work: Callable[[Item], Result], folder: Path, *, bar: Progress | None = None
) -> tuple[list[Result], int]:
    """Do `work` on every named item. One that fails is reported and the others go on.

    Returns the results and the exit code. Tracebacks go to `errors.log` in `folder`, for a bug report. `work`
    may show its own progress on `bar`.
    """
    results, failures = [], []
    log = folder / "errors.log"
    with bar or progress_bar() as bar:
        task = bar.add_task("slides", total=len(items), unit="slides")
        for name, item in items.items():
            bar.update(task, description=escape(Path(name).name))
            try:
                results.append(work(item))
            except MetaphaseError as error:
                told = str(error)
                complain(told if told.startswith(f"{name}: ") else f"{name}: {told}")
                failures.append(f"{name}\n{traceback.format_exc()}")
            except Exception as error:  # noqa: BLE001 -- one slide must not stop a cohort
                complain(f"{name}: {type(error).__name__}: {error}. The traceback is in {log}.")
                failures.append(f"{name}\n{traceback.format_exc()}")
            bar.advance(task)
    if failures:
        write_text(log, "\n".join(failures))
    else:
        log.unlink(missing_ok=True)
    return results, int(bool(failures))


def refuse_same_names(paths: list[Path]) -> None:
    """Outputs are named after the slide's stem, so stems must differ."""
    seen: dict[str, Path] = {}
    for path in paths:
        if path.stem in seen:
            raise UsageError(
                f"its outputs would overwrite those of {seen[path.stem]}",
                path=path,
                next_step="name each slide once, and run slides of the same name into different folders",
            )
        seen[path.stem] = path
