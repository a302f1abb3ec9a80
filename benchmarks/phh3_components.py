"""Time and memory of the candidate search on a slide of 40,000 x 40,000 pixels with a million brown dots.

    python benchmarks/phh3_components.py --folder OUT [--side 40000] [--tile-px 1024 777]

The slide (about 0.7 GB) is one seamless texture of tissue, repeated: dots that cross a tile's border go on in
the next tile. With several tile sizes, the candidates must be the same. Each search runs in a process of its
own, whose peak memory is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.base.arrays import RGB
from metaphase.labels.phh3.candidates import BrownConfig, find_brown_candidates, survey_slide
from metaphase.slides.opening import open_slide
from metaphase.slides.writer import PyramidFormat, write_pyramid

MPP, TILE_PX, DOTS_PER_SIDE, RADIUS_PX = 0.25, 512, 13, 8.0
TISSUE, BROWN = (205, 208, 226), (96, 62, 40)


def texture() -> RGB:
    """A tile that continues on its opposite side: noisy tissue with a jittered grid of brown dots."""
    rng = np.random.default_rng(0)
    pitch = TILE_PX / DOTS_PER_SIDE
    centres = (np.indices((DOTS_PER_SIDE, DOTS_PER_SIDE)).reshape(2, -1).T + 0.5) * pitch
    centres += rng.uniform(-0.2 * pitch, 0.2 * pitch, centres.shape)
    grid = np.indices((TILE_PX, TILE_PX)).reshape(2, -1).T
    distance = cKDTree(centres, boxsize=TILE_PX).query(grid)[0].reshape(TILE_PX, TILE_PX)
    colour = np.where((distance < RADIUS_PX)[..., None], BROWN, TISSUE)
    return np.clip(colour + rng.normal(0, 4, colour.shape), 0, 255).astype(np.uint8)


def write_slide(path: Path, side: int) -> None:
    """The texture over the whole slide."""
    tile = texture()
    count = (-(-side // TILE_PX)) ** 2
    write_pyramid(path, (tile for _ in range(count)), side, side, PyramidFormat(MPP, TILE_PX, 85))


def search(path: Path, tile_px: int) -> None:
    """Search the slide and print figures."""
    config = BrownConfig(join_um=5.0)
    with open_slide(path) as slide:
        started = time.perf_counter()
        survey = survey_slide(slide, config)
        surveyed = time.perf_counter()
        if survey.threshold is None:
            raise SystemExit("no tissue found")
        table = find_brown_candidates(slide, survey.tissue, survey.threshold, config, tile_px=tile_px).table
        seconds = time.perf_counter() - surveyed
        pixels = slide.width * slide.height
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    digest = hashlib.sha256(pd.util.hash_pandas_object(table).to_numpy().tobytes()).hexdigest()[:12]
    print(
        f"tile {tile_px} px: {len(table):,} candidates ({digest}) in {seconds:.1f} s "
        f"({pixels / seconds / 1e6:.0f} Mpx/s of level 0), survey {surveyed - started:.1f} s, "
        f"peak {peak_mb:.0f} MB",
        flush=True,
    )


def main() -> None:
    """Write the slide if it is not there, then search it once a tile size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--side", type=int, default=40_000)
    parser.add_argument("--tile-px", type=int, nargs="+", default=[1024, 777])
    parser.add_argument("--search-only", action="store_true", help="search in this process")
    options = parser.parse_args()
    path = options.folder / f"dots{options.side}.tif"
    if options.search_only:
        search(path, options.tile_px[0])
        return
    if not path.exists():
        started = time.perf_counter()
        write_slide(path, options.side)
        print(f"slide written in {time.perf_counter() - started:.0f} s", flush=True)
    for tile_px in options.tile_px:
        again = ["--folder", str(options.folder), "--side", str(options.side), "--tile-px", str(tile_px)]
        subprocess.run([sys.executable, __file__, *again, "--search-only"], check=True)


if __name__ == "__main__":
    main()
