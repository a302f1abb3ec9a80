"""Searching validation and test slides with the networks of a run; finished slides are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.inference import Engine, EngineConfig, detect_slide
from metaphase.networks import load_model
from metaphase.parallel import available_cores, ordered_map
from metaphase.pipeline.stages import Report
from metaphase.pipeline.training.config import EvaluationSection
from metaphase.records import Record, file_fingerprint, joint_fingerprint
from metaphase.slides import ArraySlide, Slide, open_slide
from metaphase.tables import read_table, stated_number, write_table
from metaphase.tissue import TissueMask, find_tissue

Row = dict[Any, Any]
Detections = dict[str, pd.DataFrame]
"""Detections `x, y, probability` of each case."""


@dataclass(frozen=True)
class Searcher:
    """One network, or several whose probabilities are averaged, ready to search slides."""

    engine: Engine
    mpp: float
    config: EvaluationSection

    def __call__(self, slide: Slide, tissue: TissueMask) -> pd.DataFrame:
        """Detections of a slide's tissue, the most probable first."""
        side_px = max(slide.width, slide.height) * slide.mpp / self.mpp
        tile_px = even_tile_px(side_px, self.engine.tile_px)
        found = detect_slide(
            self.engine, slide, self.config.peaks, mpp=self.mpp, tile_px=tile_px, mask=tissue.grid
        )
        return pd.DataFrame({"x": found.x, "y": found.y, "probability": found.probability})


def even_tile_px(side_px: float, best_px: int) -> int:
    """About `best_px`, but such that tiles, which all have one size, cover a small slide without much waste.

    >>> even_tile_px(2048, 1992), even_tile_px(2048, 1016), even_tile_px(640, 1992)
    (2048, 1024, 640)
    """
    tiles = max(1, math.ceil(side_px / best_px - 0.1))
    return 4 * math.ceil(side_px / tiles / 4)


def searcher(models: Sequence[Path], config: EvaluationSection, device: str | None) -> Searcher:
    """Load networks for searching."""
    loaded = [load_model(model) for model in models]
    engine = Engine([network for network, _ in loaded], EngineConfig(device=device or "auto"))
    return Searcher(engine, loaded[0][1].mpp, config)


@dataclass(frozen=True)
class LoadedSlide:
    """A slide held in memory, with its tissue; for small slides that many networks search."""

    case: str
    slide: Slide
    tissue: TissueMask


def load_slides(cohort: pd.DataFrame, splits: Sequence[str]) -> list[LoadedSlide]:
    """Decode the slides of some splits once."""
    rows = cohort[cohort["split"].isin(splits)].to_dict("records")
    threads = available_cores()
    return list(ordered_map(_loaded, rows, threads=threads, ahead=threads))


@dataclass(frozen=True)
class SlideSearch:
    """Searching the slides of a cohort from disk; a table of detections a slide and network is kept."""

    folder: Path
    config: EvaluationSection
    device: str | None = None

    def search(
        self, name: str, models: Sequence[Path], cohort: pd.DataFrame, split: str, report: Report
    ) -> Detections:
        """Detections of a network, or of the mean of several, on the slides of a split."""
        rows = cohort[cohort["split"] == split].to_dict("records")
        identity, search = _identity(models), None
        tables = {}
        for number, row in enumerate(rows):
            report(f"{name} on {split} slides", number, len(rows))
            path = self.folder / name / f"{row['case']}.parquet"
            record = self._record(row, identity)
            if not record.is_done(path):
                search = search or searcher(models, self.config, self.device)
                with opened_row(row) as slide, record.noted(path):
                    write_table(path, search(slide, find_tissue(slide)))
            tables[str(row["case"])] = read_table(path)
        return tables

    def _record(self, row: Row, identity: str) -> Record:
        slide = file_fingerprint(str(row["he"]))
        return Record("detections", asdict(self.config), {"networks": identity, "slide": slide})


def _identity(models: Sequence[Path]) -> str:
    return joint_fingerprint(load_model(model)[1].weights_sha256 for model in models)


def _loaded(row: Row) -> LoadedSlide:
    with opened_row(row) as slide:
        held = ArraySlide(slide.read(0, 0, slide.width, slide.height, slide.mpp), slide.mpp)
    return LoadedSlide(str(row["case"]), held, find_tissue(held))


def opened_row(row: Row) -> Slide:
    """The H&E slide of a row of the cohort, with the resolution that the manifest gives."""
    return open_slide(Path(str(row["he"])), mpp=stated_number(row, "mpp"))
