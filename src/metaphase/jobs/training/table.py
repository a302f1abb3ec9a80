"""The table of stages from slides to CNN5: which networks are trained, and what decides each result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from metaphase.base.provenance import FileContent, Ingredients
from metaphase.images.tissue import TissueConfig
from metaphase.jobs.cohort import cohort_slides
from metaphase.jobs.stages import Stage
from metaphase.jobs.training.chain import COHORT, MINING, NETWORKS, REFERENCE, Chain
from metaphase.jobs.training.config import CNN3, LearningSection, RunConfig, Task, cnn3, members, students
from metaphase.labels.mining import CandidateConfig, LabelConfig, SetConfig
from metaphase.labels.mining.config import HARD
from metaphase.simulation import SimulationConfig
from metaphase.slides import SlideSource

# ---- what decides each stage's result ----


@dataclass(frozen=True)
class SlidesNamed(Ingredients, stage="slides"):
    """The slides of a run, simulated or named by a manifest."""

    manifest: FileContent | None
    slides: tuple[SlideSource, ...]
    simulate: SimulationConfig | None
    phh3: bool
    """Whether PHH3 slides are simulated, too."""


@dataclass(frozen=True)
class ReferenceRead(Ingredients, stage="reference"):
    """The reference standard of the slides."""

    source: str
    table: FileContent | None


@dataclass(frozen=True)
class CandidatesLabelled(Ingredients, stage="candidates"):
    """Labelled candidates of all slides that are learnt from."""

    candidates: CandidateConfig
    labels: LabelConfig
    tissue: TissueConfig
    standardise: str
    masks: tuple[FileContent, ...]


@dataclass(frozen=True)
class EasySetsDrawn(Ingredients, stage="easy set"):
    """Patches of CNN3 and for validation."""

    sets: SetConfig


@dataclass(frozen=True)
class DifficultSetsDrawn(Ingredients, stage=HARD):
    """Patches of CNN4 and CNN5."""

    sets: SetConfig


@dataclass(frozen=True)
class NetworkTrained(Ingredients, stage="network"):
    """One network."""

    task: Task
    training: LearningSection


@dataclass(frozen=True)
class SoftTargetsGiven(Ingredients, stage="soft targets"):
    """The ensemble's answers; all that decides them is read."""


# ---- the table itself ----


def data_stages(chain: Chain) -> list[Stage]:
    """From slides to the difficult sets, with CNN3 on the way."""
    config, mining, patches = chain.config, chain.config.mining, f"{MINING}/patches"
    named, masks = _outside_slides(config)
    table = FileContent(Path(config.reference.table)) if config.reference.table else None
    easy = (f"{patches}/positives", f"{patches}/easy", f"{patches}/validation")
    labelled = CandidatesLabelled(mining.candidates, mining.labels, mining.tissue, mining.standardise, masks)
    return [
        Stage("slides", "slides, simulated or as the manifest names them", (), (COHORT,), chain.find_slides,
              named),
        Stage("reference", "the reference standard in H&E coordinates", ("slides",), (REFERENCE,),
              chain.find_reference, ReferenceRead(config.reference.source, table)),
        Stage("candidates", "dark places of training and validation slides", ("reference",),
              (f"{MINING}/candidates",), chain.find_candidates, labelled),
        Stage("easy set", "patches for CNN3, and for validation", ("candidates",), easy, chain.cut_easy_sets,
              EasySetsDrawn(mining.sets)),
        network_stage(chain, cnn3(config), ("easy set",), "CNN3, which finds the hard negatives"),
        Stage(HARD, "CNN3's probabilities, and negatives drawn by them", ("easy set", CNN3),
              (f"{MINING}/probabilities", f"{patches}/hard"), chain.judge_and_draw,
              DifficultSetsDrawn(mining.sets)),
    ]  # fmt: skip


def _outside_slides(config: RunConfig) -> tuple[SlidesNamed, tuple[FileContent, ...]]:
    """The slides that the manifest names, where it is there, and the masks among them."""
    phh3 = config.simulate is not None and config.reference.source != "simulated"
    if not config.cohort.manifest:
        return SlidesNamed(None, (), config.simulate, phh3), ()
    manifest = FileContent(Path(config.cohort.manifest))
    rows = cohort_slides(manifest.path) if manifest.path.is_file() else []
    masks = tuple(FileContent(row.tissue.mask) for row in rows if row.tissue.mask is not None)
    return SlidesNamed(manifest, tuple(row.slide for row in rows), None, phh3), masks


def ensemble_stages(chain: Chain) -> list[Stage]:
    """The CNN4s, the ensemble's soft targets and the CNN5s."""
    tasks = members(chain.config)
    names = tuple(task.name for task in tasks)
    stages = [network_stage(chain, task, (HARD,), "CNN4, one of the ensemble") for task in tasks]
    learnt_from = (HARD, *names)
    if chain.config.students.answers == "stored":
        stages.append(soft_target_stage(chain, names))
        learnt_from = ("soft targets",)
    stages += [
        network_stage(chain, task, learnt_from, f"CNN5 with gamma {task.gamma:g}")
        for task in students(chain.config)
    ]
    return stages


def network_stage(chain: Chain, task: Task, reads: tuple[str, ...], about: str) -> Stage:
    """Training of one network as a stage."""
    work = partial(chain.train_network, task)
    made_from = NetworkTrained(task, chain.config.training)
    return Stage(task.name, about, reads, (f"{NETWORKS}/{task.name}",), work, made_from, renew=True)


def soft_target_stage(chain: Chain, names: tuple[str, ...]) -> Stage:
    """The ensemble's answers as a stage."""
    work = partial(chain.add_soft_targets, names)
    about = "what the ensemble says about every patch"
    writes = (f"{MINING}/patches/hard",)
    return Stage("soft targets", about, (HARD, *names), writes, work, SoftTargetsGiven())
