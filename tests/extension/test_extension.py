"""Another package adds a backend, a format and a network, and ours finds them without being touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import metaphase as mp
from metaphase.base import foreign
from metaphase.base.errors import ModelError
from metaphase.base.tables import TableError
from metaphase.cli.main import app
from metaphase.detections.files import format_of, known_formats, read_detections, write_detections
from metaphase.detections.table import detection_set
from metaphase.networks.cards import ModelCard, NetworkSpec
from metaphase.networks.checkpoints import save_model
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.settings import EngineConfig
from tests.analysis.conftest import he_slide
from tests.cli.running import run
from tests.extension import example_package

__all__ = ["he_slide"]
ENTRY_POINTS = """
[metaphase.slides]
npy = example_package:NPY
[metaphase.formats]
lines = example_package:LINES
imagescope = example_package:IMAGESCOPE
broken = example_package:absent
[metaphase.networks]
pooling = example_package:build
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages, as pip leaves it."""
    folder = tmp_path / "site"
    described = folder / "example_package-1.0.dist-info"
    described.mkdir(parents=True)
    shutil.copy(str(example_package.__file__), folder)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: example-package\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def network() -> nn.Module:
    torch.manual_seed(3)
    built = example_package.build(NetworkSpec())
    with torch.no_grad():
        built[-1].weight.mul_(30)  # type: ignore[index, union-attr, operator]
    return built


@pytest.mark.slow
def test_another_packages_slide_format_and_network(site: Path, tmp_path: Path, he_slide: Path) -> None:
    with mp.open_slide(he_slide) as slide:
        np.save(tmp_path / "slide.npy", slide.read(0, 0, 400, 400))
    card = ModelCard(
        name="theirs", family="detector", gamma=1.0, mpp=0.25, patch_px=100, classes=("other", "mitosis")
    )
    save_model(tmp_path / "theirs", network(), card)
    written = (tmp_path / "theirs.json").read_text().replace('"detector"', '"pooling"')
    (tmp_path / "theirs.json").write_text(written)
    files = (tmp_path / "slide.npy", "-o", tmp_path / "out", "--model", tmp_path / "theirs")
    settings = ("--tissue", "whole", "--device", "cpu", "--threshold", "0.5", "--json")
    command = ("detect", *files, "--format", "lines", *settings)
    refused = run(*command)
    assert refused.returncode == 2
    assert "no format 'lines'" in refused.stderr
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    done = run(*command, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    (described,) = json.loads(done.stdout)["slides"]
    lines = (tmp_path / "out" / "slide" / "detections.jsonl").read_text().splitlines()
    assert len(lines) == described["detections"] > 0
    assert "detections.geojson" in described["files"]


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(site))
    foreign.plugins.cache_clear()
    foreign.plugin_names.cache_clear()
    yield site
    foreign.plugins.cache_clear()
    foreign.plugin_names.cache_clear()


def test_a_second_format_of_one_ending(installed: Path, tmp_path: Path) -> None:
    """Files are known by what they hold; what is written without a word stays of the format that it was."""
    points = pd.DataFrame({"slide": "s", "x": [3.0], "y": [4.0]})
    found = detection_set(points, ("s",), "")
    for name, file in (
        ("asap", "s.xml"),
        ("imagescope", "t.xml"),
        (None, "u.xml"),
        (None, "v.imagescope.xml"),
    ):
        write_detections(found, tmp_path / file, name)
    formats = [format_of(tmp_path / f"{file}.xml").name for file in ("s", "t", "u", "v.imagescope")]
    assert formats == ["asap", "imagescope", "asap", "imagescope"]
    assert read_detections(tmp_path / "t.xml").table[["x", "y"]].to_numpy().tolist() == [[3, 4]]
    (tmp_path / "other.xml").write_text("<plist/>")
    with pytest.raises(TableError, match=r"has no known format. Choose one of .*ASAP XML.*ImageScope XML"):
        format_of(tmp_path / "other.xml")
    assert known_formats()["imagescope"].ending == ".imagescope.xml", "beside ASAP's in a folder of results"
    shown = CliRunner().invoke(app, ["convert", "--help"]).stdout
    assert "ImageScope XML" in " ".join(shown.replace("│", " ").split()), "wherever the box wraps its lines"


def test_one_that_cannot_be_loaded_is_left_out(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = installed
    assert set(foreign.plugins("metaphase.formats")) == {"lines", "imagescope"}
    (site / "slide.jsonl").write_text('{"x": 3, "y": 4, "probability": 0.5}\n')
    assert read_detections(site / "slide.jsonl").table["y"].tolist() == [4]
    assert "broken of example_package:absent cannot be used" in caplog.text


def test_a_plain_network_searches_slides(he_slide: Path, tmp_path: Path) -> None:
    ready = mp.use_network(network(), "mine", device="cpu")
    config = mp.DetectionConfig(threshold=0.5)
    result = mp.detect(he_slide, tmp_path, model=ready, tissue="whole", config=config)
    assert result.points["model"] == "mine"
    assert len(result.table)
    x, y, probability = result.candidates.sort_values("probability")[["x", "y", "probability"]].iloc[-1]
    with mp.open_slide(he_slide) as slide:
        tile = slide.read(round(x / 4) * 4 - 50, round(y / 4) * 4 - 50, 101, 101)
    with torch.inference_mode():
        own = network().eval()(torch.from_numpy(tile).permute(2, 0, 1)[None].float() / 255)
    assert float(own.softmax(1)[0, 1].max()) == pytest.approx(probability, abs=0.1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (nn.Sequential(nn.Conv2d(3, 2, 97, 8)), r"answers \(2, 2\) on 109 px"),
        (nn.Sequential(nn.Conv2d(3, 2, 97, 4), nn.InstanceNorm2d(2)), "depends on what lies around|fails"),
        (nn.Sequential(nn.Linear(7, 2)), "fails on 109 px"),
        (nn.Sequential(nn.Conv2d(3, 2, 5, 4, padding=2)), r"and not \(4, 4\) and \(1, 1\)"),
    ],
    ids=["stride", "context", "shape", "padding"],
)
def test_another_geometry_is_refused(changed: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Engine([changed.eval()], EngineConfig(device="cpu"))  # type: ignore[list-item]
