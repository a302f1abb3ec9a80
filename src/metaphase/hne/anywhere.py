"""Negatives anywhere on a slide, glass included: a detector is asked about every place, not nuclei only."""

from __future__ import annotations

import numpy as np
import pandas as pd

from metaphase.hne.config import LabelConfig
from metaphase.hne.labelling import NEGATIVE, Points, label_candidates
from metaphase.slides import Slide
from metaphase.tissue import TissueMask

FROM_ANYWHERE = "anywhere"
"""Source of such a patch."""


def negatives_anywhere(
    slide: Slide,
    within: TissueMask | None,
    reference: pd.DataFrame,
    count: int,
    config: LabelConfig,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Up to `count` places that are no mitosis, labelled like candidates; on the whole slide, or `within` a
    mask. Places near a mitosis, or near one to ignore, are left out."""
    places = _on_mask(within, count, rng) if within else rng.random((count, 2)) * (slide.width, slide.height)
    inside = ((places >= 0) & (places < (slide.width, slide.height))).all(axis=1)
    table = pd.DataFrame(places[inside], columns=["x", "y"]).assign(intensity=np.float32(np.nan))
    labelled = label_candidates(table, reference, slide, config)
    kept = labelled[labelled["label"] == NEGATIVE].reset_index(drop=True)
    return kept.astype({"source": object}).assign(source=FROM_ANYWHERE)


def _on_mask(mask: TissueMask, count: int, rng: np.random.Generator) -> Points:
    """Level-0 places drawn evenly from the area of a mask."""
    grid = mask.grid
    rows, columns = np.nonzero(grid.mask)
    if not len(rows):
        return np.empty((0, 2))
    chosen = rng.integers(0, len(rows), count)
    cells = np.stack([columns[chosen], rows[chosen]], axis=1) + rng.random((count, 2))
    return cells * grid.scale + (grid.x, grid.y)
