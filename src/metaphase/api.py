"""The package in Python: `import metaphase as mp`.

Each function is the command of its name, by the same route and with the same numbers. A slide is a path, an
open `Slide`, or an array of its pixels with `mpp`; points are a file, a folder, a table with x and y in
level-0 pixels, or a `Result`.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
import pandas as pd

from metaphase.analysis.cohort import CohortSlide, named_slides, names_in, without_resolution
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.record import SlideResult as Result
from metaphase.analysis.record import load_result
from metaphase.analysis.run import SlideOutcome, detect_cohort, detect_slide
from metaphase.analysis.scoring import (
    count_cohort,
    count_points,
    read_cases,
    site_for,
    sites_beside,
    stored_results,
)
from metaphase.base.arrays import RGB
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.sharing.batch import BatchWatch, Progress
from metaphase.base.tables import write_table
from metaphase.counting.clinical import SlideCount
from metaphase.counting.sites import load_profile
from metaphase.counting.specimen import CountConfig
from metaphase.evaluation.mitoses import MitosisResult, evaluate_mitoses
from metaphase.labels.registration.outputs import Annotations, Registered, register_slides
from metaphase.labels.registration.similarity import RegistrationConfig
from metaphase.networks.detector import ReadyDetector, load_detector, plain_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.slides.contract import WORKING_MPP, Slide
from metaphase.slides.opening import SlideSource, open_slide, source_of

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

PATH = (str, os.PathLike)
AnySlide = str | os.PathLike[str] | Slide | RGB
Points = str | os.PathLike[str] | pd.DataFrame | Result
RESULTS, REGISTERED = Path("metaphase-results"), Path("metaphase-registered")
"""Where results lie for which no folder is named."""


def load_model(*models: str | Path, device: str | None = None, precision: str = "auto") -> ReadyDetector:
    """A detector for many slides: by the name of a bundled one or by file; several are averaged.

    `device` and `precision` are those of `metaphase detect`.
    """
    config = EngineConfig(device=device, precision=precision)  # type: ignore[arg-type]
    return ReadyDetector(load_detector(models), config)


def use_network(
    network: nn.Module,
    name: str,
    *,
    mpp: float = WORKING_MPP,
    patch_px: int | None = None,
    stride_px: int = 8,
    device: str | None = None,
) -> ReadyDetector:
    """A detector of a network of your own, as PyTorch has it; `plain_detector` tells what it must be like.

    With `patch_px` it is any classifier of patches of that side. It is shown a window every `stride_px`, a
    multiple of 4, which is slow: a warning says how many there are. There is no operating point: give a
    threshold, or the paper's 0.8 serves.
    """
    if patch_px is not None:
        from metaphase.networks.engine.layers import PatchNetwork

        network, count = PatchNetwork(network, patch_px, stride_px), (1000 / (mpp * stride_px)) ** 2
        advice = "a larger stride_px, or a network without padding that answers every 4 px, is faster"
        warnings.warn(f"{name} sees {count:,.0f} windows per mm2 one by one, slowly; {advice}", stacklevel=2)
    return ReadyDetector(plain_detector(network, name, mpp), EngineConfig(device=device))


class _Options(TypedDict, total=False):
    model: str | Path | ReadyDetector | None
    mpp: float | None
    tissue: str
    threshold: float | None
    config: DetectionConfig | None
    progress: Progress | None


@overload
def detect(  # type: ignore[overload-overlap]  # a str is also an iterable
    slide: AnySlide, output: str | Path | None = None, **options: Unpack[_Options]
) -> Result: ...
@overload
def detect(
    slide: Iterable[AnySlide], output: str | Path | None = None, **options: Unpack[_Options]
) -> list[Result]: ...
def detect(
    slide: AnySlide | Iterable[AnySlide],
    output: str | Path | None = None,
    *,
    model: str | Path | ReadyDetector | None = None,
    mpp: float | None = None,
    tissue: str = "",
    threshold: float | None = None,
    config: DetectionConfig | None = None,
    progress: Progress | None = None,
) -> Result | list[Result]:
    """Find the mitoses of a slide, or of each of several, as `metaphase detect SLIDE... -o OUTPUT` does.

    The files lie in `output/NAME`, without `output` in `metaphase-results/NAME` of the working folder; what
    is there and still holds is kept. An array is written there first, without loss, named after its pixels.
    Several slides give a list in their order, and an index of all. One that fails does not stop the others:
    the error at the end names it, and a further call takes what is done. `threshold` goes before that of
    `config`; `tissue` is a mask's file, or `whole`; `progress` is called with the mm2 done of a slide and all
    of them.
    """
    folder = RESULTS if output is None else Path(output)
    several = isinstance(slide, Iterable) and not isinstance(slide, str | np.ndarray)
    given: Iterable[object] = slide if several else [slide]  # type: ignore[assignment]
    files = [Path(each) if isinstance(each, PATH) else _source(each, mpp, folder) for each in given]
    chosen = names_in(folder, named_slides(files, mpp=mpp, tissue=str(tissue)).values())
    if output is None:
        _refuse_others(chosen)
    unknown = without_resolution(chosen)
    if unknown and len(unknown) == len(chosen):
        raise next(iter(unknown.values()))
    config = config or DetectionConfig()
    config = config if threshold is None else replace(config, threshold=threshold)
    ready = _ready(model, config.models)
    if not several:
        return _result(detect_slide(chosen[0], folder / chosen[0].name, ready, config, progress=progress))
    done = detect_cohort(chosen, folder, ready, config, watch=BatchWatch(progress))
    if done.failures:
        problems = "; ".join(f"{each.name}: {each.message.rstrip('.')}" for each in done.failures)
        raise MetaphaseError(
            f"{len(done.failures)} of {len(chosen)} slides failed ({problems})",
            path=folder,
            next_step="read its errors.log, leave these slides out and call it again; finished ones are kept",
        )
    return [_result(each) for each in done.results.values()]


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

    Where nothing else is given, they are counted at the operating point that they carry, else from 0.8 on;
    results of a slide by their own profile, as they stand.
    """
    as_stored = tissue and (slide, mpp, area_mm2, threshold, theta1, theta2) == (None,) * 6
    if as_stored and (card, site, config) == (None,) * 3:
        stored = [detections] if isinstance(detections, Result) else _stored(detections)
        if len(stored) == 1:
            return stored[0].record.bare
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="metaphase-"))
        source = None if slide is None else _source(slide, mpp, Path(scratch))
        file = stack.enter_context(_file_of(detections, "slide" if source is None else source.path.stem))
        thresholds = () if threshold is None else (threshold,)
        card = None if card is None else Path(card)
        (point,) = count_points([file], card, thresholds, theta1=theta1, theta2=theta2)
        given = mpp if source is None else source.mpp
        path = None if source is None else source.path
        cases = read_cases([file], slide=path, mpp=given, area_mm2=area_mm2)
        if len(cases) != 1:
            raise UsageError(
                f"the detections belong to {len(cases)} slides",
                path=file,
                next_step="give those of one slide at a time",
            )
        profile = None if site is None else site_for(Path(site), [file])
        beside = sites_beside([file]) if site is None and card is None else {}
        batch = count_cohort(cases, [point], config, tissue=tissue, site=profile, sites=beside)
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
    `accept_doubtful`, after looking at its picture. Without `output` the files lie in
    `metaphase-registered/HE-PHH3`, by the slides' names.
    """
    above = REGISTERED if output is None else Path(output)
    first, second = _source(he, None, above), _source(phh3, None, above)
    folder = above / f"{first.path.stem}-{second.path.stem}" if output is None else above
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
    return Registered(folder, summary)


def evaluate(truth: Points, predictions: Points, **options: Any) -> MitosisResult:
    """Compare detections with the truth, as `metaphase evaluate mitoses` does.

    `options` are those of `metaphase.evaluation.evaluate_mitoses`: mpp, manifest, by, matching and so on.
    """
    with _file_of(truth, "slide") as true, _file_of(predictions, "slide") as found:
        return evaluate_mitoses(true, found, **options)


# ---- what is given, as files ----


def _source(slide: object, mpp: float | None, folder: Path) -> SlideSource:
    """The file of a slide and the resolution given for it; pixels in memory are written into the folder."""
    if isinstance(slide, PATH):
        return SlideSource(Path(slide), mpp)
    opened = slide if isinstance(slide, Slide) else open_slide(slide, mpp=mpp)  # type: ignore[arg-type]
    return source_of(opened, folder, mpp)


def _path(value: object, what: str, next_step: str) -> Path:
    if isinstance(value, PATH):
        return Path(value)
    raise UsageError(f"{type(value).__name__} is not a {what}", next_step=next_step)


def _ready(model: object, default: Sequence[str] = ()) -> ReadyDetector:
    """A detector as it is, or by name or file; the bundled one, or the `default`, where none is given."""
    if isinstance(model, ReadyDetector):
        return model
    others = "give a name or a file, mp.load_model(...) for several, or mp.use_network(network, name)"
    return load_model(*(default if model is None else [_path(model, "model", others)]))


def _refuse_others(chosen: Iterable[CohortSlide]) -> None:
    """Where nobody named a folder, results of another slide of the same name are not replaced."""
    for slide in chosen:
        try:
            before = load_result(RESULTS / slide.name).source.path
        except MetaphaseError:  # nothing is finished there, or its slide is gone
            continue
        if before.resolve() != slide.slide.path.resolve():
            raise UsageError(
                f"its results would replace those of {before}",
                path=slide.slide.path,
                next_step="name a folder: mp.detect(slide, output)",
            )


def _stored(points: object) -> list[Result]:
    """The results in a folder of `metaphase detect`."""
    return stored_results([Path(points)]) if isinstance(points, PATH) else []


@contextmanager
def _file_of(points: object, name: str) -> Iterator[Any]:
    """The file or folder of points; a table becomes a file of that slide's name for as long as it is read."""
    if isinstance(points, Result):
        yield points.folder
    elif isinstance(points, pd.DataFrame):
        with tempfile.TemporaryDirectory(prefix="metaphase-") as folder:
            write_table(Path(folder) / f"{name}.parquet", points)
            yield Path(folder) / f"{name}.parquet"
    else:
        others = "give a file, a folder, a pandas table with x and y, or a Result"
        yield None if points is None else _path(points, "table of points", others)


# ---- what comes back ----


def _result(done: SlideOutcome) -> Result:
    """The result; its tables are read now, for a later call may write into the same folder."""
    result = Result(done.folder, done.record)
    _ = result.table, result.candidates
    return result
