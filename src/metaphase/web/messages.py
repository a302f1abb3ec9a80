"""What the viewer's page and its server say to each other, and how slides and counts become such messages."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Annotated, Any

import numpy as np
import shapely
from PIL import Image
from pydantic import Field

from metaphase.analysis.review import reviewed_result, runner_up
from metaphase.base.errors import MetaphaseError
from metaphase.counting.clinical import Count, SlideCount
from metaphase.counting.hotspot import Hotspot
from metaphase.counting.specimen import DensityMap
from metaphase.labels.observers.positions import Reviewed, Share
from metaphase.labels.observers.store import Given
from metaphase.reports.slide.pictures import coarse_tissue, heat_colours
from metaphase.web.serving import Message, OnceInAWhile
from metaphase.web.viewed import KEY_BYTES, TILE_PX, ViewedSlide, levels_of

_log = logging.getLogger(__name__)
_log.addFilter(OnceInAWhile())

# ---- the messages ----

OUTLINE_SHARE = 1 / 1500
"""How far the outline may be off, as a share of the slide's longer side."""
Ring = list[float]
"""Corners x, y, x, y, ... in level-0 pixels."""


class SlideRow(Message):
    """A line of the list."""

    key: str
    name: str
    counted: bool
    """Whether something was sought on it."""
    count: Count | None = None
    """The count with the answers that the observer may know of."""
    grade: str = ""
    """As it may be shown: one, a range, or withheld."""
    doubt: float | None = None
    """Chance that the grade is another one."""
    answered: int = 0
    """Candidates that the observer answered; without a name, whoever answered most that one may know of."""
    candidates: int = 0
    progress: float | None = None
    """The share of them."""
    waits: bool = False
    """Whether answers are not in force: report, tables and index say something else."""
    problem: str = ""
    """Why the slide itself cannot be shown."""


class SlideList(Message):
    """The list, and what holds for all slides."""

    slides: list[SlideRow]
    blind: bool


class LayerView(Message):
    """A picture that can be laid over the slide, in the slide's own pixels."""

    name: str
    title: str
    tiles: str
    """Where its tiles are, as those of the slide."""
    ending: str


class SlideView(Message):
    """What a slide shows before anybody says anything."""

    key: str
    name: str
    width: int
    height: int
    mpp: float
    tiles: str
    """Where tiles are, for `{level}/{column}_{row}.jpg`."""
    tile_px: int
    levels: int
    layers: tuple[LayerView, ...]
    record: str
    """Changes with the files of its results."""
    problem: str
    """Why there are no tiles."""
    counted: bool
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    """Positions to a tenth of a pixel, as answers name them."""
    probability: tuple[float, ...] = ()
    order: tuple[int, ...] = ()
    """Rows in the order of review."""
    threshold: float = 1.0
    lowest: float = 1.0
    """Below this the networks' answers were not kept."""
    outline: tuple[Ring, ...] = ()


class Density(Message):
    """A picture of mitoses per mm2 and where it lies, in level-0 pixels."""

    address: str
    x: float
    y: float
    width: float
    height: float
    highest: float


class CountView(Message):
    """The count with the answers that the observer may know of, and what is drawn beside it."""

    count: SlideCount
    """A quick one has no interval."""
    lines: tuple[str, ...]
    """The count and those beneath it, in a line each."""
    waits: bool
    """Whether the count itself is still to come: a profile of the laboratory has to be asked."""
    runner_up: Hotspot | None
    density: Density | None
    shares: tuple[str, ...]
    """Who looked at how much; empty where observers are blind."""
    record: str
    """Changes with the files of the results."""
    row: SlideRow | None = None
    """The line of the list as it is now; None of a quick count, or at another threshold."""


class StandingAnswer(Message):
    """An answer that stands."""

    x: float
    y: float
    answer: str
    own: bool


class ReviewView(Message):
    """What an observer has answered about a slide, and what others have where they may know."""

    observer: str
    standing: list[StandingAnswer]


class AppliedView(Message):
    """Reviews put in force."""

    applied: dict[str, str]
    """By slide: the count with its interval and kind, for reading."""
    failed: tuple[str, ...]
    """What went wrong with others."""


class Position(Message):
    """A position on a slide."""

    slide: Annotated[str, Field(max_length=2 * KEY_BYTES)]
    x: Annotated[float, Field(ge=-1e8, le=1e8)]
    y: Annotated[float, Field(ge=-1e8, le=1e8)]


class AskedCount(Message):
    """A count at a threshold, for an observer or for nobody."""

    observer: Annotated[str, Field(max_length=64)] = ""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    quick: bool = False


# ---- what they say of a slide ----


def slide_row(slide: ViewedSlide, observer: str, blind: bool) -> SlideRow:
    """The line of a slide with the answers that an observer may know of."""
    if slide.result is None:
        return SlideRow(key=slide.key, name=slide.name, counted=False)
    given: list[Given] = []
    try:
        given = slide.answers(observer, blind=blind)
    except MetaphaseError as error:  # the list is for all slides
        _log.warning("%s is listed without its answers: %s", slide.name, error)
    try:
        count = slide.stored(given) or slide.counted(given)[1]
        shares = reviewed_result(slide.result, given).shares if given else ()
        return row_with(slide, shares, count, observer, blind)
    except MetaphaseError as error:
        return SlideRow(key=slide.key, name=slide.name, counted=False, problem=str(error))


def row_with(
    slide: ViewedSlide, shares: Sequence[Share], count: SlideCount, observer: str, blind: bool
) -> SlideRow:
    """The line of a slide with a count and what observers looked at."""
    own = [one for one in shares if one.observer.casefold() == observer.strip().casefold()]
    looked = () if observer and not own else own or shares
    answered = max((one.counted + one.below for one in looked), default=0)
    candidates, waits = len(slide.found.candidates), False
    with suppress(MetaphaseError):
        waits = not blind and slide.waits
    return SlideRow(
        key=slide.key,
        name=slide.name,
        counted=True,
        count=count.in_force,
        grade=count.grade_shown.text,
        doubt=1 - max(count.grade_probabilities),
        answered=answered,
        candidates=candidates,
        progress=answered / candidates if candidates else 1.0,
        waits=waits,
        problem=slide.problem,
    )


def slide_view(slide: ViewedSlide) -> SlideView:
    """A slide and what the networks found."""
    found: dict[str, Any] = {}
    if slide.result is not None:
        table = slide.result.candidates
        found = {
            "x": tuple(round(value, 1) for value in table["x"].tolist()),
            "y": tuple(round(value, 1) for value in table["y"].tolist()),
            "probability": tuple(table["probability"].tolist()),
            "order": tuple(slide.order),
            "threshold": slide.result.counting.threshold,
            "lowest": float(table["probability"].min()) if len(table) else 0.0,
            "outline": _outline(slide),
        }
    return SlideView(
        key=slide.key,
        name=slide.name,
        width=slide.width,
        height=slide.height,
        mpp=slide.mpp,
        tiles=f"/tile/{slide.key}/{slide.version}",
        tile_px=TILE_PX,
        levels=levels_of(slide.width, slide.height),
        layers=tuple(
            LayerView(name=name, title=one.title, ending=one.ending,
                      tiles=f"/layer/{slide.key}/{name}/{one.version}")
            for name, one in slide.layers.items()
        ),
        record=slide.record,
        problem=slide.problem,
        counted=slide.result is not None,
        **found,
    )  # fmt: skip


def _outline(slide: ViewedSlide) -> tuple[Ring, ...]:
    if slide.found.tissue.is_empty:
        return ()
    tolerance_px = OUTLINE_SHARE * max(slide.width, slide.height)
    pieces = shapely.MultiPolygon(list(coarse_tissue(slide.found.tissue).polygons()))
    simple = shapely.simplify(pieces, tolerance_px)
    rings = (ring for part in shapely.get_parts(simple) for ring in (part.exterior, *part.interiors))
    return tuple(np.asarray(ring.coords).round(1).ravel().tolist() for ring in rings if not ring.is_empty)


def count_view(
    slide: ViewedSlide,
    reviewed: Reviewed,
    drawn: SlideCount,
    stored: SlideCount | None,
    density: Density | None,
    blind: bool,
) -> CountView:
    """The count, which may be on the disk, and what is `drawn` with it."""
    count, own = stored or drawn, drawn.config.threshold == slide.found.counting.threshold
    return CountView(
        count=count,
        lines=tuple(map(str, count.counts)),
        waits=own and not count.draws and slide.found.site is not None,
        runner_up=runner_up(reviewed.mitoses, drawn, slide.mpp),
        density=density,
        shares=tuple(
            f"{one.observer}: {one.counted} of {one.of}" for one in (() if blind else reviewed.shares)
        ),
        record=slide.record,
    )


def drawn_density(slide: ViewedSlide, density: DensityMap) -> tuple[Density, bytes] | None:
    """The picture of a density map, its address from what it shows."""
    values = np.nan_to_num(density.values.astype(np.float32))
    highest = float(values.max(initial=0))
    if highest <= 0:
        return None
    data = io.BytesIO()
    Image.fromarray(heat_colours(values / highest)).save(data, "PNG")
    png, (rows, columns) = data.getvalue(), values.shape
    name = blake2b(png, digest_size=KEY_BYTES).hexdigest()
    drawn = Density(
        address=f"/density/{slide.key}-{name}.png",
        x=density.x,
        y=density.y,
        width=columns * density.step_px,
        height=rows * density.step_px,
        highest=highest,
    )
    return drawn, png
