"""Commands that work together, as a user would chain them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.cli.running import run
from tests.networks.training.stores import write_store


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cohort")
    size = ["--width", "640", "--height", "512"]
    result = run(
        "simulate", "-o", folder / "a", "--cases", "2", "--centres", "2", *size, "--seed", "3", "--json"
    )
    assert result.returncode == 0, result.stderr
    assert [row["case"] for row in json.loads(result.stdout)] == ["case000", "case001"]
    return folder / "a"


def digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
def test_simulation_is_reproducible_and_its_slides_are_slides(cohort: Path, tmp_path: Path) -> None:
    settings = tmp_path / "cohort.toml"
    settings.write_text("cases = 2\ncentres = 2\nwidth = 640\nheight = 512\nseed = 9\n")
    assert run("simulate", "-o", tmp_path / "b", "--config", settings, "--seed", "3").returncode == 0
    assert digest(cohort) == digest(tmp_path / "b")
    for stain, slide in (("H&E", "he.tif"), ("DAB", "phh3.tif")):
        facts = json.loads(run("info", cohort / "case000" / slide, "--json").stdout)
        assert (facts["mpp"], facts["width"], facts["stain"]["name"]) == (0.25, 640, stain)


def test_impossible_simulations(tmp_path: Path) -> None:
    for wrong in (["--width", "3"], ["--cases", "0"], ["--centres", "99"], ["--config", "absent.toml"]):
        result = run("simulate", "-o", tmp_path / "out", *wrong)
        assert (result.returncode, "Traceback" in result.stderr) == (2, False), wrong
    (tmp_path / "file").write_text("in the way")
    assert run("simulate", "-o", tmp_path / "file" / "out", "--cases", "1", "--centres", "1").returncode == 1


def test_stain_commands(cohort: Path, tmp_path: Path) -> None:
    slide = cohort / "case000" / "he.tif"
    result = run("stain", "deconvolve", slide, "-o", tmp_path)
    pictures = [Path(line) for line in result.stdout.split()]
    assert len(pictures) == 3
    for path in pictures:
        with Image.open(path) as picture:
            assert picture.size == (640, 512)
    saved = run("stain", "standardise", slide, "-o", tmp_path / "transform.json")
    assert saved.returncode == 0, saved.stderr
    again = ["--transform", tmp_path / "transform.json", "-o", tmp_path / "standard.tif"]
    assert run("stain", "standardise", slide, *again).returncode == 0
    assert json.loads(run("info", tmp_path / "standard.tif", "--json").stdout)["width"] == 640


def test_train_then_look_at_the_model(tmp_path: Path) -> None:
    write_store(tmp_path / "train", ["a", "b"], 16)
    write_store(tmp_path / "validation", ["c"], 8)
    toml = (
        'train = ["train"]\nvalidation = ["validation"]\nbatch = 8\nepochs = 1\n[network]\ngamma = 0.0625\n'
    )
    (tmp_path / "run.toml").write_text(toml)
    result = run("train", tmp_path / "run.toml", "-o", tmp_path / "out", "--device", "cpu", "--json")
    assert result.returncode == 0, result.stderr
    model = json.loads(result.stdout)["model"]
    assert "detector, gamma 0.0625" in run("model", "info", model).stdout
    assert json.loads(run("model", "info", model, "--json").stdout)["classes"] == ["other", "mitosis"]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Four slides with truth, detections, grades and counts that are nearly right."""
    rng = np.random.default_rng(0)
    cases = [f"s{i}" for i in range(4)]
    points = pd.DataFrame(
        {"slide": np.repeat(cases, 10), "x": rng.uniform(0, 4000, 40), "y": rng.uniform(0, 4000, 40)}
    )
    points["label"] = "mitosis"
    points.to_csv(tmp_path / "truth.csv", index=False)
    found = points.iloc[::2].assign(probability=0.9)[["slide", "x", "y", "probability"]]
    found.to_csv(tmp_path / "found.csv", index=False)
    manifest = pd.DataFrame(
        {"case": cases, "he": "", "phh3": "", "laboratory": ["a", "a", "b", "b"], "split": "validation"}
    )
    manifest["grade"], manifest["proliferation"] = [1, 2, 3, 3], [0.1, 0.5, 0.9, 0.7]
    manifest["mpp"], manifest["width"], manifest["height"] = 0.25, 4000, 4000
    manifest.to_csv(tmp_path / "manifest.csv", index=False)
    pd.DataFrame({"case": cases, "grade": [1, 2, 3, 2], "count": [2, 9, 30, 22]}).to_csv(
        tmp_path / "counts.csv", index=False
    )
    return tmp_path


def test_evaluation_commands(tables: Path) -> None:
    common = ["--truth", tables / "truth.csv", "--predictions", tables / "found.csv"]
    where = ["--manifest", tables / "manifest.csv"]
    result = run("evaluate", "mitoses", *common, *where, "--by", "laboratory", "-o", tables / "out", "--json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [row["group"] for row in rows] == ["all", "a", "b"]
    assert (tables / "out" / "index.html").exists()
    for_people = run("evaluate", "mitoses", *common, *where, "--set", "samples=0", COLUMNS="80").stdout
    assert {"F1", "0.667"} <= set(for_people.upper().split())
    card = tables / "card.json"
    tuned = run("evaluate", "tune", "mitoses", *common, *where, "--card", card, "--json")
    assert json.loads(tuned.stdout)["delta"] == pytest.approx(0.9)
    scores = ["--truth", tables / "manifest.csv", "--predictions", tables / "counts.csv"]
    for task in ("grade", "proliferation"):
        shown = run("evaluate", task, *scores, "--json")
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout)[0]["value"] > 0.5


def test_evaluation_refuses_missing_slides(tables: Path) -> None:
    found = pd.read_csv(tables / "found.csv")
    found[found["slide"] != "s3"].to_csv(tables / "less.csv", index=False)
    where = ["--truth", tables / "truth.csv", "--manifest", tables / "manifest.csv"]
    result = run("evaluate", "mitoses", "--predictions", tables / "less.csv", *where)
    assert result.returncode == 1
    assert "s3" in result.stderr
    assert "Traceback" not in result.stderr


def test_data_sets_are_listed_and_unknown_ones_refused(tmp_path: Path) -> None:
    assert "midog" in run("data", "list").stdout
    result = run("data", "import", "imagenet", tmp_path, "-o", tmp_path / "out")
    assert (result.returncode, "Traceback" in result.stderr) == (2, False)


def test_real_data_set(real_data: Path, tmp_path: Path) -> None:
    result = run(
        "data", "import", "midesec", real_data / "midesec", "-o", tmp_path, "--mpp", "0.25", "--json"
    )
    assert json.loads(result.stdout)["labels"] == {"mitosis": 109}
