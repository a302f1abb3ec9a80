"""Commands where the machine is not as it should be: home, language, terminal, disk, other writers, clock."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metaphase.base.provenance import CHECK
from metaphase.base.tables import read_table
from metaphase.counting.clinical import count_text
from tests.analysis.conftest import he_slide, model
from tests.cli.running import run

__all__ = ["he_slide", "model"]  # fixtures shared with the pipeline's tests

UNWRITABLE = "/sys/kernel"
"""A folder in which nobody may make files, the superuser included."""


def detect(slide: Path, model: Path, output: str | Path) -> list[str]:
    options = ("--tissue", "whole", "--device", "cpu", "--set", "tile_px=128", "--probability-map")
    return ["detect", str(slide), "-o", str(output), "--model", str(model), *options]


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "metaphase", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def found(folder: Path) -> dict[str, Any]:
    """What a finished search says, without its times and the slide's position."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    for name in ("seconds", "slide", CHECK):
        del summary[name]
    tables = {
        name: read_table(folder / f"{name}.parquet").to_dict("list") for name in ("search", "detections")
    }
    return {"summary": summary, "map": (folder / "probability.tif").read_bytes(), **tables}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, he_slide: Path, model: Path) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("undisturbed")
    assert run(*detect(he_slide, model, out)).returncode == 0
    return found(out / "he")


@pytest.mark.slow
@pytest.mark.parametrize("home", [None, UNWRITABLE, "/nowhere"])
def test_no_home_and_one_that_is_read_only(
    home: str | None, tmp_path: Path, he_slide: Path, model: Path, undisturbed: dict[str, Any]
) -> None:
    variables = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    done = started(
        *detect(he_slide, model, tmp_path), env=variables | ({} if home is None else {"HOME": home})
    )
    _, said = done.communicate()
    assert done.returncode == 0, said
    assert "home" not in said.lower()
    assert found(tmp_path / "he") == undisturbed


@pytest.mark.slow
def test_the_plainest_language(tmp_path: Path, he_slide: Path, model: Path) -> None:
    slide = tmp_path / "café β.tif"
    slide.write_bytes(he_slide.read_bytes())
    plain = {"LANG": "C", "LC_ALL": "C"}
    done = run(*detect(slide, model, tmp_path / "out"), **plain)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / slide.stem / "summary.json").read_bytes())["name"] == slide.stem
    table = tmp_path / "points.csv"
    table.write_text("slide,x,y,probability\nCafé,1,2,0.9\n", encoding="utf-8")
    assert run("convert", table, "-o", tmp_path / "out.csv", **plain).returncode == 0
    assert "Café" in (tmp_path / "out.csv").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("info", "{}"), ("info", "{}", "--json"), ("--help",), ("info", "absent")]
)
def test_nobody_listens(arguments: tuple[str, ...], he_slide: Path) -> None:
    """Standard output that is closed, and a reader who has gone away."""
    command = [part.format(he_slide) for part in arguments]
    closed = started(*command, preexec_fn=lambda: os.close(1))
    _, said = closed.communicate()
    assert "Traceback" not in said
    assert "unforeseen" not in said
    reading, writing = os.pipe()
    os.close(reading)
    gone = subprocess.run(
        [sys.executable, "-m", "metaphase", *command],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert "Traceback" not in gone.stderr
    assert "unforeseen" not in gone.stderr
    assert "Exception ignored" not in gone.stderr


def test_a_narrow_terminal_cuts_no_number(tmp_path: Path, he_slide: Path, model: Path) -> None:
    done = run(*detect(he_slide, model, tmp_path), COLUMNS="40")
    assert done.returncode == 0
    described = json.loads((tmp_path / "he" / "summary.json").read_bytes())
    assert "…" not in done.stdout
    assert count_text(described["count"]) in done.stdout
    assert str(tmp_path) in done.stdout.replace("\n", "")
    shown = run("info", he_slide, COLUMNS="40").stdout
    assert "500" in shown
    assert "…" not in shown


def limited(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.slow
@pytest.mark.parametrize("size", [20_000])
def test_a_full_disk_is_an_error_and_what_was_done_is_kept(
    size: int, tmp_path: Path, he_slide: Path, model: Path, undisturbed: dict[str, Any]
) -> None:
    full = started(*detect(he_slide, model, tmp_path), preexec_fn=limited(size))
    _, said = full.communicate()
    assert full.returncode == 1, said
    assert "File too large" in said
    assert "Traceback" not in said
    assert run(*detect(he_slide, model, tmp_path)).returncode == 0
    assert found(tmp_path / "he") == undisturbed


def test_a_folder_that_cannot_be_written(he_slide: Path, model: Path) -> None:
    done = run(*detect(he_slide, model, f"{UNWRITABLE}/out"))
    assert done.returncode == 1
    assert f"{UNWRITABLE}/out" in done.stderr
    assert "belongs to the kernel" in done.stderr
    assert "raceback" not in done.stderr


JUMPING = """
import itertools, time
steps = itertools.cycle([0.0, -1e7, 3e8, 5.0, -2e9])
true = time.time
time.time = lambda: true() + next(steps)
from metaphase.cli.main import main
main()
"""


@pytest.mark.slow
def test_a_clock_that_jumps(tmp_path: Path, he_slide: Path, model: Path, undisturbed: dict[str, Any]) -> None:
    command = [sys.executable, "-c", JUMPING, *detect(he_slide, model, tmp_path)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        os.utime(he_slide, (0, 0))
    assert "1 unchanged since an earlier run" in done.stdout
    assert found(tmp_path / "he") == undisturbed
