"""The review page of a reference standard, behind the guard of the labelling page."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, HTTPException
from fastapi.responses import Response
from starlette.types import ASGIApp

from metaphase.jobs.reference import PICTURE
from metaphase.jobs.reference_review import Review, Row, load_review
from metaphase.labels.observers.project import Answer
from metaphase.labels.observers.store import AnswerStore
from metaphase.web.access import Access, Guard, own_token
from metaphase.web.labelling import (
    SHARED_ASSETS,
    Hello,
    Message,
    Number,
    Receipt,
    SentAnswers,
    only_server,
    write_answers,
)
from metaphase.web.pictures import ReviewCrops, Side
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

# ---- what the review page and its server say to each other ----


class Point(Message):
    """What the reviewer is told about a point."""

    case: str
    candidate: str
    confidence: float
    probability: float
    contrast: float
    """Darkness in H&E relative to dark nuclei around; 0 where it could not be measured."""
    method: str
    accepted: bool
    """Without any reviewer."""
    reason: str


class ReviewSession(Message):
    """All that the page needs to start."""

    observer: str
    project: str
    title: str
    question: str
    answers: tuple[Answer, ...]
    items: list[int]
    """Points, the least sure first."""
    points: list[Point]
    """What is known of each, in the same order."""
    given: list[tuple[int, str]]
    seconds: float
    crops: str
    """Where pictures are, for `{item}/{side}.jpg`."""


# ---- the review page as a web application ----

OWN_ASSETS = {"": ("page.html", HTML), "page.js": ("page.js", SCRIPT), "review.css": ("page.css", STYLE)}


def review_app(review: Review, store: AnswerStore, crops: ReviewCrops, access: Access) -> ASGIApp:
    """The application with its guard around it."""
    app = bare_app("metaphase review")
    add_assets(app, "review", OWN_ASSETS)
    add_assets(app, "labelling", SHARED_ASSETS)
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


# ---- starting the review page ----

PORT = 8501


@dataclass(frozen=True)
class Running:
    """A server about to listen."""

    url: str
    """To open in a browser on this machine."""
    items: int
    """Points to review."""


def serve_review(
    workspace: str | Path,
    *,
    port: int = PORT,
    cases: Collection[str] = (),
    most: int | None = None,
    ready: Callable[[Running], None] | None = None,
    until: Callable[[], bool] | None = None,
) -> None:
    """Serve the review page until stopped, or until `until` says yes; port 0 is any.

    `ready` is called once the address is taken. With `most`, only so many of the least sure points are shown.
    """
    review = load_review(workspace, cases, most)
    access = Access(own_token())
    project = review.project
    with only_server(project), AnswerStore(project) as store, listening(LOOPBACK, port) as listener:
        crops = ReviewCrops(review)
        app = review_app(review, store, crops, access)
        if ready is not None:
            ready(Running(url_of(LOOPBACK, listener.getsockname()[1], access.token), len(review.order)))
        serve_quietly(app, listener, until)
        crops.close()
