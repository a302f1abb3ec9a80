"""Running the command in a process of its own, far from any terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The finished process, whatever its exit code."""
    command = [sys.executable, "-m", "metaphase", *map(str, arguments)]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
