"""Writing a simulated cohort: slides, truth and manifest, in several processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.base.arrays import RGB, Box, Mask
from metaphase.base.errors import MetaphaseError, OutputError
from metaphase.base.files import explained
from metaphase.base.parallel import end_with_parent, in_order, worker_processes
from metaphase.base.provenance import Ingredients
from metaphase.base.tables import write_table
from metaphase.simulation.architecture import Architecture
from metaphase.simulation.config import MPP, Case, SimulationConfig, cohort_cases
from metaphase.simulation.placement import (
    ARTEFACTS,
    CHUNK_PX,
    LOOKALIKES,
    MITOSES,
    Kind,
    Placement,
    centres_of,
)
from metaphase.simulation.randomness import generator
from metaphase.simulation.rendering import BLOCK_HEIGHT, BLOCK_WIDTH, Frame, case_renderer
from metaphase.slides.writer import PyramidFormat, write_pyramid

# ---- the exact truth of a case: every object worth knowing, in both frames, and the clinical numbers ----

Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""Applies a function to jobs and gives the results in their order, as `map` does."""
HOTSPOT_MM2 = 2.0
GRADE_LIMITS = (6, 20)
"""Counts up to the first limit are grade 1, up to the second grade 2, above it grade 3."""
_CATEGORIES = (
    dict.fromkeys(MITOSES, "mitosis")
    | dict.fromkeys(LOOKALIKES, "lookalike")
    | {Kind.BROWN_NUCLEUS: "brown_nucleus"}
    | dict.fromkeys(ARTEFACTS, "artefact")
)
"""Of objects worth a row of truth."""


def case_truth(case: Case, run: Run = map) -> pd.DataFrame:
    """Every mitosis, look-alike, brown nucleus and artefact of a case, one row each, computed by `run`.

    `x_he, y_he` and `x_phh3, y_phh3` are level-0 pixels of the two slides, joined exactly by the case's
    displacement; `in_phh3` tells whether the PHH3 slide reaches that far.
    """
    rows = range(-(-case.height // CHUNK_PX))
    objects = np.concatenate([*run(partial(noted_objects, case), rows)])
    he = centres_of(objects)
    phh3 = case.displacement.he_to_phh3(he)
    inside = ((phh3 >= 0) & (phh3 < (case.width, case.height))).all(axis=1)
    kinds = [Kind(kind) for kind in objects["kind"]]
    table = pd.DataFrame(
        {
            "case": case.name,
            "category": [_CATEGORIES[kind] for kind in kinds],
            "kind": [kind.name.lower() for kind in kinds],
            "atypical": objects["atypical"],
            "phh3_positive": objects["positive"] | (objects["kind"] == Kind.PIGMENT),
            "x_he": he[:, 0],
            "y_he": he[:, 1],
            "x_phh3": phh3[:, 0],
            "y_phh3": phh3[:, 1],
            "in_phh3": inside,
            "radius_um": objects["radius"] * np.float32(MPP),
        }
    )
    table = table.sort_values(["y_he", "x_he"], kind="stable", ignore_index=True)
    table.insert(1, "id", np.arange(len(table)))
    return table


def noted_objects(case: Case, chunk_row: int) -> npt.NDArray[Any]:
    """The objects worth a row of truth in one row of chunks, inside the slide."""
    placement = Placement(case, Architecture(case))
    columns = range(-(-case.width // CHUNK_PX))
    objects = np.concatenate([placement.chunk(column, chunk_row) for column in columns])
    inside = (objects["x"] < case.width) & (objects["y"] < case.height)
    return objects[inside & np.isin(objects["kind"], list(_CATEGORIES))]


def hotspot_count(truth: pd.DataFrame) -> int:
    """The most mitoses within a circle of 2 mm2 around any mitosis of the H&E slide."""
    points = truth.loc[truth["category"] == "mitosis", ["x_he", "y_he"]].to_numpy() * (MPP / 1000)
    if not len(points):
        return 0
    tree = cKDTree(points)
    near = tree.query_ball_point(points, np.sqrt(HOTSPOT_MM2 / np.pi), return_length=True)
    return int(near.max())


def tissue_truth(case: Case, mpp: float = 4.0) -> Mask:
    """Where the H&E slide shows tissue, as a mask at `mpp` micrometres per pixel."""
    return Architecture(case).tissue_over(Box(0, 0, case.width, case.height), mpp / MPP) > 0


# ---- rendering in several processes ----

AHEAD = 7
"""Results that may wait to be taken."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextlib.contextmanager
def rendering_processes(workers: int) -> Iterator[Executor | None]:
    """An executor of single-threaded processes, or None where one process is enough.

    Matrix libraries read their thread count from the environment when they are loaded, so the
    children's environment is set while they start; the caller's is as before afterwards.
    """
    if workers == 1:
        yield None
        return
    before = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        with worker_processes(workers, _single_thread) as executor:
            yield executor
    except BrokenProcessPool as error:
        raise MetaphaseError(
            "a rendering process died", next_step="check the memory, or run with workers = 1"
        ) from error
    finally:
        for name in _THREAD_VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(before)


def _single_thread() -> None:
    end_with_parent()
    cv2.setNumThreads(1)


# ---- slides, truth and manifest on disk ----

Progress = Callable[[str, int, int], None]
"""Called with what is being made, level-0 pixels finished and level-0 pixels in all."""
BOTH: tuple[Frame, ...] = ("he", "phh3")
TILE_PX = BLOCK_HEIGHT
FIELD_STEP_PX = 256
NOTE = "case.json"
_BYTES_PER_PIXEL = 0.7
"""More than the pyramid of either stain has been seen to need, per level-0 pixel."""


@dataclass(frozen=True)
class CaseSimulated(Ingredients, stage="simulated case"):
    """What decides a case's files."""

    case: Case
    frames: tuple[Frame, ...]


def simulate_cohort(
    out_folder: str | Path,
    config: SimulationConfig,
    *,
    frames: tuple[Frame, ...] = BOTH,
    progress: Progress | None = None,
    replace: bool = False,
) -> pd.DataFrame:
    """Write a cohort, slides of all `frames`, to `out_folder` and return its manifest.

    A case's folder appears only when all its files are complete; a case that is already there, made
    with the same settings, is kept; one of other settings is an error, unless `replace`. The manifest is
    written last. Where there are enough cases, each process makes whole ones; else all share the blocks of
    one. Files do not depend on it.
    """
    out, cases = Path(out_folder), cohort_cases(config)
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
    left = [case for case in cases if not _is_complete(out / case.name, CaseSimulated(case, frames), replace)]
    finished, total = 0, len(cases) * len(frames) * config.width * config.height

    def report(what: str, pixels: int) -> None:
        nonlocal finished
        finished += pixels
        if progress is not None:
            progress(what, finished, total)

    report("slides", (len(cases) - len(left)) * len(frames) * config.width * config.height)
    with rendering_processes(config.workers if left else 1) as executor:
        run: Run = map if executor is None else partial(in_order, executor, ahead=AHEAD)
        if executor is not None and len(left) >= config.workers:
            jobs = [executor.submit(_write_case, out / case.name, case, frames, threads=1) for case in left]
            for job, case in zip(jobs, left, strict=True):
                job.result()
                report(case.name, len(frames) * case.width * case.height)
        else:
            for case in left:
                _write_case(out / case.name, case, frames, run, report)
    manifest = pd.DataFrame([_row(out, case, frames) for case in cases])
    write_table(out / "manifest.csv", manifest)
    return manifest


def _row(out: Path, case: Case, frames: tuple[Frame, ...]) -> dict[str, Any]:
    """The manifest row of a finished case."""
    from metaphase.counting.specimen import grade_of  # not for the rendering processes, which start often

    count = hotspot_count(pd.read_parquet(out / case.name / "truth.parquet"))
    # A stand-in for a gene-expression score: it follows the logarithm of the count, noisily.
    score = np.log2(1 + count) / 3 - 1 + generator(case.seed, 60).normal(0, 0.35)
    return {
        "case": case.name,
        **{frame: f"{case.name}/{frame}.tif" if frame in frames else "" for frame in BOTH},
        "laboratory": case.laboratory.name,
        "split": case.split,
        "grade": int(grade_of(count, *GRADE_LIMITS)),
        "proliferation": round(float(score), 4),
    }


def _is_complete(folder: Path, made_from: CaseSimulated, replace: bool) -> bool:
    """Whether the case is there; a folder that is none of ours is an error, and left alone. So is a case of
    other settings, unless it may be replaced."""
    if not folder.exists():
        return False
    if not (folder / NOTE).is_file():
        raise OutputError(
            "exists and is not a simulated case", path=folder, next_step="move it, or choose another folder"
        )
    there = all((folder / f"{frame}.tif").is_file() for frame in made_from.frames)
    reason = made_from.why(folder / NOTE)
    choices: tuple[tuple[Frame, ...], ...] = (("he",), ("phh3",), BOTH)
    known = any(CaseSimulated(made_from.case, frames).matches(folder / NOTE) for frames in choices)
    if reason and not known and not replace:
        raise OutputError(
            f"was simulated with other settings ({reason})",
            path=folder,
            next_step="choose another folder, or remove this one",
        )
    return there and not reason


def _write_case(
    folder: Path,
    case: Case,
    frames: tuple[Frame, ...],
    run: Run = map,
    report: Callable[[str, int], None] | None = None,
    threads: int | None = None,
) -> None:
    with explained(folder):
        needed = len(frames) * _BYTES_PER_PIXEL * case.width * case.height
        free = shutil.disk_usage(folder.parent).free
        if free < needed:
            raise OutputError(
                f"the case needs up to {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free",
                path=folder,
                next_step="free some space, or choose a folder on another disk",
            )
        with tempfile.TemporaryDirectory(prefix=f".{case.name}.", dir=folder.parent) as name:
            temporary = Path(name) / case.name
            temporary.mkdir()
            _write_truth(temporary, case, run)
            for frame in frames:
                form = PyramidFormat(MPP, TILE_PX, case.laboratory.scanner.jpeg_quality)
                tiles = _tiles(case, frame, run, report)
                path = temporary / f"{frame}.tif"
                write_pyramid(path, tiles, case.width, case.height, form, threads=threads)
            CaseSimulated(case, frames).write(temporary / NOTE)
            if folder.exists():
                folder.rename(Path(name) / "old")
            temporary.rename(folder)


def _write_truth(folder: Path, case: Case, run: Run) -> None:
    """The table of objects, and the map between the two slides."""
    truth = case_truth(case, run)
    truth.to_parquet(folder / "truth.parquet", index=False)
    truth.to_csv(folder / "truth.csv", index=False, lineterminator="\n")
    displacement = json.dumps(asdict(case.displacement), indent=1) + "\n"
    (folder / "displacement.json").write_text(displacement)
    field = case.displacement.sample(case.width, case.height, FIELD_STEP_PX)
    np.savez_compressed(folder / "displacement.npz", phh3_minus_he_px=field, step_px=FIELD_STEP_PX)


def _tiles(case: Case, frame: Frame, run: Run, report: Callable[[str, int], None] | None) -> Iterator[RGB]:
    """Level-0 tiles in row-major order."""
    blocks = (
        Box(x, y, min(BLOCK_WIDTH, case.width - x), min(BLOCK_HEIGHT, case.height - y))
        for y in range(0, case.height, BLOCK_HEIGHT)
        for x in range(0, case.width, BLOCK_WIDTH)
    )
    for pixels in run(partial(_render, case, frame), blocks):
        for left in range(0, pixels.shape[1], TILE_PX):
            yield pixels[:, left : left + TILE_PX]
        if report is not None:
            report(f"{case.name} {frame}", pixels.shape[0] * pixels.shape[1])


def _render(case: Case, frame: Frame, block: Box) -> RGB:
    return case_renderer(case).region(frame, block.x, block.y, block.width, block.height)
