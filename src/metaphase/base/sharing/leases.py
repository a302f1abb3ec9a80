"""Leases: who works on what in a folder that several processes, on several machines, write into.

A lease is a small file that exactly one process can make (`O_EXCL`, which network file systems keep, too),
and that its holder changes every `BEAT_S`. It has lapsed when its content stayed the same for
`Holder.lapse_s` by the clock of whoever looks: at once where its process was one of this machine and has
ended. No two clocks are compared. A holder that stood still for longer finds its lease gone, and stops.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from metaphase.base.errors import MetaphaseError, OutputError
from metaphase.base.files import explained, patiently, refuse_link

BEAT_S, LAPSE_S = 10.0, 120.0
"""Attributes of files are cached for a minute by NFS clients: a lease must stand still for longer."""
UNFINISHED_S = 5.0
"""A file that names no holder has so long to become a lease."""
TRIES = 100
"""How often others may make or remove a file just before this process does."""
LOCK_S = 5.0
"""How long the lock of a folder is waited for."""
LONGEST_NAME = 120
"""Bytes of a file's name; longer ones are cut, and their checksum added."""
_QUERY, _DENIED, _RUNNING = 0x1000, 5, 259
"""Windows: the right to ask about a process, what one of another user answers, what one that runs has."""


class LeaseLostError(MetaphaseError):
    """Somebody else has taken over what this process was working on."""


def file_name(name: str) -> str:
    """A file's name for anything that has a name.

    >>> file_name("slides/a.tif"), len(file_name("x" * 500))
    ('slides%2Fa.tif', 129)
    """
    quoted = quote(name, safe=" ", errors="surrogateescape")
    if len(quoted) <= LONGEST_NAME and not quoted.startswith("."):
        return quoted
    check = hashlib.blake2b(quoted.encode(), digest_size=4).hexdigest()
    return f"{quoted[:LONGEST_NAME].lstrip('.')}~{check}"


@dataclass(frozen=True)
class Holder:
    """Whoever holds a lease, as its file says."""

    content: bytes
    """All of the file: it stays the same only where nobody renews the lease."""

    @property
    def stated(self) -> dict[str, Any]:
        """Token, host, machine, process and its start; nothing where the file is not whole yet."""
        try:
            values = json.loads(self.content)
        except ValueError:
            return {}
        return values if isinstance(values, dict) else {}

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine since its last start."""
        return self.stated.get("machine") == this_machine()

    @property
    def ended(self) -> bool:
        """Whether it was a process of this machine that is no more, or that there cannot be."""
        if not self.is_here:
            return False
        process = self.stated.get("process")
        now = _started(process) if type(process) is int and process > 0 else ""
        return now is not None and (not now or now != self.stated.get("started"))

    @property
    def lapse_s(self) -> float:
        """How long its lease may stay unchanged before somebody else takes over."""
        if self.ended:
            return 0.0
        return LAPSE_S if self.stated.get("token") else UNFINISHED_S

    @property
    def outlook(self) -> str:
        """What others do about it, and how long they wait."""
        if self.ended:
            return f"{self} has ended, its work is taken over"
        return (
            f"{self} is working on it. This process does other slides first, and takes over "
            f"{self.lapse_s:.0f} s after its last sign of life"
        )

    def __str__(self) -> str:
        stated = self.stated
        if not stated:
            return "another process"
        return f"process {stated.get('process')} on {stated.get('host')}"


@lru_cache(1)
def this_machine() -> str:
    """Names the machine, its start and the namespace of its process numbers: containers have their own."""
    known = [socket.gethostname(), platform.node()]
    with contextlib.suppress(OSError):
        known.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with contextlib.suppress(OSError):
        known.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.blake2b(" ".join(known).encode(errors="replace"), digest_size=8).hexdigest()


def _started(process: int) -> str | None:
    """When a process of this machine began, in its own words; empty where there is none, None where nobody
    says."""
    if sys.platform == "win32":  # where os.kill ends whom it asks for
        return _started_on_windows(process)
    with contextlib.suppress(OSError, IndexError):
        stated = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        fields = stated.rpartition(")")[2].split()
        return "" if fields[0] in ("Z", "X") else fields[19]
    try:  # a system without /proc, or one that shows each user his own
        os.kill(process, 0)
    except PermissionError:
        return None
    except (OSError, OverflowError):
        return ""
    return None


def _started_on_windows(process: int) -> str | None:
    import ctypes

    if sys.platform == "win32":
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.OpenProcess.restype = ctypes.c_void_p
        handle = ctypes.c_void_p(kernel.OpenProcess(_QUERY, False, ctypes.c_ulong(process)))
        if not handle:
            return None if ctypes.get_last_error() == _DENIED else ""
        try:
            code, times = ctypes.c_ulong(), [ctypes.c_ulonglong() for _ in range(4)]
            kernel.GetExitCodeProcess(handle, ctypes.byref(code))
            kernel.GetProcessTimes(handle, *map(ctypes.byref, times))
            return str(times[0].value) if code.value == _RUNNING else ""
        finally:
            kernel.CloseHandle(handle)
    return None


class Lease:
    """A lease that is held; its file beats until the end of the `with` statement of `holding`."""

    def __init__(self, path: Path, token: str) -> None:
        self._path, self._token, self._beat = path, token, 0
        self._lost, self._done = False, threading.Event()
        self.beating = threading.Thread(target=self._go_on, name="lease", daemon=True)

    def check(self) -> None:
        """Stop here where somebody else has taken over."""
        if self._lost:
            raise LeaseLostError(
                "another process has taken over, because this one stood still for too long",
                path=self._path,
                next_step="nothing is lost: the other process continues it",
            )

    def content(self) -> bytes:
        """What the file says now; of the same length at every beat."""
        process = os.getpid()
        stated = {"token": self._token, "host": socket.gethostname(), "machine": this_machine()}
        beats = {"process": process, "started": _started(process), "beat": f"{self._beat:012d}"}
        return json.dumps(stated | beats).encode()

    def release(self) -> None:
        """Give it back, unless it is another's already."""
        self._done.set()
        self.beating.join(BEAT_S)
        with contextlib.suppress(OSError, OutputError):
            if self._is_mine(_read(self._path)):
                patiently(self._path.unlink)

    def _go_on(self) -> None:
        """Renew it in place, not by renaming: whoever opens the same file again sees the newest content."""
        renewed = time.monotonic()
        while not self._lost and not self._done.wait(BEAT_S):
            try:
                if not self._is_mine(_read(self._path)):
                    self._lost = True
                    return
                self._beat += 1
                with self._path.open("r+b") as file:
                    file.write(self.content())
                    file.flush()
                    os.fsync(file.fileno())
                renewed = time.monotonic()
            except (FileNotFoundError, OutputError):
                self._lost = True
            except OSError:  # a file server that is away for a moment
                self._lost = time.monotonic() - renewed > LAPSE_S

    def _is_mine(self, there: Holder | None) -> bool:
        return there is not None and there.stated.get("token") == self._token


@contextlib.contextmanager
def holding(path: Path, lapsed: bytes | None = None) -> Iterator[Lease | Holder]:
    """Hold the lease of this path inside, or learn who does.

    `lapsed` is the content of a lease that the caller has seen unchanged for its holder's `lapse_s`: it is
    taken over.
    """
    refuse_link(path.parent)
    for _ in range(TRIES):
        lease = Lease(path, uuid4().hex)
        if _created(path, lease.content()):
            break
        there = _read(path)
        if there is not None and there.content != lapsed:
            yield there
            return
        if there is not None:
            with _alone(path.parent):
                _set_aside(path, there)
    else:
        raise OutputError("cannot be locked", path=path, next_step="check who else works in the folder")
    lease.beating.start()
    try:
        yield lease
    finally:
        lease.release()


def _read(path: Path) -> Holder | None:
    """Who holds a lease; None where it was given back just now."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OutputError("is not a plain file", path=path, next_step="remove it")
        return Holder(patiently(path.read_bytes))
    except FileNotFoundError:
        return None


def _created(path: Path, content: bytes) -> bool:
    """Make the file, unless there is one; others may see it empty for a moment."""
    with explained(path):
        for left in reversed(range(TRIES)):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with path.open("xb") as file:
                    file.write(content)
            except FileExistsError:
                return False
            except FileNotFoundError:  # the folder went between the two: its last lease was given back
                if not left:
                    raise
            else:
                break
    return True


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of all who would remove a lapsed lease, one at a time, where the file system knows locks: another may
    have made a new one meanwhile. Without locks, whoever loses it so finds out at its next beat."""
    with contextlib.ExitStack() as held:
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                import fcntl

                file = os.open(folder, os.O_RDONLY)
                held.callback(os.close, file)  # which also unlocks it
                until = time.monotonic() + LOCK_S
                while True:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() > until:
                            raise
                        time.sleep(0.01)
        yield


def _set_aside(path: Path, lapsed: Holder) -> None:
    """Remove a lease that has lapsed; one that turns out to be another, or to beat, stays or is put back."""
    aside = path.with_name(f".{uuid4().hex}")
    try:
        if path.read_bytes() != lapsed.content:
            return
        patiently(lambda: path.rename(aside))
    except FileNotFoundError:  # somebody else was quicker
        return
    try:
        content = aside.read_bytes()
        if content != lapsed.content:
            _created(path, content)
    finally:
        patiently(lambda: aside.unlink(missing_ok=True))
