"""Searching slides with a detector: what is asked for, what decides it, one slide tile by tile, many."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.base.arrays import Box, Floats, Floats32
from metaphase.base.errors import OutputError, SlideError, UsageError
from metaphase.base.files import explained
from metaphase.base.foreign import check_plain, read_bytes
from metaphase.base.provenance import Ingredients, fingerprint_of
from metaphase.base.sharing.batch import Progress
from metaphase.base.tables import read_table, write_table
from metaphase.counting.sites import SiteProfile
from metaphase.counting.specimen import CountConfig
from metaphase.detections.files import known_formats
from metaphase.detections.points import UsedPoints, paper_points
from metaphase.detections.table import MITOSIS
from metaphase.images.inspection import named_positions
from metaphase.images.tissue.finding import TissueMask, TissueSource
from metaphase.jobs.cohort import CohortSlide
from metaphase.jobs.stages import Report
from metaphase.networks.cards import OUTPUT_STRIDE_PX, PAPER_MODEL, Identity, vouched_card
from metaphase.networks.detector import PAPER_PEAKS, Detector, ReadyDetector, identities_of, load_detector
from metaphase.networks.engine.second import refuse_components
from metaphase.networks.engine.settings import EngineConfig, PeakConfig
from metaphase.networks.engine.streaming import (
    Detections,
    TileEngine,
    as_detections,
    check_count,
    detect_tiles,
    even_tile_px,
    plan_detection,
)
from metaphase.slides.contract import KINDS, UNDECODABLE, Flaw, Slide
from metaphase.slides.opening import SlideSource, open_slide
from metaphase.slides.tiles import TilePlan, TileProcesses, read_tiles
from metaphase.slides.writer import PyramidFormat, write_pyramid

MIN_TILE_PX = 64


@dataclass(frozen=True)
class DetectionConfig:
    """How slides are searched and counted; where nothing is given, the model's operating point applies."""

    threshold: float | None = None
    """Probability from which a detection is a mitosis and is counted; by default the model's two points."""
    suppress_um: float | None = None
    """Of two detections nearer than this, the weaker one goes; by default the model's distance."""
    smooth_um: float | None = None
    """Probabilities are averaged over this distance first; by default the model's."""
    theta1: float | None = None
    """Counts up to this are grade 1; by default the model's."""
    theta2: float | None = None
    """Counts above this are grade 3; by default the model's."""
    floor: float | None = None
    """Weakest detections that are kept; by default 0.1, or a model's own threshold where that is lower."""
    paper: bool = False
    """The paper's own way: connected components from 0.8 on, 25 um apart, nothing smoothed, its deltas (or
    those that were tuned so for the model) and thetas. Nothing below 0.8 is found."""
    any_stain: bool = False
    """Search slides that look like immunohistochemistry too."""
    allow_damage: bool = False
    """Search slides of which parts cannot be decoded, without these parts."""
    tile_px: int | None = None
    """Side of the tiles, a multiple of 4; by default what runs fastest. Results do not depend on it."""
    probability_map: bool = False
    """Also write the probabilities as a pyramidal TIFF."""
    formats: tuple[str, ...] = ()
    """Formats to write besides Parquet and QuPath's GeoJSON."""
    site: SiteProfile | None = None
    """What is known of the laboratory the slides come from; gives calibrated counts."""
    counting: CountConfig = field(default_factory=CountConfig)
    """Hotspot and uncertainty; threshold and thetas are those of the operating point."""

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise UsageError(
                f"the threshold is {self.threshold:g}", next_step="give a probability above 0 and up to 1"
            )
        if self.tile_px is not None and self.tile_px < MIN_TILE_PX:
            raise UsageError(f"tiles have {self.tile_px} px", next_step=f"give {MIN_TILE_PX} or more")
        if self.paper and self.floor is not None:
            raise UsageError("--floor and --paper are both given", next_step="leave --floor out")
        unknown = [name for name in self.formats if name not in known_formats()]
        if unknown:
            raise UsageError(
                f"there is no format {unknown[0]!r}", next_step=f"choose one of {', '.join(known_formats())}"
            )

    @property
    def models(self) -> tuple[str, ...]:
        """What searches where no model is given: the bundled one, or that of the paper's kind."""
        return (PAPER_MODEL,) if self.paper else ()

    def check(self, model: ReadyDetector) -> None:
        """Refuse what this model cannot search for, before any slide is opened."""
        peaks = self.peaks(model.detector)
        if model.detector.second is not None and not model.config.exhaustive:
            refuse_components(peaks)

    def points(self, detector: Detector) -> UsedPoints:
        """The operating points used: the model's or the paper's, with what was given in their place."""
        own = paper_points(detector.points) if self.paper else detector.points
        used = own.changed(
            delta=self.threshold,
            suppress_um=self.suppress_um,
            smooth_um=self.smooth_um,
            theta1=self.theta1,
            theta2=self.theta2,
        )
        floor = self._kept(detector).floor
        if used.lowest < floor:
            raise UsageError(
                f"the threshold is {used.lowest:g}, and nothing below {floor:g} is kept",
                next_step="give a --floor below it" + (", without --paper" if self.paper else ""),
            )
        return used if self.site is None else self.site.rated(used)

    def peaks(self, detector: Detector) -> PeakConfig:
        """What becomes a detection."""
        points = self.points(detector)
        kept = self._kept(detector)
        return replace(kept, suppress_um=points.suppress_um, smooth_um=points.smooth_um)

    @property
    def written(self) -> tuple[str, ...]:
        """All formats but Parquet."""
        return tuple(dict.fromkeys(("qupath", *self.formats)))

    def _kept(self, detector: Detector) -> PeakConfig:
        """What is kept, before the operating points: by default all that a model's own thresholds need."""
        if self.paper:
            return PAPER_PEAKS
        lowest = min(PeakConfig().floor, detector.points.lowest)
        return PeakConfig(floor=lowest if self.floor is None else self.floor)


JOURNAL = "tiles.journal"


@dataclass(frozen=True)
class SlideSearched(Ingredients, stage="search", schema=5):
    """What decides the detections of a slide, whoever searches it."""

    slide: SlideSource
    tissue: TissueSource
    networks: tuple[Identity | str, ...]
    peaks: PeakConfig
    engine: EngineConfig
    atypical: str = ""
    """Checksum of the network that tells atypical figures."""


# ---- one slide, resumable tile by tile ----


@dataclass(frozen=True)
class TileSearch:
    """A slide on its way through the engine; what finished tiles found is kept in a journal."""

    slide: Slide
    tissue: TissueMask
    engine: TileEngine
    mpp: float
    """Resolution of the networks, in um/px."""
    peaks: PeakConfig
    key: str
    """Of the search: a journal with another one is not gone on with."""
    tile_px: int | None = None
    decoders: TileProcesses | None = None
    allow_damage: bool = False
    """Go on without what cannot be decoded, where the slide notes its flaws."""

    @property
    def undecodable(self) -> list[Box]:
        """Parts of level 0 that could not be decoded so far, each once."""
        return list(dict.fromkeys(one.box for one in self.slide.flaws or () if one.kind == UNDECODABLE))

    @property
    def sound_tissue(self) -> TissueMask:
        """The tissue without what could not be decoded."""
        return self.tissue.without(self.undecodable)

    @cached_property
    def plan(self) -> TilePlan:
        """The tiles that touch the tissue."""
        return plan_detection(
            self.slide, self.engine, self.peaks, mpp=self.mpp, tile_px=self.tile_px, mask=self.tissue.grid
        )

    @contextmanager
    def found(
        self, folder: Path, name: str, probability_map: Path | None, progress: Progress
    ) -> Iterator[pd.DataFrame]:
        """Detections on tissue, double ones suppressed, the most probable first, as a detection table.

        What finished tiles found is forgotten at the end of the `with` statement, once the table is safe.
        """
        maps = None
        if probability_map is not None:
            maps = ProbabilityMap(folder / f".probability-{self.key[:8]}.u8", self.plan)
        job = fingerprint_of([self.key, str(self.plan.tiles), maps is not None])
        with TileJournal(folder / JOURNAL, job, fresh=maps is not None and maps.is_new) as journal:
            self._search_tiles(journal, maps, progress)
            if maps is not None and probability_map is not None:
                maps.write(probability_map)
            yield self._table(journal.peaks(), name)
            journal.close(remove=True)
        for leftover in folder.glob(".probability-*.u8"):
            leftover.unlink(missing_ok=True)

    def _search_tiles(
        self, journal: TileJournal, probabilities: ProbabilityMap | None, progress: Progress
    ) -> None:
        plan, per_px = self.plan, (self.plan.mpp / 1000) ** 2
        numbers = {tile.core: number for number, tile in enumerate(plan.tiles)}
        left = tuple(tile for tile in plan.tiles if numbers[tile.core] not in journal.finished)
        total = sum(tile.core.area for tile in plan.tiles) * per_px
        done = total - sum(tile.core.area for tile in left) * per_px
        count = self._on_tissue(journal.peaks())
        flaws = [] if self.slide.flaws is None else self.slide.flaws
        noted = 0
        flaws.extend(journal.flaws)
        self._refuse_damage()
        maps = probabilities is not None
        plan_left = replace(plan, tiles=left)
        for result in detect_tiles(
            self.engine, self.slide, plan_left, self.peaks, maps=maps, decoders=self.decoders
        ):
            points = result.points
            peaks = np.column_stack([points.x, points.y, points.probability])
            if probabilities is not None and result.probabilities is not None:
                probabilities.put(result.tile.core, result.probabilities)
            journal.note(new := flaws[noted:])
            noted += len(new)
            self._refuse_damage()
            journal.add(numbers[result.tile.core], peaks)
            count += self._on_tissue(peaks)
            check_count(count, self.peaks)
            done += result.tile.core.area * per_px
            progress(done, total)

    def _refuse_damage(self) -> None:
        """Unless damage is allowed, refuse a slide with undecodable parts once all of them are known."""
        if self.allow_damage or not self.undecodable:
            return
        for _ in read_tiles(self.slide, self.plan):
            pass
        boxes = self.undecodable
        area = sum(box.area for box in boxes) * (self.slide.mpp / 1000) ** 2
        raise SlideError(
            f"tiles that cannot be decoded: {len(boxes)} ({area:.3g} mm2), at {named_positions(boxes)}",
            path=self.slide.info.path,
            next_step="copy or export the slide again, or give --allow-damage to count without them",
        )

    def _on_tissue(self, peaks: Peaks) -> int:
        return int(self.tissue.contains(peaks[:, :2]).sum())

    def _table(self, peaks: Peaks, name: str) -> pd.DataFrame:
        peaks = peaks[self.sound_tissue.contains(peaks[:, :2])]
        found = as_detections(self.engine, self.slide, Detections(*peaks.T), self.peaks, self.plan)
        columns = {"x": found.x, "y": found.y, "probability": found.probability}
        return pd.DataFrame({"slide": name, **columns, "label": MITOSIS})


# ---- many slides, with the networks of a run ----


@dataclass(frozen=True)
class SplitSearch:
    """Searching the slides of a split; a table of detections a slide and network is kept."""

    folder: Path
    peaks: PeakConfig
    device: str | None = None
    tissues: dict[str, TissueMask] = field(default_factory=dict)
    """Of the slides seen so far; many networks search the same."""

    def search(
        self, name: str, models: Sequence[Path], slides: Sequence[CohortSlide], report: Report
    ) -> dict[str, pd.DataFrame]:
        """Detections `x, y, probability` of each slide by a network, or by the mean of several."""
        networks = identities_of([vouched_card(model) for model in models])
        config = EngineConfig(device=self.device)
        ready: ReadyDetector | None = None
        tables = {}
        for number, slide in enumerate(slides):
            show = partial(_report_slide, report, f"{name} on {slide.name}", number, len(slides))
            show(0, 1)
            path = self.folder / name / f"{slide.name}.parquet"
            made_from = SlideSearched(slide.slide, slide.tissue, networks, self.peaks, config)
            if not made_from.is_done(path):
                ready = ready or ReadyDetector(load_detector(models), config)
                with slide.slide.open() as opened, made_from.noted(path):
                    if slide.name not in self.tissues:
                        self.tissues[slide.name] = slide.tissue.of(opened)
                    tiles = self._tiles(opened, self.tissues[slide.name], ready, made_from.key)
                    with tiles.found(path.parent, slide.name, None, show) as found:
                        columns = found[["x", "y", "probability"]]
                        write_table(path, columns.astype({"probability": np.float32}))
            tables[slide.name] = read_table(path)
        return tables

    def _tiles(self, slide: Slide, tissue: TissueMask, ready: ReadyDetector, key: str) -> TileSearch:
        """The search of a slide, by tiles that waste little of a small one."""
        engine, mpp = ready.engine, ready.detector.mpp
        side_px = max(slide.width, slide.height) * slide.mpp / mpp
        tile_px = even_tile_px(side_px, engine.tile_px, engine.step_px)
        return TileSearch(slide, tissue, engine, mpp, self.peaks, key, tile_px)


def _report_slide(report: Report, what: str, number: int, total: int, done: float, whole: float) -> None:
    report(what, number + (done / whole if whole else 0.0), total)


# ---- what finished tiles found, kept on disk: a killed search goes on where it stopped ----

_RECORD = struct.Struct("<III")
_COLUMNS = 3
_FLAWS = 2**32 - 1
"""In the place of a tile's number: two rows for each flaw."""
_CERTAIN = 255
MAP_ROWS = 512
"""Rows of a map that are read at once."""
Peaks = Floats
"""(n, 3): x, y in level-0 pixels, and probability."""


class TileJournal:
    """An append-only file of tile results for one job; opening it drops what belongs to another job.

    One line of JSON says which job this is, then comes a record for each tile: number, count, checksum,
    points; flaws of the slide are records too, under a number that no tile has. A record cut short by a kill
    or a full disk fails its checksum and is dropped with all that follows it.
    """

    def __init__(self, path: str | Path, job: str, *, fresh: bool = False) -> None:
        """`fresh` drops what an earlier run of the same job left."""
        self.path = Path(path)
        self.finished: dict[int, Peaks] = {}
        """Peaks of every finished tile, by the tile's number."""
        self.flaws: list[Flaw] = []
        """Damage seen so far."""
        header = (json.dumps({"job": job}) + "\n").encode()
        with explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            there = self.path.exists() and check_plain(self.path, OutputError) and not fresh
            content = read_bytes(self.path, OutputError) if there else b""
            end = len(header) if content.startswith(header) else 0
            for tile, points, after in _records(content, end) if end else ():
                self.finished[tile] = points
                if tile == _FLAWS:
                    self._take_flaws()
                end = after
            self._file: BinaryIO = self.path.open("r+b" if end else "wb")
            self._file.seek(end)
            self._file.truncate()
            if not end:
                self._file.write(header)
                self._file.flush()

    def add(self, tile: int, points: Peaks) -> None:
        """Keep the result of a tile; it outlives the process once this returns."""
        data = np.ascontiguousarray(points, "<f8").reshape(-1, _COLUMNS)
        raw = data.tobytes()
        with explained(self.path):
            self._file.write(_RECORD.pack(tile, len(data), _checksum(tile, len(data), raw)) + raw)
            self._file.flush()
        self.finished[tile] = data

    def note(self, flaws: Sequence[Flaw]) -> None:
        """Keep flaws of the slide."""
        rows = [(KINDS.index(one.kind), *astuple(one.box), 0) for one in flaws]
        if rows:
            self.add(_FLAWS, np.array(rows, np.float64))
            self._take_flaws()

    def _take_flaws(self) -> None:
        for kind, *edges in self.finished.pop(_FLAWS).reshape(-1, 2 * _COLUMNS).astype(int).tolist():
            self.flaws.append(Flaw(KINDS[kind], Box(*edges[:4])))

    def peaks(self) -> Peaks:
        """All peaks so far, in the order of their tiles' numbers."""
        found = [self.finished[tile] for tile in sorted(self.finished)]
        return np.concatenate([np.zeros((0, _COLUMNS)), *found])

    def close(self, *, remove: bool = False) -> None:
        """Close the file; `remove` it when the job's outputs are safe."""
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()


def _records(content: bytes, start: int) -> Iterator[tuple[int, Peaks, int]]:
    """(tile, points, end of record) until the first that is incomplete or damaged."""
    while start + _RECORD.size <= len(content):
        tile, count, checksum = _RECORD.unpack_from(content, start)
        body = start + _RECORD.size
        end = body + count * _COLUMNS * 8
        raw = content[body:end]
        if end > len(content) or _checksum(tile, count, raw) != checksum:
            return
        yield tile, np.frombuffer(raw, "<f8").reshape(-1, _COLUMNS), end
        start = end


def _checksum(tile: int, count: int, raw: bytes) -> int:
    """Of the whole record: bytes that are all zero, as a power cut may leave them, are none."""
    return zlib.crc32(struct.pack("<II", tile, count) + raw)


def _reserve(path: Path, size: int) -> None:
    """An empty file whose room on the disk is taken: a mapped hole on a full one ends a program."""
    try:
        with path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
    except OSError:
        path.unlink(missing_ok=True)
        raise


class ProbabilityMap:
    """Probabilities of finished tiles on disk, a byte for every 4 x 4 px, until they become a pyramid."""

    def __init__(self, path: Path, plan: TilePlan) -> None:
        self._path = path
        self._mpp = plan.mpp * OUTPUT_STRIDE_PX
        self._shape = tuple(-(-side // OUTPUT_STRIDE_PX) for side in (plan.height, plan.width))
        size = check_plain(path, OutputError) if path.exists() else 0
        self.is_new = size != self._shape[0] * self._shape[1]
        """Whether no earlier run left probabilities of finished tiles."""
        if self.is_new:
            with explained(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                _reserve(path, self._shape[0] * self._shape[1])

    def put(self, core: Box, probabilities: Floats32) -> None:
        """Keep the map of a tile whose core is `core`, in pixels of the plan."""
        x, y = core.x // OUTPUT_STRIDE_PX, core.y // OUTPUT_STRIDE_PX
        rows, columns = probabilities.shape
        levels = np.round(probabilities * _CERTAIN).astype(np.uint8)
        with explained(self._path):
            self._open("r+")[y : y + rows, x : x + columns] = levels

    def write(self, target: Path) -> None:
        """Write the pyramid. Positions never searched are 0."""
        height, width = self._shape
        form, pixels = PyramidFormat.probabilities(self._mpp), self._open("r")
        corners = product(range(0, height, form.tile_px), range(0, width, form.tile_px))
        tiles = (np.array(pixels[y : y + form.tile_px, x : x + form.tile_px]) for y, x in corners)
        write_pyramid(target, tiles, width, height, form)

    def _open(self, mode: Any) -> npt.NDArray[np.uint8]:
        return np.memmap(self._path, np.uint8, mode, shape=self._shape)


def read_probabilities(path: Path) -> tuple[npt.NDArray[np.uint8], float]:
    """A written map, 0 to 255, and the side of its values in um."""
    with open_slide(path) as slide:
        levels = [
            slide.read_level(0, Box(0, y, slide.width, min(MAP_ROWS, slide.height - y)))[..., 0]
            for y in range(0, slide.height, MAP_ROWS)
        ]
        return np.concatenate(levels), slide.mpp
