"""What a searched slide leaves behind, and whether an earlier run left it already."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.artifacts import write_text
from metaphase.grading import SlideScore
from metaphase.slides import Slide
from metaphase.tissue import TissueMask

SUMMARY = "summary.json"


@dataclass(frozen=True, eq=False)
class Findings:
    """A slide's result in memory, for reports."""

    name: str
    """What tables call the slide."""
    slide: Slide
    tissue: TissueMask
    peaks: pd.DataFrame
    """Every peak above the floor, columns of the detection table; those at the threshold or above count."""
    score: SlideScore
    threshold: float
    stain: str
    warnings: tuple[str, ...]
    timings: dict[str, float]


@dataclass(frozen=True)
class SlideOutcome:
    """A finished slide: its folder, its summary, and whether this run had to work for it."""

    folder: Path
    summary: dict[str, Any]
    resumed: bool = False
    """Found finished, nothing was done."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to beware of."""
        return tuple(self.summary["warnings"])


def finished(folder: Path, job: str) -> SlideOutcome | None:
    """The outcome of an earlier run of the same job whose files are all there."""
    try:
        summary = json.loads((folder / SUMMARY).read_bytes())
        if summary["job"] == job and all((folder / name).is_file() for name in summary["files"]):
            return SlideOutcome(folder, summary, resumed=True)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none, or not one of ours: the slide is searched
    return None


def save_summary(folder: Path, summary: dict[str, Any]) -> SlideOutcome:
    """Write the summary, which marks the slide as finished."""
    write_text(folder / SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n")
    return SlideOutcome(folder, summary)
