"""From a slide to its detections, score and files: `metaphase detect` for one slide."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from metaphase.detections import MITOSIS
from metaphase.errors import SlideError
from metaphase.grading import score_slide
from metaphase.inference import Engine, detect_tiles, plan_detection, suppress
from metaphase.inspection import inspect_slide
from metaphase.pipeline.detection.config import WHOLE_SLIDE, DetectionConfig
from metaphase.pipeline.detection.doubts import background_doubt
from metaphase.pipeline.detection.journal import Points, TileJournal
from metaphase.pipeline.detection.models import Detector
from metaphase.pipeline.detection.outputs import ProbabilityMap, summary_of, write_files
from metaphase.pipeline.detection.result import Findings, SlideOutcome, finished, save_summary
from metaphase.quality import quality_doubts, slide_quality
from metaphase.records import Record, file_fingerprint, joint_fingerprint
from metaphase.slides import Slide, open_slide
from metaphase.stain.guess import StainGuess
from metaphase.tissue import TissueMask, find_tissue, load_tissue

WRONG_STAIN_CONFIDENCE = 0.8
"""A slide that is immunohistochemistry with this confidence is refused."""
WHOLE_MPP = 8.0
"""Resolution of the mask that stands for a whole slide."""
JOURNAL = "tiles.journal"
Progress = Callable[[float, float], None]
"""Called with the area searched so far and in all, in mm2."""
Reporter = Callable[[Path, Findings], str]
"""Writes a report into the folder and returns its file name."""


@dataclass
class _Clock:
    """Seconds by step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def detect_slide(
    path: str | Path,
    folder: str | Path,
    detector: Detector,
    engine: Engine,
    config: DetectionConfig,
    *,
    name: str = "",
    progress: Progress | None = None,
    report: Reporter | None = None,
) -> SlideOutcome:
    """Search one slide, score it, and write everything into `folder`; a finished slide is left untouched.

    A run that was stopped goes on at the tile where it stopped. `name` is what tables call the slide, by
    default its file's stem.
    """
    path, folder = Path(path), Path(folder)
    with open_slide(path, mpp=config.mpp) as slide:
        settings = config.result_settings() | {"name": name or path.stem}
        file = file_fingerprint(path)
        inputs = {"slide": file, "mpp": str(slide.mpp), "networks": detector.fingerprint}
        key = Record("detection", settings, inputs).fingerprint
        done = finished(folder, key)
        if done is not None:
            return done
        search = _Search(slide, name or path.stem, folder, key, detector, engine, config)
        with TileJournal(folder / JOURNAL, joint_fingerprint([key, str(search.plan.tiles)])) as journal:
            findings = search.findings(journal, progress)
            with search.clock.step("writing"):
                files = write_files(folder, findings, config, search.probabilities)
                if report is not None:
                    files.append(report(folder, findings))
            outcome = save_summary(folder, summary_of(key, findings, files, detector, engine))
            journal.close(remove=True)
    search.probabilities.remove()
    return outcome


class _Search:
    """One slide on its way: what is known of it before the networks see it, then what they find."""

    def __init__(
        self,
        slide: Slide,
        name: str,
        folder: Path,
        key: str,
        detector: Detector,
        engine: Engine,
        config: DetectionConfig,
    ) -> None:
        self.slide, self.name = slide, name
        self.detector, self.engine, self.config = detector, engine, config
        self.clock = _Clock()
        self.stain, warnings = _inspect(slide, config)
        with self.clock.step("tissue"):
            self.tissue = _tissue(slide, config)
            quality = slide_quality(slide, self.tissue)
        self.warnings = (*warnings, *quality_doubts(quality, detector.optical_density))
        self.plan = plan_detection(
            slide, engine, config.peaks, mpp=detector.mpp, tile_px=config.tile_px, mask=self.tissue.grid
        )
        self.probabilities = ProbabilityMap(folder, self.plan, key, wanted=config.probability_map)

    def findings(self, journal: TileJournal, progress: Progress | None) -> Findings:
        """Search what is left of the slide, then count."""
        with self.clock.step("detection"):
            self._search_tiles(journal, progress)
        config = self.config
        threshold = self.detector.threshold if config.threshold is None else config.threshold
        with self.clock.step("scoring"):
            peaks = _peak_table(journal.points(), self.name, self.slide, self.tissue, config)
            grading = replace(config.grading, threshold=threshold)
            score = score_slide(peaks, mpp=self.slide.mpp, tissue=self.tissue, config=grading)
        background = self.detector.false_per_mm2 if config.threshold is None else None
        seconds = self.clock.seconds
        return Findings(
            self.name,
            self.slide,
            self.tissue,
            peaks,
            score,
            threshold,
            self.stain.name,
            (*background_doubt(score, background), *self.warnings),
            seconds,
        )

    def _search_tiles(self, journal: TileJournal, progress: Progress | None) -> None:
        plan, per_px = self.plan, (self.plan.mpp / 1000) ** 2
        numbers = {tile.core: number for number, tile in enumerate(plan.tiles)}
        left = tuple(tile for tile in plan.tiles if numbers[tile.core] not in journal.finished)
        total = sum(tile.core.area for tile in plan.tiles) * per_px
        done = total - sum(tile.core.area for tile in left) * per_px
        results = detect_tiles(
            self.engine,
            self.slide,
            replace(plan, tiles=left),
            self.config.peaks,
            maps=self.config.probability_map,
        )
        for result in results:
            points = result.points
            if result.probabilities is not None:
                self.probabilities.put(result.tile.core, result.probabilities)
            journal.add(numbers[result.tile.core], np.column_stack([points.x, points.y, points.probability]))
            done += result.tile.core.area * per_px
            if progress is not None:
                progress(done, total)


def _inspect(slide: Slide, config: DetectionConfig) -> tuple[StainGuess, tuple[str, ...]]:
    """What the slide looks like; one of another stain is refused unless told otherwise."""
    seen = inspect_slide(slide)
    if seen.stain.name != "DAB":
        return seen.stain, seen.warnings
    doubt = f"looks like immunohistochemistry, not H&E (confidence {seen.stain.confidence:.2f})"
    if seen.stain.confidence >= WRONG_STAIN_CONFIDENCE and not config.any_stain:
        raise SlideError(
            doubt,
            path=slide.info.path,
            next_step="give the H&E slide, or --any-stain to search it all the same",
        )
    return seen.stain, (*seen.warnings, doubt)


def _tissue(slide: Slide, config: DetectionConfig) -> TissueMask:
    if config.tissue == WHOLE_SLIDE:
        scale = max(1.0, 8.0 / slide.mpp)
        sides = (int(np.ceil(side / scale)) for side in (slide.bounds.height, slide.bounds.width))
        return TissueMask(
            np.ones(tuple(sides), bool), slide.mpp * scale, slide.bounds.x, slide.bounds.y, scale
        )
    tissue = load_tissue(config.tissue) if config.tissue else find_tissue(slide)
    if tissue.is_empty:
        raise SlideError(
            "no tissue was found",
            path=slide.info.path,
            next_step="look at it with `metaphase tissue`; --tissue whole searches everything",
        )
    return tissue


def _peak_table(
    points: Points, name: str, slide: Slide, tissue: TissueMask, config: DetectionConfig
) -> pd.DataFrame:
    """Peaks on tissue, double ones suppressed, the most probable first, as a detection table."""
    points = points[tissue.contains(points[:, :2])]
    x, y, probability = points.T
    kept = suppress(x, y, probability, config.peaks.suppress_um / slide.mpp)
    columns = {"x": x[kept], "y": y[kept], "probability": probability[kept]}
    return pd.DataFrame({"slide": name, **columns, "label": MITOSIS})
