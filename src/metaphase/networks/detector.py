"""One network, or several whose probabilities are averaged, with what their cards say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from metaphase.base.cautions import Cautions, unique
from metaphase.base.errors import ModelError
from metaphase.detections.table import PAPER_FLOOR
from metaphase.networks.cards import (
    DETECTORS,
    ModelCard,
    NetworkIdentity,
    bundled_model,
    doubts_about,
    named_model,
)
from metaphase.networks.checkpoints import choose_device, load_model
from metaphase.networks.engine import Engine, EngineConfig, PeakConfig
from metaphase.networks.points import UsedPoints, plain_point, points_of

PAPER_PEAKS = PeakConfig(floor=PAPER_FLOOR, method="components")
"""What the paper takes from a probability map."""


@dataclass(frozen=True)
class Detector:
    """Networks that answer together."""

    networks: tuple[nn.Sequential, ...]
    cards: tuple[ModelCard, ...]

    @property
    def name(self) -> str:
        """Names of the members."""
        return " + ".join(card.name for card in self.cards)

    @property
    def mpp(self) -> float:
        """Micrometres per pixel that the networks were trained at."""
        return self.cards[0].mpp

    @property
    def points(self) -> UsedPoints:
        """Those tuned on slides with this very model. A card with one of them has it stand in for the other;
        an ensemble, and a card without any, gets the paper's floor."""
        return points_of(self.cards[0].thresholds if len(self.cards) == 1 else {})

    @property
    def optical_density(self) -> tuple[float, float, float] | None:
        """Colour of the training slides, where the card says."""
        return self.cards[0].optical_density

    @property
    def doubts(self) -> Cautions:
        """What the cards themselves say against it."""
        return unique(doubt for card in self.cards for doubt in doubts_about(card))

    @property
    def identities(self) -> tuple[NetworkIdentity, ...]:
        """What decides its answers."""
        return tuple(card.identity for card in self.cards)

    def stated(self, points: UsedPoints) -> dict[str, Any]:
        """Operating points as tables and summaries carry them."""
        return {
            "model": self.name,
            "mitoses": plain_point(points.mitoses),
            "count": plain_point(points.count),
        }

    @property
    def card(self) -> dict[str, Any]:
        """The first member's card as plain values; an ensemble's lists its members."""
        card = self.cards[0].model_dump(mode="json")
        return card if len(self.cards) == 1 else card | {"name": self.name, "members": len(self.cards)}


@dataclass(frozen=True)
class ReadyDetector:
    """A detector, and the engine that runs it, which is made when the first slide has to be searched."""

    detector: Detector
    config: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        choose_device(self.config.device)  # wrong use is told before any slide is opened

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process it goes without the engine, which is made there."""
        return type(self), (self.detector, self.config)

    @cached_property
    def engine(self) -> Engine:
        """The engine."""
        return Engine(self.detector.networks, self.config)


def load_detector(models: Sequence[str | Path] = ()) -> Detector:
    """Load the given models, or the bundled one. All must be detectors made for one resolution."""
    paths = [named_model(model) for model in models] or [bundled_model()]
    loaded = [load_model(path) for path in paths]
    for path, (_, card) in zip(paths, loaded, strict=True):
        if card.family not in DETECTORS:
            raise ModelError(
                f"is a {card.family} of patches, not a detector",
                path=path,
                next_step="give a model of family detector, residual or swift; `metaphase model info` tells",
            )
        if abs(card.mpp / loaded[0][1].mpp - 1) > 0.01:
            raise ModelError(
                f"works at {card.mpp:g} um/px, {paths[0].name} at {loaded[0][1].mpp:g}",
                path=path,
                next_step="give networks of one resolution together",
            )
    return Detector(tuple(network for network, _ in loaded), tuple(card for _, card in loaded))
