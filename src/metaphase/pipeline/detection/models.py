"""One network, or several whose probabilities are averaged, with what their cards say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from metaphase.errors import ModelError
from metaphase.inference import PeakConfig
from metaphase.networks import (
    DETECTORS,
    ModelCard,
    TunedThreshold,
    bundled_model,
    load_model,
    named_model,
)
from metaphase.records import joint_fingerprint

PAPER_THRESHOLD = 0.8
"""Probability from which a peak is a mitosis, where no card holds a tuned one."""


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
    def threshold(self) -> float:
        """The operating point tuned on slides with this very model, or the paper's."""
        return self._tuned.get("delta", PAPER_THRESHOLD)

    @property
    def suppress_um(self) -> float:
        """How far apart detections were kept when it was tuned, or the paper's distance."""
        return self._tuned.get("suppress_um", PeakConfig().suppress_um)

    @property
    def smooth_um(self) -> float:
        """How probabilities were smoothed when it was tuned, or not at all."""
        return self._tuned.get("smooth_um", PeakConfig().smooth_um)

    @property
    def false_per_mm2(self) -> float | None:
        """False detections at the tuned operating point, where the card says."""
        return self._operating_point.false_per_mm2 if self._operating_point else None

    @property
    def _tuned(self) -> dict[str, float]:
        return self._operating_point.parameters if self._operating_point else {}

    @property
    def _operating_point(self) -> TunedThreshold | None:
        return self.cards[0].thresholds.get("mitoses") if len(self.cards) == 1 else None

    @property
    def optical_density(self) -> tuple[float, float, float] | None:
        """Colour of the training slides, where the card says."""
        return self.cards[0].optical_density

    @property
    def fingerprint(self) -> str:
        """Changes when any weight does."""
        return joint_fingerprint(card.weights_sha256 for card in self.cards)

    @property
    def card(self) -> dict[str, Any]:
        """The first member's card as plain values; an ensemble's lists its members."""
        card = self.cards[0].model_dump(mode="json")
        return card if len(self.cards) == 1 else card | {"name": self.name, "members": len(self.cards)}


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
