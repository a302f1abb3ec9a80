"""The observer study on disk: patches to judge, the key kept apart, the answers read back.

Detections are shuffled among distractors and exported as numbered patches; the key that tells which is which
stays in another folder. The answers give the observer's precision and, with a recall, the alternative F1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from pydantic import NonNegativeInt, PositiveFloat

from metaphase.base.errors import ResultWarning, ResultWarnings, UsageError, require
from metaphase.base.files import atomic_path, write_text
from metaphase.base.foreign import is_file
from metaphase.base.settings import settings
from metaphase.base.tables import TableError, as_text, named, read_table, require_columns, write_table
from metaphase.detections.files import detection_files, read_detections
from metaphase.detections.points import PAPER_POINTS
from metaphase.detections.table import MITOSIS
from metaphase.evaluation.comparison import Cohort, load_cohort
from metaphase.evaluation.metrics import Estimate, f1_of_rates
from metaphase.evaluation.operating_points import read_point
from metaphase.slides.opening import open_slide
from metaphase.slides.tiles import cut_square

# ---- the observer study ----

DETECTION, DISTRACTOR = "detection", "distractor"
KEY_COLUMNS = ("item", "kind", "slide", "x", "y", "probability")
YES = frozenset({"mitosis", "mitotic", "mitotic figure", "yes", "y", "1", "1.0", "true"})
NO = frozenset({"not", "no", "n", "non-mitosis", "lookalike", "artefact", "artifact", "0", "0.0", "false"})
UNSURE = frozenset({"unsure", "?", "maybe"})


@settings
class StudyConfig:
    """How many detections and distractors an observer sees, and how large their pictures are."""

    detections: NonNegativeInt | None = None
    """Detections drawn at random; None takes all."""

    distractors: NonNegativeInt | None = None
    """Distractors drawn at random; None takes as many as there are detections, or all there are."""

    patch_um: PositiveFloat = 32.0
    """Side of a patch; 32 um are 128 px at 0.25 um/px."""

    mpp: PositiveFloat = 0.25
    """Resolution of the exported patches in um/px."""

    seed: int = 0
    """The same seed gives the same sample in the same order."""

    def __post_init__(self) -> None:
        if self.patch_um / self.mpp < 8:
            raise UsageError(
                f"a patch of {self.patch_um} um at {self.mpp} um/px shows nothing",
                next_step="give at least 8 pixels",
            )


@dataclass(frozen=True)
class ObserverResult:
    """What one observer, or the majority of several, said."""

    observer: str
    judged: int
    """Detections with an answer; unsure ones count as not mitotic."""
    confirmed: int
    """Detections called mitosis."""
    precision: Estimate
    """Confirmed among judged, with its exact binomial interval."""
    distractors: int
    called_mitosis: int
    """Distractors called mitosis: how freely the observer says yes."""
    alternative_f1: float
    """F1 of this precision and the recall given; NaN without one."""


def plan_study(detections: pd.DataFrame, distractors: pd.DataFrame, config: StudyConfig) -> pd.DataFrame:
    """The key: which numbered item is which point, drawn and shuffled so that the number says nothing."""
    generator = np.random.default_rng(config.seed)
    wanted = len(detections) if config.detections is None else config.detections
    others = min(wanted, len(distractors)) if config.distractors is None else config.distractors
    drawn = (
        _drawn(detections, wanted, generator, DETECTION),
        _drawn(distractors, others, generator, DISTRACTOR),
    )
    key = pd.concat(drawn)
    if key.empty:
        raise UsageError("there is nothing to judge", next_step="give detections, or a lower threshold")
    digits = max(4, len(str(len(key))))
    key = key.iloc[generator.permutation(len(key))].reset_index(drop=True)
    return key.assign(item=[f"{number + 1:0{digits}}" for number in key.index])[list(KEY_COLUMNS)]


def read_answers(path: Path, key: pd.DataFrame) -> pd.Series[bool]:
    """Read an answer sheet: by item, True for mitosis; every item of the key must have exactly one answer."""
    frame = read_table(path)
    require_columns(frame, ("item", "answer"), path)
    stated = as_text(frame["item"]).str.strip()
    if (stated == "").any():
        raise TableError("a row names no item", path=path, next_step="give each answer its item")
    items = stated.str.zfill(len(str(key["item"].iloc[0])))
    _refuse(items[items.duplicated()], "answered more than once", "keep one answer per item", path)
    _refuse(items[~items.isin(key["item"])], "not of this study", "give the answers to this key", path)
    said = as_text(frame["answer"]).str.strip().str.lower()
    _refuse(key["item"][~key["item"].isin(items[said != ""])], "not answered", "answer them too", path)
    odd = said[~said.isin(YES | NO | UNSURE)]
    _refuse(odd, "no answer", f"answer {MITOSIS}, not or unsure", path)
    answers = pd.Series(said.isin(YES).to_numpy(bool), index=items)
    return answers.loc[key["item"]]


def judge(
    key: pd.DataFrame, answers: pd.Series[bool], recall: float | None = None, observer: str = "observer"
) -> ObserverResult:
    """The detector's precision by an observer's answers, and the F1 that follows with a known recall."""
    said = answers.to_numpy(bool)
    real = (key["kind"] == DETECTION).to_numpy(bool)
    precision = proportion(int(said[real].sum()), int(real.sum()))
    require(recall is None or 0 <= recall <= 1, "recall", recall, "from 0 to 1")
    return ObserverResult(
        observer=observer,
        judged=int(real.sum()),
        confirmed=int(said[real].sum()),
        precision=precision,
        distractors=int((~real).sum()),
        called_mitosis=int(said[~real].sum()),
        alternative_f1=float("nan") if recall is None else f1_of_rates(precision.value, recall),
    )


def proportion(count: int, total: int) -> Estimate:
    """A share with its exact (Clopper-Pearson) 95 % interval; undefined of nothing.

    >>> str(proportion(128, 181))
    '0.707 [0.635, 0.772]'
    """
    if not total:
        return Estimate(float("nan"))
    from scipy.stats import binomtest  # takes a second to import, and few commands want it

    interval = binomtest(count, total).proportion_ci(0.95)
    return Estimate(count / total, float(interval.low), float(interval.high))


def majority(answers: list[pd.Series[bool]]) -> pd.Series[bool]:
    """Mitosis where more than half of the observers say so."""
    return pd.concat(answers, axis=1).mean(axis=1) > 0.5


def _drawn(points: pd.DataFrame, count: int, generator: np.random.Generator, kind: str) -> pd.DataFrame:
    if count > len(points):
        raise UsageError(
            f"{count} {kind}s are wanted and there are {len(points)}", next_step="ask for fewer, or add more"
        )
    rows = np.sort(generator.permutation(len(points))[:count])
    return points.iloc[rows].assign(kind=kind)


def _refuse(names: pd.Series[str], what: str, next_step: str, path: Path) -> None:
    if len(names):
        raise TableError(f"{len(names)} items {what}: {named(names)}", path=path, next_step=next_step)


# ---- the observer study on disk ----

PATCHES, ANSWERS = "patches", "answers.csv"
_README = """Each picture in patches/ shows one object in its middle. Write into answers.csv, beside its
number, `mitosis`, `not` or `unsure`, for every row.
"""


@dataclass(frozen=True)
class ObserverStudy:
    """What a blind study asks."""

    key: pd.DataFrame
    """One row a patch: `item, kind, slide, x, y, probability`. Not for the observer."""
    warnings: ResultWarnings = ()
    """What the files held that became no point."""


def export_observers(
    detections: Path,
    manifest: Path,
    output: Path,
    *,
    key: Path,
    threshold: float | None = None,
    config: StudyConfig | None = None,
    paper: bool = False,
) -> ObserverStudy:
    """Write a blind study of the detections at or above `threshold`.

    By default that is the point for single mitoses which tables of `metaphase detect` state, else 0. With
    `paper` it is the paper's study: every detection at that point (0.919 where none is stated), alone.
    Distractors are detections below the threshold. `key` is a file outside `output`, which goes to the
    observer whole.
    """
    config = config or StudyConfig()
    if paper:
        if config.detections is not None:
            raise UsageError(
                "the paper's study has every detection and nothing else",
                next_step="leave out how many detections there shall be, or --paper",
            )
        config = replace(config, distractors=0)
    if output.resolve() in key.resolve().parents:
        raise UsageError(
            "the key would lie in the observer's folder", path=key, next_step="keep it somewhere else"
        )
    cohort = load_cohort(manifest)
    read = cohort.rename_slides(read_detections(detections, mpp=cohort.mpp_by_name())).of_label(MITOSIS)
    points = read.table
    if threshold is None:
        stated = read_point(detection_files(detections), "mitoses")
        unstated = PAPER_POINTS.mitoses.delta if paper else 0.0
        threshold = unstated if stated is None else stated.delta
    counted = points["probability"] >= threshold
    others = points[~counted]
    warnings = read.warnings
    if not len(others) and config.distractors is None:
        text = "nothing is mixed with the detections: the observer knows what every patch is"
        warnings += (ResultWarning("no-distractors", text, "give candidates.parquet, or --paper"),)
    planned = plan_study(points[counted], others, config)
    _write_patches(planned, cohort, output / PATCHES, config)
    write_table(output / ANSWERS, pd.DataFrame({"item": planned["item"], "answer": ""}))
    write_text(output / "README.txt", _README)
    write_table(key, planned)
    return ObserverStudy(planned, warnings)


def read_observers(
    key: Path, answers: Sequence[Path], *, recall: float | None = None
) -> list[ObserverResult]:
    """The results of each answer sheet, and of the majority where there are several.

    `recall` is that of the detector against a truth, for the alternative F1.
    """
    planned = read_table(key)
    require_columns(planned, ("item", "kind"), key)
    if planned.empty:
        raise TableError("the key has no item", path=key, next_step="give the key of the study, whole")
    if not answers:
        raise UsageError("no answers are given", next_step="name the observers' answer files")
    names = [path.stem if path.name != ANSWERS else path.parent.name for path in answers]
    sheets = [read_answers(path, planned) for path in answers]
    results = [judge(planned, said, recall, name) for name, said in zip(names, sheets, strict=True)]
    if len(sheets) > 1:
        results.append(judge(planned, majority(sheets), recall, "majority"))
    return results


def _write_patches(planned: pd.DataFrame, cohort: Cohort, folder: Path, config: StudyConfig) -> None:
    """One PNG an item, slide by slide, so that each slide is opened once."""
    path_of = dict(zip(cohort.manifest["case"], cohort.manifest["he"], strict=True))
    mpp_of = cohort.mpp_by_case()
    absent = [case for case in planned["slide"].unique() if not is_file(path_of[case])]
    if absent:
        raise TableError(
            f"the slides of {named(absent)} are not there",
            path=cohort.source,
            next_step="correct the column he of the manifest",
        )
    side = round(config.patch_um / config.mpp)
    for case, items in planned.groupby("slide", sort=False):
        with open_slide(path_of[case], mpp=mpp_of[str(case)]) as slide:
            for item, x, y in zip(items["item"], items["x"], items["y"], strict=True):
                pixels = cut_square(slide, x, y, side, config.mpp)
                with atomic_path(folder / f"{item}.png") as temporary:
                    Image.fromarray(pixels).save(temporary, format="PNG")
