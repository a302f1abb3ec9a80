"""The settings of `metaphase run`, and the networks that the paper's method trains.

Defaults are the paper's numbers, but for those of the method `dense`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic import ValidationInfo as Info

from metaphase.base.errors import UsageError
from metaphase.base.provenance import decides
from metaphase.base.settings import (
    InnerShare,
    PathText,
    Share,
    blamed,
    read_toml,
    refuse_unknown,
    resolved,
    settings,
    settings_of,
)
from metaphase.detections.table import PeakMethod
from metaphase.evaluation.marks import MatchingConfig, Radius
from metaphase.evaluation.metrics import ThresholdRule
from metaphase.learn.mining.candidates import CandidateConfig
from metaphase.learn.mining.mining import SOFT_TARGET, MiningConfig, Standardise
from metaphase.learn.mining.sets import LabelConfig, SetConfig, hard_column
from metaphase.networks.cards import NetworkSpec, Normalisation, Width
from metaphase.networks.engine.settings import PeakConfig, Smoothing
from metaphase.networks.training.protocol import TrainingConfig, TrainingProtocol
from metaphase.simulation.config import SimulationConfig

Source = Literal["table", "phh3", "simulated"]
SEED_STEP = 1_000
"""Between the seeds of two runs: more than the networks of one run have."""


def _model(name: str, info: Info) -> str:
    """The name of a bundled model, or a file relative to the configuration's."""
    base: Path | None = info.context
    if base and (Path(name).suffix or (base / f"{name}.safetensors").is_file()):
        return resolved(base, name)
    return name


ModelName = Annotated[str, AfterValidator(_model)]


@settings
class CohortSection:
    """Slides to learn from."""

    manifest: PathText = ""
    """CSV with case, he, laboratory, split (train, validation, test); empty where slides are simulated."""
    random_split: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = None
    """Where no slide of the manifest has a split: how patients are dealt at random to train, validation and
    test, in these proportions; the paper's are 11, 3, 4."""
    seed: NonNegativeInt = 0
    """Of that draw."""
    standardise: Standardise = ""
    """Method that brings the training laboratories' slides to one stain, those searched included: `hsd`, ours
    after the one that the paper used. Slides of other laboratories stay as they are."""


@settings
class ReferenceSection:
    """Where the mitotic figures of the slides come from."""

    source: Source = "table"
    """`table`: a table of H&E positions. `phh3`: that of `metaphase reference build`. `simulated`:
    the truth of simulated slides."""
    table: PathText = ""
    """CSV or Parquet with case, x, y (level-0 pixels of the H&E slide) and, where known, label, accepted."""
    all_registered: bool = False
    """Every figure with a position in H&E is a mitosis, as in the paper, also where the reference standard
    refused it; not where an observer did. Else refused ones are neither positive nor negative."""
    corrections: tuple[PathText, ...] = field(default=(), metadata=decides())
    """Results that people reviewed in `metaphase view`, and calibrations: what they answered is learnt by the
    method `dense`. A corrected slide trains, whatever its split, and so do all slides of its patient."""


@settings
class LearningSection(TrainingProtocol):
    """The protocol that trains every network."""

    normalisation: Normalisation = "none"
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


@settings
class EnsembleSection:
    """CNN3 and the CNN4s."""

    networks: PositiveInt = 10
    """k: networks of the ensemble, each with a difficult set of its own."""
    gamma: Width = 1.0
    """Width of CNN3 and CNN4."""


@settings
class StudentSection:
    """The students: CNN5 of several widths."""

    gammas: tuple[Width, ...] = (1.0, 0.8, 0.6)
    """A student of each width."""
    deliver: Literal["last", "narrowest"] = "last"
    """`last`: the last of them. `narrowest`, as in the paper: the narrowest whose F1 on the validation
    patches is near the highest of all ..."""
    most_lost: Share = 0.02
    """... at most this far below it."""

    def __post_init__(self) -> None:
        if not self.gammas or len(set(self.gammas)) != len(self.gammas):
            raise UsageError(
                f"students.gammas is {list(self.gammas)}", next_step="give at least one width, none twice"
            )

    def delivered(self, f1: Mapping[float, float]) -> float:
        """The width that is delivered, by the F1 of each on the validation patches, as far as it is known."""
        near = [gamma for gamma, value in f1.items() if value >= max(f1.values()) - self.most_lost]
        return min(near) if near and self.deliver == "narrowest" else self.gammas[-1]


@settings
class DenseSection:
    """The method `dense`: what it learns from beside labels, and for how long."""

    teachers: tuple[ModelName, ...] = ()
    """Files of EfficientNet-Lite's published weights (.pth), each of which becomes a teacher, and models that
    teach as they are. Without any, students learn from labels alone."""
    start: ModelName = ""
    """A pair, by its file or the name of a bundled one, from which both networks go on; its own answers away
    from labels keep them from forgetting. What is delivered is the best of it, the new pair and the mean of
    their weights."""
    teacher_steps: PositiveInt = 3000
    student_steps: NonNegativeInt = 6000
    """0: the pair of `start` stays as it is, and only how it is used is chosen anew."""
    atypical_steps: NonNegativeInt = 0
    """Of the network that tells atypical figures; 0 trains none, and that of `start` stays."""
    gammas: tuple[Width, Width] = (1.0, 0.75)
    """Widths of the network that sees everything (`lite`) and of the one that re-checks (`residual`)."""
    trust: Share = 0.7
    """How far students follow teachers rather than labels."""
    teacher_views: Literal[1, 2, 4, 8] = 1
    """Turned and mirrored views of a window over which the logits of each teacher are averaged."""
    mine_at: tuple[InnerShare, ...] = (0.35, 0.7)
    """Shares of a lesson after which its networks search all training images for what they wrongly take for
    mitoses, to learn from it: teachers, and students that do not continue from a pair."""
    collage: Share = 0.0
    """Share of the crops that are shown within tissue of fields; others are mirrored at their edge."""
    count_threshold: InnerShare = 0.4
    """Calibrated probability from which figures are counted; of the bundled pair 0.4 is unbiased where scores
    are decided."""
    highest_floor: InnerShare = 0.95
    """The floor from which the first network's positions are re-checked is no higher: a low one shows the
    second network more of them, and a search takes longer."""
    beside: ModelName = "breast"
    """A model that is tested on the same slides; empty for none."""
    memory_gb: PositiveFloat = 8.0
    """For images: what whole ones leave of it is shared by pieces of slides."""
    checkpoint_minutes: float = field(default=1.0, metadata=decides())
    """How much work a killed run may lose."""

    def __post_init__(self) -> None:
        if self.student_steps < bool(self.atypical_steps or not self.start):
            raise UsageError(
                f"[dense] has {self.student_steps} student_steps and {self.atypical_steps} atypical_steps",
                next_step="give 1 step or more; with a start, both may be 0",
            )


@settings
class CardSection:
    """What the card of a delivered pair says beside what training knows."""

    name: str = "pair"
    """Of the model."""
    terms: dict[str, str] = field(default_factory=dict)
    """The terms of the images, by the beginning of their laboratory's name."""
    intended_use: str = ""
    known_failures: tuple[str, ...] = ()


@settings
class EvaluationSection:
    """How networks are tested on whole slides."""

    radius_um: Radius = 7.5
    """A detection at most this far from a mitosis has found it."""
    suppress_um: NonNegativeFloat = 25.0
    """Detections closer than this to a more probable one are dropped: the paper's d. Where mitoses lie as
    close as in dense simulated tumours, half of it loses fewer."""
    smooth_um: Smoothing = 0.0
    """Probabilities are averaged by a Gaussian of this standard deviation first; 0 as in the paper."""
    floor: InnerShare = 0.05
    """Peaks below this probability are not kept; the paper's is 0.8."""
    method: PeakMethod = field(default="maxima", metadata=decides("test"))
    """`maxima`, or `components` as in the paper: see `PeakConfig`. A pair knows only maxima."""
    threshold: ThresholdRule = "steady"
    """`highest`: the threshold of the highest F1 on the validation slides, as in the paper. `steady`: the
    middle one of those whose F1 is within two standard errors of it."""
    bootstrap: NonNegativeInt = field(default=1000, metadata=decides())
    """How often the slides are drawn for 95 % intervals."""

    @property
    def matching(self) -> MatchingConfig:
        """When a detection has found a mitosis."""
        return MatchingConfig(radius_um=self.radius_um)

    @property
    def peaks(self) -> PeakConfig:
        """How peaks of the probability map become detections."""
        return PeakConfig(self.floor, self.suppress_um, self.smooth_um, self.method)


@settings
class ExperimentSection:
    """What `metaphase experiments` compares."""

    recipes: tuple[str, str] = ("RSEB", "RCSEB")
    """Recipes of experiments 1 and 2; experiment 3 has the protocol's own."""
    seeds: PositiveInt = 3
    """Networks of each of the experiments 1 to 3, each with another seed and difficult set."""


@settings
class RunConfig:
    """A whole chain from manifest to CNN5: the tables of a file."""

    cohort: CohortSection = CohortSection()
    simulate: SimulationConfig | None = None
    reference: ReferenceSection = ReferenceSection()
    candidates: CandidateConfig = CandidateConfig()
    labels: LabelConfig = LabelConfig()
    sets: SetConfig = SetConfig()
    training: LearningSection = LearningSection()
    ensemble: EnsembleSection = EnsembleSection()
    students: StudentSection = StudentSection()
    dense: DenseSection = DenseSection()
    card: CardSection = CardSection()
    test: EvaluationSection = EvaluationSection()
    experiments: ExperimentSection = ExperimentSection()

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
        source, table = self.reference.source, self.reference.table
        if (source == "simulated") == bool(table):
            raise UsageError(
                f"reference.source is {source} and reference.table is {table!r}",
                next_step="name a table for table and phh3, and none for simulated",
            )
        if self.reference.corrections and self.training.method != "dense":
            raise UsageError(
                "the method paper cannot learn corrections: not every mitosis of a corrected slide is known",
                next_step='give --method dense (or method = "dense" in [training])',
            )
        if self.training.method == "dense" and (self.cohort.standardise or self.test.method != "maxima"):
            raise UsageError(
                "the method dense learns from slides as they are, and its pair knows only maxima",
                next_step="leave out standardise in [cohort] and method in [test], or give --method paper",
            )

    @property
    def mining(self) -> MiningConfig:
        """How patches are made of slides."""
        sets = replace(self.sets, hard_sets=self.ensemble.networks)
        return MiningConfig(self.candidates, self.labels, sets, standardise=self.cohort.standardise)

    def with_seed(self, seed: int) -> RunConfig:
        """The same run drawn anew: no set and no network shares a seed with another run. Slides stay."""
        step = seed * SEED_STEP
        sets = replace(self.sets, seed=self.sets.seed + step)
        return replace(self, sets=sets, training=replace(self.training, seed=self.training.seed + step))


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
            values["training"] = _table(values, "training") | {"method": method}
        config = run_config(values, path.parent)
        more = (*config.reference.corrections, *(str(Path(folder).resolve()) for folder in corrections))
        return replace(config, reference=replace(config.reference, corrections=more))


def run_config(values: Mapping[str, Any], base: Path) -> RunConfig:
    """The configuration of TOML tables; `base` is where relative paths start."""
    training, reference = _table(values, "training"), _table(values, "reference")
    if training.get("method") == "dense":
        refuse_unknown(training, DENSE_TRAINING, "[training] of the method dense")
    if "simulate" in values and "table" not in reference:
        values = {**values, "reference": {"source": "simulated"} | reference}
    return settings_of(RunConfig, values, base=base)


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a file says in a table."""
    found = values.get(name)
    return dict(found) if isinstance(found, Mapping) else {}


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
        replace(shared, name=student_name(gamma), gamma=gamma, seed=101 + number)
        for number, gamma in enumerate(config.students.gammas)
    ]


def student_name(gamma: float) -> str:
    """What the CNN5 of a width is called."""
    return f"cnn5-{width_name(gamma)}"


def width_name(gamma: float) -> str:
    """A width as part of a file name, where a dot would look like the beginning of an ending.

    >>> width_name(0.6), width_name(1.0)
    ('0p6', '1')
    """
    return f"{gamma:g}".replace(".", "p")
