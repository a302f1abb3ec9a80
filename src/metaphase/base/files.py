"""Outputs appear whole or not at all: write beside the target, then rename."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from metaphase.base.errors import OutputError
from metaphase.base.foreign import is_made_up
from metaphase.base.remote import is_url, location


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that replaces it on success and vanishes on failure.

    Parent folders are made. An operating-system failure (no permission, disk full) becomes an
    `OutputError` that names the target.
    """
    target = Path(path)
    with explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name[:100]}.", dir=target.parent) as folder:
            temporary = Path(folder) / target.name
            yield temporary
            if (
                temporary.is_file()
            ):  # and on the disk: a power cut after the renaming would else leave it empty
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
            temporary.replace(target)


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
            f"cannot write ({error.strerror or error})", path=target, next_step=_next_step(error)
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


def output_folder(path: Path) -> Path:
    """A folder for results, which may not be there yet; refused where there cannot be one."""
    refuse_elsewhere(path)
    there = next((one for one in (path, *path.parents) if os.path.lexists(one)), path)
    if os.path.lexists(there) and not there.is_dir():
        raise OutputError("is not a folder", path=there, next_step=_next_step(OSError(errno.ENOTDIR, "")))
    return path


def _next_step(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space, or choose a folder on another disk"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a folder you may write to"
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return "a file or folder of that name is in the way: move it, or choose another name"
    return "check the path and the disk"


@contextlib.contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold a lock, and tell whether it could be had: the operating system releases it even after a kill."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
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
