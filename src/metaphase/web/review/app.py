"""The review page as a web application, behind the guard of the labelling page."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.resources import files
from typing import Annotated

from fastapi import FastAPI, HTTPException, Path
from fastapi.responses import JSONResponse, Response
from starlette.requests import Request
from starlette.types import ASGIApp

from metaphase.errors import MetaphaseError, UsageError
from metaphase.pipeline.reference import PICTURE
from metaphase.web import labelling
from metaphase.web.labelling.access import Access, Guard
from metaphase.web.labelling.messages import MAX_NUMBER, Hello, Receipt, SentAnswer, SentAnswers
from metaphase.web.labelling.store import AnswerStore, Entry, clean_observer
from metaphase.web.review.crops import ReviewCrops, Side
from metaphase.web.review.messages import Point, ReviewSession
from metaphase.web.review.points import Review, Row

HTML, SCRIPT = "text/html; charset=utf-8", "text/javascript; charset=utf-8"
STYLE, ICON = "text/css; charset=utf-8", "image/svg+xml"
OWN_ASSETS = {"": ("page.html", HTML), "page.js": ("page.js", SCRIPT), "review.css": ("page.css", STYLE)}
SHARED_ASSETS = {
    "session.js": ("session.js", SCRIPT),
    "outbox.js": ("outbox.js", SCRIPT),
    "pictures.js": ("pictures.js", SCRIPT),
    "page.css": ("page.css", STYLE),
    "icon.svg": ("icon.svg", ICON),
}
"""Files of the labelling page that serve here as well."""
KEEP_PICTURES = "private, max-age=604800, immutable"
Number = Annotated[int, Path(ge=0, lt=MAX_NUMBER)]


def create_app(review: Review, store: AnswerStore, crops: ReviewCrops, access: Access) -> ASGIApp:
    """The application with its guard around it."""
    app = FastAPI(title="metaphase review", docs_url=None, redoc_url=None, openapi_url=None)
    for package, assets in ((__package__, OWN_ASSETS), (labelling.__name__, SHARED_ASSETS)):
        for address, (name, kind) in assets.items():
            app.add_api_route(f"/{address}", _asset(str(package), name, kind), methods=["GET"])
    _add_pictures(app, review, crops)
    _add_decisions(app, review, store, crops)
    app.exception_handler(MetaphaseError)(_failed)
    return Guard(app, access)


def _asset(package: str, name: str, kind: str) -> Callable[[], Response]:
    content = files(package).joinpath("static", name).read_bytes()

    def asset() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return asset


def _add_pictures(app: FastAPI, review: Review, crops: ReviewCrops) -> None:
    @app.get("/crop/{version}/{item}/{side}.jpg")
    def crop(version: str, item: Number, side: Side) -> Response:
        """A picture of a point in one stain."""
        known = version == crops.version and item in review.by_number
        jpeg = crops.jpeg(item, side) if known else None
        if jpeg is None:
            raise HTTPException(404, "unavailable")
        return Response(jpeg, media_type="image/jpeg", headers={"cache-control": KEEP_PICTURES})

    @app.get("/registration/{item}.png")
    def registration(item: Number) -> Response:
        """How well the slides of a point's case fit."""
        row = review.by_number.get(item)
        path = review.workspace / str(row["case"]) / PICTURE if row else None
        if path is None or not path.is_file():
            raise HTTPException(404, "unavailable")
        return Response(path.read_bytes(), media_type="image/png", headers={"cache-control": "no-cache"})


def _add_decisions(app: FastAPI, review: Review, store: AnswerStore, crops: ReviewCrops) -> None:
    @app.post("/api/session")
    def session(hello: Hello) -> ReviewSession:
        """The points, and what this reviewer has decided."""
        observer, project = store.known(hello.observer), review.project
        numbers = {item.name: item.number for item in project.items}
        given = [(numbers[one.item], one.answer) for one in store.current(observer)]
        return ReviewSession(
            observer=observer,
            project=project.identity,
            title=project.settings.title,
            question=project.settings.question,
            answers=project.settings.answers,
            items=review.order,
            points=[_point(review.by_number[number]) for number in review.order],
            given=[(number, answer) for number, answer in given if number in review.by_number],
            seconds=store.seconds_spent(observer),
            crops=f"/crop/{crops.version}",
        )

    @app.post("/api/answers")
    def answers(sent: SentAnswers) -> Receipt:
        """Write decisions; the reply leaves when they are on the disk."""
        observer, project = clean_observer(sent.observer), review.project
        known = [one for one in sent.answers if _is_known(review, one)]
        store.record_many(
            Entry(observer, project.by_number[one.item].name, one.answer, one.seconds, uuid=str(one.uuid))
            for one in known
        )
        refused = [one.uuid for one in sent.answers if one not in known]
        return Receipt(saved=[one.uuid for one in known], refused=refused)


def _is_known(review: Review, sent: SentAnswer) -> bool:
    return sent.item in review.by_number and sent.answer in (None, *review.project.answer_names)


def _point(row: Row) -> Point:
    contrast = float(row["contrast"])
    return Point(
        case=row["case"],
        candidate=row["candidate"],
        confidence=row["confidence"],
        probability=row["probability"],
        contrast=contrast if math.isfinite(contrast) else 0.0,
        method=row["method"],
        accepted=row["automatic"],
        reason=row["reason"],
    )


def _failed(_request: Request, error: Exception) -> Response:
    """A name that is none is the reviewer's to mend; all else the operator's, and the browser tries again."""
    if isinstance(error, UsageError):
        return JSONResponse({"detail": str(error)}, 422)
    return JSONResponse({"detail": "the server cannot save at the moment"}, 503)
