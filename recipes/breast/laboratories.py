"""The judge: figures found in laboratories left out, at one price in tissue where there is nothing to find.

    python recipes/breast/laboratories.py --cohort OUT [--models breast ...] [--prices 1.2 ...]
        [--losses [--teachers teacher.safetensors ...]] [--splits validation test] [--most N] [--mm2 AREA]
        [--device cuda]

OUT has the tables of breast_cohort.py; images of the split train are left out. A pair is judged by
laboratories that it never saw where it was made from `breast_cohort.py --left-out`. The price is the number
of detections per mm2 in benign breast and in fields without figures. At the threshold of that price a line
says the recall of each laboratory's labelled figures (95 % intervals over patients), the detections per mm2
in other organs, whose cells are of many kinds, and the share of labelled look-alikes that are taken.

`--losses` says it for each part of the chain: the mean of teachers' logits and each network alone (without
final answers by views), both, and the pair as shipped (from its floors on). Then, for each floor, the figures
and positions that the first network points to: what it misses no second one can find. Last, how the log-odds
of the same nuclei of empty fields change when they are cut out as crops: a network that sees far can tell a
crop by its edge, and most crops hold a mitosis in the middle. `--most` takes so many images of each
laboratory, `--mm2` so many mm2 of each laboratory and kind of empty tissue, by a fixed seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from metaphase.base.arrays import RGB, Floats
from metaphase.base.tables import read_table
from metaphase.detections.matching import NOBODY, suppress
from metaphase.detections.table import LOOKALIKE, MITOSIS
from metaphase.evaluation.metrics import BootstrapConfig, detection_metrics
from metaphase.evaluation.pairs import FIRST, SMOOTHED, Found, mark_images, match_image
from metaphase.learn.dense import pair_files
from metaphase.learn.sources import image_sources, read_cohort
from metaphase.networks.cards import ModelCard
from metaphase.networks.checkpoints import choose_device, load_model
from metaphase.networks.exporting import GraphNetwork
from metaphase.networks.training.answers import (
    FLOOR,
    TEACHER_SMOOTH_UM,
    all_maps,
    final_logits,
    image_maps,
    maxima,
    pair_found,
)
from metaphase.networks.training.images import LEAST_FLOOR, MPP, ImageSource, LabelledImage, read_images
from metaphase.networks.training.teachers import Teacher
from metaphase.networks.training.windows import CELL_PX

RADIUS_UM, SUPPRESS_UM, MEMORY_GB = 7.5, 15.0, 16.0
LABORATORIES = {
    "fields, Aperio": ("icpr2012-aperio", "mitos-atypia14-A03"),
    "fields, Hamamatsu": ("mitos-atypia14-hamamatsu",),
    "TUPAC 1": ("tupac-1",),
    "TUPAC 2": ("tupac-2",),
    "TUPAC 3": ("tupac-3",),
    "MIDOG++, Aperio CS2": ("midog canine cutaneous mast cell tumor", "midog human breast cancer, Aperio"),
    "MIDOG++, Hamamatsu S360": ("midog human breast cancer, Hamamatsu S360",),
    "MIDOG++, Hamamatsu XR": ("midog human melanoma", "midog human neuroendocrine"),
    "MIDOG++, 3D Histech": ("midog canine l", "midog canine soft"),
}
"""Whose figures several pathologists agreed on, by the beginning of the names in the manifest."""
EMPTY = {
    "benign breast": ("breakhis",),
    "fields without figures": ("icpr2012-hamamatsu-painted", "icpr2012-aperio-eval-painted"),
}
"""Tissue in which each detection is false; the price is paid here."""
ORGANS = {"other organs": ("tcga",)}
LOOKALIKES = {"look-alikes": ("mitos-atypia14", "midog", "tupac-lookalikes")}
REPORTED = {"MiDeSeC": ("midesec",), **EMPTY, **ORGANS}
FLOORS = (0.45, 0.2, 0.1, 0.03, 0.01, 0.003)
PARTS = TEACHERS, ALONE_FIRST, ALONE_SECOND, BOTH, PAIR = (
    "teachers", "first alone", "second alone", "mean of both", "pair as shipped",
)  # fmt: skip
SAMPLES = BootstrapConfig(samples=1000)
Ways = dict[str, dict[str, Floats]]
"""What each part of the chain finds in each image."""


def belongs(one: LabelledImage | ImageSource, *names: str) -> bool:
    """Whether an image is of one of these laboratories."""
    groups = LABORATORIES | REPORTED | LOOKALIKES
    return any(one.laboratory.startswith(groups[name]) for name in names)


def drawn(sources: Sequence[ImageSource], options: argparse.Namespace) -> list[LabelledImage]:
    """Some of each laboratory and of each kind of empty tissue, read."""
    order = [sources[number] for number in np.random.default_rng(0).permutation(len(sources))]
    chosen: dict[str, LabelledImage] = {}

    def take(names: Sequence[str], label: str, images: float, mm2: float) -> None:
        area, count = 0.0, 0
        for one in order:
            if belongs(one, *names) and (not label or (one.points["label"] == label).any()):
                if area >= mm2 or count >= images:
                    return
                if one.name not in chosen:
                    chosen[one.name] = read_images([one], MEMORY_GB)[0]
                area, count = area + chosen[one.name].area_mm2, count + 1

    for name in LABORATORIES:
        take([name], MITOSIS, options.most, options.mm2)
    for name in (*EMPTY, *ORGANS):
        take([name], "", np.inf, options.mm2)
    take([*LOOKALIKES], LOOKALIKE, options.most, np.inf)
    return list(chosen.values())


# ---- what is found ----


def networks_of(model: str, device: torch.device) -> tuple[list[nn.Module], ModelCard]:
    """Both networks of a pair as they search, and its card."""
    read = [load_model(path) for path in pair_files(model)]
    if device.type == "cpu":
        return [GraphNetwork(network.eval(), card) for network, card in read], read[0][1]
    return [on(network, device) for network, _ in read], read[0][1]


def on(network: Any, device: torch.device) -> nn.Module:
    """A network that answers there."""
    ready: nn.Module = network.to(device, memory_format=torch.channels_last)
    return ready.eval().requires_grad_(False)


def teachers_of(files: Sequence[Path], device: torch.device) -> list[nn.Module]:
    """Teachers as runs keep them in networks/teacher-N."""
    kept = [{name: value.float() for name, value in load_file(path).items()} for path in files]
    return [on(Teacher(weights), device) for weights in kept]


def seen_in(logits: Tensor, smooth_um: float) -> Floats:
    """What a map shows, as `pair_found` gives it but for final answers."""
    rows = maxima(logits, smooth_um, FLOOR)
    x, y, probability = rows[:, :3].T.copy()
    return rows[suppress(x, y, probability, SUPPRESS_UM / MPP)]


def parts_of(
    model: str, images: Sequence[LabelledImage], options: argparse.Namespace
) -> tuple[Ways, dict[str, Floats]]:
    """What a pair finds as shipped, and its parts and teachers; and all that its first network points to."""
    device = choose_device(options.device)
    pair, card = networks_of(model, device)
    teachers = teachers_of(options.teachers, device)
    point, second = card.thresholds["mitoses"], card.second
    assert second is not None
    smooth_um = point.smooth_um or 0.0
    ways: Ways = {name: {} for name in PARTS}
    pointed = {}
    for number, maps in all_maps([*pair, *teachers], images, device):
        one = images[number]
        answers = partial(final_logits, pair, one.pixels, device)
        both = pair_found(answers, maps[0], maps[1], smooth_um, SUPPRESS_UM)
        shipped = (both[:, FIRST] >= second.floor) & (both[:, SMOOTHED] >= (second.answered_from or 0.0))
        ways[PAIR][one.name] = both[shipped]
        if options.losses:
            ways[BOTH][one.name] = both
            for name, logits in zip((ALONE_FIRST, ALONE_SECOND), maps[:2], strict=True):
                ways[name][one.name] = seen_in(logits, smooth_um)
            pointed[one.name] = maxima(maps[0], smooth_um, LEAST_FLOOR)
        if teachers:
            ways[TEACHERS][one.name] = seen_in(torch.stack(maps[2:]).mean(dim=0), TEACHER_SMOOTH_UM)
        print(f"{len(ways[PAIR])} of {len(images)} images", end="\r", file=sys.stderr, flush=True)
    return {name: found for name, found in ways.items() if found}, pointed


CROP_PX, NUCLEI = 128, 25
"""Side of crops, and how many nuclei of each empty field are cut out."""


def as_crops(networks: Sequence[nn.Module], nuclei: Sequence[nn.Module], images: Sequence[LabelledImage],
             device: torch.device) -> Floats:  # fmt: skip
    """(n, 2): mean log-odds of nuclei in their field, and in a crop around them; `nuclei` point to them."""

    def seen(several: Sequence[nn.Module], pixels: Sequence[RGB]) -> Tensor:
        return torch.stack([image_maps(network, pixels, device) for network in several]).mean(dim=0)

    rows = []
    for image in images:
        height, width = image.pixels.shape[:2]
        x, y, probability = maxima(seen(nuclei, [image.pixels]), TEACHER_SMOOTH_UM, FLOORS[-1])[
            :, :3
        ].T.copy()
        kept = suppress(x, y, probability, CROP_PX / 2)
        corners = np.stack([x, y], axis=1)[kept][np.argsort(-probability[kept])].astype(int) - CROP_PX // 2
        inside = (corners >= 0).all(axis=1) & (corners + CROP_PX <= (width, height)).all(axis=1)
        field = seen(networks, [image.pixels])[0]
        for left, top in corners[inside][:NUCLEI]:
            row, column = ((start + CROP_PX // 2) // CELL_PX for start in (top, left))
            crop = seen(networks, [image.pixels[top : top + CROP_PX, left : left + CROP_PX]])[0]
            middle = CROP_PX // 2 // CELL_PX
            rows.append([_highest(field, row, column), _highest(crop, middle, middle)])
    return np.array(rows)


def _highest(logits: Tensor, row: int, column: int) -> float:
    return float(logits[row - 2 : row + 3, column - 2 : column + 3].max())


# ---- judging ----


def detections(images: Sequence[LabelledImage], found: Found) -> Floats:
    """Probabilities of all detections, the highest first, that no point to ignore is near."""
    return np.sort(mark_images(images, found, RADIUS_UM).probability)[::-1]


def area_mm2(images: Sequence[LabelledImage]) -> float:
    """Area of images."""
    return sum(one.area_mm2 for one in images)


def threshold_at(price: float, empty: Sequence[LabelledImage], found: Found) -> float:
    """The lowest threshold above which empty tissue has at most `price` detections per mm2."""
    said, most = detections(empty, found), int(price * area_mm2(empty))
    return float(np.nextafter(said[most], 1)) if len(said) > most else FLOOR


def taken(images: Sequence[LabelledImage], found: Found, threshold: float) -> str:
    """Labelled look-alikes that a detection takes for a mitosis, of all."""
    count = there = 0
    for one in images:
        here = match_image(one, found[one.name], RADIUS_UM)
        false = here.positions[(here.matched == NOBODY) & (here.probability >= threshold)]
        known = one.of(LOOKALIKE)
        apart = np.hypot(*(known[:, None] - false[None]).transpose(2, 0, 1)) * MPP
        count, there = count + int((apart <= RADIUS_UM).any(axis=1).sum()), there + len(known)
    return f"{count / there:.2f} of {there}" if there else "–"


def recalls(images: Sequence[LabelledImage], found: Found, threshold: float) -> Iterator[tuple[float, str]]:
    """Recall of each laboratory that there is, alone and with its interval."""
    for name in LABORATORIES:
        here = [one for one in images if belongs(one, name) and len(one.of(MITOSIS))]
        if here:
            recall = detection_metrics(mark_images(here, found, RADIUS_UM), threshold, SAMPLES).recall
            yield recall.value, str(recall)


def judged(images: Sequence[LabelledImage], found: Found, price: float | None, threshold: float) -> list[str]:
    """Cells of a line: price, threshold, recalls, what is found in other organs, look-alikes."""
    empty, organs = ([one for one in images if belongs(one, *group)] for group in (EMPTY, ORGANS))
    if price is not None:
        threshold = threshold_at(price, empty, found)
    paid, other = (
        (detections(some, found) >= threshold).sum() / max(area_mm2(some), 1e-9) for some in (empty, organs)
    )
    values, words = zip(*recalls(images, found, threshold), strict=True)
    like = taken([one for one in images if belongs(one, *LOOKALIKES)], found, threshold)
    return [f"{threshold:.3f}", f"{paid:.2f}", f"**{np.mean(values):.3f}**", *words, f"{other:.1f}", like]


def main() -> None:
    """Parse, search, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cohort", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["breast"], help="pairs, by name or file")
    parser.add_argument("--teachers", type=Path, nargs="+", default=[])
    parser.add_argument("--prices", type=float, nargs="+", default=[1.2, 4.0])
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("--splits", nargs="+", default=["validation", "test"])
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--mm2", type=float, default=1e6)
    parser.add_argument("--device")
    options = parser.parse_args()
    cohort = read_cohort(options.cohort / "breast.csv")
    cohort = cohort[cohort["split"].isin(options.splits)]
    reference = read_table(options.cohort / "reference.csv")
    images = drawn(image_sources(cohort, reference), options)
    for name in (*LABORATORIES, *EMPTY, *ORGANS, *LOOKALIKES):
        here = [one for one in images if belongs(one, name)]
        print(f"{name}: {len(here)} images, {area_mm2(here):.2f} mm2, "
              f"{sum(len(one.of(MITOSIS)) for one in here)} mitoses")  # fmt: skip
    known = [name for name in LABORATORIES if any(belongs(one, name) for one in images)]
    head = ["", "threshold", "price", "recall", *known, "other organs", "look-alikes taken"]
    print("\n| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|", flush=True)

    def line(name: str, found: Found, price: float | None, threshold: float = 0.0) -> None:
        print("| " + " | ".join([name, *judged(images, found, price, threshold)]) + " |", flush=True)

    for model in options.models:
        ways, pointed = parts_of(model, images, options)
        for price in options.prices:
            for name, found in ways.items():
                line(f"{Path(model).stem}: {name}", found, price)
        for floor in FLOORS if options.losses else ():
            line(f"{Path(model).stem}: first network points to, floor {floor:g}", pointed, None, floor)
        if options.losses:
            device = choose_device(options.device)
            pair, _ = networks_of(model, device)
            fields = [image for image in images if belongs(image, *EMPTY)]
            for name, networks in (("pair", pair), (TEACHERS, teachers_of(options.teachers, device))):
                if networks:
                    field, crop = as_crops(networks, pair[:1], fields, device).T
                    print(
                        f"{name}: log-odds of {len(field)} nuclei are {np.mean(crop - field):+.2f} as crops"
                    )


if __name__ == "__main__":
    main()
