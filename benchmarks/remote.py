"""Slides by URL: what is fetched of a slide whose tissue is a tenth of it, and a server that fails at times.

python -m benchmarks.remote [--side-px 8192] [--fail-every 10] [--s3 http://127.0.0.1:5000]

Two slides: *glass*, with tissue on a tenth of it, searched where tissue is found; and *tissue* everywhere, of
which a mask names a tenth. Each is searched from the disk, from a web server of this machine that counts what
it gives, and from one that fails every tenth request (503, no answer, half an answer, in turn). Detections
must be the same; ends with 1 where not. `--s3` searches them once more from a running S3 server such as
moto's (`moto_server`), to which they are uploaded.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
from tests.base.servers import RangeServer, serving

from metaphase.images.tissue.finding import TissueMask
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.writer import PyramidFormat, write_pyramid

PIECE_PX, TILE_PX, MPP = 2048, 256, 0.25
SHARE = 0.1
"""Of the slide that is searched."""
BUCKET = "slides"


def write_slide(path: Path, piece: np.ndarray, side_px: int, *, everywhere: bool) -> None:
    """A simulated piece, over and over; else on a tenth of glass, with a scanner's noise."""
    rng, end = np.random.default_rng(1), tissue_px(side_px)

    def tile(x: int, y: int) -> np.ndarray:
        if everywhere or (x < end and y < end):
            part = piece[y % PIECE_PX :, x % PIECE_PX :][:TILE_PX, :TILE_PX]
            return np.ascontiguousarray(part)
        return rng.normal(242, 1.5, (TILE_PX, TILE_PX, 3)).clip(0, 255).astype(np.uint8)

    positions = range(0, side_px, TILE_PX)
    tiles = (tile(x, y) for y in positions for x in positions)
    write_pyramid(path, tiles, side_px, side_px, PyramidFormat(mpp=MPP, tile_px=TILE_PX))


def tissue_px(side_px: int) -> int:
    """Side of the square that is tissue, in whole tiles."""
    return round(side_px * math.sqrt(SHARE) / TILE_PX) * TILE_PX


def write_mask(path: Path, side_px: int) -> None:
    """The mask of that square."""
    scale, end = 32, tissue_px(side_px) // 32
    mask = np.zeros((side_px // scale, side_px // scale), np.bool_)
    mask[:end, :end] = True
    path.write_bytes(TissueMask(mask, MPP * scale, 0.0, 0.0, float(scale)).to_png())


def searched(slide: str, output: Path, *options: str, **environment: str) -> tuple[float, int, pd.DataFrame]:
    """Seconds, exit code and candidates of a search."""
    command = [sys.executable, "-m", "metaphase", "detect", slide, "-o", str(output), "--model", "simulated"]
    command += ["--any-stain", "--device", "cpu", *options]
    begun = time.monotonic()
    code = subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | environment,
        check=False,
    ).returncode
    seconds, table = time.monotonic() - begun, output / "candidates.parquet"
    return seconds, code, pd.read_parquet(table) if table.is_file() else pd.DataFrame()


def upload(path: Path, endpoint: str) -> dict[str, str]:
    """Put a slide into a bucket of an S3 server; what its readers need in their environment."""
    import obstore
    from obstore.store import HTTPStore, S3Store

    keys = {"ACCESS_KEY_ID": "nobody", "SECRET_ACCESS_KEY": "nothing", "REGION": "us-east-1"}
    keys |= {"ENDPOINT_URL": endpoint, "ALLOW_HTTP": "true"}
    obstore.put(HTTPStore(endpoint, client_options={"allow_http": True}), BUCKET, b"")
    store = S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id="nobody",
        secret_access_key="nothing",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    obstore.put(store, path.name, path)
    return {f"AWS_{name}": value for name, value in keys.items()}


def compare(path: Path, folder: Path, options: tuple[str, ...], fail_every: int, s3: str) -> bool:
    """One slide from everywhere."""
    size, fine, first = path.stat().st_size, True, pd.DataFrame()
    print(f"\n{path.stem}: {size / 1e6:.1f} MB")
    print("| from | seconds | fetched, MB | of the file | requests | failed | same detections |")
    print("|---|--:|--:|--:|--:|--:|---|")
    ways = ["disk", "server", f"failing every {fail_every}th", *(["S3"] if s3 else [])]
    for number, way in enumerate(ways):
        kept = serving(path.parent, fail_every=fail_every * (number == 2)) if number in (1, 2) else None
        environment = upload(path, s3) if way == "S3" else {}
        with kept or nullcontext() as server:
            slide = f"{server.url}/{path.name}" if isinstance(server, RangeServer) else str(path)
            slide = f"s3://{BUCKET}/{path.name}" if way == "S3" else slide
            seconds, code, found = searched(slide, folder / f"{path.stem}-{number}", *options, **environment)
        first = found if way == "disk" else first
        same = code == 0 and len(found) > 0 and found.equals(first)
        fine &= same
        described = ("", "", "", "")
        if isinstance(server, RangeServer):
            share = f"{100 * server.bytes_sent / size:.1f} %"
            described = (f"{server.bytes_sent / 1e6:.1f}", share, str(server.requests), str(server.failed))
        print(f"| {way} | {seconds:.1f} | {' | '.join(described)} | {same} |", flush=True)
    return fine


def main() -> None:
    """Write the slides and search them from everywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side-px", type=int, default=8192, help=f"a multiple of {TILE_PX}")
    parser.add_argument("--fail-every", type=int, default=10)
    parser.add_argument("--s3", default="", help="address of a running S3 server, for the keys of nobody")
    given = parser.parse_args()
    (case,) = cohort_cases(SimulationConfig(cases=1, centres=1, width=4096, height=4096, seed=5))
    piece, fine = render_region(case, "he", 0, 0, PIECE_PX, PIECE_PX), True
    with tempfile.TemporaryDirectory(prefix="remote-") as name:
        folder = Path(name)
        write_mask(folder / "mask.png", given.side_px)
        for kind, options in (("glass", ()), ("tissue", ("--tissue", str(folder / "mask.png")))):
            path = folder / f"{kind}.tif"
            write_slide(path, piece, given.side_px, everywhere=kind == "tissue")
            fine &= compare(path, folder, options, given.fail_every, given.s3)
    sys.exit(int(not fine))


if __name__ == "__main__":
    main()
