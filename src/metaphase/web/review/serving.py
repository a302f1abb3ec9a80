"""Starting the review page: for this machine only, with a link that holds a token."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from metaphase.web.labelling import AnswerStore
from metaphase.web.labelling.access import Access
from metaphase.web.labelling.serving import only_server
from metaphase.web.review.app import create_app
from metaphase.web.review.crops import ReviewCrops
from metaphase.web.review.points import load_review
from metaphase.web.serving import LOOPBACK, listening, serve_quietly

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
    ready: Callable[[Running], None] | None = None,
) -> None:
    """Serve the review page until stopped. `ready` is called once the address is taken; port 0 is any."""
    review = load_review(workspace, cases)
    access = Access(secrets.token_urlsafe(24), loopback_only=True)
    project = review.project
    with only_server(project), AnswerStore(project) as store, listening(LOOPBACK, port) as listener:
        crops = ReviewCrops(review)
        app = create_app(review, store, crops, access)
        if ready is not None:
            url = f"http://{LOOPBACK}:{listener.getsockname()[1]}/?token={access.token}"
            ready(Running(url, len(review.order)))
        serve_quietly(app, listener)
        crops.close()
