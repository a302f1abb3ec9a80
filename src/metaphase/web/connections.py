"""How long and how many: connections that say nothing, or too slowly, or are too many, are let go.

Anybody who reaches the port can open connections, before any token is asked for.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""A request, its body included, must have arrived this long after its first byte or its connection."""
MOST_CONNECTIONS = 200
"""A browser opens six; eight observers need fifty."""
BACKLOG = 64
"""Connections accepted at one go, before those that are too many are let go."""
QUIET_S = 60.0
"""The same complaint is logged once in this time."""


def most_connections() -> int:
    """How many connections may be open: half of the files that this process may, for slides need some."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(4, min(MOST_CONNECTIONS, (files - BACKLOG) // 2))


class ImpatientProtocol(H11Protocol):
    """HTTP with limits on connections and on the time that a request may take to arrive."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; of too many who do, whoever has said nothing for longest is let go."""
        super().connection_made(transport)
        self._hurry()
        if len(self.connections) > most_connections():
            waiting = (
                one for one in self.connections if isinstance(one, ImpatientProtocol) and one._deadline
            )
            longest = min(waiting, key=lambda one: one._deadline.when() if one._deadline else 0, default=self)
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

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        self._relax()

    def _hurry(self) -> None:
        """The clock runs while a request is not here in full; a server that is at work has all its time."""
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


class OnceInAWhile(logging.Filter):
    """Lets a complaint through once in `QUIET_S`: without descriptors, a server has thousands a second."""

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


def quieten() -> None:
    """Keep the logs of the server and of its event loop from filling a disk."""
    for name in ("asyncio", "uvicorn.error"):
        log = logging.getLogger(name)
        if not any(isinstance(one, OnceInAWhile) for one in log.filters):
            log.addFilter(OnceInAWhile())
