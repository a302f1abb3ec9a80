"""What `metaphase detect` is told."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from metaphase.detections import FORMATS
from metaphase.errors import UsageError
from metaphase.grading import GradingConfig
from metaphase.inference import PeakConfig

WHOLE_SLIDE = "whole"
MIN_TILE_PX = 64
FORMAT_NAMES = tuple(form.name for form in FORMATS)


@dataclass(frozen=True)
class DetectionConfig:
    """How slides are searched and scored; the model's own resolution and threshold apply unless given."""

    threshold: float | None = None
    """Probability from which a peak is a mitosis; by default the model's tuned one, else the paper's 0.8."""
    mpp: float | None = None
    """Micrometres per pixel of slides whose files do not say."""
    tissue: str = ""
    """A mask made by `metaphase tissue`, or `whole` to search everything; by default tissue is found."""
    any_stain: bool = False
    """Search slides that look like immunohistochemistry too."""
    tile_px: int | None = None
    """Side of the tiles, a multiple of 4; by default what runs fastest. Results do not depend on it."""
    probability_map: bool = False
    """Also write the probabilities as a pyramidal TIFF."""
    formats: tuple[str, ...] = ("qupath",)
    """Formats to write besides Parquet."""
    peaks: PeakConfig = field(default_factory=PeakConfig)
    grading: GradingConfig = field(default_factory=GradingConfig)

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise UsageError(
                f"a threshold of {self.threshold:g}", next_step="give a probability above 0 and up to 1"
            )
        if self.tile_px is not None and self.tile_px < MIN_TILE_PX:
            raise UsageError(f"tiles of {self.tile_px} px", next_step=f"give {MIN_TILE_PX} or more")
        unknown = [name for name in self.formats if name not in FORMAT_NAMES]
        if unknown:
            raise UsageError(
                f"there is no format {unknown[0]!r}", next_step=f"known are {', '.join(FORMAT_NAMES)}"
            )

    def result_settings(self) -> dict[str, Any]:
        """All that a result depends on, for telling whether a finished one is still good."""
        settings = asdict(self)
        del settings["tile_px"]
        return settings
