from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metaphase.base.parallel import KeptBytes

CODE = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from metaphase.base.parallel import end_with_parent
if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=end_with_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""
PATIENCE_S = 60.0


def ended(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them")
def test_workers_end_with_their_parent(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "parent.py").write_text(CODE)
    parent = subprocess.Popen([sys.executable, tmp_path / "parent.py"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        worker = int(parent.stdout.readline())
        parent.send_signal(how)
        parent.wait()
    until = time.monotonic() + PATIENCE_S
    while not ended(worker) and time.monotonic() < until:
        time.sleep(0.02)
    if not ended(worker):
        os.kill(worker, signal.SIGKILL)
        raise AssertionError("a worker outlived its parent")


def test_what_is_kept_is_what_was_used_last_and_never_too_much() -> None:
    kept = KeptBytes(10)
    kept.put("a", b"1234")
    kept.put("b", b"1234")
    assert kept.get("a") == b"1234"
    kept.put("c", b"1234")
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (b"1234", None, b"1234")
    for _ in range(5):
        kept.put("c", b"123456")  # in the place of the shorter one, not beside it
    assert (kept.get("a"), kept.get("c")) == (b"1234", b"123456")
    kept.put("d", b"x" * 11)
    assert [kept.get(key) for key in "abcd"] == [None] * 4
