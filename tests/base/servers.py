"""A web server of one folder, as S3 and others answer: ranges, tags, and failures where they are wanted."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

FAILURES = ("error", "drop", "short")
"""What becomes of a request that fails, in turn: status 503, no answer at all, half of the content."""


class RangeServer(ThreadingHTTPServer):
    """Serves files of a folder, and counts what it gave."""

    daemon_threads = True

    def __init__(self, folder: Path, *, fail_every: int = 0, ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.fail_every, self.ranges = folder, fail_every, ranges
        self.requests = self.failed = self.bytes_sent = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may leave."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        server = self.server
        with server.lock:
            server.requests += 1
            fails = server.fail_every and server.requests % server.fail_every == 0
            failure = FAILURES[server.failed % len(FAILURES)] if fails else ""
            server.failed += bool(fails)
        if failure == "drop":
            self.close_connection = True
            return
        if failure == "error" or (failure == "short" and not body):
            self._plain(503)
            return
        path = server.folder / unquote(urlsplit(self.path).path).lstrip("/")
        if "forbidden" in path.name:
            self._plain(403)
            return
        if not path.is_file():
            self._plain(404)
            return
        self._give(path, body=body, short=failure == "short")

    def _give(self, path: Path, *, body: bool, short: bool) -> None:
        status = path.stat()
        tag = f'"{hashlib.md5(f"{status.st_size} {status.st_mtime_ns}".encode()).hexdigest()}"'
        if self.headers.get("If-Match", tag) != tag:
            self._plain(412)
            return
        start, stop, asked = 0, status.st_size, self.headers.get("Range", "")
        if asked and self.server.ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(stop, int(last) + 1 if last else stop)
        self.send_response(206 if asked and self.server.ranges else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", self.date_time_string(status.st_mtime))
        if asked and self.server.ranges:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{status.st_size}")
        self.end_headers()
        if not body:
            return
        if short:
            stop, self.close_connection = start + (stop - start) // 2, True
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        with self.server.lock:
            self.server.bytes_sent += len(data)
        self.wfile.write(data)

    def _plain(self, code: int) -> None:
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serving(folder: Path, *, fail_every: int = 0, ranges: bool = True) -> Iterator[RangeServer]:
    """The server of a folder, for the time inside."""
    with RangeServer(folder, fail_every=fail_every, ranges=ranges) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
