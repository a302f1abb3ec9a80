"""Memory while a dask-backed zarr is detected, whatever its size; and which inputs are slides.

    python -m benchmarks.arrays [--sides 4000 12000 40000] [--tissue 0.005] [--json FILE]
    python -m benchmarks.arrays --inputs

Each size runs in a process of its own: fields of the demonstration in the middle of empty glass, as a zarr in
chunks of 1,024 px, wrapped by dask and given to `mp.detect`. Printed are the peak of the process's memory
and the seconds; one chunk (`--sides 1024`) shows what imports and networks need. Ends with 1 where the
largest needs more than 1.5 times the memory of the smallest. `--inputs` prints a line for each input that an
earlier version refused; with PYTHONPATH on another checkout, what that one says.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CHUNK_PX, GLASS, MPP = 1024, 244, 0.25
MOST_GROWTH = 1.5


def fields() -> list[Any]:
    """Pixels of the demonstration."""
    from metaphase.base.settings import fields_of_view

    return [np.asarray(Image.open(path)) for path in fields_of_view().values()]


# ---- memory ----


def written_zarr(path: Path, side: int, tissue: float) -> Any:
    """A zarr whose middle is tissue, on that share of its area; glass is not stored."""
    import zarr

    array = zarr.create_array(
        str(path), shape=(side, side, 3), chunks=(CHUNK_PX, CHUNK_PX, 3), dtype="uint8", fill_value=GLASS
    )
    squares = [one[:CHUNK_PX, :CHUNK_PX] for one in fields()]
    count = max(1, round(math.sqrt(tissue) * side / CHUNK_PX))
    first = (side // CHUNK_PX - count) // 2
    for row in range(first, first + count):
        for column in range(first, first + count):
            top, left = row * CHUNK_PX, column * CHUNK_PX
            array[top : top + CHUNK_PX, left : left + CHUNK_PX] = squares[(row + 2 * column) % len(squares)]
    return array


def measure(side: int, tissue: float) -> dict[str, Any]:
    """Detect one size in this process."""
    import metaphase as mp

    dask: Any = import_module("dask.array")
    with tempfile.TemporaryDirectory() as folder:
        pixels = dask.from_zarr(written_zarr(Path(folder) / "slide.zarr", side, tissue))
        seconds, cpu = time.perf_counter(), time.process_time()
        result = mp.detect(pixels, Path(folder) / "results", mpp=MPP)
        return {
            "side_px": side,
            "gigabytes": round(side * side * 3e-9, 3),
            "tissue_mm2": round(result.tissue.area_mm2, 2),
            "count": result.count,
            "seconds": round(time.perf_counter() - seconds, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }


def measured(side: int, tissue: float) -> dict[str, Any]:
    """The same in a process of its own."""
    line = [sys.executable, "-m", "benchmarks.arrays", "--one", str(side), "--tissue", str(tissue)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ---- what is a slide, and what else an earlier version refused ----


def inputs() -> None:
    """A line for each."""
    import zarr

    import metaphase as mp

    dask: Any = import_module("dask.array")
    rgb = fields()[0][220:420, 380:580]
    opaque = np.full((*rgb.shape[:2], 1), 255, np.uint8)
    slides: dict[str, Any] = {
        "uint8 RGB": rgb, "float in 0 to 1": rgb / 255, "RGBA": np.dstack([rgb, opaque]),
        "RGBA, half transparent": np.dstack([rgb, opaque // 2]), "PIL": Image.fromarray(rgb),
        "dask": dask.from_array(rgb, chunks=100), "zarr": zarr.array(rgb, chunks=(64, 64, 3)),
        "float up to 255": rgb * 1.0, "NaN": rgb * np.nan, "grey": rgb[..., 0],
        "16 bit": rgb.astype(np.uint16) * 257, "channels first": np.moveaxis(rgb, 2, 0),
        "int64": rgb.astype(np.int64),
    }  # fmt: skip
    if find_spec("xarray") is not None:
        array = import_module("xarray").DataArray(np.moveaxis(rgb, 2, 0), dims=("c", "y", "x"))
        slides["xarray (c, y, x)"] = array
    for name, pixels in slides.items():
        read = partial(mean, pixels)
        print(f"{name:<24}{tried(read)}")
    with tempfile.TemporaryDirectory() as folder:
        two = [rgb, fields()[1][:200, :200]]
        mp.detect(two, folder, mpp=MPP)
        registered = import_module("metaphase.labels.registration.outputs").Registered(Path("absent"), {})
        further: dict[str, Callable[[], object]] = {
            "mp.detect(site=...)": lambda: mp.detect(rgb, folder, mpp=MPP, site="absent.json"),
            "mp.detect(any_stain=)": lambda: mp.detect(rgb, folder, mpp=MPP, any_stain=True).count,
            "load_result(cohort)": lambda: mp.load_result(folder),
            "load_results(cohort)": lambda: len(mp.load_results(folder)),
            "hasattr(..., 'points')": lambda: hasattr(registered, "points"),
            "mp.tissue": lambda: round(mp.tissue(rgb, mpp=MPP).area_mm2, 4),
            "mp.calibrate": lambda: mp.calibrate(folder, f"{folder}/asked").items.shape,
            "dir(mp)": lambda: [
                name for name in dir(mp) if name not in vars(mp)["__all__"] and name[0] != "_"
            ],
        }
        for name, work in further.items():
            print(f"{name:<24}{tried(work)}".replace(folder, "FOLDER"))


def mean(pixels: Any) -> float:
    """Of a slide's values."""
    import metaphase as mp

    with mp.open_slide(pixels, mpp=MPP) as slide:
        return float(slide.read(0, 0, slide.width, slide.height, MPP).mean())


def tried(work: Callable[[], object]) -> str:
    """What comes of it, in a line."""
    try:
        return f"works: {work()}"
    except Exception as error:  # noqa: BLE001 -- whatever a version says is shown
        return f"{type(error).__name__}: {str(error)[:150]}"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sides", type=int, nargs="+", default=[4000, 12000, 40000])
    parser.add_argument("--tissue", type=float, default=0.005)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--inputs", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.inputs:
        inputs()
        return
    if given.one:
        print(json.dumps(measure(given.one, given.tissue)))
        return
    rows = []
    for side in given.sides:
        rows.append(measured(side, given.tissue))
        print("  ".join(f"{name} {value:g}" for name, value in rows[-1].items()), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    growth = rows[-1]["peak_mb"] / rows[0]["peak_mb"]
    print(f"memory of the largest: {growth:.2f} times that of the smallest")
    sys.exit(int(growth > MOST_GROWTH))


if __name__ == "__main__":
    main()
