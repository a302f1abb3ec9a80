"""`metaphase` as the blocks call it: servers get a free port, are asked once, stopped; somebody answers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

SERVERS = (["label", "serve"], ["view"], ["reference", "review"])
REAL = [sys.executable, "-m", "metaphase"]


def main(arguments: list[str]) -> int:
    """The exit code."""
    if not any(arguments[: len(words)] == words for words in SERVERS):
        return subprocess.run([*REAL, *arguments], check=False).returncode
    if arguments[0] == "label":
        _answer(Path(arguments[2]))
    elif arguments[0] == "view":
        _review(Path(arguments[1]))
    return _serve(arguments)


def _answer(project: Path) -> None:
    from tests.docs.desk import answer_all

    with tempfile.TemporaryDirectory() as folder:
        answers = answer_all(project, Path(folder) / "answers.csv")
        subprocess.run([*REAL, "label", "import", str(project), str(answers)], check=True)


def _review(results: Path) -> None:
    for found in results.glob("*/detections.geojson"):
        review = ["review", "import", str(found.parent), "--from", str(found), "--observer", "Anna"]
        subprocess.run([*REAL, *review], check=True)


def _serve(arguments: list[str]) -> int:
    command = [*REAL, *arguments, "--port", "0"]
    variables = {**os.environ, "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables
    )
    said, found = "", None
    while found is None and (line := server.stdout.readline()):  # type: ignore[union-attr]
        said += line
        found = re.search(r"http://\S+", said)
    if found is None:
        sys.stderr.write(said)
        return server.wait() or 1
    with urllib.request.urlopen(found[0].replace("0.0.0.0", "127.0.0.1"), timeout=30) as page:
        assert page.status == 200
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=60)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
