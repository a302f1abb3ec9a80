"""Searching slides: what decides it, one slide tile by tile, and many with the networks of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from metaphase.analysis.cohort import CohortSlide
from metaphase.analysis.journal import JOURNAL, Peaks, ProbabilityMap, TileJournal
from metaphase.base.arrays import Box
from metaphase.base.errors import SlideError
from metaphase.base.later import pandas as pd
from metaphase.base.provenance import Ingredients, fingerprint_of
from metaphase.base.sharing.batch import Progress
from metaphase.base.stages import Report
from metaphase.base.tables import read_table, write_table
from metaphase.detections.table import MITOSIS
from metaphase.images.inspection import named_positions
from metaphase.images.tissue.finding import TissueMask, TissueSource
from metaphase.networks.cards import Identity, stored_network
from metaphase.networks.detector import ReadyDetector, identities_of, load_detector
from metaphase.networks.engine.searching import TileEngine
from metaphase.networks.engine.settings import EngineConfig, PeakConfig
from metaphase.networks.engine.streaming import (
    Detections,
    as_detections,
    check_count,
    detect_tiles,
    even_tile_px,
    plan_detection,
)
from metaphase.slides.contract import UNDECODABLE, Slide
from metaphase.slides.opening import SlideSource
from metaphase.slides.tiles import TilePlan, TileProcesses, read_tiles


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
    """A resumable search of one slide; the results of finished tiles are kept in a journal."""

    slide: Slide
    tissue: TissueMask
    engine: TileEngine
    mpp: float
    """Resolution of the networks, in um/px."""
    peaks: PeakConfig
    key: str
    """Key of the search; a journal of another search is dropped."""
    tile_px: int | None = None
    decoders: TileProcesses | None = None
    allow_damage: bool = False
    """Leave out what cannot be decoded, where the slide notes its flaws."""

    @property
    def undecodable(self) -> list[Box]:
        """Parts of level 0 that could not be decoded so far, each once."""
        return list(dict.fromkeys(flaw.box for flaw in self.slide.flaws or () if flaw.kind == UNDECODABLE))

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
        """Detections on tissue, duplicates suppressed, the most probable first, as a detection table.

        The journal is removed at the end of the `with` statement, once the caller has written the table.
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
    """Tissue by slide, found once for all networks."""

    def search(
        self, name: str, models: Sequence[Path], slides: Sequence[CohortSlide], report: Report
    ) -> dict[str, pd.DataFrame]:
        """Detections `x, y, probability` of each slide by a network, or by the mean of several."""
        networks = identities_of([stored_network(model).card for model in models])
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
                tissue = self.tissue(slide)
                with slide.slide.open() as opened, made_from.noted(path):
                    tiles = self._tiles(opened, tissue, ready, made_from.key)
                    with tiles.found(path.parent, slide.name, None, show) as found:
                        columns = found[["x", "y", "probability"]]
                        write_table(path, columns.astype({"probability": np.float32}))
            tables[slide.name] = read_table(path)
        return tables

    def tissue(self, slide: CohortSlide) -> TissueMask:
        """Tissue of a slide in its own colours, whatever networks see; found once."""
        if slide.name not in self.tissues:
            with SlideSource.open(slide.slide) as opened:
                self.tissues[slide.name] = slide.tissue.of(opened)
        return self.tissues[slide.name]

    def _tiles(self, slide: Slide, tissue: TissueMask, ready: ReadyDetector, key: str) -> TileSearch:
        """The search of a slide, by tiles that waste little of a small one."""
        engine, mpp = ready.engine, ready.detector.mpp
        side_px = max(slide.width, slide.height) * slide.mpp / mpp
        tile_px = even_tile_px(side_px, engine.tile_px, engine.step_px)
        return TileSearch(slide, tissue, engine, mpp, self.peaks, key, tile_px)


def _report_slide(report: Report, what: str, number: int, total: int, done: float, whole: float) -> None:
    report(what, number + (done / whole if whole else 0.0), total)
