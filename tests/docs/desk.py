"""The files that the pages speak of, small: slides, pairs, manifests, tables, a labelling project."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.opening import open_slide
from metaphase.slides.writer import PyramidFormat, write_pyramid
from tests.evaluation.tupac import write_tupac
from tests.slides.dicoms import write_series

WIDTH, HEIGHT = 1100, 1100
BUSY_PER_MM2 = 1000.0
"""Mitoses of the slide: enough, on so few pixels, to calibrate by."""
PAIR_PX = 1536
GRADES = {"a": 1, "b": 2, "c": 3, "d": 2, "e": 1}


def set_desk(folder: Path) -> None:
    """All of it, once; pages get copies."""
    busy = (BUSY_PER_MM2, BUSY_PER_MM2)
    (case,) = cohort_cases(
        SimulationConfig(cases=1, centres=1, width=2048, height=2048, seed=5, mitoses_per_mm2=busy)
    )
    _slide(folder / "slide.tif", render_region(case, "he", 500, 600, WIDTH, HEIGHT))
    for name in ("slide.svs", "reference.svs", "slides/slide.svs", "slides/other.svs"):
        _copy(folder / "slide.tif", folder / name)
    (pair,) = cohort_cases(SimulationConfig(cases=1, centres=1, width=PAIR_PX, height=PAIR_PX, seed=5))
    for stain in ("he", "phh3"):
        _slide(folder / f"{stain}.tif", render_region(pair, stain, 0, 0, PAIR_PX, PAIR_PX))
        _copy(folder / f"{stain}.tif", folder / f"{stain}.svs")
    _tables(folder)
    _project(folder / "project", folder / "slide.tif")
    _data_set(folder / "FOLDER", folder / "slide.tif")
    write_tupac(folder / "TUPAC")
    shutil.copytree(folder / "project", folder / "PROJECT")
    for path in bundled("simulated"):
        shutil.copy(path, folder)
    with open_slide(folder / "slide.tif") as slide:
        write_series(folder / "case1", slide.read(0, 0, WIDTH, HEIGHT))


def bundled(name: str) -> list[Path]:
    """Weights and card of a model that comes with the package."""
    weights = Path(str(files("metaphase") / "models" / f"{name}.safetensors"))
    return [weights, weights.with_suffix(".json")]


def given(page: str) -> dict[str, Any]:
    """Names that a page's Python begins with: what a reader has already."""
    if page == "docs/stain.md":
        import torch

        patches = torch.randint(80, 255, (4, 128, 128, 3), dtype=torch.uint8)
        slides = [patches[0].numpy().reshape(-1, 3), patches[1].numpy().reshape(-1, 3)]
        return {"patches": patches, "slides": slides, "numbers_of_their_slides": torch.tensor([0, 0, 1, 1])}
    return {}


def _slide(path: Path, pixels: np.ndarray) -> None:
    height, width = pixels.shape[:2]
    tiles = (pixels[y : y + 256, x : x + 256] for y in range(0, height, 256) for x in range(0, width, 256))
    write_pyramid(path, tiles, width, height, PyramidFormat(mpp=0.25, tile_px=256, quality=95))


def _copy(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, to)


def _tables(folder: Path) -> None:
    numbers = np.random.default_rng(1)
    rows = [
        {"case": name, "he": "slide.tif", "laboratory": "ours", "split": "train", "grade": grade,
         "proliferation": grade + 0.1 * position, "mpp": 0.25, "width": WIDTH, "height": HEIGHT}
        for position, (name, grade) in enumerate(GRADES.items())
    ]  # fmt: skip
    manifest = pd.DataFrame(rows)
    manifest.to_csv(folder / "manifest.csv", index=False)
    pairs = pd.DataFrame({"case": ["one"], "he": ["he.tif"], "phh3": ["phh3.tif"]})
    pairs.to_csv(folder / "pairs.csv", index=False)
    slides = pd.DataFrame({"case": ["a", "b"], "he": ["slides/slide.svs", "slides/other.svs"]})
    slides.assign(grade=[1, 2], mpp=0.25).to_csv(folder / "cohort.csv", index=False)
    found = pd.DataFrame(
        {"slide": numbers.choice(list("ab"), 12), "x": numbers.uniform(50, WIDTH - 50, 12),
         "y": numbers.uniform(50, HEIGHT - 50, 12), "probability": numbers.uniform(0.5, 1, 12)}
    ).assign(label="mitosis")  # fmt: skip
    found.to_parquet(folder / "detections.parquet")
    found.to_csv(folder / "detections.csv", index=False)
    found.assign(slide="field1").to_csv(folder / "fields.csv", index=False)
    found.assign(slide="slide").to_csv(folder / "slide.csv", index=False)
    found.assign(slide="one").to_csv(folder / "mitoses.csv", index=False)
    counts = pd.DataFrame(
        {"case": list(GRADES), "count": [2.0, 9, 25, 12, 4], "grade": list(GRADES.values())}
    )
    counts.to_csv(folder / "counts.csv", index=False)
    counts.to_csv(folder / "grades.csv", index=False)


def _project(folder: Path, slide: Path) -> None:
    folder.mkdir()
    items = pd.DataFrame({"item": [f"item-{number}" for number in range(1, 9)], "slide": str(slide)})
    items.assign(x=np.linspace(100, 700, 8), y=300.0).to_csv(folder / "items.csv", index=False)


def _data_set(folder: Path, slide: Path) -> None:
    """As MiDeSeC comes: pictures and one table."""
    from PIL import Image

    folder.mkdir()
    with open_slide(slide) as source:
        Image.fromarray(source.read(0, 0, WIDTH, HEIGHT)).save(folder / "field1.png")
    table = pd.DataFrame({"image": "field1.png", "x": [200, 600], "y": [200, 500], "label": "mitosis"})
    table.to_csv(folder / "mitoses.csv", index=False)


def answer_all(project: Path, to: Path) -> Path:
    """Three observers' answers to every item, who agree; the first two answers take turns."""
    settings = project / "project.json"
    stated = json.loads(settings.read_text()) if settings.is_file() else {}
    answers = [one["name"] for one in stated.get("answers", [{"name": "mitosis"}, {"name": "not"}])]
    items = pd.read_csv(project / "items.csv")["item"]
    table = pd.DataFrame({"item": items, "answer": [answers[position % 2] for position in range(len(items))]})
    pd.concat([table.assign(observer=name) for name in ("Anna", "Ben", "Cem")]).to_csv(to, index=False)
    return to
