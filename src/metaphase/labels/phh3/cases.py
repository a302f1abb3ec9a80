"""What lies in a case's folder: its candidates, what the networks say about them, and its mitoses."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metaphase.base.cautions import Caution, Cautions, read_cautions
from metaphase.base.files import atomic_path
from metaphase.base.parallel import available_cores
from metaphase.base.provenance import FileContent, Ingredients, facts_of
from metaphase.base.tables import read_table, write_table
from metaphase.detections import MITOSIS, detection_set
from metaphase.images.tissue import draw_overlay
from metaphase.labels.phh3.candidates import BrownCandidates, Progress, find_brown_candidates
from metaphase.labels.phh3.config import BrownConfig, Phh3Error
from metaphase.labels.phh3.survey import UNIT, BrownScale, BrownThreshold, Survey, amounts, survey_slide
from metaphase.slides import Slide, SlideSource

# ---- a picture of why ----

THUMBNAIL_PX = 1000
MAX_DOTS = 20_000
"""Of more candidates an even share is drawn."""
FARTHEST_DAB = 3.0
"""The histogram ends here; darker pixels are counted in its last bar."""


def save_evidence(path: str | Path, slide: Slide, survey: Survey, table: pd.DataFrame | None = None) -> Path:
    """Write the picture of `draw_evidence` as PNG, whole or not at all."""
    with atomic_path(path) as temporary:
        draw_evidence(slide, survey, table).savefig(temporary, dpi=110)
    return Path(path)


def draw_evidence(slide: Slide, survey: Survey, table: pd.DataFrame | None = None) -> Figure:
    """The slide, outlined and with its candidates where these are known, beside the histogram of its DAB."""
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(12, 5.5))
        figure.subplots_adjust(left=0.01, right=0.99, bottom=0.1, top=0.87, wspace=0.15)
        overview, histogram = figure.subplots(1, 2)
        _draw_slide(overview, slide, survey, table)
        _draw_histogram(histogram, survey)
        sure = f" ({survey.stain.confidence:.0%} sure)" if survey.stain.confidence else ""
        figure.suptitle(f"{slide.name}: the stain looks like {survey.stain.name}{sure}")
    return figure


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

    table: pd.DataFrame
    picture: Path
    warnings: Cautions
    reason: str
    """Why it was searched; empty where an earlier run had done it."""

    @property
    def reused(self) -> bool:
        """Whether an earlier run had made it."""
        return not self.reason


def search_case(
    slide_path: str | Path,
    folder: str | Path,
    config: BrownConfig,
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
    source = SlideSource(Path(slide_path), mpp)
    record = BrownFound(source, config)
    reason = record.why(folder / CANDIDATES_NOTE)
    reason = reason or ("" if (folder / CANDIDATES).is_file() else f"{CANDIDATES} is gone")
    if not reason:
        warnings = read_cautions(facts_of(folder / CANDIDATES_NOTE)["warnings"])
        return SearchedCase(read_table(folder / CANDIDATES), folder / PICTURE, warnings, "")
    with source.open() as slide:
        survey = survey_slide(slide, config, threads or available_cores())
        threshold = _usable_threshold(slide, survey, folder / PICTURE, force=force)
        found = find_brown_candidates(
            slide, survey.tissue, threshold, config, threads=threads, progress=progress
        )
        save_evidence(folder / PICTURE, slide, survey, found.table)
    warnings = find_warnings(survey, found, folder / PICTURE)
    with record.noted(folder / CANDIDATES, _facts(survey, found, warnings), note=folder / CANDIDATES_NOTE):
        write_table(folder / CANDIDATES, found.table)
    return SearchedCase(found.table, folder / PICTURE, warnings, reason)


def read_candidates(folder: str | Path) -> pd.DataFrame:
    """The finished candidates of a case's folder."""
    folder = Path(folder)
    if not (folder / CANDIDATES_NOTE).is_file():
        raise Phh3Error(
            "has no finished candidates", path=folder, next_step="run metaphase phh3 candidates first"
        )
    return read_table(folder / CANDIDATES)


def find_warnings(survey: Survey, found: BrownCandidates, picture: Path) -> Cautions:
    """What a user should look at before going on."""
    warnings = []
    threshold = survey.threshold
    if survey.stain.name != "DAB":
        doubt = f"{survey.stain.confidence:.0%} sure" if survey.stain.confidence else "no stain recognised"
        text = f"the stain looks like {survey.stain.name} ({doubt}), not like PHH3"
        warnings.append(Caution("not-phh3", text, f"see {picture}"))
    if threshold and (threshold.brown_share > BROWN_EVERYWHERE or threshold.background > BROWN_BACKGROUND):
        text = (
            f"brown everywhere: {threshold.brown_share:.0%} of the tissue, median DAB "
            f"{threshold.background:.2f}; mitoses may hide in it"
        )
        warnings.append(Caution("brown-everywhere", text, f"see {picture}"))
    if not len(found.table):
        warnings.append(Caution("nothing-brown", "no brown object of a mitosis's size", f"see {picture}"))
    return tuple(warnings)


def _usable_threshold(slide: Slide, survey: Survey, picture: Path, *, force: bool) -> BrownThreshold:
    """The threshold; without tissue or with the wrong stain, a picture and an error."""
    if survey.threshold is None:
        save_evidence(picture, slide, survey)
        raise Phh3Error(
            "no stained tissue to search",
            path=slide.info.path,
            next_step=f"see {picture}: the slide may be blank, or another one",
        )
    if survey.stain.name == "H&E" and survey.stain.confidence >= SURE and not force:
        save_evidence(picture, slide, survey)
        raise Phh3Error(
            f"looks like H&E ({survey.stain.confidence:.0%} sure), not like PHH3",
            path=slide.info.path,
            next_step=f"see {picture}; correct the manifest, or search it all the same with --force",
        )
    return survey.threshold


def _facts(survey: Survey, found: BrownCandidates, warnings: Cautions) -> dict[str, Any]:
    counts = {"too_small": found.too_small, "too_large": found.too_large, "too_faint": found.too_faint}
    return {
        "threshold": survey.threshold.to_dict() if survey.threshold else None,
        "stain": asdict(survey.stain),
        "tissue_mm2": survey.tissue.area_mm2,
        "candidates": len(found.table),
        "dropped": counts,
        "warnings": [warning.to_dict() for warning in warnings],
    }


# ---- what the networks say about the candidates of a case ----

CLASSIFIED, CLASSIFIED_NOTE, MITOSES = "classified.parquet", "classified.json", "mitoses.parquet"
FRAME = "phh3"
"""Coordinates are those of the PHH3 slide, not of its H&E partner."""


@dataclass(frozen=True)
class Classified:
    """Candidates with a column of probabilities for each network: not an artefact (cnn1), mitosis (cnn2)."""

    table: pd.DataFrame
    keys: dict[str, str]
    """What decided each network's column; see `classification.CandidatesClassified`."""
    decisions: dict[str, float]
    """Least probability of a yes, by network."""


@dataclass(frozen=True)
class CandidatesKept(Ingredients, stage="PHH3 classification"):
    """The candidates that were classified; by which networks, and from which decision on, the facts tell."""

    candidates: FileContent


def read_classified(folder: str | Path) -> Classified:
    """What networks said of a case's candidates; answers about candidates that are no more are an error."""
    folder = Path(folder)
    if not ((folder / CLASSIFIED_NOTE).is_file() and (folder / CANDIDATES).is_file()):
        raise Phh3Error("was not classified", path=folder, next_step="run metaphase phh3 classify first")
    if not kept_candidates(folder).matches(folder / CLASSIFIED_NOTE):
        raise Phh3Error(
            "the candidates were searched anew since they were classified",
            path=folder,
            next_step="run metaphase phh3 classify again",
        )
    return Classified(read_table(folder / CLASSIFIED), **facts_of(folder / CLASSIFIED_NOTE))


def write_classified(folder: str | Path, case: str, answers: Classified) -> pd.DataFrame | None:
    """Write the answers and, once CNN2 has spoken, the mitoses; returns these."""
    folder, mitoses = Path(folder), None
    facts = {"keys": answers.keys, "decisions": answers.decisions}
    with kept_candidates(folder).noted(folder / CLASSIFIED, facts, note=folder / CLASSIFIED_NOTE):
        write_table(folder / CLASSIFIED, answers.table)
        if "cnn2" in answers.decisions:
            mitoses = mitosis_table(case, answers.table, answers.decisions["cnn2"])
            write_table(folder / MITOSES, mitoses)
    return mitoses


def kept_candidates(folder: Path) -> CandidatesKept:
    """What the columns of a case's folder belong to."""
    return CandidatesKept(FileContent(folder / CANDIDATES))


def read_mitoses(folder: str | Path) -> pd.DataFrame:
    """The finished mitoses of a case's folder: a detection table in the PHH3 frame."""
    folder = Path(folder)
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
