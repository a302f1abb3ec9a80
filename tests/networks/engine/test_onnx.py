"""Exported detectors by ONNX Runtime: the engine's answers, whatever the family and the size of an image."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

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
from metaphase.networks.engine import onnx as onnx_engine
from metaphase.networks.engine import peaks, positions
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.onnx import OnnxEngine, load_onnx, run_graph
from metaphase.networks.engine.settings import DeviceError, EngineConfig, PeakConfig
from metaphase.networks.engine.streaming import find_detections
from metaphase.networks.exporting import detector_graph, export_model
from metaphase.slides.arrays import ArraySlide
from tests.networks.engine.networks_made import (
    lite_network,
    random_network,
    residual_network,
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
    with pytest.raises(ModelError, match="combined with others"):
        load_detector([graphs[0], tmp_path / "model1.safetensors"])


def test_graph_says_what_it_is() -> None:
    network, card = NETWORKS["residual"]
    model = onnx.load_from_string(detector_graph(network, card))
    onnx.checker.check_model(model, full_check=True)
    assert {prop.key: prop.value for prop in model.metadata_props}["mpp"] == "0.25"
    (pixels,) = model.graph.input
    assert pixels.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [side.dim_param for side in pixels.type.tensor_type.shape.dim] == ["tiles", "height", "width", ""]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModelError, match=r"package onnx. Pip install 'metaphase\[torch\]'"):
        detector_graph(*NETWORKS["lite"])


def test_bad_files_are_errors(tmp_path: Path) -> None:
    save_model(tmp_path / "model", random_network(), card_of("detector", 0.07, "none"))
    with pytest.raises(UsageError, match="overwrite"):
        export_model(tmp_path / "model", tmp_path / "model.onnx")
    export_model(tmp_path / "model", tmp_path / "graph")
    path = tmp_path / "graph.onnx"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="checksum differs"):
        load_detector([path])
    vouch_for(path, path.read_bytes())
    with pytest.raises(ModelError, match="not a graph that runs"):
        load_detector([path])


def test_an_unknown_device_is_refused(pair: tuple[nn.Sequential, Path]) -> None:
    with pytest.raises(UsageError, match="not supported"):
        ReadyDetector(load_detector([pair[1]]), EngineConfig(device="tpu"))


def vouch_for(path: Path, data: bytes) -> None:
    """Write a graph, and let its card vouch for it."""
    path.write_bytes(data)
    card = json.loads(path.with_suffix(".json").read_text())
    card["graph_sha256"] = hashlib.sha256(data).hexdigest()
    path.with_suffix(".json").write_text(json.dumps(card))


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    save_model(tmp_path / "model", random_network(), card_of("detector", 0.07, "none"))
    export_model(tmp_path / "model", tmp_path / "graph")
    return tmp_path / "graph.onnx"


def test_another_graph_is_another_search_and_the_same_profile(graph: Path) -> None:
    first, plain = load_detector([graph]), load_detector([graph.with_name("model")])
    assert first.identities == plain.identities == plain.exact_identities != first.exact_identities
    other = detector_graph(random_network(2), card_of("detector", 0.07, "none"))
    vouch_for(graph, other)
    assert load_detector([graph]).exact_identities != first.exact_identities


def with_node(model: onnx.ModelProto, kind: str) -> None:
    """A graph with a node that holds another graph, or with a function."""
    helper, types = onnx.helper, onnx.TensorProto
    if kind == "function":
        function = model.functions.add()
        function.name, function.domain = "endless", "own"
        return
    body = helper.make_graph([], "body", [], [helper.make_tensor_value_info("x", types.BOOL, [])])
    attributes = {"then_branch": body, "else_branch": body} if kind == "If" else {"body": body}
    model.graph.node.append(helper.make_node(kind, ["x"], ["y"], **attributes))


@pytest.mark.parametrize("kind", ["Loop", "If", "Scan", "function"])
def test_graphs_that_may_never_end_are_refused(graph: Path, kind: str) -> None:
    model = onnx.load(graph)
    with_node(model, kind)
    vouch_for(graph, model.SerializeToString())
    with pytest.raises(ModelError, match="only plain operators are run"):
        load_detector([graph])


def test_a_map_of_the_wrong_size_is_refused(graph: Path) -> None:
    model = onnx.load(graph)
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    conv.attribute.append(onnx.helper.make_attribute("pads", [4, 4, 4, 4]))
    vouch_for(graph, model.SerializeToString())
    engine = ReadyDetector(load_detector([graph]), CPU).engine
    with pytest.raises(ModelError, match=r"shape .*11, 11.* not .*9, 9"):
        engine.logits(np.zeros((1, 129, 129, 3), np.uint8))


class Endless:
    """A session that is at work until it is told to stop."""

    def run(self, _names: object, _given: object, options: Any) -> None:
        self.options = options
        while not options.terminate:
            time.sleep(0.001)


def test_signals_and_limits_end_a_graph_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class ToldError(Exception):
        pass

    def tell(*_: object) -> None:
        raise ToldError

    session, tiles = Endless(), np.zeros((1, 97, 97, 3), np.uint8)
    before = signal.signal(signal.SIGUSR1, tell)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    with pytest.raises(ToldError):
        run_graph(session, tiles)
    timer.join()
    signal.signal(signal.SIGUSR1, before)
    assert session.options.terminate
    monkeypatch.setattr(onnx_engine, "LONGEST_S", 0.01)
    with pytest.raises(DeviceError, match="took more than"):
        run_graph(session, tiles)
    assert session.options.terminate


def test_a_failure_without_a_word_is_told_too() -> None:
    class Silent:
        def run(self, *_: object) -> None:
            raise MemoryError

    with pytest.raises(DeviceError, match="more memory than there is"):
        run_graph(Silent(), np.zeros((1, 97, 97, 3), np.uint8))


def test_small_tiles_are_refused(pair: tuple[nn.Sequential, Path]) -> None:
    engine = OnnxEngine([load_onnx(pair[1])[0]], CPU)
    with pytest.raises(UsageError, match="97 px or more"):
        engine.probability_map(texture(96, 200))


WITHOUT = """
import sys
sys.modules["torch"] = sys.modules["onnx"] = None
import numpy as np
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig
ready = ReadyDetector(load_detector([sys.argv[1]]), EngineConfig(device="cpu", workers=1))
assert ready.engine.probability_map(np.zeros((97, 97, 3), np.uint8)).shape == (1, 1)
"""


def test_graphs_need_neither_torch_nor_onnx(graph: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT, str(graph)], check=True)


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
    smooth = positions.smoothed(logits, sigma)
    tensor = peaks.smoothed(torch.from_numpy(logits), sigma)
    np.testing.assert_allclose(smooth, tensor.numpy(), atol=1e-3, rtol=1e-4)
    same = tensor.numpy()
    chosen = (positions.is_peak if maxima else positions.reaches)(same, floor)
    expected = (positions.is_peak if maxima else positions.reaches)(tensor, floor)
    np.testing.assert_array_equal(chosen, expected.numpy())
    found = positions.collect(same, chosen, between=maxima)
    wanted = peaks.collect(tensor, expected, between=maxima)
    np.testing.assert_array_equal(found.output, wanted.output)
    for name in ("row", "column", "probability"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), atol=1e-4)
