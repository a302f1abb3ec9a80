"""What the review page and its server say to each other, beside the messages of labelling."""

from __future__ import annotations

from metaphase.web.labelling import Answer
from metaphase.web.labelling.messages import Message


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
