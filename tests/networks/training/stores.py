"""Small patch stores whose classes a tiny network can tell apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from metaphase.networks.training.patches import PatchWriter


def write_store(folder: Path, slides: list[str], count: int = 24, *, seed: int = 0, **columns: float) -> Path:
    """Grey noise; class 1 has a dark square in the middle."""
    rng = np.random.default_rng(seed)
    with PatchWriter(folder) as writer:
        for number in range(count):
            label = number % 2
            patch = rng.integers(150, 220, (128, 128, 3), dtype=np.uint8)
            if label:
                patch[52:76, 52:76] = 40
            position = {"x": 10.0 * number, "y": 5.0, "slide": slides[number // 2 % len(slides)]}
            writer.add(patch, label=label, source="test", **position, **columns)
    return folder
