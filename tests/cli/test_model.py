"""`metaphase model package`: a model to give away, and one line where something is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metaphase.cli.main import app
from metaphase.networks.cards import bundled_model
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.writer import PyramidFormat, write_pyramid
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
    result = run(*command)
    assert result.returncode == 0, result.stderr
    assert "given: " in result.stdout
    card = json.loads((tmp_path / "given.json").read_text())
    assert card["data"] == [
        {"name": "simulated slides", "terms": "none", "positives": None, "negatives": None}
    ]
    assert card["known_failures"] == ["Real tissue."]
    size = bundled_model("simulated").stat().st_size
    assert (tmp_path / "given.safetensors").stat().st_size == size
    result = run(*command, "--json")
    assert json.loads(result.stdout)["name"] == "given"


def test_info_by_name() -> None:
    result = run("model", "info", "breast", "--json")
    assert json.loads(result.stdout)["name"] == "breast"
    assert "bundled model (breast, breast-atypical, breast-second, " in run("model", "info", "absent").stderr


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


WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder

class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in ("torch", "onnx") else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
from metaphase.cli.main import main

sys.argv[0] = "metaphase"
main()
"""


def run_without_torch(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_export_and_detect_without_torch(tmp_path: Path) -> None:
    """What `metaphase[light]` installs is enough to search a slide with an exported detector."""
    exported = tmp_path / "simulated.onnx"
    result = CliRunner().invoke(app, ["model", "export", "simulated", "-o", str(exported)])
    assert result.exit_code == 0, result.output
    assert "simulated: " in result.stdout
    (case,) = cohort_cases(SimulationConfig(cases=1, centres=1, width=768, height=768, seed=1))
    slide = tmp_path / "he.tif"
    pixels = render_region(case, "he", 0, 0, 768, 768)
    write_pyramid(slide, [pixels], 768, 768, PyramidFormat(mpp=0.25, tile_px=768))
    whole = ["detect", str(slide), "--tissue", "whole", "--any-stain", "--json", "--threshold", "0.2"]
    with_torch = CliRunner().invoke(app, [*whole, "-o", str(tmp_path / "torch"), "--model", "simulated"])
    without = run_without_torch(*whole, "-o", tmp_path / "light", "--model", exported)
    assert without.returncode == 0, without.stderr
    (found,), (expected,) = (json.loads(one.stdout)["slides"] for one in (without, with_torch))
    assert found["arithmetic"] == "float32 (ONNX Runtime)"
    assert found["detections"] == expected["detections"] > 0
    assert found["count"] == pytest.approx(expected["count"], abs=1e-3)
    weights = bundled_model("simulated")
    refused = run_without_torch(*whole, "-o", tmp_path / "light", "--model", weights)
    assert refused.returncode == 1
    assert "simulated.safetensors: needs the package torch. Pip install 'metaphase[torch]'" in refused.stderr
