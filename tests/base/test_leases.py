"""Leases: one holder at a time, whatever ends, stands still or races."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from metaphase.base.errors import OutputError
from metaphase.base.sharing import leases
from metaphase.base.sharing.leases import Holder, Lease, file_name, holding

HOLD = """
import sys, time
from pathlib import Path
from metaphase.base.sharing.leases import holding
with holding(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""
PATIENCE_S = 60.0


def elsewhere(path: Path) -> bytes:
    """A lease of another machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stated = {"token": "t", "host": "far", "machine": "other", "process": 1, "started": "1", "beat": "0" * 12}
    path.write_bytes(json.dumps(stated).encode())
    return path.read_bytes()


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.lease"
    with holding(path) as first:
        assert isinstance(first, Lease)
        with holding(path) as second:
            assert isinstance(second, Holder)
            assert str(os.getpid()) in str(second)
        assert path.exists()
    assert not list(tmp_path.iterdir())


def test_a_killed_holder_of_this_machine_is_followed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.lease"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with holding(path) as lease:
        assert isinstance(lease, Holder)
        assert (lease.ended, lease.lapse_s) == (False, leases.LAPSE_S)
    process.kill()
    process.wait()
    process.stdout.close()
    with holding(path) as lease:
        assert isinstance(lease, Holder)
        assert (lease.ended, lease.lapse_s) == (True, 0)
        assert "has ended, its work is taken over" in lease.outlook
    with holding(path, lapsed=lease.content) as lease:
        assert isinstance(lease, Lease)


def test_a_lease_of_another_machine_is_taken_over_only_where_it_stood_still(tmp_path: Path) -> None:
    path = tmp_path / "a.lease"
    content = elsewhere(path)
    with holding(path) as lease:
        assert isinstance(lease, Holder)
    with holding(path, lapsed=content.replace(b"000", b"001")) as lease:
        assert isinstance(lease, Holder)
    assert path.read_bytes() == content
    with holding(path, lapsed=content) as lease:
        assert isinstance(lease, Lease)


def test_a_lease_that_beats_is_not_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.lease"
    content, file = elsewhere(path), path.stat().st_ino
    leases._set_aside(path, Holder(content.replace(b"000", b"001")))
    assert path.read_bytes() == content
    assert path.stat().st_ino == file  # it was never away
    assert len(list(tmp_path.iterdir())) == 1


def test_a_held_lease_changes_all_the_time_and_a_lost_one_stops_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "BEAT_S", 0.01)
    path = tmp_path / "a.lease"
    with holding(path) as lease:
        assert isinstance(lease, Lease)
        before, until = path.read_bytes(), time.monotonic() + PATIENCE_S
        while path.read_bytes() == before and time.monotonic() < until:
            time.sleep(0.01)
        assert len(path.read_bytes()) == len(before)
        assert path.read_bytes() != before
        content = elsewhere(path)
        while not lease._lost and time.monotonic() < until:
            time.sleep(0.01)
        with pytest.raises(leases.LeaseLostError, match="another process has taken over"):
            lease.check()
    assert path.read_bytes() == content  # what is another's is not given back


def test_of_many_who_come_at_once_one_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.lease"
    lapsed = elsewhere(path)
    inside: list[int] = []
    most: list[int] = []
    start = threading.Barrier(8)

    def come() -> None:
        start.wait()
        for _ in range(20):
            with holding(path, lapsed) as lease:
                if isinstance(lease, Lease):
                    inside.append(1)
                    most.append(len(inside))
                    time.sleep(0.001)
                    inside.pop()

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1


def test_names_become_files_and_stay_apart() -> None:
    names = ["a/b", "a%2Fb", "a b", "é" * 90, "é" * 91, ".", "..", ".batch", "\udce9"]
    files = [file_name(name) for name in names]
    assert len(set(files)) == len(names)
    assert not any("/" in name or name.startswith(".") or len(name) > 140 for name in files)


@pytest.mark.parametrize("process", [2**40, -1, "1", None, [1]])
def test_a_process_that_cannot_be_has_ended(process: object) -> None:
    here = {"token": "t", "host": "h", "machine": leases.this_machine(), "process": process, "started": ""}
    assert Holder(json.dumps(here).encode()).lapse_s == 0


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b"{}", b'{"machine": "elsewhere"}'])
def test_a_lease_of_nobody_is_not_waited_for_as_long_as_one_of_somebody(content: bytes) -> None:
    assert Holder(content).lapse_s == leases.UNFINISHED_S < leases.LAPSE_S
    assert f"{leases.UNFINISHED_S:.0f} s after" in Holder(content).outlook


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_what_is_no_file_in_the_place_of_a_lease_is_an_error_and_no_wait(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "a.lease"
    make(path)
    with pytest.raises(OutputError, match=r"a\.lease: is not a plain file"), holding(path):
        pass


def test_a_folder_that_cannot_be_made_is_an_error_and_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_args: object, **_options: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "as under /proc")

    monkeypatch.setattr(Path, "mkdir", gone)
    with pytest.raises(OutputError, match="cannot write"), holding(tmp_path / "folder" / "a.lease"):
        pass


def test_a_lock_that_is_not_given_back_is_waited_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr(leases, "LOCK_S", 0.05)
    path = tmp_path / "a.lease"
    lapsed, folder = elsewhere(path), os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with holding(path, lapsed) as lease:
        assert isinstance(lease, Lease)
    os.close(folder)
