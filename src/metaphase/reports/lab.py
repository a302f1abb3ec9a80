"""The page about a laboratory's own detector: where it stands, who has to do what, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metaphase.base.files import write_text
from metaphase.reports.drawing import data_uri
from metaphase.reports.pages import render
from metaphase.reports.plots import label_curve_plot

CurvePoints = Sequence[tuple[int, float, float, float]]
"""Labels, F1 and its interval."""


@dataclass(frozen=True)
class LabRow:
    """A step."""

    name: str
    about: str
    status: str
    time: str
    what: str
    files: Sequence[str] = ()
    """What it made, by paths from the page."""


@dataclass(frozen=True)
class Round:
    """What people are asked, and how far they are."""

    what: str
    items: int
    answered: int
    divided: int
    """Items answered differently."""
    curve: CurvePoints
    """Empty before enough is answered for one."""


@dataclass(frozen=True)
class LabPage:
    """All that the page shows."""

    name: str
    command: str
    """To give now; empty where all is done."""
    rows: Sequence[LabRow]
    splits: Mapping[str, int]
    """Pairs of slides by split."""
    patients: int
    centres: Sequence[str]
    notes: Sequence[tuple[str, str]]
    """Slides, and what is odd about them."""
    rounds: Sequence[Round]
    model: Sequence[str]
    """What there is of the finished model, a line each."""
    doubts: Sequence[str]
    """What speaks against it."""
    refresh_s: int = 0
    """Seconds after which a browser shows the page anew, while a step is worked on."""


def write_lab_page(path: str | Path, page: LabPage) -> Path:
    """Write the page as one HTML file that opens offline."""
    curves = {one.what: label_curve_plot(one.curve) for one in page.rounds if one.curve}
    pictures = {what: data_uri("image/png", png) for what, png in curves.items()}
    write_text(path, render("lab.html", page=page, pictures=pictures))
    return Path(path)
