"""The work of a run's stages, each a method that can be called again and goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pandas as pd

from metaphase.detections import MITOSIS
from metaphase.hne import Mining
from metaphase.hne.scoring import NetworkScorer
from metaphase.learning.data import open_set
from metaphase.parallel import available_cores
from metaphase.pipeline.stages import Facts, Report
from metaphase.pipeline.training.candidates import find_in_processes
from metaphase.pipeline.training.cohort import read_cohort, read_reference, training_slides
from metaphase.pipeline.training.config import RunConfig, Task
from metaphase.pipeline.training.rendering import render_cohort
from metaphase.pipeline.training.tasks import CNN3
from metaphase.pipeline.training.training import model_path, train_task
from metaphase.simulation import simulate_cohort
from metaphase.tables import read_table, write_table

SLIDES, REFERENCE, MINING, NETWORKS = "slides", "reference.parquet", "mining", "networks"
COHORT = "cohort.csv"


@dataclass(frozen=True)
class Chain:
    """A run's settings and workspace; its methods are the stages' work."""

    config: RunConfig
    workspace: Path
    device: str | None = None

    @cached_property
    def cohort(self) -> pd.DataFrame:
        """The slides with their splits, as the stage `slides` left them."""
        return read_cohort(self.manifest)

    @cached_property
    def reference(self) -> pd.DataFrame:
        """The reference standard, as its stage left it."""
        return read_table(self.workspace / REFERENCE)

    @property
    def manifest(self) -> Path:
        """Given or simulated."""
        given = self.config.cohort.manifest
        return Path(given) if given else self.workspace / SLIDES / "manifest.csv"

    @cached_property
    def mining(self) -> Mining:
        """The stages of the training data."""
        train, validation = (
            training_slides(self.cohort, self.reference, split) for split in ("train", "validation")
        )
        return Mining(self.workspace / MINING, train, validation, self.config.mining)

    def model(self, name: str) -> Path:
        """Where a network lies."""
        return model_path(self.workspace / NETWORKS, name)

    def find_slides(self, report: Report) -> Facts:
        """Simulate the slides, or check those that the manifest names."""
        settings = self.config.simulate
        if settings is not None:
            if self.config.reference.source == "simulated":
                render_cohort(self.workspace / SLIDES, settings, report)
            else:
                progress = partial(_megapixels, report)
                simulate_cohort(self.workspace / SLIDES, settings, progress=progress)
        write_table(self.workspace / COHORT, self.cohort)
        counts = self.cohort["split"].value_counts()
        return {f"{split} slides": int(count) for split, count in counts.items()}

    def find_reference(self, report: Report) -> Facts:
        """Bring the reference standard into one table."""
        report("reference standard", 0, 1)
        points = read_reference(self.config.reference, self.cohort)
        write_table(self.workspace / REFERENCE, points)
        mitoses = points[points["label"] == MITOSIS]
        splits = mitoses.merge(self.cohort[["case", "split"]], on="case")["split"]
        return {f"{split} mitoses": int(count) for split, count in splits.value_counts().items()}

    def find_candidates(self, report: Report) -> Facts:
        """Candidates of all training and validation slides, several slides at a time."""
        sources = [*self.mining.train, *self.mining.validation]
        workers = min(available_cores(), len(sources))
        if workers > 2:
            find_in_processes(self.mining, sources, workers, report)
        mining = self._reporting(report)
        tables = [*mining.labelled_training.values(), *mining.labelled_validation.values()]
        labels = pd.concat([table["label"] for table in tables])
        return {"positives": int((labels == 1).sum()), "negatives": int((labels == 0).sum())}

    def cut_easy_sets(self, report: Report) -> Facts:
        """Patches for CNN3 and for validation."""
        mining = self._reporting(report)
        easy, held_out = open_set(mining.easy_stores()), open_set(mining.validation_stores())
        return {"easy patches": len(easy.index), "validation patches": len(held_out.index)}

    def score_and_draw(self, report: Report) -> Facts:
        """CNN3's probability of every candidate, and the difficult sets drawn by it."""
        mining = self._reporting(report)
        stores = mining.hard_stores(NetworkScorer([self.model(CNN3)], self.device))
        return {"stored patches": len(open_set(stores).index)}

    def add_soft_targets(self, names: Sequence[str], report: Report) -> Facts:
        """The ensemble's mean probability of every stored patch."""
        models = [self.model(name) for name in names]
        self._reporting(report).add_soft_targets(self.hard_stores(), NetworkScorer(models, self.device))
        return {"networks": len(models)}

    def train_network(self, task: Task, report: Report) -> Facts:
        """Train one network on its set."""
        stores = self.hard_stores() if task.hard_set is not None else self.easy_stores()
        held_out = self._finished("validation")
        protocol, networks = self.config.training, self.workspace / NETWORKS
        return train_task(task, protocol, stores, held_out, networks, device=self.device, report=report)

    def easy_stores(self) -> list[str]:
        """The finished stores of the easy set."""
        return self._finished("positives", "easy")

    def hard_stores(self) -> list[str]:
        """The finished stores of the difficult sets."""
        return self._finished("positives", "hard")

    def _finished(self, *kinds: str) -> list[str]:
        folder = self.workspace / MINING / "patches"
        found = [path.parent for kind in kinds for path in sorted((folder / kind).glob("*/store.json"))]
        return [str(store) for store in found]

    def _reporting(self, report: Report) -> Mining:
        """The mining that tells how far it is; what it found before stays found."""
        return Mining(
            self.mining.folder, self.mining.train, self.mining.validation, self.mining.config, progress=report
        )


def _megapixels(report: Report, what: str, done: int, total: int) -> None:
    report(what, done / 1e6, total / 1e6)
