"""How fast and how near ONNX Runtime runs exported detectors, beside the PyTorch engine, on the CPU.

Both compute the same tile in turns, so that a shared machine disturbs both alike.

    python benchmarks/onnx_speed.py [--models breast simulated] [--outputs 240] [--rounds 5]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from metaphase.networks.cards import OUTPUT_STRIDE_PX, RECEPTIVE_PX
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine import EngineConfig, TileEngine
from metaphase.networks.exporting import export_model
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region


def megapixels_per_s(engine: TileEngine, tile: np.ndarray, outputs: int) -> float:
    """Speed of one tile."""
    started = time.perf_counter()
    engine.probability_map(tile)
    return (OUTPUT_STRIDE_PX * outputs) ** 2 / 1e6 / (time.perf_counter() - started)


def main() -> None:
    """One line a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["breast", "simulated"])
    parser.add_argument("--outputs", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    side = RECEPTIVE_PX + OUTPUT_STRIDE_PX * (options.outputs - 1)
    (case,) = cohort_cases(SimulationConfig(cases=1, centres=1, width=side, height=side, seed=3))
    tile = render_region(case, "he", 0, 0, side, side)
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            exported = Path(folder) / "exported.onnx"
            export_model(name, exported)
            config = EngineConfig(device="cpu")
            engines = [ReadyDetector(load_detector([model]), config).engine for model in (name, exported)]
            maps = [engine.probability_map(tile) for engine in engines]
            speeds = [
                [megapixels_per_s(engine, tile, options.outputs) for engine in engines]
                for _ in range(options.rounds)
            ]
        torch_speed, onnx_speed = np.max(speeds, axis=0)
        ratio = np.median([onnx / torch for torch, onnx in speeds])
        print(
            f"{name}: torch {torch_speed:.3f} Mpx/s, ONNX Runtime {onnx_speed:.3f} Mpx/s, "
            f"ratio {ratio:.2f} (median of {options.rounds} turns), "
            f"probabilities differ by at most {np.abs(maps[0] - maps[1]).max():.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
