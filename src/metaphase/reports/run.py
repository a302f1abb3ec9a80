"""Pages about training: a run, the experiments of the paper, and a laboratory's own detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.base.arrays import RGB
from metaphase.base.files import write_bytes, write_text
from metaphase.reports.pages import TextTable, data_uri, duration, jpeg_uris, render
from metaphase.reports.plots import Line, label_curve_plot, learning_plot, network_f1_plot

EXAMPLE_BYTES = 1_500_000
Panels = Mapping[str, Sequence[Line]]
"""Lines of F1 against the threshold, by the test slides they are about."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Patches of one kind with a caption each."""

    title: str
    note: str
    patches: RGB
    captions: tuple[str, ...]


@dataclass(frozen=True)
class StageRow:
    """A stage of a job as a page shows it."""

    name: str
    about: str
    status: str
    seconds: float | None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunReport:
    """All that the page of a run shows; parts that the run has not reached are empty."""

    name: str
    stages: Sequence[StageRow]
    headline: Sequence[tuple[str, str]]
    tables: Sequence[TextTable]
    panels: Panels
    grid: Sequence[float]
    histories: Mapping[str, pd.DataFrame]
    """What happened epoch by epoch, by network."""
    examples: Sequence[Examples]


@dataclass(frozen=True)
class ExperimentsReport:
    """All that the page of the experiments shows."""

    stages: Sequence[StageRow]
    tables: Sequence[TextTable]
    panels: Panels
    grid: Sequence[float]


def write_run_page(path: str | Path, report: RunReport) -> Path:
    """Write what a run made so far as one HTML file that opens offline."""
    write_text(path, run_page(report))
    return Path(path)


def run_page(report: RunReport) -> str:
    """The page as HTML text."""
    f1 = network_f1_plot(report.panels, report.grid) if report.panels else b""
    learning = learning_plot(report.histories) if report.histories else b""
    patches = [patch for group in report.examples for patch in group.patches]
    images = iter(jpeg_uris(patches, EXAMPLE_BYTES))
    examples = [
        {
            "title": group.title,
            "note": group.note,
            "examples": [{"image": next(images), "caption": caption} for caption in group.captions],
        }
        for group in report.examples
    ]
    return render(
        "run.html",
        name=report.name,
        headline=report.headline,
        tables=report.tables,
        f1=data_uri("image/png", f1) if f1 else "",
        learning=data_uri("image/png", learning) if learning else "",
        examples=examples,
        **_progress(report.stages),
    )


def write_experiments_page(folder: str | Path, report: ExperimentsReport) -> Path:
    """Write `index.html` and, once a network was tested, `curves.png`."""
    folder = Path(folder)
    curves = network_f1_plot(report.panels, report.grid) if report.panels else b""
    if curves:
        write_bytes(folder / "curves.png", curves)
    page = render(
        "experiments.html",
        tables=report.tables,
        curves=data_uri("image/png", curves) if curves else "",
        **_progress(report.stages),
    )
    write_text(folder / "index.html", page)
    return folder / "index.html"


def _progress(stages: Sequence[StageRow]) -> dict[str, Any]:
    longest = max((stage.seconds or 0 for stage in stages), default=0) or 1
    rows = [
        {
            "name": stage.name,
            "about": stage.about,
            "status": {"kept": "done"}.get(stage.status, stage.status),
            "time": duration(stage.seconds),
            "share": 100 * (stage.seconds or 0) / longest,
            "facts": ", ".join(
                f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
                for name, value in stage.facts.items()
            ),
        }
        for stage in stages
    ]
    return {
        "stages": rows,
        "total": duration(sum(stage.seconds or 0 for stage in stages)),
        "finished": all(stage.status in ("done", "kept") for stage in stages),
    }


# ---- a laboratory's own detector: where it stands, who has to do what, and what came of it ----

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
    warnings: Sequence[str]
    """What speaks against it."""
    refresh_s: int = 0
    """Seconds after which a browser shows the page anew, while a step is worked on."""


def write_lab_page(path: str | Path, page: LabPage) -> Path:
    """Write the page as one HTML file that opens offline."""
    curves = {one.what: label_curve_plot(one.curve) for one in page.rounds if one.curve}
    pictures = {what: data_uri("image/png", png) for what, png in curves.items()}
    write_text(path, render("lab.html", page=page, pictures=pictures))
    return Path(path)
