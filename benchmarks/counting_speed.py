"""Processor seconds of counting a slide of 20 mm x 20 mm: hotspot, grade, interval and density map.

python benchmarks/counting_speed.py [--repeats 3]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.counting.clinical import count_slide
from metaphase.counting.likely import LaboratoryPrior
from metaphase.counting.specimen import CountConfig
from metaphase.images.tissue.finding import TissueMask

Floats = npt.NDArray[np.float64]
MPP, MASK_MPP, SIDE_UM = 0.25, 8.0, 20_000.0
NUMBERS = (500, 5000, 50_000)
CLUSTERS, CLUSTER_UM = 20, 700.0


def arrangements(generator: np.random.Generator, number: int) -> dict[str, Floats]:
    """Places (um) of detections, evenly over the slide and in clusters."""
    middles = generator.uniform(0.1 * SIDE_UM, 0.9 * SIDE_UM, (CLUSTERS, 2))
    chosen = middles[generator.integers(0, CLUSTERS, number)]
    clusters = chosen + generator.normal(0, CLUSTER_UM, (number, 2))
    return {"even": generator.uniform(0, SIDE_UM, (number, 2)), "clusters": clusters.clip(0, SIDE_UM)}


def seconds_of(points_um: Floats, config: CountConfig, repeats: int) -> float:
    """Least processor time of some counts."""
    side = round(SIDE_UM / MASK_MPP)
    mask = TissueMask(np.ones((side, side), np.bool_), MASK_MPP, 0.0, 0.0, MASK_MPP / MPP)
    table = pd.DataFrame({"x": points_um[:, 0] / MPP, "y": points_um[:, 1] / MPP, "probability": 1.0})
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        count_slide(table, mpp=MPP, tissue=mask, config=config)
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    """Print a line for each number and arrangement of detections."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    print("detections   arrangement   CPU s without interval   with interval")
    for number in NUMBERS:
        for name, points_um in arrangements(generator, number).items():
            configs = CountConfig(), CountConfig(prior=LaboratoryPrior())
            plain, whole = (seconds_of(points_um, config, options.repeats) for config in configs)
            print(f"{number:10}   {name:11}   {plain:22.2f}   {whole:13.2f}", flush=True)


if __name__ == "__main__":
    main()
