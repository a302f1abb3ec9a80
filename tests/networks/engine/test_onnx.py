"""Exported detectors by ONNX Runtime: the engine's answers, whatever the family and the size of an image."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from metaphase.base.errors import ModelError, UsageError
from metaphase.networks.cards import ModelCard, bundled_model
from metaphase.networks.checkpoints import save_model
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine import Engine, EngineConfig, PeakConfig, find_detections, peaks, places
from metaphase.networks.engine.onnx import OnnxEngine, load_onnx
from metaphase.networks.exporting import detector_graph, export_model
from metaphase.slides import ArraySlide
from tests.networks.engine.networks_made import (
    lite_network,
    random_network,
    residual_network,
    swift_network,
    texture,
)

CPU = EngineConfig(device="cpu", workers=1, precision="float32")
SIZES = ((97, 97), (97, 131), (200, 153), (250, 226))


def card_of(family: str, gamma: float, normalisation: str) -> ModelCard:
    about = {"family": family, "gamma": gamma, "normalisation": normalisation}
    return ModelCard(name="a", mpp=0.25, patch_px=100, classes=("other", "mitosis"), **about)  # type: ignore[arg-type]


NETWORKS = {
    "detector": (random_network(), card_of("detector", 0.07, "none")),
    "normalised": (random_network(normalisation="batch"), card_of("detector", 0.07, "batch")),
    "residual": (residual_network(), card_of("residual", 0.07, "batch")),
    "swift": (swift_network(), card_of("swift", 0.3, "batch")),
    "lite": (lite_network(), card_of("lite", 0.3, "batch")),
}


@pytest.fixture(scope="module", params=NETWORKS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """A network, and the same exported."""
    folder = tmp_path_factory.mktemp("models")
    network, card = NETWORKS[request.param]
    save_model(folder / "model", network, card)
    export_model(folder / "model.safetensors", folder / "graph.onnx")
    return network, folder / "graph.onnx"


def test_parity_with_the_engine(pair: tuple[nn.Sequential, Path]) -> None:
    network, path = pair
    engine, exported = Engine([network], CPU), OnnxEngine([load_onnx(path)[0]], CPU)
    for height, width in SIZES:
        image = texture(height, width)
        np.testing.assert_allclose(
            exported.probability_map(image), engine.probability_map(image), atol=1e-4, rtol=0
        )
    two = np.stack([texture(150, 120, seed) for seed in (1, 2)])
    np.testing.assert_allclose(
        exported.logits(two), engine.logits(torch.from_numpy(two)).numpy(), atol=2e-4, rtol=1e-4
    )
    patches = np.ascontiguousarray(two[:, :97, :97])
    np.testing.assert_allclose(
        exported.patch_probabilities(patches), engine.patch_probabilities(patches), atol=1e-4, rtol=0
    )


def test_same_detections_on_a_slide(pair: tuple[nn.Sequential, Path]) -> None:
    network, path = pair
    slide = ArraySlide(texture(330, 270), 0.25)
    config = PeakConfig(floor=0.2, suppress_um=3, smooth_um=1.2)
    expected = find_detections(Engine([network], CPU), slide, config, tile_px=104)
    engine = ReadyDetector(load_detector([path]), CPU).engine
    found = find_detections(engine, slide, config, tile_px=168)
    assert len(found.x) == len(expected.x) > 0
    for one, other in ((found, expected), (expected, found)):
        distance = np.hypot(one.x[:, None] - other.x, one.y[:, None] - other.y)
        assert distance.min(axis=1).max() < 0.05


@pytest.mark.parametrize("name", ["breast", "simulated"])
def test_bundled_models(tmp_path: Path, name: str) -> None:
    card = export_model(name, tmp_path / name)
    exported = load_detector([tmp_path / f"{name}.onnx"])
    plain = load_detector([name])
    assert exported.identities == plain.identities
    assert exported.points == plain.points
    assert card.graph_sha256 != ""
    image = texture(160, 173)
    engines = [ReadyDetector(each, CPU).engine for each in (plain, exported)]
    np.testing.assert_allclose(*(engine.probability_map(image) for engine in engines), atol=1e-4, rtol=0)


def test_ensembles_are_averaged(tmp_path: Path) -> None:
    for seed in (1, 2):
        save_model(tmp_path / f"model{seed}", random_network(seed), card_of("detector", 0.07, "none"))
        export_model(tmp_path / f"model{seed}", tmp_path / f"graph{seed}")
    image = texture(120, 130)
    plain = Engine([random_network(1), random_network(2)], CPU).probability_map(image)
    graphs = [tmp_path / "graph1.onnx", tmp_path / "graph2.onnx"]
    found = ReadyDetector(load_detector(graphs), CPU).engine.probability_map(image)
    np.testing.assert_allclose(found, plain, atol=1e-5)
    with pytest.raises(ModelError, match="beside others"):
        load_detector([graphs[0], tmp_path / "model1.safetensors"])


def test_graph_says_what_it_is() -> None:
    network, card = NETWORKS["residual"]
    model = detector_graph(network, card)
    assert {prop.key: prop.value for prop in model.metadata_props}["mpp"] == "0.25"
    (pixels,) = model.graph.input
    assert pixels.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [side.dim_param for side in pixels.type.tensor_type.shape.dim] == ["tiles", "height", "width", ""]


def test_bad_files_are_errors(tmp_path: Path) -> None:
    save_model(tmp_path / "model", random_network(), card_of("detector", 0.07, "none"))
    with pytest.raises(UsageError, match="overwrite"):
        export_model(tmp_path / "model", tmp_path / "model.onnx")
    export_model(tmp_path / "model", tmp_path / "graph")
    path = tmp_path / "graph.onnx"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="checksum differs"):
        load_detector([path])
    import hashlib

    card = json.loads((tmp_path / "graph.json").read_text())
    card["graph_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "graph.json").write_text(json.dumps(card))
    with pytest.raises(ModelError, match="not a graph that runs"):
        _ = ReadyDetector(load_detector([path]), CPU).engine
    with pytest.raises(UsageError, match="not supported"):
        ReadyDetector(load_detector([path]), EngineConfig(device="tpu"))


def test_small_tiles_are_refused(pair: tuple[nn.Sequential, Path]) -> None:
    engine = OnnxEngine([load_onnx(pair[1])[0]], CPU)
    with pytest.raises(UsageError, match="97 px or more"):
        engine.probability_map(texture(96, 200))


def test_classifiers_are_refused(tmp_path: Path) -> None:
    from metaphase.networks.architectures import build_network

    card = card_of("classifier", 1.0, "none")
    save_model(tmp_path / "model", build_network(card.spec), card)
    with pytest.raises(ModelError, match="not a detector"):
        export_model(tmp_path / "model", tmp_path / "graph")
    assert bundled_model().suffix == ".safetensors"


MAPS = arrays(
    np.float32,
    st.tuples(st.integers(1, 2), st.integers(9, 14), st.integers(9, 14)),
    elements=st.floats(-30, 30, width=32),
)


@given(MAPS, st.sampled_from([0.0, 0.4, 1.0]), st.sampled_from([0.1, 0.5, 0.9]), st.booleans())
def test_arrays_and_tensors_have_the_same_places(
    logits: np.ndarray, sigma: float, floor: float, maxima: bool
) -> None:
    smooth = places.smoothed(logits, sigma)
    tensor = peaks.smoothed(torch.from_numpy(logits), sigma)
    np.testing.assert_allclose(smooth, tensor.numpy(), atol=1e-3, rtol=1e-4)
    same = tensor.numpy()
    chosen = (places.is_peak if maxima else places.reaches)(same, floor)
    expected = (peaks.is_peak if maxima else peaks.reaches)(tensor, floor)
    np.testing.assert_array_equal(chosen, expected.numpy())
    found = places.collect(same, chosen, between=maxima)
    wanted = peaks.collect(tensor, expected, between=maxima)
    np.testing.assert_array_equal(found.output, wanted.output)
    for name in ("row", "column", "probability"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), atol=1e-4)
