"""What happened in a run: a table, a picture, and TensorBoard events where that package is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from metaphase.artifacts import atomic_path


def write_history(folder: Path, history: list[dict[str, float]]) -> None:
    """Write `history.csv` anew, and add the newest epoch to TensorBoard."""
    with atomic_path(folder / "history.csv") as temporary:
        pd.DataFrame(history).to_csv(temporary, index=False)
    if importlib.util.find_spec("tensorboard"):
        _add_to_tensorboard(folder / "tensorboard", history[-1])


def write_curves(folder: Path, history: list[dict[str, float]]) -> None:
    """Write `curves.png`; drawing takes longer than a short epoch does on a GPU."""
    with atomic_path(folder / "curves.png") as temporary:
        draw_curves(pd.DataFrame(history)).savefig(temporary, dpi=120)


def draw_curves(table: pd.DataFrame) -> Figure:
    """Loss, F1 and learning rate by epoch."""
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(9, 3), layout="constrained")
        panels = figure.subplots(1, 3)
        for panel, column in zip(panels, ("loss", "f1", "learning_rate"), strict=True):
            panel.plot(table["epoch"], table[column], marker=".")
            panel.set(xlabel="epoch", title={"f1": "validation F1"}.get(column, column.replace("_", " ")))
        panels[2].set_yscale("log")
        best = table.iloc[int(table["f1"].argmax())]
        panels[1].plot(best["epoch"], best["f1"], "o", color="tab:red")
    return figure


def _add_to_tensorboard(folder: Path, row: dict[str, float]) -> None:
    from torch.utils.tensorboard.writer import SummaryWriter

    epoch = int(row["epoch"])
    with SummaryWriter(str(folder), purge_step=epoch) as writer:
        for name, value in row.items():
            writer.add_scalar(name, value, epoch)
