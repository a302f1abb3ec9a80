"""Patches a second of the RCSEHBG recipe, 128 to 100 px.

    python benchmarks/stain_augmentation.py [--cores 2] [--repeats 5] [--json FILE]

On the CPU against the same recipe made of albumentations and scikit-image calls (where these are
installed): the same patches, the same number of cores, taking turns in one run, best of the repeats.
The opponent works image by image in one process a core, without any exchange between them. Patches a
second of processor time are less disturbed by other work on the machine. Where there is a CUDA device,
also on it, at several batch sizes, as it is and compiled.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import multiprocessing as mp
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from metaphase.base.parallel import available_cores
from metaphase.images.stain.augmentation import Augmentation

RGB = npt.NDArray[np.uint8]
Rates = tuple[float, float]
Step = tuple[Callable[[], object], int]
RECIPE = "RCSEHBG"
BATCH = 64
GPU_BATCHES = (64, 256, 1024, 4096)
SKIMAGE_UNIT = -float(np.log(1e-6))
"""Natural-log density of one unit of scikit-image's stain amounts."""


def textured_patches(count: int) -> RGB:
    """Smooth random patches in the colours of tissue; speed does not depend on what they show."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 60, (count, 128, 128, 3)).astype(np.float32)
    smooth = [cv2.GaussianBlur(patch, (0, 0), 2) * 3 for patch in noise]
    colour = np.array([190, 110, 160], np.float32)
    return np.clip(np.stack(smooth) + colour, 0, 255).astype(np.uint8)


def opponent() -> Callable[[RGB], Any] | None:
    """The recipe for one patch, of albumentations and scikit-image; None where these are missing."""
    if not all(importlib.util.find_spec(name) for name in ("albumentations", "skimage")):
        return None
    import albumentations as A  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from skimage.color import hed2rgb, rgb2hed

    rng = np.random.default_rng(0)

    def vary_stains(image: RGB, **_: Any) -> RGB:
        factor, bias = rng.uniform(0.95, 1.05, 3), rng.uniform(-0.05, 0.05, 3) / SKIMAGE_UNIT
        return np.asarray(hed2rgb(rgb2hed(image) * factor + bias) * 255).astype(np.uint8)

    mirrored = cv2.BORDER_REFLECT
    shift = {"x": (-14, 14), "y": (-14, 14)}
    steps = [
        A.HorizontalFlip(p=0.5),
        A.VerticalFlip(p=0.5),
        A.Affine(rotate=(0, 360), scale=(0.75, 1.25), translate_px=shift, border_mode=mirrored, p=1),
        A.ElasticTransform(alpha=100, sigma=10, border_mode=mirrored, p=1),
        A.CenterCrop(100, 100),
        A.Lambda(image=vary_stains, name="stain", p=1),
        A.ColorJitter(saturation=(0.75, 1.5), contrast=(0.75, 1.5), brightness=(0.75, 1.25), hue=(0, 0), p=1),
        A.GaussianBlur(blur_limit=0, sigma_limit=(0, 2), p=1),
        A.GaussNoise(std_range=(0, 0.1), p=1),
        A.ToFloat(max_value=255),
    ]
    recipe = A.Compose(steps)
    return lambda image: recipe(image=image)["image"]


def opponent_step() -> Step:
    """The opponent on one core: a patch a call."""
    cv2.setNumThreads(1)
    recipe, patches = opponent(), itertools.cycle(textured_patches(BATCH))
    if recipe is None:
        raise SystemExit("albumentations is not installed")
    return lambda: recipe(next(patches)), 1


def own_step() -> Step:
    """This project on one core: a batch a call."""
    torch.set_num_threads(1)
    batch = torch.from_numpy(textured_patches(BATCH))
    augment, generator = Augmentation(RECIPE), torch.Generator().manual_seed(0)
    return lambda: augment(batch, generator), BATCH


def worker(make_step: Callable[[], Step], start: Any, done: Any, seconds: float) -> None:
    """On each start signal, augment for a while and report how many patches a second."""
    step, patches = make_step()
    for _ in range(4):
        step()
    done.put((0.0, 0.0))
    while start.get():
        began, worked, count = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began < seconds:
            step()
            count += patches
        done.put((count / (time.perf_counter() - began), count / (time.process_time() - worked)))


class Processes:
    """One process a core, each with the whole recipe."""

    def __init__(self, make_step: Callable[[], Step], cores: int, seconds: float) -> None:
        context = mp.get_context("spawn")
        self.start, self.done = context.Queue(), context.Queue()
        arguments = (make_step, self.start, self.done, seconds)
        self.workers = [context.Process(target=worker, args=arguments, daemon=True) for _ in range(cores)]
        for process in self.workers:
            process.start()
        for _ in self.workers:
            self.done.get()

    def rates(self) -> Rates:
        """Patches a second of all processes at once, and patches a second of processor time."""
        for _ in self.workers:
            self.start.put(True)
        rates = [self.done.get() for _ in self.workers]
        return sum(wall for wall, _ in rates), sum(worked for _, worked in rates) / len(rates)

    def close(self) -> None:
        """Let the processes end."""
        for _ in self.workers:
            self.start.put(False)
        for process in self.workers:
            process.join()


def rates(batch: torch.Tensor, step: Callable[[torch.Tensor], object], seconds: float) -> Rates:
    """Patches a second, and a second of processor time; warms up, and waits for the device at both ends."""

    def wait() -> None:
        if batch.is_cuda:
            torch.cuda.synchronize()

    for _ in range(3):
        step(batch)
    wait()
    began, worked, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(5):
            step(batch)
        wait()
        count += 5 * len(batch)
    return count / (time.perf_counter() - began), count / (time.process_time() - worked)


def on_cpu(cores: int, repeats: int, seconds: float) -> dict[str, dict[str, float]]:
    """Best rates of both sides, taking turns."""
    torch.set_num_threads(cores)
    batch = torch.from_numpy(textured_patches(BATCH))
    augment, generator = Augmentation(RECIPE), torch.Generator().manual_seed(0)
    teams = {"metaphase, a process a core": Processes(own_step, cores, seconds)}
    if opponent() is not None:
        teams["albumentations + scikit-image, a process a core"] = Processes(opponent_step, cores, seconds)
    ways: dict[str, Callable[[], Rates]] = {
        "metaphase, one process": lambda: rates(batch, lambda patches: augment(patches, generator), seconds),
        **{name: team.rates for name, team in teams.items()},
    }
    turns = [{name: measure() for name, measure in ways.items()} for _ in range(repeats)]
    for team in teams.values():
        team.close()
    return {
        name: {
            "patches/s": max(turn[name][0] for turn in turns),
            "patches/core-second": max(turn[name][1] for turn in turns),
        }
        for name in ways
    }


def on_gpu(seconds: float) -> list[dict[str, Any]]:
    """Rates at each batch size, as it is and compiled."""
    augment, generator = Augmentation(RECIPE).cuda(), torch.Generator("cuda").manual_seed(0)
    compiled = torch.compile(augment.apply_draw, dynamic=False)

    def run_compiled(patches: torch.Tensor) -> object:
        return compiled(patches, augment.draw(len(patches), generator))

    rows = []
    for size in GPU_BATCHES:
        batch = torch.from_numpy(textured_patches(BATCH)).repeat(size // BATCH, 1, 1, 1).cuda()
        eager, _ = rates(batch, lambda patches: augment(patches, generator), seconds)
        compiled_rate, _ = rates(batch, run_compiled, seconds)
        rows.append({"batch": size, "eager": eager, "compiled": compiled_rate})
    return rows


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cores", type=int, default=available_cores())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    result: dict[str, Any] = {"torch": torch.__version__, "cores": options.cores, "batch": BATCH}
    result["cpu"] = on_cpu(options.cores, options.repeats, options.seconds)
    print(f"CPU, {options.cores} cores, batch of {BATCH}: best of {options.repeats}")
    for name, found in result["cpu"].items():
        print(f"  {name:50s}", "   ".join(f"{value:8,.0f} {unit}" for unit, value in found.items()))
    if torch.cuda.is_available():
        result["device"] = torch.cuda.get_device_name()
        result["gpu"] = on_gpu(options.seconds)
        print(f"{result['device']}: patches a second")
        for row in result["gpu"]:
            print(
                f"  batch {row['batch']:5d}   eager {row['eager']:12,.0f}   compiled {row['compiled']:12,.0f}"
            )
    print(json.dumps(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
