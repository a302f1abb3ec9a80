"""Those who come to the port and say nothing, or are too many."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from metaphase.base.errors import OutputError
from metaphase.web import serving
from metaphase.web import serving as connections
from metaphase.web.access import Access, Guard
from metaphase.web.serving import LOOPBACK, ImpatientProtocol, OnceInAWhile, listening

PATIENCE_S = 60.0


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        body = "here" if scope["path"] == "/" else "much " * (1 << 14)
        await PlainTextResponse(body)(scope, receive, send)


@contextlib.contextmanager
def served(app: ASGIApp = app) -> Iterator[int]:
    with listening(LOOPBACK, 0) as listener:
        listener.listen()
        config = uvicorn.Config(app, log_level="warning", http=ImpatientProtocol, ws="none", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def connected(port: int) -> socket.socket:
    return socket.create_connection((LOOPBACK, port), timeout=PATIENCE_S)


def ended(connection: socket.socket) -> bool:
    """Whether the other side has closed; waits until it has."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            continue
    return True


def test_requests_that_do_not_arrive_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.2)
    with served() as port:
        for words in (b"", b"GET / HTTP/1.1\r\nHost:", b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /"):
            with connected(port) as connection:
                connection.sendall(words)
                assert ended(connection)
        monkeypatch.setattr(connections, "REQUEST_S", PATIENCE_S)
        with connected(port) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_of_connections_that_are_too_many_those_that_say_nothing_are_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 4)
    with served() as port, contextlib.ExitStack() as open_ones:
        silent = [open_ones.enter_context(connected(port)) for _ in range(4)]
        for number in range(4):
            late = open_ones.enter_context(connected(port))
            late.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert late.recv(4096).startswith(b"HTTP/1.1 200")
            assert ended(silent[number])


def test_those_who_do_not_read_what_they_asked_for_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.3)
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 4)
    with served() as port, contextlib.ExitStack() as open_ones:
        for _ in range(4):
            greedy = open_ones.enter_context(connected(port))
            greedy.sendall(b"GET /much HTTP/1.1\r\nHost: a\r\n\r\n" * 1000)
        time.sleep(0.5)  # until all buffers between them and the server are full
        for _ in range(50):  # as a browser tries again
            with contextlib.suppress(ConnectionError), connected(port) as late:
                late.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                if late.recv(4096).startswith(b"HTTP/1.1 200"):
                    break
            time.sleep(0.1)
        else:
            pytest.fail("those who do not read keep everybody out")


def test_who_is_refused_gets_one_answer_however_much_he_asks() -> None:
    """Else 205 clients that send 4,000 requests each keep the server busy for minutes."""
    with served(Guard(app, Access())) as port, connected(port) as stranger:
        with contextlib.suppress(ConnectionError):
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4000)
        said = b""
        with contextlib.suppress(ConnectionError):
            while part := stranger.recv(4096):
                said += part
    assert said.count(b"HTTP/1.1") <= 1


def test_the_same_complaint_is_logged_once_in_a_while() -> None:
    often = OnceInAWhile()
    records = [logging.LogRecord("a", logging.ERROR, "", 0, text, (), None) for text in ("x", "x", "y")]
    assert [often.filter(record) for record in records] == [True, False, True]


def test_the_operator_hears_that_answers_cannot_be_saved(caplog: pytest.LogCaptureFixture) -> None:
    serving._log.filters.clear()
    response = serving._failed(None, OutputError("cannot be written (no space left)"))  # type: ignore[arg-type]
    assert response.status_code == 503
    assert b"no space" not in response.body
    assert "no space left" in caplog.text
