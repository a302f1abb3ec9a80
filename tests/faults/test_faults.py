"""Faults at every write: what was there stays, or what is new is whole; and commands go on from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.injector import cannot, loaded

pytestmark = pytest.mark.skipif(bool(cannot()), reason=cannot())
ROOT = Path(__file__).parents[2]
STRUCK = """
import json, os, sys
from pathlib import Path
from metaphase.base.errors import OutputError
from metaphase.base.files import write_text
from tests.faults.injector import Faults

folder, found = Path(sys.argv[1]), []
faults = Faults(folder)
for fault in ("kill", "full disk"):
    at = 1
    while True:
        (folder / "a.txt").write_text("old")
        with faults.during(fault, at):
            if not (pid := os.fork()):
                os.setpgid(0, 0)
                try:
                    write_text(folder / "a.txt", "new" * 999)
                except OutputError as error:
                    os._exit(1 if "free some space" in str(error).lower() else 2)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
        found.append((fault, status, (folder / "a.txt").read_text()[:4]))
        at += 1
        if not faults.struck:
            break
print(json.dumps(found))
"""


def test_a_file_is_old_or_new_wherever_its_writing_ends(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    with loaded() as variables:
        command = [sys.executable, "-c", STRUCK, str(tmp_path / "files")]
        done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    killed = [text for fault, status, text in found if fault == "kill" and status == 9]
    full = [(os.waitstatus_to_exitcode(status), text) for fault, status, text in found if fault != "kill"]
    assert len(killed) > 4
    assert set(killed) == {"old", "newn"}  # the last is killed while its empty folder goes
    assert set(full) == {(1, "old"), (0, "newn")}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["label import", "review import"])
def test_a_command_goes_on_where_it_was_struck(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--points", "3", "--only", command],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
