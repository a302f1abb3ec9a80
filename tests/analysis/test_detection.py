"""Detecting a whole slide: same result whatever the tiles and interruptions, clear answers to bad input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tifffile
from PIL import Image

from metaphase.analysis.cohort import CohortSlide
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.journal import Peaks, TileJournal
from metaphase.analysis.record import load_result
from metaphase.analysis.run import SlideOutcome, detect_slide
from metaphase.base.errors import MetaphaseError, ModelError, OutputError, SlideError, UsageError
from metaphase.detections.files import read_detections
from metaphase.images.tissue.finding import TissueSource
from metaphase.networks.cards import bundled_model, named_model
from metaphase.networks.detector import Detector, ReadyDetector, load_detector
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.settings import EngineConfig
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.opening import SlideSource, open_slide
from tests.analysis.conftest import HEIGHT, WIDTH, he_pixels, tiny_model, write_slide
from tests.base.servers import serving

CONFIG = DetectionConfig(threshold=0.9, tile_px=128)


@pytest.fixture(scope="module")
def detector(model: Path) -> Detector:
    return load_detector([model])


CPU = EngineConfig(device="cpu")


def named(path: Path, *, mpp: float | None = None, tissue: str = "") -> CohortSlide:
    return CohortSlide(path.stem, SlideSource(path, mpp), TissueSource.stated(tissue))


def detected(
    path: Path, folder: Path, detector: Detector, config: DetectionConfig = CONFIG, **options: Any
) -> SlideOutcome:
    about = {key: options.pop(key) for key in ("mpp", "tissue") if key in options}
    return detect_slide(named(path, **about), folder, ReadyDetector(detector, CPU), config, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, he_slide: Path, detector: Detector) -> SlideOutcome:
    return detected(he_slide, tmp_path_factory.mktemp("whole"), detector)


def _candidates(outcome: SlideOutcome) -> pd.DataFrame:
    return pd.read_parquet(outcome.folder / "candidates.parquet")


def test_the_files_agree_with_each_other(whole: SlideOutcome) -> None:
    candidates, summary = _candidates(whole), whole.summary
    detections = read_detections(whole.folder / "detections.parquet").table
    qupath = read_detections(whole.folder / "detections.geojson").table
    assert 0 < len(detections) < len(candidates)
    assert (detections["probability"] >= 0.9).all()
    assert summary["counted"] == len(detections) == len(qupath)
    positions = (np.sort(table[["x", "y"]].to_numpy(), axis=0) for table in (qupath, detections))
    np.testing.assert_allclose(*positions, atol=0.01)
    assert candidates["x"].between(0, WIDTH).all()
    assert candidates["y"].between(0, HEIGHT).all()
    assert json.loads((whole.folder / "summary.json").read_text())["files"] == summary["files"]
    assert not list(whole.folder.glob(".*"))
    assert not list(whole.folder.glob("*.journal"))


def test_slide_and_model_by_url_come_to_the_same(
    tmp_path: Path, he_slide: Path, model: Path, whole: SlideOutcome
) -> None:
    pytest.importorskip("obstore", reason="the extra remote is not installed")
    with serving(he_slide.parent, fail_every=10) as slides, serving(model.parent) as models:
        detector = load_detector([f"{models.url}/{model.name}"])
        url = f"{slides.url}/{he_slide.name}"
        outcome = detected(Path(url), tmp_path, detector)
        assert outcome.states[0].status != "kept"
        assert detected(Path(url), tmp_path, detector).states[0].status == "kept"
        assert outcome.summary["slide"] == url
        with load_result(tmp_path).source.open() as slide:
            assert slide.width == WIDTH
    pd.testing.assert_frame_equal(_candidates(outcome), _candidates(whole))


@pytest.mark.parametrize("tile_px", [pytest.param(64, marks=pytest.mark.slow), 332, None])
def test_tiles_change_nothing(
    tmp_path: Path,
    he_slide: Path,
    detector: Detector,
    whole: SlideOutcome,
    tile_px: int | None,
) -> None:
    config = DetectionConfig(threshold=0.9, tile_px=tile_px)
    other = _candidates(detected(he_slide, tmp_path, detector, config))
    expected = _candidates(whole)
    assert len(other) == len(expected)
    np.testing.assert_allclose(other[["x", "y"]], expected[["x", "y"]], atol=0.05)
    np.testing.assert_allclose(other["probability"], expected["probability"], atol=1e-4)


def test_a_stopped_run_goes_on(
    tmp_path: Path, he_slide: Path, detector: Detector, whole: SlideOutcome
) -> None:
    shares: list[float] = []

    def stop(done: float, total: float) -> None:
        shares.append(done / total)
        if len(shares) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        detected(he_slide, tmp_path, detector, CONFIG, progress=stop)
    resumed: list[float] = []
    outcome = detected(
        he_slide,
        tmp_path,
        detector,
        CONFIG,
        progress=lambda done, total: resumed.append(done / total),
    )
    assert len(shares) + len(resumed) == 16
    assert min(resumed) > max(shares)
    pd.testing.assert_frame_equal(_candidates(outcome), _candidates(whole))


def stamps(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*.*")}


def test_a_finished_slide_is_left_alone(tmp_path: Path, he_slide: Path, detector: Detector) -> None:
    detected(he_slide, tmp_path, detector)
    before = stamps(tmp_path)
    again = detected(he_slide, tmp_path, detector, DetectionConfig(threshold=0.9, tile_px=256))
    assert again.resumed
    assert stamps(tmp_path) == before


def test_probability_map_shows_the_peaks(tmp_path: Path, he_slide: Path, detector: Detector) -> None:
    config = DetectionConfig(threshold=0.9, tile_px=128, probability_map=True)
    outcome = detected(he_slide, tmp_path, detector, config, tissue="whole")
    pixels = tifffile.imread(tmp_path / "probability.tif")
    assert pixels.shape == (HEIGHT // 4, WIDTH // 4)
    candidates = _candidates(outcome)
    positions = (candidates[["y", "x"]].to_numpy() / 4).round().astype(int)
    inside = (positions < pixels.shape).all(axis=1)
    seen = pixels[tuple(positions[inside].T)] / 255
    np.testing.assert_allclose(seen, candidates["probability"][inside], atol=0.01)


def test_an_ensemble_is_the_mean(he_slide: Path, model: Path, detector: Detector) -> None:
    twice, engine = load_detector([model, model]), Engine(detector.built().networks, CPU)
    both = Engine(twice.built().networks, CPU)
    with open_slide(he_slide) as slide:
        tile = slide.read(100, 100, 200, 200)
    np.testing.assert_allclose(both.probability_map(tile), engine.probability_map(tile), atol=1e-5)
    assert twice.identities != detector.identities


def _white(path: Path, colour: tuple[int, int, int] = (245, 245, 245)) -> Path:
    tifffile.imwrite(
        path,
        np.full((600, 600, 3), colour, np.uint8),
        tile=(256, 256),
        photometric="rgb",
        resolution=(40_000, 40_000),
        resolutionunit="CENTIMETER",
    )
    return path


def test_no_tissue_names_the_next_step(tmp_path: Path, detector: Detector) -> None:
    slide = _white(tmp_path / "white.tif")
    with pytest.raises(SlideError, match=r"white\.tif: no tissue.*--tissue whole"):
        detected(slide, tmp_path / "out", detector, CONFIG)


def test_immunohistochemistry_is_refused_unless_wanted(tmp_path: Path, detector: Detector) -> None:
    (case,) = cohort_cases(SimulationConfig(cases=1, centres=1, width=2048, height=2048, seed=5))
    slide = tmp_path / "phh3.png"
    Image.fromarray(render_region(case, "phh3", 500, 600, 600, 600)).save(slide)
    with pytest.raises(SlideError, match=r"immunohistochemistry.*--any-stain"):
        detected(slide, tmp_path, detector, mpp=0.5, tissue="whole")
    forced = DetectionConfig(any_stain=True)
    outcome = detected(slide, tmp_path, detector, forced, mpp=0.5, tissue="whole")
    assert any("immunohistochemistry" in str(warning) for warning in outcome.warnings)
    assert any("20x" in str(warning) for warning in outcome.warnings)
    (warning,) = (warning for warning in outcome.warnings if warning.code == "not-he")
    assert "use the H&E slide of the same tissue" in warning.next_step


def test_damaged_tiles_are_refused_or_left_out(
    tmp_path: Path, he_slide: Path, detector: Detector, whole: SlideOutcome
) -> None:
    slide = tmp_path / "he.tif"
    content = bytearray(he_slide.read_bytes())
    with tifffile.TiffFile(he_slide) as tiff:
        page = tiff.pages.first
        start, size = page.dataoffsets[1], page.databytecounts[1]
    content[start + size * 2 // 3 : start + size] = bytes(size - size * 2 // 3)
    slide.write_bytes(content)
    refused = r"cannot be decoded: 1 \(0.0041 mm2\), at \(256, 0\).*--allow-damage"
    with pytest.raises(SlideError, match=refused):
        detected(slide, tmp_path / "out", detector, tissue="whole")
    allowed = replace(CONFIG, allow_damage=True)
    outcome = detected(slide, tmp_path / "out", detector, allowed, tissue="whole")
    (warning,) = (one for one in outcome.warnings if one.code == "damaged-tiles")
    assert "are left out: 1 (0.0041 mm2), at (256, 0)" in warning.text
    assert not any(one.code == "odd-pixels" for one in outcome.warnings)
    assert "are left out: 1" in (outcome.folder / "report.html").read_text()
    area = WIDTH * HEIGHT * 0.25**2 / 1e6
    assert outcome.summary["tissue_mm2"] == pytest.approx(area - 0.0041, abs=0.0015)
    x, y = (_candidates(outcome)[axis].to_numpy() for axis in "xy")
    assert not ((x >= 256) & (x < 512) & (y < 256)).any()
    with pytest.raises(SlideError, match="--allow-damage"):
        detected(slide, tmp_path / "out", detector, tissue="whole")


def test_odd_pixels_are_warned_of(tmp_path: Path, detector: Detector) -> None:
    pixels = he_pixels().copy()
    pixels[200:] = np.roll(pixels[200:].reshape(-1), 1).reshape(pixels[200:].shape)
    slide = tmp_path / "he.png"
    Image.fromarray(pixels).save(slide)
    outcome = detected(slide, tmp_path, detector, mpp=0.25, tissue="whole")
    (warning,) = (one for one in outcome.warnings if one.code == "odd-pixels")
    assert re.search(r"seam at \(\d+, 199\)", warning.text)


def test_missing_resolution_is_an_error(tmp_path: Path, detector: Detector) -> None:
    Image.fromarray(np.full((300, 300, 3), 200, np.uint8)).save(tmp_path / "field.png")
    with pytest.raises(MetaphaseError, match="--mpp"):
        detected(tmp_path / "field.png", tmp_path / "out", detector, CONFIG)


def test_damage_below_sound_overviews_is_refused(tmp_path: Path, he_slide: Path, detector: Detector) -> None:
    with open_slide(he_slide) as slide:
        pixels = np.tile(slide.read(0, 0, WIDTH, HEIGHT), (1, 6, 1))  # wide: overviews read a coarser level
    damaged = write_slide(tmp_path / "wide.tif", pixels)
    with tifffile.TiffFile(damaged) as file:
        page = file.pages[0]
        start, length = page.dataoffsets[-1], page.databytecounts[-1]  # type: ignore[union-attr]
    data = bytearray(damaged.read_bytes())
    data[start : start + length] = bytes(length)
    damaged.write_bytes(data)
    config = DetectionConfig(tile_px=128)
    with pytest.raises(SlideError, match=r"wide\.tif: tiles that cannot be decoded: 1 "):
        detected(damaged, tmp_path / "out", detector, config, tissue="whole")


def test_a_full_disk_is_said_and_resumed(
    tmp_path: Path,
    he_slide: Path,
    detector: Detector,
    whole: SlideOutcome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add, calls = TileJournal.add, []

    def full(self: TileJournal, tile: int, points: Peaks) -> None:
        calls.append(tile)
        if len(calls) == 4:
            raise OutputError("cannot write (No space left on device)", path=self.path)
        add(self, tile, points)

    monkeypatch.setattr(TileJournal, "add", full)
    with pytest.raises(OutputError, match="No space"):
        detected(he_slide, tmp_path, detector, CONFIG)
    monkeypatch.undo()
    outcome = detected(he_slide, tmp_path, detector, CONFIG)
    pd.testing.assert_frame_equal(_candidates(outcome), _candidates(whole))


def test_models_that_do_not_fit_are_refused(tmp_path: Path, model: Path) -> None:
    classifier = tiny_model(tmp_path / "classifier.safetensors", family="classifier")
    with pytest.raises(ModelError, match="not a detector"):
        load_detector([classifier])
    coarse = tiny_model(tmp_path / "coarse.safetensors", mpp=0.5)
    with pytest.raises(ModelError, match=r"0\.5 um/px"):
        load_detector([model, coarse])


def test_a_model_of_another_resolution_sees_that_resolution(tmp_path: Path, he_slide: Path) -> None:
    coarse = load_detector([tiny_model(tmp_path / "coarse.safetensors", mpp=0.5)])
    outcome = detected(he_slide, tmp_path / "out", coarse, DetectionConfig(probability_map=True))
    assert tifffile.imread(tmp_path / "out" / "probability.tif").shape == (-(-HEIGHT // 8), -(-WIDTH // 8))
    assert outcome.summary["model"]["mpp"] == 0.5


@pytest.mark.parametrize("wrong", [{"threshold": 0.0}, {"tile_px": 8}, {"formats": ("word",)}])
def test_settings_without_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        DetectionConfig(**wrong)  # type: ignore[arg-type]


def with_atypical(folder: Path) -> Path:
    """A tiny model whose card names another tiny network that tells atypical figures."""
    tiny_model(folder / "shapes.safetensors", seed=3)
    card = folder / "shapes.json"
    stated = json.loads(card.read_text()) | {
        "classes": ["typical", "atypical"],
        "calibration": {"scale": 0.5, "shift": -1.0},
    }
    card.write_text(json.dumps(stated))
    model = tiny_model(folder / "tiny.safetensors")
    named = {"model": "shapes", "weights_sha256": stated["weights_sha256"]}
    card = model.with_suffix(".json")
    card.write_text(json.dumps(json.loads(card.read_text()) | {"atypical": named}))
    return model


def test_atypical_figures_are_told_beside_the_count(
    tmp_path: Path, he_slide: Path, whole: SlideOutcome
) -> None:
    outcome = detected(he_slide, tmp_path / "out", load_detector([with_atypical(tmp_path)]))
    candidates = _candidates(outcome)
    assert candidates["atypical"].between(0, 1).all()
    assert candidates["atypical"].nunique() > 10
    same = _candidates(whole)
    np.testing.assert_allclose(candidates["probability"], same["probability"], atol=1e-5)
    share = outcome.summary["atypical"]
    mitoses = candidates[candidates["probability"] >= 0.9]
    assert share["of"] == len(mitoses) == outcome.summary["detections"]
    assert share["share"] == pytest.approx(mitoses["atypical"].mean())
    assert share["interval"][0] <= share["share"] <= share["interval"][1]
    assert "Atypical, for research" in (outcome.folder / "report.html").read_text()
    assert whole.summary["atypical"] is None


def test_a_network_of_atypical_figures_is_no_detector(tmp_path: Path) -> None:
    model = with_atypical(tmp_path)
    with pytest.raises(ModelError, match="network of atypical figures, not a detector"):
        load_detector([tmp_path / "shapes.safetensors"])
    tiny_model(tmp_path / "shapes.safetensors", seed=4)
    with pytest.raises(ModelError, match="not the network for atypical figures of tiny"):
        load_detector([model])


def test_the_bundled_model_is_sound_and_says_what_it_is() -> None:
    bundled = load_detector()
    assert bundled.cards[0].weights_sha256
    assert bundled.optical_density is not None
    card = bundled.cards[0]
    assert "Research only" in card.intended_use
    assert all(source.terms for source in card.data)
    assert card.known_failures
    for name in ("mitoses", "count"):
        point = card.thresholds[name]  # type: ignore[index]
        assert getattr(bundled.points, name).delta == point.delta
        assert point.suppress_um == 15.0
        assert not any(case.startswith("midesec") for case in point.cases)
    assert bundled.points.count.delta > bundled.points.mitoses.delta
    assert "scores are decided" in bundled.points.count.source
    assert (bundled.points.count.delta, bundled.points.count.prior is not None) == (0.4, True)
    models = bundled_model().parent.glob("*")
    assert sum(path.stat().st_size for path in models) < 25e6


def test_bundled_models_go_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    simulated = load_detector(["simulated"])
    assert "simulated" in simulated.cards[0].intended_use
    assert simulated.points.suppress_um == 25.0
    (tmp_path / "breast").mkdir()
    assert named_model("breast") == bundled_model(), "a folder of results is no model"
    (tmp_path / "breast").rmdir()
    (tmp_path / "breast").touch()
    assert named_model("breast") == Path("breast")
    with pytest.raises(ModelError, match=r"no such model.*breast, breast-atypical, .*, simulated\)"):
        named_model("other.safetensors")


def test_a_slide_that_changes_while_it_is_searched_gives_an_error_and_no_result(
    tmp_path: Path, he_slide: Path, detector: Detector
) -> None:
    slide = tmp_path / "he.tif"
    slide.write_bytes(he_slide.read_bytes())

    def change(_done: float, _total: float) -> None:
        with slide.open("ab") as file:
            file.write(b"more")

    with pytest.raises(MetaphaseError, match=r"changed during the stage search: slide\.content"):
        detected(slide, tmp_path / "out", detector, progress=change)
    assert not (tmp_path / "out" / "search.parquet").exists()
    assert not (tmp_path / "out" / "summary.json").exists()
    assert not detected(slide, tmp_path / "out", detector).resumed
