"""A server in a process of its own, that can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx

_CODE = """
import sys
from metaphase.web.labelling import serve_project
serve_project(sys.argv[1], host=sys.argv[2], port=int(sys.argv[3]), ready=lambda r: print(r.url, flush=True))
"""
VIEW = """
import sys
from pathlib import Path
from metaphase.web.viewing import serve_view
told = {"host": sys.argv[2], "port": int(sys.argv[3])}
pairs = sorted(Path(sys.argv[1]).parent.glob("pair*"))
serve_view([Path(sys.argv[1])], registrations=pairs, **told, ready=lambda r: print(r.url, flush=True))
"""
PATIENCE_S = 60.0


class Server:
    """`metaphase label serve`, or another page, without the command line."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0, code: str = _CODE) -> None:
        arguments = [sys.executable, "-c", code, str(folder), host, str(port)]
        environment = os.environ | {"XDG_STATE_HOME": str(folder.parent / "state")}
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.end()
            raise AssertionError("the server did not start")
        self.port = urlsplit(self.url).port or 0
        self._wait()

    def kill(self) -> None:
        """End it as a power cut would."""
        self.end(signal.SIGKILL)

    def end(self, how: signal.Signals = signal.SIGINT) -> int:
        """Stop it, by default with Ctrl-C, and return its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(how)
        code = self._process.wait(PATIENCE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def _wait(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{self.port}/icon.svg")
                return
            time.sleep(0.05)
        raise AssertionError("the server does not answer")


@contextlib.contextmanager
def serving(folder: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[Server]:
    """A server that ends with the `with` statement, unless it was killed before."""
    server = Server(folder, host, port)
    try:
        yield server
    finally:
        server.end()
