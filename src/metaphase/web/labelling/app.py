"""The labelling page as a web application: four routes, and nothing that takes a path from the browser."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated

from fastapi import FastAPI, Path
from fastapi.responses import Response
from starlette.types import ASGIApp

from metaphase.web.labelling.access import Access, Guard
from metaphase.web.labelling.crops import CropMaker, View
from metaphase.web.labelling.messages import MAX_NUMBER, Hello, Receipt, SentAnswers, Session
from metaphase.web.labelling.project import Project
from metaphase.web.labelling.store import AnswerStore, Entry, clean_observer
from metaphase.web.routes import HTML, ICON, SCRIPT, STYLE, add_assets, bare_app, picture

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
Number = Annotated[int, Path(ge=0, lt=MAX_NUMBER)]


def create_app(project: Project, store: AnswerStore, crops: CropMaker, access: Access) -> ASGIApp:
    """The application with its guard around it."""
    app = bare_app("metaphase label")
    add_assets(app, str(__package__), ASSETS)
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
            items=project.order_for(observer),
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
