"""One network, or several whose probabilities are averaged, with what their cards say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from metaphase.base.errors import ModelError
from metaphase.detections.table import PAPER_DELTA
from metaphase.networks.cards import (
    DETECTORS,
    ModelCard,
    NetworkIdentity,
    OperatingPoint,
    bundled_model,
    named_model,
)
from metaphase.networks.checkpoints import choose_device, load_model
from metaphase.networks.engine import Engine, EngineConfig, PeakConfig

PAPER_POINT = OperatingPoint(
    task="mitoses",
    parameters={
        "delta": PAPER_DELTA,
        "suppress_um": PeakConfig().suppress_um,
        "smooth_um": PeakConfig().smooth_um,
    },
    metric="F1",
    value=math.nan,
    source="the paper's, not tuned for this model",
)
"""Where no card holds a tuned one."""


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
    def point(self) -> OperatingPoint:
        """The operating point tuned on slides with this very model, or the paper's."""
        tuned = self.cards[0].thresholds.get("mitoses") if len(self.cards) == 1 else None
        if tuned is None:
            return PAPER_POINT
        parameters = PAPER_POINT.parameters | tuned.parameters
        return tuned.model_copy(update={"task": "mitoses", "parameters": parameters})

    @property
    def optical_density(self) -> tuple[float, float, float] | None:
        """Colour of the training slides, where the card says."""
        return self.cards[0].optical_density

    @property
    def identities(self) -> tuple[NetworkIdentity, ...]:
        """What decides its answers."""
        return tuple(card.identity for card in self.cards)

    def stated(self, point: OperatingPoint) -> dict[str, Any]:
        """An operating point as tables and summaries carry it."""
        return {
            "model": self.name,
            **point.parameters,
            "source": point.source,
            "false_per_mm2": point.false_per_mm2,
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
                next_step="give a model of family detector or residual; `metaphase model info` tells",
            )
        if abs(card.mpp / loaded[0][1].mpp - 1) > 0.01:
            raise ModelError(
                f"works at {card.mpp:g} um/px, {paths[0].name} at {loaded[0][1].mpp:g}",
                path=path,
                next_step="give networks of one resolution together",
            )
    return Detector(tuple(network for network, _ in loaded), tuple(card for _, card in loaded))
