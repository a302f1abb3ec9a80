"""A second network that looks at what a first one points to."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.special import expit, logit
from torch import Tensor, nn

from metaphase.base.arrays import RGB, Floats, Floats32
from metaphase.base.errors import ModelError, UsageError
from metaphase.networks.cards import Calibration, EightBits, ModelCard, SecondModel, TrainingData
from metaphase.networks.checkpoints import package_model, save_model
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.onnx import NEAR_POINT, OnnxEngine, OnnxNetwork
from metaphase.networks.engine.positions import BORDER, Peaks, collect, is_peak, smoothed, smoothing_reach
from metaphase.networks.engine.second import (
    ANSWER_PX,
    FAR,
    MARGIN,
    NARROW_OUTPUTS,
    NEAR,
    VIEWS,
    Windows,
    cut,
    re_check,
    view_logits,
)
from metaphase.networks.engine.settings import EngineConfig, PeakConfig, Second
from metaphase.networks.engine.streaming import Detections, as_detections, find_detections, plan_detection
from metaphase.networks.exporting import export_model, measured_eight_bits, measured_ranges
from metaphase.networks.training.answers import final_logits
from metaphase.slides.arrays import ArraySlide
from tests.networks.engine.networks_made import (
    GAMMA,
    assert_same,
    lite_network,
    random_network,
    residual_network,
    texture,
)

CPU = EngineConfig(device="cpu", workers=2, precision="float32")


EVERYWHERE = replace(CPU, exhaustive=True)


@pytest.mark.parametrize(("first", "smooth_um"), [(lite_network, 0.0), (random_network, 1.0)])
def test_finds_what_both_find_everywhere(first: type[nn.Sequential], smooth_um: float) -> None:
    slide = ArraySlide(texture(300, 280), mpp=0.25)
    config = PeakConfig(floor=0.6, suppress_um=5, smooth_um=smooth_um)
    everywhere = find_detections(
        Engine([first()], EVERYWHERE, Second(residual_network(), 0.9)), slide, config
    )
    looked = find_detections(Engine([first()], CPU, Second(residual_network(), 0.001)), slide, config)
    assert len(everywhere.x) > 5
    apart = np.hypot(everywhere.x[:, None] - looked.x, everywhere.y[:, None] - looked.y)
    same = apart.argmin(1)
    found = apart.min(1) < 0.05
    assert found.mean() > 0.5  # the others have no maximum of the first network near them
    np.testing.assert_allclose(everywhere.probability[found], looked.probability[same][found], atol=1e-4)


@pytest.mark.parametrize("tile_px", [136, 256])
def test_tile_size_changes_nothing(tile_px: int) -> None:
    slide = ArraySlide(texture(270, 240), mpp=0.25)
    engine = Engine([lite_network()], CPU, Second(residual_network(), 0.05))
    config = PeakConfig(floor=0.4, suppress_um=5, smooth_um=1.0)
    whole = find_detections(engine, slide, config, tile_px=320)
    tiled = find_detections(engine, slide, config, tile_px=tile_px)
    assert len(whole.x) > 5
    assert_same(tiled, whole)


@pytest.mark.slow
def test_a_higher_floor_asks_less() -> None:
    slide = ArraySlide(texture(240, 240), mpp=0.25)
    config = PeakConfig(floor=0.2, suppress_um=5)
    counts = [
        len(
            find_detections(Engine([lite_network()], CPU, Second(residual_network(), floor)), slide, config).x
        )
        for floor in (0.001, 0.5, 0.999999)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[2]


# ---- how much is asked ----


class Asked:
    """Two networks whose answers are maps that are known beforehand; what is asked of the second is noted."""

    def __init__(self, one: Floats32, other: Floats32) -> None:
        self.maps, self.windows = (one[None], other[None]), Counter[int]()

    def __call__(self, windows: Windows) -> tuple[Floats32, Floats32]:
        """The maps around positions."""
        self.windows[windows.outputs] += len(windows.tile)
        one, other = (cut(each, windows, 1, windows.outputs) for each in self.maps)
        return one, other


SIGMA, FLOOR = 1.75, 0.2
REACH, INNER = smoothing_reach(SIGMA), slice(MARGIN, -MARGIN)


def hills(positions: list[tuple[int, int]], height: float, base: float = -6.0) -> Floats32:
    """Logits of 80 x 80 outputs with a hill at each position."""
    rows, columns = np.mgrid[:80, :80]
    tops = [np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / 50) for row, column in positions]
    return (base + (height - base) * np.max(tops, axis=0)).astype(np.float32)


def looked(one: Floats32, other: Floats32) -> tuple[Peaks, Asked]:
    """What becomes of the first network's positions."""
    own = smoothed(one[None, INNER, INNER], SIGMA)
    asked = Asked(one, other)
    return re_check(collect(own, is_peak(own, 0.3)), asked, SIGMA, FLOOR, Calibration()), asked


def whole(one: Floats32, other: Floats32) -> Floats32:
    """The mean of both everywhere, smoothed, where positions are counted."""
    return smoothed(((one + other) / 2)[None, INNER, INNER], SIGMA)


def test_a_place_that_the_second_denies_is_seen_by_itself_only() -> None:
    found, asked = looked(hills([(30, 30), (50, 50)], 3.0), hills([(30, 30)], 3.0, -9.0))
    assert [(round(row), round(column)) for row, column in zip(found.row, found.column, strict=True)] == [
        (30 - MARGIN - REACH, 30 - MARGIN - REACH)
    ]
    assert asked.windows == {1: 2, 2 * (REACH + NEAR + BORDER) + 1: 1}


def test_a_maximum_that_moves_far_is_followed() -> None:
    one, other = hills([(40, 40)], 3.0), hills([(48, 40)], 6.0)
    found, asked = looked(one, other)
    assert asked.windows[2 * (REACH + FAR + BORDER) + 1] == 1
    expected = collect(whole(one, other), is_peak(whole(one, other), FLOOR))
    np.testing.assert_allclose(found.row, expected.row)
    np.testing.assert_allclose(found.probability, expected.probability, rtol=1e-5)


def test_wide_smoothing_is_not_judged_by_the_place_itself() -> None:
    one = hills([(40, 40)], 3.0)
    asked = Asked(one, one)
    sigma = 2 * NARROW_OUTPUTS
    own = smoothed(one[None, INNER, INNER], sigma)
    re_check(collect(own, is_peak(own, 0.1)), asked, sigma, 0.05, Calibration())
    assert list(asked.windows) == [2 * (smoothing_reach(sigma) + NEAR + BORDER) + 1]


@given(seed=st.integers(0, 10_000), agree=st.floats(0, 1))
def test_what_is_found_is_what_both_say_everywhere(seed: int, agree: float) -> None:
    rng = np.random.default_rng(seed)
    one, own = (8 * gaussian_filter(rng.standard_normal((80, 80)), 3) * 10 - 2 for _ in range(2))
    one, other = one.astype(np.float32), (agree * one + (1 - agree) * own).astype(np.float32)
    found, _ = looked(one, other)
    assert len(found.row) or agree < 0.9
    mean = expit(whole(one, other)[0])
    inside = (np.abs(np.stack([found.row, found.column]) - len(mean) / 2) < len(mean) / 2 - FAR).all(0)
    for row, column, probability in zip(
        found.row[inside], found.column[inside], found.probability[inside], strict=True
    ):
        rows, columns = (slice(round(at) - 1, round(at) + 2) for at in (row, column))
        assert probability >= FLOOR
        assert np.isclose(mean[rows, columns], probability, rtol=1e-4).any()


def test_components_need_every_place() -> None:
    slide, config = ArraySlide(texture(200, 200), mpp=0.25), PeakConfig(floor=0.8, method="components")
    with pytest.raises(UsageError, match="exhaustive=true"):
        find_detections(Engine([lite_network()], CPU, Second(residual_network(), 0.5)), slide, config)
    both = Engine([lite_network()], EVERYWHERE, Second(residual_network(), 0.5))
    assert len(find_detections(both, slide, config).x) > 0


def test_a_network_of_cells_cannot_look_again() -> None:
    with pytest.raises(ModelError, match="other than convolutions"):
        Engine([lite_network()], CPU, Second(lite_network(), 0.1))


@pytest.mark.parametrize("second", [None, Second(residual_network(), 0.001)])
def test_calibration_moves_probabilities_and_no_place(second: Second[nn.Sequential] | None) -> None:
    slide = ArraySlide(texture(220, 220), mpp=0.25)
    plain = find_detections(
        Engine([lite_network()], CPU, second), slide, PeakConfig(floor=0.01, suppress_um=5)
    )
    engine = Engine([lite_network()], CPU, second, Calibration(0.5, -1.0))
    found = find_detections(engine, slide, PeakConfig(floor=expit(0.5 * logit(0.01) - 1), suppress_um=5))
    moved = expit(0.5 * logit(plain.probability) - 1)
    assert_same(found, replace(plain, probability=moved), px=1e-3)


# ---- the final answer ----


class Spots(nn.Module):
    """A detector of dark spots that takes sides: it answers otherwise about a turned or mirrored one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rows, columns = torch.meshgrid(*2 * [torch.arange(97) - 49.5], indexing="ij")
        bell = torch.exp(-((columns + 0.5 * rows) ** 2) / (40 + 10 * seed) - rows**2 / 120)
        self.kernel = nn.Parameter(-(bell - bell.mean())[None, None] / bell.sum())

    def forward(self, pixels: Tensor) -> Tensor:
        said = 40 * nn.functional.conv2d(pixels.mean(1, keepdim=True), self.kernel, stride=4) - 7
        return torch.cat([torch.zeros_like(said), said], 1)


def spotted() -> RGB:
    """Grey with dark lopsided spots."""
    rows, columns = np.mgrid[:360, :360]
    image = np.full((360, 360), 220.0)
    for number, (x, y) in enumerate([(120, 110), (231, 127), (142, 238), (244, 250)]):
        along, across = columns - x, rows - y
        image -= 110 * np.exp(-((along + 0.4 * across) ** 2) / (60 + 20 * number) - across**2 / 70)
    return np.repeat(image.clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)


def spots_found(image: RGB, answered_from: float | None) -> Floats:
    """Probabilities of the spots."""
    second = Second(Spots(2), 0.5, answered_from=answered_from)
    engine = Engine([Spots(1)], EVERYWHERE, second, Calibration(0.8, -0.2))  # type: ignore[list-item]
    slide = ArraySlide(np.ascontiguousarray(image), mpp=0.25)
    found = find_detections(engine, slide, PeakConfig(floor=0.05, suppress_um=10, smooth_um=0.5))
    return np.sort(found.probability)


@pytest.mark.parametrize("way", ["moved", "turned"])
def test_the_final_answer_does_not_hang_on_offset_or_side(way: str) -> None:
    image = spotted()
    views = [image[step:, 3 * step % 8 :] for step in range(8)]
    if way == "turned":
        views = [np.rot90(each, turns) for each in (image, image[:, ::-1]) for turns in range(4)]
    moved = {}
    for answered_from in (None, 0.1):
        said = np.array([spots_found(view, answered_from) for view in views])
        assert said.shape == (8, 4)
        assert said.max() > 0.3
        moved[answered_from] = np.ptp(said, axis=0).max()
    assert moved[0.1] < 0.025
    assert moved[None] > 0.035


def test_what_the_final_answer_denies_is_no_detection() -> None:
    """Squares lie around the corner of pixels next to a position, also at the slide's edge."""
    image = np.zeros((300, 300, 3), np.uint8)
    image[100, 100], image[200, 200] = 130, 127
    seen = []

    class Fake(Engine):
        def window_logits(self, windows: RGB) -> Floats32:
            seen.append(windows.shape)
            logits = np.full((len(windows), 5, 5), -9.0, np.float32)
            logits[:, 2, 2] = windows[:, 57:59, 57:59, 0].astype(np.float32).max((1, 2)) - 128
            return logits

    second = Second(residual_network(), 0.5, answered_from=0.1)
    engine = Fake([lite_network()], CPU, second, Calibration(0.5, 1.0))
    engine.windows_px = 1
    slide = ArraySlide(image, mpp=0.25)
    config = PeakConfig(floor=0.5, suppress_um=5)
    plan = plan_detection(slide, engine, config)
    x, y = np.array([[101.4, 200.0, 102.0, 1.0], [100.6, 200.4, 101.0, 1.0]])
    found = Detections(x, y, np.array([0.3, 0.9, 0.2, 0.4], np.float32))
    kept = as_detections(engine, slide, found, config, plan)
    assert seen == [(VIEWS, 113, 113, 3)] * 3, "those suppressed before are not asked about"
    assert kept.x.tolist() == [101.4, 200.0], "most probable first"
    np.testing.assert_allclose(kept.probability, expit([2.0, 0.5]), rtol=1e-6)


def test_views_are_all_sides_of_a_square_around_one_corner_of_pixels() -> None:
    square = np.zeros((1, ANSWER_PX, ANSWER_PX, 3), np.uint8)
    square[0, 57:59, 57:59] = 200
    square[0, 57, 59], square[0, 50, 60] = 90, 255
    seen = []

    def window_logits(windows: RGB) -> Floats32:
        seen.extend(windows)
        logits = np.zeros((VIEWS, 5, 5), np.float32)
        for view, row, column in np.argwhere(windows[..., 0] == 255):
            logits[view, row // 4 - 12, column // 4 - 12] = VIEWS
        return logits

    assert view_logits(square, window_logits) == VIEWS, "maps are turned back before they are averaged"
    assert all((each[57:59, 57:59] == 200).all() for each in seen), "the position stays"
    assert len(np.unique(np.reshape(seen, (VIEWS, -1)), axis=0)) == VIEWS


@pytest.mark.parametrize("exhaustive", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_final_answers_are_those_of_torch_and_of_training(tmp_path: Path, exhaustive: bool) -> None:
    image, pair = texture(200, 180), [lite_network(), residual_network()]
    slide, config = ArraySlide(image, mpp=0.25), PeakConfig(floor=0.3, suppress_um=5, smooth_um=1.0)
    settings = replace(CPU, exhaustive=exhaustive)
    ready = ReadyDetector(load_detector([saved(tmp_path, answered_from=0.8)]), settings).engine
    assert isinstance(ready, OnnxEngine)
    found = find_detections(ready, slide, config)
    assert len(found.x) > 2
    second = Second(pair[1], 0.05, answered_from=0.8)
    assert_same(found, find_detections(Engine(pair[:1], settings, second), slide, config))
    inside = (np.abs(np.stack([found.x - 90, found.y - 100])) < 30).all(0)
    points = np.column_stack([found.x, found.y])[inside]
    said = final_logits(pair, image, torch.device("cpu"), points)
    np.testing.assert_allclose(expit(said), found.probability[inside], atol=1e-3)


def test_a_final_answer_is_part_of_what_a_model_is() -> None:
    second = SecondModel(model="other", weights_sha256="1", floor=0.1)
    card = ModelCard(
        name="a", family="lite", gamma=1.0, normalisation="batch", mpp=0.25, patch_px=100,
        classes=("no", "mitosis"), second=second,
    )  # fmt: skip
    others = [second.model_copy(update={"answered_from": value}) for value in (0.4, 0.5)]
    cards = [card, *(card.model_copy(update={"second": other}) for other in others)]
    assert len({each.identities for each in cards}) == 3


# ---- as a model on disk ----


def saved(
    folder: Path,
    floor: float = 0.05,
    calibration: Calibration | None = None,
    error: float | None = None,
    answered_from: float | None = None,
) -> Path:
    """A model whose card asks for a re-check; with an error it has a form in 8 bits."""
    about = {"mpp": 0.25, "patch_px": 100, "classes": ("no", "mitosis"), "normalisation": "batch"}
    data = (TrainingData(name="none", terms="none"),)
    card = ModelCard(name="other", family="residual", gamma=GAMMA, data=data, **about)
    other = save_model(folder / "other", residual_network(), with_8_bits(card, residual_network(), error))
    second = SecondModel(
        model="other", weights_sha256=other.weights_sha256, floor=floor, answered_from=answered_from
    )
    card = ModelCard(
        name="both", family="lite", gamma=0.3, second=second, data=data, calibration=calibration, **about
    )
    save_model(folder / "both", lite_network(), with_8_bits(card, lite_network(), error))
    return folder / "both.safetensors"


def test_a_card_names_who_looks_again(tmp_path: Path) -> None:
    detector = load_detector([saved(tmp_path)])
    assert detector.second is not None
    assert detector.second.floor == 0.05
    assert len(detector.identities) == 2
    moved = load_detector([saved(tmp_path, calibration=Calibration(scale=1, shift=0.5))])
    assert len(moved.identities) == 3
    detector = load_detector([saved(tmp_path)])
    assert detector.identities != load_detector([saved(tmp_path, 0.06)]).identities
    slide = ArraySlide(texture(220, 220), mpp=0.25)
    config = PeakConfig(floor=0.3, suppress_um=5)
    ready = ReadyDetector(load_detector([saved(tmp_path)]), CPU)
    expected = find_detections(Engine([lite_network()], CPU, Second(residual_network(), 0.05)), slide, config)
    assert_same(find_detections(ready.engine, slide, config), expected)


def with_8_bits(card: ModelCard, network: nn.Sequential, error: float | None) -> ModelCard:
    """The card with ranges of what the tests show."""
    if error is None:
        return card
    ranges = measured_ranges(network, card, [texture(220, 220, seed) for seed in range(3)])
    return card.model_copy(update={"eight_bits": EightBits(ranges=tuple(ranges), error=error)})


def test_8_bits_search_and_float32_answers_near_a_threshold(tmp_path: Path) -> None:
    slide, config = ArraySlide(texture(270, 240), mpp=0.25), PeakConfig(floor=0.4, suppress_um=5, smooth_um=1)
    detector = load_detector([saved(tmp_path, error=2.0, answered_from=0.3)])
    assert detector.second is not None
    detector = replace(detector, second=replace(detector.second, points=(0.1, 0.88)))
    auto, exact = (
        ReadyDetector(detector, replace(CPU, precision=each)).engine for each in ("auto", "float32")
    )
    assert isinstance(auto, OnnxEngine)
    assert auto.arithmetic.startswith("8 bits")
    assert auto.second is not None
    assert auto.second.floor < 0.05
    assert len(find_detections(auto, slide, config).x) > 5
    squares = np.stack([texture(ANSWER_PX, ANSWER_PX, seed) for seed in range(12)])
    sure, quick = exact.final_logits(squares), view_logits(squares, auto._quick_logits)
    near = np.abs(expit(quick) - 0.88) < NEAR_POINT
    assert 0 < near.sum() < len(near)
    np.testing.assert_allclose(auto.final_logits(squares), np.where(near, sure, quick), atol=1e-4)
    assert not np.allclose(sure, quick, atol=1e-4)


def test_without_final_answers_the_search_is_in_float32(tmp_path: Path) -> None:
    detector = load_detector([saved(tmp_path, error=2.0)])
    assert ReadyDetector(detector, replace(CPU, precision="auto")).engine.arithmetic.startswith("float32")


def test_8_bits_find_the_same_in_a_real_field(real_data: Path) -> None:
    with Image.open(real_data / "mitos-atypia14-hamamatsu" / "H05_03Aa.jpg") as field:
        slide = ArraySlide(np.asarray(field.convert("RGB")), mpp=0.2273)
    detector = load_detector(["breast"])
    points = detector.points
    config = PeakConfig(smooth_um=points.smooth_um, suppress_um=points.suppress_um)
    engines = [ReadyDetector(detector, replace(CPU, precision=each)).engine for each in ("auto", "float32")]
    found, expected = (find_detections(each, slide, config) for each in engines)
    assert engines[0].arithmetic.startswith("8 bits")
    for delta in (points.mitoses.delta, points.count.delta):
        some, others = (
            np.column_stack([one.x, one.y])[one.probability >= delta] for one in (found, expected)
        )
        assert len(some) == len(others) > 0
        apart = np.hypot(*(some[:, None] - others[None]).transpose(2, 0, 1)).min(axis=1)
        assert apart.max() < 4, "the same positions, to a pixel of the networks"


def test_8_bits_are_measured_on_pictures_of_laboratories() -> None:
    about = {"mpp": 0.25, "patch_px": 100, "classes": ("no", "mitosis"), "normalisation": "batch"}
    card = ModelCard(name="other", family="residual", gamma=GAMMA, **about)
    pictures = {"a": [texture(150, 160)], "b": [texture(120, 97), texture(79, 80, 1)]}
    measured = measured_eight_bits(residual_network(), card, pictures, {"c": [texture(140, 140, 5)]})
    assert measured is not None
    assert all(low < high for low, high in measured.ranges)
    assert 0.05 <= measured.error < 2


def test_8_bits_that_are_wrong_here_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = ReadyDetector(
        load_detector([saved(tmp_path, error=1e-4, answered_from=0.3)]), replace(CPU, precision="auto")
    ).engine
    assert isinstance(engine, OnnxEngine)
    assert engine.quick is None
    assert "8 bits on this machine are off by" in caplog.text
    assert engine.second is not None
    assert engine.second.floor == 0.05


def test_8_bits_are_exported_and_vouched_for(tmp_path: Path) -> None:
    export_model(saved(tmp_path, error=2.0), tmp_path / "graph" / "both")
    network = load_detector([tmp_path / "graph" / "both.onnx"]).networks[0]
    assert isinstance(network, OnnxNetwork)
    assert network.quick is not None
    assert network.quick.error == 2.0
    assert len(network.quick.data) < len(network.data)
    quick = tmp_path / "graph" / "both.8bit.onnx"
    quick.write_bytes(quick.read_bytes()[:-1])
    with pytest.raises(ModelError, match="graph in 8 bits is not what the card describes"):
        load_detector([tmp_path / "graph" / "both.onnx"])


@pytest.mark.slow
def test_exported_it_finds_the_same(tmp_path: Path) -> None:
    model = saved(tmp_path, 0.02, Calibration(scale=0.8, shift=-0.3))
    export_model(model, tmp_path / "graph" / "both")
    slide = ArraySlide(texture(270, 240), mpp=0.25)
    config = PeakConfig(floor=0.3, suppress_um=5, smooth_um=1.0)
    found = [
        find_detections(ReadyDetector(load_detector([each]), CPU).engine, slide, config)
        for each in (model, tmp_path / "graph" / "both.onnx")
    ]
    assert len(found[0].x) > 5
    assert_same(*found)


def test_packaging_takes_both_along(tmp_path: Path) -> None:
    package_model(saved(tmp_path), tmp_path / "given" / "both")
    assert load_detector([tmp_path / "given" / "both"]).second is not None


def test_another_second_network_is_refused(tmp_path: Path) -> None:
    model = saved(tmp_path)
    about = {"mpp": 0.25, "patch_px": 100, "classes": ("no", "mitosis"), "normalisation": "batch"}
    save_model(
        tmp_path / "other",
        residual_network(seed=5),
        ModelCard(name="other", family="residual", gamma=GAMMA, **about),
    )
    with pytest.raises(ModelError, match="not the second network of both"):
        load_detector([model])
    (tmp_path / "other.safetensors").unlink()
    with pytest.raises(ModelError, match="other"):
        load_detector([model])
