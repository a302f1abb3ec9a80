"""Probabilities of pixels in memory: maps and patches by our networks, and by anybody's classifier."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import zoom
from scipy.special import expit, logit
from torch import nn

import metaphase as mp
from metaphase.base.arrays import RGB, Floats
from metaphase.base.errors import ModelError, UsageError
from metaphase.networks.detector import Detector, ReadyDetector, plain_detector
from metaphase.networks.engine.layers import PatchNetwork
from metaphase.networks.engine.settings import EngineConfig, PeakConfig, Second
from metaphase.networks.engine.streaming import find_detections
from metaphase.slides.arrays import ArraySlide
from tests.networks.engine.networks_made import lite_network, plain_probabilities, random_network, texture

CPU = EngineConfig(device="cpu", precision="float32")


def ready(*, second: bool = False) -> ReadyDetector:
    network = lite_network() if second else random_network()
    detector = plain_detector(network, "tiny")
    looks = Second(random_network(5), 0.5) if second else None
    return ReadyDetector(Detector(detector.networks, detector.cards, looks), CPU)  # type: ignore[arg-type]


def around(image: RGB, by: int) -> RGB:
    return np.pad(image, ((by, by), (by, by), (0, 0)), constant_values=255)


def test_a_map_has_a_value_every_four_pixels_from_the_first_on() -> None:
    image = texture(150, 121)
    found = ready().predict(image)
    expected = plain_probabilities(random_network(), around(image, 50)).numpy()
    assert found.shape == (38, 31)
    np.testing.assert_allclose(found, expected[:38, :31], atol=1e-4)
    assert np.ptp(found) > 0.2


def test_a_map_says_what_a_search_says() -> None:
    """Both networks, smoothed, at the positions that a search finds."""
    image, model = texture(240, 260), ready(second=True)
    peaks = PeakConfig(floor=0.6, smooth_um=1.5, suppress_um=5)
    points = find_detections(model.engine, ArraySlide(image, 0.25), peaks)
    found = model.predict(image, smooth_um=1.5)
    rows, columns = (np.rint(position / 4).astype(int) for position in (points.y, points.x))
    inside = (np.minimum(rows, columns) >= 0) & (rows < found.shape[0]) & (columns < found.shape[1])
    assert inside.sum() > 3
    np.testing.assert_allclose(found[rows, columns][inside], points.probability[inside], atol=2e-3)
    assert np.ptp(model.predict(image, smooth_um=0)) > np.ptp(found)


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("side", [97, 100, 131])
def test_a_patch_has_the_number_of_its_middle(second: bool, side: int) -> None:
    image, model = texture(240, 220), ready(second=second)
    found = model.predict(image, smooth_um=0)
    positions = [(76, 68), (84, 124), (140, 108)]  # where cells of outputs begin
    first = 50 if side == 97 else side // 2
    patches = [image[y - first : y - first + side, x - first : x - first + side] for x, y in positions]
    expected = [found[y // 4, x // 4] for x, y in positions]
    np.testing.assert_allclose(model.predict(np.stack(patches)), expected, atol=1e-4)
    assert model.predict(np.empty((0, side, side, 3), np.uint8)).shape == (0,)


def test_pixels_that_are_no_image_are_refused() -> None:
    model = ready()
    for wrong in (np.zeros((100, 100)), np.full((100, 100, 3), 9.0), np.zeros((2, 96, 97, 3), np.uint8)):
        with pytest.raises(mp.MetaphaseError, match=r"[Gg]ive \(.*height, width, 3\)|[Ff]loats go"):
            model.predict(wrong)  # type: ignore[arg-type]
    assert repr(model) == "ReadyDetector(tiny, 0.25 um/px)"


# ---- a classifier of patches ----


class Classifier(nn.Module):
    """Padding, pooling and a linear layer: nothing that a detector may have."""

    def __init__(self, patch_px: int, answers: int) -> None:
        super().__init__()
        torch.manual_seed(patch_px)
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 5, padding=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(5), nn.Flatten()
        )
        self.head = nn.Linear(100, max(1, answers))
        self.answers = answers
        with torch.no_grad():
            self.head.weight.mul_(20)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.head(self.body(pixels))
        return values[:, 0] if self.answers == 0 else values


def one_by_one(network: nn.Module, image: RGB, patch_px: int, stride_px: int) -> Floats:
    """The logit of a window around each position, a stride apart and one beyond the image, by definition."""
    padded, first = around(image, patch_px + stride_px), patch_px + stride_px - patch_px // 2
    rows, columns = (-(-side // stride_px) + 1 for side in image.shape[:2])
    found = np.empty((rows, columns))
    for row in range(rows):
        for column in range(columns):
            y, x = first + row * stride_px, first + column * stride_px
            window = torch.from_numpy(padded[y : y + patch_px, x : x + patch_px].transpose(2, 0, 1).copy())
            with torch.inference_mode():
                values = network.eval()(window[None].float() / 255).reshape(-1)
            found[row, column] = values[-1] - (values[0] if len(values) == 2 else 0)
    return found


@pytest.mark.filterwarnings("ignore:mine sees")
@pytest.mark.parametrize(
    ("patch_px", "stride_px", "answers"), [(32, 4, 2), (63, 8, 1), (128, 16, 0), (97, 12, 2), (250, 32, 1)]
)
def test_a_classifier_sees_every_window(patch_px: int, stride_px: int, answers: int) -> None:
    network, image = Classifier(patch_px, answers), texture(60, 75)
    model = mp.use_network(network, "mine", patch_px=patch_px, stride_px=stride_px, device="cpu")
    found = model.predict(image, smooth_um=0)
    coarse, step = one_by_one(network, image, patch_px, stride_px), stride_px // 4
    sizes = [step * (side - 1) + 1 for side in coarse.shape]
    factors = [size / side for size, side in zip(sizes, coarse.shape, strict=True)]
    expected = zoom(coarse, factors, order=1)[: found.shape[0], : found.shape[1]]
    assert found.shape == (15, 19)
    np.testing.assert_allclose(found, expit(expected), atol=1e-4)
    patch = around(image, patch_px)[patch_px:, patch_px:][: patch_px + 2, : patch_px + 2]
    middle = np.stack([patch, patch])[:, 1:, 1:]
    with torch.inference_mode():
        start = middle.shape[1] // 2 - patch_px // 2
        seen = middle[:1, start : start + patch_px, start : start + patch_px].transpose(0, 3, 1, 2).copy()
        values = network.eval()(torch.from_numpy(seen).float() / 255).reshape(-1)
    alone = float(values[-1] - (values[0] if answers == 2 else 0))
    assert logit(model.predict(middle)) == pytest.approx([alone, alone], abs=1e-3)


@pytest.mark.filterwarnings("ignore:mine sees")
def test_a_classifier_searches_without_seams() -> None:
    model = mp.use_network(Classifier(64, 2), "mine", patch_px=64, stride_px=8, device="cpu")
    slide, peaks = ArraySlide(texture(120, 104), 0.25), PeakConfig(floor=0.3, smooth_um=1, suppress_um=5)
    whole, tiled = (find_detections(model.engine, slide, peaks, tile_px=side) for side in (120, 64))
    assert len(whole.x) > 3
    np.testing.assert_allclose(whole.x, tiled.x)
    np.testing.assert_allclose(whole.probability, tiled.probability, atol=1e-5)


def test_a_classifier_says_that_it_is_slow_and_what_it_must_be() -> None:
    with pytest.warns(UserWarning, match=r"mine sees 250,000 windows per mm2 one by one, slowly"):
        mp.use_network(Classifier(32, 2), "mine", patch_px=32)
    with pytest.raises(ModelError, match=r"answers \(3, 3\).*\(n, 1\) or \(n, 2\)"):
        mp.use_network(Classifier(32, 3), "mine", patch_px=32)
    with pytest.raises(ModelError, match=r"patches \(3, 3, 16, 16\), fails"):
        mp.use_network(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2)), "mine", patch_px=16)
    with pytest.raises(UsageError, match="multiple of 4"):
        mp.use_network(Classifier(32, 2), "mine", patch_px=32, stride_px=6)


def test_other_windows_are_another_model() -> None:
    """Results of one are not taken for the other's."""
    made = [plain_detector(PatchNetwork(Classifier(32, 2), 32, stride), "mine") for stride in (8, 16)]
    assert made[0].identities != made[1].identities
