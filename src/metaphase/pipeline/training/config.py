"""What `metaphase run` is told; the defaults are the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from metaphase.config import read_toml
from metaphase.errors import UsageError
from metaphase.evaluation import BootstrapConfig, MatchingConfig
from metaphase.hne import CandidateConfig, LabelConfig, MiningConfig, SetConfig, hard_column
from metaphase.inference import PeakConfig
from metaphase.learning.config import TrainingConfig
from metaphase.networks import NetworkSpec
from metaphase.pipeline.training.sections import refuse_unknown, resolved, section
from metaphase.simulation import SimulationConfig
from metaphase.stain.augmentation import AugmentationConfig

Source = Literal["table", "phh3", "simulated"]


@dataclass(frozen=True)
class CohortSection:
    """Which slides."""

    manifest: str = ""
    """CSV with case, he, centre, split (train, validation, test); empty where slides are simulated."""
    standardise: str = ""
    """Method that brings training and validation slides to one stain; the paper used `hsd`."""


@dataclass(frozen=True)
class ReferenceSection:
    """Where the mitoses are."""

    source: Source = "table"
    """`table`: a table of H&E places. `phh3`: the table that `metaphase reference build` wrote. `simulated`:
    the truth of simulated slides."""
    table: str = ""
    """CSV or Parquet with case, x, y (level-0 pixels of the H&E slide) and, where known, label, accepted."""

    def __post_init__(self) -> None:
        if self.source not in ("table", "phh3", "simulated"):
            raise UsageError(
                f"reference.source is {self.source!r}", next_step="give table, phh3 or simulated"
            )
        if (self.source == "simulated") == bool(self.table):
            raise UsageError(
                f"reference.source is {self.source} and reference.table is {self.table!r}",
                next_step="name a table for table and phh3, and none for simulated",
            )


@dataclass(frozen=True)
class LearningSection:
    """The protocol that trains every network."""

    family: Literal["detector", "residual"] = "detector"
    """`detector`: the paper's network; `residual`: blocks with shortcuts (needs batch normalisation)."""
    augment: str = "RCSEHBG"
    """Letters of the augmentation recipe."""
    stain_mix: float = 0.0
    """Share of the patches shown in the colours of another training slide."""
    seams: float = 0.0
    """Share of the patches that go on as another one beyond a line near their centre; for small crops."""
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    """Ranges of the letters."""
    normalisation: Literal["none", "batch"] = "none"
    """`none` as in the paper; `batch` learns faster from little."""
    batch: int = 64
    """Patches a step."""
    epochs: int = 20
    """Passes."""
    samples_per_epoch: int | None = None
    """Patches shown an epoch; by default as many as there are."""
    learning_rate: float = 1e-3
    """In the first epoch ..."""
    final_learning_rate: float = 3e-5
    """... and in the last."""
    l2: float = 1e-5
    """Weight of the squared weights."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto`: bfloat16 on a GPU, float32 on a CPU."""
    compile: bool = False
    """Compile the networks: a few seconds at the start, then faster; for long runs on a GPU."""
    keep: Literal["best", "last"] = "best"
    """Epoch whose weights are kept, best by the validation patches."""
    seed: int = 0
    """Of the first network; others count up from it."""

    def training(self, task: Task, train: tuple[str, ...], validation: tuple[str, ...]) -> TrainingConfig:
        """The settings of one network's training."""
        return TrainingConfig(
            train=train,
            validation=validation,
            network=NetworkSpec(self.family, task.gamma, self.normalisation),
            name=task.name,
            augment=self.augment if task.augment is None else task.augment,
            augmentation=self.augmentation,
            stain_mix=self.stain_mix,
            seams=self.seams,
            target=task.target,
            draws="" if task.hard_set is None else hard_column(task.hard_set),
            batch=self.batch,
            epochs=task.epochs or self.epochs,
            samples_per_epoch=self.samples_per_epoch,
            learning_rate=self.learning_rate,
            final_learning_rate=self.final_learning_rate,
            l2=self.l2,
            precision=self.precision,
            compile=self.compile,
            keep=self.keep,
            seed=self.seed + task.seed,
            checkpoint_minutes=2.0,
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
    epochs: int | None = None
    """Another number of passes than the protocol's."""
    teachers: tuple[str, ...] = ()
    """Networks of the run whose answers to augmented patches are learnt; then `target` is not."""


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
    answers: Literal["stored", "augmented"] = "stored"
    """`stored`, as in the paper: the ensemble answers once, about each patch as it was cut. `augmented`: it
    answers every image that the student sees, k answers a step."""
    epochs: int | None = None
    """Passes; by default as many as the others make. Students that see new answers gain from more."""

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 1:
            raise UsageError(f"students.epochs is {self.epochs}", next_step="give 1 or more")
        if not self.gammas or len(set(self.gammas)) != len(self.gammas):
            raise UsageError(
                f"students.gammas is {list(self.gammas)}", next_step="give at least one width, none twice"
            )
        if self.answers not in ("stored", "augmented"):
            raise UsageError(f"students.answers is {self.answers!r}", next_step="give stored or augmented")
        for gamma in self.gammas:
            NetworkSpec(gamma=gamma)


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
    bootstrap: int = 1000
    """How often the slides are drawn for 95 % intervals."""

    def __post_init__(self) -> None:
        MatchingConfig(radius_um=self.radius_um)
        BootstrapConfig(samples=self.bootstrap)
        self.peaks  # noqa: B018 -- checks the numbers

    @property
    def peaks(self) -> PeakConfig:
        """What becomes a detection."""
        return PeakConfig(floor=self.floor, suppress_um=self.suppress_um, smooth_um=self.smooth_um)


@dataclass(frozen=True)
class ExperimentSection:
    """What `metaphase experiments` compares."""

    recipes: tuple[str, ...] = ("RSEB", "RCSEB")
    """Recipes of experiments 1 and 2; experiment 3 has the protocol's own."""
    seeds: int = 3
    """Networks of each of the experiments 1 to 3, each with another seed and difficult set."""

    def __post_init__(self) -> None:
        if self.seeds < 1 or len(self.recipes) != 2:
            raise UsageError(
                f"[experiments] seeds = {self.seeds}, recipes = {list(self.recipes)}",
                next_step="give at least 1 seed, and the two recipes of experiments 1 and 2",
            )


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

    def with_seed(self, seed: int) -> RunConfig:
        """The same run drawn anew: `seed` is added to those of sets and networks. Slides stay as they are."""
        sets = replace(self.mining.sets, seed=self.mining.sets.seed + seed)
        training = replace(self.training, seed=self.training.seed + seed)
        return replace(self, mining=replace(self.mining, sets=sets), training=training)


TABLES = (
    "cohort", "simulate", "reference", "candidates", "labels", "sets", "training", "ensemble", "students",
    "test", "experiments",
)  # fmt: skip


def read_run_config(path: str | Path) -> RunConfig:
    """Read and check a TOML file; paths in it are relative to the file."""
    path = Path(path)
    try:
        return run_config(read_toml(path), path.parent)
    except UsageError as error:
        if error.path is not None:
            raise
        raise UsageError(error.problem, path=path, next_step=error.next_step) from error


def run_config(values: Mapping[str, Any], base: Path) -> RunConfig:
    """The configuration of TOML tables; `base` is where relative paths start."""
    refuse_unknown(values, TABLES, "the configuration")
    table = {name: values.get(name, {}) for name in TABLES}
    for name, settings in table.items():
        if not isinstance(settings, Mapping):
            raise UsageError(f"{name} is {settings!r}", next_step=f"write a table [{name}]")
    cohort, reference = dict(table["cohort"]), dict(table["reference"])
    if "simulate" in values and "table" not in reference:
        reference.setdefault("source", "simulated")
    for settings, key in ((cohort, "manifest"), (reference, "table")):
        settings[key] = resolved(base, settings.get(key, ""))
    learning = _learning(table["training"])
    ensemble = section(EnsembleSection, table["ensemble"], "ensemble")
    slides = section(CohortSection, cohort, "cohort")
    return RunConfig(
        cohort=slides,
        reference=section(ReferenceSection, reference, "reference"),
        simulate=SimulationConfig.from_mapping(table["simulate"]) if "simulate" in values else None,
        mining=MiningConfig(
            candidates=section(CandidateConfig, table["candidates"], "candidates"),
            labels=section(LabelConfig, table["labels"], "labels"),
            sets=section(SetConfig, table["sets"], "sets", hard_sets=ensemble.networks),
            standardise=slides.standardise,
        ),
        training=learning,
        ensemble=ensemble,
        students=section(StudentSection, table["students"], "students"),
        test=section(EvaluationSection, table["test"], "test"),
        experiments=section(ExperimentSection, table["experiments"], "experiments"),
    )


def _learning(values: Mapping[str, Any]) -> LearningSection:
    plain = dict(values)
    ranges = section(
        AugmentationConfig,
        plain.pop("augmentation", {}),
        "training.augmentation",
        leave=("stain_matrix", "size_px"),
    )
    learning = section(LearningSection, plain, "training", augmentation=ranges)
    learning.training(Task("check", 1.0), ("train",), ("validation",))
    return learning
