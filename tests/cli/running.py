"""Running the command in a process of its own, far from any terminal."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from multiprocessing.context import ForkServerContext
from pathlib import Path

PRELOADED = (
    "metaphase.cli.main", "metaphase.evaluation", "metaphase.analysis.run",
    "metaphase.analysis.review", "metaphase.analysis.cohort", "metaphase.learn.run",
    "metaphase.networks.detector", "metaphase.reports.evaluation", "metaphase.simulation",
    "tests.cli.running",
)  # fmt: skip
"""What a command spends seconds to import."""
AT_THE_START = ("LANG", "LC_", "PYTHON", "_TYPER")
"""Beginnings of variables that an interpreter reads when it starts, or the command when it is imported."""


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The finished process, whatever its exit code; a fresh interpreter where one would start otherwise."""
    words = list(map(str, arguments))
    variables = {**os.environ, **environment}
    if any(name.startswith(AT_THE_START) for name in environment):
        command = [sys.executable, "-m", "metaphase", *words]
        return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    with tempfile.TemporaryDirectory(prefix="said-") as folder:
        said = [Path(folder) / "stdout", Path(folder) / "stderr"]
        process = _forking().Process(target=_called, args=(words, Path.cwd(), variables, said))
        process.start()
        process.join()
        code = process.exitcode if process.exitcode is not None else -1
        return subprocess.CompletedProcess(words, code, *(path.read_text("utf-8") for path in said))


def _forking() -> ForkServerContext:
    """A server that has imported all that is slow to import, and forks a process for each command."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _called(words: list[str], where: Path, environment: dict[str, str], said: list[Path]) -> None:
    """In the process: what `python -m metaphase` does."""
    from metaphase.cli.main import main

    os.chdir(where)
    os.environ.clear()
    os.environ.update(environment)
    for stream, path in zip(("stdout", "stderr"), said, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), getattr(sys, f"__{stream}__").fileno())
        setattr(sys, stream, getattr(sys, f"__{stream}__"))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["metaphase", *words]
    main()
