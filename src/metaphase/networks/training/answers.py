"""What networks and pairs say about whole images, and teachers about windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn
from torch.nn import functional

from metaphase.base.arrays import RGB, Floats, Floats32, Points
from metaphase.detections.matching import suppress
from metaphase.detections.table import IGNORE, LOOKALIKE, MITOSIS
from metaphase.networks.cards import PATCH_PX, outputs_along
from metaphase.networks.engine.peaks import collect, smoothed
from metaphase.networks.engine.positions import is_peak, smoothing_reach
from metaphase.networks.engine.second import ANSWER_PX, FAR, answered_at_once, view_logits
from metaphase.networks.training.images import LEAST_FLOOR, MPP, PAINTED_UM, LabelledImage
from metaphase.networks.training.teachers import Teacher
from metaphase.networks.training.windows import CELL_PX, IGNORE_UM

LEAST_ROWS = 64
"""Rows of cells that are searched at once, however wide an image: a band shares 96 px with the next."""
TEACHER_SMOOTH_UM, ERROR_FLOOR, SUPPRESS_UM = 1.0, 0.2, 15.0
"""How far teachers' answers are averaged; from which probability on an error is one, and how far apart."""
FLOOR = 0.1
"""Lowest probability of a pair that is written down."""
TURNED = ((False, 0), (True, 2), (False, 1), (True, 3), (False, 2), (True, 0), (False, 3), (True, 1))
"""Views by which teachers answer: whether mirrored first, and quarter turns."""
PADDED_PX, COARSEST_PX = 64, 32
"""Mirrored edge of an image that a teacher sees; its coarsest stride."""


def dense_logits(network: nn.Module, images: Tensor, numbers: torch.dtype = torch.bfloat16) -> Tensor:
    """Logits (n, rows, columns); a detector's are as many as windows of 97 px, the first means pixel 50.

    `numbers` are those of a GPU.
    """
    with torch.autocast(images.device.type, numbers, enabled=images.is_cuda):
        logits: Tensor = network(images)
    if logits.ndim == 3:
        return logits.float()
    rows, columns = map(outputs_along, images.shape[2:])
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
    for number, image in enumerate(images):
        by_size.setdefault(image.pixels.shape, []).append(number)
    for size, numbers in by_size.items():
        at_once = max(1, searched_px(device) // (size[0] * size[1]))
        for first in range(0, len(numbers), at_once):
            batch = numbers[first : first + at_once]
            pixels = [images[number].pixels for number in batch]
            maps = [image_maps(network, pixels, device) for network in networks]
            for index, number in enumerate(batch):
                yield number, [logits[index : index + 1] for logits in maps]


def maxima(logits: Tensor, smooth_um: float, floor: float, suppress_um: float | None = None) -> Floats:
    """(n, 5): x, y, probability, row and column of the maxima of a map (1, rows, columns).

    Of two nearer than `suppress_um` the less probable one goes.
    """
    sigma = smooth_um / (MPP * CELL_PX)
    reach = smoothing_reach(sigma) + 1
    values = smoothed(functional.pad(logits[None], (reach,) * 4, mode="replicate")[0], sigma)
    peaks = collect(values, is_peak(values, floor))
    x, y = ((position - 1 + 0.5) * CELL_PX for position in (peaks.column, peaks.row))
    rows = np.column_stack([x, y, peaks.probability, peaks.output - 1])
    if suppress_um is None:
        return rows
    return rows[suppress(x, y, peaks.probability.astype(np.float64), suppress_um / MPP)]


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
    found = maxima((first + second) / 2, smooth_um, FLOOR, suppress_um)
    own = maxima(first, smooth_um, LEAST_FLOOR)
    apart = np.abs(found[:, None, 3:] - own[None, :, 3:]).max(axis=2)
    sure = np.where(apart <= FAR, own[None, :, 2], 0.0).max(axis=1, initial=0.0)
    return np.column_stack([found[:, :2], expit(answers(found[:, :2])), sure, found[:, 2]])


@torch.inference_mode()
def final_logits(pair: Sequence[nn.Module], pixels: RGB, device: torch.device, points: Points) -> Floats:
    """Mean logits (n,) of both networks at points of an image, by views, as the engine answers."""
    half = ANSWER_PX // 2
    padded = np.pad(pixels, ((half, half + CELL_PX), (half, half + CELL_PX), (0, 0)), mode="symmetric")
    squares = np.lib.stride_tricks.sliding_window_view(padded, (ANSWER_PX, ANSWER_PX), axis=(0, 1))
    corners = np.rint(points).astype(np.int64)

    def window_logits(seen: RGB) -> Floats32:
        images = _as_images(list(seen), [(0, 0)] * 2, device)
        logits = [dense_logits(network, images, torch.float16) for network in pair]
        return torch.stack(logits).mean(dim=0).cpu().numpy()

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
        image, logits = images[number], torch.stack(maps).amax(dim=0)
        found = maxima(logits, TEACHER_SMOOTH_UM, ERROR_FLOOR, SUPPRESS_UM)[:, :2]
        for label, reach_um in ((MITOSIS, IGNORE_UM if image.is_crop else PAINTED_UM), (IGNORE, PAINTED_UM)):
            known = image.of(label)
            if len(known) and len(found):
                apart = np.hypot(*(found[:, None] - known[None]).transpose(2, 0, 1)).min(axis=1) * MPP
                found = found[apart > reach_um]
        wrong[number] = image.of(LOOKALIKE)
        if image.kind != "corrected":
            wrong[number] = np.concatenate([wrong[number], found])
    return wrong


@torch.no_grad()
def teachers_answer(teachers: Sequence[nn.Module], images: Tensor, views: int = 1) -> Tensor:
    """Mean probability at the cells that some teacher answers; a detector does where it sees enough.

    Each teacher's logits are the mean over so many `TURNED` views.
    """
    answers = [torch.sigmoid(_by_views(teacher, images, views)) for teacher in teachers]
    full = max(probabilities.shape[1] for probabilities in answers)
    total = torch.zeros((len(images), full, full), device=images.device)
    count = torch.zeros((1, full, full), device=images.device)
    for probabilities in answers:
        middle_cells(total, probabilities.shape[1]).add_(probabilities)
        middle_cells(count, probabilities.shape[1]).add_(1)
    return total / count


def _by_views(teacher: nn.Module, images: Tensor, views: int) -> Tensor:
    """Mean logits (n, rows, columns) over the first of the `TURNED` views, each brought back."""
    turned = []
    for mirrored, turns in TURNED[:views]:
        seen = torch.rot90(images.flip(3) if mirrored else images, turns, (2, 3))
        logits = dense_logits(teacher, seen.contiguous(memory_format=torch.channels_last))
        back = torch.rot90(logits, -turns, (1, 2))
        turned.append(back.flip(2) if mirrored else back)
    return torch.stack(turned).mean(dim=0)


def middle_cells(cells: Tensor, rows: int) -> Tensor:
    """The middle of squares (n, side, side), as large as a network answers."""
    first = (cells.shape[1] - rows) // 2
    return cells[:, first : first + rows, first : first + rows]
