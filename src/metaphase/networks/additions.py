"""What a card must say before a model is given away, and training cannot know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from metaphase.base.errors import UsageError
from metaphase.base.foreign import read_json
from metaphase.base.settings import blamed, read_toml, refuse_unknown
from metaphase.detections.points import OperatingPoints
from metaphase.networks.cards import ModelCard, Strict, TrainingData, first_problem


class CardAdditions(Strict):
    """What training cannot know and a card must say before a model is given away."""

    data: tuple[TrainingData, ...] = ()
    thresholds: OperatingPoints = Field(default={})
    """Added to those of the card, point by point; so are the metrics."""
    metrics: dict[str, Any] = Field(default={})
    optical_density: tuple[float, float, float] | None = None
    intended_use: str = ""
    known_failures: tuple[str, ...] = ()


FILE_SETTINGS = ("train", "validation", "teachers", "start")
"""Settings of a recipe that name files of the machine on which it ran; `teachers` in models of old."""


def completed_card(card: ModelCard, name: str, additions: CardAdditions) -> ModelCard:
    """The card of a model that travels: what is stated replaces what stood there, paths are left out."""
    changes = {name: getattr(additions, name) for name in additions.model_fields_set} | {
        "name": name,
        "thresholds": card.thresholds | additions.thresholds,
        "metrics": card.metrics | additions.metrics,
        "recipe": {key: value for key, value in card.recipe.items() if key not in FILE_SETTINGS},
    }
    return card.model_copy(update=changes)


def read_additions(path: str | Path) -> CardAdditions:
    """Read what a card is completed with, from TOML or JSON; a mistake in it is a `UsageError`."""
    path = Path(path)
    values = (
        read_json(path, "not valid JSON", next_step="write names and values in braces", error=UsageError)
        if path.suffix.lower() == ".json"
        else read_toml(path)
    )
    with blamed(path):
        refuse_unknown(values, CardAdditions.model_fields, "the card")
        sources = values.get("data")
        for source in sources if isinstance(sources, list) else ():
            if isinstance(source, dict) and not source.get("terms"):
                raise UsageError(
                    f"the data source {source.get('name', '')!r} states no terms",
                    next_step='add terms = "...", the licence or conditions of the images',
                )
        try:
            return CardAdditions.model_validate(values)
        except ValidationError as error:
            raise UsageError(
                f"not additions to a model card ({first_problem(error)})", next_step="correct that value"
            ) from error
