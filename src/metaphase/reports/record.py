"""The record of a slide: what `summary.json`, report, index, tables and programs say, in one place."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from metaphase.base.provenance import CHECK
from metaphase.base.typed import Number
from metaphase.counting.clinical import SlideCount
from metaphase.counting.scores import AtypicalShare
from metaphase.detections.points import StatedPoints
from metaphase.labels.observers.positions import Share

SCHEMA = 4
"""Of summary.json: raised when its keys change their meaning."""


class SlideFindings(SlideCount):
    """The count of a slide, and what is listed there."""

    detections: int
    """Detections at or above the threshold of the list."""
    atypical: AtypicalShare | None
    """Share of atypical mitotic figures; null where no network judged it."""


class CountedSlide(SlideFindings):
    """What count.json holds: the findings in force, and where people looked those without them."""

    review: tuple[Share, ...] = ()
    """What each observer looked at; empty where nobody did."""
    machine: SlideFindings | None = None
    """Of a reviewed slide: the findings without the review."""

    @property
    def unreviewed(self) -> SlideFindings:
        """The findings without any review."""
        return self if self.machine is None else self.machine


class SlideRecord(CountedSlide):
    """The result of `metaphase detect` for one slide."""

    version: Annotated[int, Field(alias="schema")] = SCHEMA
    """Version of this format."""
    name: Annotated[str, Field(min_length=1)]
    """Name of the slide, and of its folder."""
    slide: str
    """Path of the slide, as it was given."""
    width: Annotated[int, Field(gt=0)]
    """Width of level 0, in pixels."""
    height: Annotated[int, Field(gt=0)]
    """Height of level 0, in pixels."""
    mpp: Annotated[float, Field(gt=0)]
    """Micrometres per level-0 pixel."""
    mpp_source: str
    """Who stated it: the file (`metadata`) or the user (`flag`)."""
    stain: str | None
    """The stain that the image shows."""
    tissue_mm2: Number
    """Tissue that was searched."""
    threshold: float
    """Threshold of the count."""
    detection_threshold: float
    """Threshold of the list of detections."""
    operating_points: StatedPoints
    """Both thresholds, with what belongs to them."""
    model: dict[str, Any]
    """The part of the model's card that identifies it: name, network, checksums."""
    search: str
    """Key of the search that it rests on."""
    answers: str = ""
    """Of a reviewed slide: a key that tells the answers in force from others."""
    device: str | None = None
    """The device that searched."""
    arithmetic: str | None = None
    """The arithmetic of the search."""
    seconds: dict[str, float]
    """Seconds by part of the work."""
    versions: dict[str, str]
    """What computed the search."""
    files: tuple[str, ...] = ()
    """Files in the slide's folder."""

    def plain(self) -> dict[str, Any]:
        """As summary.json has it: the cases of operating points are in the model's card."""
        plain = self.model_dump(mode="json", by_alias=True, exclude={"operating_points"})
        return plain | {"operating_points": brief_points(self.operating_points)}


def brief_points(points: StatedPoints) -> dict[str, Any]:
    """Operating points without the cases that they were tuned on."""
    cases = {"cases", "patients", "laboratories"}
    return points.model_dump(mode="json", exclude={"mitoses": cases, "count": cases})


def summary_schema() -> dict[str, Any]:
    """The JSON Schema of `summary.json`."""
    schema = SlideRecord.model_json_schema(mode="serialization")
    described = "Checksum of the other keys: a file that was edited is refused."
    schema["properties"][CHECK] = {"type": "string", "description": described}
    return schema
