"""Augmented windows of labelled images with the labels of their cells, drawn evenly over laboratories.

A window is drawn from (seed, step) alone, so that a training that was stopped goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from metaphase.base.arrays import RGB, Floats, Integers, Points
from metaphase.detections.table import IGNORE, LOOKALIKE, MITOSIS
from metaphase.images.stain.augmentation import (
    Augmentation,
    AugmentationConfig,
    StainMixer,
    appearance_of,
    displacement,
    resample,
)
from metaphase.networks.cards import OUTPUT_STRIDE_PX
from metaphase.networks.training.images import MPP, PAINTED_UM, LabelledImage, by_laboratory

CELL_PX = OUTPUT_STRIDE_PX
WINDOW_PX, SOURCE_PX = 256, 288
"""Windows that networks see, and what they are cut from before they are turned."""
POSITIVE_UM, IGNORE_UM = 3.5, 8.0
"""Cells this near to a mitosis should say yes; those up to the second distance may say anything."""
BLACK, RECOLOURED_SPREAD = 20, (0.8, 1.25)
"""What is darker lies beyond the edge of a scan; limits of how much the contrast of tissue is changed."""
KINDS = {"mitoses": 0.4, "hard": 0.35, "anywhere": 0.25}
"""What windows are drawn around: mitoses, look-alikes and a teacher's errors, any position of a field."""
FRAMED, FRAME_PX, SEAM_PX = 0.35, (90, 128), 1.5
"""Share of the windows of fields that end like a crop, at a rectangle of such sides; how softly they end."""
FEW = 20
"""Laboratories with less than so much of a kind are drawn less often."""
NO, YES, ANY = 0, 1, 2
Cells = npt.NDArray[np.uint8]


def label_cells(image: LabelledImage) -> Cells:
    """What each cell of an image should say: no, yes, or anything."""
    rows, columns = (-(-side // CELL_PX) for side in image.pixels.shape[:2])
    y, x = np.mgrid[:rows, :columns] * CELL_PX + (CELL_PX - 1) / 2
    cells = np.full((rows, columns), ANY if image.kind == "corrected" else NO, np.uint8)
    if image.kind == "corrected":
        for column, row in (image.of(LOOKALIKE) // CELL_PX).astype(np.int64):
            reach = round(IGNORE_UM / MPP / CELL_PX)
            cells[max(0, row - reach) : row + reach + 1, max(0, column - reach) : column + reach + 1] = NO
    for label, near, far in ((IGNORE, 0.0, PAINTED_UM), (MITOSIS, POSITIVE_UM, IGNORE_UM)):
        for point in image.of(label):
            top, left = (max(0, int((position - far / MPP) // CELL_PX)) for position in point[::-1])
            side = 2 * round(far / MPP / CELL_PX) + 3
            part = np.s_[top : top + side, left : left + side]
            distance = np.hypot(x[part] - point[0], y[part] - point[1]) * MPP
            cells[part] = np.where(
                distance <= near, YES, np.where((distance <= far) & (cells[part] != YES), ANY, cells[part])
            )
    return cells


@dataclass(frozen=True)
class WindowBatch:
    """Windows of one training step, with targets and weights."""

    pixels: Tensor
    """(n, side, side, 3), and images (n, 3, side, side) once they are augmented."""
    cells: Tensor
    """(n, side / 4, side / 4): no, yes or any."""
    laboratory: Tensor
    sure: Tensor
    """(n,): whether tissue without labels certainly holds no mitosis."""
    answers: Tensor | None
    """What a frozen network says about each cell, where that is known."""


@dataclass
class WindowSampler:
    """Draws windows of training images with their labels; `hard` grows while a network learns."""

    images: Sequence[LabelledImage]
    device: torch.device
    seed: int
    collage: float = 0.0
    """Share of the windows that end like a crop beyond whose edge lies a field, in the crop's colours; the
    others are mirrored there."""
    hard: list[Points] = field(default_factory=list)
    answers: Flat | None = None
    """Probabilities that a frozen network gives to the cells of each image."""

    def __post_init__(self) -> None:
        self.pixels = Flat([image.pixels for image in self.images], self.device)
        self.cells = Flat([label_cells(image) for image in self.images], self.device)
        groups = by_laboratory(self.images)
        self.laboratories = list(groups)
        self.laboratory = np.array([self.laboratories.index(image.laboratory) for image in self.images])
        self.appearances = [appearance_of(sample(pixels)) for pixels in groups.values()]
        self.kind = np.array([image.kind for image in self.images])
        self.is_crop = self.kind == "crop"
        self.forget()

    def forget(self) -> None:
        """Know no errors but the look-alikes that were labelled."""
        self.remember([image.of(LOOKALIKE) for image in self.images])

    def remember(self, hard: list[Points]) -> None:
        """Draw from these errors too. Laboratories count by their weight, images by what they hold."""
        self.hard = hard
        area = np.array([image.area_mm2 for image in self.images])
        held = {
            "mitoses": np.array([len(image.of(MITOSIS)) for image in self.images], float),
            "hard": np.array([len(points) for points in hard], float) + self.is_crop,
            "anywhere": area * ~self.is_crop * (self.kind != "corrected"),
        }
        self.odds = {kind: np.cumsum(self._balanced(amount)) for kind, amount in held.items() if amount.any()}

    def _balanced(self, amount: Floats) -> Floats:
        odds = np.zeros(len(amount))
        weight = np.array([image.weight for image in self.images])
        for number in range(len(self.laboratories)):
            here = self.laboratory == number
            odds[here] = weight[here] * amount[here] / max(float(amount[here].sum()), FEW)
        return np.asarray(odds / odds.sum(), np.float64)

    def draw(self, count: int, step: int) -> WindowBatch:
        """The windows of a step."""
        rng = np.random.default_rng((self.seed, step))
        kinds = [kind for kind in KINDS if kind in self.odds]
        share = np.array([KINDS[kind] for kind in kinds])
        chosen = [kinds[number] for number in rng.choice(len(kinds), count, p=share / share.sum())]
        numbers = [self._number(kind, rng) for kind in chosen]
        positions = [self._position(number, kind, rng) for number, kind in zip(numbers, chosen, strict=True)]
        corner, first, last = (np.stack(parts) for parts in zip(*positions, strict=True))
        pixels, cells, answers = self._cut(numbers, corner, first, last)
        inside = _inside(corner, first, last, self.device)
        in_cells = functional.avg_pool2d(inside[:, None], CELL_PX)[:, 0]
        alone = rng.random(count) >= self.collage
        framed = np.flatnonzero(~alone & (in_cells.amin((1, 2)) < 0.5).cpu().numpy())
        cells = cells.masked_fill(in_cells < 0.5, ANY)
        if len(framed) and "anywhere" in self.odds:
            self._surround(pixels, cells, torch.from_numpy(framed).to(self.device), inside, in_cells, rng)
        laboratory, sure = (
            torch.from_numpy(values[numbers]).to(self.device)
            for values in (self.laboratory, self.kind == "negatives")
        )
        return WindowBatch(pixels, cells, laboratory, sure, answers)

    def _number(self, kind: str, rng: np.random.Generator) -> int:
        """An image that holds this kind."""
        return min(int(np.searchsorted(self.odds[kind], rng.random(), side="right")), len(self.images) - 1)

    def _cut(
        self, numbers: list[int], corner: Integers, first: Integers, last: Integers
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Pixels, cells and answers of squares of `SOURCE_PX`, mirrored beyond rectangles."""
        in_cells = corner // CELL_PX, first // CELL_PX, last // CELL_PX
        side = SOURCE_PX // CELL_PX
        pixels = self.pixels.cut(numbers, corner, first, last, SOURCE_PX)
        answers = None if self.answers is None else self.answers.cut(numbers, *in_cells, side)
        return pixels, self.cells.cut(numbers, *in_cells, side), answers

    def _surround(
        self,
        pixels: Tensor,
        cells: Tensor,
        framed: Tensor,
        share: Tensor,
        in_cells: Tensor,
        rng: np.random.Generator,
    ) -> None:
        """Let tissue of fields lie beyond the edge of framed windows, in their colours, with its labels."""
        numbers = [self._number("anywhere", rng) for _ in range(len(framed))]
        size = np.array([self.images[number].pixels.shape[:2] for number in numbers])
        corner = (rng.random(size.shape) * np.maximum(1, size - SOURCE_PX)).astype(np.int64)
        last = size // CELL_PX * CELL_PX
        around, labels, _ = self._cut(numbers, corner // CELL_PX * CELL_PX, np.zeros_like(last), last)
        piece, mine = pixels[framed], share[framed]
        both = torch.lerp(_recoloured(around, piece, mine), piece.float(), mine[..., None])
        pixels[framed] = both.round().to(torch.uint8)
        mine, before = in_cells[framed], cells[framed]
        seam = (mine > 0.1) & (mine < 0.9) & ((labels == YES) | (before == YES))
        after = torch.where(mine >= 0.5, before, labels)
        cells[framed] = after.masked_fill(seam, ANY)

    def _position(self, number: int, kind: str, rng: np.random.Generator) -> tuple[Integers, ...]:
        """Where a window lies, and the rectangle of the image beyond which it is mirrored; rows first."""
        image = self.images[number]
        size = np.array(image.pixels.shape[:2])
        points = {"mitoses": image.of(MITOSIS), "hard": self.hard[number]}.get(kind, ())
        if len(points):
            position = points[rng.integers(len(points))][::-1]
            middle = position + rng.uniform(-56, 56, 2)
        else:
            middle = position = rng.uniform(0, 1, 2) * size
        first, last = np.zeros(2), size.astype(float)
        if image.is_crop or (self.is_crop.any() and rng.random() < FRAMED):
            side = rng.uniform(*FRAME_PX, 2)
            first = np.clip(position - rng.uniform(0.15, 0.85, 2) * side, 0, np.maximum(0, size - side))
            last = np.minimum(first + side, size)
            middle = (first + last) / 2 + rng.uniform(-24, 24, 2)
        corner = CELL_PX * np.round((middle - SOURCE_PX / 2) / CELL_PX)
        first = CELL_PX * np.ceil(first / CELL_PX)
        last = np.maximum(CELL_PX * (last // CELL_PX), first + CELL_PX)
        return corner.astype(np.int64), first.astype(np.int64), last.astype(np.int64)


def _inside(corner: Integers, first: Integers, last: Integers, device: torch.device) -> Tensor:
    """How far pixels (n, side, side) of squares lie inside rectangles, from 0 to 1; rows first."""
    sides = [torch.from_numpy(each).to(device, torch.float32)[:, :, None] for each in (corner, first, last)]
    position = sides[0] + torch.arange(SOURCE_PX, device=device) + 0.5
    along = torch.sigmoid(torch.minimum(position - sides[1], sides[2] - position) / SEAM_PX)
    return along[:, 0, :, None] * along[:, 1, None, :]


def _recoloured(around: Tensor, piece: Tensor, share: Tensor) -> Tensor:
    """Pixels (n, side, side, 3) with mean and, within limits, spread of a piece's density in each channel."""
    given, wanted = (-torch.log10((each.float() + 1) / 256) for each in (around, piece))
    mean, spread = _moments(given, torch.ones_like(share))
    inside = (share > 0.5) & (piece.amax(3) > BLACK)
    middle, width = _moments(wanted, inside.float())
    shifted = (given - mean) * (width / spread).clamp(*RECOLOURED_SPREAD) + middle
    return (256 * torch.pow(10, -shifted) - 1).clamp_(0, 255)


def _moments(density: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and spread (n, 1, 1, 3) of each channel."""
    each = weight[..., None]
    total = each.sum((1, 2), keepdim=True).clamp(min=1)
    mean = (density * each).sum((1, 2), keepdim=True) / total
    spread = (((density - mean) ** 2 * each).sum((1, 2), keepdim=True) / total).sqrt().clamp(min=0.01)
    return mean, spread


class Flat:
    """Images of several sizes one after the other in one tensor, so that one look-up cuts many windows."""

    def __init__(self, images: Sequence[npt.NDArray[Any]], device: torch.device) -> None:
        channels = images[0].shape[2:]
        parts = [torch.from_numpy(np.array(image).reshape(-1, *channels)).to(device) for image in images]
        self.values = torch.cat(parts)
        areas = [image.shape[0] * image.shape[1] for image in images]
        self.start = np.cumsum([0, *areas], dtype=np.int64)[:-1]
        self.width = np.array([image.shape[1] for image in images])

    def cut(self, numbers: list[int], corner: Integers, first: Integers, last: Integers, side: int) -> Tensor:
        """Squares from (n, 2) corners on, mirrored beyond the rectangles from `first` to `last`."""
        positions = _mirrored(corner[:, :, None] + np.arange(side), first[:, :, None], last[:, :, None])
        rows = self.start[numbers][:, None] + positions[:, 0] * self.width[numbers][:, None]
        device = self.values.device
        rows, columns = (torch.from_numpy(each).to(device) for each in (rows, positions[:, 1]))
        return self.values[rows[:, :, None] + columns[:, None]]


def _mirrored(positions: Integers, first: Integers, last: Integers) -> Integers:
    """Positions along sides that are mirrored at `first` and `last`."""
    length = last - first
    inside = (positions - first) % (2 * length)
    return np.asarray(first + np.where(inside < length, inside, 2 * length - 1 - inside), np.int64)


def sample(images: Sequence[RGB]) -> RGB:
    """Pixels (1, n, 3) of some of the images."""
    chosen = images[:: max(1, len(images) // 60)]
    return np.concatenate([image[::5, ::5].reshape(-1, 3) for image in chosen])[None]


@dataclass(frozen=True)
class ViewConfig:
    """Augmentation of windows."""

    batch: int
    augment: str
    augmentation: AugmentationConfig
    stain_mix: float
    """Share of the windows that are shown in the colours of another laboratory."""


class Views:
    """Augmented windows with the labels of their cells; those of the next step are drawn meanwhile."""

    def __init__(self, windows: WindowSampler, config: ViewConfig) -> None:
        self.windows, self.config, device = windows, config, windows.device
        self.augment = Augmentation(config.augment, replace(config.augmentation, size_px=WINDOW_PX)).to(
            device
        )
        self.mixer = StainMixer(windows.appearances, config.stain_mix).to(device)
        self.generator = torch.Generator(device)
        position = torch.arange(SOURCE_PX, device=device, dtype=torch.float32)
        self.positions = torch.stack(
            [position.expand(SOURCE_PX, SOURCE_PX), position[:, None].expand(SOURCE_PX, SOURCE_PX)]
        )[None]
        self.pool = ThreadPoolExecutor(1)
        self.waiting: dict[int, Future[WindowBatch]] = {}

    @torch.no_grad()
    def __call__(self, step: int) -> WindowBatch:
        """The windows of a step as networks see them."""
        drawn = self._drawn(step).result()
        self.waiting = {step + 1: self._drawn(step + 1)}
        words = np.random.SeedSequence((self.windows.seed, step, 1)).generate_state(1, np.uint64)
        self.generator.manual_seed(int(words[0] >> 1))
        draw = self.augment.draw(len(drawn.pixels), self.generator)
        mixed = self.mixer(drawn.pixels, drawn.laboratory, self.generator)
        images = self.augment.apply_draw(mixed, draw).contiguous(memory_format=torch.channels_last)
        grid = self.augment.pixels
        if draw.nodes is not None:
            grid = grid + displacement(draw.nodes, self.augment.spread, self.augment.config.elastic_alpha_px)
        origin = resample(self.positions.expand(len(images), -1, -1, -1), grid, draw)
        origin = functional.avg_pool2d(origin, CELL_PX)  # where each cell's middle came from
        column, row = ((origin / CELL_PX).floor().long().clamp_(0, SOURCE_PX // CELL_PX - 1)).unbind(1)
        number = torch.arange(len(images), device=images.device)[:, None, None]
        answers = None if drawn.answers is None else drawn.answers[number, row, column].float()
        return replace(drawn, pixels=images, cells=drawn.cells[number, row, column], answers=answers)

    def _drawn(self, step: int) -> Future[WindowBatch]:
        return self.waiting.get(step) or self.pool.submit(self.windows.draw, self.config.batch, step)

    def remember(self, hard: list[Points]) -> None:
        """Draw from these errors from the next step on."""
        for waiting in self.waiting.values():
            waiting.result()
        self.waiting = {}
        self.windows.remember(hard)

    def close(self) -> None:
        """Let go of the thread."""
        self.pool.shutdown(cancel_futures=True)
