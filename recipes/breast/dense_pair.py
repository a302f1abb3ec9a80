"""Two networks together: a student of dense_model.py sees everything, another one what it points to.

python recipes/breast/dense_pair.py search --data FOLDER --folder OUT [--student lite] [--second breast]
python recipes/breast/dense_pair.py package --data FOLDER --folder OUT -o MODEL [--smooth-um 1.0]

`search` writes OUT/pair-*.npz: what the mean of both logits finds in the images left out when both see
everything, one file a smoothing, and how sure the student alone is at each place. `package` chooses on
validation laboratories and writes MODEL with its card and its second look: probabilities that mean what they
say, the floor from which places are looked at again, and the operating points. MiDeSeC has no part in any.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from dense_accuracy import Found
from dense_model import SUPPRESS_UM, _note, load, save_found, student_map
from pictures import MPP, TRAIN, read_pictures
from shapes import STUDENTS
from torch import Tensor
from torch.nn import functional
from windows import CELL_PX

from metaphase.detections.suppression import suppress
from metaphase.networks.cards import PATCH_PX, ModelCard, SecondModel, current_versions, named_model
from metaphase.networks.checkpoints import load_model, save_model
from metaphase.networks.engine.peaks import collect, is_peak, smoothed
from metaphase.networks.engine.places import smoothing_reach
from metaphase.networks.engine.second import MOVES

SMOOTH_UM = (0.0, 1.0, 1.75, 2.5)
FLOOR, LEAST_FLOOR = 0.02, 0.001
"""Lowest probabilities that are written down: of both together, and of the student's own maxima."""
KEPT = 0.995
"""Share of the detections of both that the floor must let pass, where they see everything."""


# ---- searching ----


def maxima(logits: Tensor, smooth_um: float, floor: float) -> npt.NDArray[np.float64]:
    """(n, 5): x, y, probability, row and column of the maxima of a map (1, rows, columns)."""
    sigma = smooth_um / (MPP * CELL_PX)
    reach = smoothing_reach(sigma) + 1
    values = smoothed(functional.pad(logits[None], (reach,) * 4, mode="replicate")[0], sigma)
    found = collect(values, is_peak(values, floor))
    x, y = ((place - 1 + 0.5) * CELL_PX for place in (found.column, found.row))
    return np.column_stack([x, y, found.probability, found.output - 1])


def pair_found(
    first: Tensor, second: Tensor, smooth_um: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """What both find, as (n, 4): x, y, probability and the student's own; and the student's maxima.

    The student's own is the highest of its maxima from which a second look would come to the place; 0 where
    there is none.
    """
    found = maxima((first + second) / 2, smooth_um, FLOOR)
    own = maxima(first, smooth_um, LEAST_FLOOR)
    apart = np.abs(found[:, None, 3:] - own[None, :, 3:]).max(axis=2)
    sure = np.where(apart <= MOVES, own[None, :, 2], 0.0).max(axis=1, initial=0.0)
    kept = suppress(found[:, 0].copy(), found[:, 1].copy(), found[:, 2].copy(), SUPPRESS_UM / MPP)
    return np.column_stack([found[:, :3], sure])[kept], own[:, 2]


def search(options: argparse.Namespace) -> None:
    """All images left out, at each smoothing."""
    note = partial(_note, time.perf_counter())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    student = load(STUDENTS[options.student](), options.folder / f"{options.student}.safetensors", device)
    second: Any = load_model(named_model(options.second), device)[0]
    second = second.to(memory_format=torch.channels_last)
    pictures = [one for one in read_pictures(options.data, options.most) if one.role != TRAIN]
    found: dict[float, Found] = {smooth: {} for smooth in SMOOTH_UM}
    own: dict[float, Found] = {smooth: {} for smooth in SMOOTH_UM}
    for number, one in enumerate(pictures):
        first, again = (student_map(network, device, one) for network in (student, second))
        for smooth in SMOOTH_UM:
            name = f"{one.folder}|{one.name}"
            found[smooth][name], own[smooth][name] = pair_found(first, again, smooth)
        if number % 200 == 0:
            note(f"{number} of {len(pictures)} images")
    for smooth in SMOOTH_UM:
        save_found(options.folder / f"pair-{smooth:g}.npz", found[smooth])
        save_found(options.folder / f"own-{smooth:g}.npz", own[smooth])
    note("searched")


# ---- packaging ----


def package(options: argparse.Namespace) -> None:
    """The pair as one model."""
    student = load(
        STUDENTS[options.student](), options.folder / f"{options.student}.safetensors", torch.device("cpu")
    )
    second, card = load_model(named_model(options.second))
    target: Path = options.output.with_suffix(".safetensors")
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f"{target.stem}-second.safetensors")
    looks = save_model(beside, second, card.model_copy(update={"name": beside.stem}), half=True)
    save_model(
        target,
        student,
        ModelCard(
            name=target.stem,
            family="lite",
            gamma=1.0,
            normalisation="batch",
            mpp=MPP,
            patch_px=PATCH_PX,
            classes=("other", "mitosis"),
            second=SecondModel(model=beside.stem, weights_sha256=looks.weights_sha256, floor=options.floor),
            optical_density=card.optical_density,
            versions=current_versions(),
        ),
        half=True,
    )


def main() -> None:
    """Search, or package."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("search", "package"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--student", default="lite")
    parser.add_argument("--second", default="breast")
    parser.add_argument("--most", type=int, help="images a folder, to try it out")
    parser.add_argument("--smooth-um", type=float, default=1.0)
    parser.add_argument("--floor", type=float, default=0.05)
    parser.add_argument("-o", "--output", type=Path, default=Path("breast"))
    options = parser.parse_args()
    (search if options.what == "search" else package)(options)


if __name__ == "__main__":
    main()
