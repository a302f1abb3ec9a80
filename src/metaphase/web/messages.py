"""What the viewer's page asks its server, and what it learns of slides and counts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Annotated, Literal

import numpy as np
import shapely
from pydantic import Field

from metaphase.analysis.review import reviewed_result, runner_up
from metaphase.base.errors import MetaphaseError
from metaphase.counting.clinical import SlideCount
from metaphase.counting.spread import DensityMap
from metaphase.labels.observers.positions import (
    Mark,
    Reviewed,
    Share,
    mark_name,
    position_name,
    position_of,
)
from metaphase.labels.observers.store import Given
from metaphase.reports.pages import encode_png, in_words
from metaphase.reports.slide.pictures import coarse_tissue, heat_colours
from metaphase.web.serving import Message, OnceInAWhile, Reply
from metaphase.web.viewed import KEY_BYTES, SLIDE, TILE_PX, ViewedSlide, levels_of

_log = logging.getLogger(__name__)
_log.addFilter(OnceInAWhile())

# ---- what the page asks, and what it hears ----

OUTLINE_SHARE = 1 / 1500
"""How far the outline may be off, as a share of the slide's longer side."""
Ring = list[float]
"""Corners x, y, x, y, ... in level-0 pixels."""


Pixel = Annotated[float, Field(ge=-1e8, le=1e8)]


class Position(Message):
    """A position on a slide, and what is said of it: an answer, or a mark."""

    slide: Annotated[str, Field(max_length=2 * KEY_BYTES)]
    x: Pixel
    y: Pixel
    kind: Literal["answer", "atypical", "note"] = "answer"

    @property
    def item(self) -> str:
        """How the log calls it."""
        if self.kind == "answer":
            return position_name(self.x, self.y)
        return mark_name(self.kind, self.x, self.y)


class OfScope(Message):
    """A region of a slide, or the place of its count."""

    slide: Annotated[str, Field(max_length=2 * KEY_BYTES)]
    region: Annotated[str, Field(pattern=r"^([0-9a-f-]{36}|place)$")]


class AskedCount(Message):
    """A count at a threshold, for an observer or for nobody."""

    observer: Annotated[str, Field(max_length=64)] = ""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None


UNKNOWN: Reply = dict.fromkeys(("count", "width", "progress"))
UNKNOWN |= {"counted": False, "answered": 0, "candidates": 0, "waits": False, "problem": ""}
"""What the list says of a slide on which nothing was sought, or whose results cannot be read."""


def slide_row(slide: ViewedSlide, observer: str, blind: bool) -> Reply:
    """The line of a slide in the list, with the answers that an observer may know of."""
    row = UNKNOWN | {"key": slide.key, "name": slide.name}
    if slide.result is None:
        return row
    given: list[Given] = []
    try:
        given = slide.answers(observer, blind=blind)
    except MetaphaseError as error:  # the list is for all slides
        _log.warning("%s is listed without its answers: %s", slide.name, error)
    try:
        count = slide.stored(given) or slide.counted(given)[1]
        shares = reviewed_result(slide.result, given, slide.scope).shares if given else ()
        return row_with(slide, shares, count, observer, blind)
    except MetaphaseError as error:
        return row | {"problem": in_words(str(error))}


def row_with(
    slide: ViewedSlide, shares: Sequence[Share], count: SlideCount, observer: str, blind: bool
) -> Reply:
    """The line of a slide with a count and what observers looked at: the one who asks, or without a name
    whoever answered most.

    `waits` says that answers are not in force: report, tables and index say something else.
    """
    own = [share for share in shares if share.observer.casefold() == observer.strip().casefold()]
    looked = () if observer and not own else own or shares
    answered = max((share.counted + share.below for share in looked), default=0)
    candidates, waits = len(slide.found.candidates), False
    with suppress(MetaphaseError):
        waits = not blind and slide.waits
    return UNKNOWN | {
        "key": slide.key,
        "name": slide.name,
        "counted": True,
        "count": count.in_force,
        "width": None if count.likely is None else count.likely.interval[1] - count.likely.interval[0],
        "answered": answered,
        "candidates": candidates,
        "progress": answered / candidates if candidates else 1.0,
        "waits": waits,
        "problem": in_words(slide.problem),
    }


def slide_view(slide: ViewedSlide) -> Reply:
    """A slide and what the networks found, before anybody says anything.

    Positions are to a tenth of a pixel, as answers name them; `order` are their rows in the order of review,
    and below `lowest` the networks' answers were not kept; they are `listed` from another threshold on.
    `record` changes with the files of the results.
    """
    layers = {
        name: {
            "name": name,
            "title": layer.title,
            "ending": layer.ending,
            "tiles": f"/tile/{slide.key}/{name}/{layer.version}",
        }
        for name, layer in slide.layers.items()
    }
    own = layers.pop(SLIDE, None)
    view = {
        "key": slide.key,
        "name": slide.name,
        "width": slide.width,
        "height": slide.height,
        "mpp": slide.mpp,
        "tiles": own["tiles"] if own else "",
        "tile_px": TILE_PX,
        "levels": levels_of(slide.width, slide.height),
        "layers": list(layers.values()),
        "record": slide.record,
        "problem": in_words(slide.problem),
        "counted": slide.result is not None,
        "figures": f"/figure/{slide.key}/{slide.layers[SLIDE].version}" if own else "",
    }
    if (result := slide.result) is None:
        nothing: Reply = {name: [] for name in ("x", "y", "probability", "order", "outline")}
        return view | nothing | dict.fromkeys(("threshold", "lowest", "listed"), 1.0)
    table = result.candidates
    return view | {
        "x": table["x"].round(1).tolist(),
        "y": table["y"].round(1).tolist(),
        "probability": table["probability"].tolist(),
        "order": slide.order,
        "threshold": result.counting.threshold,
        "lowest": float(table["probability"].min()) if len(table) else 0.0,
        "listed": result.record.detection_threshold,
        "outline": _outline(slide),
    }


def _outline(slide: ViewedSlide) -> list[Ring]:
    if slide.found.tissue.is_empty:
        return []
    tolerance_px = OUTLINE_SHARE * max(slide.width, slide.height)
    pieces = shapely.MultiPolygon(list(coarse_tissue(slide.found.tissue).polygons()))
    simple = shapely.simplify(pieces, tolerance_px)
    rings = (ring for part in shapely.get_parts(simple) for ring in (part.exterior, *part.interiors))
    return [np.asarray(ring.coords).round(1).ravel().tolist() for ring in rings if not ring.is_empty]


def count_view(
    slide: ViewedSlide,
    reviewed: Reviewed,
    count: SlideCount,
    density: Reply | None,
    standing: Sequence[Reply],
    blind: bool,
) -> Reply:
    """The count, and what is drawn beside it.

    `lines` are the count and those beneath it; `shares` are who looked at how much; `standing` are the
    answers that the count is made with, for a page without an observer to mark them.
    """
    shares = [f"{share.observer}: {share.counted} of {share.of}" for share in reviewed.shares]
    return {
        "count": count,
        "lines": [*map(str, count.counts)],
        "runner_up": runner_up(reviewed.mitoses, count, slide.mpp),
        "density": density,
        "shares": [] if blind else shares,
        "standing": standing,
        "record": slide.record,
        "row": None,
    }


def standing_answers(given: Sequence[Given], observer: str) -> list[Reply]:
    """Answers with their positions, and which are an observer's own."""
    return [
        {"x": position[0], "y": position[1], "answer": answer.answer, "own": answer.observer == observer}
        for answer in given
        if (position := position_of(answer.item))
    ]


def standing_marks(marks: Sequence[Mark], observer: str) -> list[Reply]:
    """Marks, and which are an observer's own."""
    return [
        {name: getattr(mark, name) for name in ("kind", "x", "y", "text", "observer")}
        | {"own": mark.observer == observer}
        for mark in marks
    ]


def drawn_density(slide: ViewedSlide, density: DensityMap) -> tuple[Reply | None, bytes]:
    """Where the picture of a density map lies, in level-0 pixels, and the picture, whose address is made from
    what it shows; none where nothing is dense.
    """
    values = np.nan_to_num(density.values.astype(np.float32))
    highest = float(values.max(initial=0))
    if highest <= 0:
        return None, b""
    png, (rows, columns) = encode_png(heat_colours(values / highest)), values.shape
    name = blake2b(png, digest_size=KEY_BYTES).hexdigest()
    return {
        "address": f"/density/{slide.key}-{name}.png",
        "x": density.x,
        "y": density.y,
        "width": columns * density.step_px,
        "height": rows * density.step_px,
        "highest": highest,
    }, png
