"""What a reader of a score should know before relying on it."""

from __future__ import annotations

import numpy as np

from metaphase.grading.hotspot import Hotspot
from metaphase.grading.specimen import Specimen
from metaphase.grading.uncertainty import threshold_range

MOST_OFF_TISSUE = 0.05
LEAST_HOTSPOT_TISSUE = 0.5
CERTAIN = 1.0


def doubts(slide: Specimen, hotspot: Hotspot, draws: int) -> tuple[str, ...]:
    """Warnings about a slide's score, most serious first."""
    return tuple(
        doubt
        for doubt in (
            _little_tissue(slide),
            _off_tissue(slide),
            _hotspot_off_tissue(slide, hotspot),
            _cut_at_threshold(slide),
            _fewer_draws(slide, draws),
        )
        if doubt
    )


def _little_tissue(slide: Specimen) -> str:
    if not slide.is_small:
        return ""
    return (
        f"the slide has {slide.area_mm2:.2f} mm2 of tissue, less than the {slide.config.area_mm2:g} mm2 of a "
        "hotspot: the count is that of all its mitoses, and the grade may be too low"
    )


def _off_tissue(slide: Specimen) -> str:
    if slide.tissue is None or not len(slide.mitoses_px):
        return ""
    mask = slide.tissue
    column, row = np.floor((slide.mitoses_px - (mask.x, mask.y)) / mask.scale).astype(int).T
    inside = (row >= 0) & (row < mask.mask.shape[0]) & (column >= 0) & (column < mask.mask.shape[1])
    off = int((~inside).sum() + (~mask.mask[row[inside], column[inside]]).sum())
    if off <= MOST_OFF_TISSUE * len(slide.mitoses_px):
        return ""
    return f"{off} of {len(slide.mitoses_px)} detections lie off the tissue: is the mask that of this slide?"


def _hotspot_off_tissue(slide: Specimen, hotspot: Hotspot) -> str:
    if not hotspot.count or hotspot.tissue_mm2 >= LEAST_HOTSPOT_TISSUE * slide.config.area_mm2:
        return ""
    return f"the hotspot holds only {hotspot.tissue_mm2:.2f} mm2 of tissue: its count may be too low"


def _cut_at_threshold(slide: Specimen) -> str:
    """Where nothing is known below the threshold, the draws cannot go there."""
    lowest, _ = threshold_range(slide.config)
    probability = slide.probability
    if not slide.config.draws or lowest == slide.config.threshold or not len(probability):
        return ""
    if probability.min() == CERTAIN or (probability < slide.config.threshold).any():
        return ""
    return (
        f"no detection is below the threshold of {slide.config.threshold:g}; if the table was cut there, the "
        f"uncertainty leaves out that a lower threshold (down to {lowest:.2f}) would find more"
    )


def _fewer_draws(slide: Specimen, draws: int) -> str:
    if draws >= slide.config.draws:
        return ""
    return (
        f"the uncertainty comes from {draws} draws instead of {slide.config.draws}: there are many detections"
    )
