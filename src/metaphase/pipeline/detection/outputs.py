"""The files of a searched slide."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metaphase import __version__
from metaphase.artifacts import explained
from metaphase.detections import DetectionSet, joined, write_detections
from metaphase.geometry import Box
from metaphase.inference import Engine
from metaphase.networks import OUTPUT_STRIDE_PX
from metaphase.pipeline.detection.config import DetectionConfig
from metaphase.pipeline.detection.models import Detector
from metaphase.pipeline.detection.result import Findings, SlideOutcome
from metaphase.slides import PyramidFormat, TilePlan, write_pyramid
from metaphase.tables import read_table, write_table
from metaphase.tissue import save_tissue

DETECTIONS, CANDIDATES, PROBABILITIES = "detections.parquet", "candidates.parquet", "probability.tif"
SUFFIXES = {
    "csv": ".csv",
    "parquet": ".parquet",
    "qupath": ".geojson",
    "asap": ".xml",
    "grand-challenge": ".grand-challenge.json",
    "coco": ".coco.json",
    "sliderunner": ".sqlite",
}
_CERTAIN = 255


def write_files(
    folder: Path, findings: Findings, config: DetectionConfig, probabilities: ProbabilityMap
) -> list[str]:
    """Write detections, candidates, tissue and, where asked for, the probability map; returns their names."""
    counted = findings.peaks[findings.peaks["probability"] >= findings.threshold].reset_index(drop=True)
    write_table(folder / CANDIDATES, findings.peaks)
    write_table(folder / DETECTIONS, counted)
    slide, name = findings.slide, findings.name
    detections = DetectionSet(counted, (name,), name)
    names = [CANDIDATES, DETECTIONS]
    for form in config.formats:
        target = folder / f"detections{SUFFIXES[form]}"
        write_detections(detections, target, form, mpp=slide.mpp, sizes={name: (slide.width, slide.height)})
        names.append(target.name)
    names += [path.name for path in save_tissue(findings.tissue, folder, name)]
    if probabilities.write(folder / PROBABILITIES):
        names.append(PROBABILITIES)
    return list(dict.fromkeys(names))


def summary_of(
    key: str, findings: Findings, files: list[str], detector: Detector, engine: Engine
) -> dict[str, Any]:
    """Everything about a result that a program or a reviewer may ask for, as plain values."""
    slide, score = findings.slide, findings.score
    resolution = slide.info.resolution
    return {
        "job": key,
        "name": findings.name,
        "slide": str(slide.info.path),
        "width": slide.width,
        "height": slide.height,
        "mpp": slide.mpp,
        "mpp_source": resolution.source if resolution else None,
        "stain": findings.stain,
        "tissue_mm2": findings.tissue.area_mm2,
        "threshold": findings.threshold,
        "score": score.to_dict(),
        "warnings": list(dict.fromkeys((*findings.warnings, *score.warnings))),
        "model": detector.card,
        "device": str(engine.device),
        "arithmetic": engine.arithmetic,
        "seconds": {step: round(seconds, 3) for step, seconds in findings.timings.items()},
        "versions": {"metaphase": __version__, "python": platform.python_version()},
        "files": files,
    }


def write_cohort_tables(folder: Path, outcomes: Sequence[SlideOutcome]) -> None:
    """Detections and candidates of all slides as one table each; slides without any are named in them too."""
    for file in (DETECTIONS, CANDIDATES):
        parts = [
            DetectionSet(read_table(outcome.folder / file), (str(outcome.summary["name"]),))
            for outcome in outcomes
        ]
        write_detections(joined(parts, folder / file), folder / file, "parquet")


class ProbabilityMap:
    """Probabilities of finished tiles on disk, a byte for every 4 x 4 px, until they become a pyramid."""

    def __init__(self, folder: Path, plan: TilePlan, key: str, *, wanted: bool) -> None:
        self._path = folder / f".probability-{key[:8]}.u8"
        self._mpp = plan.mpp * OUTPUT_STRIDE_PX
        self._shape = tuple(-(-side // OUTPUT_STRIDE_PX) for side in (plan.height, plan.width))
        self._wanted = wanted
        if wanted and not self._path.exists():
            with explained(self._path):
                folder.mkdir(parents=True, exist_ok=True)
                with self._path.open("wb") as file:
                    file.truncate(self._shape[0] * self._shape[1])

    def put(self, core: Box, probabilities: npt.NDArray[np.float32]) -> None:
        """Keep the map of a tile whose core is `core`, in pixels of the plan."""
        x, y = core.x // OUTPUT_STRIDE_PX, core.y // OUTPUT_STRIDE_PX
        rows, columns = probabilities.shape
        levels = np.round(probabilities * _CERTAIN).astype(np.uint8)
        with explained(self._path):
            self._open("r+")[y : y + rows, x : x + columns] = levels

    def write(self, path: Path) -> bool:
        """Write the pyramid if one is wanted; says whether it was. Places never searched are 0."""
        if not self._wanted:
            return False
        height, width = self._shape
        form = PyramidFormat.probabilities(self._mpp)
        write_pyramid(path, self._tiles(form.tile_px), width, height, form)
        return True

    def remove(self) -> None:
        """Delete the bytes on disk once the pyramid is there."""
        self._path.unlink(missing_ok=True)

    def _open(self, mode: Any) -> npt.NDArray[np.uint8]:
        return np.memmap(self._path, np.uint8, mode, shape=self._shape)

    def _tiles(self, side: int) -> Iterator[npt.NDArray[np.uint8]]:
        pixels = self._open("r")
        height, width = self._shape
        for y in range(0, height, side):
            for x in range(0, width, side):
                yield np.array(pixels[y : y + side, x : x + side])
