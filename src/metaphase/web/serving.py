"""What all pages share: one way to run, connections let go in time, files, replies to errors, messages."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import quote
from uuid import UUID

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi import Path as InAddress
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from uvicorn.protocols.http.h11_impl import H11Protocol

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.labels.observers.store import MAX_NAME
from metaphase.web.access import Access, Guard

# ---- how long and how many: connections that say nothing, or too slowly, or are too many, are let go ----
#
# Anybody who reaches the port can open connections, before any token is asked for.

REQUEST_S = 10.0
"""A request, its body included, must have arrived this long after its first byte or its connection; what is
sent back must be read in pieces (64 kB) that take no longer."""
MOST_CONNECTIONS = 200
"""A browser opens six; eight observers need fifty."""
BACKLOG = 64
"""Connections accepted at one go, before those that are too many are let go."""
QUIET_S = 60.0
"""The same complaint is logged once in this time."""


class ImpatientProtocol(H11Protocol):
    """HTTP with limits on connections and on the time that a request may take to arrive."""

    _deadline: asyncio.TimerHandle | None = None
    _unread = False
    """Whether the visitor does not take what is sent."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; of too many who do, whoever has said nothing for longest is let go."""
        super().connection_made(transport)
        self._hurry()
        if len(self.connections) > _most_connections():
            waiting = {
                other._deadline.when(): other
                for other in self.connections
                if isinstance(other, ImpatientProtocol) and other._deadline
            }
            longest = waiting[min(waiting)] if waiting else self
            longest._relax()
            longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._hurry()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._hurry()

    def pause_writing(self) -> None:
        """Begin to wait for the visitor to read."""
        super().pause_writing()
        self._relax()
        self._unread = True
        self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Called when the client reads again: go on sending."""
        super().resume_writing()
        self._unread = False
        self._relax()
        self._hurry()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the client is gone: wake whoever waits to send."""
        super().connection_lost(exc)
        self._relax()

    def _hurry(self) -> None:
        """The clock runs while a request is not here in full; a server that is at work has all its time."""
        if self._unread:
            return
        cycle = self.cycle
        working = cycle is not None and not cycle.response_complete and not cycle.more_body
        if working or self.transport.is_closing():
            self._relax()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _most_connections() -> int:
    if sys.platform == "win32":  # where sockets are no files
        return MOST_CONNECTIONS
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # of which slides need some, too
    return max(4, min(MOST_CONNECTIONS, (files - BACKLOG) // 2))


class OnceInAWhile(logging.Filter):
    """Lets each message through once in `QUIET_S`: without descriptors, a server logs thousands a second."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is new, or old enough to be said again."""
        now = time.monotonic()
        if now - self._said.get(str(record.msg), -QUIET_S) < QUIET_S:
            return False
        self._said[str(record.msg)] = now
        return True


# ---- one way to run ----

LOOPBACK = "127.0.0.1"
ASK_EVERY_S = 2.0
NOWHERE = ("192.0.2.1", 9)
"""An address that no machine has (RFC 5737): asking for the way to it sends nothing."""
_log = logging.getLogger(__name__)
_log.addFilter(OnceInAWhile())


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at the address; port 0 is any free one, which also stands in for a busy one."""
    if not 0 <= port <= 65535:
        raise UsageError(f"port is {port}", next_step="give 1024 to 65535, or 0 for any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as on_failure:
            listener = on_failure.enter_context(socket.socket(family, kind, protocol))
            if os.name == "posix":  # elsewhere the option would let two servers share a port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(address)
            except OSError as error:
                reserved = error.errno == errno.EACCES and port >= 1024  # Windows keeps some for itself
                if error.errno != errno.EADDRINUSE and not reserved:
                    raise
                listener.bind((address[0], 0, *address[2:]))
                taken = listener.getsockname()[1]
                _log.warning("port %d of %s is in use: listening at port %d instead", port, host, taken)
            listener.listen(BACKLOG)  # whoever comes before we serve waits
            on_failure.pop_all()
    except OSError as error:
        other = "" if host == LOOPBACK else "--host an address of this machine and "
        raise MetaphaseError(
            f"cannot listen on {host}, port {port} ({error.strerror or error})",
            next_step=f"give {other}--port a number from 1024 on",
        ) from error
    return listener


@dataclass(frozen=True)
class Running:
    """A server about to listen."""

    url: str
    """To open in a browser; holds the token."""
    shown: int
    """Items, points or slides."""


Ready = Callable[[Running], None]


def serve(
    app: FastAPI,
    access: Access,
    shown: int,
    *,
    host: str = LOOPBACK,
    port: int,
    ready: Ready | None = None,
    until: Callable[[], bool] | None = None,
) -> None:
    """Serve a page behind its guard until stopped; `ready` is called once the address is taken.

    There is no access log (it would hold tokens) and no trust in headers of proxies. `until` is asked every
    few seconds, and ends it by saying yes. Port 0 is any free one.
    """
    config = uvicorn.Config(
        Guard(app, access),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=2,
        http=ImpatientProtocol,
        backlog=BACKLOG,
    )
    server, ended = uvicorn.Server(config), threading.Event()

    def watch() -> None:
        while until is not None and not ended.wait(ASK_EVERY_S):
            if until():
                server.should_exit = True
                return

    with listening(host, port) as listener:
        if ready is not None:
            ready(Running(url_of(host, listener.getsockname()[1], access.token), shown))
        for name in ("asyncio", "uvicorn.error"):  # whose complaints would fill a disk
            log = logging.getLogger(name)
            if not any(isinstance(known, OnceInAWhile) for known in log.filters):
                log.addFilter(OnceInAWhile())
        if until is not None:
            threading.Thread(target=watch, daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):  # how one stops it
            server.run(sockets=[listener])
        ended.set()


def url_of(host: str, port: int, token: str) -> str:
    """Where a browser reaches the server; holds the token."""
    name = host
    if host in ("0.0.0.0", "::", ""):  # by which others on the network most likely reach this machine
        name = socket.gethostname()
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(NOWHERE)
            name = str(probe.getsockname()[0])
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/?token={quote(token)}"


# ---- files, and replies to errors ----

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
}
KEEP_PICTURES = "private, max-age=604800, immutable"


def bare_app(*folders: str) -> FastAPI:
    """An application that describes itself to nobody, with our replies to errors.

    It serves the files of these folders of `static`, read once, by their names; `page.html` is the page.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.exception_handler(MetaphaseError)(_failed)

    @app.exception_handler(RequestValidationError)
    def invalid(_request: Request, error: RequestValidationError) -> Response:
        """Say which field is wrong, without echoing what was sent."""
        fields = [".".join(map(str, fault["loc"])) for fault in error.errors()]
        return JSONResponse({"detail": f"invalid: {', '.join(fields)}"}, 422)

    def asset(content: bytes, kind: str) -> Callable[[], Response]:
        return lambda: Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    for folder in folders:
        for file in files("metaphase.web").joinpath("static", folder).iterdir():
            address = "" if file.name == "page.html" else file.name
            served = asset(file.read_bytes(), KINDS[Path(file.name).suffix])
            app.add_api_route(f"/{address}", served, methods=["GET"], response_model=None)
    return app


def picture(content: bytes | None, ending: str = "jpg") -> Response:
    """A picture that browsers keep, or word that there is none."""
    if content is None:
        raise HTTPException(404, "unavailable")
    kind = "image/png" if ending == "png" else "image/jpeg"
    return Response(content, media_type=kind, headers={"cache-control": KEEP_PICTURES})


def _failed(_request: Request, error: Exception) -> Response:
    """A wrong name is for the observer to correct; after all else the browser tries again."""
    if isinstance(error, UsageError):
        return JSONResponse({"detail": str(error)}, 422)
    _log.error("answers cannot be saved: %s", error)
    return JSONResponse({"detail": "the server cannot read or save at the moment"}, 503)


# ---- what a browser and the server say to each other, as JSON, on any page ----

MAX_BATCH = 100
MAX_ANSWER_S = 3600.0
MAX_NUMBER = 2**48

Number = Annotated[int, InAddress(ge=0, lt=MAX_NUMBER)]
ObserverName = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Item = TypeVar("Item")
Reply = dict[str, Any]
"""What a page hears."""


class Message(BaseModel):
    """Nothing but the fields named, of exactly these types."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Hello(Message):
    """An observer begins, or goes on."""

    observer: ObserverName


class SentAnswer(Message, Generic[Item]):
    """One answer; None takes it back. Sent again after a failure, it is written once."""

    uuid: UUID
    item: Item
    answer: str | None
    seconds: Annotated[float, Field(ge=0, le=MAX_ANSWER_S)]


class SentAnswers(Message, Generic[Item]):
    """Answers waiting in a browser, oldest first."""

    observer: ObserverName
    answers: Annotated[list[SentAnswer[Item]], Field(min_length=1, max_length=MAX_BATCH)]


class Receipt(Message):
    """Which answers were saved; a refused one names an item or answer that no longer exists."""

    saved: list[UUID]
    refused: list[UUID]
