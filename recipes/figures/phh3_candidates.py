"""Pictures of the brown candidates on real PHH3 tiles.

    python recipes/figures/phh3_candidates.py --data FOLDER --output docs/images

FOLDER holds `phh3-tiles/tumour` and `phh3-tiles/artefact` (256 px, about 0.5 um/px). The threshold is that of
the tumour tiles taken as one slide; it is used on both, as it would be on the slide they come from.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
from PIL import Image

from metaphase.base.arrays import RGB
from metaphase.images.tissue import TissueMask
from metaphase.labels.phh3.candidates import find_brown_candidates
from metaphase.labels.phh3.config import BrownConfig
from metaphase.labels.phh3.survey import estimate_threshold, stained
from metaphase.slides import ArraySlide

MPP = 0.5
COLUMNS, ZOOM = 5, 2
RED, GAP_PX = (214, 0, 60), 4


def read_tiles(folder: Path) -> list[RGB]:
    """The tiles of a folder, by name."""
    return [np.asarray(Image.open(path).convert("RGB")) for path in sorted(folder.glob("*.jpg"))]


def boxed(tile: RGB, table: pd.DataFrame) -> RGB:
    """The tile, enlarged, with a box around each candidate."""
    drawn = cv2.resize(tile, None, fx=ZOOM, fy=ZOOM, interpolation=cv2.INTER_CUBIC)
    for row in table.itertuples():
        corners = np.array([row.left, row.top, row.right, row.bottom]) * ZOOM
        left, top, right, bottom = (int(value) for value in np.add(corners, (-3, -3, 2, 2)))
        cv2.rectangle(drawn, (left, top), (right, bottom), RED, 1, cv2.LINE_AA)
    return np.pad(np.asarray(drawn, np.uint8), ((0, GAP_PX), (0, GAP_PX), (0, 0)), constant_values=255)


def main() -> None:
    """Search the tiles one by one, print the counts, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--tiles", type=int, default=10, help="tiles of each kind to draw, fullest first")
    parser.add_argument("--quality", type=int, default=55)
    options = parser.parse_args()
    config = BrownConfig(mpp=MPP)
    kinds = {name: read_tiles(options.data / "phh3-tiles" / name) for name in ("tumour", "artefact")}
    threshold = estimate_threshold(stained(np.concatenate(kinds["tumour"]).reshape(-1, 3)), config)
    print(f"threshold {threshold.value:.3f}, leak {threshold.leak:.3f}, spread {threshold.spread:.3f}")
    options.output.mkdir(parents=True, exist_ok=True)
    for name, tiles in kinds.items():
        everywhere = TissueMask(np.ones((1, 1), np.bool_), 256 * MPP, 0, 0, 256)
        tables = [
            find_brown_candidates(ArraySlide(tile, MPP), everywhere, threshold, config).table
            for tile in tiles
        ]
        fullest = np.argsort([-len(table) for table in tables], kind="stable")[: options.tiles]
        pictures = [boxed(tiles[i], tables[i]) for i in fullest]
        rows = [np.hstack(pictures[i : i + COLUMNS]) for i in range(0, len(pictures), COLUMNS)]
        path = options.output / f"phh3_{name}_tiles.jpg"
        Image.fromarray(np.vstack(rows)).save(path, quality=options.quality)
        print(f"{name}: {sum(map(len, tables))} candidates on {len(tiles)} tiles, {path}")


if __name__ == "__main__":
    main()
