"""The command as a user meets it: outputs, exit codes, one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metaphase.slides.writer import PyramidFormat, write_pyramid
from tests.analysis.conftest import he_slide, model
from tests.cli.running import run

__all__ = ["he_slide", "model"]


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pink and blue disc on white glass, 1.2 mm wide, at 0.5 um/px."""
    path = tmp_path_factory.mktemp("slides") / "case 1.tif"
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:2400, :2400]
    inside = (x - 1200) ** 2 + (y - 1200) ** 2 < 800**2
    blobs = rng.random((240, 240)).repeat(10, 0).repeat(10, 1) < 0.3
    image = np.full((2400, 2400, 3), 243, np.uint8)
    image[inside] = (225, 160, 200)
    image[inside & blobs] = (110, 70, 150)
    tiles = (image[j : j + 512, i : i + 512] for j in range(0, 2400, 512) for i in range(0, 2400, 512))
    write_pyramid(path, tiles, 2400, 2400, PyramidFormat(mpp=0.5))
    return path


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("metaphase 0.")
    shown = run("--help")
    assert shown.returncode == 0
    assert "tissue" in shown.stdout
    assert run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").returncode == 0


def test_help_of_detect_begins_with_what_most_people_need() -> None:
    lines = run("detect", "--help", COLUMNS="120").stdout.splitlines()
    panels = [line.split("─ ")[1].split(" ─")[0] for line in lines if line.startswith("╭─ ")]
    assert panels[1:3] == ["Options", "Exports"]
    assert panels[3].endswith("and the paper's")
    assert panels[4:] == ["Machines"]
    first = lines[: next(number for number, line in enumerate(lines) if "─ Exports" in line)]
    assert any("--threshold" in line for line in first)
    assert not any("--workers" in line for line in first)


STARTED = """
import sys
from typer.testing import CliRunner
from metaphase.cli.main import app
for at, words in enumerate(sys.argv[1:]):
    done = CliRunner().invoke(app, words.split("|"))
    assert done.exit_code == 0, done.output
    never = {"torch", "onnx", "matplotlib", "scipy.optimize", "scipy.stats", "skimage", "dask"}
    tables = {"pandas", "scipy.special"} if words.split("|")[0] != "detect" or "--help" in words else set()
    found = (never | tables) & set(sys.modules)
    assert not found, (words, found)
"""


def test_commands_that_search_nothing_import_nothing_heavy(
    tmp_path: Path, he_slide: Path, model: Path
) -> None:
    """What is kept is shown by what is kept; tables are for those who touch them."""
    kept = ["detect", str(he_slide), "-o", str(tmp_path), "--model", str(model), "--device", "cpu"]
    assert run(*kept).returncode == 0
    started = ["detect|--help", "view|--help", "configs|list", "model|info|breast", f"info|{he_slide}"]
    commands = [*started, f"score|{tmp_path}", "|".join(kept)]
    subprocess.run([sys.executable, "-c", STARTED, *commands], check=True)


def test_nothing_heavy_is_imported_for_help() -> None:
    heavy = {"torch", "cv2", "openslide", "pandas", "scipy", "matplotlib"}
    code = f"import sys, metaphase.cli.main; sys.exit(bool({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_info_json(slide: Path) -> None:
    result = run("info", slide, "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert (facts["width"], facts["height"], facts["mpp"], facts["mpp_source"]) == (
        2400,
        2400,
        0.5,
        "metadata",
    )
    assert facts["stain"]["name"] == "H&E"
    assert any("20x" in warning["text"] for warning in facts["warnings"])


def test_mpp_is_for_slides_that_state_none_and_the_others_are_named(slide: Path, tmp_path: Path) -> None:
    field = tmp_path / "field.png"
    Image.fromarray(np.full((300, 300, 3), 200, np.uint8)).save(field)
    result = run("info", slide, field, "--mpp", "0.25")
    assert "2,400 x 2,400 px" in result.stdout
    assert "0.5 um/px (from metadata)" in result.stdout
    assert "0.25 um/px (from flag)" in result.stdout
    assert (
        f"{slide.name} (0.5) keep theirs: to override them, give their um/px in the column mpp"
        in result.stderr
    )
    assert "unknown: give --mpp, or the column mpp of a manifest" in run("info", field).stdout


def test_a_folder_stands_for_its_slides(slide: Path, tmp_path: Path) -> None:
    for name in ("s10.tif", "s9.tif", ".hidden.tif"):
        (tmp_path / name).write_bytes(slide.read_bytes())
    (tmp_path / "notes.csv").write_text("a")
    result = run("info", tmp_path, "--json")
    assert [Path(one["path"]).name for one in json.loads(result.stdout)] == ["s9.tif", "s10.tif"]
    assert result.stderr.count("2 slides; skipped, because not slides: notes.csv") == 1
    assert result.stderr.count("20x") == 0, "JSON has the warnings"


def test_real_slide(real_data: Path) -> None:
    facts = json.loads(run("info", real_data / "wsi" / "CMU-1-Small-Region.svs", "--json").stdout)
    assert (facts["width"], facts["height"], facts["mpp"]) == (2220, 2967, 0.499)


def test_tissue_of_several_slides_with_a_bad_one(slide: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.svs"
    bad.write_text("not a slide")
    worse = tmp_path / "worse.tif"
    worse.write_bytes(b"II*\0garbage")
    result = run("tissue", bad, worse, slide, "-o", tmp_path / "out", "--json")
    assert result.returncode == 1
    assert result.stderr.count("error: ") == 2  # a line a bad slide
    assert "bad.svs: neither a slide" in result.stderr
    assert "worse.tif: damaged or truncated TIFF (it holds no image)" in result.stderr
    (row,) = json.loads(result.stdout)
    assert row["area_mm2"] == pytest.approx(np.pi * 0.4**2, rel=0.05)
    assert all(Path(file).stat().st_size for file in row["files"])
    assert len((tmp_path / "out" / "errors.log").read_text().splitlines()) == 2


def test_blank_slide_is_said_not_failed(tmp_path: Path) -> None:
    blank = tmp_path / "blank.png"
    Image.fromarray(np.full((800, 800, 3), 240, np.uint8)).save(blank)
    result = run("tissue", blank, "--mpp", "0.5", "-o", tmp_path / "out", "--json")
    assert result.returncode == 0, result.stderr
    assert "no tissue found" in result.stderr
    assert json.loads(result.stdout)[0]["area_mm2"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["info"], 2, "Missing argument"),
        (["info", "absent.svs"], 1, "absent.svs: no such file"),
        (["info", "{tmp}"], 2, "no slide in the folder"),
        (["info", "{slide}", "--mpp", "-1"], 2, "not the resolution of a bright-field scan"),
        (["tissue", "{slide}"], 2, "Missing option"),
        (["tissue", "{slide}", "{slide}", "-o", "{tmp}"], 2, "would overwrite"),
        (["tissue", "{slide}", "-o", "{slide}"], 1, "is not a folder"),
        (["train", "absent.toml", "-o", "{tmp}"], 2, "absent.toml: no such file"),
        (["model", "info", "absent.safetensors"], 1, "absent.safetensors: no such model"),
    ],
)
def test_wrong_use_is_one_line_and_an_exit_code(
    slide: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    result = run(*(argument.format(slide=slide, tmp=tmp_path) for argument in arguments))
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_missing_resolution_names_the_flag(tmp_path: Path) -> None:
    path = tmp_path / "field.png"
    Image.fromarray(np.full((300, 300, 3), 200, np.uint8)).save(path)
    assert run("info", path).returncode == 0
    result = run("tissue", path, "-o", tmp_path / "out")
    assert result.returncode == 1
    assert "--mpp" in result.stderr
