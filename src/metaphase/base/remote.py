"""Files by URL, read in ranges: objects of S3, Google Cloud and Azure, and files of web servers (obstore).

`location` makes of words a path, or a `RemotePath`, which answers as a path does: what reads files asks no
further. Credentials come from where each store's own tools have them (docs/cohorts.md). What fails for a
while (errors of the server, connections that break) is asked for again with growing pauses.
"""

from __future__ import annotations

import io
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.parallel import KeptBytes

EXTRA = "pip install 'metaphase[remote]'"
RETRIES, RETRY_S, REQUEST_S = 8, 120, 30
"""An answer is asked for again so often, and for so long; obstore gives one request the last of these."""
WORD_S = 5.0
"""An answer that takes longer is waited for with a word."""
BLOCK_BYTES = 64 << 10
"""Where a reader asks for less, so much is fetched: directories of slides are read in small steps."""
GAP_BYTES = 32 << 10
"""Ranges nearer than this are fetched as one."""
KEPT_BYTES = 64 << 20
"""What was fetched last is kept: neighbouring tiles of a search overlap, and slides are opened often."""
KNOWN_S = 10
"""How long what is known of a file holds before the server is asked again."""


_URL = re.compile(r"(s3|gs|az|https?):[/\\]+(?=[^/\\])")


def is_url(text: str | Path) -> bool:
    """Whether something is the URL of a file that is read from afar, be it that pathlib dropped a slash."""
    return _URL.match(str(text)) is not None


def location(path: str | os.PathLike[str]) -> Path:
    """Where a file is, as words say it: a path, or a `RemotePath`. What reads files is given one of these.

    >>> str(location("s3://bucket/a/slide.svs")), str(location("a//slide.svs"))
    ('s3://bucket/a/slide.svs', 'a/slide.svs')
    """
    if isinstance(path, RemotePath):
        return path
    return RemotePath(path) if is_url(os.fspath(path)) else Path(path)


class RemoteError(MetaphaseError):
    """A server did not deliver a file."""


class _MissingError(RemoteError):
    """There is no such file."""


@contextmanager
def reported_as(error: type[MetaphaseError]) -> Iterator[None]:
    """Turn what servers fail to deliver into an error of this kind."""
    try:
        yield
    except RemoteError as problem:
        raise error(problem.problem, path=problem.path, next_step=problem.next_step) from problem


@dataclass(frozen=True)
class RemoteStatus:
    """What a server says of a file, under the names that a disk has for it."""

    st_size: int
    st_mtime_ns: int
    tag: str
    """Changes with the content (ETag); empty where the server gives none."""
    st_mode: int = stat.S_IFREG


class RemotePath(type(Path())):  # type: ignore[misc]
    """The URL of a file as a path. Whatever its server fails to deliver is a `RemoteError`."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(super().__str__()).replace(os.sep, "/").replace(":/", "://", 1)  # pathlib keeps one

    def stat(self, **_: Any) -> RemoteStatus:
        """Size and state, as they were some seconds ago or are now."""
        return _status(self, int(time.monotonic() // KNOWN_S))

    def is_file(self) -> bool:
        """Whether there is such a file; a server that does not answer is an error."""
        try:
            self.stat()
        except _MissingError:
            return False
        return True

    def is_dir(self) -> bool:
        """False: a URL stands for a file."""
        return False

    def resolve(self, strict: bool = False) -> Self:  # noqa: ARG002 -- as paths have it
        """The location itself: a URL has no links."""
        return self

    def absolute(self) -> Self:
        """The location itself."""
        return self

    def open(self, *_: Any, **_options: Any) -> RemoteFile:
        """The file, of which only what is read is fetched."""
        return RemoteFile(self)

    def read_bytes(self) -> bytes:
        """The whole content."""
        return _got(self)


@lru_cache(4096)
def _status(path: RemotePath, _when: int) -> RemoteStatus:
    with _asking(path):
        import obstore

        found = obstore.head(*_store_of(path))
    return RemoteStatus(
        int(found["size"]), int(found["last_modified"].timestamp() * 1e9), found["e_tag"] or ""
    )


def _got(path: RemotePath, **options: Any) -> bytes:
    with _asking(path):
        import obstore

        wanted: Any = options
        return bytes(obstore.get(*_store_of(path), options=wanted).bytes())


class RemoteFile(io.RawIOBase):
    """A remote file to read from, at positions or from its position on; threads may share it."""

    def __init__(self, path: RemotePath) -> None:
        self.path, self.status, self._position = path, path.stat(), 0

    def at(self, offset: int, size: int) -> bytes:
        """The bytes of a range."""
        found = self._kept(offset, size)
        if found is None:
            sound = self.status.tag and not self.status.tag.startswith("W/")
            only = {"if_match": self.status.tag} if sound else {}
            found = self._whole(_got(self.path, range=(offset, offset + size), **only), offset, size)
            self._keep(offset, found)
        return found

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Have ranges (offset, size) ready for `at`: neighbours in one request, several requests at once."""
        missing = sorted({part for part in ranges if part[1] and self._kept(*part) is None})
        if not missing:
            return
        starts, lengths = zip(*missing, strict=True)
        with _asking(self.path):
            import obstore

            store, key = _store_of(self.path)
            parts = obstore.get_ranges(store, key, starts=starts, lengths=lengths, coalesce=GAP_BYTES)
        for (offset, size), data in zip(missing, parts, strict=True):
            self._keep(offset, self._whole(bytes(data), offset, size))

    def readable(self) -> bool:
        """True: a URL is only read."""
        return True

    def seekable(self) -> bool:
        """True: reads begin anywhere."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.status.st_size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read from the position on: in blocks, or in one request where more is asked for."""
        offset, size = self._position, self.status.st_size
        wanted = max(0, min(len(buffer), size - offset))
        if wanted > BLOCK_BYTES:
            buffer[:wanted] = self.at(offset, wanted)
        elif wanted:
            start = offset // BLOCK_BYTES * BLOCK_BYTES
            positions = range(start, offset + wanted, BLOCK_BYTES)
            blocks = b"".join(self.at(position, min(BLOCK_BYTES, size - position)) for position in positions)
            buffer[:wanted] = blocks[offset - start : offset - start + wanted]
        self._position += wanted
        return wanted

    def _whole(self, data: bytes, offset: int, size: int) -> bytes:
        if len(data) != size:
            raise RemoteError(
                f"{size:,} bytes from {offset:,} on were asked for, and {len(data):,} came",
                path=self.path,
                next_step="the server does not serve parts of files correctly: copy the file",
            )
        return data

    def _kept(self, offset: int, size: int) -> bytes | None:
        return _kept.get((self.path, self.status, offset, size))

    def _keep(self, offset: int, data: bytes) -> None:
        _kept.put((self.path, self.status, offset, len(data)), data)


_kept = KeptBytes(KEPT_BYTES)


# ---- the stores ----


def _store_of(path: RemotePath) -> tuple[Any, str]:
    """The store of a URL, and the key there."""
    scheme, _, rest = str(path).partition("://")
    root, _, key = rest.partition("/")
    if not root or not key:
        raise UsageError("names no file", path=path, next_step="give the whole address")
    if scheme in ("http", "https"):
        if "?" in key or "#" in key or "@" in root:
            raise UsageError(
                "a web address with a query or a password is not read, because results keep addresses",
                path=RemotePath(str(path).partition("?")[0]) if "@" not in root else None,
                next_step="give the plain address, or s3:// with credentials in the environment",
            )
        key = unquote(key)
    return _store(scheme, root), key


@lru_cache(256)
def _store(scheme: str, root: str) -> Any:
    from obstore.store import HTTPStore, from_url

    pauses = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=15), "base": 2}
    retry: Any = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S), "backoff": pauses}
    if scheme in ("http", "https"):
        options: Any = {"allow_http": scheme == "http"}
        return HTTPStore(f"{scheme}://{root}", client_options=options, retry_config=retry)
    return from_url(f"{scheme}://{root}", retry_config=retry)


_log = logging.getLogger(__name__)
_said_s: dict[str, float] = {}


@contextmanager
def waiting(url: str, limit_s: float) -> Iterator[None]:
    """Log once that an answer takes long, and how much longer it is waited for."""

    def say() -> None:
        now = time.monotonic()
        if now - _said_s.get(url, -limit_s) >= limit_s:
            _said_s[url] = now
            _log.warning(
                "%s: no answer for %g s; it waits at most %g s more", url, WORD_S, max(0.0, limit_s - WORD_S)
            )

    timer = threading.Timer(WORD_S, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _asking(path: RemotePath) -> Iterator[None]:
    """Turn whatever the server or the connection answers into an error that names the address."""
    try:
        from obstore import exceptions as their
    except ImportError as problem:
        raise UsageError("is a URL, and reading those needs obstore", path=path, next_step=EXTRA) from problem
    try:
        with waiting(str(path), RETRY_S + REQUEST_S):
            yield
    except MetaphaseError:
        raise
    except Exception as problem:
        kind: type[RemoteError] = RemoteError
        match problem:
            case their.NotFoundError() | FileNotFoundError():
                kind, what = _MissingError, "no such file, so it cannot be read"
                advice = "check the spelling and the bucket"
            case their.PermissionDeniedError() | their.UnauthenticatedError() | PermissionError():
                what = "the server refuses it (no permission)"
                advice = "check the credentials in the environment, and that they may read it"
            case their.PreconditionError():
                what, advice = "changed on the server while it was read", "run the command again"
            case their.NotSupportedError():
                what, advice = "the server serves whole files only", "copy the file, or ask another server"
            case _:
                said = " ".join(str(problem).partition("\n\nDebug source:")[0].split())[:300]
                what = f"the server did not deliver it ({said})"
                advice = (
                    "check address, network and credentials, then run again: it continues where it stopped"
                )
        raise kind(what, path=path, next_step=advice) from problem
