"""The settings of `metaphase run`, and the networks that the paper's method trains.

Defaults are the paper's numbers, but for those of the method `dense`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from metaphase.base.errors import UsageError
from metaphase.base.provenance import decides
from metaphase.base.settings import blamed, read_toml, refuse_unknown, resolved, settings_of
from metaphase.evaluation.marks import MatchingConfig
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.learn.mining.candidates import CandidateConfig
from metaphase.learn.mining.mining import SOFT_TARGET, MiningConfig
from metaphase.learn.mining.sets import LabelConfig, SetConfig, hard_column
from metaphase.networks.cards import NetworkSpec
from metaphase.networks.engine.settings import PeakConfig
from metaphase.networks.training.protocol import TrainingConfig, TrainingProtocol
from metaphase.simulation.config import SimulationConfig

Section = TypeVar("Section")
Source = Literal["table", "phh3", "simulated"]
SEED_STEP = 1_000
"""Between the seeds of two runs: more than the networks of one run have."""


@dataclass(frozen=True)
class CohortSection:
    """Which slides."""

    manifest: str = ""
    """CSV with case, he, laboratory, split (train, validation, test); empty where slides are simulated."""
    standardise: str = ""
    """Method that brings training and validation slides to one stain; the paper used `hsd`."""


@dataclass(frozen=True)
class ReferenceSection:
    """Where the mitoses are."""

    source: Source = "table"
    """`table`: a table of H&E positions. `phh3`: that of `metaphase reference build`. `simulated`:
    the truth of simulated slides."""
    table: str = ""
    """CSV or Parquet with case, x, y (level-0 pixels of the H&E slide) and, where known, label, accepted."""
    corrections: tuple[str, ...] = field(default=(), metadata=decides())
    """Results that people reviewed in `metaphase view`, and calibrations: what they answered is learnt by the
    method `dense`. A corrected slide trains, whatever its split, and so do all slides of its patient."""

    def __post_init__(self) -> None:
        if (self.source == "simulated") == bool(self.table):
            raise UsageError(
                f"reference.source is {self.source} and reference.table is {self.table!r}",
                next_step="name a table for table and phh3, and none for simulated",
            )


@dataclass(frozen=True, kw_only=True)
class LearningSection(TrainingProtocol):
    """The protocol that trains every network."""

    normalisation: Literal["none", "batch"] = "none"
    """`none` as in the paper; `batch` learns faster from little."""
    method: Literal["paper", "dense"] = field(default="paper", metadata=decides())
    """`paper`: candidates, CNN3, an ensemble and CNN5. `dense`: teachers that learn every cell of windows,
    and a pair of networks as the bundled one."""

    def of_task(self, task: Task, train: tuple[str, ...], validation: tuple[str, ...]) -> TrainingConfig:
        """The settings of one network's training."""
        return self.training(
            train=train,
            validation=validation,
            network=NetworkSpec(gamma=task.gamma, normalisation=self.normalisation),
            name=task.name,
            augment=self.augment if task.augment is None else task.augment,
            target=task.target,
            draws="" if task.hard_set is None else hard_column(task.hard_set),
            seed=self.seed + task.seed,
        )


@dataclass(frozen=True)
class Task:
    """One network to train, and on which set."""

    name: str
    gamma: float
    seed: int = 0
    """Added to the protocol's seed."""
    hard_set: int | None = None
    """Number of the difficult set; None for the easy one."""
    target: str = "label"
    """Column of the set to learn."""
    augment: str | None = None
    """Another recipe than the protocol's."""


@dataclass(frozen=True)
class EnsembleSection:
    """CNN3 and the CNN4s."""

    networks: int = 10
    """k: networks of the ensemble, each with a difficult set of its own."""
    gamma: float = 1.0
    """Width of CNN3 and CNN4."""

    def __post_init__(self) -> None:
        if self.networks < 1:
            raise UsageError(f"ensemble.networks is {self.networks}", next_step="give 1 or more")
        NetworkSpec(gamma=self.gamma)


@dataclass(frozen=True)
class StudentSection:
    """CNN5."""

    gammas: tuple[float, ...] = (1.0, 0.8, 0.6)
    """A student of each width."""

    def __post_init__(self) -> None:
        if not self.gammas or len(set(self.gammas)) != len(self.gammas):
            raise UsageError(
                f"students.gammas is {list(self.gammas)}", next_step="give at least one width, none twice"
            )
        for gamma in self.gammas:
            NetworkSpec(gamma=gamma)


@dataclass(frozen=True)
class DenseSection:
    """The method `dense`: what it learns from beside labels, and for how long."""

    teachers: tuple[str, ...] = ()
    """Files of EfficientNet-Lite's published weights (.pth), each of which becomes a teacher, and models that
    teach as they are. Without any, students learn from labels alone."""
    start: str = ""
    """A pair, by its file or the name of a bundled one, from which both networks go on; its own answers away
    from labels keep them from forgetting. What is delivered is the best of it, the new pair and the mean of
    their weights."""
    teacher_steps: int = 3000
    student_steps: int = 6000
    """0: the pair of `start` stays as it is, and only how it is used is chosen anew."""
    atypical_steps: int = 0
    """Of the network that tells atypical figures; 0 trains none, and that of `start` stays."""
    gammas: tuple[float, float] = (1.0, 0.75)
    """Widths of the network that sees everything (`lite`) and of the one that re-checks (`residual`)."""
    trust: float = 0.7
    """How far students follow teachers rather than labels."""
    collage: float = 0.0
    """Share of the crops that are shown within tissue of fields; others are mirrored at their edge."""
    most_false_per_mm2: float = 4.0
    """At the operating point for counts, in the mean of validation patients."""
    beside: str = "breast"
    """A model that is tested on the same slides; empty for none."""
    memory_gb: float = 8.0
    """For images: what whole ones leave of it is shared by pieces of slides."""
    checkpoint_minutes: float = field(default=1.0, metadata=decides())
    """How much work a killed run may lose."""

    def __post_init__(self) -> None:
        fewest = min(self.teacher_steps, self.student_steps + bool(self.start))
        negative = min(self.student_steps, self.atypical_steps) < 0
        if fewest < 1 or negative or self.student_steps < bool(self.atypical_steps):
            raise UsageError(
                f"[dense] has {self.teacher_steps}, {self.student_steps} and {self.atypical_steps} steps",
                next_step="give 1 step or more; atypical_steps may be 0, then with a start "
                "student_steps, too",
            )
        shares = 0 <= self.trust <= 1 and 0 <= self.collage <= 1
        if not shares or self.most_false_per_mm2 <= 0 or self.memory_gb <= 0:
            raise UsageError(
                f"[dense] has trust {self.trust:g}, collage {self.collage:g}, most_false_per_mm2 "
                f"{self.most_false_per_mm2:g} and memory_gb {self.memory_gb:g}",
                next_step="give shares from 0 to 1, and numbers above 0",
            )
        for family, gamma in zip(("lite", "residual"), self.gammas, strict=True):
            NetworkSpec(family, gamma, "batch")


@dataclass(frozen=True)
class CardSection:
    """What the card of a delivered pair says beside what training knows."""

    name: str = "pair"
    """Of the model."""
    terms: dict[str, str] = field(default_factory=dict)
    """The terms of the images, by the beginning of their laboratory's name."""
    intended_use: str = ""
    known_failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvaluationSection:
    """How networks are tested on whole slides."""

    radius_um: float = 7.5
    """A detection at most this far from a mitosis has found it."""
    suppress_um: float = 25.0
    """Detections closer than this to a more probable one are dropped: the paper's d. Where mitoses lie as
    close as in dense simulated tumours, half of it loses fewer."""
    smooth_um: float = 0.0
    """Probabilities are averaged by a Gaussian of this standard deviation first; 0 as in the paper."""
    floor: float = 0.05
    """Peaks below this probability are not kept."""
    bootstrap: int = field(default=1000, metadata=decides())
    """How often the slides are drawn for 95 % intervals."""

    def __post_init__(self) -> None:
        self.matching  # noqa: B018 -- checks the numbers
        BootstrapConfig(samples=self.bootstrap)
        self.peaks  # noqa: B018 -- checks the numbers

    @property
    def matching(self) -> MatchingConfig:
        """When a detection has found a mitosis."""
        return MatchingConfig(radius_um=self.radius_um)

    @property
    def peaks(self) -> PeakConfig:
        """What becomes a detection."""
        return PeakConfig(floor=self.floor, suppress_um=self.suppress_um, smooth_um=self.smooth_um)


@dataclass(frozen=True)
class ExperimentSection:
    """What `metaphase experiments` compares."""

    recipes: tuple[str, str] = ("RSEB", "RCSEB")
    """Recipes of experiments 1 and 2; experiment 3 has the protocol's own."""
    seeds: int = 3
    """Networks of each of the experiments 1 to 3, each with another seed and difficult set."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UsageError(f"[experiments] seeds = {self.seeds}", next_step="give at least 1 seed")


@dataclass(frozen=True)
class RunConfig:
    """A whole chain from manifest to CNN5."""

    cohort: CohortSection
    reference: ReferenceSection
    simulate: SimulationConfig | None
    mining: MiningConfig
    training: LearningSection
    ensemble: EnsembleSection
    students: StudentSection
    dense: DenseSection
    card: CardSection
    test: EvaluationSection
    experiments: ExperimentSection

    def __post_init__(self) -> None:
        if (self.simulate is None) == (not self.cohort.manifest):
            raise UsageError(
                "the configuration names no slides, or a manifest and simulated slides at once",
                next_step="give cohort.manifest or a table [simulate]",
            )
        if self.simulate is None and self.reference.source == "simulated":
            raise UsageError(
                "the reference standard is simulated and the slides are not",
                next_step="name a reference.table",
            )

        if self.reference.corrections and self.training.method != "dense":
            raise UsageError(
                "the method paper cannot learn corrections: not every mitosis of a corrected slide is known",
                next_step='give --method dense (or method = "dense" in [training])',
            )

    def with_seed(self, seed: int) -> RunConfig:
        """The same run drawn anew: no set and no network shares a seed with another run. Slides stay."""
        step = seed * SEED_STEP
        sets = replace(self.mining.sets, seed=self.mining.sets.seed + step)
        training = replace(self.training, seed=self.training.seed + step)
        return replace(self, mining=replace(self.mining, sets=sets), training=training)


TABLES = (
    "cohort", "simulate", "reference", "candidates", "labels", "sets", "training", "ensemble", "students",
    "dense", "card", "test", "experiments",
)  # fmt: skip


DENSE_TRAINING = ("method", "augment", "augmentation", "stain_mix", "batch", "learning_rate", "seed")
"""Settings of [training] that the method `dense` has; the others are the paper's alone."""


def read_run_config(
    path: str | Path, method: str | None = None, corrections: Sequence[str | Path] = ()
) -> RunConfig:
    """Read and check a TOML file; paths in it are relative to the file.

    `method` overrides the file's, `corrections` are added to its own.
    """
    path = Path(path)
    with blamed(path):
        values = read_toml(path)
        if method is not None:
            values = values | {"training": values.get("training", {}) | {"method": method}}
        config = run_config(values, path.parent)
        more = (*config.reference.corrections, *(str(Path(one).resolve()) for one in corrections))
        return replace(config, reference=replace(config.reference, corrections=more))


def run_config(values: Mapping[str, Any], base: Path) -> RunConfig:
    """The configuration of TOML tables; `base` is where relative paths start."""
    refuse_unknown(values, TABLES, "the configuration")
    table = {name: values.get(name, {}) for name in TABLES}

    def made(kind: type[Section], name: str, **given: Any) -> Section:
        return settings_of(kind, table[name], name, **given)

    slides, ensemble = made(CohortSection, "cohort"), made(EnsembleSection, "ensemble")
    learning = made(LearningSection, "training")
    learning.of_task(Task("check", 1.0), ("train",), ("validation",))
    if learning.method == "dense":
        refuse_unknown(table["training"], DENSE_TRAINING, "[training] of the method dense")
    dense = made(DenseSection, "dense")
    dense = replace(dense, teachers=tuple(_model(base, one) for one in dense.teachers))
    if "simulate" in values and "table" not in table["reference"]:
        table["reference"] = {"source": "simulated"} | table["reference"]
    reference = made(ReferenceSection, "reference")
    mining = MiningConfig(
        candidates=made(CandidateConfig, "candidates"),
        labels=made(LabelConfig, "labels"),
        sets=made(SetConfig, "sets", hard_sets=ensemble.networks),
        standardise=slides.standardise,
    )
    return RunConfig(
        cohort=replace(slides, manifest=resolved(base, slides.manifest)),
        reference=replace(
            reference,
            table=resolved(base, reference.table),
            corrections=tuple(resolved(base, one) for one in reference.corrections),
        ),
        simulate=made(SimulationConfig, "simulate") if "simulate" in values else None,
        mining=mining,
        training=learning,
        ensemble=ensemble,
        students=made(StudentSection, "students"),
        dense=replace(dense, start=_model(base, dense.start), beside=_model(base, dense.beside)),
        card=made(CardSection, "card"),
        test=made(EvaluationSection, "test"),
        experiments=made(ExperimentSection, "experiments"),
    )


def _model(base: Path, name: str) -> str:
    """The name of a bundled model, or a file relative to the configuration's."""
    is_file = bool(Path(name).suffix) or (base / f"{name}.safetensors").is_file()
    return resolved(base, name) if is_file else name


CNN3, ENSEMBLE = "cnn3", "ensemble"


def cnn3(config: RunConfig) -> Task:
    """The network of the easy set."""
    return Task(CNN3, config.ensemble.gamma)


def members(config: RunConfig) -> list[Task]:
    """CNN4-1 to CNN4-k, each with its own difficult set and seed."""
    return [
        Task(f"cnn4-{number + 1}", config.ensemble.gamma, seed=1 + number, hard_set=number)
        for number in range(config.ensemble.networks)
    ]


def students(config: RunConfig) -> list[Task]:
    """A CNN5 of each width; all learn from the first difficult set."""
    shared = Task("", 1.0, hard_set=0, target=SOFT_TARGET)
    return [
        replace(shared, name=f"cnn5-{width_name(gamma)}", gamma=gamma, seed=101 + number)
        for number, gamma in enumerate(config.students.gammas)
    ]


def width_name(gamma: float) -> str:
    """A width as part of a file name, where a dot would look like the beginning of an ending.

    >>> width_name(0.6), width_name(1.0)
    ('0p6', '1')
    """
    return f"{gamma:g}".replace(".", "p")
