"""The page on which observers answer: items of a labelling project, or points of a reference standard."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, ClassVar

import cv2
import numpy as np
from fastapi import FastAPI, HTTPException
from fastapi.responses import Response
from pydantic import Field

from metaphase.base.arrays import RGB, Floats
from metaphase.base.errors import MetaphaseError, OutputError
from metaphase.base.files import held, write_text
from metaphase.base.tables import case_folder
from metaphase.labels.observers.consensus import divided_items
from metaphase.labels.observers.project import UNAVAILABLE, LabellingError, Project, load_project
from metaphase.labels.observers.store import AnswerStore, Entry, clean_observer
from metaphase.labels.registration.outputs import PICTURE, TRANSFORM
from metaphase.labels.registration.transform import load_transform
from metaphase.labels.reviewing import CLOSE_UM, Review, Row, load_review
from metaphase.reports.pages import JPEG_QUALITY, encode_jpeg, item_view
from metaphase.slides.contract import Slide
from metaphase.slides.opening import OPEN_SLIDES, SlidePool
from metaphase.web.access import Access, is_loopback, kept_token, own_token
from metaphase.web.serving import (
    LOOPBACK,
    MAX_NUMBER,
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

# ---- pictures of items, cut from the slides when they are wanted ----

SIDE_PX = 512
CACHED_CROPS = 2000
"""About 120 MB of JPEG."""

_log = logging.getLogger(__name__)


class Crops(ABC):
    """JPEG pictures of a project's items, the latest kept in memory. Safe to use from several threads.

    Items that cannot be shown are noted beside the project, until they can: nobody is asked about them.
    """

    views: ClassVar[tuple[str, ...]]
    """Names of the pictures of an item."""

    def __init__(self, project: Project, drawn: object) -> None:
        self.version = blake2b(repr((SIDE_PX, drawn)).encode(), digest_size=6).hexdigest()
        """Changes with all that changes pictures (`drawn`), so that browsers may keep them for long."""
        self._project = project
        self._slides = SlidePool(OPEN_SLIDES)
        self._jpeg = lru_cache(CACHED_CROPS)(self._cut)
        self._lock, self._left_out = Lock(), project.unavailable
        self._failed: dict[str, str] = {}
        """Which picture of an item failed."""
        self._logged: set[str] = set()

    def jpeg(self, number: int, view: str) -> bytes | None:
        """The picture, or None where it cannot be had; the reason is logged once, for the operator only."""
        item = self._project.by_number[number].name
        try:
            cut = self._jpeg(number, view)
        except MetaphaseError as error:
            self._note(item, view, str(error))
            return None
        self._note(item, view)
        return cut

    def close(self) -> None:
        """Close the slides."""
        self._slides.close()

    @abstractmethod
    def _cut(self, number: int, view: str) -> bytes:
        """The picture, as JPEG."""

    def _note(self, item: str, view: str, reason: str = "") -> None:
        """Note why a picture of an item cannot be shown, or that it can."""
        with self._lock:
            if self._left_out.get(item, "") == reason or self._failed.setdefault(item, view) != view:
                return
            self._left_out = {name: why for name, why in (self._left_out | {item: reason}).items() if why}
            with suppress(OutputError):
                write_text(self._project.folder / UNAVAILABLE, json.dumps(self._left_out, indent=1) + "\n")
        if reason and reason not in self._logged:
            self._logged.add(reason)
            _log.warning("item %s cannot be shown and is left out: %s", item, reason)


class CropMaker(Crops):
    """Pictures of the items of a labelling project."""

    views = ("close", "context")

    def __init__(self, project: Project) -> None:
        scales = (project.settings.close_um, project.settings.context_um, JPEG_QUALITY)
        super().__init__(project, (scales, [(item.number, item.mpp) for item in project.items]))

    def _cut(self, number: int, view: str) -> bytes:
        item = self._project.by_number[number]
        side_um = getattr(self._project.settings, f"{view}_um")
        with self._slides.open(item.slide, item.mpp) as slide:
            return encode_jpeg(item_view(slide, item, side_um, SIDE_PX))


# ---- pictures of a point ----


class ReviewCrops(Crops):
    """Pictures of the points of a review, in each stain."""

    views = ("he", "phh3")

    def __init__(self, review: Review) -> None:
        super().__init__(review.project, (CLOSE_UM, review.order))
        self._review = review
        self._transform = lru_cache(64)(load_transform)

    def _cut(self, number: int, view: str) -> bytes:
        row = self._review.by_number[number]
        case = str(row["case"])
        pair = self._review.pairs[case]
        if view == "he":
            source, names, matrix = pair.he, ("x", "y"), np.eye(2)
        else:
            source, names = pair.phh3, ("x_phh3", "y_phh3")
            matrix = self._transform(self._review.workspace / Path(case) / TRANSFORM).similarity.matrix
        position = np.array([row[name] for name in names], float)
        with self._slides.open(source.path, source.mpp) as slide:
            return encode_jpeg(turned_crop(slide, position, matrix, CLOSE_UM, SIDE_PX))


def turned_crop(
    slide: Slide,
    position: Floats,
    matrix: Floats,
    side_um: float,
    side_px: int,
) -> RGB:
    """A square of `side_um` of the slide after `matrix` (2, 2), level-0 `position` in its middle."""
    mpp = side_um / side_px
    back = np.linalg.inv(matrix)
    reach_px = math.ceil(float(np.abs(back).sum(axis=1).max()) * side_px / 2) + 2
    left, top = (position - reach_px * mpp / slide.mpp).tolist()
    source = slide.read(left, top, 2 * reach_px, 2 * reach_px, mpp)
    middle = np.full(2, (side_px - 1) / 2)
    offset = np.full(2, reach_px - 0.5) - back @ middle
    pull = np.column_stack([back, offset])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return np.asarray(cv2.warpAffine(source, pull, (side_px, side_px), flags=flags), np.uint8)


# ---- what the page and its server say to each other ----

SentItem = Annotated[int, Field(ge=0, lt=MAX_NUMBER, strict=True)]


SEEN = ("case", "candidate", "confidence", "probability", "method", "reason")
"""What the observer sees about a point of a reference standard, as its row says it."""


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

    @app.get("/api/task")
    def task() -> Reply:
        """What is asked, before anybody gives a name."""
        return {"title": project.settings.title, "question": project.settings.question}

    @app.get("/registration/{item}.png")
    def registration(item: Number) -> Response:
        """How well the slides of a point's case fit."""
        row = review.by_number.get(item) if review else None
        path = case_folder(review.workspace, str(row["case"])) / PICTURE if review and row else None
        if path is None or not path.is_file():
            raise HTTPException(404, "unavailable")
        return Response(path.read_bytes(), media_type="image/png", headers={"cache-control": "no-cache"})

    def point(row: Row) -> Reply:
        """`contrast` is darkness in H&E relative to dark nuclei around, 0 where it could not be measured;
        `accepted` is what holds without any observer."""
        contrast = float(row["contrast"])
        shown = contrast if math.isfinite(contrast) else 0.0
        return {name: row[name] for name in SEEN} | {"contrast": shown, "accepted": row["automatic"]}

    @app.post("/api/session")
    def session(hello: Hello) -> Reply:
        """All that the page needs to start, on any device; of answers, the observer's own only.

        `project` keeps answers that wait in a browser apart from those to other projects. `points` say what
        is known of each item of a reference standard, `given` are answers in the order they were given, and
        `marks` is the side of the close view as a share of the context view, to outline it there.
        """
        observer = store.known(hello.observer)
        settings = project.settings
        order = review.order if review else project.order_for(observer, divided_items(store.current()))
        given = [(project.by_name[said.item].number, said.answer) for said in store.current(observer)]
        return {
            "observer": observer,
            "project": project.identity,
            "title": settings.title,
            "question": settings.question,
            "answers": settings.answers,
            "items": order,
            "points": [point(review.by_number[number]) for number in order] if review else [],
            "given": [(number, answer) for number, answer in given if number in asked],
            "seconds": store.seconds_spent(observer),
            "crops": f"/crop/{crops.version}",
            "marks": settings.close_um / settings.context_um,
            "sides_um": {"close": settings.close_um, "context": settings.context_um}
            if review is None
            else {"he": CLOSE_UM, "phh3": CLOSE_UM},
        }

    @app.post("/api/answers")
    def answers(sent: SentAnswers[SentItem]) -> Receipt:
        """Write answers; the reply leaves when they are on the disk."""
        observer, names = clean_observer(sent.observer), (None, *project.answer_names)
        known = [said for said in sent.answers if said.item in asked and said.answer in names]
        store.record_many(
            Entry(observer, project.by_number[said.item].name, said.answer, said.seconds, uuid=str(said.uuid))
            for said in known
        )
        refused = [said.uuid for said in sent.answers if said not in known]
        return Receipt(saved=[said.uuid for said in known], refused=refused)

    return app


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
    review = load_review(Path(workspace), cases, most)
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
