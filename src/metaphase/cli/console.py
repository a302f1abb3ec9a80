"""What all commands share: options, lines and tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from metaphase.base.errors import ResultWarning, several
from metaphase.base.files import output_folder
from metaphase.base.foreign import printable

if TYPE_CHECKING:
    from metaphase.base.stages import StageState
    from metaphase.counting.clinical import Count

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


# ---- lines and tables ----

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
        tables = [Measurement.get(self, whole, shown) for shown in objects if isinstance(shown, Table)]
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


def say(line: object) -> None:
    """Print a plain line on stdout, whatever it holds and however long it is."""
    stdout.print(str(line), markup=False, highlight=False, soft_wrap=True)


def tell(line: str) -> None:
    """Print a plain line on stderr."""
    stderr.print(line, markup=False, highlight=False)


def complain(message: str) -> None:
    """Print an error line on stderr."""
    stderr.print(f"[bold red]error[/]: {escape(_brief(message))}")


def warn(*warnings: object) -> None:
    """Print a line on stderr for each warning."""
    for warning in warnings:
        stderr.print(f"[yellow]warning[/]: {escape(_brief(str(warning)))}")


def _brief(message: str) -> str:
    """A message whose middle is left out where some foreign name is far too long."""
    if len(message) <= LONGEST:
        return message
    return f"{message[: LONGEST * 2 // 3]} ... {message[-LONGEST // 3 :]}"


def rows_table(headings: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> Table:
    """A table without lines; columns in `right` hold numbers, and cells that are `Text` keep their colour."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=bool(headings))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else escape(str(cell)) for cell in row))
    return table


def print_json(value: Any) -> None:
    """Print a result for programs on stdout, and nothing else there; undefined numbers are null."""
    typer.echo(json.dumps(to_jsonable_python(value, inf_nan_mode="null"), indent=2))


# ---- several slides ----


def chosen_slides(paths: Iterable[Path]) -> list[Path]:
    """Slides as they were given, and those of folders; a line names what else lies there."""
    from metaphase.analysis.cohort import slides_in
    from metaphase.base.tables import named

    paths = list(paths)
    slides, others = slides_in(paths)
    if slides != paths:
        skipped = f"; skipped, because not slides: {named(path.name for path in others)}" if others else ""
        tell(f"{several(len(slides), 'slide')}{skipped}")
    return slides


def warnings_by_kind(warnings: Iterable[tuple[str, ResultWarning]]) -> Iterator[str]:
    """A line for each kind of warning: of how many slides, which, and what it says of the first."""
    from metaphase.base.tables import named

    kinds: dict[str, list[tuple[str, ResultWarning]]] = {}
    for name, warning in warnings:
        kinds.setdefault(warning.code, []).append((name, warning))
    for same in kinds.values():
        first, warning = same[0]
        names = dict.fromkeys(name for name, _ in same)
        where = first
        if len(names) > 1:
            alike = all(other == warning for _, other in same)
            where = f"{len(names):,} slides ({named(names)})" + ("" if alike else f", for example {first}")
        yield f"{where}: {warning}"


class Problems:
    """What went wrong with slides: the first of a kind is shown at once, and how many others at the end."""

    def __init__(self) -> None:
        self._slides: dict[str, list[str]] = {}

    def tell(self, name: str, message: str) -> None:
        """Print the error, unless another slide had the same."""
        alike = self._slides.setdefault(message.rpartition(": ")[2], [])
        alike.append(name)
        if len(alike) == 1:
            complain(message)

    def end(self) -> bool:
        """Name the slides that were not shown; returns whether there were any problems."""
        from metaphase.base.tables import named

        for problem, (first, *others) in self._slides.items():
            if others:
                more = f"{several(len(others), 'more slide')} ({named(others)})"
                complain(f"{more} failed like {first}: {problem}")
        return bool(self._slides)


def explain(states: Iterable[StageState], name: str) -> None:
    """Print a line for each stage of a slide on stderr: kept, or why it is done."""
    for state in states:
        tell(f"{name}: {state.explanation}")


def count_notes(counts: Iterable[Count]) -> list[str]:
    """A line for each kind of count, and what its interval rests on, where that is one thing."""
    notes: dict[str, set[str]] = {}
    for count in counts:
        notes.setdefault(count.kind_text, set()).add(count.interval_note)
    differ = "what each interval rests on differs: see the slide's report"
    return [f"{kind}; {bases.pop() if len(bases) == 1 else differ}" for kind, bases in notes.items()]
