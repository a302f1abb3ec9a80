"""What the pages that take answers share: a socket to listen on, and a quiet server."""

from __future__ import annotations

import contextlib
import errno
import os
import socket

import uvicorn
from starlette.types import ASGIApp

from metaphase.errors import MetaphaseError, UsageError

LOOPBACK = "127.0.0.1"


def listening(host: str, port: int) -> socket.socket:
    """A socket bound to the address; port 0 is any free one."""
    if not 0 <= port <= 65535:
        raise UsageError(f"port is {port}", next_step="give 1024 to 65535, or 0 for any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as on_failure:
            listener = on_failure.enter_context(socket.socket(family, kind, protocol))
            if os.name == "posix":  # elsewhere the option would let two servers share a port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            on_failure.pop_all()
    except OSError as error:
        raise _cannot_listen(error, host, port) from error
    return listener


def serve_quietly(app: ASGIApp, listener: socket.socket) -> None:
    """Serve until stopped, without an access log (it would hold tokens) or trust in headers of proxies."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, proxy_headers=False, ws="none",
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):  # how one stops it
        uvicorn.Server(config).run(sockets=[listener])


def _cannot_listen(error: OSError, host: str, port: int) -> MetaphaseError:
    if error.errno == errno.EADDRINUSE:
        return MetaphaseError(
            f"port {port} of {host} is in use",
            next_step="choose another with --port, or any free one with --port 0",
        )
    address = "" if host == LOOPBACK else "--host an address of this machine and "
    return MetaphaseError(
        f"cannot listen on {host}, port {port} ({error.strerror or error})",
        next_step=f"give {address}--port a number from 1024 on",
    )
