"""What to simulate: the cohort's settings and the cases that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from metaphase.base.errors import UsageError
from metaphase.base.provenance import decides
from metaphase.simulation.deformation import Displacement, random_displacement
from metaphase.simulation.laboratories import LABORATORIES, Laboratory
from metaphase.simulation.randomness import derived_seed, generator

MPP = 0.25
"""Micrometres per pixel of every simulated slide."""
PX_PER_UM = 1 / MPP
_SMALLEST_SIDE, _LARGEST_SIDE = 256, 400_000
_SPLIT_PATTERN: tuple[Split, ...]
Split = Literal["train", "validation", "test"]
_SPLIT_PATTERN = ("train", "validation", "train", "train", "test")


@dataclass(frozen=True)
class SimulationConfig:
    """Settings of a simulated cohort; every field is checked once, here."""

    cases: int = 2
    width: int = 4096
    """Level-0 width of both slides of a case, in pixels of 0.25 um."""
    height: int = 4096
    centres: int = 2
    """How many laboratories; the first is for training, the others only for testing."""
    seed: int = 1
    training_share: float = 0.5
    """Share of the cases that the first laboratory handles when there are several."""
    mitoses_per_mm2: tuple[float, float] = (4.0, 100.0)
    """Least and greatest expected mitoses per mm2 of tumour; cases spread evenly between, in logarithm."""
    atypical_share: float = 0.15
    """Share of atypical figures among the mitoses."""
    missed_telophases: float = 0.5
    """Share of telophases that PHH3 does not stain (anaphases: a fifth of it)."""
    lookalikes_per_mm2: float = 60.0
    """Expected mitosis-like objects per mm2 of tumour in the H&E slide."""
    brown_nuclei_per_mitosis: float = 0.25
    """Weakly PHH3-positive nuclei without mitosis, relative to the expected mitoses."""
    artefacts_per_mitosis: float = 2.4
    """Trivial brown artefacts of the PHH3 slide, relative to the expected mitoses."""
    max_shift_um: float = 300.0
    """Longest global shift between the two slides ..."""
    max_shift_fraction: float = 0.08
    """... and its limit as a fraction of the shorter side, so that small slides keep their tissue."""
    max_rotation_deg: float = 0.6
    local_deformation_um: float = 2.5
    """Standard deviation of the local deformation along each axis."""
    workers: int = field(default=2, metadata=decides())
    """Rendering processes; 1 renders in the calling process."""

    def __post_init__(self) -> None:
        self._check_whole("cases", 1, 100_000)
        self._check_whole("width", _SMALLEST_SIDE, _LARGEST_SIDE)
        self._check_whole("height", _SMALLEST_SIDE, _LARGEST_SIDE)
        self._check_whole("centres", 1, len(LABORATORIES))
        self._check_whole("seed", 0, 2**63 - 1)
        self._check_whole("workers", 1, 256)
        self._check_rates()
        if self.cases < self.centres:
            raise UsageError(
                f"{self.cases} cases cannot come from {self.centres} centres",
                next_step="give at least as many cases as centres",
            )

    def _check_whole(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise UsageError(f"{name} is {value!r}", next_step=f"give a whole number from {low} to {high}")

    def _check_rates(self) -> None:
        limits = {
            **dict.fromkeys(("training_share", "atypical_share", "missed_telophases"), 1.0),
            **dict.fromkeys(("brown_nuclei_per_mitosis", "artefacts_per_mitosis"), 100.0),
            **dict.fromkeys(("max_rotation_deg", "local_deformation_um"), 10.0),
            "lookalikes_per_mm2": 2000.0,
            "max_shift_um": 5000.0,
            "max_shift_fraction": 0.5,
        }
        for name, high in limits.items():
            _check_number(name, getattr(self, name), high)
        if len(self.mitoses_per_mm2) != 2:
            raise UsageError(
                f"mitoses_per_mm2 is {self.mitoses_per_mm2!r}", next_step="give two rates, such as [4, 60]"
            )
        low, high = self.mitoses_per_mm2
        _check_number("mitoses_per_mm2[0]", low, 2000.0)
        _check_number("mitoses_per_mm2[1]", high, 2000.0)
        if low > high:
            raise UsageError(
                f"mitoses_per_mm2 is {self.mitoses_per_mm2}", next_step="give the lower rate first"
            )


def _check_number(name: str, value: Any, high: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and 0 <= value <= high):
        raise UsageError(f"{name} is {value!r}", next_step=f"give a number from 0 to {high:g}")


@dataclass(frozen=True)
class Case:
    """One tumour with its two slides; everything about it follows from these values."""

    name: str
    seed: int
    width: int
    height: int
    centre: int
    laboratory: Laboratory
    split: Split
    mitoses_per_mm2: float
    """Expected density over the tumour of this slide."""
    displacement: Displacement
    config: SimulationConfig = field(repr=False)


def cohort_cases(config: SimulationConfig) -> tuple[Case, ...]:
    """The cases of a cohort, in manifest order."""
    return tuple(_case(config, index) for index in range(config.cases))


def _case(config: SimulationConfig, index: int) -> Case:
    seed = derived_seed(config.seed, index)
    centre = _centre(config, index)
    shift_um = min(config.max_shift_um, config.max_shift_fraction * min(config.width, config.height) * MPP)
    low, high = (math.log(max(rate, 1e-6)) for rate in config.mitoses_per_mm2)
    spread = (index * 0.618034 + generator(config.seed, 7).uniform()) % 1.0
    return Case(
        name=f"case{index:03d}",
        seed=seed,
        width=config.width,
        height=config.height,
        centre=centre,
        laboratory=LABORATORIES[centre],
        split=_SPLIT_PATTERN[index % len(_SPLIT_PATTERN)] if centre == 0 else "test",
        mitoses_per_mm2=0.0 if config.mitoses_per_mm2[1] == 0 else float(np.exp(low + spread * (high - low))),
        displacement=random_displacement(
            derived_seed(seed, 11),
            config.width,
            config.height,
            shift_px=shift_um * PX_PER_UM,
            rotation_deg=config.max_rotation_deg,
            local_px=config.local_deformation_um * PX_PER_UM,
        ),
        config=config,
    )


def _centre(config: SimulationConfig, index: int) -> int:
    """The first cases come from centre 0; the others take turns."""
    if config.centres == 1:
        return 0
    most = config.cases - (config.centres - 1)
    first = min(max(1, round(config.cases * config.training_share)), most)
    return 0 if index < first else 1 + (index - first) % (config.centres - 1)
