"""Writing a simulated cohort: slides, truth and manifest."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase import __version__
from metaphase.artifacts import explained, write_text
from metaphase.errors import OutputError
from metaphase.geometry import Box
from metaphase.simulation.config import MPP, Case, SimulationConfig, cohort_cases
from metaphase.simulation.placement import CHUNK_PX
from metaphase.simulation.rendering import BLOCK_HEIGHT, BLOCK_WIDTH, Frame, case_renderer
from metaphase.simulation.scanner import RGB
from metaphase.simulation.truth import grade, hotspot_count, noted_objects, proliferation_score, truth_table
from metaphase.simulation.workers import rendered_in_order, rendering_processes
from metaphase.slides import PyramidFormat, write_pyramid

Progress = Callable[[str, int, int], None]
"""Called with what is being made, level-0 pixels finished and level-0 pixels in all."""
TILE_PX = BLOCK_HEIGHT
FIELD_STEP_PX = 256
_BYTES_PER_PIXEL = 0.7
"""More than the pyramids of both stains have been seen to need, per level-0 pixel of one slide."""


def simulate_cohort(
    out_folder: str | Path, config: SimulationConfig, *, progress: Progress | None = None
) -> pd.DataFrame:
    """Write a cohort to `out_folder` and return its manifest.

    A case's folder appears only when all its files are complete; a case that is already there, made
    with the same settings, is kept. The manifest is written last.
    """
    out = Path(out_folder)
    cases = cohort_cases(config)
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
    report = _Reporter(progress, len(cases) * 2 * config.width * config.height)
    with rendering_processes(config.workers) as executor:
        rows = [_finished_case(out, case, executor, report) for case in cases]
    manifest = pd.DataFrame(rows)
    write_text(out / "manifest.csv", manifest.to_csv(index=False, lineterminator="\n"))
    return manifest


class _Reporter:
    """Counts finished pixels and passes them on."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def add(self, what: str, pixels: int) -> None:
        self.done += pixels
        if self.progress is not None:
            self.progress(what, self.done, self.total)


def _finished_case(out: Path, case: Case, executor: Executor | None, report: _Reporter) -> dict[str, Any]:
    """The manifest row of a case, made now unless it is there already."""
    folder, record = out / case.name, _record(case)
    if _is_complete(folder, record):
        report.add(case.name, 2 * case.width * case.height)
    else:
        _write_case(folder, case, record, executor, report)
    truth = pd.read_parquet(folder / "truth.parquet")
    count = hotspot_count(truth)
    return {
        "case": case.name,
        "he": f"{case.name}/he.tif",
        "phh3": f"{case.name}/phh3.tif",
        "centre": case.laboratory.name,
        "split": case.split,
        "grade": grade(count),
        "proliferation": proliferation_score(case, count),
    }


def _record(case: Case) -> dict[str, Any]:
    """All that decides the case's files, to tell whether a folder holds this very case."""
    record = dataclasses.asdict(case)
    record["config"].pop("workers")
    record["version"] = __version__
    loaded: dict[str, Any] = json.loads(json.dumps(record))
    return loaded


def _is_complete(folder: Path, record: dict[str, Any]) -> bool:
    if not folder.exists():
        return False
    try:
        return bool(json.loads((folder / "case.json").read_text()) == record)
    except (OSError, ValueError) as error:
        raise OutputError(
            "exists and is not a simulated case", path=folder, next_step="move it, or choose another folder"
        ) from error


def _write_case(
    folder: Path, case: Case, record: dict[str, Any], executor: Executor | None, report: _Reporter
) -> None:
    with explained(folder):
        _check_space(folder, case)
        with tempfile.TemporaryDirectory(prefix=f".{case.name}.", dir=folder.parent) as name:
            temporary = Path(name) / case.name
            temporary.mkdir()
            _write_truth(temporary, case, executor)
            for frame in ("he", "phh3"):
                _write_slide(temporary / f"{frame}.tif", case, frame, executor, report)
            (temporary / "case.json").write_text(json.dumps(record, indent=1) + "\n")
            if folder.exists():
                folder.rename(Path(name) / "old")
            temporary.rename(folder)


def _check_space(folder: Path, case: Case) -> None:
    needed = 2 * _BYTES_PER_PIXEL * case.width * case.height
    free = shutil.disk_usage(folder.parent).free
    if free < needed:
        raise OutputError(
            f"the case needs up to {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free",
            path=folder,
            next_step="free some space, or choose a folder on another disk",
        )


def _write_truth(folder: Path, case: Case, executor: Executor | None) -> None:
    rows = range(-(-case.height // CHUNK_PX))
    truth = truth_table(
        case, np.concatenate(list(rendered_in_order(executor, partial(noted_objects, case), rows)))
    )
    truth.to_parquet(folder / "truth.parquet", index=False)
    truth.to_csv(folder / "truth.csv", index=False, lineterminator="\n")
    (folder / "displacement.json").write_text(json.dumps(case.displacement.to_json(), indent=1) + "\n")
    field = case.displacement.sampled(case.width, case.height, FIELD_STEP_PX)
    np.savez_compressed(folder / "displacement.npz", phh3_minus_he_px=field, step_px=FIELD_STEP_PX)


def _write_slide(path: Path, case: Case, frame: Frame, executor: Executor | None, report: _Reporter) -> None:
    form = PyramidFormat(MPP, TILE_PX, case.laboratory.scanner.jpeg_quality)
    write_pyramid(path, _tiles(case, frame, executor, report), case.width, case.height, form)


def _tiles(case: Case, frame: Frame, executor: Executor | None, report: _Reporter) -> Iterator[RGB]:
    """Level-0 tiles in row-major order."""
    blocks = (
        Box(x, y, min(BLOCK_WIDTH, case.width - x), min(BLOCK_HEIGHT, case.height - y))
        for y in range(0, case.height, BLOCK_HEIGHT)
        for x in range(0, case.width, BLOCK_WIDTH)
    )
    for pixels in rendered_in_order(executor, partial(_rendered, case, frame), blocks):
        for left in range(0, pixels.shape[1], TILE_PX):
            yield pixels[:, left : left + TILE_PX]
        report.add(f"{case.name} {frame}", pixels.shape[0] * pixels.shape[1])


def _rendered(case: Case, frame: Frame, block: Box) -> RGB:
    return case_renderer(case).region(frame, block.x, block.y, block.width, block.height)
