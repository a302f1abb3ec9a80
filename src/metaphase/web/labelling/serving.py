"""Starting the server: one a project, on a free port, with a link to open."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from metaphase.artifacts import atomic_path
from metaphase.web.labelling.access import Access, is_loopback
from metaphase.web.labelling.app import create_app
from metaphase.web.labelling.crops import CropMaker
from metaphase.web.labelling.project import LabellingError, Project, load_project
from metaphase.web.labelling.store import AnswerStore
from metaphase.web.serving import LOOPBACK, listening, serve_quietly

PORT = 8500
TOKEN, LOCK = ".server-token", ".server-lock"
NOWHERE = ("192.0.2.1", 9)
"""An address that no machine has (RFC 5737): asking for the way to it sends nothing."""


@dataclass(frozen=True)
class Running:
    """A server about to listen."""

    url: str
    """To open in a browser; holds the token where there is one."""
    project: Project


def serve_project(
    folder: str | Path,
    *,
    host: str = LOOPBACK,
    port: int = PORT,
    token: str | None = None,
    ready: Callable[[Running], None] | None = None,
) -> None:
    """Serve the labelling page until stopped. `ready` is called once the address is taken.

    Beyond loopback a token is made unless one is given, and kept in the project, so that links stay valid
    when the server starts again. Port 0 takes any free one.
    """
    project = load_project(folder)
    loopback = is_loopback(host)
    access = Access(token or (None if loopback else _kept_token(project)), loopback_only=loopback)
    with only_server(project), AnswerStore(project) as store, listening(host, port) as listener:
        crops = CropMaker(project)
        app = create_app(project, store, crops, access)
        if ready is not None:
            ready(Running(_url(host, listener.getsockname()[1], access.token), project))
        serve_quietly(app, listener)
        crops.close()


@contextlib.contextmanager
def only_server(project: Project) -> Iterator[None]:
    """Hold the project's lock, which the operating system releases even when the process is killed."""
    path = project.folder / LOCK
    try:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
            raise LabellingError(
                f"cannot lock the project ({error})", path=path, next_step="check that you may write there"
            ) from error
        raise LabellingError(
            "another server already serves this project",
            path=project.folder,
            next_step="open its link (many observers can use one server), or stop it first",
        ) from error
    try:
        yield
    finally:
        connection.close()


def _kept_token(project: Project) -> str:
    path = project.folder / TOKEN
    if path.is_file():
        return path.read_text(encoding="ascii").strip()
    token = secrets.token_urlsafe(24)
    with atomic_path(path) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_text(token + "\n", encoding="ascii")
    return token


def _url(host: str, port: int, token: str | None) -> str:
    name = _own_address() if host in ("0.0.0.0", "::", "") else host
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={quote(token)}" if token else "")


def _own_address() -> str:
    """The address by which others on the network most likely reach this machine."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(NOWHERE)
        return str(probe.getsockname()[0])
    return socket.gethostname()
