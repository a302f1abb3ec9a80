"""The viewer: slides with deep zoom, what was found on them, and the review of it, in one page."""

from __future__ import annotations

import asyncio
import io
import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
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
from starlette.types import ASGIApp

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.parallel import available_cores
from metaphase.counting import DensityMap, Hotspot, SlideCount
from metaphase.jobs.results import SlideResult, load_result, result_folders
from metaphase.jobs.reviewing import review_order, reviewed_count, reviewed_result, runner_up
from metaphase.labels.observers.places import REVIEW as ANSWERS
from metaphase.labels.observers.places import PlaceLog, Reviewed, place_name, place_of
from metaphase.labels.observers.store import Entry, Given
from metaphase.reports.drawing import encode_jpeg
from metaphase.reports.slide.overview import coarse_tissue, heat_colours
from metaphase.slides import SlideSource
from metaphase.slides.opening import OPEN_SLIDES, SlidePool
from metaphase.web.access import Access, Guard, is_loopback
from metaphase.web.labelling import SHARED_ASSETS, Hello, Message, ObserverName, Receipt
from metaphase.web.serving import (
    HTML,
    LOOPBACK,
    SCRIPT,
    STYLE,
    add_assets,
    bare_app,
    listening,
    picture,
    serve_quietly,
    url_of,
)

# ---- what is viewed ----

KEY_BYTES = 8
OUTLINE_SHARE = 1 / 1500
"""How far the outline may be off, as a share of the slide's longer side."""


class ViewedSlide:
    """A slide with what was found on it, if anything was sought. Safe to use from several threads."""

    def __init__(self, source: SlideSource, result: SlideResult | None = None) -> None:
        self.source = source
        self.result = result
        with source.open() as slide:
            self.width, self.height, self.mpp = slide.width, slide.height, slide.mpp
        self.name = result.name if result else source.path.stem
        place = result.folder if result else source.path
        self.key = _digest(str(place.resolve()))
        """What the browser calls it, the same whenever it is viewed."""
        stat = source.path.stat()
        self.version = _digest(repr((stat.st_mtime_ns, stat.st_size, self.mpp, TILE_PX, TILE_QUALITY)))
        """Changes with its pixels."""

    @cached_property
    def log(self) -> PlaceLog:
        """The answers about it."""
        return PlaceLog(self.found.folder)

    @property
    def found(self) -> SlideResult:
        """What was found on it; only where something was sought."""
        if self.result is None:
            raise HTTPException(404, "nothing was sought on this slide")
        return self.result

    @cached_property
    def order(self) -> list[int]:
        """Rows of the candidates in the order of review."""
        circle = {name: self.found.machine["hotspot"][name] for name in Hotspot.__slots__}
        return review_order(self.found.candidates, Hotspot(**circle), self.found.counting, self.mpp)

    def counted(
        self, given: Sequence[Given], threshold: float | None = None, *, quick: bool = False
    ) -> tuple[Reviewed, SlideCount]:
        """Detections and count with these answers, at the result's own threshold or another.

        A quick count leaves out the uncertainty, which takes almost all of the time.
        """
        config = self.found.counting
        config = config if threshold is None else replace(config, threshold=threshold)
        config = replace(config, draws=0) if quick else config
        reviewed = reviewed_result(self.found, given)
        return reviewed, reviewed_count(self.found, reviewed, config)

    def answers(self, observer: str, *, blind: bool) -> list[Given]:
        """The answers an observer may know of: where they are blind, their own."""
        if not (self.found.folder / ANSWERS).is_file() or (blind and not observer):
            return []
        return self.log.current(observer if blind else None)

    def close(self) -> None:
        """Release the answers."""
        if "log" in self.__dict__:
            self.log.close()


def viewed_slides(
    paths: Sequence[Path], *, mpp: float | None = None, failed: Callable[[str], None] | None = None
) -> list[ViewedSlide]:
    """Slides of result folders, and slides by themselves, each once.

    `failed` is told of those that cannot be opened and the others go on; without it, or where none is left,
    that is an error.
    """
    found: dict[str, ViewedSlide] = {}
    problems: list[MetaphaseError] = []
    for file, folder in (part for path in paths for part in _parts(path)):
        try:
            result = load_result(folder) if folder is not None else None
            source = SlideSource(file, mpp) if result is None else result.source
            slide = ViewedSlide(source, result)
        except MetaphaseError as error:
            problems.append(error)
        else:
            found[slide.key] = slide
    if problems and (failed is None or not found):
        raise problems[0]
    for problem in problems:
        if failed is not None:
            failed(str(problem))
    return list(found.values())


def _parts(path: Path) -> list[tuple[Path, Path | None]]:
    """What a path stands for: folders of results, or a slide."""
    if not path.is_dir():
        return [(path, None)]
    folders = result_folders(path)
    if not folders:
        raise UsageError(
            "holds no results", path=path, next_step="give what metaphase detect -o named, or slides"
        )
    return [(path, folder) for folder in folders]


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=KEY_BYTES).hexdigest()


# ---- tiles ----

TILE_PX = 512
TILE_QUALITY = 82
CACHE_BYTES = 256_000_000


class TileMaker:
    """JPEG tiles of slides at powers of two, the latest kept in memory. Safe to use from several threads."""

    def __init__(self, *, cache_bytes: int = CACHE_BYTES, open_slides: int = OPEN_SLIDES) -> None:
        self._slides = SlidePool(open_slides)
        self._room = cache_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int, int, int], bytes] = OrderedDict()
        self.made = 0
        """How many tiles were made, not found."""

    def kept(self, slide: ViewedSlide, level: int, column: int, row: int) -> bytes | None:
        """A tile that is in memory."""
        key = (slide.version + slide.key, level, column, row)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def make(self, slide: ViewedSlide, level: int, column: int, row: int) -> bytes | None:
        """A tile; level 0 has the slide's own pixels, each next half as many a side. None beyond the edge."""
        scale = 2**level
        x, y = column * TILE_PX * scale, row * TILE_PX * scale
        width, height = (
            min(TILE_PX, math.ceil((side - start) / scale))
            for side, start in ((slide.width, x), (slide.height, y))
        )
        if min(width, height) < 1 or level > levels_of(slide.width, slide.height):
            return None
        with self._slides.open(slide.source.path, slide.source.mpp) as opened:
            pixels = opened.read(x, y, width, height, opened.mpp * scale)
        jpeg = encode_jpeg(pixels, TILE_QUALITY, subsampling=2)
        with self._lock:
            self.made += 1
            self._kept[slide.version + slide.key, level, column, row] = jpeg
            self._room -= len(jpeg)
            while self._room < 0:
                self._room += len(self._kept.popitem(last=False)[1])
        return jpeg

    def close(self) -> None:
        """Close the slides."""
        self._slides.close()


def levels_of(width: int, height: int) -> int:
    """How often a slide is halved until it fits one tile.

    >>> levels_of(512, 100), levels_of(513, 100), levels_of(100_000, 60_000)
    (0, 1, 8)
    """
    return max(0, math.ceil(math.log2(max(width, height) / TILE_PX)))


# ---- what the page and its server say to each other ----

Ring = list[float]
"""Corners x, y, x, y, ... in level-0 pixels."""


class SlideRow(Message):
    """A line of the list."""

    key: str
    name: str
    counted: bool
    """Whether something was sought on it."""
    count: float | None = None
    low: float | None = None
    high: float | None = None
    grade: str = ""
    """As it may be shown."""
    doubt: float | None = None
    """Chance that the grade is another one."""
    progress: float | None = None
    """Share of the counted detections that were looked at, by whoever looked at most that one may know of."""


class Cohort(Message):
    """The list, and what holds for all slides."""

    slides: list[SlideRow]
    blind: bool


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
    counted: bool
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    """Places to a tenth of a pixel, as answers name them."""
    probability: tuple[float, ...] = ()
    order: tuple[int, ...] = ()
    """Rows in the order of review."""
    threshold: float = 1.0
    lowest: float = 1.0
    """Below this the networks' answers were not kept."""
    outline: tuple[Ring, ...] = ()


class Circle(Message):
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


class CountView(Message):
    """The count with the answers that the observer may know of; a quick one has no interval."""

    count: float
    low: float | None
    high: float | None
    grade: str
    """As it may be shown: one, a range, or withheld."""
    grades: list[float] | None
    counted: int
    machine: float
    """What was counted without people, at the result's own threshold."""
    hotspot: Circle | None
    runner_up: Circle | None
    density: Density | None
    shares: list[str]
    """Who looked at how much; empty where observers are blind."""


class Place(Message):
    """A place on a slide."""

    slide: Annotated[str, Field(max_length=2 * KEY_BYTES)]
    x: Annotated[float, Field(ge=-1e8, le=1e8)]
    y: Annotated[float, Field(ge=-1e8, le=1e8)]


class SentVerdict(Message):
    """One answer about a place; None takes it back."""

    uuid: Annotated[str, Field(pattern=r"^[0-9a-f-]{36}$")]
    item: Place
    answer: Annotated[str, Field(max_length=64)] | None
    seconds: Annotated[float, Field(ge=0, le=3600)]


class SentVerdicts(Message):
    """Answers waiting in a browser, oldest first."""

    observer: ObserverName
    answers: Annotated[list[SentVerdict], Field(min_length=1, max_length=100)]


class Standing(Message):
    """An answer that stands."""

    x: float
    y: float
    answer: str
    own: bool


class ReviewView(Message):
    """What an observer has answered about a slide, and what others have where they may know."""

    observer: str
    standing: list[Standing]


class AskedCount(Message):
    """A count at a threshold, for an observer or for nobody."""

    observer: Annotated[str, Field(max_length=64)] = ""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    quick: bool = False


# ---- the viewer as a web application ----

OWN_ASSETS = {
    "": ("page.html", HTML),
    "view.js": ("page.js", SCRIPT),
    "tiles.js": ("tiles.js", SCRIPT),
    "marks.js": ("marks.js", SCRIPT),
    "review.js": ("review.js", SCRIPT),
    "view.css": ("page.css", STYLE),
}
ZOOMER = "openseadragon.min.js"
KEPT_DENSITIES = 32


def viewing_app(
    slides: Sequence[ViewedSlide], tiles: TileMaker, access: Access, *, blind: bool = False
) -> ASGIApp:
    """The application with its guard around it."""
    if not files("metaphase.web").joinpath("static", "openseadragon", ZOOMER).is_file():
        raise MetaphaseError(
            "this copy of metaphase was made without OpenSeadragon",
            next_step="install it from a wheel, or run make in its repository",
        )
    app = bare_app("metaphase view")
    add_assets(app, "viewing", OWN_ASSETS)
    add_assets(app, "openseadragon", {ZOOMER: (ZOOMER, SCRIPT), "licence.txt": ("LICENSE.txt", "text/plain")})
    shared = {name: SHARED_ASSETS[name] for name in ("controls.js", "outbox.js", "icon.svg")}
    add_assets(app, "labelling", shared)
    by_key = {slide.key: slide for slide in slides}

    def named(key: str) -> ViewedSlide:
        if key not in by_key:
            raise HTTPException(404, "no such slide")
        return by_key[key]

    _add_tiles(app, named, tiles)
    _add_slides(app, slides, named, blind)
    _add_review(app, named, blind)
    return Guard(app, access)


def _add_tiles(app: FastAPI, named: Callable[[str], ViewedSlide], tiles: TileMaker) -> None:
    slots = asyncio.Semaphore(max(2, available_cores()))

    @app.get("/tile/{key}/{version}/{level}/{column}_{row}.jpg")
    async def tile(request: Request, key: str, version: str, level: int, column: int, row: int) -> Response:
        """A tile; those that the browser gave up before their turn are not made."""
        slide = named(key)
        if version != slide.version or not 0 <= level <= 40 or min(column, row) < 0:
            raise HTTPException(404, "unavailable")
        jpeg = tiles.kept(slide, level, column, row)
        if jpeg is None:
            await request.body()  # or else the end of the request hides that of the connection
            async with slots:
                if await request.is_disconnected():
                    return Response(status_code=499)
                jpeg = await run_in_threadpool(tiles.make, slide, level, column, row)
        return picture(jpeg)


def _add_slides(
    app: FastAPI, slides: Sequence[ViewedSlide], named: Callable[[str], ViewedSlide], blind: bool
) -> None:
    @app.post("/api/slides")
    def cohort(asked: AskedCount) -> Cohort:
        """The list."""
        return Cohort(slides=[_row(slide, asked.observer, blind) for slide in slides], blind=blind)

    @app.get("/api/slide/{key}")
    def one(key: str) -> SlideView:
        """A slide and what the networks found."""
        return _view(named(key))


def _add_review(app: FastAPI, named: Callable[[str], ViewedSlide], blind: bool) -> None:
    densities: OrderedDict[str, bytes] = OrderedDict()

    @app.post("/api/count/{key}")
    def count(key: str, asked: AskedCount) -> CountView:
        """Count, grade, interval, hotspot and density with the answers so far."""
        slide = named(key)
        given = slide.answers(asked.observer, blind=blind)
        reviewed, counted = slide.counted(given, asked.threshold, quick=asked.quick)
        drawn = _density(slide, counted.density)
        if drawn is not None:
            densities[drawn[0].address] = drawn[1]
            while len(densities) > KEPT_DENSITIES:
                densities.popitem(last=False)
        return _count_view(slide, reviewed, counted, drawn[0] if drawn else None, blind)

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
            Standing(x=place[0], y=place[1], answer=one.answer, own=one.observer == observer)
            for one in named(key).answers(observer, blind=blind)
            if (place := place_of(one.item))
        ]
        return ReviewView(observer=observer, standing=standing)

    @app.post("/api/answers")
    def answers(sent: SentVerdicts) -> Receipt:
        """Write answers; the reply leaves when they are on the disk."""
        saved, refused = [], []
        for one in sent.answers:
            item = place_name(one.item.x, one.item.y)
            try:
                named(one.item.slide).log.record_many(
                    [Entry(sent.observer, item, one.answer, one.seconds, uuid=one.uuid)]
                )
            except (UsageError, HTTPException):
                refused.append(one.uuid)
            else:
                saved.append(one.uuid)
        return Receipt.model_validate({"saved": saved, "refused": refused})


def _row(slide: ViewedSlide, observer: str, blind: bool) -> SlideRow:
    if slide.result is None:
        return SlideRow(key=slide.key, name=slide.name, counted=False)
    score, seen = slide.result.machine, 0.0
    if given := slide.answers(observer, blind=blind):
        reviewed, count = slide.counted(given)
        score = count.to_dict()
        seen = max((share.counted / share.of for share in reviewed.shares if share.of), default=0.0)
    low, high = score["count_interval"]
    return SlideRow(
        key=slide.key,
        name=slide.name,
        counted=True,
        count=score["count"],
        low=low,
        high=high,
        grade=score["grade_shown"]["text"],
        doubt=1 - max(score["grade_probabilities"]),
        progress=seen,
    )


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
        "counted": slide.result is not None,
    }
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
    slide: ViewedSlide, reviewed: Reviewed, count: SlideCount, density: Density | None, blind: bool
) -> CountView:
    second = runner_up(reviewed.mitoses, count, slide.mpp)
    shares = () if blind else reviewed.shares
    low, high = count.count_interval if count.draws else (None, None)
    return CountView(
        count=count.count,
        low=low,
        high=high,
        grade=count.grade_shown.text,
        grades=_grades(count),
        counted=count.detections,
        machine=float(slide.found.machine["count"]),
        hotspot=_circle(count.hotspot) if count.hotspot.count else None,
        runner_up=_circle(second) if second else None,
        density=density,
        shares=[f"{one.observer}: {one.counted} of {one.of}" for one in shares],
    )


def _grades(count: SlideCount) -> list[float] | None:
    """Chance of each grade; none where no grade is given, None where nothing was drawn."""
    if not count.draws:
        return None
    return [] if count.grade_shown.withheld else list(count.grade_probabilities)


def _circle(hotspot: Hotspot) -> Circle:
    return Circle(x=hotspot.x, y=hotspot.y, radius=hotspot.radius_px, count=hotspot.count)


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


@dataclass(frozen=True)
class Running:
    """A server about to listen."""

    url: str
    """To open in a browser; holds the token where there is one."""
    slides: int


def serve_view(
    paths: Sequence[Path],
    *,
    mpp: float | None = None,
    host: str = LOOPBACK,
    port: int = PORT,
    token: str | None = None,
    blind: bool = False,
    ready: Callable[[Running], None] | None = None,
    failed: Callable[[str], None] | None = None,
) -> None:
    """Serve the viewer until stopped. `ready` is called once the address is taken; port 0 is any.

    Beyond loopback a token is made unless one is given. `failed` is told of slides that cannot be opened.
    """
    slides = viewed_slides(paths, mpp=mpp, failed=failed)
    loopback = is_loopback(host)
    access = Access(token or (None if loopback else secrets.token_urlsafe(24)), loopback_only=loopback)
    tiles = TileMaker()
    with ExitStack() as closing, listening(host, port) as listener:
        closing.callback(tiles.close)
        for slide in slides:
            closing.callback(slide.close)
        app = viewing_app(slides, tiles, access, blind=blind)
        if ready is not None:
            ready(Running(url_of(host, listener.getsockname()[1], access.token), len(slides)))
        serve_quietly(app, listener)
