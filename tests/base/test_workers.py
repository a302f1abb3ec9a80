"""The same batch with a crew as without one, lost workers and wrong use included."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaphase.base.errors import UsageError
from metaphase.base.sharing import workers
from metaphase.base.sharing.batch import BatchWatch, Failure, Progress, run_batch
from metaphase.base.sharing.workers import DaskWorkers, dask_workers

pytest.importorskip("distributed", reason="the extra cluster is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # what Dask warns about is not ours
TRIM = "MALLOC_TRIM_THRESHOLD_"


@pytest.fixture(scope="module")
def pool() -> Iterator[DaskWorkers]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "DEATHS", 0)
        with dask_workers("2") as made:
            assert made is not None
            yield made


def test_a_crew_does_what_one_process_does(pool: DaskWorkers, tmp_path: Path) -> None:
    factor = 3  # closures travel, too

    def work(item: int, progress: Progress) -> int:
        progress(1, 2)
        if item == 4:
            raise UsageError("is four", path="four.tif")
        return item * factor

    class Ears(BatchWatch):
        def __init__(self) -> None:
            self.heard: list[str] = []

        def started(self, name: str, number: int, total: int) -> Progress:  # noqa: ARG002
            self.heard.append(f"started {name}")
            return lambda done, total: self.heard.append(f"{name} {done}/{total}")

        def failed(self, failure: Failure, log: Path | None) -> None:
            self.heard.append(f"failed {failure.name} {log is not None}")

    items = {f"item {number}": number for number in range(8)}
    ears = Ears()
    batch = run_batch(items, work, tmp_path / "crew", ears, pool)
    alone = run_batch(items, work, tmp_path / "alone")
    assert batch.results == alone.results
    assert list(batch.outcomes) == list(items)
    assert [failure.message for failure in batch.failures] == ["four.tif: is four."]
    assert "failed item 4 True" in ears.heard
    assert {"started item 0", "item 0 1/2"} <= set(ears.heard)
    assert (tmp_path / "crew" / "errors.log").is_file()


def test_workers_keep_the_memory_that_they_use_again(pool: DaskWorkers, tmp_path: Path) -> None:
    """Without Dask's word to the allocator, with which an engine takes a fifth longer."""
    described = run_batch(
        {"a": 1}, lambda _item, _progress: os.environ.get(TRIM, "kept"), tmp_path, None, pool
    )
    assert described.results == {"a": "kept"}


def test_a_lost_worker_s_item_is_done_again(pool: DaskWorkers, tmp_path: Path) -> None:
    def work(item: int, progress: Progress) -> int:
        mark = tmp_path / f"seen-{item}"
        first = not mark.exists()
        mark.touch()
        if item == 2 and first:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    items = {str(number): number for number in range(5)}
    assert run_batch(items, work, tmp_path / "out", None, pool).results == items
    assert not (tmp_path / "out" / ".batch").exists()


def test_an_item_that_kills_its_workers_is_given_up(pool: DaskWorkers, tmp_path: Path) -> None:
    def work(item: int, progress: Progress) -> int:
        if item == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    batch = run_batch({"0": 0, "1": 1, "2": 2}, work, tmp_path, None, pool)
    assert set(batch.results) == {"0", "2"}
    assert "workers died during this slide" in batch.failures[0].message


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_another_server_at_the_address_is_told(says: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "GREETING_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        held = []

        def answer() -> None:
            connection, _ = server.accept()
            connection.sendall(says)
            held.append(connection)

        other = threading.Thread(target=answer, daemon=True)
        other.start()
        described = rf"no Dask scheduler answers at {address} \(another kind of server answers\)"
        with pytest.raises(UsageError, match=described), dask_workers(address):
            pass
        other.join()
        held[0].close()


def test_wrong_use_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a number of processes"), dask_workers("-2"):
        pass
    settings = tmp_path / "cluster.toml"
    for text, described in (
        ('kind = "cloud"', "kind is 'cloud'. Give 'slurm'"),
        ("jobs = 0", "jobs"),
        ("queue = 1", "no setting"),
        ('kind = "lsf"', "needs the command bsub, which is not on this machine. Run this where jobs"),
    ):
        settings.write_text(text)
        with pytest.raises(UsageError, match=described), dask_workers(str(settings)):
            pass


SBATCH = """#!/bin/sh
# as Slurm does it: keep a copy of the script, start it somewhere, and say its number
cp "$1" "$PWD/job.sh"
bash "$PWD/job.sh" > "$PWD/job.log" 2>&1 < /dev/null &
echo $! >> "$PWD/jobs"
echo "Submitted batch job $!"
"""


def test_workers_are_asked_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", '#!/bin/sh\nkill "$1" 2>/dev/null || true\n')):
        (bin_ / name).write_text(text)
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "cluster.toml"
    settings.write_text(
        f"""
        kind = "slurm"
        jobs = 1
        gpu = true
        [options]
        cores = 1
        memory = "1GB"
        interface = "lo"
        python = "{sys.executable}"
        shared_temp_directory = "{tmp_path}"
        """
    )
    with dask_workers(str(settings)) as pool:
        assert pool is not None
        batch = run_batch(
            {"a": 1, "b": 2},
            lambda item, _progress: (item + 1, os.environ.get(TRIM, "kept")),
            tmp_path / "out",
            None,
            pool,
        )
        assert pool._resources() == {"GPU": 1}
    assert batch.results == {"a": (2, "kept"), "b": (3, "kept")}
    assert len((tmp_path / "jobs").read_text().splitlines()) == 1
