"""Starting the review page: for this machine only, with a link that holds a token."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from metaphase.errors import UsageError
from metaphase.web.labelling import AnswerStore
from metaphase.web.labelling.access import Access
from metaphase.web.labelling.serving import only_server
from metaphase.web.review.app import create_app
from metaphase.web.review.crops import ReviewCrops
from metaphase.web.review.points import load_review

HOST, PORT = "127.0.0.1", 8501


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
    with only_server(review.project), AnswerStore(review.project) as store, _listening(port) as listener:
        crops = ReviewCrops(review)
        app = create_app(review, store, crops, access)
        if ready is not None:
            url = f"http://{HOST}:{listener.getsockname()[1]}/?token={access.token}"
            ready(Running(url, len(review.order)))
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, proxy_headers=False, ws="none",
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        with contextlib.suppress(KeyboardInterrupt):  # how one stops it
            uvicorn.Server(config).run(sockets=[listener])
        crops.close()


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot listen on port {port} ({error})",
            next_step="choose another with --port, or any free one with --port 0",
        ) from error
