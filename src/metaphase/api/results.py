"""Results: those of several slides, those that lie on the disk, and what is said while they are made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.analysis.record import SlideResult as Result
from metaphase.analysis.record import load_result as load_slide
from metaphase.analysis.record import load_results as load_slides
from metaphase.analysis.run import SlideOutcome
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.sharing.batch import Batch, BatchWatch, Progress
from metaphase.counting.clinical import counts_table
from metaphase.detections.files import result_folders


class Results(list[Result]):
    """The results of several slides: a list in their order, and tables of all of them."""

    @property
    def counts(self) -> pd.DataFrame:
        """A row for each slide: count, interval, score and where the circle lies."""
        return counts_table([(result.name, result.record) for result in self])

    @property
    def table(self) -> pd.DataFrame:
        """The detections of all slides, one row each; the column `slide` says whose it is."""
        return pd.concat([result.table for result in self], ignore_index=True) if self else pd.DataFrame()

    def _repr_html_(self) -> str:
        return self.counts[["case", "count", "score"]].to_html(index=False)

    def __repr__(self) -> str:
        return "\n".join(f"{result.name}: mitotic count {result.in_force}" for result in self) or "no slides"


def load_result(folder: str | Path) -> Result:
    """The result of one slide, as `detect` gave it.

    Parameters:
        folder: The slide's folder, or one that holds the results of a single slide.

    Returns:
        A `Result`.

    Raises:
        MetaphaseError: The folder holds no finished result, or those of several slides.

    Examples:
        >>> result = mp.load_result("results/one")
        >>> result.count, len(result.table)
        (3, 3)
    """
    found = result_folders(folder)
    if len(found) > 1:
        raise UsageError(
            f"holds the results of {len(found)} slides",
            path=folder,
            next_step=f"name the folder of one, such as {found[0]}, or take all with mp.load_results",
        )
    return load_slide(found[0] if found else folder)


def load_results(*folders: str | Path) -> Results:
    """All results in one or several folders, as `detect` of several slides gave them.

    Parameters:
        folders: Folders of slides, or of cohorts.

    Returns:
        `Results`: a list, whose `counts` is a table of slides and whose `table` has all detections.

    Raises:
        MetaphaseError: A folder holds no results.

    Examples:
        >>> mp.load_results("results").counts[["case", "count"]].to_numpy().tolist()
        [['one', 3], ['two', 1]]
    """
    return Results(load_slides(folders))


class SlideWatch(BatchWatch):
    """Says what is done: to functions, or as a line on stderr."""

    def __init__(self, progress: bool | Progress | None, on_slide: Callable[[Result], object] | None) -> None:
        super().__init__(progress if callable(progress) else None)
        self._line, self._on_slide = progress is True, on_slide

    def started(self, name: str, number: int, total: int) -> Progress:
        """A slide begins."""
        if not self._line:
            return super().started(name, number, total)

        def draw(done: float, whole: float) -> None:
            end = "\n" if done >= whole and number + 1 == total else ""
            line = f"\r{number + 1} of {total}: {name} {done:.1f} of {whole:.1f} mm2"
            print(f"{line:<79}", end=end, file=sys.stderr, flush=True)

        return draw

    def finished(self, name: str, result: object) -> None:  # noqa: ARG002 -- the slide's own name
        """A slide is done."""
        if self._on_slide is not None and isinstance(result, SlideOutcome):
            self._on_slide(read_now(result))


def refuse_failed(batch: Batch[Any], folder: Path) -> None:
    """Name the slides that failed."""
    if batch.failures:
        problems = "; ".join(f"{each.name}: {each.message.rstrip('.')}" for each in batch.failures)
        raise MetaphaseError(
            f"{len(batch.failures)} of {len(batch.outcomes)} slides failed ({problems})",
            path=folder,
            next_step="read its errors.log, leave these slides out and call it again; finished ones are kept",
        )


def read_now(done: SlideOutcome) -> Result:
    """The result; its tables are read now, for a later call may write into the same folder."""
    result = Result(done.folder, done.record)
    _ = result.table, result.candidates
    return result
