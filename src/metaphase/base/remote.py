"""Files by URL, read in ranges: objects of S3, Google Cloud and Azure, and files of web servers (obstore).

A URL is kept as a path, `Path("s3://bucket/key")`, of which pathlib drops a slash; `url_of` tells it from a
file's. Credentials come from where each store's own tools have them (docs/cohorts.md). What fails for a while
(errors of the server, connections that break) is asked for again with growing pauses.
"""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from metaphase.base.errors import MetaphaseError, UsageError, is_url, spelled
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
LONGEST_BYTES = 8 << 20
"""Ranges are put together up to this length."""
KEPT_BYTES = 64 << 20
"""What was fetched last is kept: neighbouring tiles of a search overlap, and slides are opened often."""
AT_ONCE = 8
"""Requests of one file."""
KNOWN_S = 10
"""How long what is known of a file holds before the server is asked again."""


def url_of(path: str | Path) -> str | None:
    """The URL that a path is, or None where it is a file's.

    >>> url_of(Path("s3://bucket/a/slide.svs")), url_of("slide.svs")
    ('s3://bucket/a/slide.svs', None)
    """
    return spelled(path) if is_url(path) else None


@dataclass(frozen=True)
class RemoteStatus:
    """What a server says of a file."""

    size: int
    tag: str
    """Changes with the content (ETag); empty where the server gives none."""
    changed_ns: int


def status_of(url: str, error: type[MetaphaseError] = MetaphaseError) -> RemoteStatus:
    """Size and state of a remote file; an error of this kind where that is not known."""
    with _asking(url, error):
        return _status(url, int(time.monotonic() // KNOWN_S))


def is_there(url: str) -> bool:
    """Whether there is such a file; a server that does not answer is an error."""
    try:
        status_of(url)
    except _MissingError:
        return False
    return True


@lru_cache(4096)
def _status(url: str, _when: int) -> RemoteStatus:
    import obstore

    store, key = _store_of(url)
    found = obstore.head(store, key)
    changed = found["last_modified"].timestamp()
    return RemoteStatus(int(found["size"]), found["e_tag"] or "", int(changed * 1e9))


class RemoteFile(io.RawIOBase):
    """A remote file to read from, at positions or from its position on; threads may share it."""

    def __init__(self, url: str, error: type[MetaphaseError] = MetaphaseError) -> None:
        self.url, self._error = url, error
        self.status = status_of(url, error)
        self._position = 0
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch")

    def at(self, offset: int, size: int) -> bytes:
        """The bytes of a range."""
        found = self._kept(offset, size)
        if found is None:
            found = self._get(offset, offset + size)
            _kept.put((self.url, self.status, offset, size), found)
        return found

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Have ranges (offset, size) ready for `at`: neighbours in one request, several requests at once."""
        missing = sorted({one for one in ranges if one[1] and self._kept(*one) is None})
        runs = merged(missing)
        for run, data in zip(runs, self._pool.map(lambda run: self._get(*run), runs), strict=True):
            for offset, size in missing:
                if run[0] <= offset and offset + size <= run[1]:
                    piece = data[offset - run[0] : offset - run[0] + size]
                    _kept.put((self.url, self.status, offset, size), piece)

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.status.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read on, all that is asked for: by blocks, or in one request where it is more."""
        offset, size = self._position, self.status.size
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

    def close(self) -> None:
        """End its threads."""
        self._pool.shutdown(cancel_futures=True)
        super().close()

    def _get(self, start: int, stop: int) -> bytes:
        import obstore

        options: Any = {"range": (start, stop)}
        if self.status.tag and not self.status.tag.startswith("W/"):
            options["if_match"] = self.status.tag
        with _asking(self.url, self._error):
            store, key = _store_of(self.url)
            data = bytes(obstore.get(store, key, options=options).bytes())
        if len(data) != stop - start:
            raise self._error(
                f"bytes {start:,} to {stop:,} were asked for, and {len(data):,} came",
                path=self.url,
                next_step="the server does not serve parts of files correctly: copy the file",
            )
        return data

    def _kept(self, offset: int, size: int) -> bytes | None:
        return _kept.get((self.url, self.status, offset, size))


_kept = KeptBytes(KEPT_BYTES)


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges (offset, size) in their order as few (start, stop), with small gaps filled.

    >>> merged([(0, 10), (20, 10), (10_000_000, 5)])
    [(0, 30), (10000000, 10000005)]
    """
    runs: list[tuple[int, int]] = []
    for offset, size in ranges:
        stop = offset + size
        if runs and offset - runs[-1][1] <= GAP_BYTES and stop - runs[-1][0] <= LONGEST_BYTES:
            runs[-1] = runs[-1][0], max(runs[-1][1], stop)
        else:
            runs.append((offset, stop))
    return runs


def remote_bytes(url: str, error: type[MetaphaseError] = MetaphaseError) -> bytes:
    """The whole content of a remote file."""
    with _asking(url, error):
        import obstore

        store, key = _store_of(url)
        return bytes(obstore.get(store, key).bytes())


# ---- the stores ----


class _MissingError(MetaphaseError):
    """There is no such file."""


def _store_of(url: str) -> tuple[Any, str]:
    """The store of a URL, and the key there."""
    scheme, _, rest = url.partition("://")
    root, _, key = rest.partition("/")
    if not root or not key:
        raise UsageError("names no file", path=url, next_step="give the whole address")
    if scheme in ("http", "https"):
        if "?" in key or "#" in key or "@" in root:
            raise UsageError(
                "a web address with a query or a password is not read, because results keep addresses",
                path=url.partition("?")[0] if "@" not in root else None,
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
    """Say so where an answer takes long, and how long it is still waited for; once for several waits."""

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
def _asking(url: str, error: type[MetaphaseError]) -> Iterator[None]:
    """Whatever the server or the way to it says, as an error that names the address."""
    try:
        from obstore import exceptions
    except ImportError as problem:
        raise UsageError("is a URL, and reading those needs obstore", path=url, next_step=EXTRA) from problem
    try:
        with waiting(url, RETRY_S + REQUEST_S):
            yield
    except MetaphaseError:
        raise
    except (exceptions.NotFoundError, FileNotFoundError) as problem:
        kind = _MissingError if error is MetaphaseError else error
        what = "no such file, so it cannot be read"
        raise kind(what, path=url, next_step="check the spelling and the bucket") from problem
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError) as problem:
        raise error(
            "the server refuses it (no permission)",
            path=url,
            next_step="check the credentials in the environment, and that they may read it",
        ) from problem
    except exceptions.PreconditionError as problem:
        raise error(
            "changed on the server while it was read", path=url, next_step="run the command again"
        ) from problem
    except exceptions.NotSupportedError as problem:
        raise error(
            "the server serves whole files only", path=url, next_step="copy the file, or ask another server"
        ) from problem
    except Exception as problem:
        said = " ".join(str(problem).partition("\n\nDebug source:")[0].split())[:300]
        raise error(
            f"the server did not deliver it ({said})",
            path=url,
            next_step="check address, network and credentials, then run again: it continues where it stopped",
        ) from problem
