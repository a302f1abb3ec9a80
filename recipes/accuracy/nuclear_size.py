"""How large nuclei of real fields are, and from what factor on a wrong resolution is told.

    python recipes/accuracy/nuclear_size.py --data ../shared/data [--fields 12] [--factors 4]

`--fields` of each data set at its resolution, and so many of them (`--factors`) called finer and coarser.
The limits were chosen on the sets that are marked; the others test them.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from time import process_time

import numpy as np
import pandas as pd

from metaphase.images.nuclei import LARGEST_UM, SMALLEST_UM, nuclear_diameter_um
from metaphase.slides.opening import open_slide

SETS = {
    "icpr2012-aperio": 0.2456,
    "mitos-atypia14-hamamatsu": 0.2273,
    "tcga-tissue": 0.25,
    "icpr2012-hamamatsu-painted": 0.2275,
    "icpr2012-aperio-eval-painted": 0.2456,
    "mitos-atypia14-A03": 0.2456,
    "midesec": 0.25,
    "breakhis-benign": 0.18,
    "phh3-tiles": 0.5,
    "wsi": 0.499,
}
CHOSEN_ON = 3
"""The first so many."""
FACTORS = (0.4, 0.5, 0.6, 0.7, 1.5, 1.75, 2.0, 2.5)
ENDINGS = {".jpg", ".jpeg", ".png", ".tif", ".svs"}


def spread(paths: list[Path], number: int) -> list[Path]:
    """So many of them, evenly."""
    chosen = np.unique(np.linspace(0, len(paths) - 1, min(number, len(paths))).astype(int))
    return [paths[index] for index in chosen]


def main() -> None:
    """Measure, tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--fields", type=int, default=12)
    parser.add_argument("--factors", type=int, default=4)
    options = parser.parse_args()
    told, seconds = [], []
    for index, (name, mpp) in enumerate(SETS.items()):
        paths = sorted(path for path in (options.data / name).rglob("*") if path.suffix in ENDINGS)
        paths = [path for path in paths if "artefact" not in path.as_posix()]
        found = []
        for path in spread(paths, options.fields):
            with open_slide(path, mpp=None if path.suffix == ".svs" else mpp) as slide:
                began = process_time()
                found.append(nuclear_diameter_um(slide))
                seconds.append(process_time() - began)
        values = np.array(found)
        few, wrong = np.isnan(values), (values < SMALLEST_UM) | (values > LARGEST_UM)
        low, middle, high = np.nanquantile(values, (0, 0.5, 1)) if not few.all() else [math.nan] * 3
        marked = " (chosen on)" if index < CHOSEN_ON else ""
        print(
            f"{name}{marked}: {len(values)} fields, {few.sum()} with too few nuclei, median {middle:.1f} um, "
            f"{low:.1f} to {high:.1f}, {wrong.sum()} false alarms",
            flush=True,
        )
        for path in spread(paths, options.factors) if not name.endswith("wsi") else []:
            for factor in FACTORS:
                with open_slide(path, mpp=mpp * factor) as slide:
                    size = nuclear_diameter_um(slide)
                told.append(
                    {
                        "set": "chosen on" if index < CHOSEN_ON else "tested on",
                        "factor": factor,
                        "told": size < SMALLEST_UM or size > LARGEST_UM,
                        "says": factor * 7.9 / size,
                    }
                )
    table = pd.DataFrame(told)
    print(table.pivot_table(index="factor", columns="set", values="told").round(2))
    print(table[table["told"]].groupby("factor")["says"].describe()[["min", "50%", "max"]].round(2))
    print(f"processor time: {np.median(seconds):.2f} s in the median, {max(seconds):.2f} s at most")


if __name__ == "__main__":
    main()
