"""How fast this machine decodes and searches tissue, which of the two a slide waits for."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metaphase.base.errors import UsageError
from metaphase.base.stages import Report, silent
from metaphase.images.tissue.finding import find_tissue
from metaphase.networks.detector import ReadyDetector
from metaphase.networks.engine.settings import PeakConfig
from metaphase.networks.engine.streaming import detect_tiles, plan_detection
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.contract import Slide
from metaphase.slides.opening import SlideSource, open_slide
from metaphase.slides.tiles import Tile, TilePlan, read_tiles
from metaphase.slides.writer import PyramidFormat, write_pyramid

PIECE_PX, FORMAT_TILE_PX = 1536, 512
"""Side of the simulated tissue of which the slide to measure is made, and of its tiles."""
SLIDE_TILES = 12
"""Tiles a side of that slide: 2.4 mm2."""
LEAST_SECONDS = 2.0
"""Each rate is measured for at least so long."""


@dataclass(frozen=True)
class Rates:
    """Square millimetres of tissue a second, each step by itself and all of them together."""

    decode_mm2_per_s: float
    detector_mm2_per_s: float
    whole_mm2_per_s: float
    arithmetic: str
    device: str

    @property
    def limit(self) -> str:
        """What a slide waits for."""
        return "decoding" if self.decode_mm2_per_s < self.detector_mm2_per_s else "the detector"

    @property
    def share_of_limit(self) -> float:
        """How near the whole comes to its slower step: 1 where the other costs nothing."""
        return self.whole_mm2_per_s / min(self.decode_mm2_per_s, self.detector_mm2_per_s)

    def minutes(self, tissue_mm2: float) -> float:
        """Expected for the search of so much tissue."""
        return tissue_mm2 / self.whole_mm2_per_s / 60


def measure_rates(
    ready: ReadyDetector, source: SlideSource | None = None, *, report: Report = silent
) -> Rates:
    """Rates on a slide's tissue; without a slide, on simulated tissue as JPEG tiles."""
    if source is not None:
        with source.open() as slide:
            return _measure(ready, slide, report)
    with tempfile.TemporaryDirectory() as folder:
        report("simulated slide", 0, 1)
        path = Path(folder) / "simulated.tif"
        _write_slide(path)
        with open_slide(path) as slide:
            return _measure(ready, slide, report)


def _measure(ready: ReadyDetector, slide: Slide, report: Report) -> Rates:
    detector, engine, decoders = ready.detector, ready.engine, ready.decoders
    points = detector.points
    peaks = PeakConfig(suppress_um=points.suppress_um, smooth_um=points.smooth_um)
    plan = plan_detection(slide, engine, peaks, mpp=detector.mpp, mask=find_tissue(slide).grid)
    if not plan.tiles:
        raise UsageError("the slide has no tissue to measure on", next_step="name another one")
    first, pixels = next(iter(read_tiles(slide, plan)))
    ((_, batch),) = engine.staged([([first], [pixels] * engine.batch)])

    def computed() -> Iterator[float]:
        engine.start(batch, peaks, sigma=0.0).results(maps=False)
        yield engine.batch * _area_mm2(first, plan)

    def decoded() -> Iterator[float]:
        read = read_tiles(slide, plan)
        if decoders is not None:
            read = decoders.read(slide, plan, ahead=2 * decoders.count, hold=1)
        return (_area_mm2(tile, plan) for tile, _ in read)

    def searched() -> Iterator[float]:
        results = detect_tiles(engine, slide, plan, peaks, decoders=decoders)
        return (_area_mm2(result.tile, plan) for result in results)

    rates = []
    for number, (what, work) in enumerate((("detector", computed), ("decoding", decoded), ("all", searched))):
        report(what, number, 3)
        rates.append(_rate(work))
    return Rates(rates[1], rates[0], rates[2], engine.arithmetic, str(engine.device))


def _rate(work: Callable[[], Iterator[float]]) -> float:
    """Square millimetres a second, after a first piece that warms caches up."""
    pieces = work()
    next(pieces)
    done, started = 0.0, time.perf_counter()
    while not done or time.perf_counter() - started < LEAST_SECONDS:
        piece = next(pieces, None)
        if piece is None:
            pieces = work()
        else:
            done += piece
    return done / (time.perf_counter() - started)


def _area_mm2(tile: Tile, plan: TilePlan) -> float:
    return tile.core.width * tile.core.height * (plan.mpp / 1000) ** 2


def _write_slide(path: Path) -> None:
    """A JPEG pyramid that shows one piece of simulated tissue again and again."""
    config = SimulationConfig(cases=1, centres=1, width=PIECE_PX, height=PIECE_PX, seed=3)
    (case,) = cohort_cases(config)
    piece = render_region(case, "he", 0, 0, PIECE_PX, PIECE_PX)
    steps = np.arange(SLIDE_TILES) % (PIECE_PX // FORMAT_TILE_PX) * FORMAT_TILE_PX
    tiles = (piece[y : y + FORMAT_TILE_PX, x : x + FORMAT_TILE_PX] for y in steps for x in steps)
    side = SLIDE_TILES * FORMAT_TILE_PX
    write_pyramid(path, tiles, side, side, PyramidFormat(mpp=0.25, tile_px=FORMAT_TILE_PX))
