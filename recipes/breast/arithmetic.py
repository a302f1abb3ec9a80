"""What a model finds by faster arithmetic and by its second look, beside what it finds the long way.

python recipes/breast/arithmetic.py --data FOLDER [--simulated COHORT] [--device cuda] [--precision fast]

Images left out, and slides of COHORT (`metaphase simulate COHORT --centres 8 --cases 8`), are searched three
times: in float32 with both networks everywhere, in float32 with the second look, and as `metaphase detect`
does it. A line a source and operating point: the share of the long way's detections that is kept, the largest
move of a probability, and both F1. Then, a line a source, how many windows of which size the second network
saw in float32 (on a GPU with those by which their number is filled up).
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from dense_accuracy import NONE, Found, marked
from pictures import MITOSIS, MPP, TRAIN, VALIDATION, Picture, read_pictures
from torch import Tensor

from metaphase.base.tables import read_manifest
from metaphase.evaluation.metrics import detection_metrics
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine import Engine, EngineConfig, PeakConfig, find_detections
from metaphase.networks.engine.arithmetic import Detector
from metaphase.slides import ArraySlide, open_slide

FOLDERS = ("midesec", "icpr2012-aperio", "mitos-atypia14-hamamatsu", "breakhis-benign")
SAME_PX = 8.0
"""Detections nearer than this are the same."""


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
    """A network of windows; how many of which side it sees."""

    def __init__(self, network: Detector) -> None:
        self.network = network
        self.sides: Counter[int] = Counter()

    def logits(self, image: Tensor) -> Tensor:
        """What the network says."""
        self.sides[image.shape[1]] += len(image)
        return self.network.logits(image)


def watched(ready: ReadyDetector) -> Watched:
    """Its second network, from now on counted."""
    engine = ready.engine
    assert isinstance(engine, Engine)
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
    options = parser.parse_args()
    left_out = [one for one in read_pictures(options.data) if one.role != TRAIN]
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
