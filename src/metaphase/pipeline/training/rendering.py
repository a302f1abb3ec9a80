"""A simulated cohort for training: H&E slides only, several cases at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
import pandas as pd

from metaphase.pipeline.stages import Report
from metaphase.records import Record
from metaphase.simulation import Case, CaseRenderer, SimulationConfig, case_truth, cohort_cases
from metaphase.simulation.config import MPP
from metaphase.slides import RGB, PyramidFormat, write_pyramid
from metaphase.tables import write_table

TILE_PX = 512
NOTE, SLIDE, TRUTH = "case.json", "he.tif", "truth.parquet"


def render_cohort(folder: Path, config: SimulationConfig, report: Report) -> pd.DataFrame:
    """Write `manifest.csv` and a folder a case with its H&E slide and truth; finished cases are kept.

    Slides and truth are those of `metaphase simulate` with the same settings, without the PHH3 slides.
    """
    cases = cohort_cases(config)
    left = [case for case in cases if not _is_there(folder / case.name, case)]
    report("slides", len(cases) - len(left), len(cases))
    for number, _ in enumerate(_rendered(folder, left, config.workers), start=len(cases) - len(left) + 1):
        report("slides", number, len(cases))
    manifest = pd.DataFrame([_row(case) for case in cases])
    write_table(folder / "manifest.csv", manifest)
    return manifest


def _rendered(folder: Path, cases: list[Case], workers: int) -> Iterator[None]:
    if workers == 1 or len(cases) < 2:
        for case in cases:
            write_case(folder / case.name, case)
            yield
        return
    processes, context = min(workers, len(cases)), get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=cv2.setNumThreads, initargs=(1,)) as pool:
        for job in as_completed([pool.submit(write_case, folder / case.name, case) for case in cases]):
            job.result()
            yield


def write_case(folder: Path, case: Case) -> None:
    """Write the slide, the truth and, last, the note that says that both are complete."""
    form = PyramidFormat(MPP, TILE_PX, case.laboratory.scanner.jpeg_quality)
    with _record(case).noted(folder / SLIDE, note=folder / NOTE):
        write_pyramid(folder / SLIDE, _tiles(case), case.width, case.height, form, threads=1)
        write_table(folder / TRUTH, case_truth(case))


def _tiles(case: Case) -> Iterator[RGB]:
    """Level-0 tiles, row by row."""
    renderer = CaseRenderer(case)
    for y in range(0, case.height, TILE_PX):
        band = renderer.region("he", 0, y, case.width, min(TILE_PX, case.height - y))
        yield from np.split(band, range(TILE_PX, case.width, TILE_PX), axis=1)


def _row(case: Case) -> dict[str, str]:
    paths = {"he": f"{case.name}/{SLIDE}", "phh3": ""}
    return {"case": case.name, **paths, "centre": case.laboratory.name, "split": case.split}


def _record(case: Case) -> Record:
    settings = dataclasses.asdict(case)
    settings["config"].pop("workers")
    return Record("simulated slide", settings, {})


def _is_there(folder: Path, case: Case) -> bool:
    return _record(case).matches(folder / NOTE) and (folder / SLIDE).is_file()
