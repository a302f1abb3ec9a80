"""Processor seconds of counting a slide of 20 mm x 20 mm: hotspot, grade, interval and density map; and of
regions over 100,000 detections.

python benchmarks/counting_speed.py [--repeats 3] [--only-regions]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely

from metaphase.counting.clinical import count_slide
from metaphase.counting.likely import LaboratoryPrior
from metaphase.counting.regions import Scope, region_of
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


OUTLINED, REGIONS, CORNERS = 100_000, 10, 1000


def print_regions(repeats: int) -> None:
    """Print what drawn regions cost: which detections count, which tissue, and the whole count."""
    generator = np.random.default_rng(0)
    side = round(SIDE_UM / MASK_MPP)
    mask = TissueMask(np.ones((side, side), np.bool_), MASK_MPP, 0.0, 0.0, MASK_MPP / MPP)
    points = generator.uniform(0, SIDE_UM / MPP, (OUTLINED, 2))
    regions = []
    angles = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    around = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for number in range(REGIONS):
        reach = generator.uniform(4000, 12_000) * generator.uniform(0.9, 1, (CORNERS, 1))
        middle = generator.uniform(20_000, 60_000, 2)
        kind = "include" if number % 2 else "exclude"
        regions.append(region_of(kind, "drawn", shapely.Polygon(middle + around * reach)))  # type: ignore[arg-type]
    scope = Scope(regions=tuple(regions))
    table = pd.DataFrame(
        {"x": points[:, 0], "y": points[:, 1], "probability": generator.uniform(0.1, 1, OUTLINED)}
    )
    shape = scope.shape(1.0)
    assert shape is not None
    works: dict[str, Callable[[], object]] = {
        "which detections count": lambda: scope.holds(points),
        "the same by shapely alone": lambda: shapely.contains_xy(shape, points),
        "which tissue counts": lambda: scope.tissue(mask),
        "the whole count without regions": lambda: count_slide(table, mpp=MPP, tissue=mask),
        "the whole count with regions": lambda: count_slide(table, mpp=MPP, tissue=mask, scope=scope),
    }
    print(f"{OUTLINED:,} detections, {REGIONS} regions of {CORNERS} corners: CPU s")
    for name, work in works.items():
        seconds = []
        for _ in range(repeats):
            start = time.process_time()
            work()
            seconds.append(time.process_time() - start)
        print(f"{name:32} {min(seconds):.3f}", flush=True)
    different = scope.holds(points) != shapely.contains_xy(shape, points)
    print(f"detections that differ from shapely: {different.sum()}")


def main() -> None:
    """Print a line for each number and arrangement of detections."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only-regions", action="store_true")
    options = parser.parse_args()
    print_regions(options.repeats)
    if options.only_regions:
        return
    generator = np.random.default_rng(0)
    print("detections   arrangement   CPU s without interval   with interval")
    for number in NUMBERS:
        for name, points_um in arrangements(generator, number).items():
            configs = CountConfig(), CountConfig(prior=LaboratoryPrior())
            plain, whole = (seconds_of(points_um, config, options.repeats) for config in configs)
            print(f"{number:10}   {name:11}   {plain:22.2f}   {whole:13.2f}", flush=True)


if __name__ == "__main__":
    main()
