"""What a model finds by faster arithmetic and by its second look, beside what it finds the long way.

python recipes/breast/arithmetic.py --data FOLDER [--simulated COHORT] [--device cuda] [--precision fast]

Images left out, and slides of COHORT (`metaphase simulate COHORT --centres 8 --cases 8`), are searched three
times: in float32 with both networks everywhere, in float32 with the second look, and as `metaphase detect`
does it. A line a source and operating point: the share of the long way's detections that is kept, the largest
move of a probability, and both F1. Then, a line a source, how many windows of which size the second network
saw in float32 (on a GPU with those by which their number is filled up).

python recipes/breast/arithmetic.py --data FOLDER --eight-bits src/metaphase/models/breast.json ...

measures what the search in 8 bits needs and writes it into cards: the ranges of feature maps on images that
were learnt from, of all laboratories, and the error on those left out.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from dense_accuracy import NONE, Found, marked
from pictures import LOOK, MITOSIS, MPP, TRAIN, VALIDATION, Picture, Pixels, read_pictures
from scipy.special import expit
from torch import Tensor

from metaphase.base.arrays import RGB, Floats32
from metaphase.base.tables import read_manifest
from metaphase.evaluation.metrics import detection_metrics
from metaphase.networks.cards import EightBits
from metaphase.networks.checkpoints import load_model
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine import Engine, EngineConfig, PeakConfig, find_detections
from metaphase.networks.engine.onnx import LOGIT, OnnxEngine, run_all
from metaphase.networks.engine.places import smoothed
from metaphase.networks.exporting import detector_graph, measured_ranges
from metaphase.slides import ArraySlide, open_slide

FOLDERS = ("midesec", "icpr2012-aperio", "mitos-atypia14-hamamatsu", "breakhis-benign")
SAME_PX = 8.0
"""Detections nearer than this are the same."""
WINDOW_PX, WINDOWS_EACH, SIGMA = 321, 12, 1.75
"""Windows by which 8 bits are measured, of each folder and role, and the smoothing of their logits."""


def simulated_pictures(cohort: Path) -> list[Picture]:
    """The H&E slides of a simulated cohort as images with their mitoses."""
    pictures = []
    for row in read_manifest(cohort / "manifest.csv").itertuples():
        truth = pd.read_parquet(cohort / str(row.case) / "truth.parquet")
        places = truth.loc[truth["category"] == MITOSIS, ["x_he", "y_he"]].to_numpy(np.float64)
        with open_slide(cohort / str(row.case) / "he.tif") as slide:
            pixels = slide.read(0, 0, slide.bounds.width, slide.bounds.height, MPP)
        centre = str(row.centre)
        pictures.append(
            Picture(str(row.case), "simulated", centre, str(row.case), VALIDATION, pixels, {MITOSIS: places})
        )
    return pictures


class Watched:
    """A network of windows, PyTorch's or ONNX Runtime's; how many of which side it sees."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self.sides: Counter[int] = Counter()

    def logits(self, image: Tensor) -> Tensor:
        """What a network of PyTorch says."""
        self.sides[image.shape[1]] += len(image)
        logits: Tensor = self.network.logits(image)
        return logits

    def run(self, names: list[str], given: dict[str, Pixels], options: object) -> list[Floats32]:
        """What a session of ONNX Runtime says."""
        for image in given.values():
            self.sides[image.shape[1]] += len(image)
        answers: list[Floats32] = self.network.run(names, given, options)
        return answers


def watched(ready: ReadyDetector) -> Watched:
    """Its second network, from now on counted."""
    engine = ready.engine
    assert isinstance(engine, Engine | OnnxEngine)
    assert engine.second is not None
    watch = Watched(engine.second.network)
    engine.second = replace(engine.second, network=watch)
    return watch


def found_by(ready: ReadyDetector, pictures: list[Picture]) -> Found:
    """What is found in each image."""
    points = ready.detector.points
    peaks = PeakConfig(floor=0.05, suppress_um=points.suppress_um, smooth_um=points.smooth_um)
    found = {}
    for one in pictures:
        here = find_detections(ready.engine, ArraySlide(one.pixels, mpp=MPP), peaks)
        found[f"{one.folder}|{one.name}"] = np.column_stack([here.x, here.y, here.probability])
    return found


def state_eight_bits(card_path: Path, pictures: list[Picture]) -> None:
    """Measure ranges and error of a network, and write them into its card."""
    network, card = load_model(card_path.with_suffix(".safetensors"))
    by_laboratory: dict[str, list[Picture]] = {}
    for one in pictures:
        if min(one.pixels.shape[:2]) >= WINDOW_PX and one.role != LOOK:
            by_laboratory.setdefault(f"{one.folder} {one.role}", []).append(one)
    rng, windows = np.random.default_rng(0), dict[str, list[RGB]]()
    for some in by_laboratory.values():
        for number in rng.choice(len(some), WINDOWS_EACH):
            one = some[number]
            y, x = (int(rng.integers(side - WINDOW_PX + 1)) for side in one.pixels.shape[:2])
            cut = one.pixels[y : y + WINDOW_PX, x : x + WINDOW_PX]
            windows.setdefault(one.role, []).append(np.ascontiguousarray(cut))
    ranges = tuple(
        (round(low, 4), round(high, 4)) for low, high in measured_ranges(network, card, windows[TRAIN])
    )
    exact, rounded = (
        smoothed(
            np.concatenate([logits for (logits,) in run_all(graph, [LOGIT], windows[VALIDATION])]), SIGMA
        )
        for graph in (detector_graph(network, card), detector_graph(network, card, ranges))
    )
    unsure = (expit(exact) > 0.1) & (expit(exact) < 0.9)
    error = round(float(np.quantile((exact - rounded)[unsure], 0.999)), 2)
    print(f"{card_path.stem}: {len(ranges)} ranges, error {error} on {len(windows[VALIDATION])} windows")
    changed = card.model_copy(update={"eight_bits": EightBits(ranges=ranges, error=error)})
    card_path.write_text(changed.model_dump_json(indent=2) + "\n")


def kept(long: Found, short: Found, pictures: list[Picture], threshold: float) -> tuple[int, int, float]:
    """Detections of the long way that the short one has from a threshold on, all, and the largest move."""
    right = total = 0
    moved = 0.0
    for one in pictures:
        expected, found = (way[f"{one.folder}|{one.name}"] for way in (long, short))
        for x, y, probability in expected[expected[:, 2] >= threshold]:
            total += 1
            apart = np.hypot(found[:, 0] - x, found[:, 1] - y)
            if len(apart) and apart.min() < SAME_PX:
                said = float(found[apart.argmin(), 2])
                right += said >= threshold
                moved = max(moved, abs(said - probability))
    return right, total, moved


def main() -> None:
    """Search thrice, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="breast")
    parser.add_argument("--device")
    parser.add_argument("--precision", default="auto", help="of the third way; fast: bfloat16 on any CPU")
    parser.add_argument("--most", type=int, default=1_000_000, help="images a source")
    parser.add_argument("--simulated", type=Path, help="a cohort of `metaphase simulate`")
    parser.add_argument("--eight-bits", type=Path, nargs="+", default=[], help="cards to be completed")
    options = parser.parse_args()
    pictures = read_pictures(options.data)
    for card in options.eight_bits:
        state_eight_bits(card, pictures)
    if options.eight_bits:
        return
    left_out = [one for one in pictures if one.role != TRAIN]
    by_source = {name: [one for one in left_out if one.folder == name][: options.most] for name in FOLDERS}
    by_source = {name: pictures for name, pictures in by_source.items() if pictures}
    if options.simulated:
        by_source["simulated laboratories"] = simulated_pictures(options.simulated)
    detector = load_detector([options.model])
    ways = {
        "everywhere": EngineConfig(device=options.device, precision="float32", exhaustive=True),
        "second look": EngineConfig(device=options.device, precision="float32"),
        "as it is": EngineConfig(device=options.device, precision=options.precision),
    }
    ready = {name: ReadyDetector(detector, config) for name, config in ways.items()}
    watch, seen = watched(ready["second look"]), []
    print("| | point | way | arithmetic | kept | largest move | F1, long way | F1 |\n" + "|---" * 8 + "|")
    for source, pictures in by_source.items():
        watch.sides.clear()
        found = {name: found_by(each, pictures) for name, each in ready.items()}
        long = found.pop("everywhere")
        for point in (detector.points.mitoses, detector.points.count):
            threshold = point.delta
            expected = detection_metrics(marked(pictures, long), threshold, NONE).f1
            for name, short in found.items():
                right, total, moved = kept(long, short, pictures, threshold)
                f1 = detection_metrics(marked(pictures, short), threshold, NONE).f1
                words = ready[name].engine.arithmetic
                print(
                    f"| {source}, {len(pictures)} | {point.name} | {name} | {words} | "
                    f"{right} of {total} | {moved:.3f} | {expected} | {f1} |",
                    flush=True,
                )
        mm2 = sum(one.pixels.shape[0] * one.pixels.shape[1] for one in pictures) * (MPP / 1000) ** 2
        sides = ", ".join(f"{count / mm2:.0f} of {side} px" for side, count in sorted(watch.sides.items()))
        seen.append(f"{source}, {mm2:.1f} mm2: windows per mm2 {sides or 'none'}")
    print("\n" + "\n".join(seen))


if __name__ == "__main__":
    main()
