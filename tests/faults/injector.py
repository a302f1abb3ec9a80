"""Faults in what a command does to a folder: `shim.c` before the C library, steered by a file.

A program with the environment `loaded` has the shim. `Faults.during` arms it, and children that are forked
inside meet the fault.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

Fault = Literal["none", "kill", "full disk", "no locks", "no links", "clock jumps", "clock stands still"]
FAULTS: tuple[Fault, ...] = (
    "none", "kill", "full disk", "no locks", "no links", "clock jumps", "clock stands still",
)  # fmt: skip
"""In the order of the shim's own numbers."""
STATE = "METAPHASE_FAULTS"
HOUR_S = 3600
_NUMBERS = struct.Struct("<5q")
_SIZE = _NUMBERS.size + 4096


def cannot() -> str:
    """Why there can be no faults here; empty where there can."""
    if not sys.platform.startswith("linux"):
        return "faults are injected on Linux only"
    return "" if shutil.which("cc") else "no C compiler (cc)"


@contextlib.contextmanager
def loaded() -> Iterator[dict[str, str]]:
    """The environment of a program that is to have the shim."""
    with tempfile.TemporaryDirectory(prefix="shim-") as name:
        shim, state = Path(name) / "shim.so", Path(name) / "state"
        source = Path(__file__).with_name("shim.c")
        subprocess.run(["cc", "-O1", "-Wall", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
        state.write_bytes(bytes(_SIZE))
        yield {**os.environ, "LD_PRELOAD": str(shim), STATE: str(state)}


@dataclass(frozen=True)
class Faults:
    """The steering of the shim."""

    under: Path
    """The folder whose files meet faults."""

    @cached_property
    def _map(self) -> mmap.mmap:
        with Path(os.environ[STATE]).open("r+b") as file:
            return mmap.mmap(file.fileno(), _SIZE)

    @contextlib.contextmanager
    def during(self, fault: Fault, at: int = 0) -> Iterator[None]:
        """Let it strike inside: a kill or a full disk at the act of this number, all else at once."""
        name = str(self.under.resolve()).encode()
        self._map[:] = (_NUMBERS.pack(FAULTS.index(fault), at, 0, 0, HOUR_S) + name).ljust(_SIZE, b"\0")
        try:
            yield
        finally:
            self._map[:8] = bytes(8)  # no fault for whoever goes on
            self._map[_NUMBERS.size :] = bytes(_SIZE - _NUMBERS.size)

    @property
    def seen(self) -> int:
        """Acts of the last command: files made, written, synced, renamed or removed."""
        return int(_NUMBERS.unpack_from(self._map)[2])

    @property
    def struck(self) -> bool:
        """Whether the command came to the chosen act."""
        return bool(_NUMBERS.unpack_from(self._map)[3])
