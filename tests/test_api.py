"""`import metaphase as mp`: the commands' own numbers, nothing loaded early, the page that tells of it."""

from __future__ import annotations

import ast
import gc
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import metaphase as mp
from metaphase.cli.main import app
from metaphase.slides import ArraySlide
from tests.cli.test_register import folder as pair
from tests.jobs.conftest import he_slide, model
from tests.labels.registration.slides import MPP

__all__ = ["he_slide", "model", "pair"]
ROOT = Path(__file__).parents[1]


def call(*arguments: object) -> list[dict[str, object]]:
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    return told if isinstance(told, list) else [told]


def test_nothing_is_loaded_before_it_is_used() -> None:
    heavy = {"numpy", "torch", "pandas", "metaphase.api"}
    code = f"import sys, metaphase; sys.exit(bool({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="nothing"):
        _ = mp.nothing


def test_torch_is_not_needed() -> None:
    code = "import sys, metaphase.api; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_are_typed_and_there() -> None:
    stub = ast.parse((ROOT / "src" / "metaphase" / "__init__.pyi").read_text())
    typed = [one.names[0].asname for one in stub.body if isinstance(one, ast.ImportFrom)]
    assert sorted(filter(None, typed)) == sorted(mp.__all__) == sorted(set(dir(mp)) & set(mp.__all__))
    assert all(getattr(mp, name) is not None for name in mp.__all__)


def test_detect_and_score_are_the_commands(he_slide: Path, model: Path, tmp_path: Path) -> None:
    """The command finds everything done by Python as it would have done it itself."""
    config = mp.DetectionConfig(threshold=0.9)
    with mp.open_slide(he_slide) as slide:
        result = mp.detect(
            slide, tmp_path, model=mp.load_model(model, device="cpu"), tissue="whole", config=config
        )
    assert result.report.is_file()
    before = [file.stat().st_mtime_ns for file in sorted(result.folder.iterdir())]
    common = ("--model", model, "--device", "cpu", "--tissue", "whole", "--threshold", "0.9")
    (printed,) = call("detect", he_slide, "-o", tmp_path, *common)
    (told,) = printed["slides"]
    assert [file.stat().st_mtime_ns for file in sorted(result.folder.iterdir())] == before
    assert told | {"model": result.summary["model"]} == {"folder": str(result.folder), **result.summary}
    assert result.summary["model"].items() <= printed["model"].items()
    assert (result.count, list(result.interval)) == (told["count"], told["count_interval"])
    assert result.grade == told["grade_shown"]["text"]
    (scored,) = call("score", result.folder / "detections.parquet")
    for points in (result.table, result.folder / "detections.geojson"):
        assert mp.score(points, mpp=result.mpp).count == scored["count"] == result.count
    assert {"case": "he", **mp.score(result).to_dict()} == call("score", result.folder)[0]


def test_a_temporary_folder_goes_with_its_result(he_slide: Path, model: Path) -> None:
    result = mp.detect(he_slide, model=model, tissue="whole")
    folder = result.folder
    assert (folder / "report.html").is_file()
    assert mp.score(result).count == result.count
    del result
    gc.collect()
    assert not folder.exists()


def test_register_is_the_command(pair: Path, tmp_path: Path) -> None:
    he, phh3 = (mp.open_slide(pair / name, mpp=MPP) for name in ("he.png", "phh3.png"))
    done = mp.register(he, phh3, tmp_path, points=pair / "points.csv")
    written = (tmp_path / "transform.json").stat().st_mtime_ns
    common = ("-o", tmp_path, "--mpp", MPP, "--points", pair / "points.csv")
    assert call("register", pair / "he.png", pair / "phh3.png", *common) == [done.summary]
    assert (tmp_path / "transform.json").stat().st_mtime_ns == written
    assert done.verdict == "reliable"
    place = done.points[["x_phh3", "y_phh3"]].to_numpy()[:2]
    near = done.transform.phh3_to_he(place)
    assert near == pytest.approx(done.points[["x", "y"]].to_numpy()[:2], abs=3)


def test_evaluate_is_the_command(tmp_path: Path) -> None:
    truth = pd.DataFrame({"x": [100.0, 500.0, 900.0], "y": [100.0, 200.0, 300.0], "slide": "a"})
    found = truth.assign(x=truth["x"] + [5, 900, 2], probability=[0.9, 0.8, 0.3])
    truth.to_csv(tmp_path / "truth.csv", index=False)
    found.to_csv(tmp_path / "found.csv", index=False)
    told = call("evaluate", "mitoses", "--truth", tmp_path / "truth.csv", "--predictions",
                tmp_path / "found.csv", "--mpp", "0.25", "--bootstrap", "0")[0]  # fmt: skip
    table = mp.evaluate(truth, found, mpp=0.25).table()
    assert table["f1"][0] == told["f1"] == pytest.approx(2 / 3)


def test_bad_input_is_an_error_with_a_next_step(he_slide: Path, tmp_path: Path) -> None:
    with mp.open_slide(he_slide) as slide:
        pixels = slide.read(0, 0, 200, 200)
    with pytest.raises(mp.MetaphaseError, match=r"in memory.*[Ww]rite it first"):
        mp.detect(ArraySlide(pixels, 0.25))
    with pytest.raises(mp.MetaphaseError, match="no such model"):
        mp.detect(he_slide, model="absent")
    with pytest.raises(mp.MetaphaseError, match="of 2 slides"):
        mp.score(pd.DataFrame({"x": [1.0, 2.0], "y": 1.0, "slide": ["a", "b"]}), mpp=0.25)
    from PIL import Image

    Image.fromarray(pixels).save(tmp_path / "a.png")
    with pytest.raises(mp.MetaphaseError, match="micrometres per pixel"):
        mp.detect(tmp_path / "a.png", model="absent")


def test_the_examples_of_the_page_run(
    he_slide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(he_slide, tmp_path / "slide.tif")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    page = ROOT / "docs" / "python.md"
    for example in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(example, str(page), "exec"), names)  # noqa: S102
    assert "report.html" in capsys.readouterr().out
    assert (tmp_path / "results" / "slide" / "report.html").is_file()
