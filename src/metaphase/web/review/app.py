"""The review page as a web application, behind the guard of the labelling page."""

from __future__ import annotations

import math

from fastapi import FastAPI, HTTPException
from fastapi.responses import Response
from starlette.types import ASGIApp

from metaphase.pipeline.reference import PICTURE
from metaphase.web import labelling
from metaphase.web.labelling.access import Access, Guard
from metaphase.web.labelling.app import SHARED_ASSETS, Number, write_answers
from metaphase.web.labelling.messages import Hello, Receipt, SentAnswers
from metaphase.web.labelling.store import AnswerStore
from metaphase.web.review.crops import ReviewCrops, Side
from metaphase.web.review.messages import Point, ReviewSession
from metaphase.web.review.points import Review, Row
from metaphase.web.routes import HTML, SCRIPT, STYLE, add_assets, bare_app, picture

OWN_ASSETS = {"": ("page.html", HTML), "page.js": ("page.js", SCRIPT), "review.css": ("page.css", STYLE)}


def create_app(review: Review, store: AnswerStore, crops: ReviewCrops, access: Access) -> ASGIApp:
    """The application with its guard around it."""
    app = bare_app("metaphase review")
    add_assets(app, str(__package__), OWN_ASSETS)
    add_assets(app, labelling.__name__, SHARED_ASSETS)
    _add_pictures(app, review, crops)
    _add_decisions(app, review, store, crops)
    return Guard(app, access)


def _add_pictures(app: FastAPI, review: Review, crops: ReviewCrops) -> None:
    @app.get("/crop/{version}/{item}/{side}.jpg")
    def crop(version: str, item: Number, side: Side) -> Response:
        """A picture of a point in one stain."""
        known = version == crops.version and item in review.by_number
        return picture(crops.jpeg(item, side) if known else None)

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
        return write_answers(review.project, store, sent, review.by_number)


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
