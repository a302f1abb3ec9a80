"""What the model's own record says against a count."""

from __future__ import annotations

from metaphase.grading import SlideScore

LEAST_TRUE_SHARE = 0.5
"""A count of which false detections may be a larger share is doubted."""


def background_doubt(score: SlideScore, false_per_mm2: float | None) -> tuple[str, ...]:
    """A warning where a count is hardly more than what the model counts where there is nothing."""
    if not false_per_mm2 or not score.count:
        return ()
    area_mm2 = score.hotspot.tissue_mm2 or score.config.area_mm2
    false = false_per_mm2 * area_mm2
    if false <= LEAST_TRUE_SHARE * score.count:
        return ()
    some = min(false, score.count)
    return (
        f"of the {score.count:g} mitoses counted in {area_mm2:.2g} mm2 about {some:.0f} may be false: the "
        f"model made {false_per_mm2:.1f} false detections per mm2 where it was tuned; look at them, or "
        "choose a higher threshold on slides of your own (`metaphase evaluate tune`)",
    )
