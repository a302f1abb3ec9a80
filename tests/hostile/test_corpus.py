from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_what_failed_once_does_not_fail_again() -> None:
    """In a process of its own, which forks one for each input."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile", "--corpus"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
