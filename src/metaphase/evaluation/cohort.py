"""Which slides are evaluated, how large their pixels are, and which name means which slide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from metaphase.detections import DetectionSet
from metaphase.errors import MetaphaseError, UsageError
from metaphase.slides import open_slide
from metaphase.tables import TableError, named, read_manifest


@dataclass(frozen=True, slots=True)
class Field:
    """The frame of one slide: its pixels' size and number (NaN where unknown)."""

    case: str
    mpp: float
    width: float
    height: float


@dataclass(frozen=True)
class Cohort:
    """The slides of an evaluation, one row each, in the form `read_manifest` gives."""

    manifest: pd.DataFrame
    source: str

    @property
    def cases(self) -> tuple[str, ...]:
        """The names of the slides, in manifest order."""
        return tuple(self.manifest["case"])

    def fields(self) -> list[Field]:
        """The frame of each slide, in manifest order."""
        columns = (self.manifest[name].tolist() for name in ("case", "mpp", "width", "height"))
        return [
            Field(str(case), mpp, width, height) for case, mpp, width, height in zip(*columns, strict=True)
        ]

    def mpp_by_name(self) -> dict[str, float]:
        """The resolution of each slide under every name it goes by."""
        known = self.mpp_by_case()
        return {name: known[cases[0]] for name, cases in self._names().items() if len(cases) == 1}

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

    def renamed(self, points: DetectionSet) -> DetectionSet:
        """The points with each slide under its case; slides are known by case, path, file name or stem."""
        case_of = self.case_names(points.slides, points.source)
        table = points.table.assign(slide=points.table["slide"].map(case_of).astype(object))
        return DetectionSet(table, tuple(dict.fromkeys(case_of.values())), points.source)

    def case_names(self, slides: Iterable[str], source: str) -> dict[str, str]:
        """The case of each slide named in `source`; an unknown or doubtful name is an error."""
        names = self._names()
        return {slide: self._case_of(slide, names, source) for slide in slides}

    def mpp_by_case(self) -> dict[str, float]:
        """The resolution of each case."""
        return dict(zip(self.manifest["case"], self.manifest["mpp"], strict=True))

    def _names(self) -> Mapping[str, list[str]]:
        names: dict[str, list[str]] = defaultdict(list)
        for case, he in zip(self.manifest["case"], self.manifest["he"], strict=True):
            file_names = (he, Path(he).name, Path(he).stem) if he else ()
            for name in {case, *file_names}:
                names[name].append(case)
        names.update({case: [case] for case in self.manifest["case"]})
        return names

    def _case_of(self, slide: str, names: Mapping[str, list[str]], source: str) -> str:
        found = names.get(slide) or names.get(Path(slide).name) or names.get(Path(slide).stem) or []
        if len(found) == 1:
            return found[0]
        if found:
            raise TableError(
                f"slide {slide} may be any of {named(found)}",
                path=source,
                next_step="name slides by their case in the manifest",
            )
        raise TableError(
            f"slide {slide} is not in {self.source} (which has {named(self.cases)})",
            path=source,
            next_step="add the slide to the manifest, or take its points out",
        )


def load_cohort(manifest: str | Path, mpp: float | None = None) -> Cohort:
    """Read a manifest and complete what it does not say about the pixels from the slides themselves."""
    return completed(Cohort(read_manifest(manifest), str(manifest)), mpp)


def cohort_of(slides: Iterable[str], source: str, mpp: float | None = None) -> Cohort:
    """A cohort where there is no manifest: the slides named in the truth, each its own patient."""
    cases = list(slides)
    stems = [case if Path(case).suffix else "" for case in cases]
    manifest = pd.DataFrame(
        {"case": cases, "he": stems, "phh3": "", "centre": "", "split": "", "patient": cases}
    )
    return completed(Cohort(manifest, source), mpp)


def completed(cohort: Cohort, mpp: float | None = None) -> Cohort:
    """The cohort with `mpp, width, height, area_mm2`; `mpp`, where given, holds for all slides.

    An area that is not stated is that of the whole image. A slide of unknown resolution is an error:
    distances in micrometres would be a guess.
    """
    if mpp is not None and not mpp > 0:
        raise UsageError(f"mpp is {mpp}", next_step="give micrometres per pixel, 0.25 for a usual 40x scan")
    manifest = cohort.manifest.copy()
    if not len(manifest):
        raise TableError("names no slide", path=cohort.source, next_step="there is nothing to evaluate")
    if mpp is not None:
        manifest["mpp"] = mpp
    manifest = fill_geometry(manifest)
    unknown = manifest["case"][~(manifest["mpp"] > 0)]
    if len(unknown):
        raise TableError(
            f"the resolution of {named(unknown)} is not known",
            path=cohort.source,
            next_step="give it with --mpp, or in the column mpp of the manifest",
        )
    whole = manifest["width"] * manifest["height"] * (manifest["mpp"] / 1000) ** 2
    stated = manifest["area_mm2"] if "area_mm2" in manifest.columns else pd.Series(np.nan, index=whole.index)
    manifest["area_mm2"] = pd.to_numeric(stated).astype(float).fillna(whole)
    return Cohort(manifest, cohort.source)


def slide_geometry(path: Path) -> dict[str, float]:
    """`width`, `height` and, where the file states it, `mpp`; nothing where there is no slide to open."""
    if not path.is_file():
        return {}
    try:
        with open_slide(path) as slide:
            found = {"width": float(slide.width), "height": float(slide.height)}
            if slide.info.resolution is not None:
                found["mpp"] = slide.info.resolution.mpp
    except MetaphaseError:
        return {}
    return found


def fill_geometry(manifest: pd.DataFrame) -> pd.DataFrame:
    """The manifest with `mpp, width, height`; what it does not say is asked of the H&E slides."""
    manifest = manifest.copy()
    for name in ("mpp", "width", "height"):
        column = manifest[name] if name in manifest.columns else pd.Series(np.nan, index=manifest.index)
        manifest[name] = pd.to_numeric(column).astype(float)
    for row in manifest.index[manifest[["mpp", "width", "height"]].isna().any(axis=1)]:
        for name, value in slide_geometry(Path(str(manifest.at[row, "he"]))).items():
            if np.isnan(manifest[name].to_numpy()[row]):
                manifest.loc[row, name] = value
    return manifest
