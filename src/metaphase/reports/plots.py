"""Plots of results as PNG bytes, made without global state: safe in threads and servers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from metaphase.base.arrays import Floats, Integers
from metaphase.evaluation.metrics import Curve, Estimate, ratio
from metaphase.evaluation.operating_points import GRID
from metaphase.labels.observers.consensus import LearningCurve

INK, MAIN, SECOND, THIRD, PALE = "#20242a", "#1f5fa8", "#c2571a", "#3b8554", "#dbe6f3"
SIZE_INCHES = (5.2, 3.7)
DPI = 160


def f1_plot(curve: Curve, band: tuple[Floats, Floats], threshold: float) -> bytes:
    """F1, precision and recall against the threshold, with the interval of F1."""
    figure, axes = _figure("detection threshold", "", "F1, precision and recall against the threshold")
    if len(band[0]):
        axes.fill_between(curve.threshold, *band, color=PALE, linewidth=0, label="F1, interval")
    axes.plot(curve.threshold, curve.recall, color=THIRD, linewidth=1.2, label="recall")
    axes.plot(curve.threshold, curve.precision, color=SECOND, linewidth=1.2, label="precision")
    axes.plot(curve.threshold, curve.f1, color=MAIN, linewidth=2.2, label="F1")
    axes.axvline(threshold, color=INK, linewidth=1, linestyle=":", label=f"used: {threshold:.3g}")
    axes.set_ylim(0, 1.02)
    _legend(figure, axes, 5)
    return drawn(figure)


def precision_recall_plot(curve: Curve, average_precision: float) -> bytes:
    """Precision against recall, as the steps that average precision sums."""
    title = f"Precision and recall, average precision {average_precision:.3f}"
    figure, axes = _figure("recall", "precision", title)
    axes.step(curve.recall, curve.precision, where="pre", color=MAIN, linewidth=2)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    return drawn(figure)


def froc_plot(curve: Curve, area_mm2: float) -> bytes:
    """Sensitivity against false positives per mm2, on a logarithmic axis.

    The line begins at the left edge with what is found before the first false positive; without any false
    detection that is all there is, and the picture says so.
    """
    figure, axes = _figure("false positives per mm²", "sensitivity", "FROC")
    rate, sensitivity, left, right = froc_line(curve, area_mm2)
    axes.step(rate, sensitivity, where="post", color=MAIN, linewidth=2)
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    if not curve.false.any():
        remark = f"no false positive at any threshold\nsensitivity {sensitivity[-1]:.3f}"
        axes.text(0.5, 0.5, remark, transform=axes.transAxes, ha="center", va="center", color=INK)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 1.02)
    return drawn(figure)


def froc_line(curve: Curve, area_mm2: float) -> tuple[Floats, Floats, float, float]:
    """The steps of the FROC curve, and the left and right limits of an axis that has no zero."""
    rate = ratio(curve.false, area_mm2)
    shown = rate > 0
    clean = curve.recall[~shown].max(initial=0.0)
    single = 1 / area_mm2
    lowest, highest = rate.min(where=shown, initial=np.inf), rate.max(initial=0.0)
    if not shown.any():
        lowest, highest = single, 10 * single
    left, right = max(lowest / 2, highest / 1000), highest * 1.2
    start = min(left, lowest / 2)
    last = curve.recall[-1] if shown.any() else clean
    return np.r_[start, rate[shown], right], np.r_[clean, curve.recall[shown], last], left, right


def interval_plot(title: str, label: str, values: dict[str, Estimate]) -> bytes:
    """A dot and its interval for each group, the first on top."""
    figure, axes = _figure(label, "", title, height=max(1.6, 0.32 * len(values) + 1.1))
    for position, (_, value) in enumerate(reversed(values.items())):
        if not np.isnan(value.low):
            axes.plot([value.low, value.high], [position, position], color=MAIN, linewidth=1.6)
        axes.plot(value.value, position, "o", color=MAIN, markersize=6)
    axes.set_yticks(range(len(values)), [name[:34] for name in reversed(values)])
    axes.set_ylim(-0.6, len(values) - 0.4)
    return drawn(figure)


def confusion_plot(table: Integers) -> bytes:
    """Cases of each true and predicted grade; the shade is the share within the true grade."""
    figure, axes = _figure("predicted grade", "true grade", "Confusion of grades", width=3.9)
    share = np.nan_to_num(ratio(table, table.sum(axis=1, keepdims=True)))
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1.1)
    for (row, column), count in np.ndenumerate(table):
        colour = "white" if share[row, column] > 0.55 else INK
        axes.text(column, row, f"{count}\n{share[row, column]:.0%}", ha="center", va="center", color=colour)
    ticks = range(len(table)), [str(grade) for grade in range(1, len(table) + 1)]
    axes.set_xticks(*ticks)
    axes.set_yticks(*ticks)
    axes.grid(False)
    return drawn(figure)


def scatter_plot(truth: Floats, predicted: Floats, correlation: Estimate) -> bytes:
    """Predicted against true scores; few large predictions do not squeeze the rest."""
    figure, axes = _figure("true score", "predicted score", f"Scores, Spearman {correlation}")
    axes.plot(truth, predicted, "o", color=MAIN, markersize=3.5, alpha=0.45, markeredgewidth=0)
    if predicted.min() >= 0 and predicted.max() > 20 * max(1.0, float(np.median(predicted))):
        axes.set_yscale("symlog", linthresh=1)
    return drawn(figure)


def label_curve_plot(curve: LearningCurve) -> bytes:
    """F1 with its interval against the number of labels it was learnt from."""
    figure, axes = _figure("labels", "F1", "Would more labels help?")
    labels, f1, low, high = np.array([astuple(point) for point in curve.points], float).T
    axes.fill_between(labels, low, high, color=PALE, linewidth=0)
    axes.plot(labels, f1, color=MAIN, linewidth=2.2, marker="o", markersize=4)
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0, None)
    return drawn(figure)


def _figure(
    x: str, y: str, title: str, *, width: float = SIZE_INCHES[0], height: float = SIZE_INCHES[1]
) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    _style(axes, x, y, title)
    return figure, axes


def _legend(figure: Figure, axes: Axes, most: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = min(most, len(labels) or 1)
    figure.legend(handles, labels, frameon=False, fontsize=8, loc="outside lower center", ncols=columns)


def drawn(figure: Figure, kind: str = "png") -> bytes:
    """A figure as a file, the same each time: as PNG or PDF."""
    stream = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(stream, format=kind, dpi=DPI, metadata={"CreationDate": None} if kind == "pdf" else {})
    return stream.getvalue()


# ---- curves of training and testing as PNG bytes ----

COLOURS = ("#1f5fa8", "#c2571a", "#3b8554", "#8a4fa3", "#b8860b", "#4f9ab8", "#a3354f", "#6b6f76")


@dataclass(frozen=True)
class Line:
    """F1 against the threshold of one network, or of several seeds."""

    name: str
    curves: Sequence[Sequence[float]]
    """A curve a seed; the mean is drawn, and the range between the seeds shaded."""
    thresholds: Sequence[float] = field(default=())
    """Thresholds chosen on validation slides, marked on the mean curve where there is one."""


Panels = Mapping[str, Sequence[Line]]
"""Lines of F1 against the threshold, by the test slides they are about."""


def network_f1_plot(panels: Panels) -> bytes:
    """The drawing as a PNG; nothing without panels."""
    return drawn(network_f1_figure(panels)) if panels else b""


def network_f1_figure(panels: Panels) -> Figure:
    """A panel for each group of test slides, lines of the same name in the same colour."""
    figure = Figure(figsize=(max(8.0, 5.4 * len(panels)), 4.1), dpi=DPI, layout="constrained")
    names = list(dict.fromkeys(line.name for lines in panels.values() for line in lines))
    for number, (title, lines) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        _style(axes, "detection threshold", "F1", title)
        for line in lines:
            _draw(axes, line, COLOURS[names.index(line.name) % len(COLOURS)])
        axes.set_ylim(0, 1.02)
        axes.set_xlim(0, 1)
    _legend(figure, figure.axes[0], 4)
    return figure


def learning_plot(histories: Mapping[str, pd.DataFrame]) -> bytes:
    """Loss and validation F1 of every network by epoch; the best epoch is marked."""
    if not histories:
        return b""
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
    _legend(figure, left, 8)
    return drawn(figure)


def _draw(axes: Axes, line: Line, colour: str) -> None:
    curves = np.nan_to_num(np.asarray(line.curves, float))
    mean = curves.mean(axis=0)
    if len(curves) > 1:
        axes.fill_between(GRID, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.plot(GRID, mean, color=colour, linewidth=1.8, label=line.name)
    if len(line.thresholds) == 1:
        threshold = float(line.thresholds[0])
        axes.plot(threshold, np.interp(threshold, GRID, mean), "o", color=colour, markersize=5)


def _style(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x, color=INK, fontsize=9)
    axes.set_ylabel(y, color=INK, fontsize=9)
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.grid(color="#e6e8eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)
