"""What containers are made of: the entry point for Grand Challenge by its interface, and the locks."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest

import metaphase
from metaphase.base.settings import fields_of_view
from metaphase.networks.cards import parse_card
from metaphase.networks.engine.onnx import load_onnx
from tests.analysis.conftest import he_slide, model

__all__ = ["he_slide", "model"]
ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SOCKET = {
    "file": None,
    "image": {"name": "case.tif"},
    "value": None,
    "interface": {
        "slug": "histopathology-region-of-interest-cropout",
        "kind": "Image",
        "super_kind": "Image",
        "relative_path": "images/histopathology-roi-cropout",
        "example_value": None,
    },
}


def entered(*folders: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEPLOY / "grand_challenge.py"), *map(str, folders)]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture
def given(tmp_path: Path, he_slide: Path) -> Path:
    """The input as the platform mounts it."""
    folder = tmp_path / "input"
    images = folder / "images" / "histopathology-roi-cropout"
    images.mkdir(parents=True)
    (images / "0f3a6a4e-1f4d-4f0e-9d40-3f1b0c2a1e11.tif").write_bytes(he_slide.read_bytes())
    (folder / "inputs.json").write_text(json.dumps([SOCKET]))
    for position in (images, folder):
        position.chmod(0o555)
    return folder


@pytest.mark.slow
def test_grand_challenge(tmp_path: Path, given: Path, model: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    done = entered(given, output, METAPHASE_MODEL=str(model))
    assert done.returncode == 0, done.stderr
    described = json.loads((output / "mitotic-figures.json").read_text())
    assert (described["type"], described["version"]) == ("Multiple points", {"major": 1, "minor": 0})
    (folder,) = (output / "metaphase").glob("*/summary.json")
    candidates = pd.read_parquet(folder.with_name("candidates.parquet"))
    assert len(described["points"]) == len(candidates) > 0
    for point, row in zip(described["points"], candidates.itertuples(), strict=True):
        x_mm, y_mm, z_mm = point["point"]
        assert (x_mm, y_mm, z_mm) == pytest.approx(
            ((row.x - 0.5) * 0.25e-3, (row.y - 0.5) * 0.25e-3, 0), abs=1e-9
        )
        assert point["probability"] == pytest.approx(row.probability)
    named = [one["name"] for one in described["points"]]
    assert named.count("mitotic figure") == json.loads(folder.read_text())["detections"]
    assert set(named) <= {"mitotic figure", "non-mitotic figure"}


def test_grand_challenge_without_its_inputs(
    tmp_path: Path, given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(DEPLOY / "grand_challenge.py"))["main"]
    assert main(tmp_path, tmp_path) == 1
    assert "inputs.json: does not describe the inputs" in capsys.readouterr().err
    images = given / "images" / "histopathology-roi-cropout"
    images.chmod(0o755)
    (images / "0f3a6a4e-1f4d-4f0e-9d40-3f1b0c2a1e11.tif").rename(images / "case.mha")
    assert main(given, tmp_path) == 1
    assert "one image is needed, and there is case.mha" in capsys.readouterr().err


@pytest.mark.parametrize(("lock", "runtime"), [("cpu", "light"), ("gpu", "torch")])
def test_locks_hold_all_that_is_needed(lock: str, runtime: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    parts = ("cluster", "remote", "dicom", "czi", "zarr", runtime)
    wanted = [*project["dependencies"], *(one for part in parts for one in extras[part])]
    locked = re.split(r"\n(?=\S)", (DEPLOY / f"{lock}.lock").read_text().strip())
    named = {one.partition("==")[0].lower().replace("_", "-") for one in locked}
    assert all(re.fullmatch(r"(?s)[\w.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", one) for one in locked)
    missing = {re.split(r"[><=]", one)[0].lower().replace("_", "-") for one in wanted} - named
    assert missing == set(), "run make locks"


CONDA = {"opencv-python-headless": "py-opencv", "matplotlib": "matplotlib-base"}
"""What packages are called there; OpenSlide itself comes with `openslide-python`."""


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["light"]]
    named = dict(re.split("(?=>=)", one, maxsplit=1) for one in wanted if "openslide-bin" not in one)
    recipe = (DEPLOY / "meta.yaml").read_text()
    stated = dict(re.findall(r"^    - ([\w-]+) (>=\S+)$", recipe, re.MULTILINE))
    assert stated.pop("python") == project["requires-python"]
    assert stated == {CONDA.get(name, name): least for name, least in named.items()}
    assert f"license: {project['license']}\n" in recipe


def test_the_wheel_holds_all_that_a_newcomer_needs() -> None:
    """Graphs of the very weights, their cards, and the fields with their licence."""
    models = Path(metaphase.__file__).parent / "models"
    for name in ("breast", "breast-second"):
        weights, graph = (parse_card(models / folder / f"{name}.json") for folder in (".", "onnx"))
        eight_bits = graph.eight_bits and graph.eight_bits.model_copy(update={"graph_sha256": ""})
        assert graph.model_copy(update={"graph_sha256": "", "eight_bits": eight_bits}) == weights, (
            "make graphs"
        )
        load_onnx(models / "onnx" / f"{name}.onnx")
    (folder,) = {path.parent for path in fields_of_view().values()}
    assert "CC BY 4.0" in (folder / "LICENSE.txt").read_text()
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    assert f"src/metaphase/{folder.name}/LICENSE.txt" in listed


def test_no_direct_dependency_is_newer_than_what_was_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(one for some in project["optional-dependencies"].values() for one in some),
    ]
    names = {re.split(r"[^\w.-]", one)[0].lower() for one in wanted} - {"metaphase"}
    bounds = re.findall(r"^([\w.-]+)(?:<=|==)[\w.]+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {one.lower() for one in bounds} >= names


def test_a_bad_slide_is_no_failed_job_of_a_workflow(tmp_path: Path, he_slide: Path, model: Path) -> None:
    """Both jobs are done though one has a slide that is none."""
    snakemake = shutil.which("snakemake") or pytest.skip("snakemake is not installed")
    (tmp_path / "bad.tif").write_bytes(he_slide.read_bytes()[:5000])
    rows = [f"{case},{path},,,," for case, path in (("bad", tmp_path / "bad.tif"), ("good", he_slide))]
    (tmp_path / "cohort.csv").write_text("\n".join(["case,he,phh3,laboratory,split,patient", *rows]))
    (tmp_path / "metaphase").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m metaphase "$@" --model {model} --device cpu --threshold 0.9\n'
    )
    (tmp_path / "metaphase").chmod(0o755)
    command = [snakemake, "-s", str(DEPLOY / "Snakefile"), "--cores", "2", "--directory", str(tmp_path)]
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "errors.log").read_text().startswith("bad: ")
    assert (tmp_path / "results" / "good" / "report.html").is_file()


def test_an_image_is_built_without_a_daemon(tmp_path: Path) -> None:
    """Takes minutes: needs buildah, an image with Python (METAPHASE_BASE_IMAGE) and a wheel."""
    buildah = shutil.which("buildah") or pytest.skip("buildah is not installed")
    base = os.environ.get("METAPHASE_BASE_IMAGE") or pytest.skip("METAPHASE_BASE_IMAGE names no base image")
    if not list((ROOT / "dist").glob("metaphase-*.whl")):
        pytest.skip("there is no wheel: make wheel")
    file, described = ["-f", str(DEPLOY / "Dockerfile"), "--build-arg", f"BASE={base}"], tmp_path / "image"
    subprocess.run(
        [buildah, "build", "--isolation", "chroot", *file, "--iidfile", str(described), str(ROOT)],
        check=True,
        timeout=1800,
    )
    image = described.read_text().strip()
    made = subprocess.run(
        [buildah, "from", image], check=True, capture_output=True, text=True, timeout=300
    ).stdout.strip()
    try:
        shown = subprocess.run(
            [buildah, "run", "--isolation", "chroot", made, "--", "metaphase", "--version"],
            check=True, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert shown.stdout.startswith("metaphase ")
    finally:
        subprocess.run([buildah, "rm", made], check=False, capture_output=True)
        subprocess.run([buildah, "rmi", image], check=False, capture_output=True)
