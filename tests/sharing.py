"""What is slow to make, made once for all workers of a run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

FOLDER = "METAPHASE_TESTS_SHARED"
"""Variable that names the folder, which `tests/conftest.py` makes and removes."""


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first who asks for it fills, while the others wait; copy it before changing it."""
    folder = Path(os.environ[FOLDER]) / name
    finished = folder.with_suffix(".finished")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder
