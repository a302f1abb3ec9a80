"""Arithmetic of pyramid levels, shared by all backends."""

from __future__ import annotations

from collections.abc import Iterable

from metaphase.slides.contract import Level


def make_levels(sizes: Iterable[tuple[int, int]]) -> tuple[Level, ...]:
    """Levels from their (width, height), finest first."""
    (width, height), *rest = sizes
    coarser = (Level(w, h, level_downsample((width, height), (w, h))) for w, h in rest)
    return (Level(width, height, 1.0), *coarser)


def level_downsample(full: tuple[int, int], reduced: tuple[int, int]) -> float:
    """How many level-0 pixels make one pixel of the reduced level.

    Scanners reduce by a whole factor and cut off what is left over, so the ratio of the sizes is
    slightly wrong; across 100,000 pixels that would shift the far edge by several pixels. The whole
    factor is taken where both sizes fit it.
    """
    ratio = (full[0] / reduced[0] + full[1] / reduced[1]) / 2
    factor = round(ratio)
    if factor >= 1 and all(abs(f / factor - r) <= 1 for f, r in zip(full, reduced, strict=True)):
        return float(factor)
    return ratio
