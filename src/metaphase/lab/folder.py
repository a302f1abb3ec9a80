"""The folder of a laboratory: where everything lies, and what `lab.toml` says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from metaphase.base.errors import UsageError
from metaphase.base.files import write_text
from metaphase.base.settings import Share, blamed, read_toml, refuse_unknown, settings, settings_of
from metaphase.detections.points import points_of
from metaphase.labels.building import BuildConfig
from metaphase.labels.phh3.networks import LearningConfig
from metaphase.labels.phh3.sampling import Source
from metaphase.learn.config import RunConfig, run_config
from metaphase.learn.dense import DenseChain
from metaphase.networks.cards import BUNDLED, card_of, parse_card

SETTINGS = "lab.toml"
RUN_TABLES = ("training", "dense", "test")
"""Tables of `metaphase run` that `lab.toml` may set, under `[run]`."""


# ---- what lab.toml says ----


@settings
class RoundSettings:
    """How many items people are asked about, and by how many observers."""

    round1: NonNegativeInt = 600
    """Most items of round 1; never more than half of the candidates, so that round 2 has others. 0 skips it:
    the bundled CNN1 is taken."""
    round2: NonNegativeInt = 400
    """Most items of round 2; 0 skips it. Without any round the bundled CNN2 is taken."""
    source: Source = "kept"
    """What round 2 asks about: what CNN1 keeps, or `all` candidates, where CNN1 never saw such a stain."""
    unsure_share: Share = 0.5
    """Share of a round that a network is least sure about, asked after the random ones."""
    agree: PositiveInt = 1
    """Observers who answer every item, and must give the same answer."""
    review: NonNegativeInt = 50
    """Points of the reference standard, the least sure first, that somebody decides about; 0 reviews none."""
    seed: int = 0


@settings
class CalibrationSettings:
    """The last answers, about the finished model's detections."""

    answers: int = 100
    """Pictures asked about; 0 leaves the calibration out."""


@settings
class PageSettings:
    """Where the pages for people listen."""

    host: str = "127.0.0.1"
    port: int = 8500


@settings
class LabSettings:
    """All of `lab.toml`."""

    name: str = "laboratory"
    """Of the laboratory; the model is called so."""
    slides: str = ""
    """Folder in which the slides were found."""
    start: str = BUNDLED
    """Pair of networks to continue from, a bundled one by name; empty starts from nothing."""
    corrections: tuple[str, ...] = ()
    """Results that people reviewed, and calibrations, whose answers the detector learns as well; relative to
    the folder."""
    bundled_phh3: bool = True
    """Whether the bundled CNN1 and CNN2 have a say in what is labelled, and start the own ones."""
    rounds: RoundSettings = RoundSettings()
    phh3: LearningConfig = LearningConfig()
    build: BuildConfig = BuildConfig()
    """How pairs are registered, and which figures become labels."""
    calibration: CalibrationSettings = CalibrationSettings()
    page: PageSettings = PageSettings()
    run: dict[str, Any] = field(default_factory=dict)
    """Tables of `metaphase run` (`[run.training]` and so on) that differ from what `metaphase lab` takes."""


def settings_text(name: str, slides: Path, start: str) -> str:
    """Text of a new `lab.toml`."""
    rounds, calibration = RoundSettings(), CalibrationSettings()
    return f"""\
# What `metaphase lab` works by. Change it at any time; it says what has to be done again.
name = {json.dumps(name)}
slides = {json.dumps(str(slides))}
start = {json.dumps(start)}                  # the bundled detector; "" trains from nothing

[rounds]
round1 = {rounds.round1}                        # most brown objects to label in round 1; 0 skips it
round2 = {rounds.round2}                        # and in round 2
agree = {rounds.agree}                           # observers of every item, who must agree
review = {rounds.review}                         # least sure mitoses to review; 0 for none

[calibration]
answers = {calibration.answers}                       # about the finished detections; 0 for none

[page]
host = "127.0.0.1"                  # "0.0.0.0" lets other devices label
port = 8500

# [phh3]                            # training of CNN1 and CNN2: docs/phh3.md
# [run.training]                    # training of the detector: docs/run.md
"""


# ---- where everything lies ----


class _Inside:
    """A path by its name within the folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, lab: Lab, _kind: type[Lab]) -> Path:
        return lab.root / self._name


@dataclass(frozen=True)
class Lab:
    """The folder of a laboratory."""

    root: Path
    device: str | None = None
    given: LabSettings | None = None
    """Settings in place of those of `lab.toml`."""

    manifest = _Inside("manifest.csv")
    """The pairs: case, he, phh3, laboratory, split, patient."""
    slides = _Inside("slides.csv")
    """Every slide that was found: in which pair it is, or why in none."""
    registration = _Inside("registration")
    """A folder a pair: how its slides fit."""
    cases = _Inside("cases")
    """A folder a case: candidates, mitoses of PHH3, reference standard."""
    detector = _Inside("detector")
    """The workspace of `metaphase run`."""
    results = _Inside("results")
    """What the model finds on the test slides."""
    evaluation = _Inside("evaluation")
    """How good that is."""
    site = _Inside("site.json")
    """The laboratory's profile, from the calibration."""
    page = _Inside("index.html")
    """The page that shows the status."""
    lock = _Inside(".running")
    """Locked while a process works in the folder."""
    progress = _Inside(".progress.json")
    """Progress of the step that is running."""

    @cached_property
    def settings(self) -> LabSettings:
        """What `lab.toml` says, or what is given."""
        if self.given is not None:
            return self.given
        path = self.root / SETTINGS
        with blamed(path):
            values = read_toml(path)
            refuse_unknown(values.get("run", {}), RUN_TABLES, "[run]")
            return settings_of(LabSettings, values)

    def round(self, number: int) -> Path:
        """The labelling project of a round."""
        return self.root / f"round{number}"

    def network(self, name: str) -> Path:
        """The folder of CNN1 or CNN2."""
        return self.root / name

    @property
    def model(self) -> Path:
        """The packaged model."""
        return self.root / "model" / f"{self.settings.name}.safetensors"

    @property
    def calibration(self) -> Path:
        """The sample that calibrates the model; each model has its own."""
        card = self.model.with_suffix(".json")  # whose weights may be gone
        return self.root / "calibration" / (parse_card(card).weights_sha256[:8] if card.is_file() else "none")

    @cached_property
    def chain(self) -> DenseChain:
        """The training of the detector."""
        return DenseChain(self.run_config, self.detector.resolve(), self.device)

    @property
    def run_config(self) -> RunConfig:
        """Settings of `metaphase run` for this laboratory."""
        defaults, changes = _run_defaults(self.settings.start), self.settings.run
        tables: dict[str, Any] = {name: values | changes.get(name, {}) for name, values in defaults.items()}
        tables["card"] = {"name": self.settings.name}
        tables["cohort"] = {"manifest": str((self.cases / "manifest.csv").resolve())}
        table = str((self.cases / "reference.parquet").resolve())
        tables["reference"] = {"source": "phh3", "table": table, "corrections": self.settings.corrections}
        with blamed(self.root / SETTINGS):
            return run_config(tables, self.root)


def find_lab(folder: Path | None = None, device: str | None = None) -> Lab:
    """The laboratory of a folder, or of the current one or one above it."""
    here = (folder or Path()).resolve()
    for root in (here,) if folder is not None else (here, *here.parents):
        if (root / SETTINGS).is_file():
            return Lab(root, device)
    raise UsageError(
        f"there is no {SETTINGS} here" + ("" if folder else " nor above"),
        path=here,
        next_step="run metaphase lab init FOLDER with the folder of the slides, or go to its folder",
    )


def write_settings(root: Path, name: str, slides: Path, start: str) -> None:
    """Write `lab.toml` unless there is one."""
    if not (root / SETTINGS).exists():
        write_text(root / SETTINGS, settings_text(name, slides, start))


OWN_TRAINING: dict[str, Any] = {
    "method": "dense",
    "batch": 8,
    "stain_mix": 0.3,
    "learning_rate": 2e-4,
    "augmentation": {
        "stain_factor": [0.85, 1.15],
        "stain_bias": [-0.1, 0.1],
        "scale": [0.75, 1.4],
        "colour": [0.85, 1.2],
        "contrast": [0.85, 1.2],
        "brightness": [0.9, 1.1],
        "blur_sigma_px": [0.0, 1.2],
        "noise_sigma": [0.0, 0.04],
    },
}
"""How both networks continue: at a low rate, with the bundled pair's own augmentation."""
OWN_STEPS, STEPS_FROM_NOTHING = 300, 3000
FOLLOWED = 0.3
"""How far the bundled pair's answers away from labels are followed: PHH3 labels all of the tissue."""


def _run_defaults(start: str) -> dict[str, Any]:
    """Few steps that continue from a pair; many, faster ones where there is none."""
    if not start:
        learning = OWN_TRAINING | {"learning_rate": 1e-3, "batch": 16}
        return {
            "training": learning,
            "dense": {"student_steps": STEPS_FROM_NOTHING},
            "test": {"suppress_um": 15.0, "smooth_um": 1.75},
        }
    points = points_of(card_of(start).thresholds)
    return {
        "training": OWN_TRAINING,
        "dense": {"start": start, "student_steps": OWN_STEPS, "trust": FOLLOWED},
        "test": {"suppress_um": points.suppress_um, "smooth_um": points.smooth_um},
    }
