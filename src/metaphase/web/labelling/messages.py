"""What the browser and the server say to each other, as JSON."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from metaphase.web.labelling.project import Answer
from metaphase.web.labelling.store import MAX_NAME

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
