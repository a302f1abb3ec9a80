"""How slides are searched and counted: what a person asks for, and what that comes to with a model."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Annotated

from pydantic import Field, NonNegativeFloat

from metaphase.base.errors import UsageError
from metaphase.base.settings import InnerShare, PositiveShare, settings
from metaphase.counting.likely import LISTED_FROM
from metaphase.counting.sites import SiteProfile
from metaphase.counting.specimen import CountConfig, Theta
from metaphase.detections.files import known_formats
from metaphase.detections.points import UsedPoints, paper_points
from metaphase.networks.cards import PAPER_MODEL
from metaphase.networks.detector import PAPER_PEAKS, Detector, ReadyDetector
from metaphase.networks.engine.second import refuse_components
from metaphase.networks.engine.settings import PeakConfig, Smoothing

MIN_TILE_PX = 64


@settings
class DetectionConfig:
    """How slides are searched and counted; where nothing is given, the model's operating point applies.

    No stage takes it whole: `SlideSearch.follows` turns it into `SlideSettings`, whose parts are keywords of
    the stages.
    """

    threshold: PositiveShare | None = None
    """Lowest probability that is listed and counted; by default the model's two thresholds."""
    suppress_um: NonNegativeFloat | None = None
    """Of two detections nearer than this, the weaker one is dropped; by default the model's own."""
    smooth_um: Smoothing | None = None
    """Probabilities are averaged over this distance first; by default the model's own."""
    theta1: Theta | None = None
    """Counts up to this are grade 1; by default the operating point's, else 6."""
    theta2: Theta | None = None
    """Counts above this are grade 3; by default the operating point's, else 20."""
    floor: InnerShare | None = None
    """Weakest detections that are kept; by default 0.1, or a model's own threshold where that is lower."""
    paper: bool = False
    """Follow the paper to the letter; docs/paper.md lists what changes."""
    any_stain: bool = False
    """Search other stains too."""
    allow_damage: bool = False
    """Leave out parts of a slide that cannot be decoded."""
    tile_px: Annotated[int, Field(ge=MIN_TILE_PX)] | None = None
    """Side of the tiles, a multiple of 4; by default what runs fastest. Results do not depend on it."""
    probability_map: bool = False
    """Also write the probabilities as a pyramidal TIFF."""
    formats: tuple[str, ...] = ()
    """Also write: {names_of_formats}; QuPath's GeoJSON is always there."""
    site: SiteProfile | None = None
    """What is known of the laboratory the slides come from; narrows the interval."""
    counting: CountConfig = field(default_factory=CountConfig)
    """Hotspot and uncertainty; threshold and thetas are those of the operating point."""

    def __post_init__(self) -> None:
        if self.paper and self.floor is not None:
            raise UsageError("floor and paper are both given", next_step="leave floor out")
        unknown = [name for name in self.formats if name not in known_formats()]
        if unknown:
            raise UsageError(
                f"there is no format {unknown[0]!r}", next_step=f"choose one of {', '.join(known_formats())}"
            )

    @property
    def models(self) -> tuple[str, ...]:
        """What searches where no model is given: the bundled one, or that of the paper's kind."""
        return (PAPER_MODEL,) if self.paper else ()

    def check(self, model: ReadyDetector) -> None:
        """Refuse what this model cannot search for, before any slide is opened."""
        peaks = self.peaks(model.detector)
        if model.detector.second is not None and not model.config.exhaustive:
            refuse_components(peaks)

    def points(self, detector: Detector) -> UsedPoints:
        """The operating points used: the model's or the paper's, with what was given in their place."""
        own = paper_points(detector.points) if self.paper else detector.points
        used = own.changed(
            delta=self.threshold,
            suppress_um=self.suppress_um,
            smooth_um=self.smooth_um,
            theta1=self.theta1,
            theta2=self.theta2,
        )
        floor = self._kept(detector).floor
        if used.lowest < floor:
            raise UsageError(
                f"the threshold is {used.lowest:g}, and nothing below {floor:g} is kept",
                next_step="give a floor below it (--set floor=...)"
                + (", without --paper" if self.paper else ""),
            )
        if floor > LISTED_FROM:  # how the model errs is known of all that it lists
            used = replace(used, count=used.count.model_copy(update={"prior": None}))
        return used

    def peaks(self, detector: Detector) -> PeakConfig:
        """How peaks of the probability map become detections."""
        points = self.points(detector)
        kept = self._kept(detector)
        return replace(kept, suppress_um=points.suppress_um, smooth_um=points.smooth_um)

    @property
    def written(self) -> tuple[str, ...]:
        """Names of the formats that are written beside Parquet."""
        return tuple(dict.fromkeys(("qupath", *self.formats)))

    def _kept(self, detector: Detector) -> PeakConfig:
        """What is kept, before the operating points: by default all that a model's own thresholds need."""
        if self.paper:
            return PAPER_PEAKS
        lowest = min(PeakConfig().floor, detector.points.lowest)
        return PeakConfig(floor=lowest if self.floor is None else self.floor)
