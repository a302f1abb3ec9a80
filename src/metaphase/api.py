"""The package in Python: `import metaphase as mp`.

Each function is the command of its name, by the same route and with the same numbers. A slide is a path, an
open `Slide`, or pixels with `mpp`; points are a file, a folder, a table with x and y in level-0 pixels, or a
`Result`. Settings are keywords, called as in the command's `--set`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

import numpy as np
import pandas as pd
from PIL import Image

from metaphase.analysis.cohort import CohortSlide, named_slides, names_in, with_regions, without_resolution
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.record import SlideResult as Result
from metaphase.analysis.record import load_result as load_slide
from metaphase.analysis.record import load_results as load_slides
from metaphase.analysis.run import SlideOutcome, detect_cohort, detect_slide
from metaphase.analysis.scoring import (
    count_cohort,
    count_points,
    read_cases,
    site_for,
    sites_beside,
    stored_results,
)
from metaphase.analysis.tissue import outline_slides
from metaphase.base.arrays import RGB
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.settings import fields_of_view, refuse_unknown
from metaphase.base.sharing.batch import Batch, BatchWatch, Progress
from metaphase.base.tables import read_table, write_table
from metaphase.counting.clinical import SlideCount, counts_table
from metaphase.counting.likely import ObserverError
from metaphase.counting.sites import SampleConfig, SiteProfile, load_profile, save_profile
from metaphase.counting.specimen import CountConfig
from metaphase.detections.files import result_folders
from metaphase.evaluation.marks import MatchingConfig
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.evaluation.mitoses import MitosisResult, evaluate_mitoses
from metaphase.images.tissue.finding import TissueConfig, TissueMask, find_tissue, load_tissue
from metaphase.labels.observers.project import ITEMS
from metaphase.labels.registration.outputs import Annotations, Registered, register_slides
from metaphase.labels.registration.similarity import RegistrationConfig
from metaphase.learn.calibration import DETECTIONS, SAMPLE, draw_sample, fit_profile
from metaphase.networks.detector import ReadyDetector, load_detector, plain_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.slides.arrays import is_pixels
from metaphase.slides.contract import WORKING_MPP, Slide
from metaphase.slides.opening import SlideSource, open_slide, source_of

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "Calibration",
    "CountConfig",
    "DetectionConfig",
    "MetaphaseError",
    "RegistrationConfig",
    "Result",
    "Results",
    "Slide",
    "calibrate",
    "demo_field",
    "detect",
    "evaluate",
    "load_model",
    "load_profile",
    "load_result",
    "load_results",
    "open_slide",
    "register",
    "score",
    "tissue",
    "use_network",
]

PATH = (str, os.PathLike)
AnySlide = Any
"""A path, an open `Slide`, or pixels of NumPy, PIL, dask, zarr, xarray or HDF5."""
Points = str | os.PathLike[str] | pd.DataFrame | Result
Settings = TypeVar("Settings")
RESULTS, REGISTERED = Path("metaphase-results"), Path("metaphase-registered")
"""Where results lie for which no folder is named."""


def demo_field(number: int = 0) -> RGB:
    """Pixels of a real breast carcinoma that comes with the package, to try things on.

    Parameters:
        number: Which of the four fields of BreCaHAD (Aksac et al. 2019, CC BY 4.0), 0 to 3.

    Returns:
        RGB (1024, 1360, 3) of uint8, at 0.25 um/px.

    Raises:
        UsageError: There is no such field.

    Examples:
        >>> mp.demo_field().shape
        (1024, 1360, 3)
    """
    known = list(fields_of_view().values())
    if number not in range(len(known)):
        raise UsageError(f"there is no field {number}", next_step=f"give 0 to {len(known) - 1}")
    with Image.open(known[number]) as image:
        return np.asarray(image)


@overload
def tissue(
    slide: list[AnySlide] | tuple[AnySlide, ...],
    output: str | Path | None = None,
    *,
    mpp: float | None = None,
    **settings: float,
) -> list[TissueMask]: ...
@overload
def tissue(
    slide: AnySlide, output: str | Path | None = None, *, mpp: float | None = None, **settings: float
) -> TissueMask: ...
def tissue(
    slide: Any, output: str | Path | None = None, *, mpp: float | None = None, **settings: float
) -> TissueMask | list[TissueMask]:
    """Outline the tissue of a slide, or of each of several, as `metaphase tissue` does.

    Parameters:
        slide: A slide, or several.
        output: A folder for mask (PNG), polygons (GeoJSON) and picture; by default nothing is written.
        mpp: Micrometres per pixel of pixels, and of files that state none.
        settings: Without `output`, how tissue is found: `min_object_um2`, `bridge_um`, ... of `TissueConfig`.

    Returns:
        A `TissueMask`, or a list of them: `area_mm2`, `polygons()` in level-0 pixels, `mask`, `to_geojson()`.

    Raises:
        MetaphaseError: A slide cannot be read, or states no resolution.

    Examples:
        >>> mask = mp.tissue(mp.demo_field(), mpp=0.25)
        >>> round(mask.area_mm2, 2), len(mask.polygons())
        (0.09, 1)
    """
    given, several = _listed(slide)
    if output is None:
        config = _set(TissueConfig(), settings, "mp.tissue")
        found = [_outline(one, mpp, config) for one in given]
    else:
        refuse_unknown(settings, (), "mp.tissue with an output")
        sources = [_source(one, mpp, Path(output)) for one in given]
        batch = outline_slides(named_slides(sources, mpp=mpp), output)
        _refuse_failed(batch, Path(output))
        found = [load_tissue(one.files[0]) for one in batch.results.values()]
    return found if several else found[0]


def load_model(*models: str | Path, device: str | None = None, precision: str = "auto") -> ReadyDetector:
    """A detector that is loaded once, for many slides.

    Parameters:
        models: Names of bundled models or files of weights; several are averaged. By default `breast`.
        device: cpu, cuda, cuda:N; by default an NVIDIA GPU if there is one.
        precision: `auto`, `fast` or `float32`, as for `metaphase detect`.

    Returns:
        A detector for `model=`; `predict(pixels)` gives probabilities of pixels at its `mpp`.

    Raises:
        ModelError: There is no such model, or its file is damaged.

    Examples:
        >>> model = mp.load_model("breast", device="cpu")
        >>> model.predict(mp.demo_field()[300:400, 440:540]).shape  # a value for every 4 x 4 px
        (25, 25)
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
    """A detector of a network of your own, as PyTorch has it.

    There is no operating point: give a threshold, or the paper's 0.8 serves.

    Parameters:
        network: Takes RGB (n, 3, rows, columns) from 0 to 1. A classifier of patches answers with one logit,
            or two for "no" and "yes"; a fully convolutional one that pads nothing and sees 97 px with two
            (n, 2, ...) every 4 px.
        name: What results call it.
        mpp: The resolution that it was trained at.
        patch_px: Side of a classifier's patches; leave it out for a fully convolutional network.
        stride_px: From one patch to the next, a multiple of 4; small ones are slow, and a warning says so.
        device: As for `load_model`.

    Returns:
        A detector for `model=`, as of `load_model`.

    Raises:
        MetaphaseError: The network does not answer in one of these ways.

    Examples:
        >>> from torch import nn  # doctest: +SKIP
        >>> mp.use_network(nn.Conv2d(3, 2, 97, stride=4), "mine")  # doctest: +SKIP
        ReadyDetector(mine, 0.25 um/px)
    """
    if patch_px is not None:
        from metaphase.networks.engine.layers import PatchNetwork

        network, count = PatchNetwork(network, patch_px, stride_px), (1000 / (mpp * stride_px)) ** 2
        advice = "a larger stride_px, or a network without padding that answers every 4 px, is faster"
        warnings.warn(f"{name} sees {count:,.0f} windows per mm2 one by one, slowly; {advice}", stacklevel=2)
    return ReadyDetector(plain_detector(network, name, mpp), EngineConfig(device=device))


class Results(list[Result]):
    """The results of several slides: a list in their order, and tables of all of them."""

    @property
    def counts(self) -> pd.DataFrame:
        """A row for each slide: count, interval, score and where the circle lies."""
        return counts_table([(one.name, one.record) for one in self])

    @property
    def table(self) -> pd.DataFrame:
        """The detections of all slides, one row each; the column `slide` says whose it is."""
        return pd.concat([one.table for one in self], ignore_index=True) if self else pd.DataFrame()

    def _repr_html_(self) -> str:
        return self.counts[["case", "count", "score"]].to_html(index=False)

    def __repr__(self) -> str:
        return "\n".join(f"{one.name}: mitotic count {one.in_force}" for one in self) or "no slides"


class DetectSettings(TypedDict, total=False):
    """The keywords of `detect` beside the slides."""

    model: str | Path | ReadyDetector | None
    mpp: float | None
    tissue: str | Path
    region: str | Path | None
    site: str | Path | SiteProfile | None
    config: DetectionConfig | None
    progress: bool | Progress | None
    on_slide: Callable[[Result], object] | None
    threshold: float | None
    theta1: float | None
    theta2: float | None
    floor: float | None
    suppress_um: float | None
    smooth_um: float | None
    any_stain: bool
    allow_damage: bool
    paper: bool
    probability_map: bool
    formats: Sequence[str]
    tile_px: int | None
    field_diameter_mm: float
    percentile: float
    seed: int
    device: str | None
    precision: str


@overload
def detect(
    slide: list[AnySlide] | tuple[AnySlide, ...] | Iterator[AnySlide],
    output: str | Path | None = None,
    **settings: Unpack[DetectSettings],
) -> Results: ...
@overload
def detect(
    slide: AnySlide, output: str | Path | None = None, **settings: Unpack[DetectSettings]
) -> Result: ...
def detect(
    slide: Any,
    output: str | Path | None = None,
    *,
    model: str | Path | ReadyDetector | None = None,
    mpp: float | None = None,
    tissue: str | Path = "",
    region: str | Path | None = None,
    site: str | Path | SiteProfile | None = None,
    config: DetectionConfig | None = None,
    progress: bool | Progress | None = None,
    on_slide: Callable[[Result], object] | None = None,
    **settings: Any,
) -> Result | Results:
    """Find the mitoses of a slide, or of each of several, as `metaphase detect SLIDE... -o OUTPUT` does.

    What is in the folder and still holds is kept: another threshold costs seconds. A slide that fails does
    not stop the others; the error at the end names it, and a further call takes what is done.

    Parameters:
        slide: A slide, or any iterable of slides. Pixels are written to `output` first, without loss and a
            tile at a time, named after what they show: report, review and other programs need a file.
        output: A folder, in which each slide has its own; by default `metaphase-results`.
        model: A name, a file, or what `load_model` or `use_network` gave; by default `breast`.
        mpp: Micrometres per pixel of pixels, and of files that state none.
        tissue: A mask of `metaphase tissue`, or `whole` to search everything; by default tissue is found.
        region: A file with regions where figures count, or do not; or a folder with one for each slide.
        site: The laboratory's profile (`calibrate`), or its file: the interval becomes narrower.
        config: A `DetectionConfig`; `settings` go before what it says.
        progress: True draws a line on stderr. A function is called after each tile with the mm2 that are
            done of a slide, and all of them.
        on_slide: Called with each `Result`, as soon as it is there.
        settings: What `metaphase detect` takes: `threshold`, `theta1`, `theta2`, `floor`, `suppress_um`,
            `smooth_um`, `any_stain`, `allow_damage`, `paper`, `probability_map`, `formats`, `tile_px`;
            `field_diameter_mm`, `percentile` and `seed` of the count; `device` and `precision` of a model
            that is not loaded yet.

    Returns:
        A `Result`: `count`, `likely` (true figures in the circle, with a 95 % interval), `score`, `table`,
        `report`, `warnings`, `geo()`. Of several slides `Results`, a list that has `counts` and `table`.

    Raises:
        MetaphaseError: Something is wrong with slide, model or setting; it has `path`, `problem` and
            `next_step`.

    Examples:
        >>> result = mp.detect(mp.demo_field()[220:520, 380:680], mpp=0.25, threshold=0.8)
        >>> result.count
        2
        >>> result.table[["x", "y", "probability"]].round(1).iloc[0].tolist()
        [106.9, 139.6, 1.0]
        >>> mp.detect(mp.demo_field(), mpp=0.25, any_stains=True)
        Traceback (most recent call last):
        metaphase.base.errors.UsageError: mp.detect has no setting any_stains. Choose among ...
    """
    folder = RESULTS if output is None else Path(output)
    given, several = _listed(slide)
    engine: dict[str, Any] = {name: settings.pop(name) for name in ENGINE_SETTINGS if name in settings}
    config = _detection(config or DetectionConfig(), site, settings)
    files = [Path(each) if isinstance(each, PATH) else _source(each, mpp, folder) for each in given]
    chosen = names_in(folder, named_slides(files, mpp=mpp, tissue=str(tissue)).values())
    chosen = chosen if region is None else with_regions(chosen, Path(region))
    if output is None:
        _refuse_others(chosen)
    unknown = without_resolution(chosen)
    if unknown and len(unknown) == len(chosen):
        raise next(iter(unknown.values()))
    ready = _ready(model, config.models, engine)
    watch = _Watch(progress, on_slide)
    if not several:
        step = watch.started(chosen[0].name, 0, 1)
        done = detect_slide(chosen[0], folder / chosen[0].name, ready, config, progress=step)
        watch.finished(chosen[0].name, done)
        return _result(done)
    batch = detect_cohort(chosen, folder, ready, config, watch=watch)
    _refuse_failed(batch, folder)
    return Results(map(_result, batch.results.values()))


def load_result(folder: str | Path) -> Result:
    """The result of one slide, as `detect` gave it.

    Parameters:
        folder: The slide's folder, or one that holds the results of a single slide.

    Returns:
        A `Result`.

    Raises:
        MetaphaseError: The folder holds no finished result, or those of several slides.

    Examples:
        >>> result = mp.load_result("results/one")
        >>> result.count, len(result.table)
        (3, 3)
    """
    found = result_folders(folder)
    if len(found) > 1:
        raise UsageError(
            f"holds the results of {len(found)} slides",
            path=folder,
            next_step=f"name the folder of one, such as {found[0]}, or take all with mp.load_results",
        )
    return load_slide(found[0] if found else folder)


def load_results(*folders: str | Path) -> Results:
    """All results in one or several folders, as `detect` of several slides gave them.

    Parameters:
        folders: Folders of slides, or of cohorts.

    Returns:
        `Results`: a list, whose `counts` is a table of slides and whose `table` has all detections.

    Raises:
        MetaphaseError: A folder holds no results.

    Examples:
        >>> mp.load_results("results").counts[["case", "count"]].to_numpy().tolist()
        [['one', 3], ['two', 1]]
    """
    return Results(load_slides(folders))


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
    site: str | Path | SiteProfile | None = None,
    config: CountConfig | None = None,
    **settings: float,
) -> SlideCount:
    """Count and grade the points of one slide, whoever found them, as `metaphase score` does.

    Where nothing else is given, they are counted at the operating point that they carry, else from 0.8 on;
    results of a slide by their own profile, as they stand.

    Parameters:
        detections: A `Result`, a table with x and y in level-0 pixels (and `probability`), or a file in any
            format that is read.
        slide: The slide, whose tissue and resolution count.
        mpp: Micrometres per pixel, where there is no slide.
        area_mm2: Area of the tissue, where there is no slide.
        tissue: Whether to find the tissue of the slide.
        threshold: Lowest probability that counts.
        theta1: Counts up to this are grade 1.
        theta2: Counts above this are grade 3.
        card: A model card, whose operating point is used.
        site: The laboratory's profile, or its file.
        config: A `CountConfig`; `settings` go before what it says.
        settings: `field_diameter_mm`, `percentile`, `seed`, ... of `CountConfig`.

    Returns:
        A `SlideCount`: `count`, `likely`, `scores`, `per_mm2`, `hotspot`, `warnings`.

    Raises:
        MetaphaseError: The points belong to several slides, or lack a resolution.

    Examples:
        >>> import pandas as pd
        >>> found = pd.DataFrame({"x": [100.0, 400.0], "y": [100.0, 300.0], "probability": [0.9, 0.85]})
        >>> counted = mp.score(found, mpp=0.25, area_mm2=12.0)
        >>> counted.count, counted.per_mm2
        (2, 1.0)
    """
    as_stored = tissue and (slide, mpp, area_mm2, threshold, theta1, theta2) == (None,) * 6
    if as_stored and (card, site, config) == (None,) * 3 and not settings:
        stored = [detections] if isinstance(detections, Result) else _stored(detections)
        if len(stored) == 1:
            return stored[0].record.bare
    config = _set(config or CountConfig(), settings, "mp.score")
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
        profile = None if site is None else site_for(site, [file])
        beside = sites_beside([file]) if site is None and card is None else {}
        batch = count_cohort(cases, [point], config, tissue=tissue, site=profile, sites=beside)
    for failure in batch.failures:
        raise MetaphaseError(failure.message.rstrip("."))
    (counts,) = batch.results.values()
    return counts[0]


@dataclass(frozen=True)
class Calibration:
    """Detections of a laboratory's slides for somebody to answer, and the profile that the answers make."""

    folder: Path

    @property
    def items(self) -> pd.DataFrame:
        """What is asked: `item`, `slide`, `x`, `y`; add the column `answer` (mitosis, not, unsure)."""
        return read_table(self.folder / DETECTIONS / ITEMS)

    def fit(
        self,
        answers: pd.DataFrame | str | Path | None = None,
        output: str | Path | None = None,
        *,
        name: str = "",
        **settings: float,
    ) -> SiteProfile:
        """The laboratory's profile, as `metaphase calibrate fit` makes it, for `detect(..., site=profile)`.

        Parameters:
            answers: A table with `item` and `answer` (and `observer`), or its file; by default the answers
                given in `metaphase label serve`.
            output: A file for the profile (JSON).
            name: What the profile is called; by default as its folder.
            settings: `missed` and `false_alarms`, the shares of answers that are wrong.

        Returns:
            The profile: `precision` at the thresholds, `described()`.

        Raises:
            MetaphaseError: There are too few answers, or some about what was not asked.
        """
        error = _set(ObserverError(), settings, "fit")
        with _file_of(answers, "answers") as file:
            profile = fit_profile(self.folder, name, answers=file, error=error)
        if output is not None:
            save_profile(output, profile)
        return profile


def calibrate(
    results: Results | Result | Sequence[str | Path | Result] | str | Path | None = None,
    output: str | Path = "metaphase-calibration",
    **settings: int,
) -> Calibration:
    """Draw about 100 detections of a laboratory's slides to be answered, as `metaphase calibrate draw` does.

    The answers make a profile (`Calibration.fit`), with which intervals of the laboratory's counts become
    narrower.

    Parameters:
        results: What `detect` gave for slides of the laboratory, or its folders; without them, the
            calibration in `output` is opened again.
        output: Folder of the calibration; `metaphase label serve OUTPUT/detections` asks in a browser.
        settings: `answers`, how many detections are asked about, and `seed`.

    Returns:
        A `Calibration`: `items` is what to answer, `fit(answers)` gives the profile.

    Raises:
        MetaphaseError: The folder holds a calibration already, the slides were not searched alike, or it is
            not known how the model errs.

    Examples:
        >>> calibration = mp.calibrate("results", "calibration")  # a folder of `detect`
        >>> calibration.items.columns.tolist()
        ['item', 'slide', 'x', 'y', 'case', 'mpp']
    """
    folder = Path(output)
    if results is not None:
        several = [results] if isinstance(results, Result | str | os.PathLike) else results
        paths = [one.folder if isinstance(one, Result) else Path(one) for one in several]
        draw_sample(paths, folder, _set(SampleConfig(), settings, "mp.calibrate"))
    elif not (folder / SAMPLE).is_file():
        raise UsageError("holds no calibration", path=folder, next_step="give results to draw one from")
    return Calibration(folder)


def register(
    he: AnySlide,
    phh3: AnySlide,
    output: str | Path | None = None,
    *,
    mpp: float | None = None,
    points: Points | None = None,
    annotations: Annotations | None = None,
    config: RegistrationConfig | None = None,
    accept_doubtful: bool = False,
    **settings: Any,
) -> Registered:
    """Register a PHH3 slide with the H&E slide of the same section, as `metaphase register` does.

    Parameters:
        he: The H&E slide.
        phh3: The PHH3 slide of the same section.
        output: A folder; by default `metaphase-registered/HE-PHH3`, by the slides' names.
        mpp: Micrometres per pixel of pixels, and of files that state none.
        points: Points of the PHH3 slide, to be carried over.
        annotations: A GeoJSON file of either slide, to be carried over.
        config: A `RegistrationConfig`; `settings` go before what it says.
        accept_doubtful: Carry over all points of a doubtful pair, not only sure ones, after looking at its
            picture.
        settings: `any_stains`, `transform`, `seed`, ... of `RegistrationConfig`.

    Returns:
        A `Registered`: `verdict`, `transform` (`phh3_to_he`, `he_to_phh3`), `points`, `summary`.

    Raises:
        MetaphaseError: A slide cannot be read, or is not of the stain that it should be.

    Examples:
        >>> pair = mp.register("he.tif", "phh3.tif", points="points.csv")  # doctest: +SKIP
        >>> pair.verdict, len(pair.points)  # doctest: +SKIP
        ('reliable', 12)
    """
    above = REGISTERED if output is None else Path(output)
    first, second = _source(he, mpp, above), _source(phh3, mpp, above)
    folder = above / f"{first.path.stem}-{second.path.stem}" if output is None else above
    with _file_of(points, second.path.stem) as file:
        summary, _ = register_slides(
            first,
            second,
            folder,
            points=file,
            annotations=annotations,
            config=_set(config or RegistrationConfig(), settings, "mp.register"),
            accept_doubtful=accept_doubtful,
        )
    return Registered(folder, summary)


def evaluate(
    truth: Points,
    predictions: Points,
    *,
    mpp: float | None = None,
    manifest: str | Path | None = None,
    by: Sequence[str] = (),
    split: str | None = None,
    card: str | Path | None = None,
    matching: MatchingConfig | None = None,
    bootstrap: BootstrapConfig | None = None,
    **settings: Any,
) -> MitosisResult:
    """Compare detections with the truth, as `metaphase evaluate mitoses` does.

    Parameters:
        truth: Mitotic figures: a file, a folder, or a table with x, y (and `slide`) in level-0 pixels.
        predictions: The detections, with `probability`; or a `Result`.
        mpp: Micrometres per pixel of all slides, where there is no manifest.
        manifest: The slides, with resolution and patient.
        by: Columns of the manifest to report by.
        split: Only this split of the manifest.
        card: A model card, whose threshold is used.
        matching: A `MatchingConfig`; `settings` go before what it says.
        bootstrap: How patients are drawn for the intervals, likewise.
        settings: `threshold`, `radius_um`, `ignore`, ... of `MatchingConfig`; `samples`, `confidence`,
            `seed` of `BootstrapConfig`.

    Returns:
        A `MitosisResult`: `table()` with precision, recall, F1 and their intervals; `overall`, `slides`.

    Raises:
        MetaphaseError: Tables lack columns, slides do not belong together, or a threshold was tuned on them.

    Examples:
        >>> import pandas as pd
        >>> truth = pd.DataFrame({"x": [100.0, 400.0], "y": [100.0, 300.0]})
        >>> found = pd.DataFrame({"x": [104.0, 800.0], "y": [100.0, 600.0], "probability": [0.9, 0.8]})
        >>> mp.evaluate(truth, found, mpp=0.25, samples=0).overall.f1.value
        0.5
    """
    ours, theirs = (_of(kind, settings) for kind in (MatchingConfig, BootstrapConfig))
    refuse_unknown(settings, (*_names(MatchingConfig), *_names(BootstrapConfig)), "mp.evaluate")
    with _file_of(truth, "slide") as true, _file_of(predictions, "slide") as found:
        return evaluate_mitoses(
            true,
            found,
            manifest=manifest,
            by=by,
            split=split,
            mpp=mpp,
            card=card,
            matching=replace(matching or MatchingConfig(), **ours),
            bootstrap=replace(bootstrap or BootstrapConfig(), **theirs),
        )


# ---- settings by their names ----


def _names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def _of(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that a class has."""
    return {name: given[name] for name in _names(kind) if name in given}


def _set(config: Settings, given: Mapping[str, Any], where: str) -> Settings:
    """Settings with those that are given; one that does not exist is refused."""
    refuse_unknown(given, _names(type(config)), where)
    changed: Settings = replace(config, **given)  # type: ignore[type-var]
    return changed


COUNT_SETTINGS, ENGINE_SETTINGS = ("field_diameter_mm", "percentile", "seed"), ("device", "precision")
"""What `metaphase detect` takes of the count, and of what computes a model."""


def _detection(
    config: DetectionConfig, site: str | Path | SiteProfile | None, given: Mapping[str, Any]
) -> DetectionConfig:
    """How to detect, by a configuration and by keywords."""
    refuse_unknown(given, (*_names(DetectionConfig), *COUNT_SETTINGS, *ENGINE_SETTINGS), "mp.detect")
    about, counts = (
        _of(DetectionConfig, given),
        {name: given[name] for name in COUNT_SETTINGS if name in given},
    )
    if "formats" in about:
        about["formats"] = tuple(about["formats"])
    if counts:
        about["counting"] = replace(about.get("counting", config.counting), **counts)
    if site is not None:
        about["site"] = site if isinstance(site, SiteProfile) else load_profile(site)
    return replace(config, **about)


# ---- what is given, as files ----


def _listed(slide: Any) -> tuple[Iterable[Any], bool]:
    """The slides that are given, and whether it is several."""
    pixels = is_pixels(slide) and np.ndim(slide) > 1  # a column of a table names slides
    one = isinstance(slide, (*PATH, Slide)) or pixels or not isinstance(slide, Iterable)
    return ([slide], False) if one else (slide, True)


def _source(slide: object, mpp: float | None, folder: Path) -> SlideSource:
    """The file of a slide and the resolution given for it; pixels in memory are written into the folder."""
    if isinstance(slide, PATH):
        return SlideSource(Path(slide), mpp)
    if isinstance(slide, Slide):
        return source_of(slide, folder, mpp)
    with open_slide(slide, mpp=mpp) as opened:
        return source_of(opened, folder, mpp)


def _outline(slide: Any, mpp: float | None, config: TissueConfig) -> TissueMask:
    """The tissue of a slide, which stays open where it was."""
    if isinstance(slide, Slide):
        return find_tissue(slide, config)
    with open_slide(slide, mpp=mpp) as opened:
        return find_tissue(opened, config)


def _path(value: object, what: str, next_step: str) -> Path:
    if isinstance(value, PATH):
        return Path(value)
    raise UsageError(f"{type(value).__name__} is not a {what}", next_step=next_step)


def _ready(
    model: object, default: Sequence[str] = (), engine: Mapping[str, Any] | None = None
) -> ReadyDetector:
    """A detector as it is, or by name or file; the bundled one, or the `default`, where none is given."""
    if isinstance(model, ReadyDetector):
        if engine:
            raise UsageError(
                f"the model is loaded, and {' and '.join(engine)} came later",
                next_step="give it to mp.load_model",
            )
        return model
    others = "give a name or a file, mp.load_model(...) for several, or mp.use_network(network, name)"
    return load_model(*(default if model is None else [_path(model, "model", others)]), **(engine or {}))


def _refuse_others(chosen: Iterable[CohortSlide]) -> None:
    """Where nobody named a folder, results of another slide of the same name are not replaced."""
    for slide in chosen:
        try:
            before = load_slide(RESULTS / slide.name).source.path
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


class _Watch(BatchWatch):
    """Says what is done: to functions, or as a line on stderr."""

    def __init__(self, progress: bool | Progress | None, on_slide: Callable[[Result], object] | None) -> None:
        super().__init__(progress if callable(progress) else None)
        self._line, self._on_slide = progress is True, on_slide

    def started(self, name: str, number: int, total: int) -> Progress:
        """A slide begins."""
        if not self._line:
            return super().started(name, number, total)

        def draw(done: float, whole: float) -> None:
            end = "\n" if done >= whole and number + 1 == total else ""
            line = f"\r{number + 1} of {total}: {name} {done:.1f} of {whole:.1f} mm2"
            print(f"{line:<79}", end=end, file=sys.stderr, flush=True)

        return draw

    def finished(self, name: str, result: object) -> None:  # noqa: ARG002 -- the slide's own name
        """A slide is done."""
        if self._on_slide is not None and isinstance(result, SlideOutcome):
            self._on_slide(_result(result))


def _refuse_failed(batch: Batch[Any], folder: Path) -> None:
    """Name the slides that failed."""
    if batch.failures:
        problems = "; ".join(f"{each.name}: {each.message.rstrip('.')}" for each in batch.failures)
        raise MetaphaseError(
            f"{len(batch.failures)} of {len(batch.outcomes)} slides failed ({problems})",
            path=folder,
            next_step="read its errors.log, leave these slides out and call it again; finished ones are kept",
        )


def _result(done: SlideOutcome) -> Result:
    """The result; its tables are read now, for a later call may write into the same folder."""
    result = Result(done.folder, done.record)
    _ = result.table, result.candidates
    return result
