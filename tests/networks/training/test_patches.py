"""Patch stores give back what was put in, and say when they cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.errors import OutputError, TrainingError
from metaphase.networks.training import data, patches
from metaphase.networks.training.data import Feeder, open_set
from metaphase.networks.training.patches import PatchWriter, open_store
from tests.networks.training.stores import write_store


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "SHARD_BYTES", 5 * 32 * 32 * 3)


@pytest.mark.usefixtures("small_shards")
def test_patches_come_back_from_many_shards(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (23, 32, 32, 3), dtype=np.uint8)
    for part, name in ((slice(0, 12), "a"), (slice(12, 23), "b")):
        with PatchWriter(tmp_path / name, side_px=32, mpp=0.5) as writer:
            for number, image in enumerate(images[part]):
                writer.add(image, label=number % 2, slide="s", x=1.5, y=2.5, source="me", extra=number)
    store = open_store(tmp_path / "a")
    assert ([len(shard) for shard in store.shards], store.mpp) == ([5, 5, 2], 0.5)
    assert list(store.index["extra"]) == list(range(12))
    both = open_set([str(tmp_path / "a"), str(tmp_path / "b")])
    rows = rng.permutation(23)
    np.testing.assert_array_equal(both.take(rows), images[rows])


def test_unfinished_store_is_not_opened(tmp_path: Path) -> None:
    writer = PatchWriter(tmp_path / "store")
    writer.add(np.zeros((128, 128, 3), np.uint8), label=1, slide="s", x=0, y=0, source="")
    with pytest.raises(TrainingError, match="is missing"):
        open_store(tmp_path / "store")


def test_lost_shard_is_noticed(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", ["a"])
    np.save(store / "shard-00000.npy", np.zeros((3, 128, 128, 3), np.uint8))
    with pytest.raises(TrainingError, match="24 patches are listed and 3 are there"):
        open_store(store)
    (store / "shard-00000.npy").write_bytes(b"nonsense")
    with pytest.raises(TrainingError, match="damaged patch store"):
        open_store(store)


def test_finished_store_is_not_overwritten(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", ["a"])
    with pytest.raises(OutputError, match="finished patch store"):
        PatchWriter(store)


def test_incomplete_rows_are_refused(tmp_path: Path) -> None:
    writer = PatchWriter(tmp_path / "store", side_px=16)
    with pytest.raises(ValueError, match="needs slide"):
        writer.add(np.zeros((16, 16, 3), np.uint8), label=1, x=0, y=0, source="")
    with pytest.raises(ValueError, match="expected uint8"):
        writer.add(np.zeros((16, 15, 3), np.uint8), label=1, slide="", x=0, y=0, source="")


def test_stores_of_different_kinds_do_not_mix(tmp_path: Path) -> None:
    write_store(tmp_path / "a", ["a"])
    with PatchWriter(tmp_path / "b", mpp=0.5) as writer:
        writer.add(np.zeros((128, 128, 3), np.uint8), label=1, slide="b", x=0, y=0, source="")
    with pytest.raises(TrainingError, match="different kinds"):
        open_set([str(tmp_path / "a"), str(tmp_path / "b")])


@given(st.integers(1, 40), st.integers(0, 99))
def test_take_equals_fancy_indexing(tmp_path_factory: pytest.TempPathFactory, count: int, seed: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "take"
    if not folder.exists():
        write_store(folder, ["a"])
    store = open_store(folder)
    rows = np.random.default_rng(seed).integers(0, len(store), count)
    np.testing.assert_array_equal(store.take(rows), store.shards[0][rows])


def test_draws_repeat_rows_and_leave_others_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    times = rng.integers(0, 4, 6)
    with PatchWriter(tmp_path / "hard") as writer:
        for number, count in enumerate(times):
            patch = np.zeros((128, 128, 3), np.uint8)
            writer.add(patch, label=0, x=number, y=0, slide="a", source="test", hard_0=int(count))
    write_store(tmp_path / "positives", ["b"], count=4)
    patches = open_set([str(tmp_path / "hard"), str(tmp_path / "positives")])
    drawn = patches.drawn_rows("hard_0")
    assert np.bincount(drawn, minlength=10).tolist() == [*times.tolist(), 1, 1, 1, 1]
    assert patches.drawn_rows("").tolist() == list(range(10))
    with pytest.raises(TrainingError, match="hard_1"):
        patches.drawn_rows("hard_1")


def test_patches_kept_on_the_device_are_those_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_store(tmp_path / "a", ["a"], count=7)
    write_store(tmp_path / "b", ["b"], count=6, seed=1)
    stored = open_set([str(tmp_path / "a"), str(tmp_path / "b")])
    rows = np.array([0, 3, 4, 6, 8, 11])
    batches = np.random.default_rng(0).choice(rows, (5, 4))
    monkeypatch.setattr(data, "LOADED_AT_ONCE", 4)
    from_disk = list(Feeder(stored, torch.device("cpu"), rows)(np.concatenate(batches), 4))
    monkeypatch.setattr(data, "_fits", lambda *_: True)
    resident = list(Feeder(stored, torch.device("cpu"), rows)(np.concatenate(batches), 4))
    for batch, one, other in zip(batches, from_disk, resident, strict=True):
        assert torch.equal(one, other)
        np.testing.assert_array_equal(one.numpy(), stored.take(batch))


def test_draws_that_are_no_counts_are_refused(tmp_path: Path) -> None:
    write_store(tmp_path / "a", ["a"], count=4, hard_0=0.5)
    with pytest.raises(TrainingError, match="does not hold counts"):
        open_set([str(tmp_path / "a")]).drawn_rows("hard_0")
