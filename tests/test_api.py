"""`import metaphase as mp`: the commands' own numbers, nothing loaded early, the page that tells of it."""

from __future__ import annotations

import ast
import gc
import inspect
import json
import pydoc
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import dask.array
import numpy as np
import pandas as pd
import pytest
import zarr
from PIL import Image
from typer.testing import CliRunner

import metaphase as mp
from metaphase.api import slides
from metaphase.base.arrays import Box
from metaphase.cli.main import app
from metaphase.labels.registration.outputs import Registered
from tests.analysis.conftest import he_pixels, he_slide, model, tiny_model, with_prior, write_slide
from tests.cli.test_register import folder as pair
from tests.docs.blocks import blocks
from tests.labels.registration.slides import MPP

__all__ = ["he_slide", "model", "pair"]
ROOT = Path(__file__).parents[1]


def call(*arguments: object) -> list[dict[str, object]]:
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    described = json.loads(done.stdout)
    return described if isinstance(described, list) else [described]


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
    assert sorted(filter(None, typed)) == sorted(mp.__all__)
    assert {name for name in dir(mp) if not name.startswith("__")} == set(mp.__all__)
    assert all(getattr(mp, name) is not None for name in mp.__all__)


FUNCTIONS = [name for name in mp.__all__ if inspect.isfunction(getattr(mp, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_says_all(name: str) -> None:
    """Every parameter by its name, what comes back, what goes wrong, and an example."""
    function = getattr(mp, name)
    parts = re.split(r"^(\w+):\n", inspect.getdoc(function) or "", flags=re.MULTILINE)
    assert parts[1::2] == ["Parameters", "Returns", "Raises", "Examples"]
    described = re.findall(r"^    (\w+): ", parts[2], re.MULTILINE)
    assert described == list(inspect.signature(function).parameters)
    assert ">>> " in parts[-1]


def test_half_of_the_public_functions_is_what_they_say() -> None:
    sources = [inspect.getsource(getattr(mp, name)) for name in FUNCTIONS]
    said = [ast.get_docstring(ast.parse(one).body[0]) or "" for one in sources]  # type: ignore[arg-type]
    lines, all_lines = (sum(len(one.splitlines()) for one in texts) for texts in (said, sources))
    print(f"docstrings are {lines / all_lines:.0%} of the {all_lines} lines of {len(FUNCTIONS)} functions")
    assert lines >= 0.45 * all_lines


def test_help_begins_with_a_day_of_work() -> None:
    shown = pydoc.render_doc(mp, renderer=pydoc.plaintext)
    listed = re.findall(r"mp\.(\w+)\(", shown.split("PACKAGE CONTENTS")[0])
    assert list(dict.fromkeys(listed)) == FUNCTIONS
    assert shown.count("Parameters:") >= len(FUNCTIONS)


def test_settings_are_keywords(field: Path, model: Path, here: Path) -> None:
    stated = get_type_hints(slides.DetectSettings)
    known = {
        one.name for kind in (mp.DetectionConfig, mp.CountConfig, slides.EngineConfig) for one in fields(kind)
    }
    own = set(inspect.signature(mp.detect).parameters)
    assert set(stated) <= known | own
    result = mp.detect(field, model=model, device="cpu", tissue="whole", threshold=0.5, formats=["asap"],
                       field_diameter_mm=0.6, any_stain=True, probability_map=True)  # fmt: skip
    assert (result.counting.field_diameter_mm, result.counting.threshold) == (0.6, 0.5)
    assert (result.folder / "detections.xml").is_file()
    chances = result.write_probabilities("map.zarr")
    assert (chances.shape, chances.dtype) == ((75, 100), np.uint8)
    with mp.open_slide(result.folder / "probability.tif") as written:
        pixels = written.read_level(0, Box(0, 0, 100, 75))[..., 0]
    np.testing.assert_array_equal(dask.array.from_zarr("map.zarr").compute(), pixels)
    assert zarr.open("map.zarr", mode="r").attrs["mpp"] == written.mpp == pytest.approx(1.0)
    with pytest.raises(
        mp.MetaphaseError, match=r"mp\.detect has no setting any_stains\. Choose among .*any_stain"
    ):
        mp.detect(field, model=model, any_stains=True)  # type: ignore[call-overload]
    with pytest.raises(mp.MetaphaseError, match="threshold is 7"):
        mp.detect(field, model=model, threshold=7)
    with pytest.raises(mp.MetaphaseError, match="the model is loaded, and device came later"):
        mp.detect(field, model=mp.load_model(model), device="cpu")
    plain = mp.detect(field, "plain", model=model, tissue="whole")
    with pytest.raises(
        mp.MetaphaseError, match=r"probability\.tif: was not asked for. Detect with probability_m"
    ):
        plain.write_probabilities("other.zarr")


def test_results_of_several_are_tables(field: Path, model: Path, here: Path) -> None:
    seen: list[str] = []
    slides = (field if one else he_pixels()[:200, :250] for one in (1, 0))
    found = mp.detect(slides, "out", mpp=0.25, model=model, tissue="whole",
                      on_slide=lambda result: seen.append(result.name))  # fmt: skip
    assert seen == [one.name for one in found] == found.counts["case"].tolist()
    assert found.table["slide"].nunique() <= 2
    assert len(found.table) == sum(len(one.table) for one in found)
    again = mp.load_results("out")
    assert sorted(again.counts["count"]) == sorted(one.count for one in found)
    assert (repr(again).count("mitotic count"), again._repr_html_().count("<tr")) == (2, 3)
    (column,) = mp.detect(pd.Series([str(field)]), "out", model=model, tissue="whole")
    assert column.count == found[0].count
    with pytest.raises(mp.MetaphaseError, match=r"results of 2 slides\. Name .*mp\.load_results"):
        mp.load_result("out")
    shutil.rmtree(found[1].folder)
    assert mp.load_result("out").name == "field"


def test_progress_is_a_line(field: Path, model: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mp.detect([field], "out", model=model, tissue="whole", progress=True)
    shown = capsys.readouterr().err
    assert shown.startswith("\r1 of 1: field 0.0 of 0.0 mm2")
    assert shown.endswith("\n")


def test_tissue_is_the_command(field: Path, tmp_path: Path) -> None:
    (found,) = mp.tissue([field], tmp_path)
    (described,) = call("tissue", field, "-o", tmp_path / "other")
    assert found.area_mm2 == described["area_mm2"] == mp.tissue(he_pixels()[:300, :400], mpp=0.25).area_mm2
    assert (tmp_path / "field.tissue.geojson").is_file()
    assert mp.tissue(field, min_object_um2=1e9, min_object_share=2.0).is_empty
    with pytest.raises(mp.MetaphaseError, match=r"mp\.tissue has no setting bridge\. Choose among bridge_um"):
        mp.tissue(field, bridge=3)
    with pytest.raises(mp.MetaphaseError, match="1 of 2 slides failed"):
        mp.tissue([field, "absent.svs"], tmp_path)


def test_a_geographic_table_has_positions_and_outlines(field: Path, model: Path, here: Path) -> None:
    pytest.importorskip("geopandas", reason="geopandas is not installed: metaphase[geo]")
    result = mp.detect(field, model=model, tissue="whole", threshold=0.5)
    points = result.geo()
    assert [points.geometry.x.tolist(), points.geometry.y.tolist()] == result.table[
        ["x", "y"]
    ].T.to_numpy().tolist()
    assert result.geo("tissue").area.sum() * (0.25 / 1000) ** 2 == pytest.approx(result.tissue.area_mm2)
    assert result.geo("circle").area[0] == pytest.approx(np.pi * result.record.hotspot.radius_px**2, rel=1e-2)
    assert len(result.geo("candidates")) == len(result.candidates)


def test_calibrate_is_the_command(tmp_path: Path, known: Path, here: Path) -> None:
    """The profile of Python is that of the commands, and counts with it are narrower."""
    rng = np.random.default_rng(3)
    slides = [write_slide(tmp_path / f"{name}.tif", he_pixels()[:400, shift : shift + 400])
              for name, shift in (("a", 0), ("b", 200))]  # fmt: skip
    found = mp.detect(slides, "results", model=known, tissue="whole", threshold=0.5)
    calibration = mp.calibrate(found, "calibration", answers=20)
    answers = calibration.items.assign(answer=lambda items: rng.choice(["mitosis", "not"], len(items)))
    profile = calibration.fit(answers, "python.json", name="ours")
    answers.to_csv("answers.csv", index=False)
    call("calibrate", "fit", "calibration", "-o", "ours.json", "--answers", "answers.csv")
    by_command = mp.load_profile("ours.json")
    assert mp.load_profile("python.json") == profile
    assert (profile.precision, profile.shapes) == (by_command.precision, by_command.shapes)
    assert mp.calibrate(output="calibration").items.equals(calibration.items)
    (own, other) = (mp.detect(slides[0], "results", model=known, tissue="whole", threshold=0.5, site=site)
                    for site in (profile, "python.json"))  # fmt: skip
    assert own.site == other.site == profile
    assert mp.score(own, threshold=0.5, site=profile).likely is not None
    with pytest.raises(mp.MetaphaseError, match=r"holds no calibration\. Give results"):
        mp.calibrate(output="absent")


def test_points_that_nobody_gave_are_none(tmp_path: Path) -> None:
    done = Registered(tmp_path, {"verdict": "reliable"})
    assert hasattr(done, "points")
    assert done.points.empty


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which it is known how it errs elsewhere: its counts have intervals."""
    return with_prior(tiny_model(tmp_path_factory.mktemp("known") / "tiny.safetensors"))


def test_detect_and_score_are_the_commands(he_slide: Path, known: Path, tmp_path: Path) -> None:
    """The command finds everything done by Python as it would have done it itself."""
    config = mp.DetectionConfig(threshold=0.9)
    with mp.open_slide(he_slide) as slide:
        result = mp.detect(
            slide, tmp_path, model=mp.load_model(known, device="cpu"), tissue="whole", config=config
        )
    assert result.report.is_file()
    before = [file.stat().st_mtime_ns for file in sorted(result.folder.iterdir())]
    common = ("--model", known, "--device", "cpu", "--tissue", "whole", "--threshold", "0.9")
    (printed,) = call("detect", he_slide, "-o", tmp_path, *common)
    (described,) = printed["slides"]
    assert [file.stat().st_mtime_ns for file in sorted(result.folder.iterdir())] == before
    assert described | {"model": result.summary["model"]} == {"folder": str(result.folder), **result.summary}
    assert result.summary["model"].items() <= printed["model"].items()
    assert result.likely is not None
    assert (result.count, result.likely.model_dump(mode="json")) == (described["count"], described["likely"])
    assert result.score == described["scores"][0]["text"]
    (scored,) = call("score", result.folder / "detections.parquet")
    assert (scored["likely"], scored["no_interval"]) == (None, "detections below 0.9 were not kept")
    (all_of_it,) = call("score", result.folder / "candidates.parquet")
    assert all_of_it["likely"] == described["likely"]
    for points in (result.table, result.folder / "detections.geojson"):
        assert mp.score(points, mpp=result.mpp).count == scored["count"] == result.count
    assert {"case": "he", **mp.score(result).to_dict()} == call("score", result.folder)[0]


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small slide."""
    return write_slide(tmp_path_factory.mktemp("fields") / "field.tif", he_pixels()[:300, :400])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_folder_results_lie_here_and_stay(field: Path, model: Path, here: Path) -> None:
    result = mp.detect(field, model=model, tissue="whole")
    assert result.folder == Path("metaphase-results", "field")
    assert mp.score(result).count == result.count
    report = result.report.resolve()
    del result
    gc.collect()
    assert report.is_file()


def test_a_later_call_changes_nothing_of_an_earlier_result(field: Path, model: Path, here: Path) -> None:
    few, many = (mp.detect(field, model=model, tissue="whole", threshold=by) for by in (0.9, 0.5))
    assert len(few.table) < len(many.table)
    assert few.table["probability"].min() >= 0.9
    shutil.copy(field, here / "field.tif")
    with pytest.raises(mp.MetaphaseError, match=r"would replace those of .*field\.tif\. Name a folder"):
        mp.detect("field.tif", model=model, tissue="whole")


def test_an_array_is_a_slide(model: Path, here: Path) -> None:
    """With its pixels beside its results: report, resuming and other programs need the file."""
    pixels = he_pixels()[:300, :400]
    with mp.open_slide(pixels, mpp=0.25) as slide:
        np.testing.assert_array_equal(slide.read(0, 0, 400, 300, mpp=0.25), pixels)
        result = mp.detect(slide, model=model, tissue="whole", threshold=0.5)
    Image.fromarray(pixels).save("field.png")
    file = mp.detect("field.png", "other", mpp=0.25, model=model, tissue="whole", threshold=0.5)
    pd.testing.assert_frame_equal(result.table.drop(columns="slide"), file.table.drop(columns="slide"))
    assert result.mpp == pytest.approx(0.25, rel=1e-9)
    (described,) = call("detect", result.source.path, "-o", "metaphase-results", "--model", model,
                   "--tissue", "whole", "--threshold", "0.5")[0]["slides"]  # fmt: skip
    before = result.report.stat().st_mtime_ns
    assert mp.detect(pixels, mpp=0.25, model=model, tissue="whole", threshold=0.5).report == result.report
    assert (described["folder"], result.report.stat().st_mtime_ns) == (str(result.folder), before)
    moved = Path(shutil.move("metaphase-results", "elsewhere")) / result.name
    assert mp.load_result(moved).source.path == moved / f"{result.name}.tif"


def test_several_slides_are_a_list(field: Path, model: Path, here: Path) -> None:
    pixels = he_pixels()[:200, :250]
    ready, common = mp.load_model(model), {"model": model, "tissue": "whole"}
    with mp.open_slide(field) as slide:
        found = mp.detect((one for one in (slide, pixels)), "out", mpp=0.25, **common)
    assert [len(found), found[0].name, found[1].name[:6]] == [2, "field", "array-"]
    assert (here / "out" / "index.html").is_file()
    seen: list[tuple[float, float]] = []
    with pytest.raises(
        mp.MetaphaseError, match=r"1 of 2 slides failed \(absent: .*absent\.svs.*call it again"
    ):
        mp.detect(["absent.svs", pixels], mpp=0.25, **common, progress=lambda *mm2: seen.append(mm2))
    (done,) = Path("metaphase-results").glob("array-*/report.html")
    assert done.is_file()
    assert seen
    assert mp.detect([], model=ready) == []


def test_a_result_is_short_to_look_at(field: Path, model: Path, here: Path) -> None:
    result = mp.detect(field, model=model, tissue="whole")
    described = repr(result)
    assert len(described) < 200
    assert described.startswith(f"field: mitotic count {result.count}, by the model alone\n")
    assert described.endswith(f"\nreport: {result.report}")
    page = result._repr_html_()
    assert len(page) < 40_000
    assert 'href="metaphase-results/field/report.html"' in page
    assert "data:image/jpeg;base64," in page
    assert f"{len(result.warnings)} warning" in page
    record = result.record.model_copy(update={"name": "<b>", "slide": "gone.tif"})
    named = mp.Result(result.folder, record)
    assert "&lt;b&gt;" in named._repr_html_()
    assert "data:image" not in named._repr_html_()


@pytest.mark.slow
def test_register_is_the_command(pair: Path, tmp_path: Path) -> None:
    he, phh3 = (mp.open_slide(pair / name, mpp=MPP) for name in ("he.png", "phh3.png"))
    done = mp.register(he, phh3, tmp_path, points=pair / "points.csv")
    written = (tmp_path / "transform.json").stat().st_mtime_ns
    common = ("-o", tmp_path, "--mpp", MPP, "--points", pair / "points.csv")
    assert call("register", pair / "he.png", pair / "phh3.png", *common) == [done.summary]
    assert (tmp_path / "transform.json").stat().st_mtime_ns == written
    assert done.verdict == "reliable"
    position = done.points[["x_phh3", "y_phh3"]].to_numpy()[:2]
    near = done.transform.phh3_to_he(position)
    assert near == pytest.approx(done.points[["x", "y"]].to_numpy()[:2], abs=3)


def test_evaluate_is_the_command(tmp_path: Path) -> None:
    truth = pd.DataFrame({"x": [100.0, 500.0, 900.0], "y": [100.0, 200.0, 300.0], "slide": "a"})
    found = truth.assign(x=truth["x"] + [5, 900, 2], probability=[0.9, 0.8, 0.3])
    truth.to_csv(tmp_path / "truth.csv", index=False)
    found.to_csv(tmp_path / "found.csv", index=False)
    described = call("evaluate", "mitoses", "--truth", tmp_path / "truth.csv", "--predictions",
                tmp_path / "found.csv", "--mpp", "0.25", "--set", "samples=0")[0]  # fmt: skip
    table = mp.evaluate(truth, found, mpp=0.25).table()
    assert table["f1"][0] == described["f1"] == pytest.approx(2 / 3)


def test_bad_input_is_an_error_with_a_next_step(he_slide: Path, tmp_path: Path) -> None:
    pixels = he_pixels()[:200, :200]
    for wrong, message in (
        (5, "int is not a slide. Give a path"),
        ([he_slide, None], "NoneType is not a slide"),
        (pixels * 1.0, r"values from \d+ to 255\. Floats go from 0 to 1"),
        ([pixels[..., 0]], r"\(200, 200\) and type uint8 is grey"),
        (pixels, "micrometres per pixel"),
    ):
        with pytest.raises(mp.MetaphaseError, match=message):
            mp.detect(wrong, tmp_path)  # type: ignore[arg-type, call-overload]
    with pytest.raises(mp.MetaphaseError, match=r"float is not a slide"):
        mp.open_slide(2.5)  # type: ignore[arg-type]
    with pytest.raises(mp.MetaphaseError, match=r"list is not a model.*mp\.load_model"):
        mp.detect(he_slide, model=["a", "b"])  # type: ignore[call-overload]
    with pytest.raises(mp.MetaphaseError, match="ndarray is not a table of points"):
        mp.score(pixels, mpp=0.25)  # type: ignore[arg-type]
    with pytest.raises(mp.MetaphaseError, match="no such model"):
        mp.detect(he_slide, model="absent")
    with pytest.raises(mp.MetaphaseError, match="belong to 2 slides"):
        mp.score(pd.DataFrame({"x": [1.0, 2.0], "y": 1.0, "slide": ["a", "b"]}), mpp=0.25)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    with pytest.raises(mp.MetaphaseError, match="micrometres per pixel"):
        mp.detect(tmp_path / "a.png", model="absent")


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
@pytest.mark.filterwarnings("ignore:theirs sees")
def test_the_examples_of_a_page_run(
    page: str, he_slide: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("slide.tif", "slide.svs"):
        shutil.copy(he_slide, here / name)
    names: dict[str, object] = {}
    for example in blocks(ROOT / page):
        if example.language == "python" and example.reason is None:
            exec(compile(example.text, example.where, "exec"), names)  # noqa: S102
    report = Path("metaphase-results", "slide", "report.html")
    assert str(report) in capsys.readouterr().out
    names.clear()
    gc.collect()
    assert report.is_file()
