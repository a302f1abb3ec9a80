"""`metaphase model package`: a model to give away, and one line where something is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metaphase.networks.cards import bundled_model
from tests.cli.running import run

CARD = """
known_failures = ["Real tissue."]

[[data]]
name = "simulated slides"
terms = "none"
"""


def test_package(tmp_path: Path) -> None:
    (tmp_path / "card.toml").write_text(CARD)
    command = ("model", "package", "simulated", "-o", tmp_path / "given", "--card", tmp_path / "card.toml")
    result = run(*command, "--name", "ours")
    assert result.returncode == 0, result.stderr
    assert "ours: " in result.stdout
    card = json.loads((tmp_path / "given.json").read_text())
    assert card["data"] == [
        {"name": "simulated slides", "terms": "none", "positives": None, "negatives": None}
    ]
    assert card["known_failures"] == ["Real tissue."]
    size = bundled_model("simulated").stat().st_size
    assert (tmp_path / "given.safetensors").stat().st_size == size
    result = run(*command, "--no-half", "--json")
    assert json.loads(result.stdout)["name"] == "given"
    assert (tmp_path / "given.safetensors").stat().st_size > 1.8 * size


def test_info_by_name() -> None:
    result = run("model", "info", "breast", "--json")
    assert json.loads(result.stdout)["name"] == "breast"
    assert "bundled model (breast, simulated)" in run("model", "info", "absent").stderr


@pytest.mark.parametrize(
    ("arguments", "text", "code", "message"),
    [
        (["absent.safetensors"], CARD, 1, "absent.safetensors: no such model. Give a .safetensors file"),
        (["simulated"], "licence = 1", 2, "card.toml: the card has no setting licence. Choose among data"),
        (["simulated"], '[[data]]\nname = "a"', 2, "card.toml: the data source 'a' states no terms. Add"),
    ],
)
def test_wrong_use_is_one_line(
    tmp_path: Path, arguments: list[str], text: str, code: int, message: str
) -> None:
    (tmp_path / "card.toml").write_text(text)
    result = run("model", "package", *arguments, "-o", tmp_path / "out", "--card", tmp_path / "card.toml")
    assert result.returncode == code
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
