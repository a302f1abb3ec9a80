"""The method `dense`: labelled images, windows, and networks that learn every cell of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy.special import expit
from torch import nn

from metaphase.base.arrays import Points
from metaphase.base.errors import ModelError, TrainingError
from metaphase.base.provenance import account_of
from metaphase.detections.table import LOOKALIKE, MITOSIS
from metaphase.images.stain.augmentation import AugmentationConfig
from metaphase.images.tissue.finding import TissueSource
from metaphase.networks.architectures import build_network
from metaphase.networks.cards import NetworkSpec
from metaphase.networks.training import images
from metaphase.networks.training.answers import (
    errors_of,
    image_maps,
    middle_cells,
    pair_found,
    teachers_answer,
)
from metaphase.networks.training.dense import DenseTraining, Lesson
from metaphase.networks.training.images import ImageSource, LabelledImage, read_images
from metaphase.networks.training.teachers import Teacher, published_weights, with_published
from metaphase.networks.training.windows import (
    ANY,
    NO,
    YES,
    Flat,
    ViewConfig,
    Views,
    WindowSampler,
    label_cells,
)
from metaphase.slides.opening import SlideSource
from tests.networks.training.published import random_weights

CPU = torch.device("cpu")
VIEW = ViewConfig(2, "R", AugmentationConfig(), 0.5)
SPEC = NetworkSpec("lite", 1 / 16, "batch")


def an_image(
    seed: int = 0, side: int = 320, kind: Any = "field", **points: list[tuple[float, float]]
) -> LabelledImage:
    """Grey tissue with dark spots at its points."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(150, 230, (side, side, 3)).astype(np.uint8)
    arrays = {label: np.array(positions, np.float64).reshape(-1, 2) for label, positions in points.items()}
    for x, y in arrays.get(MITOSIS, np.empty((0, 2))):
        pixels[max(0, int(y) - 14) : int(y) + 14, max(0, int(x) - 14) : int(x) + 14] = 40
    flags = np.full(len(arrays.get(MITOSIS, ())), np.nan)
    return LabelledImage(f"image-{seed}", "here", f"patient-{seed}", "train", kind, pixels, arrays, flags)


def source(path: Path, points: pd.DataFrame | None = None, kind: Any = "") -> ImageSource:
    empty = pd.DataFrame({"x": [], "y": [], "label": []})
    table = empty if points is None else points
    return ImageSource(
        path.stem,
        SlideSource(path, 0.25),
        "here",
        path.stem,
        "train",
        table,
        kind,
        1.0,
        TissueSource(whole=True),
    )


# ---- labelled images ----


def test_points_are_brought_to_pixels_of_a_quarter_micrometre(tmp_path: Path) -> None:
    Image.new("RGB", (200, 100), "pink").save(tmp_path / "a.png")
    points = pd.DataFrame(
        {"x": [50.0, 190], "y": [20.0, 90], "label": [MITOSIS, LOOKALIKE], "atypical": [1, None]}
    )
    given = ImageSource("a", SlideSource(tmp_path / "a.png", 0.5), "l", "p", "train", points, "field")
    (read,) = read_images([given], 1.0)
    assert read.pixels.shape == (200, 400, 3)
    assert read.of(MITOSIS).tolist() == [[100, 40]]
    assert read.of(LOOKALIKE).tolist() == [[380, 180]]
    assert read.atypical.tolist() == [1.0]


def test_a_slide_gives_the_pieces_with_labels_and_as_many_others_as_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "PIECE_PX", 50)
    Image.new("RGB", (400, 200), "pink").save(tmp_path / "a.png")
    points = pd.DataFrame({"x": [310.0, 345], "y": [20.0, 20], "label": MITOSIS})
    piece = 3 * 50**2 / 1e9
    read = read_images([source(tmp_path / "a.png", points, "slide")], 3 * piece)
    assert [one.pixels.shape for one in read] == [(50, 50, 3)] * 3
    assert len({one.name for one in read}) == 3
    assert read[0].of(MITOSIS).tolist() == [[10, 20], [45, 20]]
    assert sum(len(one.of(MITOSIS)) for one in read[1:]) <= 1, "a neighbour may know a label beyond its edge"
    with pytest.raises(TrainingError, match="memory allows 0"):
        read_images([source(tmp_path / "a.png", points, "slide")], piece / 2)


def test_images_beyond_the_memory_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (200, 100), "pink").save(tmp_path / "a.png")
    with pytest.raises(TrainingError, match="Raise memory_gb"):
        read_images([source(tmp_path / "a.png", None, "field")], 1e-6)


# ---- windows ----


def test_cells_near_a_mitosis_say_yes_and_around_it_anything() -> None:
    cells = label_cells(an_image(mitosis=[(160, 160)], ignore=[(40, 40)]))
    assert cells[40, 40] == YES
    assert cells[40, 46] == ANY
    assert cells[40, 60] == NO
    assert cells[10, 10] == ANY


def test_windows_of_a_step_depend_on_the_step_alone() -> None:
    windows = WindowSampler([an_image(mitosis=[(100, 100)]), an_image(1, kind="negatives")], CPU, 3)
    first, again, other = windows.draw(4, 7), windows.draw(4, 7), windows.draw(4, 8)
    assert torch.equal(first.pixels, again.pixels)
    assert torch.equal(first.cells, again.cells)
    assert not torch.equal(first.pixels, other.pixels)


def test_labels_and_answers_turn_with_the_window() -> None:
    image = an_image(mitosis=[(160, 160)])
    windows = WindowSampler([image], CPU, 0)
    windows.answers = Flat([(label_cells(image) == YES).astype(np.float16)], CPU)
    views = Views(windows, ViewConfig(6, "RSE", AugmentationConfig(), 0.0))
    batch = views(0)
    views.close()
    assert batch.answers is not None
    seen = batch.cells == YES
    assert seen.any()
    assert torch.equal(batch.answers[batch.cells != ANY] > 0.5, seen[batch.cells != ANY])
    dark = torch.nn.functional.avg_pool2d(batch.pixels.mean(1, keepdim=True), 4)[:, 0]
    assert float(dark[seen].mean()) < float(dark[batch.cells == NO].mean()) - 0.2


def test_crops_are_mirrored_or_laid_into_fields() -> None:
    crop = an_image(1, side=128, kind="crop", mitosis=[(64, 64)])
    field = an_image(2)
    alone, among = (WindowSampler([crop, field], CPU, 0, share).draw(16, 0) for share in (0.0, 1.0))
    assert int((alone.cells == ANY).sum()) > int((among.cells == ANY).sum())


# ---- answers ----


def test_a_map_has_a_cell_for_every_four_pixels_and_means_the_place_itself() -> None:
    torch.manual_seed(0)
    network = build_network(SPEC).eval()
    image = an_image(mitosis=[(200, 80)])
    (first,) = image_maps(network, [image.pixels], CPU)
    assert first.shape == (80, 80)
    moved = np.roll(image.pixels, (-8, -16), axis=(0, 1))
    (second,) = image_maps(network, [moved], CPU)
    torch.testing.assert_close(first[30:50, 30:50], second[28:48, 26:46], rtol=1e-3, atol=1e-3)


def test_both_networks_of_a_pair_decide_and_the_first_one_says_how_sure_it_is() -> None:
    first, second = torch.full((1, 40, 40), -8.0), torch.full((1, 40, 40), -8.0)
    first[0, 10, 12], second[0, 10, 12] = 4.0, 2.0
    second[0, 30, 30] = 12.0
    found = pair_found(lambda points: points[:, 0] / 100, first, second, 0.0, 15.0)
    order = np.argsort(found[:, 0])
    assert found[order, :2].round().tolist() == [[50, 42], [122, 122]]
    assert found[order, 2] == pytest.approx(expit([0.5, 1.22]), abs=1e-4), "the final answers"
    assert found[order, 3] == pytest.approx([expit(4.0), 0.0], abs=1e-4)
    assert found[order, 4] == pytest.approx(expit([3.0, 2.0]), abs=1e-4)


class Dark(nn.Module):
    """Says mitosis wherever it is dark; a cell is answered by its own pixels."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        mean = nn.functional.avg_pool2d(pixels.mean(1, keepdim=True), 4)[:, :, 12:-12, 12:-12]
        return torch.cat([torch.zeros_like(mean), 30 * (0.4 - mean)], 1)


def test_errors_are_lookalikes_and_what_lies_away_from_mitoses() -> None:
    image = an_image(mitosis=[(100, 100), (220, 220)], lookalike=[(30, 30)])
    wrong = LabelledImage(
        **{**vars(image), "points": {MITOSIS: np.array([[100.0, 100]]), LOOKALIKE: image.of(LOOKALIKE)}}
    )
    (found,) = errors_of([Dark()], [wrong], CPU)
    assert found[0].tolist() == [30, 30]
    assert np.hypot(*(found[1:] - 220).T).max() < 10


def test_errors_are_those_of_any_network() -> None:
    class Light(Dark):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return super().forward(1.35 - pixels)

    image = an_image(mitosis=[(100, 100), (220, 220)])
    image.pixels[16:44, 276:304] = 255
    alone, both = (
        errors_of(some, [replace(image, points={})], CPU)[0] for some in ([Dark()], [Dark(), Light()])
    )

    def near(found: Points, x: float, y: float) -> bool:
        return bool((np.hypot(*(found - (x, y)).T) < 40).any())

    assert near(alone, 220, 220)
    assert not near(alone, 290, 30)
    assert near(both, 220, 220)
    assert near(both, 290, 30)


@pytest.mark.parametrize("kind", ["teacher", "lite"])
def test_teachers_of_eight_views_turn_with_the_window(kind: str) -> None:
    """A window that is turned gets the same answers, turned; of one view they differ."""
    torch.manual_seed(1)
    network = Teacher(random_weights()) if kind == "teacher" else build_network(SPEC)
    pixels = torch.from_numpy(an_image(3, 256, mitosis=[(100, 140)]).pixels).permute(2, 0, 1)[None] / 255
    turned = torch.rot90(pixels.flip(3), 1, (2, 3))
    apart = []
    for views in (1, 8):
        said, other = (teachers_answer([network.eval()], each, views) for each in (pixels, turned))
        apart.append(float((torch.rot90(said.flip(2), 1, (1, 2)) - other).abs().max()))
    assert apart[1] < 1e-5 < apart[0]


def test_published_weights_begin_teacher_and_student(tmp_path: Path) -> None:
    weights = random_weights()
    torch.save(weights, tmp_path / "lite0.pth")
    read = published_weights(tmp_path / "lite0.pth")
    teacher = Teacher(read)
    assert torch.equal(
        teacher.state_dict()["_blocks.3._project_conv.weight"], weights["_blocks.3._project_conv.weight"]
    )
    assert teacher(torch.zeros(1, 3, 64, 64)).shape == (1, 16, 16)
    student = with_published(build_network(NetworkSpec("lite", 1.0, "batch")), read)
    assert torch.equal(student[1].weight, weights["_conv_stem.weight"])
    (tmp_path / "no.pth").write_bytes(b"no weights")
    with pytest.raises(ModelError, match="EfficientNet-Lite"):
        published_weights(tmp_path / "no.pth")


# ---- learning ----


def training(folder: Path, steps: int, teachers: tuple[nn.Module, ...] = (), **more: Any) -> DenseTraining:
    torch.manual_seed(0)
    windows = WindowSampler([an_image(mitosis=[(100, 100)]), an_image(1, kind="negatives")], CPU, 3)
    networks = {"lite": build_network(SPEC), "other": build_network(SPEC)}
    return DenseTraining(
        dict(networks),
        Views(windows, VIEW),
        Lesson(steps, **more),
        teachers,
        folder,
        account_of([steps, VIEW, 0.5]),
        0.0,
    )


def silent(what: str, done: float, total: float) -> None:
    """Nobody reads it."""


def test_a_training_that_was_killed_ends_with_the_same_weights(tmp_path: Path) -> None:
    """Errors are mined on the way; the second run is killed after the mining, at its last checkpoint."""
    whole = training(tmp_path / "whole", 4).finish(silent)

    class Killed(Exception):
        pass

    broken = training(tmp_path / "broken", 4)
    step = broken._step

    def dying(number: int) -> None:
        if number == 3:
            raise Killed
        step(number)

    broken._step = dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        broken.finish(silent)
    assert broken.state.is_file()
    again = training(tmp_path / "broken", 4)
    resumed = again.finish(silent)
    assert again.progress.step == 4
    for name in whole:
        for mine, theirs in zip(
            whole[name].state_dict().values(), resumed[name].state_dict().values(), strict=True
        ):
            assert torch.equal(mine, theirs)
    again.forget()
    assert list((tmp_path / "broken").iterdir()) == []


@pytest.mark.parametrize(("teachers", "shares", "mined"), [
    ((), (0.5,), [2]), ((Dark,), (0.25, 0.5), [1, 2]), ((Dark,), (), []),
])  # fmt: skip
def test_students_of_teachers_learn_from_their_errors_too(
    tmp_path: Path, teachers: Any, shares: tuple[float, ...], mined: list[int]
) -> None:
    run = training(tmp_path, 4, tuple(each() for each in teachers), mine_at=shares)
    run.finish(silent)
    assert sorted(tmp_path.glob("errors-*")) == [tmp_path / f"errors-{step}.npz" for step in mined]


def test_students_follow_their_teachers_and_labels_where_these_are_certain(tmp_path: Path) -> None:
    teacher = Dark()
    run = training(tmp_path, 1, (teacher,), trust=1.0, trust_at_mitoses=0.0)
    batch = run.views(0)
    wanted, counts = run._wanted(batch)
    run.views.close()
    rows = wanted.shape[1]
    cells = middle_cells(batch.cells, rows)
    assert bool((wanted[cells == YES] == 1).all()), "labels of mitoses hold"
    assert bool((wanted[batch.sure][cells[batch.sure] == NO] == 0).all()), "negatives hold"
    assert bool((counts == 1).all())
    labels, counted = training(tmp_path, 1)._wanted(batch)
    assert bool((counted[batch.cells == ANY] == 0).all())
    assert torch.equal(labels, (batch.cells == YES).float())


def test_a_loss_that_is_no_number_stops(tmp_path: Path) -> None:
    run = training(tmp_path, 2, learning_rate=float("inf"))
    with pytest.raises(TrainingError, match="became NaN"):
        run.finish(silent)
