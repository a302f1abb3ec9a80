"""The loop learns, resumes to the same bits, agrees with itself over processes, and fails with advice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from metaphase.base.errors import TrainingError, UsageError
from metaphase.networks.cards import NetworkSpec
from metaphase.networks.checkpoints import load_model
from metaphase.networks.training import loop
from metaphase.networks.training.loop import train
from metaphase.networks.training.patches import PatchWriter
from metaphase.networks.training.progress import BestF1, Progress, load_state, save_state
from metaphase.networks.training.protocol import TrainingConfig, read_config
from tests.networks.training.stores import write_store

PATIENCE_S = 600.0
EMPTY = {"stage": "training", "schema": [1], "ingredients": {}}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    write_store(folder / "train", ["a", "b"], 32)
    write_store(folder / "validation", ["c"], 16, seed=1)
    return folder


def config(stores: Path, **changes: Any) -> TrainingConfig:
    base = TrainingConfig(
        train=(str(stores / "train"),),
        validation=(str(stores / "validation"),),
        network=NetworkSpec(gamma=1 / 16),
        batch=8,
        epochs=3,
        augment="RCSEHBG",
        seed=5,
    )
    return replace(base, **changes)


@pytest.fixture(scope="module")
def trained(stores: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, to be left as it is."""
    folder = tmp_path_factory.mktemp("trained")
    train(config(stores, epochs=1), folder, device="cpu")
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(folder / "network")[0].state_dict()


def test_it_learns_and_leaves_its_traces(stores: Path, tmp_path: Path) -> None:
    reported: list[tuple[str, float, float]] = []
    chosen = config(stores, epochs=5, augment="", network=NetworkSpec(gamma=1 / 8, normalisation="batch"))
    result = train(chosen, tmp_path, device="cpu", report=lambda *told: reported.append(told))
    assert result.best == 1.0
    card = load_model(result.model)[1]
    assert (card.mpp, card.classes, card.seed) == (0.25, ("other", "mitosis"), 5)
    assert card.metrics["validation"]["f1"] == 1.0
    assert card.recipe["epochs"] == 5
    assert card.thresholds["patches"].cases == ("c",)
    history = pd.read_csv(tmp_path / "history.csv")
    assert list(history["epoch"]) == [1, 2, 3, 4, 5]
    assert history["loss"].iloc[-1] < history["loss"].iloc[0]
    assert (tmp_path / "curves.png").stat().st_size > 5000
    assert {1, 2, 3, 4, 5} <= {done for _, done, _ in reported}  # a slow machine tells more often
    assert all("patches/s" in what and total == 5 for what, _, total in reported)


def test_learning_rate_falls_as_in_the_paper() -> None:
    paper = TrainingConfig(train=("a",), validation=("b",))
    rates = [paper.learning_rate_at(epoch) for epoch in range(20)]
    assert rates[0] == pytest.approx(1e-3)
    assert rates[-1] == pytest.approx(3e-5)
    ratios = [late / early for early, late in pairwise(rates)]
    assert max(ratios) == pytest.approx(min(ratios))
    assert (paper.batch, paper.l2, paper.epochs, paper.augment) == (64, 1e-5, 20, "RCSEHBG")


RUN = """
import itertools, os, signal, sys
from metaphase.networks.training import loop
from metaphase.networks.training.protocol import read_config
loop.CHECK_EVERY_S = 0.0
steps = itertools.count(1)
def show(what, done, total):
    print("epochs", done, flush=True)
    if next(steps) == int(os.environ.get("KILLED_AFTER", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
loop.train(read_config(sys.argv[1]), sys.argv[2], device="cpu", report=show)
"""


def write_toml(stores: Path, path: Path, **changes: object) -> Path:
    values: dict[str, object] = {
        "train": [str(stores / "train")],
        "validation": [str(stores / "validation")],
        "batch": 8,
        "epochs": 3,
        "seed": 5,
        "checkpoint_minutes": 1e-9,
        **changes,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path.write_text("\n".join([*lines, "[network]", "gamma = 0.0625"]))
    return path


def start(toml: Path, folder: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, str(toml), str(folder)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


def same(one: Path, other: Path) -> bool:
    """Whether two runs ended with the same weights and history, to the last bit."""
    first, second = weights(one), weights(other)
    columns = ["epoch", "loss", "f1", "threshold"]
    histories = [pd.read_csv(folder / "history.csv")[columns] for folder in (one, other)]
    return histories[0].equals(histories[1]) and all(torch.equal(first[key], second[key]) for key in first)


def test_stopped_and_resumed_equals_uninterrupted(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECK_EVERY_S", 0.0)
    chosen = config(stores, epochs=2, checkpoint_minutes=1e-9, stain_mix=0.5)
    seen: list[float] = []

    def stop(_what: str, done: float, _total: float) -> None:
        seen.append(done)
        if len(seen) == 6:  # in the second epoch: 4 steps each
            raise KeyboardInterrupt

    train(chosen, tmp_path / "whole", device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train(chosen, tmp_path / "stopped", device="cpu", report=stop)
    train(chosen, tmp_path / "stopped", device="cpu", report=stop)
    assert seen[6] > seen[4], "it went on, it did not start again"
    assert same(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(stores: Path, tmp_path: Path) -> None:
    toml = write_toml(stores, tmp_path / "run.toml", stain_mix=0.5)
    whole = start(toml, tmp_path / "whole")
    assert whole.wait(PATIENCE_S) == 0, whole.stderr.read() if whole.stderr else ""
    broken = start(toml, tmp_path / "broken", KILLED_AFTER="6")  # in the second epoch: 4 steps each
    for process in (whole, broken):
        process.communicate(timeout=PATIENCE_S)
    assert broken.returncode == -signal.SIGKILL
    assert len(pd.read_csv(tmp_path / "broken" / "history.csv")) < 3
    resumed = start(toml, tmp_path / "broken")
    output, errors = resumed.communicate(timeout=PATIENCE_S)
    assert resumed.returncode == 0, errors
    assert "epochs 0.25" not in output  # it went on, it did not start again
    assert same(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.slow
def test_two_processes_equal_one(stores: Path, tmp_path: Path) -> None:
    toml = write_toml(stores, tmp_path / "run.toml", augment="", epochs=2)
    code = (
        "import torch; torch.nn.Dropout.forward = lambda self, x: x\n" + RUN
    )  # masks differ between processes
    launch = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20_000 + os.getpid() % 20_000)}
    processes = []
    for name, size in (("one", 1), ("two", 2)):
        for rank in range(size):
            variables = {**os.environ, **launch, "OMP_NUM_THREADS": "1"}
            variables |= {"WORLD_SIZE": str(size), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, "-c", code, str(toml), str(tmp_path / name)]
            processes.append(
                subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            )
    for process in processes:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors.decode()
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in one:
        assert torch.allclose(one[name], two[name], atol=2e-4), name
    histories = [pd.read_csv(tmp_path / name / "history.csv") for name in ("one", "two")]
    assert histories[0]["f1"].tolist() == histories[1]["f1"].tolist()


def test_folder_of_another_run_is_refused(stores: Path, trained: Path) -> None:
    with pytest.raises(TrainingError, match=r"holds another run: config\.batch was 8 and is \d+"):
        train(config(stores, epochs=1, batch=4), trained, device="cpu")


def test_finished_run_is_left_alone(stores: Path, trained: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.iterdir()}
    again = train(config(stores, epochs=1), trained, device="cpu")
    assert again.best == load_model(again.model)[1].metrics["validation"]["f1"]
    assert before == {path: path.stat().st_mtime_ns for path in trained.iterdir()}


def test_slow_steps_are_told_and_saved(stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fifty steps take minutes, nobody waits for fifty steps."""
    monkeypatch.setattr(loop, "CHECK_EVERY_S", 0.0)
    saved = tmp_path / loop.STATE_FILE
    heard: list[tuple[float, bool]] = []

    def hear(_what: str, done: float, _total: float) -> None:
        heard.append((done, saved.exists()))

    train(config(stores, epochs=1, checkpoint_minutes=1e-9), tmp_path, device="cpu", report=hear)
    assert heard[:-1] == [(0.25, False), (0.5, True), (0.75, True), (1.0, True)]


def test_exploding_loss_keeps_the_last_good_state(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_what: str, done: float, _total: float) -> None:
        if done > 1:
            raise KeyboardInterrupt

    chosen = config(stores, checkpoint_minutes=1e-9)
    with pytest.raises(KeyboardInterrupt):
        train(chosen, tmp_path, device="cpu", report=stop)
    good = (tmp_path / "last.safetensors").read_bytes()
    monkeypatch.setattr(TrainingConfig, "learning_rate_at", lambda *_: 1e38)
    with pytest.raises(TrainingError, match="became NaN in epoch 2"):
        train(chosen, tmp_path, device="cpu")
    assert (tmp_path / "last.safetensors").read_bytes() == good


@pytest.mark.slow
def test_mixing_is_part_of_what_is_drawn(stores: Path, trained: Path, tmp_path: Path) -> None:
    for name in ("first", "again"):
        train(config(stores, epochs=1, stain_mix=0.8), tmp_path / name, device="cpu")
    first, again, without = map(weights, (tmp_path / "first", tmp_path / "again", trained))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], without[key]) for key in first)


def test_the_best_epoch_is_kept(stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([0.5, 0.9, 0.3])
    monkeypatch.setattr(loop, "best_f1", lambda *_: BestF1(next(answers), 0.5, 0.5, 0.5))
    result = train(config(stores), tmp_path, device="cpu")
    assert result.best == load_model(result.model)[1].metrics["validation"]["f1"] == 0.9


def test_out_of_memory_names_a_batch_to_try(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop._Run, "_step", full)
    with pytest.raises(TrainingError, match="Try batch = 4"):
        train(config(stores), tmp_path, device="cpu")


def test_soft_targets_and_their_absence(stores: Path, tmp_path: Path) -> None:
    write_store(tmp_path / "soft", ["a"], 16, teacher=np.float32(0.3))
    soft = config(stores, train=(str(tmp_path / "soft"),), target="teacher", epochs=1)
    assert train(soft, tmp_path / "run", device="cpu").model.exists()
    with pytest.raises(TrainingError, match="no complete column 'teacher'"):
        train(config(stores, target="teacher"), tmp_path / "other", device="cpu")


def test_slide_in_two_splits(stores: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="slide a is in train and in validation"):
        train(config(stores, validation=(str(stores / "train"),)), tmp_path, device="cpu")


def test_validation_of_one_class_or_another_kind(stores: Path, tmp_path: Path) -> None:
    with PatchWriter(tmp_path / "one") as writer:
        writer.add(np.zeros((128, 128, 3), np.uint8), label=1, slide="x", x=0, y=0, source="")
    with pytest.raises(TrainingError, match="all of one class"):
        train(config(stores, validation=(str(tmp_path / "one"),)), tmp_path / "a", device="cpu")
    with PatchWriter(tmp_path / "other", mpp=0.5) as writer:
        writer.add(np.zeros((128, 128, 3), np.uint8), label=1, slide="x", x=0, y=0, source="")
    with pytest.raises(TrainingError, match="stores of one kind"):
        train(config(stores, validation=(str(tmp_path / "other"),)), tmp_path / "b", device="cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "not valid TOML"),
        ('train = ["a"]', "validation"),
        ('train = ["a"]\nvalidation = ["b"]\ncolour = 1', "run.toml: the file has no setting colour"),
        ('train = ["a"]\nvalidation = ["b"]\nbatch = 0', "batch is 0. Give a number above 0"),
        ('train = ["a"]\nvalidation = ["b"]\naugment = "RXQ"', "unknown letters"),
        ('train = []\nvalidation = ["b"]', r"train is \[\]. Name at least one"),
        ('train = "a"\nvalidation = ["b"]', "train is 'a'. Give a list"),
        ('train = ["a"]\nvalidation = ["b"]\nname = "last"', "name cannot be 'last'"),
        ('train = ["a"]\nvalidation = ["b"]\nprecision = "bf16"', "precision is 'bf16'. Give 'auto'"),
        ('train = ["a"]\nvalidation = ["b"]\nsamples_per_epoch = 3', "less than a batch"),
        ('train = ["a"]\nvalidation = ["b"]\n[network]\nwidth = 3', r"\[network\] has no setting width"),
    ],
)
def test_wrong_configurations(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_config(path)


def test_unknown_device(stores: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="device"):
        train(config(stores), tmp_path, device="quantum")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no device cuda"):
            train(config(stores), tmp_path, device="cuda")


def test_resumed_moments_lie_in_memory_as_their_weights(tmp_path: Path) -> None:
    def fresh() -> tuple[nn.Conv2d, torch.optim.Adam]:
        conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return conv, torch.optim.Adam(conv.parameters())

    conv, optimizer = fresh()
    conv(torch.rand(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    save_state(tmp_path / "last", conv, optimizer, torch.zeros(()), Progress(EMPTY))
    again, resumed = fresh()
    load_state(tmp_path / "last", again, resumed, torch.zeros(()), EMPTY)
    for weight, other in zip(conv.parameters(), again.parameters(), strict=True):
        for key, value in resumed.state[other].items():
            assert value.stride() == optimizer.state[weight][key].stride()
            torch.testing.assert_close(value, optimizer.state[weight][key])
    assert resumed.state[again.weight]["exp_avg"].stride() == again.weight.stride() != (27, 9, 3, 1)


def test_training_starts_from_the_weights_of_a_model(stores: Path, trained: Path, tmp_path: Path) -> None:
    start = str(trained / "network.safetensors")
    still = {"learning_rate": 1e-12, "final_learning_rate": 1e-12}
    train(config(stores, epochs=1, start=start, seed=9, **still), tmp_path / "second")
    before, after = weights(trained), weights(tmp_path / "second")
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    with pytest.raises(TrainingError, match=r"gamma 0.0625.*gamma 0.125"):
        train(config(stores, network=NetworkSpec(gamma=1 / 8), start=start), tmp_path / "third")
    with pytest.raises(TrainingError, match="start"):
        train(config(stores, epochs=1), tmp_path / "second")
