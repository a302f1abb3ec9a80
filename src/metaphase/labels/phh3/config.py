"""What counts as a brown candidate, in physical units, and what the networks tell apart."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.images.tissue import TissueConfig

# ---- what can be wrong with a slide that should be PHH3 ----


class Phh3Error(MetaphaseError):
    """A PHH3 slide, or what was made from it, cannot be used."""


# ---- what its two networks tell apart ----

CLASSES = {"cnn1": ("artefact", "object"), "cnn2": ("other", "mitosis")}
"""Names of class 0 and class 1, by network."""


# ---- what counts as a brown candidate, in physical units ----


@dataclass(frozen=True)
class BrownConfig:
    """Settings of the candidate search; densities are natural-log amounts of DAB."""

    mpp: float = 0.5
    """Resolution of the search in um/px, met to the nearest whole number of the slide's own pixels. Scanners
    store colour at half resolution, so 0.5 loses no brown."""
    spread_factor: float = 4.5
    """The threshold lies this many standard deviations above the slide's unspecific brown ..."""
    least_threshold: float = 0.2
    """... but never below this amount of DAB ..."""
    greatest_threshold: float = 0.8
    """... nor above this one, however brown the background."""
    peak_factor: float = 1.5
    """The darkest pixel of a candidate reaches this many times the threshold: haze does not."""
    min_area_um2: float = 5.0
    """Smaller components are dust; a metaphase plate seen edge-on has about 20 um2."""
    max_area_um2: float = 1000.0
    """Larger components are smears, pigment and folds; the largest mitoses have about 400 um2."""
    join_um: float = 10.0
    """Two like components that are each other's nearest, with centroids at most this far apart, are one
    figure (the plates of an anaphase); 0 joins nothing."""
    margin_um: float = 16.0
    """How far beyond the tissue mask candidates are still looked for."""
    fields: int = 64
    """Fields from which the slide's threshold is estimated."""
    field_px: int = 256
    """Side of such a field, in pixels of `mpp`."""
    tissue: TissueConfig = field(default_factory=TissueConfig)
    """How tissue is told from glass."""

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self) if f.name != "tissue"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise UsageError(f"{name} = {value} makes no sense", next_step="give a number of at least 0")
        if self.mpp == 0 or self.fields < 1 or self.field_px < 16:
            raise UsageError(
                f"{self.fields} fields of {self.field_px} px at {self.mpp} um/px show nothing",
                next_step="give a field or more of at least 16 px, and a resolution above 0",
            )
        for low, high in (("least_threshold", "greatest_threshold"), ("min_area_um2", "max_area_um2")):
            if not 0 < getattr(self, low) < getattr(self, high):
                raise UsageError(
                    f"{low} = {getattr(self, low)} and {high} = {getattr(self, high)} leave no candidate",
                    next_step="give two numbers above 0, the smaller first",
                )

    def area_px(self, mpp: float) -> tuple[int, int]:
        """Fewest and most pixels of a component at `mpp`."""
        pixel_um2 = mpp**2
        return max(1, math.ceil(self.min_area_um2 / pixel_um2)), math.floor(self.max_area_um2 / pixel_um2)
