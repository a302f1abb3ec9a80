"""From slides to results: fields to try, tissue, models, `detect`, and results that lie on the disk."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
from PIL import Image

from metaphase.analysis.cohort import CohortSlide, named_slides, with_regions, without_resolution
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.record import SlideResult as Result
from metaphase.analysis.record import load_result as load_slide
from metaphase.analysis.run import detect_cohort, detect_slide
from metaphase.analysis.tissue import outline_slides
from metaphase.api.given import PATH, AnySlide, as_path, configured, listed, slide_source
from metaphase.api.results import Results, SlideWatch, read_now, refuse_failed
from metaphase.base.arrays import RGB
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.settings import fields_of_view, refuse_unknown
from metaphase.base.sharing.batch import Progress
from metaphase.counting.sites import SiteProfile, load_profile
from metaphase.images.tissue.finding import TissueConfig, TissueMask, find_tissue, load_tissue
from metaphase.networks.detector import ReadyDetector, load_detector, plain_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.slides.contract import WORKING_MPP, Slide
from metaphase.slides.opening import open_slide

if TYPE_CHECKING:
    from torch import nn

RESULTS = Path("metaphase-results")
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
    given, several = listed(slide)
    if output is None:
        (config,) = configured("mp.tissue", settings, TissueConfig())
        masks = [_outline(each, mpp, config) for each in given]
    else:
        refuse_unknown(settings, (), "mp.tissue with an output")
        sources = [slide_source(each, mpp, Path(output)) for each in given]
        batch = outline_slides(named_slides(sources, mpp=mpp), output)
        refuse_failed(batch, Path(output))
        masks = [load_tissue(outlined.files[0]) for outlined in batch.results.values()]
    return masks if several else masks[0]


def _outline(slide: Any, mpp: float | None, config: TissueConfig) -> TissueMask:
    """The tissue of a slide, which stays open where it was."""
    if isinstance(slide, Slide):
        return find_tissue(slide, config)
    with open_slide(slide, mpp=mpp) as opened:
        return find_tissue(opened, config)


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
    given, several = listed(slide)
    engine = {name: settings.pop(name) for name in ENGINE_SETTINGS if name in settings}
    config = _detection_config(config or DetectionConfig(), site, settings)
    files = [Path(each) if isinstance(each, PATH) else slide_source(each, mpp, folder) for each in given]
    chosen = list(named_slides(files, mpp=mpp, tissue=str(tissue)).values())
    chosen = chosen if region is None else with_regions(chosen, Path(region))
    if output is None:
        _refuse_others(chosen)
    unknown = without_resolution(chosen)
    if unknown and len(unknown) == len(chosen):
        raise next(iter(unknown.values()))
    ready = _ready(model, config.models, engine)
    watch = SlideWatch(progress, on_slide)
    if not several:
        step = watch.started(chosen[0].name, 0, 1)
        done = detect_slide(chosen[0], folder / chosen[0].name, ready, config, progress=step)
        watch.finished(chosen[0].name, done)
        return read_now(done)
    batch = detect_cohort(chosen, folder, ready, config, watch=watch)
    refuse_failed(batch, folder)
    return Results(map(read_now, batch.results.values()))


COUNT_SETTINGS, ENGINE_SETTINGS = ("field_diameter_mm", "percentile", "seed"), ("device", "precision")
"""What `metaphase detect` takes of the count, and of what computes a model."""


def _detection_config(
    config: DetectionConfig, site: str | Path | SiteProfile | None, settings: dict[str, Any]
) -> DetectionConfig:
    """How to detect, by a configuration and by keywords."""
    names = [field.name for field in fields(DetectionConfig)]
    refuse_unknown(settings, (*names, *COUNT_SETTINGS, *ENGINE_SETTINGS), "mp.detect")
    counts = {name: settings.pop(name) for name in COUNT_SETTINGS if name in settings}
    if "formats" in settings:
        settings["formats"] = tuple(settings["formats"])
    if site is not None:
        settings["site"] = site if isinstance(site, SiteProfile) else load_profile(site)
    config = replace(config, **settings)
    return replace(config, counting=replace(config.counting, **counts)) if counts else config


def _ready(model: object, default: Sequence[str], engine: Mapping[str, Any]) -> ReadyDetector:
    """A detector as it is, or by name or file; the `default` where none is given."""
    if not isinstance(model, ReadyDetector):
        others = "give a name or a file, mp.load_model(...) for several, or mp.use_network(network, name)"
        return load_model(*(default if model is None else [as_path(model, "model", others)]), **engine)
    if engine:
        raise UsageError(
            f"the model is loaded, and {' and '.join(engine)} came later",
            next_step="give it to mp.load_model",
        )
    return model


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
