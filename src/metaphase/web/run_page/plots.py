"""Curves of training and testing as PNG bytes, made without global state."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK = "#20242a"
COLOURS = ("#1f5fa8", "#c2571a", "#3b8554", "#8a4fa3", "#b8860b", "#4f9ab8", "#a3354f", "#6b6f76")
DPI = 150


@dataclass(frozen=True)
class Line:
    """F1 against the threshold of one network, or of several seeds."""

    name: str
    curves: Sequence[Sequence[float]]
    """A curve a seed; the mean is drawn, and the range between the seeds shaded."""
    thresholds: Sequence[float] = field(default=())
    """Thresholds chosen on validation slides, marked on the mean curve where there is one."""


def f1_plot(panels: Mapping[str, Sequence[Line]], grid: Sequence[float]) -> bytes:
    """A panel for each group of test slides, lines of the same name in the same colour."""
    figure = Figure(figsize=(max(8.0, 5.4 * len(panels)), 4.1), dpi=DPI, layout="constrained")
    names = list(dict.fromkeys(line.name for lines in panels.values() for line in lines))
    for number, (title, lines) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        _style(axes, "detection threshold", "F1", title)
        for line in lines:
            _draw(axes, line, np.asarray(grid), COLOURS[names.index(line.name) % len(COLOURS)])
        axes.set_ylim(0, 1.02)
        axes.set_xlim(0, 1)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, frameon=False, fontsize=8, loc="outside lower center", ncols=min(4, len(labels) or 1)
    )
    return _png(figure)


def learning_plot(histories: Mapping[str, pd.DataFrame]) -> bytes:
    """Loss and validation F1 of every network by epoch; the best epoch is marked."""
    figure = Figure(figsize=(10.8, 3.6), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    _style(left, "epoch", "", "Training loss")
    _style(right, "epoch", "", "F1 on validation patches")
    for number, (name, table) in enumerate(histories.items()):
        colour = COLOURS[number % len(COLOURS)]
        left.plot(table["epoch"], table["loss"], color=colour, linewidth=1.6, label=name)
        right.plot(table["epoch"], table["f1"], color=colour, linewidth=1.6)
        best = table.iloc[int(table["f1"].argmax())]
        right.plot(best["epoch"], best["f1"], "o", color=colour, markersize=5)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_ylim(0, 1.02)
    left.set_ylim(bottom=0)
    figure.legend(
        *left.get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside lower center", ncols=8
    )
    return _png(figure)


def _draw(axes: Axes, line: Line, grid: npt.NDArray[np.float64], colour: str) -> None:
    curves = np.nan_to_num(np.asarray(line.curves, float))
    mean = curves.mean(axis=0)
    if len(curves) > 1:
        axes.fill_between(grid, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.plot(grid, mean, color=colour, linewidth=1.8, label=line.name)
    if len(line.thresholds) == 1:
        threshold = float(line.thresholds[0])
        axes.plot(threshold, np.interp(threshold, grid, mean), "o", color=colour, markersize=5)


def _style(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x, color=INK, fontsize=9)
    axes.set_ylabel(y, color=INK, fontsize=9)
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.grid(color="#e6e8eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(stream, format="png")
    return stream.getvalue()
