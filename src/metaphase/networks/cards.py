"""The model card: everything about trained weights that a user needs before using them."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metaphase import __version__
from metaphase.errors import ModelError
from metaphase.networks.architectures import Family, NetworkSpec, Normalisation

MAX_CARD_BYTES = 4_000_000


class TrainingData(BaseModel):
    """One source of training images and the terms it came under."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    terms: str
    positives: int | None = None
    negatives: int | None = None


class TunedThreshold(BaseModel):
    """An operating point: its parameters, and on which cases it was chosen (never to be tested on these)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parameters: dict[str, float]
    metric: str
    value: float
    cases: tuple[str, ...] = ()
    patients: tuple[str, ...] = ()
    source: str = ""
    false_per_mm2: float | None = Field(default=None, ge=0)
    """False detections at this point, on images that no network was trained on."""


class ModelCard(BaseModel):
    """Written beside the weights as JSON; read back strictly."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = 1
    name: str
    family: Family
    gamma: float = Field(ge=1 / 32, le=4)
    normalisation: Normalisation = "none"
    mpp: float = Field(gt=0, lt=20)
    patch_px: int = Field(gt=0, le=4096)
    classes: tuple[str, str]
    thresholds: dict[str, TunedThreshold] = {}
    """Operating points by task: `patches` from training, others from `metaphase evaluate tune`."""
    optical_density: tuple[float, float, float] | None = None
    """Mean optical density (base 10) of stained training pixels in red, green and blue; tells how far a slide
    is from what the network learned on."""
    recipe: dict[str, Any] = {}
    data: tuple[TrainingData, ...] = ()
    metrics: dict[str, Any] = {}
    intended_use: str = "Research only; not for diagnosis."
    known_failures: tuple[str, ...] = ()
    seed: int | None = None
    versions: dict[str, str] = {}
    weights_sha256: str = ""

    @property
    def spec(self) -> NetworkSpec:
        """What to build for these weights."""
        return NetworkSpec(self.family, self.gamma, self.normalisation)


def current_versions() -> dict[str, str]:
    """What made a model: this package, torch and Python."""
    return {"metaphase": __version__, "torch": torch.__version__, "python": platform.python_version()}


def parse_card(path: Path) -> ModelCard:
    """Read a card; anything but a well-formed one is a `ModelError`."""
    try:
        if path.stat().st_size > MAX_CARD_BYTES:
            raise ModelError(
                "too large for a model card", path=path, next_step="check that it is the right file"
            )
        return ModelCard.model_validate(json.loads(path.read_bytes()))
    except OSError as error:
        raise ModelError(
            f"cannot be read ({error.strerror})",
            path=path,
            next_step="keep the .json beside the .safetensors",
        ) from error
    except (ValueError, RecursionError) as error:
        detail = _first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise ModelError(
            f"not a model card ({detail})", path=path, next_step="fetch the model again"
        ) from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
