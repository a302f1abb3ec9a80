"""Models survive the disk; malformed and hostile files do not survive the reader."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.errors import ModelError
from metaphase.detections.points import OperatingPoint
from metaphase.networks.architectures import build_network
from metaphase.networks.cards import ModelCard, NetworkSpec, stored_network
from metaphase.networks.checkpoints import load_model, save_model

SPEC = NetworkSpec(gamma=0.05)
TUNED = OperatingPoint(name="mitoses", delta=0.9, metric="F1", value=0.7, cases=("a", "b"))


def card(**changes: object) -> ModelCard:
    values: dict[str, object] = {
        "name": "m",
        "family": "detector",
        "gamma": 0.05,
        "mpp": 0.25,
        "patch_px": 100,
    }
    return ModelCard(**{**values, "patch_px": 100, "classes": ("other", "mitosis"), **changes})  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_model(tmp_path / "model", build_network(SPEC), card(seed=1))
    return tmp_path / "model.safetensors"


def test_round_trip(tmp_path: Path) -> None:
    network = build_network(SPEC).eval()
    save_model(tmp_path / "model.safetensors", network, card(thresholds={"mitoses": TUNED}, seed=3))
    for name in ("model.safetensors", "model.json"):
        again, read = load_model(tmp_path / name)
        assert (read.thresholds, read.seed, read.spec) == ({"mitoses": TUNED}, 3, SPEC)
        image = torch.rand(1, 3, 104, 100)
        assert torch.equal(again(image), network(image))


def test_weights_of_another_model_are_noticed(model: Path) -> None:
    save_model(model.with_name("other"), build_network(SPEC), card())
    model.with_name("other.safetensors").replace(model)
    with pytest.raises(ModelError, match="checksum differs"):
        load_model(model)


@pytest.mark.parametrize("stated", ["", "0" * 64])
def test_a_card_that_does_not_vouch_for_its_weights_is_not_trusted(model: Path, stated: str) -> None:
    vouch_for(model, stated)
    for read in (load_model, stored_network):
        with pytest.raises(ModelError, match="the weights are not what the card describes"):
            read(model)


@pytest.mark.parametrize(
    "metrics",
    [
        {"learnt from": [1, 2]}, {"learnt from": {"mitoses": "many", "patients": 1}}, {"not labelled": 3},
        {"not labelled": [1, {}]}, {"validation": [0.5]}, {"validation": {"f1": "good"}}, {"chosen": {}},
    ],
)  # fmt: skip
def test_metrics_that_are_read_again_have_their_shape(model: Path, metrics: dict[str, object]) -> None:
    values = json.loads(model.with_suffix(".json").read_text())
    model.with_suffix(".json").write_text(json.dumps({**values, "metrics": metrics}))
    with pytest.raises(ModelError, match=rf"not a model card .*metrics.{next(iter(metrics))}"):
        load_model(model)
    with_others = {
        **values,
        "metrics": {"validation": {"f1": 0.5, "loss": None}, "whatever": [1, {"a": "b"}]},
    }
    model.with_suffix(".json").write_text(json.dumps(with_others))
    assert load_model(model)[1].known_metrics.validation["f1"] == 0.5


def vouch_for(model: Path, stated: str | None = None) -> None:
    """Let the card state a checksum, by default the right one."""
    values = json.loads(model.with_suffix(".json").read_text())
    right = hashlib.sha256(model.read_bytes()).hexdigest()
    values["weights_sha256"] = right if stated is None else stated
    model.with_suffix(".json").write_text(json.dumps(values))


def test_card_of_another_shape_is_noticed(model: Path) -> None:
    values = json.loads(model.with_suffix(".json").read_text())
    model.with_suffix(".json").write_text(json.dumps({**values, "gamma": 0.2}))
    with pytest.raises(ModelError, match=r"do not fit the detector with gamma 0\.2"):
        load_model(model)


def test_missing_card(model: Path) -> None:
    model.with_suffix(".json").unlink()
    with pytest.raises(ModelError, match=r"Keep the \.json"):
        load_model(model)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"name": 1}', "[" * 100_000, '{"name": "x", "run": "import os"}', "\0\1"]
)
def test_malformed_cards(model: Path, text: str) -> None:
    model.with_suffix(".json").write_text(text)
    with pytest.raises(ModelError, match=r"model\.json"):
        load_model(model)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("exploded",)


def test_pickles_are_not_executed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for data in (pickle.dumps(Bomb()), _torch_bomb(tmp_path)):
        model.write_bytes(data)
        vouch_for(model)
        with pytest.raises(ModelError, match="not a safetensors file"):
            load_model(model)
    assert not (tmp_path / "exploded").exists()


def _torch_bomb(folder: Path) -> bytes:
    torch.save({"weights": Bomb()}, folder / "bomb.pt")
    return (folder / "bomb.pt").read_bytes()


@given(position=st.integers(0, 3000), value=st.integers(0, 255), kept=st.floats(0, 1))
def test_damaged_weights_never_crash(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int, kept: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    if not path.with_suffix(".json").exists():
        save_model(path, build_network(SPEC), card())
        path.with_suffix(".good").write_bytes(path.read_bytes())
    data = bytearray(path.with_suffix(".good").read_bytes())
    data[position] = value
    path.write_bytes(data[: int(kept * len(data)) + 1])
    vouch_for(path)
    try:
        network, _ = load_model(path)
    except ModelError as error:
        assert "damaged.safetensors" in str(error)  # noqa: PT017 -- both outcomes are fine, this one must be clear
    else:
        assert network(torch.zeros(1, 3, 100, 100)).shape == (1, 2, 1, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"optical_density": [0.2, 0.3, 0.0]}, {"optical_density": [0.2, 0.3, -1.0]},
        {"thresholds": {"mitoses": {"delta": -5}}},
        {"thresholds": {"mitoses": {"delta": 0.9, "smooth_um": -1}}},
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    save_model(tmp_path / "m.safetensors", build_network(SPEC), card())
    path = tmp_path / "m.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match="not a model card"):
        load_model(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, value: float) -> None:
    network = build_network(SPEC)
    with torch.no_grad():
        next(network.parameters()).view(-1)[0] = value
    save_model(tmp_path / "m.safetensors", network, card())
    with pytest.raises(ModelError, match="weights are not finite"):
        load_model(tmp_path / "m.safetensors")


@pytest.mark.slow
def test_a_model_is_read_without_the_compiler_of_torch(model: Path) -> None:
    """Which takes seconds to load, and is needed for nothing here."""
    code = "import sys; from metaphase.networks.checkpoints import load_model; load_model(sys.argv[1])"
    code += "; print('torch._dynamo' in sys.modules)"
    described = subprocess.run(
        [sys.executable, "-c", code, model], capture_output=True, text=True, check=True
    )
    assert described.stdout.strip() == "False"
