"""The graph of a pair says what `metaphase detect` says; `predict` is on the same scale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from metaphase.base.arrays import RGB
from metaphase.base.errors import UsageError
from metaphase.detections.matching import suppress
from metaphase.detections.points import OperatingPoint
from metaphase.networks.cards import Calibration
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig, PeakConfig
from metaphase.networks.engine.streaming import Detections, find_detections
from metaphase.networks.joining import detections_graph, export_detector
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.tiles import cut_square
from tests.networks.engine.networks_made import lite_network, residual_network, texture
from tests.networks.engine.test_second import saved

CPU = EngineConfig(device="cpu", precision="float32")
SUPPRESS_UM = 5.0


def pair(folder: Path, smooth_um: float = 1.0) -> ReadyDetector:
    """Two untrained networks with final answers, calibrated."""
    model = saved(folder, 0.02, Calibration(scale=0.8, shift=-0.3), answered_from=0.3)
    detector = load_detector([model])
    point = OperatingPoint(name="mitoses", delta=0.5, smooth_um=smooth_um, suppress_um=SUPPRESS_UM)
    card = detector.cards[0].model_copy(update={"thresholds": {"mitoses": point}})
    return ReadyDetector(replace(detector, cards=(card,)), CPU)


def searched(model: ReadyDetector, image: RGB) -> Detections:
    points = model.detector.points
    peaks = PeakConfig(smooth_um=points.smooth_um, suppress_um=points.suppress_um)
    return find_detections(model.engine, ArraySlide(image, mpp=0.25), peaks)


def by_runtime(graph: bytes | Path, image: RGB) -> Detections:
    """As the recipe of docs/inference.md does it."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    x, y, found, probability = (one.astype(float) for one in session.run(None, {"pixels": image[None]}))
    kept = suppress(x, y, found, SUPPRESS_UM / 0.25)
    kept = kept[probability[kept] >= 0.1]
    return Detections(x, y, probability).select(kept[np.argsort(-probability[kept], kind="stable")])


@pytest.mark.parametrize(
    ("smooth_um", "sides"),
    [
        (1.0, (121, 101)),
        pytest.param(0.0, (121, 101), marks=pytest.mark.slow),
        pytest.param(2.7, (203, 187), marks=pytest.mark.slow),
    ],
)
def test_the_graph_of_a_pair_finds_what_a_search_finds(
    smooth_um: float, sides: tuple[int, int], tmp_path: Path
) -> None:
    model = pair(tmp_path, smooth_um)
    graph = detections_graph([lite_network(), residual_network()], model.detector.cards[0])
    for image in (texture(*sides), np.full((120, 130, 3), 255, np.uint8)):
        found, expected = by_runtime(graph, image), searched(model, image)
        np.testing.assert_allclose(found.x, expected.x, atol=1e-2)
        np.testing.assert_allclose(found.y, expected.y, atol=1e-2)
        np.testing.assert_allclose(found.probability, expected.probability, atol=1e-5)
    assert len(searched(model, texture(*sides)).x) > 0


def test_it_is_written_beside_the_others(tmp_path: Path) -> None:
    model = saved(tmp_path, 0.02, answered_from=0.3)
    card, path = export_detector(model, tmp_path / "graphs" / "both.onnx")
    assert path == tmp_path / "graphs" / "both.detections.onnx"
    assert card.second is not None
    assert {one.name for one in path.parent.glob("*.onnx")} == {
        "both.onnx", "other.onnx", "both.detections.onnx"
    }  # fmt: skip
    _, none = export_detector(saved(tmp_path / "plain"), tmp_path / "others" / "both")
    assert none is None


def test_predict_gives_final_answers(tmp_path: Path) -> None:
    """A map has them where a search finds something, patches of 116 px wherever they are asked about."""
    model, image = pair(tmp_path), texture(150, 140)
    found, told = searched(model, image), model.predict(image)
    cells = tuple(
        np.rint(place / 4).astype(int).clip(0, side - 1)
        for place, side in zip((found.y, found.x), told.shape, strict=True)
    )
    assert len(found.x) > 0
    np.testing.assert_array_equal(told[cells], found.probability)
    assert set(np.unique(told)) == {0, *found.probability.tolist()}
    first = model.first_map(image)
    assert first.shape == told.shape
    assert (first > 0).all()
    slide = ArraySlide(image, mpp=0.25)
    corners = zip(found.x + 0.5, found.y + 0.5, strict=True)
    patches = np.stack([cut_square(slide, x, y, 116) for x, y in corners])
    np.testing.assert_allclose(model.predict(patches), found.probability, atol=1e-5)
    wider = np.pad(patches, ((0, 0), (6, 5), (2, 9), (0, 0)), constant_values=255)
    moved = wider[:, 6 - 3 : 6 + 116 + 3, 2 - 2 : 2 + 116 + 2]
    np.testing.assert_allclose(model.predict(moved), found.probability, atol=1e-5)
    with pytest.raises(UsageError, match="116 px or more a side"):
        model.predict(patches[:, 10:])
