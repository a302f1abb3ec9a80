"""The viewer: slides with deep zoom, what was found on them, and the review of it, in one page."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from metaphase.analysis.record import COUNTS
from metaphase.analysis.review import apply_reviews, reviewed_result, withdraw_review
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.parallel import KeptBytes, available_cores
from metaphase.counting.clinical import slide_density
from metaphase.labels.observers.positions import PLACE, PositionLog
from metaphase.labels.observers.store import Entry
from metaphase.reports.pages import in_words, script_policy
from metaphase.web.access import POLICY, Access, is_loopback, new_token, own_token
from metaphase.web.messages import (
    AskedCount,
    OfScope,
    Pixel,
    Position,
    count_view,
    drawn_density,
    row_with,
    slide_row,
    slide_view,
    standing_answers,
    standing_marks,
)
from metaphase.web.serving import (
    KINDS,
    LOOPBACK,
    Hello,
    Number,
    Ready,
    Receipt,
    Reply,
    SentAnswers,
    bare_app,
    picture,
    serve,
)
from metaphase.web.viewed import SLIDE, TileMaker, ViewedSlide, viewed_slides

ZOOMER = "openseadragon.min.js"
LINKS = re.compile(r'(<nav id="links"[^>]*>).*?(</nav>)', re.DOTALL)
"""Of a report, to its neighbours on the disk."""
KEPT_DENSITIES = 8_000_000
"""Bytes of pictures that a page may still ask for."""


def viewing_app(
    slides: Sequence[ViewedSlide], tiles: TileMaker, *, blind: bool = False, moved: Path | None = None
) -> FastAPI:
    """The application; slides that have moved lie in the folder `moved`."""
    if not files("metaphase.web").joinpath("static", "openseadragon", ZOOMER).is_file():
        raise MetaphaseError(
            "OpenSeadragon is missing from this installation of metaphase",
            next_step="install it from a wheel, or run make in its repository",
        )
    app = bare_app("shared", "viewing", "openseadragon")
    by_key = {slide.key: slide for slide in slides}

    def named(key: str) -> ViewedSlide:
        if key not in by_key:
            raise HTTPException(404, "no such slide")
        return by_key[key]

    _add_tiles(app, named, tiles)

    @app.post("/api/slides")
    def cohort(asked: AskedCount) -> Reply:
        """The list, and what holds for all slides."""
        return {"slides": [slide_row(slide, asked.observer, blind) for slide in slides], "blind": blind}

    @app.get("/api/slide/{key}")
    def one(key: str) -> Reply:
        """A slide and what the networks found."""
        return slide_view(named(key))

    _add_review(app, slides, named, blind, moved)
    if not blind:
        _add_files(app, named)
    return app


def _add_files(app: FastAPI, named: Callable[[str], ViewedSlide]) -> None:
    """What lies on the disk beside the slides, and says what people answered."""

    def read(path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise HTTPException(404, "unavailable") from error

    @app.get("/report/{key}")
    def report(key: str) -> Response:
        """The report of a slide, with links to here; no script runs that is not our own."""
        links = {
            "Review this slide": f"/#s={key}",
            "All slides": "/",
            "Counts as a table": f"/counts/{key}.csv",
        }
        here = " ".join(f'<a href="{address}">{text}</a>' for text, address in links.items())
        page = LINKS.sub(rf"\g<1>{here}\g<2>", read(named(key).found.report), count=1)
        policy = f"{script_policy('slide.js')}; frame-ancestors 'none'"
        return Response(page, media_type=KINDS[".html"], headers={POLICY: policy})

    @app.get("/counts/{key}.csv")
    def counts(key: str) -> Response:
        """The counts of all slides of its folder."""
        table = read(named(key).found.folder.parent / COUNTS)
        name = {"content-disposition": f"attachment; filename={COUNTS}"}
        return Response(table, media_type="text/csv", headers=name)


def _add_tiles(app: FastAPI, named: Callable[[str], ViewedSlide], tiles: TileMaker) -> None:
    slots = asyncio.Semaphore(max(2, available_cores()))

    @app.get("/tile/{key}/{name}/{version}/{level}/{column}_{row}.{ending}")
    async def tile(
        request: Request,
        key: str,
        name: str,
        version: str,
        level: Number,
        column: Number,
        row: Number,
        ending: str,
    ) -> Response:
        """Of a slide or a layer over it; those that the browser gave up before their turn are not made."""
        slide = named(key)
        layer = slide.layers.get(name)
        if layer is None or (version, ending) != (layer.version, layer.ending):
            raise HTTPException(404, "unavailable")
        found = tiles.kept(slide, level, column, row, name)
        if found is None:
            await request.body()  # or else the end of the request hides that of the connection
            async with slots:
                if await request.is_disconnected():
                    raise HTTPException(499, "given up")
                found = await run_in_threadpool(tiles.make, slide, level, column, row, name)
        return picture(found, ending)

    @app.get("/figure/{key}/{version}/{x}_{y}.jpg")
    async def figure(key: str, version: str, x: Pixel, y: Pixel) -> Response:
        """A figure by itself."""
        slide = named(key)
        if SLIDE not in slide.layers or version != slide.layers[SLIDE].version:
            raise HTTPException(404, "unavailable")
        async with slots:
            return picture(await run_in_threadpool(tiles.figure, slide, x, y))


def _add_review(
    app: FastAPI,
    slides: Sequence[ViewedSlide],
    named: Callable[[str], ViewedSlide],
    blind: bool,
    moved: Path | None,
) -> None:
    densities = KeptBytes(KEPT_DENSITIES)
    writing = threading.Lock()

    @app.post("/api/count/{key}")
    def count(key: str, asked: AskedCount) -> Reply:
        """Count, interval, score, hotspot and density with the answers so far."""
        slide = named(key)
        given, result = slide.answers(asked.observer, blind=blind), slide.found
        if asked.threshold is None and (counted := slide.stored(given)) is not None:
            reviewed = reviewed_result(result, given, slide.scope)
        else:
            reviewed, counted = slide.counted(given, asked.threshold)
        about: Reply = {"config": counted.config, "scope": counted.scope}
        density = slide_density(reviewed.table, mpp=result.mpp, tissue=result.tissue, **about)
        drawn, png = drawn_density(slide, density)
        if drawn is not None:
            densities.put(drawn["address"], png)
        standing = [] if asked.observer else standing_answers(given, "")
        view = count_view(slide, reviewed, counted, drawn, standing, blind)
        if asked.threshold is None:
            view["row"] = row_with(slide, reviewed.shares, counted, asked.observer, blind)
        return view

    @app.get("/api/record/{key}")
    def record(key: str) -> str:
        """What changes with the files of a slide's results."""
        return named(key).record

    @app.get("/density/{name}.png")
    def density(name: str) -> Response:
        """A picture that a count spoke of."""
        if (png := densities.get(f"/density/{name}.png")) is None:
            raise HTTPException(404, "unavailable")
        return Response(png, media_type="image/png", headers={"cache-control": "private, max-age=3600"})

    @app.post("/api/review/{key}")
    def review(key: str, hello: Hello) -> Reply:
        """What this observer has answered and marked, from any device, in how many seconds, and what others
        have where they may know."""
        slide = named(key)
        observer = slide.log.known(hello.observer)
        return {
            "observer": observer,
            "standing": standing_answers(slide.answers(observer, blind=blind), observer),
            "marks": standing_marks(slide.marks(observer, blind=blind), observer),
            "seconds": slide.log.seconds_spent(observer),
        }

    @app.post("/api/withdraw/{key}")
    def withdraw(key: str, hello: Hello) -> Reply:
        """Take back all answers of this observer about a slide."""
        with writing:
            folders = [named(key).found.folder]
            withdraw_review(folders, hello.observer, slides=moved, apply=not blind)
        return review(key, hello)

    @app.post("/api/apply")
    def apply() -> Reply:
        """Put the answers that stand in force, of all slides: reports, tables and exports are rewritten."""
        if blind:
            raise HTTPException(409, "observers are blinded: their answers are applied when all are done")
        failed: list[str] = []
        with writing:
            folders = [slide.found.folder for slide in slides if slide.result and slide.is_reviewed]
            done = apply_reviews(folders, failed.append, slides=moved) if folders else []
        applied = {result.name: str(result.in_force) for result in done}
        return {"applied": applied, "failed": [*map(in_words, failed)]}

    @app.post("/api/answers")
    def answers(sent: SentAnswers[Position | OfScope]) -> Receipt:
        """Write answers, regions and places; the reply leaves when they are on the disk."""
        saved, refused = [], []
        for said in sent.answers:
            try:
                log = named(said.item.slide).log
                item, answer = _written(log, said.item, said.answer)
                log.record_many([Entry(sent.observer, item, answer, said.seconds, uuid=str(said.uuid))])
            except (UsageError, HTTPException):
                refused.append(said.uuid)
            else:
                saved.append(said.uuid)
        return Receipt(saved=saved, refused=refused)


def _written(log: PositionLog, item: Position | OfScope, answer: str | None) -> tuple[str, str | None]:
    """Item and answer as the log has them."""
    if isinstance(item, Position):
        return item.item, answer
    if item.region == PLACE or answer is None:
        return (PLACE if item.region == PLACE else f"region {item.region}"), answer
    said = log.region(item.region, answer)
    return said.item, said.answer


# ---- starting the server ----

PORT = 8502


def serve_view(
    paths: Sequence[Path],
    *,
    mpp: float | None = None,
    slides: Path | None = None,
    registrations: Sequence[Path] = (),
    host: str = LOOPBACK,
    port: int = PORT,
    token: str | None = None,
    blind: bool = False,
    ready: Ready | None = None,
    failed: Callable[[str], None] | None = None,
) -> None:
    """Serve the viewer until stopped.

    A token is made unless one is given. `slides` is the folder where slides are now that have moved.
    `registrations` are folders of `metaphase register`,
    whose PHH3 slides can be laid over. `failed` gets slides that cannot be opened.
    """
    viewed = viewed_slides(paths, mpp=mpp, registrations=registrations, moved=slides, failed=failed)
    loopback = is_loopback(host)
    access = Access(token or (own_token() if loopback else new_token()), loopback_only=loopback)
    tiles = TileMaker()
    with ExitStack() as closing:
        closing.callback(tiles.close)
        for slide in viewed:
            closing.callback(slide.close)
        app = viewing_app(viewed, tiles, blind=blind, moved=slides)
        serve(app, access, len(viewed), host=host, port=port, ready=ready)
