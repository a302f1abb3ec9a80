"""The paper of one's own data: figures as drawings, tables as CSV and LaTeX, and the page of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from metaphase.base.arrays import RGB
from metaphase.base.files import write_bytes, write_text
from metaphase.base.stages import States
from metaphase.base.tables import write_table
from metaphase.reports.pages import TextTable, data_uri, render
from metaphase.reports.plots import INK, MAIN, PALE, SECOND, THIRD, drawn
from metaphase.reports.run import stage_progress


@dataclass(frozen=True)
class Part:
    """A table or a figure of the paper."""

    name: str
    """Of its files: `table-1`, `figure-3`."""
    title: str
    text: str
    """What it shows of these data."""
    paper: str
    """What the paper's own shows."""
    table: TextTable | None = None
    figure: Figure | None = None
    missing: str = ""
    """What the data cannot give, and how to give it."""


def write_paper_page(folder: Path, name: str, parts: Sequence[Part], states: States) -> Path:
    """Write `index.html`, and each part's files below `tables` and `figures`."""
    shown = []
    for part in parts:
        picture = b""
        if part.table is not None:
            path = folder / "tables" / part.name
            write_table(
                path.with_suffix(".csv"),
                pd.DataFrame(list(part.table.rows), columns=list(part.table.headings)),
            )
            write_text(path.with_suffix(".tex"), latex(part.table, f"{part.title}. {part.text}", part.name))
        if part.figure is not None:
            path = folder / "figures" / part.name
            picture = drawn(part.figure, "png")
            write_bytes(path.with_suffix(".png"), picture)
            write_bytes(path.with_suffix(".pdf"), drawn(part.figure, "pdf"))
        shown.append((part, data_uri("image/png", picture)))
    page = render("paper.html", name=name, parts=shown, **stage_progress(states))
    write_text(folder / "index.html", page)
    return folder / "index.html"


ESCAPED = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"γ": r"$\gamma$", "δ": r"$\delta$", "θ": r"$\theta$"}
)
"""How LaTeX writes these."""


def latex(table: TextTable, caption: str, label: str) -> str:
    """A table for a manuscript.

    >>> print(latex(TextTable("", ["a_b", "c"], [["5 %", "γ"]]), "What & why", "t"))
    \\begin{table}
    \\caption{What \\& why}
    \\label{t}
    \\begin{tabular}{ll}
    \\hline
    a\\_b & c \\\\
    \\hline
    5 \\% & $\\gamma$ \\\\
    \\hline
    \\end{tabular}
    \\end{table}
    <BLANKLINE>
    """
    lines = [
        " & ".join(cell.translate(ESCAPED) for cell in line) + r" \\"
        for line in (table.headings, *table.rows)
    ]
    head = [r"\begin{table}", rf"\caption{{{caption.translate(ESCAPED)}}}", rf"\label{{{label}}}"]
    body = [rf"\begin{{tabular}}{{{'l' * len(table.headings)}}}", r"\hline", lines[0], r"\hline", *lines[1:]]
    return "\n".join([*head, *body, r"\hline", r"\end{tabular}", r"\end{table}", ""])


# ---- figures ----

WIDTH_INCHES = 9.6
GREY = "#5c636d"
TILES_IN_ROW = 10
BESIDE_INCHES, MARGIN = WIDTH_INCHES / 10, 0.03
"""Width of a picture, and what is left free around it, of that."""
Value = TypeVar("Value")


def grid_figure(
    rows: Sequence[Sequence[RGB]],
    labels: Sequence[str] = (),
    captions: Sequence[Sequence[str]] = (),
    colours: Sequence[Sequence[str]] = (),
) -> Figure:
    """Pictures in rows, with a label at the left of each row, a caption above and a frame around each one."""
    step = 1.16 if captions else 1.0
    figure, axes = _canvas((-0.2, max(5, *map(len, rows))), (len(rows) * step, 0), BESIDE_INCHES)
    for row, pictures in enumerate(rows):
        bottom = (row + 1) * step - MARGIN
        if labels:
            axes.text(
                -0.08, bottom - 0.5, labels[row], fontsize=8, color=INK, rotation=90, ha="center", va="center"
            )
        for column, pixels in enumerate(pictures):
            extent = (column + MARGIN, column + 1 - MARGIN, bottom, bottom - 1 + 2 * MARGIN)
            axes.imshow(pixels, extent=extent, interpolation="nearest", aspect="auto")
            if captions:
                centre, top = column + 0.5, extent[3] - 0.05
                axes.text(centre, top, captions[row][column], fontsize=7, color=INK, ha="center")
            if colours:
                size, colour = 1 - 2 * MARGIN, colours[row][column]
                frame = Rectangle(
                    (extent[0], bottom), size, -size, fill=False, linewidth=2.5, edgecolor=colour
                )
                axes.add_patch(frame)
    return figure


def _canvas(across: tuple[float, float], down: tuple[float, float], inches: float) -> tuple[Figure, Axes]:
    """A figure that is all drawing, so many inches a unit."""
    height = max(down[0] - down[1], 1e-9)
    figure = Figure(figsize=(inches * (across[1] - across[0]), inches * height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.autoscale(enable=False)
    axes.set(xlim=across, ylim=down)
    return figure, axes


def sheet_figure(groups: Mapping[str, Sequence[RGB]]) -> Figure:
    """A tile a slide, the groups below one another."""
    rows = [(name, tiles) for name, several in groups.items() for tiles in _in_rows(several)]
    return grid_figure([tiles for _, tiles in rows], [name for name, _ in rows])


def verdict_figure(pictures: Sequence[RGB], verdicts: Sequence[bool], captions: Sequence[str]) -> Figure:
    """All judged detections; those that are mitotic figures in one colour, the others in another."""
    colours = [THIRD if yes else SECOND for yes in verdicts]
    return grid_figure(_in_rows(pictures), captions=_in_rows(captions), colours=_in_rows(colours))


def _in_rows(values: Sequence[Value], most: int = TILES_IN_ROW) -> list[Sequence[Value]]:
    return [values[start : start + most] for start in range(0, len(values), most)]


def picture_figure(picture: RGB) -> Figure:
    """One picture, as it is."""
    height, width = picture.shape[:2]
    figure, axes = _canvas((0, width), (height, 0), WIDTH_INCHES / width)
    axes.imshow(picture, extent=(0, width, height, 0))
    return figure


class ChainStep(NamedTuple):
    """A box of a chain: what happens, the numbers of this run, and the paper's."""

    title: str
    text: str
    paper: str


BOXES_IN_ROW, SQUEEZED = 3, 0.5
"""Boxes beside each other, and how much less high than wide their room is."""


def chain_figure(groups: Mapping[str, Sequence[ChainStep]]) -> Figure:
    """Chains of boxes, an arrow before each but the first, below the name of their group."""
    rows = [(name, steps) for name, several in groups.items() for steps in _in_rows(several, BOXES_IN_ROW)]
    figure, axes = _canvas((0, BOXES_IN_ROW), (SQUEEZED * len(rows), 0), WIDTH_INCHES / BOXES_IN_ROW)
    axes.set_ylim(len(rows), 0)
    begun = ""
    for row, (name, steps) in enumerate(rows):
        for column, step in enumerate(steps):
            box = Rectangle((column + 0.12, row + 0.2), 0.82, 0.72, facecolor=PALE, edgecolor=MAIN)
            axes.add_patch(box)
            for y, size, colour, text in (
                (0.3, 9, INK, step.title),
                (0.56, 8.5, MAIN, step.text),
                (0.83, 7, GREY, f"paper: {step.paper}"),
            ):
                axes.text(column + 0.53, row + y, text, fontsize=size, color=colour, ha="center", va="center")
            if column or name == begun:
                axes.text(column + 0.06, row + 0.56, "→", fontsize=13, color=MAIN, ha="center", va="center")
        if name != begun:
            axes.text(0.12, row + 0.1, name, fontsize=10, color=INK, weight="bold", va="center")
        begun = name
    return figure
