"""The table of stages from slides to CNN5: which networks are trained, and what decides each result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd

from metaphase.base.provenance import Ingredients
from metaphase.images.tissue.finding import TissueConfig
from metaphase.jobs.stages import Stage
from metaphase.jobs.training.chain import COHORT, MINING, NETWORKS, REFERENCE, Chain
from metaphase.jobs.training.config import (
    CNN3,
    LearningSection,
    RunConfig,
    Task,
    cnn3,
    members,
    students,
)
from metaphase.jobs.training.sources import SPLITS, ManifestRow, manifest_rows, read_points
from metaphase.labels.mining.candidates import CandidateConfig
from metaphase.labels.mining.mining import (
    CandidatesFound,
    CandidatesJudged,
    PatchesCut,
    SoftTargetsAdded,
    StainFitted,
    TissueFound,
)
from metaphase.labels.mining.sets import HARD, LabelConfig, SetConfig
from metaphase.simulation.cohort import CaseSimulated
from metaphase.simulation.config import SimulationConfig

# ---- what decides each stage's result ----


@dataclass(frozen=True, eq=False)
class RunSource:
    """The slides and labels that a stage works on: rows of a manifest with their points, or a simulation."""

    rows: tuple[ManifestRow, ...] = ()
    points: pd.DataFrame | None = None
    """Of these rows, from the reference table."""
    simulate: SimulationConfig | None = None
    phh3: bool = False
    """Whether PHH3 slides are simulated, too."""


@dataclass(frozen=True)
class SlidesNamed(Ingredients, stage="slides", uses=(CaseSimulated,)):
    """The slides of a run, simulated or named by a manifest."""

    source: RunSource


@dataclass(frozen=True)
class ReferenceRead(Ingredients, stage="reference"):
    """The reference standard of all slides."""

    kind: str
    source: RunSource


@dataclass(frozen=True)
class CandidatesLabelled(
    Ingredients, stage="candidates", uses=(CaseSimulated, CandidatesFound, TissueFound, StainFitted)
):
    """Labelled candidates of the slides that are learnt from; what is tested on does not matter here."""

    source: RunSource
    candidates: CandidateConfig
    labels: LabelConfig
    tissue: TissueConfig
    standardise: str


@dataclass(frozen=True)
class EasySetsDrawn(Ingredients, stage="easy set", uses=(PatchesCut,)):
    """Patches of CNN3 and for validation."""

    sets: SetConfig


@dataclass(frozen=True)
class DifficultSetsDrawn(Ingredients, stage=HARD, uses=(CandidatesJudged, PatchesCut)):
    """Patches of CNN4 and CNN5."""

    sets: SetConfig


@dataclass(frozen=True)
class NetworkTrained(Ingredients, stage="network"):
    """One network."""

    task: Task
    training: LearningSection


@dataclass(frozen=True)
class SoftTargetsGiven(Ingredients, stage="soft targets", uses=(SoftTargetsAdded,)):
    """The ensemble's answers; all that decides them is read."""


# ---- the table itself ----


def source_stages(chain: Chain) -> list[Stage]:
    """The slides, and where their mitoses are."""
    config, everything = chain.config, source_of(chain.config)
    kind, labelled = str(config.reference.source), everything
    if config.training.method == "dense":  # of thousands of crops the stage before it knows enough
        kind, labelled = f"{kind} with look-alikes", replace(everything, rows=())
    return [
        Stage("slides", "slides, simulated or as the manifest names them", (), (COHORT,), chain.find_slides,
              SlidesNamed(everything), sealed=True),
        Stage("reference", "the reference standard in H&E coordinates", ("slides",), (REFERENCE,),
              chain.find_reference, ReferenceRead(kind, labelled), sealed=True),
    ]  # fmt: skip


def data_stages(chain: Chain) -> list[Stage]:
    """From slides to the difficult sets, with CNN3 on the way."""
    config, mining, patches = chain.config, chain.config.mining, f"{MINING}/patches"
    easy = (f"{patches}/positives", f"{patches}/easy", f"{patches}/validation")
    labelled = CandidatesLabelled(
        source_of(config, ("train", "validation")),
        mining.candidates,
        mining.labels,
        mining.tissue,
        mining.standardise,
    )
    stages = [
        Stage("candidates", "dark positions of training and validation slides", (),
              (f"{MINING}/candidates",), chain.find_candidates, labelled, after=("reference",)),
        Stage("easy set", "patches for CNN3, and for validation", ("candidates",), easy, chain.cut_easy_sets,
              EasySetsDrawn(mining.sets)),
        network_stage(chain, cnn3(config), ("easy set",), "CNN3, which finds the hard negatives"),
        Stage(HARD, "CNN3's probabilities, and negatives drawn by them", ("easy set", CNN3),
              (f"{MINING}/probabilities", f"{patches}/hard"), chain.judge_and_draw,
              DifficultSetsDrawn(mining.sets)),
    ]  # fmt: skip
    return [*source_stages(chain), *stages]


def source_of(config: RunConfig, splits: tuple[str, ...] = SPLITS) -> RunSource:
    """What manifest and reference table say of the slides of some splits, or how these are simulated."""
    if config.simulate is not None:
        return RunSource(simulate=config.simulate, phh3=config.reference.source != "simulated")
    manifest, table = Path(config.cohort.manifest), Path(config.reference.table)
    rows = manifest_rows(manifest, splits) if manifest.is_file() else ()
    points = read_points(table, {row.name for row in rows}) if table.is_file() else None
    return RunSource(rows, points)


def ensemble_stages(chain: Chain) -> list[Stage]:
    """The CNN4s, the ensemble's soft targets and the CNN5s."""
    tasks = members(chain.config)
    names = tuple(task.name for task in tasks)
    stages = [network_stage(chain, task, (HARD,), "CNN4, one of the ensemble") for task in tasks]
    stages.append(soft_target_stage(chain, names))
    stages += [
        network_stage(chain, task, ("soft targets",), f"CNN5 with gamma {task.gamma:g}")
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
