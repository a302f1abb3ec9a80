"""Speed of the table that standardises colours, on 64 megapixels, and its error against the map itself.

    python benchmarks/stain_table.py [--picture FILE] [--threads 2] [--json FILE]

The colours are those of the picture, or of a simulated slide where none is given.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from metaphase.base.arrays import RGB
from metaphase.base.parallel import available_cores
from metaphase.images.stain.colours import HsdColours
from metaphase.images.stain.standardisation import StainTransform
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region

FIELD_PX, TIMES = 1024, 64


def field_of(picture: Path | None) -> RGB:
    """Pixels (n, 3) of a square of the picture, or of a simulated slide."""
    if picture is not None:
        return np.asarray(Image.open(picture).convert("RGB"))[:FIELD_PX, :FIELD_PX].reshape(-1, 3)
    (case,) = cohort_cases(SimulationConfig(cases=1, centres=1, width=FIELD_PX, height=FIELD_PX, seed=3))
    return render_region(case, "he", 0, 0, FIELD_PX, FIELD_PX).reshape(-1, 3)


def figures_of(field: RGB, threads: int, repeats: int) -> dict[str, Any]:
    """Megapixels a second, seconds to build, and errors in grey levels."""
    transform, many = StainTransform(HsdColours.of(field), HsdColours.default()), np.tile(field, (TIMES, 1))
    began = time.perf_counter()
    table = transform.table
    build_s, seconds = time.perf_counter() - began, []
    for _ in range(repeats):
        began = time.perf_counter()
        table.apply(many, threads)
        seconds.append(time.perf_counter() - began)
    exact = transform.source.towards(transform.template, field.astype(np.float32))
    error = np.abs(table.apply(field) - exact)
    return {
        "Mpx/s": many.size / 3e6 / min(seconds),
        "seconds to build": build_s,
        "mean error": float(error.mean()),
        "99.9 % error": float(np.percentile(error, 99.9)),
        "largest error": float(error.max()),
    }


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    field = field_of(options.picture)
    result = figures_of(field, options.threads, options.repeats)
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
