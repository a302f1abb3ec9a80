"""Results of a slide without a network, and large slides that are mostly glass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.analysis.record import SlideSettings, save_settings, tissue_files
from metaphase.analysis.slide import SearchedSlide
from metaphase.base.provenance import Ingredients
from metaphase.base.stages import Stage, kept_key, run_stages
from metaphase.base.tables import write_table
from metaphase.counting.likely import LaboratoryPrior
from metaphase.counting.specimen import CountConfig
from metaphase.detections.table import MITOSIS
from metaphase.images.inspection import Quality
from metaphase.images.tissue.finding import TissueMask, save_tissue
from metaphase.labels.registration.similarity import Similarity
from metaphase.labels.registration.transform import Transform, save_transform
from metaphase.slides.opening import SlideSource
from metaphase.slides.writer import PyramidFormat, write_pyramid

MPP = 0.25
TILE_PX = 512
THRESHOLD = 0.6
Positions = npt.NDArray[np.float64]


def spread_positions(count: int, width: int, height: int, seed: int = 0) -> Positions:
    """Places far apart from each other, the first third of them close to the middle."""
    random = np.random.default_rng(seed)
    columns = int(np.sqrt(count * width / height)) + 1
    rows = -(-count // columns)
    cells = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), -1).reshape(-1, 2)[:count]
    positions = (cells + random.uniform(0.25, 0.75, (count, 2))) * (width / columns, height / rows)
    near = count // 3
    positions[:near] = (width / 2, height / 2) + random.uniform(-0.4, 0.4, (near, 2)) * min(width, height)
    return np.asarray(positions.round(3), np.float64)


def sparse_tiles(
    width: int, height: int, positions: Positions, seed: int = 0
) -> Iterator[npt.NDArray[np.uint8]]:
    """Pink tissue with a dark figure at each position; the same tissue everywhere."""
    random = np.random.default_rng(seed)
    tissue = np.clip(random.normal((214, 160, 196), 9, (TILE_PX, TILE_PX, 3)), 0, 255).astype(np.uint8)
    by_tile: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for x, y in positions.tolist():
        by_tile.setdefault((int(y) // TILE_PX, int(x) // TILE_PX), []).append((x % TILE_PX, y % TILE_PX))
    for row in range(-(-height // TILE_PX)):
        for column in range(-(-width // TILE_PX)):
            tile = tissue
            if (row, column) in by_tile:
                tile = tissue.copy()
                for x, y in by_tile[row, column]:
                    cv2.ellipse(tile, (round(x), round(y)), (16, 9), 30, 0, 360, (60, 30, 90), -1)
            yield tile[: height - row * TILE_PX, : width - column * TILE_PX]


def write_sparse_slide(path: Path, width: int, height: int, positions: Positions) -> Path:
    """A pyramid of any size in little time."""
    form = PyramidFormat(mpp=MPP, tile_px=TILE_PX, quality=80)
    write_pyramid(path, sparse_tiles(width, height, positions), width, height, form)
    return path


CARD = {
    "name": "test",
    "weights_sha256": "0" * 64,
    "data": [{"name": "Slides of a test", "terms": "own work"}],
    "intended_use": "Research only; not for diagnosis.",
    "known_failures": ["none is known"],
}


@dataclass(frozen=True)
class Searched(Ingredients, stage="search"):
    """What decided a search that no network made."""

    slide: SlideSource
    positions: Positions


def write_result(
    folder: Path, slide: Path, width: int, height: int, positions: Positions, name: str = "", *,
    lowest: float = THRESHOLD, formats: tuple[str, ...] = ("qupath", "csv"), **settings: Any,
) -> Path:  # fmt: skip
    """What `metaphase detect` would have left: positions with probabilities from 0.2 to 1, listed from the
    `lowest` on. `settings` replace those by which it is read."""
    name = name or slide.stem
    write_search(folder, slide, width, height, positions, name)
    point = {"delta": THRESHOLD, "source": "of the test"}
    given: dict[str, Any] = {
        "search": kept_key(folder, "search"),
        "site": "",
        "card": CARD,
        "points": {"model": "test", "mitoses": point | {"delta": lowest}, "count": point},
        "warnings": (),
        "counting": CountConfig(threshold=THRESHOLD, prior=LaboratoryPrior()),
        "formats": formats,
        "probability_map": False,
    }
    made = SlideSettings(**given | settings)
    save_settings(folder, made, None)
    SearchedSlide(folder, name, SlideSource(slide), made, None).finish()
    return folder


def write_search(folder: Path, slide: Path, width: int, height: int, positions: Positions, name: str) -> None:
    probability = np.linspace(1.0, 0.2, len(positions)).round(4)
    table = pd.DataFrame(
        {
            "slide": name,
            "x": positions[:, 0],
            "y": positions[:, 1],
            "probability": probability,
            "label": MITOSIS,
        }
    )
    scale = max(width, height) / 400
    mask = np.ones((int(-(-height // scale)), 400 if width >= height else int(-(-width // scale))), bool)
    tissue = TissueMask(mask, MPP * scale, 0.0, 0.0, scale)

    def work(_report: object) -> dict[str, Any]:
        save_tissue(tissue, folder, name)
        write_table(folder / "search.parquet", table)
        quality = asdict(Quality(0, 0.0, (0.0, 0.0, 0.0)))
        return {
            "width": width, "height": height, "mpp": MPP, "mpp_source": "metadata", "stain": "H&E",
            "stain_confidence": 1.0, "tissue_mm2": tissue.area_mm2, "quality": quality, "warnings": [],
            "device": "cpu", "arithmetic": "float32", "seconds": {"detection": 1.0},
            "versions": {"metaphase": "test"},
        }  # fmt: skip

    writes = ("search.parquet", *tissue_files(name))
    made_from = Searched(SlideSource(slide), positions)
    run_stages([Stage("search", "", (), writes, work, made_from, sealed=True)], folder)


TURNED = Transform(MPP, MPP, Similarity(1.01, 0.03, 45.0, -20.0))


def write_registration(folder: Path, he: Path, width: int, height: int, positions: Positions) -> Path:
    """What `metaphase register` would have left of a PHH3 slide that is turned and moved, figures and all."""
    folder.mkdir(parents=True, exist_ok=True)
    there = TURNED.he_to_phh3(positions)
    there = there[((there > 0) & (there < (width, height))).all(axis=1)]
    phh3 = write_sparse_slide(folder / "phh3.tif", width, height, there)
    save_transform(folder / "transform.json", TURNED)
    summary = {"he_path": str(he), "phh3_path": str(phh3), "verdict": "reliable"}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_probability_map(folder: Path, width: int, height: int, positions: Positions) -> Path:
    """What `metaphase detect --probability-map` would have left: 1 around each position, 0 elsewhere."""
    stride, path = 4, folder / "probability.tif"
    levels = np.zeros((-(-height // stride), -(-width // stride)), np.uint8)
    for x, y in (positions / stride).tolist():
        cv2.circle(levels, (int(x), int(y)), 4, 255, -1)
    side = 512
    tiles = (levels[y : y + side, x : x + side] for y in range(0, levels.shape[0], side)
             for x in range(0, levels.shape[1], side))  # fmt: skip
    write_pyramid(path, tiles, levels.shape[1], levels.shape[0], PyramidFormat.probabilities(MPP * stride))
    return path
