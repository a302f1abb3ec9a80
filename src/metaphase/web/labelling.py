"""The labelling page: messages, four routes, and one server a project."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from uuid import UUID

from fastapi import FastAPI
from fastapi import Path as InAddress
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp

from metaphase.base.files import held
from metaphase.labels.observers.consensus import divided_items
from metaphase.labels.observers.project import Answer, LabellingError, Project, load_project
from metaphase.labels.observers.store import MAX_NAME, AnswerStore, Entry, clean_observer
from metaphase.web.access import Access, Guard, is_loopback, kept_token
from metaphase.web.pictures import CropMaker, View
from metaphase.web.serving import (
    HTML,
    ICON,
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

# ---- what the browser and the server say to each other, as JSON ----

MAX_BATCH = 100
MAX_ANSWER_S = 3600.0
MAX_NUMBER = 2**48

ObserverName = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class Message(BaseModel):
    """Nothing but the fields named, of exactly these types."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Hello(Message):
    """An observer begins, or goes on."""

    observer: ObserverName


class Session(Message):
    """All that the page needs to start; of answers, the observer's own only."""

    observer: str
    project: str
    """Keeps answers that wait in a browser apart from those to other projects."""
    title: str
    question: str
    answers: tuple[Answer, ...]
    items: list[int]
    """All items in the observer's own order."""
    given: list[tuple[int, str]]
    """The observer's answers, in the order they were given."""
    seconds: float
    """Time spent so far."""
    crops: str
    """Where pictures are, for `{item}/{view}.jpg`."""
    marks: float
    """Side of the close view as a share of the context view, to outline it there."""


class SentAnswer(Message):
    """One answer; None takes it back. Sent again after a failure, it is written once."""

    uuid: UUID
    item: Annotated[int, Field(ge=0, lt=MAX_NUMBER, strict=True)]
    answer: Annotated[str, Field(max_length=32)] | None
    seconds: Annotated[float, Field(ge=0, le=MAX_ANSWER_S)]


class SentAnswers(Message):
    """Answers waiting in a browser, oldest first."""

    observer: ObserverName
    answers: Annotated[list[SentAnswer], Field(min_length=1, max_length=MAX_BATCH)]


class Receipt(Message):
    """What became of them; a refused one names an item or answer that the project no longer has."""

    saved: list[UUID]
    refused: list[UUID]


# ---- the labelling page as a web application ----

SHARED_ASSETS = {
    "controls.js": ("controls.js", SCRIPT),
    "session.js": ("session.js", SCRIPT),
    "outbox.js": ("outbox.js", SCRIPT),
    "pictures.js": ("pictures.js", SCRIPT),
    "page.css": ("page.css", STYLE),
    "icon.svg": ("icon.svg", ICON),
}
"""Files that serve the review page as well."""
ASSETS = {"": ("page.html", HTML), "page.js": ("page.js", SCRIPT)} | SHARED_ASSETS
Number = Annotated[int, InAddress(ge=0, lt=MAX_NUMBER)]


def labelling_app(project: Project, store: AnswerStore, crops: CropMaker, access: Access) -> ASGIApp:
    """The application with its guard around it."""
    app = bare_app("metaphase label")
    add_assets(app, "labelling", ASSETS)
    _add_pictures(app, project, crops)
    _add_answers(app, project, store, crops)
    return Guard(app, access)


def _add_pictures(app: FastAPI, project: Project, crops: CropMaker) -> None:
    @app.get("/crop/{version}/{item}/{view}.jpg")
    def crop(version: str, item: Number, view: View) -> Response:
        """A picture. Why one is missing stays with the operator: it would name the slide."""
        known = version == crops.version and item in project.by_number
        return picture(crops.jpeg(item, view) if known else None)


def _add_answers(app: FastAPI, project: Project, store: AnswerStore, crops: CropMaker) -> None:
    @app.post("/api/session")
    def session(hello: Hello) -> Session:
        """The observer's own state, from any device."""
        observer = store.known(hello.observer)
        settings = project.settings
        return Session(
            observer=observer,
            project=project.identity,
            title=settings.title,
            question=settings.question,
            answers=settings.answers,
            items=project.order_for(observer, divided_items(store.current())),
            given=[(project.by_name[one.item].number, one.answer) for one in store.current(observer)],
            seconds=store.seconds_spent(observer),
            crops=f"/crop/{crops.version}",
            marks=settings.close_um / settings.context_um,
        )

    @app.post("/api/answers")
    def answers(sent: SentAnswers) -> Receipt:
        """Write answers; the reply leaves when they are on the disk."""
        return write_answers(project, store, sent, project.by_number)


def write_answers(
    project: Project, store: AnswerStore, sent: SentAnswers, numbers: Container[int]
) -> Receipt:
    """Write the answers to items of the given numbers, and refuse the others and unknown answers."""
    observer, names = clean_observer(sent.observer), (None, *project.answer_names)
    known = [one for one in sent.answers if one.item in numbers and one.answer in names]
    store.record_many(
        Entry(observer, project.by_number[one.item].name, one.answer, one.seconds, uuid=str(one.uuid))
        for one in known
    )
    refused = [one.uuid for one in sent.answers if one not in known]
    return Receipt(saved=[one.uuid for one in known], refused=refused)


# ---- starting the server ----

PORT = 8500
TOKEN, LOCK = ".server-token", ".server-lock"


@dataclass(frozen=True)
class Running:
    """A server about to listen."""

    url: str
    """To open in a browser; holds the token."""
    project: Project


def serve_project(
    folder: str | Path,
    *,
    host: str = LOOPBACK,
    port: int = PORT,
    token: str | None = None,
    ready: Callable[[Running], None] | None = None,
    until: Callable[[], bool] | None = None,
) -> None:
    """Serve the labelling page until stopped, or until `until` says yes. `ready` is called once the address
    is taken.

    A token is made unless one is given, and kept in the project, so that links stay valid when the server
    starts again. Port 0 takes any free one.
    """
    project = load_project(folder)
    access = Access(token or kept_token(project.folder / TOKEN), loopback_only=is_loopback(host))
    with only_server(project), AnswerStore(project) as store, listening(host, port) as listener:
        crops = CropMaker(project)
        app = labelling_app(project, store, crops, access)
        if ready is not None:
            ready(Running(url_of(host, listener.getsockname()[1], access.token), project))
        serve_quietly(app, listener, until)
        crops.close()


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
