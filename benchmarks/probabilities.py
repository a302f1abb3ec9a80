"""One scale everywhere: what `predict` and the exported graph say beside what `metaphase detect` writes.

    python -m benchmarks.probabilities FIELD ... [--mpp 0.25] [--model breast]

Each field (any image) is searched as `detect` does on this machine, and in float32. Of every position found,
the largest difference of probability: the map of `predict`, patches of 116 px around it, and what plain ONNX
Runtime makes of `NAME.detections.onnx`, which has no 8 bits. It prints a row a field, and the largest of all.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd

import metaphase as mp
from metaphase.detections.matching import suppress
from metaphase.networks.detector import ReadyDetector
from metaphase.networks.engine.second import ANSWER_PX
from metaphase.networks.engine.settings import EngineConfig, PeakConfig
from metaphase.networks.engine.streaming import Detections, find_detections
from metaphase.networks.joining import export_detector
from metaphase.slides.tiles import cut_square

SAME_PX = 30
"""Within 7.5 um two positions are one figure."""


def main() -> None:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fields", nargs="+", type=Path)
    parser.add_argument("--mpp", type=float, default=0.25)
    parser.add_argument("--model", default="breast")
    given = parser.parse_args()
    plain = mp.load_model(given.model)
    exact = ReadyDetector(plain.detector, EngineConfig(device="cpu", precision="float32"))
    points = plain.detector.points
    peaks = PeakConfig(smooth_um=points.smooth_um, suppress_um=points.suppress_um)
    listed, rows = points.mitoses.delta, []
    with tempfile.TemporaryDirectory() as folder:
        _, path = export_detector(given.model, Path(folder) / "exported.onnx")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        for field in given.fields:
            with mp.open_slide(field, mpp=given.mpp) as slide:
                found, right = (
                    find_detections(one.engine, slide, peaks, mpp=plain.mpp) for one in (plain, exact)
                )
                pixels = slide.read(0, 0, slide.width, slide.height, given.mpp)
                corners = zip(found.x + 0.5, found.y + 0.5, strict=True)
                patches = [cut_square(slide, x, y, ANSWER_PX, plain.mpp) for x, y in corners]
            image = plain.predict(pixels)
            cells = tuple(
                np.rint(place / 4).astype(int).clip(0, side - 1)
                for place, side in zip((found.y, found.x), image.shape, strict=True)
            )
            alone = plain.predict(np.array(patches, np.uint8).reshape(-1, ANSWER_PX, ANSWER_PX, 3))
            x, y, first, last = (one.astype(float) for one in session.run(None, {"pixels": pixels[None]}))
            kept = suppress(x, y, first, points.suppress_um / given.mpp)
            told, found_listed, right = (
                one.select(one.probability >= listed)
                for one in (Detections(x[kept], y[kept], last[kept]), found, right)
            )
            rows.append(
                {
                    "field": field.stem,
                    "positions": len(found.x),
                    "listed": len(found_listed.x),
                    "map": np.abs(image[cells] - found.probability).max(initial=0),
                    "patches": np.abs(alone - found.probability).max(initial=0),
                    "listed by the graph": len(told.x),
                    "graph, float32": apart(told, right),
                    "graph, detect": apart(told, found_listed),
                }
            )
    table = pd.DataFrame(rows)
    print(table.to_string(index=False, float_format="{:.1e}".format))
    print(table.drop(columns="field").max().to_string())


def apart(some: Detections, others: Detections) -> float:
    """The largest difference of probabilities at positions of both; 1 where one has a position alone."""
    if not len(some.x) and not len(others.x):
        return 0.0
    if len(some.x) != len(others.x):
        return 1.0
    away = np.hypot(some.x[:, None] - others.x, some.y[:, None] - others.y)
    nearest = away.argmin(axis=1)
    if away.min(axis=1).max() > SAME_PX or len(set(nearest)) < len(nearest):
        return 1.0
    return float(np.abs(some.probability - others.probability[nearest]).max())


if __name__ == "__main__":
    main()
