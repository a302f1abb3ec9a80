"""The candidate stage of one case: slide in; table, picture and sidecar out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.errors import UsageError
from metaphase.parallel import available_cores
from metaphase.phh3.candidates import Candidates, Progress, find_candidates
from metaphase.phh3.config import CandidateConfig
from metaphase.phh3.errors import Phh3Error
from metaphase.phh3.picture import save_evidence
from metaphase.phh3.survey import BrownThreshold, Survey, survey_slide
from metaphase.records import Record, facts_of, file_fingerprint, plain_settings
from metaphase.slides import Slide, open_slide
from metaphase.tables import read_table, write_table

TABLE, NOTE, PICTURE = "candidates.parquet", "candidates.json", "candidates.png"
FORMAT = 1
SURE = 0.9
"""A guess of the stain that is at least this sure stops the search."""
BROWN_EVERYWHERE = 0.08
"""Brown share of the tissue from which on the slide is brown everywhere; good slides have below 0.03."""
BROWN_BACKGROUND = 0.3
"""Median DAB of such a slide; good slides have below 0.1."""


@dataclass(frozen=True)
class SearchedCase:
    """What came out for a case."""

    table: pd.DataFrame
    picture: Path
    warnings: tuple[str, ...]
    reused: bool
    """Whether an earlier run had made it."""


def search_case(
    slide_path: str | Path,
    folder: str | Path,
    config: CandidateConfig,
    *,
    mpp: float | None = None,
    force: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> SearchedCase:
    """Find the candidates of a PHH3 slide into `folder`, unless they are there, made from the same.

    A slide without tissue, or one that is surely H&E, is a `Phh3Error` that names the picture of why; `force`
    searches a seeming H&E slide all the same.
    """
    folder = Path(folder)
    inputs = {"slide": file_fingerprint(slide_path), "mpp": str(mpp)}
    record = Record("PHH3 candidates", {"format": FORMAT} | plain_settings(config), inputs)
    if record.matches(folder / NOTE) and (folder / TABLE).is_file():
        warnings = tuple(facts_of(folder / NOTE)["warnings"])
        return SearchedCase(read_table(folder / TABLE), folder / PICTURE, warnings, reused=True)
    with open_slide(slide_path, mpp=mpp) as slide:
        survey = survey_slide(slide, config, threads or available_cores())
        threshold = _usable_threshold(slide, survey, folder / PICTURE, force=force)
        found = find_candidates(slide, survey.tissue, threshold, config, threads=threads, progress=progress)
        save_evidence(folder / PICTURE, slide, survey, found.table)
    warnings = find_warnings(survey, found, folder / PICTURE)
    with record.noted(folder / TABLE, _facts(survey, found, warnings), note=folder / NOTE):
        write_table(folder / TABLE, found.table)
    return SearchedCase(found.table, folder / PICTURE, warnings, reused=False)


def read_candidates(folder: str | Path) -> pd.DataFrame:
    """The finished candidates of a case's folder."""
    folder = Path(folder)
    if not (folder / NOTE).is_file():
        raise Phh3Error(
            "has no finished candidates", path=folder, next_step="run metaphase phh3 candidates first"
        )
    return read_table(folder / TABLE)


def case_folder(workspace: str | Path, case: str) -> Path:
    """The folder of a case; a case whose name cannot be a folder's is a `UsageError`."""
    if case in ("", ".", "..") or Path(case).name != case or "\\" in case:
        raise UsageError(
            f"the case {case!r} cannot name a folder",
            next_step="use letters, digits, dots, - and _ in `case`",
        )
    return Path(workspace) / case


def find_warnings(survey: Survey, found: Candidates, picture: Path) -> tuple[str, ...]:
    """What a user should look at before going on."""
    warnings = []
    threshold = survey.threshold
    if survey.stain.name != "DAB":
        doubt = f"{survey.stain.confidence:.0%} sure" if survey.stain.confidence else "no stain recognised"
        warnings.append(f"the stain looks like {survey.stain.name} ({doubt}), not like PHH3: see {picture}")
    if threshold and (threshold.brown_share > BROWN_EVERYWHERE or threshold.background > BROWN_BACKGROUND):
        warnings.append(
            f"brown everywhere: {threshold.brown_share:.0%} of the tissue, median DAB "
            f"{threshold.background:.2f}; mitoses may hide in it: see {picture}"
        )
    if not len(found.table):
        warnings.append(f"no brown object of a mitosis's size: see {picture}")
    return tuple(warnings)


def _usable_threshold(slide: Slide, survey: Survey, picture: Path, *, force: bool) -> BrownThreshold:
    """The threshold; without tissue or with the wrong stain, a picture and an error."""
    if survey.threshold is None:
        save_evidence(picture, slide, survey)
        raise Phh3Error(
            "no stained tissue to search",
            path=slide.info.path,
            next_step=f"see {picture}; is the slide blank, or another one?",
        )
    if survey.stain.name == "H&E" and survey.stain.confidence >= SURE and not force:
        save_evidence(picture, slide, survey)
        raise Phh3Error(
            f"looks like H&E ({survey.stain.confidence:.0%} sure), not like PHH3",
            path=slide.info.path,
            next_step=f"see {picture}; correct the manifest, or search it all the same with --force",
        )
    return survey.threshold


def _facts(survey: Survey, found: Candidates, warnings: tuple[str, ...]) -> dict[str, Any]:
    counts = {"too_small": found.too_small, "too_large": found.too_large, "too_faint": found.too_faint}
    return {
        "threshold": survey.threshold.to_dict() if survey.threshold else None,
        "stain": asdict(survey.stain),
        "tissue_mm2": survey.tissue.area_mm2,
        "candidates": len(found.table),
        "dropped": counts,
        "warnings": list(warnings),
    }
