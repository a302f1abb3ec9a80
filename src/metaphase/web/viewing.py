"""The viewer: slides with deep zoom, what was found on them, and the review of it, in one page."""

from __future__ import annotations

import asyncio
import io
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import shapely
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response
from PIL import Image
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.parallel import KeptBytes, available_cores
from metaphase.counting.clinical import Count, SlideCount, counts_in
from metaphase.counting.hotspot import Hotspot
from metaphase.counting.specimen import DensityMap
from metaphase.jobs.slide_review import apply_reviews, reviewed_result, runner_up, withdraw_review
from metaphase.labels.observers.positions import Reviewed, Share, position_name, position_of
from metaphase.labels.observers.store import Entry, Given
from metaphase.reports.slide.pictures import coarse_tissue, heat_colours
from metaphase.web.access import Access, is_loopback, new_token, own_token
from metaphase.web.serving import (
    LOOPBACK,
    Hello,
    Message,
    Number,
    OnceInAWhile,
    Ready,
    Receipt,
    SentAnswers,
    bare_app,
    picture,
    serve,
)
from metaphase.web.viewed import (
    KEY_BYTES,
    TILE_PX,
    Layer,
    TileMaker,
    ViewedSlide,
    levels_of,
    viewed_slides,
)

# ---- what the page and its server say to each other ----

OUTLINE_SHARE = 1 / 1500
"""How far the outline may be off, as a share of the slide's longer side."""
Ring = list[float]
"""Corners x, y, x, y, ... in level-0 pixels."""


class Shown(Message):
    """A count and its grade, as numbers and for reading."""

    count: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    interval: str = ""
    kind: str = ""
    """`reviewed`, `calibrated` or `model`."""
    grade: str = ""
    """As it may be shown: one, a range, or withheld."""


class SlideRow(Shown):
    """A line of the list."""

    key: str
    name: str
    counted: bool
    """Whether something was sought on it."""
    doubt: float | None = None
    """Chance that the grade is another one."""
    answered: int = 0
    """Candidates that the observer answered; without a name, whoever answered most that one may know of."""
    candidates: int = 0
    progress: float | None = None
    """The share of them."""


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


class CircleView(Message):
    """A circle in level-0 pixels, and the mitoses inside."""

    x: float
    y: float
    radius: float
    count: int


class Density(Message):
    """A picture of mitoses per mm2 and where it lies, in level-0 pixels."""

    address: str
    x: float
    y: float
    width: float
    height: float
    highest: float


class CountView(Shown):
    """The count in force with the answers that the observer may know of; a quick one has no interval, and no
    count either where a profile of the laboratory has to be asked."""

    name: str
    """What its interval is called."""
    note: str
    """Its kind, and what that means and leaves out."""
    beneath: list[str]
    """The counts that it stands for: those without people."""
    grades: list[float] | None
    counted: int
    hotspot: CircleView | None
    runner_up: CircleView | None
    density: Density | None
    shares: list[str]
    """Who looked at how much; empty where observers are blind."""
    row: SlideRow | None = None
    """The line of the list as it is now; None of a quick count, or at another threshold."""


class Position(Message):
    """A position on a slide."""

    slide: Annotated[str, Field(max_length=2 * KEY_BYTES)]
    x: Annotated[float, Field(ge=-1e8, le=1e8)]
    y: Annotated[float, Field(ge=-1e8, le=1e8)]


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
    """A review in force."""

    count: float | None
    text: str
    """The count with its interval and kind, for reading."""


class AskedCount(Message):
    """A count at a threshold, for an observer or for nobody."""

    observer: Annotated[str, Field(max_length=64)] = ""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    quick: bool = False


# ---- the viewer as a web application ----

ZOOMER = "openseadragon.min.js"
KEPT_DENSITIES = 8_000_000
"""Bytes of pictures that a page may still ask for."""
_log = logging.getLogger(__name__)
_log.addFilter(OnceInAWhile())


def viewing_app(slides: Sequence[ViewedSlide], tiles: TileMaker, *, blind: bool = False) -> FastAPI:
    """The application."""
    if not files("metaphase.web").joinpath("static", "openseadragon", ZOOMER).is_file():
        raise MetaphaseError(
            "this copy of metaphase was made without OpenSeadragon",
            next_step="install it from a wheel, or run make in its repository",
        )
    app = bare_app("shared", "viewing", "openseadragon")
    by_key = {slide.key: slide for slide in slides}

    def named(key: str) -> ViewedSlide:
        if key not in by_key:
            raise HTTPException(404, "no such slide")
        return by_key[key]

    _add_tiles(app, named, tiles)
    _add_slides(app, slides, named, blind)
    _add_review(app, named, blind)
    return app


def _add_tiles(app: FastAPI, named: Callable[[str], ViewedSlide], tiles: TileMaker) -> None:
    slots = asyncio.Semaphore(max(2, available_cores()))

    async def made(
        request: Request, slide: ViewedSlide, layer: Layer | None, level: int, column: int, row: int
    ) -> bytes | None:
        """A tile; those that the browser gave up before their turn are not made."""
        found = tiles.kept(slide, level, column, row, layer)
        if found is None:
            await request.body()  # or else the end of the request hides that of the connection
            async with slots:
                if await request.is_disconnected():
                    raise HTTPException(499, "given up")
                found = await run_in_threadpool(tiles.make, slide, level, column, row, layer)
        return found

    @app.get("/tile/{key}/{version}/{level}/{column}_{row}.jpg")
    async def tile(
        request: Request, key: str, version: str, level: Number, column: Number, row: Number
    ) -> Response:
        """Of the slide."""
        slide = named(key)
        if version != slide.version:
            raise HTTPException(404, "unavailable")
        return picture(await made(request, slide, None, level, column, row))

    @app.get("/layer/{key}/{name}/{version}/{level}/{column}_{row}.{ending}")
    async def layer_tile(
        request: Request,
        key: str,
        name: str,
        version: str,
        level: Number,
        column: Number,
        row: Number,
        ending: str,
    ) -> Response:
        """Of a layer over it."""
        slide = named(key)
        layer = slide.layers.get(name)
        if layer is None or (version, ending) != (layer.version, layer.ending):
            raise HTTPException(404, "unavailable")
        return picture(await made(request, slide, layer, level, column, row), ending)


def _add_slides(
    app: FastAPI, slides: Sequence[ViewedSlide], named: Callable[[str], ViewedSlide], blind: bool
) -> None:
    @app.post("/api/slides")
    def cohort(asked: AskedCount) -> SlideList:
        """The list."""
        return SlideList(slides=[_row(slide, asked.observer, blind) for slide in slides], blind=blind)

    @app.get("/api/slide/{key}")
    def one(key: str) -> SlideView:
        """A slide and what the networks found."""
        return _view(named(key))


def _add_review(app: FastAPI, named: Callable[[str], ViewedSlide], blind: bool) -> None:
    densities = KeptBytes(KEPT_DENSITIES)
    writing = threading.Lock()

    @app.post("/api/count/{key}")
    def count(key: str, asked: AskedCount) -> CountView:
        """Count, grade, interval, hotspot and density with the answers so far."""
        slide = named(key)
        given = slide.answers(asked.observer, blind=blind)
        stored = slide.stored(given) if asked.threshold is None else None
        reviewed, counted = slide.counted(given, asked.threshold, quick=asked.quick or stored is not None)
        drawn = _density(slide, counted.density)
        if drawn is not None:
            densities.put(drawn[0].address, drawn[1])
        facts = stored or counted.to_dict()
        view = _count_view(slide, reviewed, counted, facts, drawn[0] if drawn else None, blind)
        if asked.quick or asked.threshold is not None:
            return view
        return view.model_copy(update={"row": _line(slide, reviewed.shares, facts, asked.observer)})

    @app.get("/density/{name}.png")
    def density(name: str) -> Response:
        """A picture that a count spoke of."""
        if (png := densities.get(f"/density/{name}.png")) is None:
            raise HTTPException(404, "unavailable")
        return Response(png, media_type="image/png", headers={"cache-control": "private, max-age=3600"})

    @app.post("/api/review/{key}")
    def review(key: str, hello: Hello) -> ReviewView:
        """What this observer has answered, from any device."""
        log = named(key).log
        observer = log.known(hello.observer)
        standing = [
            StandingAnswer(x=position[0], y=position[1], answer=one.answer, own=one.observer == observer)
            for one in named(key).answers(observer, blind=blind)
            if (position := position_of(one.item))
        ]
        return ReviewView(observer=observer, standing=standing)

    @app.post("/api/withdraw/{key}")
    def withdraw(key: str, hello: Hello) -> ReviewView:
        """Take back all answers of this observer about a slide."""
        with writing:
            withdraw_review([named(key).found.folder], hello.observer)
        return review(key, hello)

    @app.post("/api/apply/{key}")
    def apply(key: str) -> AppliedView:
        """Put the answers that stand in force: report, tables and exports are rewritten."""
        if blind:
            raise HTTPException(409, "observers are blind here: run metaphase review apply when all are done")
        with writing:
            (done,) = apply_reviews([named(key).found.folder])
        return AppliedView(count=done.count, text=str(done.in_force))

    @app.post("/api/answers")
    def answers(sent: SentAnswers[Position]) -> Receipt:
        """Write answers; the reply leaves when they are on the disk."""
        saved, refused = [], []
        for one in sent.answers:
            item = position_name(one.item.x, one.item.y)
            try:
                named(one.item.slide).log.record_many(
                    [Entry(sent.observer, item, one.answer, one.seconds, uuid=str(one.uuid))]
                )
            except (UsageError, HTTPException):
                refused.append(one.uuid)
            else:
                saved.append(one.uuid)
        return Receipt(saved=saved, refused=refused)


def _row(slide: ViewedSlide, observer: str, blind: bool) -> SlideRow:
    if slide.result is None:
        return SlideRow(key=slide.key, name=slide.name, counted=False)
    given: list[Given] = []
    try:
        given = slide.answers(observer, blind=blind)
    except MetaphaseError as error:  # the list is for all slides
        _log.warning("%s is listed without its answers: %s", slide.name, error)
    facts = slide.stored(given) or slide.counted(given)[1].to_dict()
    shares = reviewed_result(slide.result, given).shares if given else ()
    return _line(slide, shares, facts, observer)


def _line(slide: ViewedSlide, shares: Sequence[Share], facts: Mapping[str, Any], observer: str) -> SlideRow:
    own = [one for one in shares if one.observer.casefold() == observer.strip().casefold()]
    looked = () if observer and not own else own or shares
    answered = max((one.counted + one.below for one in looked), default=0)
    candidates = len(slide.found.candidates)
    return SlideRow(
        key=slide.key,
        name=slide.name,
        counted=True,
        **_shown(counts_in(facts)[0]),
        grade=facts["grade_shown"]["text"],
        doubt=1 - max(facts["grade_probabilities"]),
        answered=answered,
        candidates=candidates,
        progress=answered / candidates if candidates else 1.0,
    )


def _shown(count: Count) -> dict[str, Any]:
    """A count as the page shows it."""
    low, high = count.count_interval or (None, None)
    number = count.count if math.isfinite(count.count) else None
    facts = {
        "count": number,
        "low": low,
        "high": high,
        "text": count.text,
        "interval": count.interval_text,
    }
    return facts | {"kind": count.kind}


def _view(slide: ViewedSlide) -> SlideView:
    base: dict[str, Any] = {
        "key": slide.key,
        "name": slide.name,
        "width": slide.width,
        "height": slide.height,
        "mpp": slide.mpp,
        "tiles": f"/tile/{slide.key}/{slide.version}",
        "tile_px": TILE_PX,
        "levels": levels_of(slide.width, slide.height),
        "layers": tuple(
            LayerView(name=name, title=one.title, ending=one.ending,
                      tiles=f"/layer/{slide.key}/{name}/{one.version}")
            for name, one in slide.layers.items()
        ),
        "counted": slide.result is not None,
    }  # fmt: skip
    if slide.result is None:
        return SlideView(**base)
    table = slide.result.candidates
    return SlideView(
        **base,
        x=tuple(round(value, 1) for value in table["x"].tolist()),
        y=tuple(round(value, 1) for value in table["y"].tolist()),
        probability=tuple(table["probability"].tolist()),
        order=tuple(slide.order),
        threshold=slide.result.counting.threshold,
        lowest=float(table["probability"].min()) if len(table) else 0.0,
        outline=_outline(slide),
    )


def _outline(slide: ViewedSlide) -> tuple[Ring, ...]:
    if slide.found.tissue.is_empty:
        return ()
    tolerance_px = OUTLINE_SHARE * max(slide.width, slide.height)
    pieces = shapely.MultiPolygon(list(coarse_tissue(slide.found.tissue).polygons()))
    simple = shapely.simplify(pieces, tolerance_px)
    rings = (ring for part in shapely.get_parts(simple) for ring in (part.exterior, *part.interiors))
    return tuple(np.asarray(ring.coords).round(1).ravel().tolist() for ring in rings if not ring.is_empty)


def _count_view(
    slide: ViewedSlide,
    reviewed: Reviewed,
    count: SlideCount,
    facts: Mapping[str, Any],
    density: Density | None,
    blind: bool,
) -> CountView:
    """The result's facts as plain values, and what is drawn of `count`."""
    second = runner_up(reviewed.mitoses, count, slide.mpp)
    best, *beneath = counts_in(facts)
    own = count.config.threshold == slide.found.counting.threshold
    waits = own and not facts["draws"] and slide.found.site is not None
    return CountView(
        **(_shown(best) | ({"count": None, "text": "…"} if waits else {})),
        name=best.interval_name,
        note=f"{best.kind_text}; {best.interval_note}",
        beneath=[str(one) for one in beneath],
        grade=facts["grade_shown"]["text"],
        grades=_grades(facts),
        counted=count.counted,
        hotspot=_circle(count.hotspot) if count.hotspot.count else None,
        runner_up=_circle(second) if second else None,
        density=density,
        shares=[f"{one.observer}: {one.counted} of {one.of}" for one in (() if blind else reviewed.shares)],
    )


def _grades(facts: Mapping[str, Any]) -> list[float] | None:
    """Chance of each grade; none where no grade is given, None where nothing was drawn."""
    if not facts["draws"]:
        return None
    return [] if facts["grade_shown"]["withheld"] else facts["grade_probabilities"]


def _circle(hotspot: Hotspot) -> CircleView:
    return CircleView(x=hotspot.x, y=hotspot.y, radius=hotspot.radius_px, count=hotspot.count)


def _density(slide: ViewedSlide, density: DensityMap) -> tuple[Density, bytes] | None:
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


# ---- starting the server ----

PORT = 8502


def serve_view(
    paths: Sequence[Path],
    *,
    mpp: float | None = None,
    registrations: Sequence[Path] = (),
    host: str = LOOPBACK,
    port: int = PORT,
    token: str | None = None,
    blind: bool = False,
    ready: Ready | None = None,
    failed: Callable[[str], None] | None = None,
) -> None:
    """Serve the viewer until stopped.

    A token is made unless one is given. `registrations` are folders of `metaphase register`,
    whose PHH3 slides can be laid over. `failed` gets slides that cannot be opened.
    """
    slides = viewed_slides(paths, mpp=mpp, registrations=registrations, failed=failed)
    loopback = is_loopback(host)
    access = Access(token or (own_token() if loopback else new_token()), loopback_only=loopback)
    tiles = TileMaker()
    with ExitStack() as closing:
        closing.callback(tiles.close)
        for slide in slides:
            closing.callback(slide.close)
        app = viewing_app(slides, tiles, blind=blind)
        serve(app, access, len(slides), host=host, port=port, ready=ready)
