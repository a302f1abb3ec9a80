"""Every form of arithmetic on the CPU in turns, then whole slides by the engine and by plain runtimes.

    python benchmarks/onnx_speed.py [--gamma 0.3 0.6 1.0] [--tissue PICTURES] [--side 9216]
        [--whole-side 28672] [--rounds 3] [--ways engine float32 torch]

All compute the same pixels in turns, so that a shared machine disturbs all alike; times are the best of all
rounds. OpenVINO is measured where it is installed. `--side` makes slides that all ways search, `--whole-side`
slides that only the first way searches.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

from inference import MPX_PER_MM2, sheet_of, spread_network, write_slide
from metaphase.base.arrays import RGB, Floats32
from metaphase.base.parallel import available_cores
from metaphase.networks.cards import OUTPUT_STRIDE_PX, RECEPTIVE_PX, ModelCard, named_model
from metaphase.networks.checkpoints import load_model
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.arithmetic import tissue_like
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.layers import PlainDetector, PortableDetector, fold_detector
from metaphase.networks.engine.onnx import LOGIT, PIXELS
from metaphase.networks.engine.searching import TileEngine
from metaphase.networks.engine.settings import EngineConfig, PeakConfig
from metaphase.networks.engine.streaming import detect_tiles, plan_detection
from metaphase.networks.exporting import Ranges, detector_graph, measured_ranges
from metaphase.slides.opening import open_slide

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WAYS = ("engine", "float32", "torch")
PAPER_OUTPUTS = 128
"""Outputs a side of the tile that the paper's network sees."""
Way = Callable[[RGB], Floats32]
"""Logits of uint8 pixels (n, rows, columns, 3)."""


def side_px(outputs: int) -> int:
    """Pixels a side under so many outputs."""
    return RECEPTIVE_PX + OUTPUT_STRIDE_PX * (outputs - 1)


def by_torch(detector: Any) -> Way:
    """A detector of PyTorch."""

    def logits(pixels: RGB) -> Floats32:
        with torch.inference_mode():
            found: Floats32 = detector.logits(torch.from_numpy(pixels)).numpy()
        return found

    return logits


def by_onnx(graph: bytes) -> Way:
    """A graph by ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = available_cores(), 4
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return lambda pixels: np.asarray(session.run([LOGIT], {PIXELS: pixels})[0])


def by_openvino(graph: bytes, shape: tuple[int, ...]) -> Way:
    """A graph by OpenVINO, compiled for one shape."""
    import openvino  # type: ignore[import-not-found, unused-ignore]

    core = openvino.Core()
    model = core.read_model(graph)
    model.reshape({PIXELS: list(shape)})
    compiled = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": available_cores()})
    return lambda pixels: np.asarray(compiled(pixels)[LOGIT])


def ways_of(
    network: nn.Sequential, card: ModelCard, ranges: Ranges, shape: tuple[int, ...]
) -> dict[str, Way]:
    """All forms of a network."""
    ways: dict[str, Way] = {}
    forms = {name: PlainDetector(network, CPU, dtype) for name, dtype in DTYPES.items()}
    ways |= {f"PyTorch, {name}": by_torch(form) for name, form in forms.items()}
    if card.family == "detector":
        ways["PyTorch, wide layer in Fourier's form"] = by_torch(
            PortableDetector(fold_detector(network), CPU)
        )
    graphs = {"float32": detector_graph(network, card), "8 bits": detector_graph(network, card, ranges)}
    ways |= {f"ONNX Runtime, {name}": by_onnx(graph) for name, graph in graphs.items()}
    if find_spec("openvino") is not None:
        ways |= {f"OpenVINO, {name}": by_openvino(graph, shape) for name, graph in graphs.items()}
    return ways


def compare(name: str, network: nn.Sequential, card: ModelCard, pixels: RGB, rounds: int) -> None:
    """One line a form: seconds and processor seconds per mm2 of pixels seen, and the largest difference."""
    stated = card.eight_bits
    ranges = measured_ranges(network, card, pixels[:1]) if stated is None else stated.ranges
    ways = ways_of(network, card, ranges, pixels.shape)
    mm2 = pixels[..., 0].size / 1e6 / MPX_PER_MM2
    exact = ways["ONNX Runtime, float32"](pixels)
    wall, processor = dict[str, float](), dict[str, float]()
    off = {way: float(np.abs(work(pixels) - exact).max()) for way, work in ways.items()}
    for _ in range(rounds):
        for way, work in ways.items():
            began, used = time.perf_counter(), time.process_time()
            work(pixels)
            wall[way] = min(wall.get(way, np.inf), time.perf_counter() - began)
            processor[way] = min(processor.get(way, np.inf), time.process_time() - used)
    for way in ways:
        print(
            f"{name:28s} {way:38s} {wall[way] / mm2:8.2f} s/mm2, {processor[way] / mm2:8.2f} of processors, "
            f"logits differ by at most {off[way]:.1e}",
            flush=True,
        )


def engines(model: str, ways: list[str]) -> dict[str, TileEngine]:
    """What searches slides: as it is, in float32, and by plain PyTorch."""
    detector, made = load_detector([model]), dict[str, TileEngine]()
    if "engine" in ways:
        made["engine"] = ReadyDetector(detector, EngineConfig(device="cpu")).engine
    exact = EngineConfig(device="cpu", precision="float32")
    if "float32" in ways:
        made["float32"] = ReadyDetector(detector, exact).engine
    if "torch" in ways:
        plain = detector.built()
        made["torch"] = Engine(plain.networks, exact, plain.second, plain.calibration)  # type: ignore[arg-type]
    return made


def searched(name: str, engine: TileEngine, path: Path, peaks: PeakConfig) -> None:
    """A slide end to end."""
    with open_slide(path) as slide:
        plan = plan_detection(slide, engine, peaks)
        mm2 = slide.levels[0].width * slide.levels[0].height / 1e6 / MPX_PER_MM2
        began, used = time.perf_counter(), time.process_time()
        points = sum(len(result.points.x) for result in detect_tiles(engine, slide, plan, peaks))
        wall, processor = time.perf_counter() - began, time.process_time() - used
    print(
        f"{mm2:6.1f} mm2 {name:8s} {engine.arithmetic}: {wall:.1f} s, {wall / mm2:.2f} s/mm2, "
        f"{processor / mm2:.2f} of processors, {points} points, "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB so far",
        flush=True,
    )


def main() -> None:
    """Forms, then slides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gamma", type=float, nargs="*", default=[0.6], help="of the paper's network")
    parser.add_argument("--tissue", type=Path, nargs="*", default=[], help="pictures that slides are made of")
    parser.add_argument("--side", type=int, nargs="*", default=[4096], help="px of slides for all ways")
    parser.add_argument(
        "--whole-side", type=int, nargs="*", default=[], help="px of slides for the first way"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(available_cores())
    detector = load_detector(["breast"])
    points = detector.points
    peaks = PeakConfig(suppress_um=points.suppress_um, smooth_um=points.smooth_um)
    with tempfile.TemporaryDirectory() as folder:
        made = engines("breast", options.ways)
        sides = {side: list(made) for side in options.side}
        sides |= {side: list(made)[:1] for side in options.whole_side}
        for side, ways in sides.items():
            path = Path(folder) / f"{side}.tiff"
            write_slide(path, side, options.tissue)
            for way in ways:
                searched(way, made[way], path, peaks)
        del made
    squares = np.stack(sheet_of(options.tissue)[:64])
    for name, shown in (("breast", squares[:2]), ("breast-second", squares[:32, :161, :161])):
        network, card = load_model(named_model(name))
        compare(name, network, card, np.ascontiguousarray(shown), options.rounds)
    _, card = load_model(named_model("paper"))
    for gamma in options.gamma:
        tile = tissue_like(side_px(PAPER_OUTPUTS))[None]
        compare(f"the paper's, gamma {gamma:g}", spread_network(gamma, "none"), card, tile, options.rounds)


if __name__ == "__main__":
    main()
