"""Outputs appear whole or not at all: write beside the target, then rename."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from metaphase.base.errors import OutputError
from metaphase.base.foreign import is_made_up
from metaphase.base.remote import is_url, location

Made = TypeVar("Made")
PAUSES_S = (0.01, 0.04, 0.15, 0.5, 1.0)
"""On Windows nobody renames or removes what another has open: readers of ours, virus scanners are quick."""
SHORT = 20
"""Characters of a temporary file's name: its end, by which writers know what to write."""


def patiently(act: Callable[[], Made]) -> Made:
    """Retry an action on a file that another program may have open for a moment."""
    for pause_s in PAUSES_S:
        try:
            return act()
        except PermissionError as error:
            if error.errno != errno.EACCES:
                raise
            time.sleep(pause_s)
    return act()


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that replaces it on success and vanishes on failure.

    Parent folders are made. An operating-system failure (no permission, disk full) becomes an
    `OutputError` that names the target.
    """
    target = Path(path)
    with explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".", dir=target.parent, ignore_cleanup_errors=True
        ) as folder:  # a short path: on Windows the whole of it may have 259 characters
            temporary = Path(folder) / target.name[-SHORT:]
            yield temporary
            if temporary.is_file():  # a power cut after the renaming would else leave it empty
                with temporary.open("r+b") as file:
                    os.fsync(file.fileno())
            patiently(lambda: temporary.replace(target))


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, atomically; what of a name is no text is written as \\udcXX."""
    write_bytes(path, text.encode(errors="backslashreplace"))


@contextlib.contextmanager
def explained(target: Path) -> Iterator[None]:
    """Turn an `OSError` met while writing `target` into an `OutputError` with the next step."""
    refuse_elsewhere(target)
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write ({error.strerror or error})", path=target, next_step=_next_step(error, target)
        ) from error


def refuse_elsewhere(target: Path) -> None:
    """Results go to disks: journals grow, and whole files appear by renaming, which no object storage has."""
    if is_url(target):
        raise OutputError(
            "results are not written to URLs",
            path=location(target),
            next_step="give a folder, and copy or mount the storage",
        )
    if is_made_up(target):
        raise OutputError("belongs to the kernel", path=target, next_step="give a folder on a disk")


def refuse_link(path: Path, folder: Path | None = None) -> None:
    """Refuse to write where a link leads: anywhere, or out of a `folder`.

    Files that appear by renaming replace a link and need no such care.
    """
    leads = Path(os.path.realpath(path))  # which no circle of links stops
    if path.is_symlink() if folder is None else Path(os.path.realpath(folder)) not in leads.parents:
        advice = "remove the link, or name the folder to which it leads"
        raise OutputError("is a link, and results are not written through links", path=path, next_step=advice)


def output_folder(path: Path) -> Path:
    """A folder for results, which may not be there yet; refused where there cannot be one."""
    refuse_elsewhere(path)
    there = next((above for above in (path, *path.parents) if os.path.lexists(above)), path)
    if os.path.lexists(there) and not there.is_dir():
        raise OutputError(
            "is not a folder", path=there, next_step=_next_step(OSError(errno.ENOTDIR, ""), there)
        )
    return path


def stored_path(path: str | Path, folder: Path) -> str:
    """A path as a file in a folder keeps it: as it is seen from there, with slashes on every system."""
    if is_url(path):
        return str(location(path))
    with contextlib.suppress(ValueError):  # another drive
        path = os.path.relpath(path, folder.resolve())
    return Path(path).as_posix()


def stated_path(text: str, folder: Path = Path()) -> str:
    r"""A path that a file in a folder keeps, as this system has it: older ones of Windows have backslashes.

    >>> stated_path("slides\\he.tif"), stated_path("s3://bucket/he.tif")
    ('slides/he.tif', 's3://bucket/he.tif')
    """
    ours = "\\" not in text or os.sep == "\\" or os.path.lexists(folder / text)
    return text if ours else text.replace("\\", "/")


def _next_step(error: OSError, target: Path) -> str:
    if isinstance(error, PermissionError) and target.is_file() and os.access(target.parent, os.W_OK):
        return "a program such as Excel has it open: close it there, then run the same command again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space, or choose a folder on another disk"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a folder you may write to"
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return "a file or folder of that name is in the way: move it, or choose another name"
    return "check the path and the disk"


@contextlib.contextmanager
def held(path: Path) -> Iterator[bool]:
    """Yield whether a lock could be had; the operating system releases it even after a kill."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    refuse_link(path)
    connection, free = None, True
    try:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        free = False
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
            raise OutputError(
                f"cannot be locked ({error})", path=path, next_step="check that you may write there"
            ) from error
    try:
        yield free
    finally:
        if connection is not None:
            connection.close()
