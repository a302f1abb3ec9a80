"""Small labelling projects on plain images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from metaphase.labels.observers.project import Project, load_project

SIDE_PX, MPP = 400, 0.5


def write_project(folder: Path, items: int = 12, settings: dict[str, Any] | None = None) -> Project:
    """`items` positions on two slides; noise in stripes, so that pictures differ."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in ("secret-a.png", "secret-b.png"):
        pixels = np.full((SIDE_PX, SIDE_PX, 3), 230, np.uint8)
        pixels[::4] = rng.integers(150, 255, (SIDE_PX // 4, SIDE_PX, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    positions = rng.uniform(50, SIDE_PX - 50, (items, 2)).round(1)
    frame = pd.DataFrame(positions, columns=["x", "y"])
    frame.insert(0, "item", [f"i{number:03}" for number in range(items)])
    frame.insert(1, "slide", np.where(np.arange(items) % 2, "secret-a.png", "secret-b.png"))
    frame["case"] = np.where(np.arange(items) % 2, "patient-1", "patient-2")
    frame["mpp"] = MPP
    frame["probability"] = np.linspace(0.123, 0.987, items)
    frame.to_csv(folder / "items.csv", index=False)
    if settings is not None:
        (folder / "project.json").write_text(json.dumps(settings), encoding="utf-8")
    return load_project(folder)
