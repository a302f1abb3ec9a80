"""A case's folder: candidates, what the networks say of them, and its mitoses."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metaphase.base.errors import ResultWarning, ResultWarnings, UsageError, read_warnings
from metaphase.base.files import atomic_path
from metaphase.base.parallel import available_cores
from metaphase.base.provenance import FileContent, Ingredients, facts_of
from metaphase.base.sharing.batch import Batch, BatchWatch, Progress, Workers, run_batch
from metaphase.base.tables import case_folder, phh3_mpp, read_manifest, read_table, write_table
from metaphase.detections.table import MITOSIS, detection_set
from metaphase.images.tissue.finding import draw_overlay
from metaphase.labels.phh3.candidates import (
    UNIT,
    BrownCandidates,
    BrownConfig,
    BrownScale,
    BrownThreshold,
    Phh3Error,
    Survey,
    amounts,
    find_brown_candidates,
    survey_slide,
)
from metaphase.slides.contract import Slide
from metaphase.slides.opening import SlideSource

# ---- a picture of why ----

THUMBNAIL_PX = 1000
MAX_DOTS = 20_000
"""Of more candidates an even share is drawn."""
FARTHEST_DAB = 3.0
"""The histogram ends here; darker pixels are counted in its last bar."""


def save_evidence(path: Path, slide: Slide, survey: Survey, table: pd.DataFrame | None = None) -> None:
    """The slide, outlined and with its candidates where these are known, beside the histogram of its DAB."""
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(12, 5.5))
        figure.subplots_adjust(left=0.01, right=0.99, bottom=0.1, top=0.87, wspace=0.15)
        overview, histogram = figure.subplots(1, 2)
        _draw_slide(overview, slide, survey, table)
        _draw_histogram(histogram, survey)
        sure = f" ({survey.stain.confidence:.0%} sure)" if survey.stain.confidence else ""
        figure.suptitle(f"{slide.name}: the stain looks like {survey.stain.name}{sure}")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=110)


def _draw_slide(axes: Axes, slide: Slide, survey: Survey, table: pd.DataFrame | None) -> None:
    bounds = slide.bounds
    axes.imshow(
        draw_overlay(slide, survey.tissue, THUMBNAIL_PX),
        extent=(bounds.x, bounds.right, bounds.bottom, bounds.y),
    )
    axes.set_axis_off()
    found = "not searched"
    if table is not None:
        dots = table.iloc[:: -(-len(table) // MAX_DOTS) or 1]
        axes.scatter(dots["x"], dots["y"], s=9, facecolors="none", edgecolors="#d00040", linewidths=0.6)
        found = f"{len(table):,} candidates"
    axes.set_title(f"tissue {survey.tissue.area_mm2:.2f} mm$^2$, {found}")


def _draw_histogram(axes: Axes, survey: Survey) -> None:
    axes.set(xlabel="DAB (natural-log density, leak of blue removed)", ylabel="sampled pixels", yscale="log")
    threshold = survey.threshold
    if threshold is None:
        axes.set_title("too little stained tissue for a threshold")
        return
    dab = amounts(BrownScale.of(threshold.leak).dab, survey.pixels) * UNIT
    counts, edges = np.histogram(np.minimum(dab, FARTHEST_DAB), bins=150, range=(-0.5, FARTHEST_DAB))
    axes.stairs(counts, edges, fill=True, color="#8a5a2b")
    axes.axvline(threshold.value, color="#d00040", label=f"threshold {threshold.value:.2f}")
    axes.axvline(threshold.background, color="#3060a0", ls=":", label=f"median {threshold.background:.2f}")
    axes.legend(frameon=False)
    axes.set_title(f"{threshold.brown_share:.2%} of the tissue is brown")


# ---- the candidate stage of one case ----

CANDIDATES, CANDIDATES_NOTE, PICTURE = "candidates.parquet", "candidates.json", "candidates.png"
SURE = 0.9
"""A guess of the stain that is at least this sure stops the search."""
BROWN_EVERYWHERE = 0.08
"""Brown share of the tissue from which on the slide is brown everywhere; good slides have below 0.03."""
BROWN_BACKGROUND = 0.3
"""Median DAB of such a slide; good slides have below 0.1."""


@dataclass(frozen=True)
class BrownFound(Ingredients, stage="PHH3 candidates"):
    """What decides the candidates of a PHH3 slide."""

    slide: SlideSource
    config: BrownConfig


@dataclass(frozen=True)
class SearchedCase:
    """What came out for a case."""

    candidates: int
    picture: Path
    warnings: ResultWarnings
    reason: str
    """Why it was searched; empty where an earlier run had done it."""

    @property
    def resumed(self) -> bool:
        """Whether an earlier run had done it."""
        return not self.reason


def search_case(
    source: SlideSource,
    folder: Path,
    config: BrownConfig,
    *,
    force: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> SearchedCase:
    """Find the candidates of a PHH3 slide into `folder`, unless they are there, made from the same.

    A slide without tissue, or one that is surely H&E, is a `Phh3Error` that names the picture of why; `force`
    searches a seeming H&E slide all the same.
    """
    record = BrownFound(source, config)
    reason = record.why(folder / CANDIDATES_NOTE)
    reason = reason or ("" if (folder / CANDIDATES).is_file() else f"{CANDIDATES} is gone")
    if not reason:
        warnings = read_warnings(facts_of(folder / CANDIDATES_NOTE)["warnings"])
        return SearchedCase(len(read_table(folder / CANDIDATES)), folder / PICTURE, warnings, "")
    with source.open() as slide:
        survey = survey_slide(slide, config, threads or available_cores())
        threshold = _usable_threshold(slide, survey, folder / PICTURE, force=force)
        found = find_brown_candidates(
            slide, survey.tissue, threshold, config, threads=threads, progress=progress
        )
        save_evidence(folder / PICTURE, slide, survey, found.table)
    warnings = find_warnings(survey, found, folder / PICTURE)
    facts = {
        "threshold": asdict(threshold),
        "stain": asdict(survey.stain),
        "tissue_mm2": survey.tissue.area_mm2,
        "candidates": len(found.table),
        "dropped": {name: getattr(found, name) for name in ("too_small", "too_large", "too_faint")},
        "warnings": [warning.to_dict() for warning in warnings],
    }
    with record.noted(folder / CANDIDATES, facts, note=folder / CANDIDATES_NOTE):
        write_table(folder / CANDIDATES, found.table)
    return SearchedCase(len(found.table), folder / PICTURE, warnings, reason)


def read_candidates(folder: Path) -> pd.DataFrame:
    """The finished candidates of a case's folder."""
    if not (folder / CANDIDATES_NOTE).is_file():
        raise Phh3Error(
            "has no finished candidates", path=folder, next_step="run metaphase phh3 candidates first"
        )
    return read_table(folder / CANDIDATES)


def find_warnings(survey: Survey, found: BrownCandidates, picture: Path) -> ResultWarnings:
    """What a user should look at before going on."""
    warnings = []
    threshold = survey.threshold
    if survey.stain.name != "DAB":
        warning = f"{survey.stain.confidence:.0%} sure" if survey.stain.confidence else "no stain recognised"
        text = f"the stain looks like {survey.stain.name} ({warning}), not PHH3"
        warnings.append(ResultWarning("not-phh3", text, f"see {picture}"))
    if threshold and (threshold.brown_share > BROWN_EVERYWHERE or threshold.background > BROWN_BACKGROUND):
        text = f"{threshold.brown_share:.0%} of the tissue is brown (median DAB {threshold.background:.2f})"
        warnings.append(ResultWarning("brown-everywhere", text, f"see {picture}"))
    if not len(found.table):
        warnings.append(
            ResultWarning("nothing-brown", "no brown object of a mitosis's size", f"see {picture}")
        )
    return tuple(warnings)


def _usable_threshold(slide: Slide, survey: Survey, picture: Path, *, force: bool) -> BrownThreshold:
    """The threshold; without tissue or with the wrong stain, a picture and an error."""
    problem, advice = "", f"see {picture}; correct the manifest, or search it anyway with --force"
    if survey.threshold is None:
        problem = "no stained tissue to search"
        advice = f"see {picture}: the slide may be blank, or another one"
    elif survey.stain.name == "H&E" and survey.stain.confidence >= SURE and not force:
        problem = f"looks like H&E ({survey.stain.confidence:.0%} sure), not like PHH3"
    if survey.threshold is None or problem:
        save_evidence(picture, slide, survey)
        raise Phh3Error(problem, path=slide.info.path, next_step=advice)
    return survey.threshold


# ---- what the networks say about the candidates of a case ----

CLASSIFIED, CLASSIFIED_NOTE, MITOSES = "classified.parquet", "classified.json", "mitoses.parquet"
FRAME = "phh3"
"""Coordinates are those of the PHH3 slide, not of its H&E partner."""


@dataclass(frozen=True)
class Classified:
    """Candidates with a column of probabilities for each network: not an artefact (cnn1), mitosis (cnn2)."""

    table: pd.DataFrame
    keys: dict[str, str]
    """What decided each network's column; see `networks.CandidatesClassified`."""
    decisions: dict[str, float]
    """Least probability of a yes, by network."""


@dataclass(frozen=True)
class CandidatesKept(Ingredients, stage="PHH3 classification"):
    """The candidates that were classified; by which networks, and from which decision on, the facts tell."""

    candidates: FileContent


def read_classified(folder: Path) -> Classified:
    """What networks said of a case's candidates; answers about candidates that are no more are an error."""
    if not ((folder / CLASSIFIED_NOTE).is_file() and (folder / CANDIDATES).is_file()):
        raise Phh3Error("was not classified", path=folder, next_step="run metaphase phh3 classify first")
    if not CandidatesKept(FileContent(folder / CANDIDATES)).matches(folder / CLASSIFIED_NOTE):
        raise Phh3Error(
            "the candidates have changed since they were classified",
            path=folder,
            next_step="run metaphase phh3 classify again",
        )
    return Classified(read_table(folder / CLASSIFIED), **facts_of(folder / CLASSIFIED_NOTE))


def write_classified(folder: Path, case: str, answers: Classified) -> None:
    """Write the answers and, once CNN2 has spoken, the mitoses."""
    facts = {"keys": answers.keys, "decisions": answers.decisions}
    kept = CandidatesKept(FileContent(folder / CANDIDATES))
    with kept.noted(folder / CLASSIFIED, facts, note=folder / CLASSIFIED_NOTE):
        write_table(folder / CLASSIFIED, answers.table)
        if "cnn2" in answers.decisions:
            mitoses = mitosis_table(case, answers.table, answers.decisions["cnn2"])
            write_table(folder / MITOSES, mitoses)


def read_mitoses(folder: Path) -> pd.DataFrame:
    """The finished mitoses of a case's folder: a detection table in the PHH3 frame."""
    if "cnn2" not in read_classified(folder).decisions:
        raise Phh3Error("was not seen by CNN2", path=folder, next_step="run metaphase phh3 classify --cnn2")
    return read_table(folder / MITOSES)


def mitosis_table(case: str, table: pd.DataFrame, decision: float) -> pd.DataFrame:
    """The candidates that CNN2 calls mitoses, as a detection table of slide `case` in the PHH3 frame."""
    called = table[table["cnn2"] >= decision]
    facts = [name for name in ("candidate", "area_um2", "parts", "cnn1") if name in called]
    points = called[["x", "y", *facts]].assign(
        slide=case, probability=called["cnn2"], label=MITOSIS, frame=FRAME
    )
    return detection_set(points, slides=(case,), source=case).table


# ---- all cases of a cohort ----

Result = TypeVar("Result")


@dataclass(frozen=True)
class Phh3Case:
    """A case's PHH3 slide and its folder in the workspace."""

    name: str
    slide: SlideSource
    folder: Path


def search_cohort(
    manifest: Path,
    workspace: Path,
    config: BrownConfig | None = None,
    *,
    force: bool = False,
    watch: BatchWatch | None = None,
    pool: Workers | None = None,
) -> Batch[SearchedCase]:
    """Find every brown object of the PHH3 slides; finished slides are skipped, bad ones recorded."""
    settings = config or BrownConfig()

    def search(case: Phh3Case, progress: Progress) -> SearchedCase:
        return search_case(case.slide, case.folder, settings, force=force, progress=progress)

    return run_batch(phh3_cases(manifest, workspace), search, workspace, watch, pool)


def phh3_cases(manifest: Path, workspace: Path) -> dict[str, Phh3Case]:
    """The cases of a manifest that have a PHH3 slide, by name."""
    table = read_manifest(manifest)
    rows = table[table["phh3"] != ""].to_dict("records")
    if not rows:
        raise UsageError("no case has a PHH3 slide", path=manifest, next_step="fill the column phh3")
    return {
        row["case"]: Phh3Case(
            row["case"], SlideSource(Path(row["phh3"]), phh3_mpp(row)), case_folder(workspace, row["case"])
        )
        for row in rows
    }
