"""The labelling page as a web application: four routes, and nothing that takes a path from the browser."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Annotated

from fastapi import FastAPI, HTTPException, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp

from metaphase.errors import MetaphaseError, UsageError
from metaphase.web.labelling.access import Access, Guard
from metaphase.web.labelling.crops import CropMaker, View
from metaphase.web.labelling.messages import MAX_NUMBER, Hello, Receipt, SentAnswer, SentAnswers, Session
from metaphase.web.labelling.project import Project
from metaphase.web.labelling.store import AnswerStore, Entry, clean_observer

ASSETS = {
    "": ("page.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "session.js": ("session.js", "text/javascript; charset=utf-8"),
    "outbox.js": ("outbox.js", "text/javascript; charset=utf-8"),
    "pictures.js": ("pictures.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Every file the browser may ask for, by its address; read once, when the application is made."""
KEEP_PICTURES = "private, max-age=604800, immutable"


def create_app(project: Project, store: AnswerStore, crops: CropMaker, access: Access) -> ASGIApp:
    """The application with its guard around it."""
    app = FastAPI(title="metaphase label", docs_url=None, redoc_url=None, openapi_url=None)
    _add_assets(app)
    _add_pictures(app, project, crops)
    _add_answers(app, project, store, crops)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(MetaphaseError)(_failed)
    return Guard(app, access)


def _add_assets(app: FastAPI) -> None:
    for address, (name, kind) in ASSETS.items():
        app.add_api_route(f"/{address}", _asset(name, kind), methods=["GET"])


def _asset(name: str, kind: str) -> Callable[[], Response]:
    content = files(__package__).joinpath("static", name).read_bytes()

    def asset() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return asset


def _add_pictures(app: FastAPI, project: Project, crops: CropMaker) -> None:
    @app.get("/crop/{version}/{item}/{view}.jpg")
    def crop(version: str, item: Annotated[int, Path(ge=0, lt=MAX_NUMBER)], view: View) -> Response:
        """A picture. Why one is missing stays with the operator: it would name the slide."""
        jpeg = crops.jpeg(item, view) if version == crops.version and item in project.by_number else None
        if jpeg is None:
            raise HTTPException(404, "unavailable")
        return Response(jpeg, media_type="image/jpeg", headers={"cache-control": KEEP_PICTURES})


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
        observer = clean_observer(sent.observer)
        known = [one for one in sent.answers if _is_known(project, one)]
        store.record_many(
            Entry(observer, project.by_number[one.item].name, one.answer, one.seconds, uuid=str(one.uuid))
            for one in known
        )
        return Receipt(
            saved=[one.uuid for one in known], refused=[one.uuid for one in sent.answers if one not in known]
        )


def _is_known(project: Project, sent: SentAnswer) -> bool:
    return sent.item in project.by_number and (sent.answer is None or sent.answer in project.answer_names)


def _invalid(_request: Request, error: Exception) -> Response:
    """Say which field is wrong, without echoing what was sent."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    fields = [".".join(map(str, one["loc"])) for one in problems]
    return JSONResponse({"detail": f"invalid: {', '.join(fields)}"}, 422)


def _failed(_request: Request, error: Exception) -> Response:
    """A name that is none is the observer's to mend; all else the operator's, and the browser tries again."""
    if isinstance(error, UsageError):
        return JSONResponse({"detail": str(error)}, 422)
    return JSONResponse({"detail": "the server cannot save at the moment"}, 503)
