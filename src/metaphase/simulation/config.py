"""What to simulate: laboratories, how restaining moves tissue, the cohort's settings and its cases."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from metaphase.base.arrays import Box, Floats, Floats32
from metaphase.base.errors import UsageError
from metaphase.base.provenance import decides
from metaphase.base.settings import IN_ORDER, Share, settings
from metaphase.simulation.randomness import derived_seed, generator

# ---- virtual laboratories: how each stains, and how its scanner sees (`laboratories.toml`) ----

Triple = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Scanner:
    """Optics and electronics: what happens to light after the tissue."""

    white: Triple
    """Grey level of empty glass per channel (red, green, blue)."""
    gamma: float
    """Exponent on transmitted light; below 1 lifts the shadows."""
    blur_px: float
    """Standard deviation of the optical blur."""
    sharpening: float
    """Strength of unsharp masking over about 1 um."""
    noise: float
    """Standard deviation of sensor noise in grey levels."""
    jpeg_quality: int


@dataclass(frozen=True, slots=True)
class VirtualLaboratory:
    """One laboratory that stains and scans: unit optical-density vectors (red, green, blue) and gains."""

    name: str
    scanner: Scanner
    haematoxylin: Triple
    eosin: Triple
    haematoxylin_gain: float
    eosin_gain: float
    counterstain: Triple = (0.75, 0.59, 0.30)
    counterstain_gain: float = 0.30
    dab: Triple = (0.33, 0.55, 0.77)
    dab_gain: float = 1.0
    ground: Triple = (0.66, 0.56, 0.50)
    """Colour of unstained cytoplasm and collagen in the PHH3 slide."""
    ground_gain: float = 0.30


def _laboratory(stains: dict[str, Any]) -> VirtualLaboratory:
    return VirtualLaboratory(**_as_tuples(stains | {"scanner": Scanner(**_as_tuples(stains["scanner"]))}))


def _as_tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


_FILE = files("metaphase.simulation") / "laboratories.toml"
LABORATORIES = tuple(map(_laboratory, tomllib.loads(_FILE.read_text(encoding="utf-8"))["laboratory"]))


# ---- how restaining moved the tissue: a shift, a small rotation and a smooth local deformation ----
#
# The map is given in closed form from the PHH3 frame to the H&E frame (that is the direction in which
# pictures are resampled); the other direction is its numerical inverse, exact to far below a
# thousandth of a pixel.

_INVERSION_STEPS = 30


@dataclass(frozen=True, slots=True)
class Wave:
    """One plane wave of the local deformation: pixels moved, and radians per pixel."""

    amplitude_x: float
    amplitude_y: float
    frequency_x: float
    frequency_y: float
    phase: float


@dataclass(frozen=True, slots=True)
class Displacement:
    """The exact map between the two frames of a case, in level-0 pixels."""

    shift_x: float
    shift_y: float
    rotation_rad: float
    centre_x: float
    centre_y: float
    waves: tuple[Wave, ...] = ()

    def phh3_to_he(self, points: npt.ArrayLike) -> Floats:
        """H&E coordinates (n, 2) of points (n, 2) given in the PHH3 frame."""
        points = np.asarray(points, np.float64)
        matrix, offset = self._rigid()
        moved = points @ matrix.T + offset
        for wave in self.waves:
            angle = points[..., 0] * wave.frequency_x + points[..., 1] * wave.frequency_y + wave.phase
            moved = moved + np.sin(angle)[..., None] * (wave.amplitude_x, wave.amplitude_y)
        return moved

    def he_to_phh3(self, points: npt.ArrayLike) -> Floats:
        """PHH3 coordinates (n, 2) of points (n, 2) given in the H&E frame."""
        points = np.asarray(points, np.float64)
        matrix, offset = self._rigid()
        guess = (points - offset) @ matrix
        for _ in range(_INVERSION_STEPS):
            guess = guess + (points - self.phh3_to_he(guess)) @ matrix
        return guess

    def pull_maps(self, box: Box) -> tuple[Floats, Floats]:
        """H&E x and y, each (height, width), of the pixels of `box` in the PHH3 frame.

        Each plane wave is a product of functions of x and of y, so the maps are two small matrix
        products and exact at every pixel.
        """
        x, y = box.x + 0.5 + np.arange(box.width), box.y + 0.5 + np.arange(box.height)
        matrix, offset = self._rigid()
        rows, columns = [np.ones_like(y), y], [np.ones_like(x), x]
        mixing = np.zeros((2, *2 * [2 + 2 * len(self.waves)]))  # of each coordinate, rows with columns
        mixing[:, 0, 0], mixing[:, 0, 1], mixing[:, 1, 0] = offset, matrix[:, 0], matrix[:, 1]
        for wave in self.waves:
            for place in (len(rows), len(rows) + 1):
                mixing[:, place, place] = wave.amplitude_x, wave.amplitude_y
            along_y, along_x = wave.frequency_y * y + wave.phase, wave.frequency_x * x
            rows += [np.sin(along_y), np.cos(along_y)]
            columns += [np.cos(along_x), np.sin(along_x)]
        across, down = (np.stack(rows, axis=1) @ each @ np.stack(columns) for each in mixing)
        return across, down

    def _rigid(self) -> tuple[Floats, Floats]:
        cosine, sine = np.cos(self.rotation_rad), np.sin(self.rotation_rad)
        matrix = np.array([[cosine, -sine], [sine, cosine]])
        centre = np.array([self.centre_x, self.centre_y])
        return matrix, centre - matrix @ (centre + np.array([self.shift_x, self.shift_y]))

    def sample(self, width: int, height: int, step: int) -> Floats32:
        """PHH3 minus H&E coordinates (rows, columns, 2) at H&E points `step` pixels apart, from (0, 0) on."""
        x, y = np.meshgrid(np.arange(0, width + step, step), np.arange(0, height + step, step))
        points = np.stack([x, y], axis=-1).astype(np.float64)
        return (self.he_to_phh3(points) - points).astype(np.float32)


def random_displacement(
    seed: int, width: int, height: int, *, shift_px: float, rotation_deg: float, local_px: float
) -> Displacement:
    """A displacement; `shift_px` and `rotation_deg` are upper limits, `local_px` a standard deviation."""
    rng = generator(seed)
    direction, length = rng.uniform(0, 2 * np.pi), shift_px * rng.uniform(0.3, 1)
    wavelengths = np.exp(rng.uniform(np.log(1600), np.log(12000), _WAVES))
    headings, phases = rng.uniform(0, 2 * np.pi, (2, _WAVES))
    amplitudes = rng.standard_normal((_WAVES, 2)) * np.sqrt(wavelengths)[:, None]
    amplitudes *= local_px / np.sqrt((amplitudes**2).sum() / 4 + 1e-12)
    frequencies = 2 * np.pi / wavelengths
    waves = tuple(
        Wave(*(float(v) for v in (ax, ay, f * np.cos(h), f * np.sin(h), p)))
        for (ax, ay), f, h, p in zip(amplitudes, frequencies, headings, phases, strict=True)
    )
    return Displacement(
        shift_x=float(length * np.cos(direction)),
        shift_y=float(length * np.sin(direction)),
        rotation_rad=float(np.deg2rad(rng.uniform(-rotation_deg, rotation_deg))),
        centre_x=width / 2,
        centre_y=height / 2,
        waves=waves,
    )


_WAVES = 10


MPP = 0.25
"""Micrometres per pixel of every simulated slide."""
PX_PER_UM = 1 / MPP
Side = Annotated[int, Field(ge=256, le=400_000)]
Rate = Annotated[float, Field(ge=0, le=2000)]
_SPLIT_PATTERN: tuple[Split, ...]
Split = Literal["train", "validation", "test"]
_SPLIT_PATTERN = ("train", "validation", "train", "train", "test")


@settings
class SimulationConfig:
    """Settings of a simulated cohort."""

    cases: Annotated[int, Field(ge=1, le=100_000)] = 2
    """Cases, each an H&E and a PHH3 slide."""
    width: Side = 4096
    """Width of a slide in pixels of 0.25 um."""
    height: Side = 4096
    """Height of a slide in pixels of 0.25 um."""
    centres: Annotated[int, Field(ge=1, le=len(LABORATORIES))] = 2
    """Laboratories; the first trains, the others test."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 1
    """The same seed gives the same files."""
    training_share: Share = 0.5
    """Share of the cases that the first laboratory handles when there are several."""
    mitoses_per_mm2: Annotated[tuple[Rate, Rate], IN_ORDER] = (4.0, 100.0)
    """Least and greatest expected mitoses per mm2 of tumour; cases spread evenly between, in logarithm."""
    atypical_share: Share = 0.15
    """Share of atypical figures among the mitoses."""
    missed_telophases: Share = 0.5
    """Share of telophases that PHH3 does not stain (anaphases: a fifth of it)."""
    lookalikes_per_mm2: Rate = 60.0
    """Expected mitosis-like objects per mm2 of tumour in the H&E slide."""
    brown_nuclei_per_mitosis: Annotated[float, Field(ge=0, le=100)] = 0.25
    """Weakly PHH3-positive nuclei without mitosis, relative to the expected mitoses."""
    artefacts_per_mitosis: Annotated[float, Field(ge=0, le=100)] = 2.4
    """Trivial brown artefacts of the PHH3 slide, relative to the expected mitoses."""
    max_shift_um: Annotated[float, Field(ge=0, le=5000)] = 300.0
    """Longest global shift between the two slides ..."""
    max_shift_fraction: Annotated[float, Field(ge=0, le=0.5)] = 0.08
    """... and its limit as a fraction of the shorter side, so that small slides keep their tissue."""
    max_rotation_deg: Annotated[float, Field(ge=0, le=10)] = 0.6
    local_deformation_um: Annotated[float, Field(ge=0, le=10)] = 2.5
    """Standard deviation of the local deformation along each axis."""
    workers: Annotated[int, Field(ge=1, le=256)] = field(default=2, metadata=decides())
    """Rendering processes; 1 renders in the calling process."""

    def __post_init__(self) -> None:
        if self.cases < self.centres:
            raise UsageError(
                f"{self.cases} cases cannot come from {self.centres} laboratories",
                next_step="give at least as many cases as laboratories (--centres)",
            )


@dataclass(frozen=True)
class Case:
    """One tumour with its two slides; everything about it follows from these values."""

    name: str
    seed: int
    width: int
    height: int
    centre: int
    laboratory: VirtualLaboratory
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
