"""The package in Python: `import metaphase as mp`.

Each function is the command of its name, by the same route and with the same numbers. A slide is a path or an
open `Slide`; points are a file, a folder, a table with x and y in level-0 pixels, or a `Result`.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from metaphase.base.batch import Progress
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.tables import write_table
from metaphase.counting import CountConfig, SlideCount
from metaphase.evaluation import MitosisResult, evaluate_mitoses
from metaphase.evaluation.sites import SiteProfile, load_profile
from metaphase.jobs.cohort import CohortSlide, named_slides, without_resolution
from metaphase.jobs.counting import count_cohort, count_points, read_cases, site_for
from metaphase.jobs.detection import detect_slide
from metaphase.jobs.detection_config import DetectionConfig
from metaphase.jobs.registration import Registered, register_slides
from metaphase.jobs.results import SlideResult as Result
from metaphase.jobs.results import load_result
from metaphase.labels.registration import Annotations, RegistrationConfig
from metaphase.networks.detector import ReadyDetector, load_detector, plain_detector
from metaphase.networks.engine import EngineConfig
from metaphase.slides import WORKING_MPP, Slide, SlideSource, open_slide

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "CountConfig",
    "DetectionConfig",
    "MetaphaseError",
    "RegistrationConfig",
    "Result",
    "Slide",
    "detect",
    "evaluate",
    "load_model",
    "load_profile",
    "load_result",
    "open_slide",
    "register",
    "score",
    "use_network",
]

AnySlide = str | Path | Slide
Points = str | Path | pd.DataFrame | Result
Kept = TypeVar("Kept", Result, Registered)


def load_model(*models: str | Path, device: str | None = None, precision: str = "auto") -> ReadyDetector:
    """A detector for many slides: by the name of a bundled one or by file; several are averaged.

    `device` and `precision` are those of `metaphase detect`.
    """
    config = EngineConfig(device=device, precision=precision)  # type: ignore[arg-type]
    return ReadyDetector(load_detector(models), config)


def use_network(
    network: nn.Module, name: str, *, mpp: float = WORKING_MPP, device: str | None = None
) -> ReadyDetector:
    """A detector of a network of your own, as PyTorch has it; `plain_detector` tells what it must be like.

    It has no operating point: give a threshold, or the paper's 0.8 serves.
    """
    return ReadyDetector(plain_detector(network, name, mpp), EngineConfig(device=device))


def detect(
    slide: AnySlide,
    output: str | Path | None = None,
    *,
    model: str | Path | ReadyDetector | None = None,
    mpp: float | None = None,
    tissue: str = "",
    config: DetectionConfig | None = None,
    progress: Progress | None = None,
) -> Result:
    """Find the mitoses of a slide, as `metaphase detect SLIDE -o OUTPUT` does.

    The files lie in `output/NAME`; what is there and still holds is kept. Without `output` they are temporary
    and go with the result. `tissue` is a mask's file, or `whole`; `progress` is called with the mm2 done and
    all of them.
    """
    chosen = _cohort_slide(slide, mpp, tissue)
    for error in without_resolution([chosen]):
        raise error
    ready = model if isinstance(model, ReadyDetector) else load_model(*([] if model is None else [model]))
    folder, temporary = _folder(output)
    try:
        done = detect_slide(chosen, folder / chosen.name, ready, config, progress=progress)
    except BaseException:
        _remove(temporary)
        raise
    return _kept(Result(done.folder, done.summary), temporary)


def score(
    detections: Points,
    *,
    slide: AnySlide | None = None,
    mpp: float | None = None,
    area_mm2: float | None = None,
    tissue: bool = True,
    threshold: float | None = None,
    theta1: float | None = None,
    theta2: float | None = None,
    card: str | Path | None = None,
    site: str | Path | None = None,
    config: CountConfig | None = None,
) -> SlideCount:
    """Count and grade the points of one slide, as `metaphase score` does, whoever found them.

    Where nothing else is given, they are counted at the operating point that they carry, else from 0.8 on.
    """
    source = None if slide is None else _source(slide, mpp)
    with _file_of(detections, "slide" if source is None else source.path.stem) as file:
        thresholds = () if threshold is None else (threshold,)
        card = None if card is None else Path(card)
        (point,) = count_points([file], card, thresholds, theta1=theta1, theta2=theta2)
        given = mpp if source is None else source.mpp
        path = None if source is None else source.path
        cases = read_cases([file], slide=path, mpp=given, area_mm2=area_mm2)
        if len(cases) != 1:
            raise UsageError(
                f"the detections are of {len(cases)} slides",
                path=file,
                next_step="give one slide's at a time",
            )
        profile: SiteProfile | None = None if site is None else site_for(Path(site), [file])
        batch = count_cohort(cases, [point], config, tissue=tissue, site=profile)
    for failure in batch.failures:
        raise MetaphaseError(failure.message.rstrip("."))
    (counts,) = batch.results.values()
    return counts[0]


def register(
    he: AnySlide,
    phh3: AnySlide,
    output: str | Path | None = None,
    *,
    points: Points | None = None,
    annotations: Annotations | None = None,
    config: RegistrationConfig | None = None,
    accept_doubtful: bool = False,
) -> Registered:
    """Register a PHH3 slide with the H&E slide of the same section, as `metaphase register` does.

    `points` of the PHH3 slide come back in H&E coordinates; those of a doubtful pair only with
    `accept_doubtful`, after looking at its picture. Without `output` the files are temporary and go
    with the result.
    """
    first, second = _source(he), _source(phh3)
    folder, temporary = _folder(output)
    try:
        with _file_of(points, second.path.stem) as file:
            summary, _ = register_slides(
                first,
                second,
                folder,
                points=file,
                annotations=annotations,
                config=config,
                accept_doubtful=accept_doubtful,
            )
    except BaseException:
        _remove(temporary)
        raise
    return _kept(Registered(folder, summary), temporary)


def evaluate(truth: Points, predictions: Points, **options: Any) -> MitosisResult:
    """Compare detections with the truth, as `metaphase evaluate mitoses` does.

    `options` are those of `metaphase.evaluation.evaluate_mitoses`: mpp, manifest, by, matching and so on.
    """
    with _file_of(truth, "slide") as true, _file_of(predictions, "slide") as found:
        return evaluate_mitoses(true, found, **options)


# ---- what is given, as files ----


def _source(slide: AnySlide, mpp: float | None = None) -> SlideSource:
    """The file of a slide and the resolution given for it."""
    if not isinstance(slide, Slide):
        return SlideSource(Path(slide), mpp)
    if slide.info.path is None:
        raise UsageError(
            "a slide in memory has no file to come back to",
            next_step="write it first, with metaphase.slides.write_pyramid, and give the path",
        )
    stated = slide.info.resolution
    flag = stated.mpp if stated is not None and stated.source == "flag" else None
    return SlideSource(slide.info.path, flag if mpp is None else mpp)


def _cohort_slide(slide: AnySlide, mpp: float | None, tissue: str) -> CohortSlide:
    source = _source(slide, mpp)
    (chosen,) = named_slides([source.path], mpp=source.mpp, tissue=str(tissue)).values()
    return chosen


@contextmanager
def _file_of(points: Points | None, name: str) -> Iterator[Any]:
    """The file or folder of points; a table becomes a file of that slide's name for as long as it is read."""
    if isinstance(points, Result):
        yield points.folder
    elif isinstance(points, pd.DataFrame):
        with tempfile.TemporaryDirectory(prefix="metaphase-") as folder:
            write_table(Path(folder) / f"{name}.parquet", points)
            yield Path(folder) / f"{name}.parquet"
    else:
        yield None if points is None else Path(points)


# ---- what comes back, in folders ----


def _folder(output: str | Path | None) -> tuple[Path, Path | None]:
    """The folder for results, and the same where nobody wants to keep it."""
    if output is not None:
        return Path(output), None
    temporary = Path(tempfile.mkdtemp(prefix="metaphase-"))
    return temporary, temporary


def _remove(temporary: Path | None) -> None:
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)


def _kept(result: Kept, temporary: Path | None) -> Kept:
    """The result; its folder is there as long as it is."""
    if temporary is not None:
        weakref.finalize(result, _remove, temporary)
    return result
