"""What a verdict on a registration is worth: pairs turned and warped by known amounts.

    python recipes/accuracy/registration_warps.py --folder FOLDER [--cases 2] [--real 1] [--seed 0]

A simulated pair (2,048 x 2,048 px, made once into FOLDER) or a real one of two scanners (ICPR 2012) has its
second slide turned, and bent by plane waves of one wavelength whose longest displacement is stated. Errors
are those of the transform at random places of the tissue that both slides show; for real pairs they include
what the pair was off by before. A pair is good when 95 % of the places are within 5 um.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, cycle
from pathlib import Path

import cv2
import numpy as np

from metaphase.base.arrays import RGB
from metaphase.base.geometry import Box
from metaphase.labels.registration import RegistrationConfig, register_pair, register_points
from metaphase.simulation import Displacement, SimulationConfig, cohort_cases, render_region
from metaphase.simulation.deformation import Wave
from metaphase.slides import ArraySlide, Slide, open_slide

ROOT = Path(__file__).resolve().parents[2]
SIDE_PX = 2048
MPP = 0.25
APERIO_MPP, HAMAMATSU_MPP = 0.2456, 0.2275
WARPS_UM = (
    *((0.0, 1000.0), (4.0, 300.0), (8.0, 300.0), (8.0, 700.0)),
    *((15.0, 400.0), (15.0, 700.0), (15.0, 1500.0), (24.0, 400.0)),
)
"""Longest displacement and wavelength; the last is more than `register` is meant for."""
TURNS_DEG = (180.0, 10.0, 0.0, 90.0, -137.0)
"""Taken in turn."""
GOOD_UM = 5.0
WAVES = 6
PLACES, POINTS = 4000, 60


@dataclass(frozen=True)
class Sample:
    """Two slides that lie alike (to `unwarped`, um to um), the second still to be warped."""

    name: str
    he: Slide
    other: RGB
    other_mpp: float
    unwarped: Callable[[np.ndarray], np.ndarray]
    config: RegistrationConfig


def simulated(folder: Path, count: int) -> Iterator[Sample]:
    """Pairs of different laboratories, rendered once."""
    if not count:
        return
    settings = SimulationConfig(
        cases=count, centres=count, width=SIDE_PX, height=SIDE_PX, seed=4242, max_shift_um=0.0,
        max_rotation_deg=0.0, local_deformation_um=0.0,
    )  # fmt: skip
    for case in cohort_cases(settings):
        path = folder / f"{case.name}-of-{count}.npz"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            still = replace(case, displacement=Displacement(0.0, 0.0, 0.0, 0.0, 0.0))
            he, phh3 = (render_region(still, frame, 0, 0, SIDE_PX, SIDE_PX) for frame in ("he", "phh3"))
            np.savez(path, he=he, phh3=phh3)
        with np.load(path) as pair:
            yield Sample(
                case.name, ArraySlide(pair["he"], MPP), pair["phh3"], MPP, np.asarray, RegistrationConfig()
            )


def real(data: Path, count: int) -> Iterator[Sample]:
    """Fields of two scanners, with the map that was found between them before any warp."""
    config = RegistrationConfig(any_stains=True)
    for path in sorted((data / "icpr2012-aperio").glob("*.jpg"))[:: max(1, 35 // max(1, count))][:count]:
        he = open_slide(path, mpp=APERIO_MPP)
        other = data / "icpr2012-hamamatsu-painted" / path.name.replace("A", "H", 1)
        slide = open_slide(other, mpp=HAMAMATSU_MPP)
        found = register_pair(he, slide, config)
        pixels = slide.read(0, 0, slide.width, slide.height, slide.mpp)
        yield Sample(path.stem, he, pixels, slide.mpp, found.transform.apply, config)


def displacement(
    size: tuple[int, int], mpp: float, turn_deg: float, warp: tuple[float, float], seed: int
) -> Displacement:
    """A turn about the middle with waves in random directions; `warp` is their longest shift and length."""
    longest_um, wave_um = warp
    rng = np.random.default_rng([seed, *(int(value) % 1000 for value in (turn_deg, *warp))])
    heading, phase = rng.uniform(0, 2 * np.pi, (2, WAVES))
    amplitude = rng.standard_normal((WAVES, 2))
    frequency = 2 * np.pi * mpp / wave_um * np.stack([np.cos(heading), np.sin(heading)], axis=1)
    shift = rng.uniform(-40, 40, 2) / mpp
    turn = float(np.radians(turn_deg))
    rigid = Displacement(float(shift[0]), float(shift[1]), turn, size[0] / 2, size[1] / 2)

    def bent(gain: float) -> Displacement:
        rows = np.column_stack([gain * amplitude, frequency, phase])
        return replace(rigid, waves=tuple(Wave(*map(float, row)) for row in rows))

    grid = np.stack(np.meshgrid(*(np.linspace(0, side, 60) for side in size)), axis=-1).reshape(-1, 2)
    moved = np.linalg.norm(bent(1).phh3_to_he(grid) - rigid.phh3_to_he(grid), axis=1)
    return bent(longest_um / mpp / float(moved.max()))


def warped(pixels: RGB, there: Displacement) -> RGB:
    """The slide whose place p shows what lies at `there.phh3_to_he(p)` of the given one."""
    height, width = pixels.shape[:2]
    x, y = (np.asarray(axis - 0.5, np.float32) for axis in there.pull_maps(Box(0, 0, width, height)))
    white = (244, 244, 244)
    out = cv2.remap(pixels, x, y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_CONSTANT, borderValue=white)
    return np.asarray(out, np.uint8)


def assess(sample: Sample, turn_deg: float, warp: tuple[float, float], seed: int) -> tuple[str, bool]:
    """Register one warped pair and print its row; its verdict, and whether it is good."""
    rows, columns = sample.other.shape[:2]
    there = displacement((columns, rows), sample.other_mpp, turn_deg, warp, seed)
    phh3 = ArraySlide(warped(sample.other, there), sample.other_mpp)
    began = time.process_time()
    found = register_pair(sample.he, phh3, sample.config)
    took = time.process_time() - began
    places = np.random.default_rng(seed).uniform(0, 1, (PLACES, 2)) * (columns, rows)
    true = sample.unwarped(there.phh3_to_he(places) * sample.other_mpp)
    seen = found.pair.phh3.tissue.contains(places) & found.pair.he.tissue.contains(true / sample.he.mpp)
    places, true = places[seen], true[seen]
    miss = np.linalg.norm(found.transform.phh3_to_he(places) * sample.he.mpp - true, axis=1)
    points = register_points(found, places[:POINTS])
    kept = points["accepted"].to_numpy(bool)
    there_um = points[["x_he", "y_he"]].to_numpy(float)[kept] * sample.he.mpp
    off = np.linalg.norm(there_um - true[:POINTS][kept], axis=1)
    middle, most, worst = np.percentile(miss, [50, 95, 100])
    verdict, carried = found.verdict, f"{np.percentile(off, 95):.2f}" if len(off) else ""
    print(
        f"| {sample.name} | {turn_deg:.0f} | {warp[0]:.0f} | {warp[1]:.0f} | {middle:.2f} | {most:.2f} "
        f"| {worst:.2f} | {len(off)} | {carried} | {verdict.status} "
        f"| {verdict.numbers.get('error_95_um', np.nan):.2f} | {took:.0f} | {'; '.join(verdict.reasons)} |",
        flush=True,
    )
    return verdict.status, bool(most <= GOOD_UM)


def main() -> None:
    """All pairs, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where simulated slides are kept")
    parser.add_argument("--cases", type=int, default=2, help="simulated pairs, eight warps each")
    parser.add_argument("--real", type=int, default=1, help="real pairs, likewise")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data = Path(os.environ.get("METAPHASE_DATA", ROOT.parent / "shared" / "data"))
    print(
        "| pair | turn | warp um | wavelength um | median um | 95 % | worst | points | 95 % | verdict",
        end=" ",
    )
    print("| fresh tiles 95 % | s | |\n|---|" + "---:|" * 8 + "---|---:|---:|---|")
    turns, done = cycle(TURNS_DEG), []
    for sample in chain(simulated(options.folder, options.cases), real(data, options.real)):
        done += [assess(sample, next(turns), warp, options.seed) for warp in WARPS_UM]
    for name, kind in (("good", True), ("not good", False)):
        verdicts = Counter(verdict for verdict, good in done if good == kind)
        print(f"{verdicts.total()} {name}: {dict(verdicts)}")


if __name__ == "__main__":
    main()
