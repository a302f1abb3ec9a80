"""Pages about training: a run, and the experiments of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.base.arrays import RGB
from metaphase.base.files import write_bytes, write_text
from metaphase.base.stages import States
from metaphase.reports.pages import TextTable, data_uri, jpeg_uris, render
from metaphase.reports.plots import Panels, learning_plot, network_f1_plot

EXAMPLE_BYTES = 1_500_000


@dataclass(frozen=True, eq=False)
class Examples:
    """Patches of one kind with a caption each."""

    title: str
    note: str
    patches: RGB
    captions: Sequence[str]


def write_run_page(
    path: Path,
    *,
    states: States,
    panels: Panels,
    histories: Mapping[str, pd.DataFrame],
    examples: Sequence[Examples],
    **content: Any,
) -> Path:
    """Write the state of a run as one HTML file that opens offline; parts it has not reached are empty.

    `histories` say what happened epoch by epoch, by network; `content` is `name`, `headline` and `tables`.
    """
    images = iter(jpeg_uris([patch for group in examples for patch in group.patches], EXAMPLE_BYTES))
    page = render(
        "run.html",
        f1=data_uri("image/png", network_f1_plot(panels)),
        learning=data_uri("image/png", learning_plot(histories)),
        examples=[(group, [(next(images), caption) for caption in group.captions]) for group in examples],
        **stage_progress(states),
        **content,
    )
    write_text(path, page)
    return path


def write_experiments_page(folder: Path, states: States, tables: Sequence[TextTable], panels: Panels) -> Path:
    """Write `index.html` and, once a network was tested, `curves.png`."""
    curves = network_f1_plot(panels)
    if curves:
        write_bytes(folder / "curves.png", curves)
    picture = data_uri("image/png", curves)
    write_text(
        folder / "index.html",
        render("experiments.html", tables=tables, curves=picture, **stage_progress(states)),
    )
    return folder / "index.html"


def stage_progress(states: States) -> dict[str, Any]:
    """The stages of a job, and how far all of them are."""
    seconds = [state.seconds or 0 for state in states]
    return {
        "states": states,
        "total": sum(seconds),
        "longest": max(seconds, default=0) or 1,
        "finished": all(state.status in ("done", "kept") for state in states),
    }
