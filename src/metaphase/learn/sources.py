"""The slides of a run with their splits, and the reference standard in H&E coordinates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.analysis.cohort import cohort_slide
from metaphase.analysis.record import load_results
from metaphase.analysis.review import answers_of, reviewed_truth
from metaphase.base.errors import UsageError
from metaphase.base.provenance import decides
from metaphase.base.tables import (
    TableError,
    as_text,
    named,
    numbers_of,
    read_manifest,
    read_table,
    require_columns,
    require_numbers,
    stated_number,
)
from metaphase.detections.table import ATYPICAL, IGNORE, LOOKALIKE, MITOSIS, common_label
from metaphase.images.tissue.finding import TissueSource
from metaphase.labels.observers.project import read_items
from metaphase.learn.calibration import DETECTIONS, SAMPLE, answers_table, consensus, current_answers
from metaphase.learn.config import CohortSection, ReferenceSection
from metaphase.learn.mining.mining import TrainingSlide
from metaphase.networks.training.data import split_cases
from metaphase.networks.training.images import KINDS, ImageSource
from metaphase.slides.opening import SlideSource

SPLITS = ("train", "validation", "test")
UNSEEN = SPLITS[1:]
"""What a run needs that learns from corrections alone."""
COLUMNS = ("case", "x", "y", "label")
IMAGE_FACTS = ("case", "laboratory", "patient", "split", "kind", "repeat")
REFUSED = ("false", "0", "no", "rejected")
"""Spellings of `not accepted`."""


@dataclass(frozen=True)
class ManifestRow:
    """What a manifest says of a slide that decides results."""

    name: str
    slide: SlideSource
    tissue: TissueSource
    split: str
    centre: str
    repeat: float | None
    patient: str = field(metadata=decides("slides", "test"))
    grade: float | None = field(metadata=decides("test"))
    proliferation: float | None = field(metadata=decides("test"))


def split_manifest(manifest: str | Path, section: CohortSection | None = None) -> pd.DataFrame:
    """The rows of a manifest; where none has a split, one is drawn by patient if a configuration says so."""
    frame = read_manifest(manifest)
    frame["split"] = frame["split"].str.strip().str.lower()
    if section is None or section.random_split is None or (frame["split"] != "").any():
        return frame
    patients = sorted(frame["patient"].unique())
    if len(patients) < len(SPLITS):
        raise TableError(
            f"{len(patients)} patients cannot be dealt to {', '.join(SPLITS)}",
            path=manifest,
            next_step="name slides of more patients, or fill the column split",
        )
    counts = dict(zip(SPLITS, dealt(len(patients), section.random_split), strict=True))
    drawn = split_cases(patients, counts=counts, seed=section.seed)
    owner = {patient: split for split, group in drawn.items() for patient in group}
    return frame.assign(split=frame["patient"].map(owner))


def dealt(whole: int, shares: Sequence[float]) -> tuple[int, int, int]:
    """Three whole numbers, at least 1 each, about in proportion to the shares.

    >>> dealt(18, (11, 3, 4)), dealt(36, (11, 3, 4)), dealt(3, (0.8, 0.1, 0.1))
    ((11, 3, 4), (22, 6, 8), (1, 1, 1))
    """
    edges = [round(whole * sum(shares[:count]) / sum(shares)) for count in (1, 2)]
    first = min(max(edges[0], 1), whole - 2)
    second = min(max(edges[1], first + 1), whole - 1)
    return first, second - first, whole - second


def manifest_rows(
    manifest: str | Path, splits: tuple[str, ...] = SPLITS, section: CohortSection | None = None
) -> tuple[ManifestRow, ...]:
    """The rows of some splits; columns that decide nothing are not looked at."""
    table = split_manifest(manifest, section)
    rows = []
    for row in table[table["split"].isin(splits)].to_dict("records"):
        slide = cohort_slide(row)
        names = str(row["laboratory"]), stated_number(row, "repeat"), str(row["patient"])
        scores = stated_number(row, "grade"), stated_number(row, "proliferation")
        rows.append(
            ManifestRow(str(row["case"]), slide.slide, slide.tissue, str(row["split"]), *names, *scores)
        )
    return tuple(rows)


def image_facts(manifest: Path, section: CohortSection | None = None) -> pd.DataFrame:
    """What a manifest says that decides what the method `dense` makes of its images; nothing before it is."""
    if not manifest.is_file():
        return pd.DataFrame()
    table = split_manifest(manifest, section)
    return table[[name for name in IMAGE_FACTS if name in table.columns]]


def image_sources(cohort: pd.DataFrame, reference: pd.DataFrame) -> list[ImageSource]:
    """The images of a cohort with their points, for the method `dense`."""
    points, sources = dict(list(reference.groupby("case"))), []
    for row in cohort.to_dict("records"):
        slide, weight = cohort_slide(row), stated_number(row, "repeat")
        kind = str(row.get("kind") or "").strip().lower()
        if kind not in KINDS:
            raise UsageError(
                f"case {row['case']} has the kind {kind!r}",
                next_step=f"give {', '.join(KINDS[1:])}, or leave it empty",
            )
        sources.append(
            ImageSource(
                slide.name,
                slide.slide,
                str(row["laboratory"]) or "unknown",
                str(row["patient"]),
                str(row["split"]),
                points.get(row["case"], reference.iloc[:0]),
                kind,
                1.0 if weight is None else weight,
                slide.tissue,
            )
        )
    return sources


# ---- what people answered about detections ----

CORRECTED = ("slide", "mpp", "x", "y", "label")
REPLACED_UM = 8.0
"""Labels of the reference standard this near to an answer give way to it."""


def corrected_points(folders: Sequence[str | Path]) -> pd.DataFrame:
    """Positions that people answered, with the slide's file: of reviewed results and of calibrations."""
    parts = []
    for folder in map(Path, folders):
        points = _calibrated_points(folder) if (folder / SAMPLE).is_file() else _reviewed_points(folder)
        if points.empty:
            raise UsageError(
                "nobody has answered anything there",
                path=folder,
                next_step="review it with metaphase view, or leave it out of the corrections",
            )
        parts.append(points)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(CORRECTED))


def _reviewed_points(folder: Path) -> pd.DataFrame:
    parts = [pd.DataFrame(columns=list(CORRECTED))]
    for result in load_results([folder]):
        if answers_of(result):
            table, source = reviewed_truth([result]).table, result.source
            decided = table.loc[table["label"] != IGNORE, ["x", "y", "label"]]
            parts.append(decided.assign(slide=str(source.path.resolve()), mpp=source.mpp))
    return pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)


def _calibrated_points(folder: Path) -> pd.DataFrame:
    items = read_items(folder / DETECTIONS)
    answer = consensus(items, answers_table(current_answers(folder / DETECTIONS)), folder)
    items = items.assign(
        slide=[str(Path(slide).resolve()) for slide in items["slide"]],
        label=np.where(answer == 1, MITOSIS, LOOKALIKE),
    )
    return items.loc[np.isfinite(answer), list(CORRECTED)]


def trained_by_corrections(cohort: pd.DataFrame, corrections: pd.DataFrame) -> pd.DataFrame:
    """The cohort with all slides of corrected patients in the split train: nobody is tested on answers."""
    files = set(corrections["slide"])
    corrected = cohort["he"].map(lambda he: str(Path(he).resolve()) in files)
    moved = cohort["patient"].isin(set(cohort.loc[corrected, "patient"]))
    cohort = cohort.assign(split=cohort["split"].mask(moved, "train"))
    absent = [split for split in UNSEEN if split not in set(cohort["split"])]
    if absent:
        raise UsageError(
            f"every slide of the split {absent[0]} was corrected, and corrected slides only train",
            next_step=f"add slides that nobody corrected with the split {absent[0]}",
        )
    return cohort


def correction_sources(sources: Sequence[ImageSource], corrections: pd.DataFrame) -> list[ImageSource]:
    """All images, with the answered positions as images of their own, which replace labels near them."""
    by_file = {str(source.slide.path.resolve()): source for source in sources}
    kept, added = list(sources), []
    for number, (file, points) in enumerate(corrections.groupby("slide")):
        known = by_file.get(str(file))
        if known is not None:
            kept[kept.index(known)] = replace(known, points=_not_answered(known, points))
        else:
            path, mpp = Path(str(file)), points["mpp"].iloc[0]
            slide, name = SlideSource(path, None if pd.isna(mpp) else mpp), f"{path.stem}-{number}"
            known = ImageSource(name, slide, "corrections", name, "train", points)
        added.append(
            replace(
                known,
                name=f"{known.name}, corrected",
                split="train",
                points=points,
                kind="corrected",
                tissue=TissueSource(whole=True),
            )
        )
    return [*kept, *added]


def _not_answered(source: ImageSource, answers: pd.DataFrame) -> pd.DataFrame:
    with source.slide.open() as slide:
        reach = REPLACED_UM / slide.mpp
    tree = cKDTree(answers[["x", "y"]].to_numpy(np.float64))
    distance, _ = tree.query(source.points[["x", "y"]].to_numpy(np.float64))
    left: pd.DataFrame = source.points[distance > reach]
    return left


def read_points(table: str | Path, cases: Collection[str], *, all_registered: bool = False) -> pd.DataFrame:
    """The points of some cases in a table of the reference standard, labelled.

    With `all_registered` nobody but an observer can refuse one.
    """
    frame = read_table(table)
    if "case" not in frame.columns and "slide" in frame.columns:
        frame = frame.rename(columns={"slide": "case"})
    require_columns(frame, ("case", "x", "y"), table)
    require_numbers(frame, ("x", "y"), table)
    frame = frame[frame["x"].notna() & frame["y"].notna()].reset_index(drop=True)
    labels = as_text(frame["label"]) if "label" in frame.columns else pd.Series("", index=frame.index)
    label = labels.map({name: common_label(name) if name else MITOSIS for name in labels.unique()})
    if "accepted" in frame.columns:
        refused = as_text(frame["accepted"]).str.strip().str.lower().isin(REFUSED)
        if all_registered:
            refused &= as_text(frame["observer"]) != "" if "observer" in frame.columns else False
        label = label.mask(refused & (label == MITOSIS), IGNORE)
    points = pd.DataFrame({"case": as_text(frame["case"]), "x": frame["x"], "y": frame["y"], "label": label})
    if ATYPICAL in frame.columns:
        require_numbers(frame, (ATYPICAL,), table)
        points[ATYPICAL] = numbers_of(frame[ATYPICAL])
    return points[points["case"].isin(set(cases))].reset_index(drop=True)


def read_cohort(
    manifest: str | Path, needed: Sequence[str] = SPLITS, section: CohortSection | None = None
) -> pd.DataFrame:
    """The slides of a run; each split that is needed must have some, and every slide must exist."""
    frame = split_manifest(manifest, section)
    unknown = sorted(set(frame["split"]) - {*SPLITS, ""})
    absent = [split for split in needed if split not in set(frame["split"])]
    if unknown or absent:
        raise TableError(
            f"no slide has the split {absent[0]}" if absent else f"the split {unknown[0]!r} is unknown",
            path=manifest,
            next_step="fill the column split with train, validation and test (empty: the slide is skipped), "
            "or leave it out and give random_split in [cohort]",
        )
    used = frame[frame["split"] != ""].reset_index(drop=True)
    missing = used["case"][[not Path(he).is_file() for he in used["he"]]]
    if len(missing):
        raise TableError(
            f"no H&E slide is there for {named(missing)}", path=manifest, next_step="check the column he"
        )
    splits = used.groupby("patient")["split"].nunique()
    torn = splits.index[splits > 1]  # known to the network before they are tested
    if len(torn):
        raise TableError(
            f"these patients are in more than one split: {named(map(str, torn))}",
            path=manifest,
            next_step="put all slides of a patient into one split",
        )
    return used


def read_reference(
    section: ReferenceSection, cohort: pd.DataFrame, method: str = "paper", needed: Sequence[str] = SPLITS
) -> pd.DataFrame:
    """Points `case, x, y, label` of the cohort's slides: mitoses, and positions to ignore.

    The method `dense` also learns from look-alikes, and from the column `atypical` where there is one.

    Rows that the reference standard did not accept are no mitoses for sure, but no sure negatives either:
    they become `ignore`.
    """
    if section.source == "simulated":
        points = pd.concat([truth_of(row) for row in cohort.to_dict("records")], ignore_index=True)
    else:
        points = read_points(section.table, cohort["case"], all_registered=section.all_registered)
    if method == "paper":
        points = points.loc[points["label"] != LOOKALIKE, list(COLUMNS)].reset_index(drop=True)
    mitoses = points[points["label"] == MITOSIS].merge(cohort[["case", "split"]], on="case")
    for split in needed:
        if split not in set(mitoses["split"]):
            raise UsageError(
                f"the reference standard has no mitosis on any slide of the split {split}",
                path=section.table or None,
                next_step="check the cases it names, and its columns label and accepted",
            )
    return points


def training_slides(cohort: pd.DataFrame, reference: pd.DataFrame, split: str) -> list[TrainingSlide]:
    """The slides of a split with their points."""
    points, slides = dict(list(reference.groupby("case"))), []
    for row in cohort[cohort["split"] == split].to_dict("records"):
        slide, times = cohort_slide(row), stated_number(row, "repeat")
        if times is not None and (times != round(times) or times < 1):
            advice = "give a whole number, 1 or more"
            raise UsageError(f"slide {row['case']} has repeat = {times:g}", next_step=advice)
        own = points.get(row["case"], reference.iloc[:0])[["x", "y", "label"]].reset_index(drop=True)
        tissue = slide.tissue if row.get("tissue") else None
        repeat = 1 if times is None else int(times)
        slides.append(TrainingSlide(slide.name, slide.slide, own, tissue, repeat))
    return slides


def truth_of(row: dict[Any, Any]) -> pd.DataFrame:
    """The mitoses of a simulated slide, from the truth beside it."""
    truth = read_table(Path(str(row["he"])).parent / "truth.parquet")
    found = truth[truth["category"] == "mitosis"]
    return pd.DataFrame({"case": row["case"], "x": found["x_he"], "y": found["y_he"], "label": MITOSIS})
