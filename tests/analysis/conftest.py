"""A small simulated slide on disk and a tiny detector with spread-out answers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from metaphase.analysis.record import load_result
from metaphase.base.tables import read_table
from metaphase.networks.architectures import build_network
from metaphase.networks.cards import ModelCard, NetworkSpec
from metaphase.networks.checkpoints import save_model
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.writer import PyramidFormat, write_pyramid

WIDTH, HEIGHT = 500, 400


def write_slide(path: Path, pixels: npt.NDArray[np.uint8]) -> Path:
    """A pyramid of 0.25 um/px."""
    height, width = pixels.shape[:2]
    tiles = (pixels[y : y + 256, x : x + 256] for y in range(0, height, 256) for x in range(0, width, 256))
    write_pyramid(path, tiles, width, height, PyramidFormat(mpp=0.25, tile_px=256, quality=95))
    return path


def marked_figures(folder: Path) -> int:
    """What somebody counts who counts the figures marked in the circle, all of them on little tissue."""
    record, table = load_result(folder).record, read_table(folder / "detections.parquet")
    circle = record.hotspot
    away = np.hypot(table["x"] - circle.x, table["y"] - circle.y)
    inside = (away <= circle.radius_px + 1e-6) | (record.area_mm2 < record.config.area_mm2)
    return int((table["counted"] & inside).sum())


@cache
def he_pixels() -> npt.NDArray[np.uint8]:
    """Drawn once: modules that import the fixture have one each."""
    (case,) = cohort_cases(SimulationConfig(cases=1, centres=1, width=2048, height=2048, seed=5))
    return render_region(case, "he", 520, 60, WIDTH, HEIGHT)


@pytest.fixture(scope="session")
def he_slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_slide(tmp_path_factory.mktemp("slides") / "he.tif", he_pixels())


def tiny_model(path: Path, *, seed: int = 0, mpp: float = 0.25, family: str = "detector") -> Path:
    """An untrained detector whose answers are spread from 0.6 to 1 by scaling and shifting its last layer."""
    torch.manual_seed(seed)
    spec = NetworkSpec(family, 0.05)  # type: ignore[arg-type]
    network = build_network(spec)
    with torch.no_grad():
        network[-1].weight.mul_(16)  # type: ignore[operator, union-attr]
        network[-1].bias[1] -= 3  # type: ignore[index, union-attr]
    card = ModelCard(
        name="tiny", family=spec.family, gamma=0.05, mpp=mpp, patch_px=100, classes=("other", "mitosis")
    )
    save_model(path, network, card)
    return path


def with_prior(model: Path) -> Path:
    """Of this model it is known how it errs in laboratories: its counts have intervals."""
    card = json.loads(model.with_suffix(".json").read_text())
    points = {"mitoses": {"delta": 0.8}, "count": {"delta": 0.85, "theta1": 6.0, "theta2": 20.0, "prior": {}}}
    model.with_suffix(".json").write_text(json.dumps(card | {"thresholds": points}))
    return model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny.safetensors")
