"""What a model finds by faster arithmetic and by its re-check, beside what it finds the long way.

python recipes/breast/arithmetic.py --cohort OUT [--simulated COHORT] [--device cuda] [--precision fast]

Images of OUT (what breast_cohort.py wrote) that are left out, and slides of COHORT (`metaphase simulate
COHORT --centres 8 --cases 8`), are searched three times: in float32 with both networks everywhere, in float32
with the re-check, and as `metaphase detect` does it. A line a source and operating point: the share of the
long way's detections that is kept, the largest move of a probability, and both F1. Then, a line a source, how
many windows of which size the second network saw in float32 (on a GPU with those that fill up their number).

python recipes/breast/arithmetic.py --cohort OUT --eight-bits src/metaphase/models/breast.json ...

measures what the search in 8 bits needs on the images of OUT, and writes it into these cards.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import Tensor

from metaphase.base.arrays import RGB, Floats32
from metaphase.base.files import write_text
from metaphase.base.tables import read_manifest, read_table
from metaphase.detections.table import MITOSIS
from metaphase.evaluation.metrics import BootstrapConfig, detection_metrics
from metaphase.evaluation.pairs import mark_images
from metaphase.learn.sources import image_sources
from metaphase.networks.checkpoints import load_model
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.onnx import OnnxEngine
from metaphase.networks.engine.settings import EngineConfig, PeakConfig
from metaphase.networks.engine.streaming import find_detections
from metaphase.networks.exporting import measured_eight_bits
from metaphase.networks.training.images import MPP, LabelledImage, by_laboratory, read_images
from metaphase.slides.arrays import ArraySlide

FOLDERS = ("midesec", "icpr2012-aperio", "mitos-atypia14-hamamatsu", "breakhis-benign")
SAME_PX, RADIUS_UM, MEMORY_GB = 8.0, 7.5, 8.0
"""Detections nearer than the first are the same; those nearer than the second to a mitosis have found it."""
NONE = BootstrapConfig(samples=0)
Found = dict[str, npt.NDArray[np.float64]]


def images_of(manifest: Path, reference: pd.DataFrame, *, learnt: bool = False) -> list[LabelledImage]:
    """Complete images of a manifest that nothing learnt from, or that something did."""
    rows = read_manifest(manifest)
    right = rows["split"] == "train" if learnt else (rows["split"] != "train") & (rows["split"] != "")
    chosen = rows[right & rows["laboratory"].isin(FOLDERS)]
    return read_images(image_sources(chosen, reference), MEMORY_GB)


def simulated_images(cohort: Path) -> list[LabelledImage]:
    """The H&E slides of a simulated cohort with their mitoses."""
    rows = read_manifest(cohort / "manifest.csv")
    points = []
    for case in rows["case"]:
        truth = read_table(cohort / str(case) / "truth.parquet")
        positions = truth.loc[truth["category"] == MITOSIS, ["x_he", "y_he"]].set_axis(["x", "y"], axis=1)
        points.append(positions.assign(case=case, label=MITOSIS))
    return read_images(image_sources(rows.assign(kind="field"), pd.concat(points)), MEMORY_GB)


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

    def run(self, names: list[str], given: dict[str, RGB], options: object) -> list[Floats32]:
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


def found_by(ready: ReadyDetector, images: list[LabelledImage]) -> Found:
    """What is found in each image."""
    points = ready.detector.points
    peaks = PeakConfig(floor=0.05, suppress_um=points.suppress_um, smooth_um=points.smooth_um)
    found = {}
    for one in images:
        here = find_detections(ready.engine, ArraySlide(one.pixels, mpp=MPP), peaks)
        found[one.name] = np.column_stack([here.x, here.y, here.probability])
    return found


def kept(long: Found, short: Found, images: list[LabelledImage], threshold: float) -> tuple[int, int, float]:
    """Detections of the long way that the short one has from a threshold on, all, and the largest move."""
    right = total = 0
    moved = 0.0
    for one in images:
        expected, found = (way[one.name] for way in (long, short))
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
    parser.add_argument("--cohort", type=Path, required=True)
    parser.add_argument("--model", default="breast")
    parser.add_argument("--device")
    parser.add_argument("--precision", default="auto", help="of the third way")
    parser.add_argument("--most", type=int, default=1_000_000, help="images a source")
    parser.add_argument("--simulated", type=Path, help="a cohort of `metaphase simulate`")
    parser.add_argument("--eight-bits", type=Path, nargs="+", default=[], help="cards to be completed")
    options = parser.parse_args()
    manifest, reference = options.cohort / "breast.csv", read_table(options.cohort / "reference.csv")
    left_out = images_of(manifest, reference)
    if options.eight_bits:
        learnt = images_of(manifest, reference, learnt=True)
        for path in options.eight_bits:
            network, card = load_model(path)
            measured = measured_eight_bits(network, card, by_laboratory(learnt), by_laboratory(left_out))
            changed = card.model_copy(update={"eight_bits": measured})
            write_text(path, changed.model_dump_json(indent=2) + "\n")
        return
    by_source = {name: [one for one in left_out if one.laboratory == name] for name in FOLDERS}
    by_source = {name: images[: options.most] for name, images in by_source.items()}
    by_source = {name: images for name, images in by_source.items() if images}
    if options.simulated:
        by_source["simulated laboratories"] = simulated_images(options.simulated)
    detector = load_detector([options.model])
    ways = {
        "everywhere": EngineConfig(device=options.device, precision="float32", exhaustive=True),
        "re-check": EngineConfig(device=options.device, precision="float32"),
        "as it is": EngineConfig(device=options.device, precision=options.precision),
    }
    ready = {name: ReadyDetector(detector, config) for name, config in ways.items()}
    watch, seen = watched(ready["re-check"]), []
    print("| | point | way | arithmetic | kept | largest move | F1, long way | F1 |\n" + "|---" * 8 + "|")
    for source, images in by_source.items():
        watch.sides.clear()
        found = {name: found_by(each, images) for name, each in ready.items()}
        long = found.pop("everywhere")
        for point in (detector.points.mitoses, detector.points.count):
            threshold = point.delta
            expected = detection_metrics(mark_images(images, long, RADIUS_UM), threshold, NONE).f1
            for name, short in found.items():
                right, total, moved = kept(long, short, images, threshold)
                f1 = detection_metrics(mark_images(images, short, RADIUS_UM), threshold, NONE).f1
                words = ready[name].engine.arithmetic
                print(
                    f"| {source}, {len(images)} | {point.name} | {name} | {words} | "
                    f"{right} of {total} | {moved:.3f} | {expected} | {f1} |",
                    flush=True,
                )
        mm2 = sum(one.area_mm2 for one in images)
        sides = ", ".join(f"{count / mm2:.0f} of {side} px" for side, count in sorted(watch.sides.items()))
        seen.append(f"{source}, {mm2:.1f} mm2: windows per mm2 {sides or 'none'}")
    print("\n" + "\n".join(seen))


if __name__ == "__main__":
    main()
