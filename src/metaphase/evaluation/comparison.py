"""Which slides are evaluated and under which names; truth and predictions of them brought together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shlex import quote

import numpy as np
import scipy

from metaphase.base.errors import MetaphaseError, ResultWarning, ResultWarnings, UsageError
from metaphase.base.later import pandas as pd
from metaphase.base.tables import (
    TableError,
    named,
    numbers_of,
    read_manifest,
    require_numbers,
    rows_by_name,
    rows_of_slide,
)
from metaphase.detections.files import read_detections
from metaphase.detections.table import IGNORE, MITOSIS, DetectionSet
from metaphase.slides.backends import check_flag
from metaphase.slides.opening import is_slide_there, open_slide

# ---- which slides are evaluated ----


Frames = Iterator[tuple[str, float, float, float]]


@dataclass(frozen=True)
class Cohort:
    """The slides of an evaluation, one row each, in the form `read_manifest` gives."""

    manifest: pd.DataFrame
    source: str

    @cached_property
    def cases(self) -> tuple[str, ...]:
        """The names of the slides, in manifest order."""
        return tuple(self.manifest["case"])

    def frames(self) -> Frames:
        """Case, mpp, width and height (NaN where unknown) of each slide, in manifest order."""
        return self.manifest[["case", "mpp", "width", "height"]].itertuples(index=False, name=None)

    def mpp_by_name(self) -> dict[str, float]:
        """The resolution of each slide under every name it goes by."""
        mpp = self.manifest["mpp"].tolist()
        return {name: mpp[rows[0]] for name, rows in rows_by_name(self.manifest).items() if len(rows) == 1}

    def of_split(self, split: str | None) -> Cohort:
        """The slides of one split; all for None."""
        if split is None:
            return self
        chosen = self.manifest[self.manifest["split"] == split].reset_index(drop=True)
        if not len(chosen):
            raise UsageError(
                f"no slide has the split {split!r}",
                path=self.source,
                next_step=f"the splits are {named(sorted(set(self.manifest['split'])))}",
            )
        return Cohort(chosen, self.source)

    def rename_slides(self, points: DetectionSet) -> DetectionSet:
        """The points with each slide named by its case; slides are known by the names of `rows_by_name`."""
        case_of = self.case_names(points.slides, points.source)
        table = points.table.assign(slide=points.table["slide"].map(case_of).astype(object))
        return replace(points, table=table, slides=tuple(dict.fromkeys(case_of.values())))

    def case_names(self, slides: Iterable[str], source: str) -> dict[str, str]:
        """The case of each slide named in `source`; an unknown or doubtful name is an error."""
        names = rows_by_name(self.manifest)
        slide_of: dict[str, str] = {}
        for slide in dict.fromkeys(slides):
            cases = [self.cases[row] for row in rows_of_slide(slide, names)]
            if not cases:
                raise TableError(
                    f"slide {slide} is not in {self.source} (which has {named(self.cases)})",
                    path=source,
                    next_step="add the slide to the manifest, or take its points out",
                )
            if len(cases) > 1:
                raise TableError(
                    f"slide {slide} could be any of {named(cases)}",
                    path=source,
                    next_step="name slides by their case in the manifest",
                )
            case = cases[0]
            if case in slide_of:
                raise TableError(
                    f"slides {slide_of[case]} and {slide} could both be {case} of {self.source}",
                    path=source,
                    next_step="name slides by their case in the manifest",
                )
            slide_of[case] = slide
        return {slide: case for case, slide in slide_of.items()}

    def mpp_by_case(self) -> dict[str, float]:
        """The resolution of each case."""
        return dict(zip(self.manifest["case"], self.manifest["mpp"], strict=True))


def load_cohort(manifest: str | Path, mpp: float | None = None) -> Cohort:
    """Read a manifest; resolutions and sizes that it does not state are read from the slides."""
    return complete(Cohort(read_manifest(manifest), str(manifest)), mpp)


def cohort_of(slides: Iterable[str], source: str, mpp: float | None = None) -> Cohort:
    """The slides named in a truth table that has no manifest, each its own patient."""
    cases = list(slides)
    stems = [case if Path(case).suffix else "" for case in cases]
    manifest = pd.DataFrame(
        {"case": cases, "he": stems, "phh3": "", "laboratory": "", "split": "", "patient": cases}
    )
    return complete(Cohort(manifest, source), mpp)


def complete(cohort: Cohort, mpp: float | None = None) -> Cohort:
    """The cohort with `mpp, width, height, area_mm2`; `mpp` is used where the manifest has none.

    An area that is not stated is that of the whole image. A slide of unknown resolution is an error:
    distances in micrometres would be a guess.
    """
    if mpp is not None:
        check_flag(mpp, None)
    manifest = _with_numbers(cohort.manifest, ("mpp", "width", "height", "area_mm2"), cohort.source)
    if not len(manifest):
        raise TableError("names no slide", path=cohort.source, next_step="there is nothing to evaluate")
    if mpp is not None:
        manifest["mpp"] = manifest["mpp"].fillna(mpp)
    manifest = fill_geometry(manifest, cohort.source)
    unknown = manifest["case"][~(manifest["mpp"] > 0)]
    if len(unknown):
        raise TableError(
            f"the resolution of {named(unknown)} is not known",
            path=cohort.source,
            next_step="give it with --mpp, or in the column mpp of the manifest",
        )
    whole = manifest["width"] * manifest["height"] * (manifest["mpp"] / 1000) ** 2
    manifest["area_mm2"] = manifest["area_mm2"].fillna(whole)
    return Cohort(manifest, cohort.source)


def slide_geometry(path: Path) -> dict[str, float]:
    """`width`, `height` and, where the file states it, `mpp` of a slide; empty where it cannot be opened."""
    if not is_slide_there(path):
        return {}
    try:
        with open_slide(path) as slide:
            geometry = {"width": float(slide.width), "height": float(slide.height)}
            if slide.info.resolution is not None:
                geometry["mpp"] = slide.info.resolution.mpp
    except MetaphaseError:
        return {}
    return geometry


def fill_geometry(manifest: pd.DataFrame, source: str | Path) -> pd.DataFrame:
    """The manifest with `mpp, width, height`; missing values are read from the H&E slides."""
    manifest = _with_numbers(manifest, ("mpp", "width", "height"), source)
    unknown = manifest[["mpp", "width", "height"]].isna().any(axis=1) & (manifest["he"] != "")
    for row in manifest.index[unknown]:
        for name, value in slide_geometry(Path(str(manifest.at[row, "he"]))).items():
            if np.isnan(manifest[name].to_numpy()[row]):
                manifest.loc[row, name] = value
    return manifest


def _with_numbers(manifest: pd.DataFrame, names: tuple[str, ...], source: str | Path) -> pd.DataFrame:
    """A copy with these columns, whose values are numbers or NaN."""
    require_numbers(manifest, names, source)
    manifest = manifest.reindex(columns=[*dict.fromkeys((*manifest.columns, *names))])
    return manifest.assign(**{name: numbers_of(manifest[name]) for name in names})


# ---- truth and predictions brought together ----

MANIFEST_NAME, TRUTH_NAMES = "manifest.csv", ("truth.csv", "truth.parquet")
TWIN_UM = 2.5
"""Detections of one slide nearer than this are hardly two mitoses; they are reported."""


@dataclass(frozen=True)
class Comparison:
    """Truth and predictions of the same slides, under the same names, in level-0 pixels."""

    cohort: Cohort
    truth: DetectionSet
    """Mitoses only."""
    predictions: DetectionSet
    """Detections of mitoses only."""
    ignored: pd.DataFrame
    """Points of the truth labelled `ignore`: `slide, x, y` and where given `radius_um`."""
    warnings: ResultWarnings


def load_truth(
    truth: str | Path, manifest: str | Path | None = None, mpp: float | None = None
) -> tuple[Cohort, DetectionSet]:
    """Read a truth table and its cohort.

    `truth` is a table, or a folder with `truth.csv` and `manifest.csv` as `metaphase data import` writes it.
    The manifest may be given; else it is looked for beside the table; else the cohort is the truth's slides.
    """
    table = Path(truth)
    beside = (table if table.is_dir() else table.parent) / MANIFEST_NAME
    table = next((table / name for name in TRUTH_NAMES if (table / name).is_file()), table)
    if manifest is None and beside.is_file():
        manifest = beside
    if manifest is None:
        points = read_detections(table, mpp=mpp)
        cohort = cohort_of(points.slides, str(table), mpp)
    else:
        cohort = load_cohort(manifest, mpp)
        points = read_detections(table, mpp=cohort.mpp_by_name())
    return cohort, cohort.rename_slides(points)


def compare(
    cohort: Cohort, truth: DetectionSet, predictions: DetectionSet, *, missing_as_empty: bool = False
) -> Comparison:
    """Mitoses and detections on the slides of `cohort`, without exact copies; both are named by case."""
    covered = set(predictions.slides)
    missing = [case for case in cohort.cases if case not in covered]
    if missing and not missing_as_empty:
        raise TableError(
            f"no predictions for {len(missing)} of {len(cohort.cases)} slides: {named(missing)}",
            path=predictions.source,
            next_step="predict them; or, if nothing was found there, --set missing_as_empty=true",
        )
    warnings = []
    if missing:
        text = f"{len(missing)} slides without predictions count as empty: {named(missing)}"
        warnings.append(ResultWarning("slides-taken-as-empty", text))
    truth, predictions = _within(cohort, truth), _within(cohort, predictions)
    other = int((predictions.table["label"] != MITOSIS).sum())
    if other:
        text = f"{other} predictions are not labelled as mitosis and are left out"
        warnings.append(ResultWarning("other-labels", text))
    mitoses, true_copies = _without_copies(truth.of_label(MITOSIS))
    detections, copies = _without_copies(predictions.of_label(MITOSIS))
    ignored = truth.of_label(IGNORE).table
    of_files = (*truth.warnings, *predictions.warnings)
    doubts = (*of_files, *warnings, *true_copies, *copies, *_twin_warnings(cohort, detections))
    return Comparison(cohort, mitoses, detections, ignored, doubts)


def _within(cohort: Cohort, points: DetectionSet) -> DetectionSet:
    """The points on slides of the cohort."""
    cases = set(cohort.cases)
    table = points.table[points.table["slide"].isin(cases)].reset_index(drop=True)
    return replace(points, table=table, slides=tuple(slide for slide in points.slides if slide in cases))


def _without_copies(points: DetectionSet) -> tuple[DetectionSet, list[ResultWarning]]:
    """Of points at exactly the same position, the most probable one."""
    ranked = points.table.sort_values("probability", ascending=False, kind="stable")
    kept = ranked.drop_duplicates(["slide", "x", "y"]).sort_index(kind="stable").reset_index(drop=True)
    copies = len(points.table) - len(kept)
    if not copies:
        return points, []
    text = f"{points.source}: {copies} exact duplicates were merged (the most probable of each kept)"
    return points.with_table(kept), [ResultWarning("duplicates", text)]


def _twin_warnings(cohort: Cohort, points: DetectionSet) -> list[ResultWarning]:
    """A warning where detections have another one suspiciously near."""
    mpp = cohort.mpp_by_case()
    twins = 0
    for slide, rows in points.table.groupby("slide", sort=False):
        positions = rows[["x", "y"]].to_numpy() * mpp[str(slide)]
        nearer = np.nextafter(TWIN_UM, 0)
        twins += len(np.unique(scipy.spatial.cKDTree(positions).query_pairs(nearer, output_type="ndarray")))
    if not twins:
        return []
    text = (
        f"{points.source}: {twins} detections have another one nearer than {TWIN_UM:g} um; at most one of "
        "them can be right, the others count as false"
    )
    command = f"metaphase convert {quote(points.source)} -o suppressed.csv --suppress-um {TWIN_UM:g}"
    next_step = f"keep the most probable of them with `{command}` and --mpp or --manifest"
    return [ResultWarning("close-detections", text, next_step)]
