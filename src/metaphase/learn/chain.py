"""From slides to CNN5 as the paper does it: the work of each stage, and the table of stages.

The method `dense` begins with the same two stages.

The work of a stage is a method of `Chain`; called again, it resumes where it stopped. The table says which
networks are trained, and what decides each result.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase.analysis.cohort import CohortSlide, cohort_slide
from metaphase.analysis.search import SplitSearch
from metaphase.base.parallel import available_cores, worker_processes
from metaphase.base.stages import Facts, Report, Stage, stage
from metaphase.base.tables import read_table, write_table
from metaphase.detections.table import MITOSIS
from metaphase.evaluation.operating_points import Bench, bench_of
from metaphase.images.stain.standardisation import StandardisedSource
from metaphase.images.tissue.finding import TissueConfig
from metaphase.learn.config import (
    CNN3,
    LearningSection,
    RunConfig,
    Task,
    cnn3,
    members,
    students,
)
from metaphase.learn.mining.candidates import CandidateConfig
from metaphase.learn.mining.mining import (
    CandidatesFound,
    CandidatesJudged,
    Mining,
    PatchesCut,
    SoftTargetsAdded,
    StainFitted,
    TissueFound,
    TrainingSlide,
)
from metaphase.learn.mining.sets import HARD, NEGATIVE, POSITIVE, LabelConfig, SetConfig
from metaphase.learn.sources import (
    SPLITS,
    ManifestRow,
    manifest_rows,
    read_cohort,
    read_points,
    read_reference,
    training_slides,
)
from metaphase.networks.architectures import parameter_count
from metaphase.networks.checkpoints import load_model
from metaphase.networks.judging import NetworkJudge
from metaphase.networks.training.data import open_set
from metaphase.networks.training.loop import STATE_FILE, train
from metaphase.simulation.cohort import BOTH, CaseSimulated, simulate_cohort
from metaphase.simulation.config import SimulationConfig
from metaphase.simulation.rendering import Frame


@dataclass(frozen=True, eq=False)
class RunSource:
    """The slides and labels that a stage works on: rows of a manifest with their points, or a simulation."""

    rows: tuple[ManifestRow, ...] = ()
    points: pd.DataFrame | None = None
    """Of these rows, from the reference table."""
    simulate: SimulationConfig | None = None
    phh3: bool = False
    """Whether PHH3 slides are simulated, too."""


# ---- the work of a run's stages ----

SLIDES, REFERENCE, MINING, NETWORKS = "slides", "reference.parquet", "mining", "networks"
PATCHES = f"{MINING}/patches"
COHORT, DETECTIONS = "cohort.csv", "detections"


@dataclass(frozen=True)
class Chain:
    """A run's settings and workspace; its methods are the stages' work."""

    config: RunConfig
    workspace: Path
    device: str | None = None

    @cached_property
    def cohort(self) -> pd.DataFrame:
        """The slides with their splits, as the stage `slides` left them."""
        return read_cohort(self.manifest, self.needed, self.config.cohort)

    @property
    def needed(self) -> Sequence[str]:
        """Splits that must have slides with mitoses."""
        return SPLITS

    @cached_property
    def reference(self) -> pd.DataFrame:
        """The reference standard, as its stage left it."""
        return read_table(self.workspace / REFERENCE)

    @property
    def manifest(self) -> Path:
        """Manifest of the cohort, given or simulated."""
        given = self.config.cohort.manifest
        return Path(given) if given else self.workspace / SLIDES / "manifest.csv"

    @cached_property
    def mining(self) -> Mining:
        """The stages of the training data."""
        train = training_slides(self.cohort, self.reference, "train")
        validation = training_slides(self.cohort, self.reference, "validation")
        return Mining(self.workspace / MINING, train, validation, self.config.mining)

    @cached_property
    def split_search(self) -> SplitSearch:
        """What searches the slides of validation and test; nothing but tissue masks is held in memory."""
        return SplitSearch(self.workspace / DETECTIONS, self.config.test.peaks, self.device)

    @cached_property
    def benches(self) -> dict[str, Bench]:
        """What is to be found on them."""
        return {
            split: bench_of(self.cohort, self.reference, split, self.config.test.matching)
            for split in ("validation", "test")
        }

    def slides(self, split: str) -> list[CohortSlide]:
        """The slides of a split, with what the manifest says of their resolution and tissue.

        All but test slides of other laboratories have the colours that were learnt from.
        """
        slides = []
        for row in self.cohort[self.cohort["split"] == split].to_dict("records"):
            slide = cohort_slide(row)
            if self.config.cohort.standardise and (split != "test" or row["laboratory"] in self.homes):
                transform = self.mining.transform_of(slide.name, slide.slide)
                source = StandardisedSource(slide.slide.path, slide.slide.mpp, transform=transform)
                slide = replace(slide, slide=source)
            slides.append(slide)
        return slides

    @property
    def homes(self) -> set[str]:
        """Laboratories of the training slides."""
        return set(self.cohort.loc[self.cohort["split"] == "train", "laboratory"])

    def model(self, name: str) -> Path:
        """Path of a network's weights."""
        return self.workspace / NETWORKS / name / f"{name}.safetensors"

    @stage(
        "slides",
        "slides, simulated or as the manifest names them",
        writes=(COHORT,),
        uses=(CaseSimulated,),
        sealed=True,
    )
    def find_slides(self, report: Report, *, source: RunSource) -> Facts:
        """Simulate the slides, or check those that the manifest names."""
        if source.simulate is not None:
            frames: tuple[Frame, ...] = BOTH if source.phh3 else ("he",)
            folder = self.workspace / SLIDES
            simulate_cohort(folder, source.simulate, frames=frames, progress=report, replace=True)
        write_table(self.workspace / COHORT, self.cohort)
        counts = self.cohort["split"].value_counts()
        return {f"{split} slides": int(count) for split, count in counts.items()}

    @stage(
        "reference",
        "the reference standard in H&E coordinates",
        reads=("slides",),
        writes=(REFERENCE,),
        sealed=True,
    )
    def find_reference(self, report: Report, *, kind: str, source: RunSource) -> Facts:
        """Bring the reference standard into one table."""
        points = read_reference(self.config.reference, self.cohort, self.config.training.method, self.needed)
        write_table(self.workspace / REFERENCE, points)
        mitoses = points[points["label"] == MITOSIS]
        splits = mitoses.merge(self.cohort[["case", "split"]], on="case")["split"]
        return {f"{split} mitoses": int(count) for split, count in splits.value_counts().items()}

    @stage(
        "candidates",
        "dark positions of training and validation slides",
        writes=(f"{MINING}/candidates",),
        after=("reference",),
        uses=(CaseSimulated, CandidatesFound, TissueFound, StainFitted),
    )
    def find_candidates(
        self,
        report: Report,
        *,
        source: RunSource,
        candidates: CandidateConfig,
        labels: LabelConfig,
        tissue: TissueConfig,
        standardise: str,
        recall: float = 0.0,
    ) -> Facts:
        """Labelled candidates of all slides that are learnt from; what is tested on does not matter here."""
        sources = [*self.mining.train, *self.mining.validation]
        workers = min(available_cores(), len(sources))
        if workers > 2:
            find_in_processes(self.mining, sources, workers, report)
        mining = self._reporting(report)
        tables = [*mining.labelled_training.values(), *mining.labelled_validation.values()]
        found = pd.concat([table["label"] for table in tables])
        positives, negatives = (int((found == label).sum()) for label in (POSITIVE, NEGATIVE))
        return {
            "positives": positives,
            "negatives": negatives,
            "negatives per positive": round(negatives / max(1, positives)),
            "candidates per slide": round(np.mean([len(mining.candidates(source)) for source in sources])),
            "t": round(mining.threshold, 4),
            "validation recall": round(float((mining.darkness < mining.threshold).mean()), 4),
        }

    @stage(
        "easy set",
        "patches for CNN3, and for validation",
        reads=("candidates",),
        writes=(f"{PATCHES}/positives", f"{PATCHES}/easy", f"{PATCHES}/validation"),
        uses=(PatchesCut,),
    )
    def cut_easy_sets(self, report: Report, *, sets: SetConfig) -> Facts:
        """Patches for CNN3 and for validation."""
        mining = self._reporting(report)
        easy, held_out = open_set(mining.easy_stores()), open_set(mining.validation_stores())
        return {"easy patches": len(easy.index), "validation patches": len(held_out.index)}

    @stage(
        HARD,
        "CNN3's probabilities, and negatives drawn by them",
        reads=("easy set", CNN3),
        writes=(f"{MINING}/probabilities", f"{PATCHES}/hard"),
        uses=(CandidatesJudged, PatchesCut),
    )
    def judge_and_draw(self, report: Report, *, sets: SetConfig) -> Facts:
        """CNN3's probability of every candidate, and the difficult sets of CNN4 and CNN5 drawn by it."""
        mining = self._reporting(report)
        stores = mining.hard_stores(NetworkJudge([self.model(CNN3)], self.device))
        return {"stored patches": len(open_set(stores).index)}

    @stage(
        "soft targets",
        "what the ensemble says about every patch",
        writes=(f"{PATCHES}/hard",),
        uses=(SoftTargetsAdded,),
    )
    def add_soft_targets(self, report: Report) -> Facts:
        """The ensemble's mean probability of every stored patch; all that decides it is read."""
        models = [self.model(task.name) for task in members(self.config)]
        stores = self.stores("positives", "hard")
        self._reporting(report).add_soft_targets(stores, NetworkJudge(models, self.device))
        return {"networks": len(models)}

    @stage("network", "a network", renew=True)
    def train_network(self, report: Report, *, task: Task, training: LearningSection) -> Facts:
        """Train a network on its set, or resume it; the state to resume from is removed at the end."""
        stores = self.stores("positives", "hard" if task.hard_set is not None else "easy")
        folder = self.model(task.name).parent
        config = training.of_task(task, stores, self.stores("validation"))
        result = train(config, folder, device=self.device, report=report)
        (folder / STATE_FILE).unlink(missing_ok=True)
        network, card = load_model(result.model)
        return {
            "patch F1 on validation": round(result.best, 4),
            "parameters": parameter_count(network),
            "gamma": card.gamma,
            "seconds in the loop": round(sum(row["train_seconds"] for row in result.history), 1),
        }

    def stores(self, *kinds: str) -> tuple[str, ...]:
        """The finished stores of patches: `positives`, `easy` negatives, `hard` ones, `validation`."""
        folder = self.workspace / PATCHES
        return tuple(
            str(path.parent) for kind in kinds for path in sorted((folder / kind).glob("*/store.json"))
        )

    def _reporting(self, report: Report) -> Mining:
        """The mining that tells how far it is; what it found before stays found."""
        return replace(self.mining, progress=report)


def find_in_processes(mining: Mining, sources: Sequence[TrainingSlide], workers: int, report: Report) -> None:
    """Find candidates slide by slide in several processes."""
    alone = replace(mining, threads=1)
    with worker_processes(workers) as pool:
        jobs = [pool.submit(alone.find, source) for source in sources]
        for number, job in enumerate(as_completed(jobs), start=1):
            job.result()
            report("candidates", number, len(jobs))


# ---- the table itself ----


def source_stages(chain: Chain) -> list[Stage]:
    """The slides, and where their mitoses are."""
    config, everything = chain.config, source_of(chain.config)
    kind, labelled = str(config.reference.source), everything
    if config.training.method == "dense":  # of thousands of crops the stage before it knows enough
        kind, labelled = f"{kind} with look-alikes", replace(everything, rows=())
    return [chain.find_slides(source=everything), chain.find_reference(kind=kind, source=labelled)]


def data_stages(chain: Chain) -> list[Stage]:
    """From slides to the difficult sets, with CNN3 on the way."""
    config, mining = chain.config, chain.config.mining
    recall = mining.candidates.recall
    more: dict[str, Any] = {"recall": recall} if recall else {}  # at 0 notes stay as they were
    candidates = chain.find_candidates(
        source=source_of(config, ("train", "validation")),
        candidates=mining.candidates,
        labels=mining.labels,
        tissue=mining.tissue,
        standardise=mining.standardise,
        **more,
    )
    return [
        *source_stages(chain),
        candidates,
        chain.cut_easy_sets(sets=mining.sets),
        network_stage(chain, cnn3(config), ("easy set",), "CNN3, which finds the hard negatives"),
        chain.judge_and_draw(sets=mining.sets),
    ]


def source_of(config: RunConfig, splits: tuple[str, ...] = SPLITS) -> RunSource:
    """What manifest and reference table say of the slides of some splits, or how these are simulated."""
    if config.simulate is not None:
        return RunSource(simulate=config.simulate, phh3=config.reference.source != "simulated")
    manifest, table = Path(config.cohort.manifest), Path(config.reference.table)
    rows = manifest_rows(manifest, splits, config.cohort) if manifest.is_file() else ()
    every = config.reference.all_registered
    points = read_points(table, {row.name for row in rows}, all_registered=every) if table.is_file() else None
    return RunSource(rows, points)


def ensemble_stages(chain: Chain) -> list[Stage]:
    """The CNN4s, the ensemble's soft targets and the CNN5s."""
    return [
        *(network_stage(chain, task, (HARD,), "CNN4, one of the ensemble") for task in members(chain.config)),
        soft_target_stage(chain),
        *(
            network_stage(chain, task, ("soft targets",), f"CNN5 with gamma {task.gamma:g}")
            for task in students(chain.config)
        ),
    ]


def network_stage(chain: Chain, task: Task, reads: tuple[str, ...], about: str) -> Stage:
    """Training of one network as a stage."""
    row = chain.train_network(task=task, training=chain.config.training)
    return replace(row, name=task.name, about=about, reads=reads, writes=(f"{NETWORKS}/{task.name}",))


def soft_target_stage(chain: Chain) -> Stage:
    """The ensemble's answers as a stage."""
    return replace(chain.add_soft_targets(), reads=(HARD, *(task.name for task in members(chain.config))))
