"""The observer study on disk: patches to judge, the key kept apart, the answers read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from PIL import Image

from metaphase.artifacts import atomic_path, write_text
from metaphase.detections import LOOKALIKE, MITOSIS, read_detections
from metaphase.errors import UsageError
from metaphase.evaluation.cohort import Cohort, load_cohort
from metaphase.evaluation.observers import (
    ObserverResult,
    StudyConfig,
    judge,
    majority,
    plan_study,
    read_answers,
)
from metaphase.slides import Slide, open_slide
from metaphase.tables import TableError, named, read_table, require_columns, write_table

PATCHES, ANSWERS, KEY = "patches", "answers.csv", "key.csv"
_README = """Each picture in patches/ shows one object in its middle. Write into answers.csv, beside its
number, `mitosis`, `not` or `unsure`, for every row.
"""


@dataclass(frozen=True)
class ObserverStudy:
    """Where a study was written, and its key."""

    folder: Path
    """For the observer: patches, the answer sheet, what to do."""
    key_path: Path
    """Not for the observer."""
    key: pd.DataFrame


def export_observers(
    detections: str | Path,
    manifest: str | Path,
    output: str | Path,
    *,
    key: str | Path,
    distractors: str | Path | None = None,
    threshold: float = 0.0,
    mpp: float | None = None,
    config: StudyConfig | None = None,
) -> ObserverStudy:
    """Write a blind study of the detections at or above `threshold`.

    Distractors are the points of the table `distractors` (its look-alikes, if it labels any); by default the
    detections below the threshold. `key` is a file outside `output`, which goes to the observer whole.
    """
    config, output, key_path = config or StudyConfig(), Path(output), Path(key)
    if output.resolve() in key_path.resolve().parents:
        raise UsageError(
            "the key would lie in the observer's folder", path=key_path, next_step="keep it somewhere else"
        )
    cohort = load_cohort(manifest, mpp)
    points = cohort.renamed(read_detections(detections, mpp=cohort.mpp_by_name())).of_label(MITOSIS).table
    counted = points["probability"] >= threshold
    others = points[~counted] if distractors is None else _distractors(distractors, cohort)
    planned = plan_study(points[counted], others, config)
    _write_patches(planned, cohort, output / PATCHES, config)
    write_table(output / ANSWERS, pd.DataFrame({"item": planned["item"], "answer": ""}))
    write_text(output / "README.txt", _README)
    write_table(key_path, planned)
    return ObserverStudy(output, key_path, planned)


def read_observers(
    key: str | Path, answers: Sequence[str | Path], *, recall: float | None = None
) -> list[ObserverResult]:
    """The results of each answer sheet, and of the majority where there are several.

    `recall` is that of the detector against a truth, for the alternative F1.
    """
    planned = read_table(key)
    require_columns(planned, ("item", "kind"), key)
    if not answers:
        raise UsageError("no answers are given", next_step="name the observers' answer files")
    names = [Path(path).stem if Path(path).name != ANSWERS else Path(path).parent.name for path in answers]
    sheets = [read_answers(path, planned) for path in answers]
    results = [judge(planned, said, recall, name) for name, said in zip(names, sheets, strict=True)]
    if len(sheets) > 1:
        results.append(judge(planned, majority(sheets), recall, "majority"))
    return results


def _distractors(path: str | Path, cohort: Cohort) -> pd.DataFrame:
    points = cohort.renamed(read_detections(path, mpp=cohort.mpp_by_name()))
    lookalikes = points.of_label(LOOKALIKE).table
    return lookalikes if len(lookalikes) else points.table


def _write_patches(planned: pd.DataFrame, cohort: Cohort, folder: Path, config: StudyConfig) -> None:
    """One PNG an item, slide by slide, so that each slide is opened once."""
    path_of = dict(zip(cohort.manifest["case"], cohort.manifest["he"], strict=True))
    mpp_of = cohort.mpp_by_case()
    absent = [case for case in planned["slide"].unique() if not Path(path_of[case]).is_file()]
    if absent:
        raise TableError(
            f"the slides of {named(absent)} are not there",
            path=cohort.source,
            next_step="correct the column he of the manifest",
        )
    for case, items in planned.groupby("slide", sort=False):
        with open_slide(path_of[case], mpp=mpp_of[str(case)]) as slide:
            for item, x, y in zip(items["item"], items["x"], items["y"], strict=True):
                _write_patch(slide, x, y, folder / f"{item}.png", config)


def _write_patch(slide: Slide, x: float, y: float, path: Path, config: StudyConfig) -> None:
    side = round(config.patch_um / config.mpp)
    half = side / 2 * config.mpp / slide.mpp
    pixels = slide.read(x - half, y - half, side, side, mpp=config.mpp)
    with atomic_path(path) as temporary:
        Image.fromarray(pixels).save(temporary, format="PNG")
