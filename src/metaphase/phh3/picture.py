"""A picture of why: the slide with its tissue and candidates, and its DAB with the threshold."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metaphase.artifacts import atomic_path
from metaphase.phh3.brown import UNIT, BrownScale, amounts
from metaphase.phh3.survey import Survey
from metaphase.slides import Slide
from metaphase.tissue import draw_overlay

THUMBNAIL_PX = 1000
MAX_DOTS = 20_000
"""Of more candidates an even share is drawn."""
FARTHEST_DAB = 3.0
"""The histogram ends here; darker pixels are counted in its last bar."""


def save_evidence(path: str | Path, slide: Slide, survey: Survey, table: pd.DataFrame | None = None) -> Path:
    """Write the picture of `draw_evidence` as PNG, whole or not at all."""
    with atomic_path(path) as temporary:
        draw_evidence(slide, survey, table).savefig(temporary, dpi=110)
    return Path(path)


def draw_evidence(slide: Slide, survey: Survey, table: pd.DataFrame | None = None) -> Figure:
    """The slide, outlined and with its candidates where these are known, beside the histogram of its DAB."""
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(12, 5.5))
        figure.subplots_adjust(left=0.01, right=0.99, bottom=0.1, top=0.87, wspace=0.15)
        overview, histogram = figure.subplots(1, 2)
        _draw_slide(overview, slide, survey, table)
        _draw_histogram(histogram, survey)
        sure = f" ({survey.stain.confidence:.0%} sure)" if survey.stain.confidence else ""
        figure.suptitle(f"{slide.name}: the stain looks like {survey.stain.name}{sure}")
    return figure


def _draw_slide(axes: Axes, slide: Slide, survey: Survey, table: pd.DataFrame | None) -> None:
    bounds = slide.bounds
    axes.imshow(
        draw_overlay(slide, survey.tissue, THUMBNAIL_PX),
        extent=(bounds.x, bounds.right, bounds.bottom, bounds.y),
    )
    axes.set_axis_off()
    found = "not searched"
    if table is not None:
        dots = table.iloc[:: -(-len(table) // MAX_DOTS) or 1]
        axes.scatter(dots["x"], dots["y"], s=9, facecolors="none", edgecolors="#d00040", linewidths=0.6)
        found = f"{len(table):,} candidates"
    axes.set_title(f"tissue {survey.tissue.area_mm2:.2f} mm$^2$, {found}")


def _draw_histogram(axes: Axes, survey: Survey) -> None:
    axes.set(xlabel="DAB (natural-log density, leak of blue removed)", ylabel="sampled pixels", yscale="log")
    threshold = survey.threshold
    if threshold is None:
        axes.set_title("too little stained tissue for a threshold")
        return
    dab = amounts(BrownScale.of(threshold.leak).dab, survey.pixels) * UNIT
    counts, edges = np.histogram(np.minimum(dab, FARTHEST_DAB), bins=150, range=(-0.5, FARTHEST_DAB))
    axes.stairs(counts, edges, fill=True, color="#8a5a2b")
    axes.axvline(threshold.value, color="#d00040", label=f"threshold {threshold.value:.2f}")
    axes.axvline(threshold.background, color="#3060a0", ls=":", label=f"median {threshold.background:.2f}")
    axes.legend(frameon=False)
    axes.set_title(f"{threshold.brown_share:.2%} of the tissue is brown")
