"""The page on which observers answer: items of a labelling project, or points of a reference standard."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import Response
from pydantic import Field

from metaphase.base.files import held
from metaphase.jobs.reference import PICTURE
from metaphase.jobs.reference_review import Review, Row, load_review
from metaphase.labels.observers.consensus import divided_items
from metaphase.labels.observers.project import Answer, LabellingError, Project, load_project
from metaphase.labels.observers.store import AnswerStore, Entry, clean_observer
from metaphase.web.access import Access, is_loopback, kept_token, own_token
from metaphase.web.pictures import CropMaker, Crops, ReviewCrops
from metaphase.web.serving import (
    LOOPBACK,
    MAX_NUMBER,
    Hello,
    Message,
    Number,
    Ready,
    Receipt,
    SentAnswers,
    bare_app,
    picture,
    serve,
)

# ---- what the page and its server say to each other ----

SentItem = Annotated[int, Field(ge=0, lt=MAX_NUMBER, strict=True)]


class Point(Message):
    """What the reviewer is told about a point of a reference standard."""

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


class Session(Message):
    """All that the page needs to start; of answers, the observer's own only."""

    observer: str
    project: str
    """Keeps answers that wait in a browser apart from those to other projects."""
    title: str
    question: str
    answers: tuple[Answer, ...]
    items: list[int]
    """All items in the observer's own order; points, the least sure first."""
    points: list[Point]
    """Of a reference standard, what is known of each item, in the same order."""
    given: list[tuple[int, str]]
    """The observer's answers, in the order they were given."""
    seconds: float
    """Time spent so far."""
    crops: str
    """Where pictures are, for `{item}/{view}.jpg`."""
    marks: float
    """Side of the close view as a share of the context view, to outline it there."""


# ---- the page as a web application ----


def labelling_app(
    project: Project, store: AnswerStore, crops: Crops, review: Review | None = None
) -> FastAPI:
    """The application; with a `review`, it asks about those points of its reference standard."""
    app = bare_app("shared", "labelling")
    asked: Collection[int] = project.by_number if review is None else review.by_number

    @app.get("/crop/{version}/{item}/{view}.jpg")
    def crop(version: str, item: Number, view: str) -> Response:
        """A picture. Why one is missing stays with the operator: it would name the slide."""
        known = version == crops.version and item in asked and view in crops.views
        return picture(crops.jpeg(item, view) if known else None)

    @app.get("/registration/{item}.png")
    def registration(item: Number) -> Response:
        """How well the slides of a point's case fit."""
        row = review.by_number.get(item) if review else None
        path = review.workspace / str(row["case"]) / PICTURE if review and row else None
        if path is None or not path.is_file():
            raise HTTPException(404, "unavailable")
        return Response(path.read_bytes(), media_type="image/png", headers={"cache-control": "no-cache"})

    @app.post("/api/session")
    def session(hello: Hello) -> Session:
        """The observer's own state, from any device."""
        observer = store.known(hello.observer)
        settings = project.settings
        order = review.order if review else project.order_for(observer, divided_items(store.current()))
        given = [(project.by_name[one.item].number, one.answer) for one in store.current(observer)]
        return Session(
            observer=observer,
            project=project.identity,
            title=settings.title,
            question=settings.question,
            answers=settings.answers,
            items=order,
            points=[_point(review.by_number[number]) for number in order] if review else [],
            given=[(number, answer) for number, answer in given if number in asked],
            seconds=store.seconds_spent(observer),
            crops=f"/crop/{crops.version}",
            marks=settings.close_um / settings.context_um,
        )

    @app.post("/api/answers")
    def answers(sent: SentAnswers[SentItem]) -> Receipt:
        """Write answers; the reply leaves when they are on the disk."""
        observer, names = clean_observer(sent.observer), (None, *project.answer_names)
        known = [one for one in sent.answers if one.item in asked and one.answer in names]
        store.record_many(
            Entry(observer, project.by_number[one.item].name, one.answer, one.seconds, uuid=str(one.uuid))
            for one in known
        )
        refused = [one.uuid for one in sent.answers if one not in known]
        return Receipt(saved=[one.uuid for one in known], refused=refused)

    return app


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


# ---- starting the server ----

PORT, REVIEW_PORT = 8500, 8501
TOKEN, LOCK = ".server-token", ".server-lock"


def serve_project(
    folder: str | Path,
    *,
    host: str = LOOPBACK,
    port: int = PORT,
    token: str | None = None,
    ready: Ready | None = None,
    until: Callable[[], bool] | None = None,
) -> None:
    """Serve the items of a labelling project until stopped, or until `until` says yes.

    A token is made unless one is given, and kept in the project, so that links stay valid when the server
    starts again.
    """
    project = load_project(folder)
    access = Access(token or kept_token(project.folder / TOKEN), loopback_only=is_loopback(host))
    _serve(project, CropMaker(project), access, host=host, port=port, ready=ready, until=until)


def serve_review(
    workspace: str | Path,
    *,
    port: int = REVIEW_PORT,
    cases: Collection[str] = (),
    most: int | None = None,
    ready: Ready | None = None,
    until: Callable[[], bool] | None = None,
) -> None:
    """Serve the points of a reference standard; with `most`, only so many of the least sure."""
    review = load_review(workspace, cases, most)
    crops, access = ReviewCrops(review), Access(own_token())
    _serve(review.project, crops, access, review, port=port, ready=ready, until=until)


def _serve(
    project: Project, crops: Crops, access: Access, review: Review | None = None, **options: Any
) -> None:
    with contextlib.closing(crops), only_server(project), AnswerStore(project) as store:
        app = labelling_app(project, store, crops, review)
        serve(app, access, len(review.order if review else project.items), **options)


@contextlib.contextmanager
def only_server(project: Project) -> Iterator[None]:
    """Hold the project's lock, which the operating system releases even when the process is killed."""
    with held(project.folder / LOCK) as free:
        if not free:
            raise LabellingError(
                "another server already serves this project",
                path=project.folder,
                next_step="open its link (many observers can use one server), or stop it first",
            )
        yield
