"""Small slides with made-up results, and a reader of the pages made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.base.arrays import Box
from metaphase.counting.clinical import Count, Likely, SlideCount, count_slide
from metaphase.counting.likely import LaboratoryPrior
from metaphase.counting.regions import ANYWHERE, Scope
from metaphase.counting.specimen import CountConfig
from metaphase.detections.points import StatedPoints
from metaphase.detections.table import MITOSIS
from metaphase.images.tissue.finding import TissueMask
from metaphase.reports.record import SlideRecord
from metaphase.reports.slide import ReportInput, slide_page
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.contract import Level, Resolution, Slide, SlideInfo

LIKELY = CountConfig(prior=LaboratoryPrior())
"""Counted as without a model, and with an interval."""
UNTUNED_POINTS = {"mitoses": {"delta": 1.0}, "count": {"delta": 0.8}}
"""Nothing is listed below the threshold of the count."""
VOID = {"meta", "img", "input", "br", "link"}
CARD = {
    "name": "cnn5-simulated",
    "family": "cnn5",
    "gamma": 0.6,
    "mpp": 0.25,
    "patch_px": 100,
    "data": [{"name": "Simulated slides", "terms": "own work", "positives": 1234, "negatives": None}],
    "intended_use": "Research only; not for diagnosis.",
}


def noisy_slide(
    width: int = 1600, height: int = 1200, mpp: float = 0.25, path: str = "case 7.tif"
) -> ArraySlide:
    """Pink noise: the hardest to compress."""
    noise = np.random.default_rng(0).integers(-60, 60, (height, width, 3))
    pixels = np.clip(np.array([225, 140, 190]) + noise, 0, 255).astype(np.uint8)
    return ArraySlide(pixels, mpp, path=Path(path))


def full_tissue(slide: Slide, mask_mpp: float = 8.0, value: bool = True) -> TissueMask:
    """Tissue over the left three quarters of the slide, or none."""
    scale = mask_mpp / slide.mpp
    shape = tuple(max(1, round(side / scale)) for side in (slide.height, slide.width))
    mask = np.zeros(shape, bool)
    mask[:, : max(1, shape[1] * 3 // 4)] = value
    return TissueMask(mask, mask_mpp, 0.0, 0.0, scale)


def random_points(count: int, slide: Slide, seed: int = 1) -> pd.DataFrame:
    """Points anywhere on the slide with probabilities from 0.3 to 1."""
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0, slide.width, count), rng.uniform(0, slide.height, count)
    return pd.DataFrame({"x": x, "y": y, "probability": rng.uniform(0.3, 1, count)})


def result_for(
    slide: Slide, points: pd.DataFrame, tissue: TissueMask | None = None, /, **fields: Any
) -> ReportInput:
    """A report's input with the count that grading gives; `fields` of the record replace others."""
    tissue = tissue if tissue is not None else full_tissue(slide)
    points = points if "label" in points else points.assign(label=MITOSIS)
    card, stated = fields.pop("card", CARD), fields.pop("points", UNTUNED_POINTS)
    score = fields.pop("score", None) or score_of(slide, points, tissue, CountConfig(), stated)
    record = SlideRecord.model_construct(**record_of(slide, score, tissue, stated, card) | fields)
    return ReportInput(record, tissue, points, card)


def record_of(
    slide: Slide, score: SlideCount, tissue: TissueMask, stated: Mapping[str, Any], card: Mapping[str, Any]
) -> dict[str, Any]:
    """All fields of a record of a slide with this count."""
    mpp = slide.info.resolution.mpp if slide.info.resolution else None
    about = {"name": slide.name, "slide": slide.name, "mpp": mpp, "mpp_source": "flag", "stain": None}
    size = {"width": slide.width, "height": slide.height, "tissue_mm2": tissue.area_mm2}
    deltas = {"threshold": score.config.threshold, "detection_threshold": stated["mitoses"]["delta"]}
    model = {"model": {"name": card.get("name")}, "operating_points": StatedPoints(**stated)}
    rest = {"detections": 0, "atypical": None, "search": "", "seconds": {}, "versions": {}}
    return {**dict(score), **about, **size, **deltas, **model, **rest}


def changed(result: ReportInput, **fields: Any) -> ReportInput:
    """The same with other values in its record."""
    return replace(result, record=result.record.model_copy(update=fields))


def score_of(
    slide: Slide,
    points: pd.DataFrame,
    tissue: TissueMask,
    config: CountConfig,
    stated: Mapping[str, Any] | None = None,
    scope: Scope = ANYWHERE,
) -> SlideCount:
    listed = (stated or UNTUNED_POINTS)["mitoses"]["delta"]
    about: dict[str, Any] = {"tissue": tissue, "config": config, "listed": listed, "scope": scope}
    return count_slide(points, mpp=slide.mpp, **about)


def unknown(score: SlideCount) -> SlideCount:
    """The score with nothing known in any number that may be unknown."""
    nan = float("nan")
    changed: dict[str, Any] = {"proliferation": nan, "counted_mm2": nan, "area_mm2": nan}
    changed |= {"heterogeneity": {"gini": nan}}
    return score.model_copy(update=changed)


def likely_of(low: int, high: int, **fields: Any) -> Likely:
    """True figures within an interval."""
    facts = {"figures": (low + high) // 2, "unmarked": 0.5, "answers": 0, "site_answers": 0}
    return Likely(**facts | fields, interval=(low, high))


def count_of(count: int, low: int, high: int) -> Count:
    """A count of the model."""
    return Count(kind="model", count=count, likely=likely_of(low, high))


class HugeSlide(Slide):
    """A gigapixel pyramid of one colour that notes how many pixels were asked for."""

    def __init__(self, width: int = 200_000, height: int = 150_000) -> None:
        downsamples = (1, 4, 16, 64)
        levels = tuple(Level(width // d, height // d, float(d)) for d in downsamples)
        bounds = Box(0, 0, width, height)
        super().__init__(
            SlideInfo(levels, Resolution(0.25, "metadata"), "test", "test", bounds, path=Path("huge"))
        )
        self.decoded_px = 0

    def _decode(self, level: int, box: Box) -> npt.NDArray[np.uint8]:  # noqa: ARG002 -- all levels look alike
        self.decoded_px += box.area
        return np.full((box.height, box.width, 3), 200, np.uint8)


class Page(HTMLParser):
    """A page's elements with their attributes, and its text by element; refuses unbalanced tags."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def of(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        """Attributes of every `tag` that has all of `attributes` (`class_` holds one class of several)."""
        return [found for name, found in self.elements if name == tag and _fits(found, attributes)]

    def text(self, *tags: str) -> str:
        """All readable text, or that of some elements, with single spaces."""
        chosen = (
            text for tag, text in self.texts if tag not in ("style", "script") and (not tags or tag in tags)
        )
        return " ".join(" ".join(chosen).split())


def _fits(found: dict[str, str], wanted: dict[str, str]) -> bool:
    return all(
        value in found.get("class", "").split() if name == "class_" else found.get(name) == value
        for name, value in wanted.items()
    )


def page_of(slide: Slide, result: ReportInput) -> Page:
    """The report, parsed."""
    return Page(slide_page(slide, result))
