"""The settings of a training run, from TOML or Python; the defaults are the paper's protocol."""

from __future__ import annotations

import math
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from metaphase.base.errors import UsageError
from metaphase.base.provenance import decides
from metaphase.base.settings import PathText, Share, read_settings, settings
from metaphase.images.stain.augmentation import AugmentationConfig, parse_recipe
from metaphase.networks.cards import NetworkSpec

PathTexts = Annotated[tuple[PathText, ...], Field(min_length=1)]


@settings
class TrainingProtocol:
    """How a network is trained, whatever it learns from."""

    augment: str = "RCSEHBG"
    """Letters of the augmentation recipe; empty for the centre crop alone."""
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    """Ranges of the letters."""
    stain_mix: Share = 0.0
    """Share of the patches that are shown in the colours of another training slide, before the letters."""
    batch: PositiveInt = 64
    """Patches a step, half of them positive, over all processes together."""
    epochs: PositiveInt = 20
    """Passes."""
    samples_per_epoch: int | None = None
    """Patches shown an epoch; by default as many as there are."""
    learning_rate: PositiveFloat = 1e-3
    """At the start ..."""
    final_learning_rate: PositiveFloat = 3e-5
    """... and at the end, falling exponentially epoch by epoch."""
    l2: NonNegativeFloat = 1e-5
    """Factor of the sum of squared weights, added to the loss."""
    seed: NonNegativeInt = 0
    """Of weights, order, augmentation and dropout."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto`: bfloat16 on a GPU, float32 on a CPU."""

    def __post_init__(self) -> None:
        if self.augment:
            parse_recipe(self.augment)
        elif self.stain_mix:
            raise UsageError(
                f"stain_mix = {self.stain_mix} needs augmentation",
                next_step="name the letters of a recipe in augment, or leave it out",
            )
        if self.samples_per_epoch is not None and self.samples_per_epoch < self.batch:
            raise UsageError(
                f"samples_per_epoch = {self.samples_per_epoch} is less than a batch",
                next_step=f"give {self.batch} or more",
            )

    def training(self, **more: Any) -> TrainingConfig:
        """The whole training of one network: this protocol, and what only that network has."""
        shared = {setting.name: getattr(self, setting.name) for setting in fields(TrainingProtocol)}
        return TrainingConfig(**(shared | more))


@settings
class TrainingConfig(TrainingProtocol):
    """One network, its patches and its protocol."""

    train: PathTexts = field(metadata=decides(), kw_only=True)
    """Patch stores to learn from."""
    validation: PathTexts = field(metadata=decides(), kw_only=True)
    """Patch stores to choose the best epoch on; no slide of them may be in `train`."""
    network: NetworkSpec = field(default_factory=NetworkSpec)
    """Which network."""
    name: str = "network"
    """Name of the model that comes out."""
    classes: tuple[str, str] = ("other", "mitosis")
    """Names of class 0 and class 1."""
    target: str = "label"
    """Column to learn: `label`, or a column of probabilities (soft targets, for distillation)."""
    start: PathText = field(default="", metadata=decides())
    """A model whose weights training starts from; by default they are drawn at random."""
    draws: str = ""
    """Column that says how often a patch counts in an epoch (0: never); stores without it count once."""
    checkpoint_minutes: float = field(default=1.0, metadata=decides())
    """How much work a killed run may lose."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name in ("", "last") or Path(self.name).name != self.name:
            raise UsageError(
                f"the model's name cannot be {self.name!r}", next_step="give a plain name, not `last`"
            )

    def learning_rate_at(self, epoch: int) -> float:
        """Exponential from `learning_rate` in the first to `final_learning_rate` in the last epoch."""
        if self.epochs == 1:
            return self.learning_rate
        done = epoch / (self.epochs - 1)
        return math.exp((1 - done) * math.log(self.learning_rate) + done * math.log(self.final_learning_rate))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the model card and for telling whether a run may be resumed."""
        values = asdict(self)
        values["augmentation"]["stain_matrix"] = self.augmentation.stain_matrix.array.tolist()
        return values


def read_config(path: str | Path) -> TrainingConfig:
    """Read TOML; paths of stores and models in it are relative to the file."""
    return read_settings(TrainingConfig, path)
