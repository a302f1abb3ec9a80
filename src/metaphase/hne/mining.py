"""The chain from slides to patch stores, one slide at a time and resumable: every step keeps what is done.

mining = Mining(folder, train, validation)
cnn3 = train(TrainingConfig(train=mining.easy_stores(), validation=mining.validation_stores()), ...)
hard = mining.hard_stores(NetworkScorer([cnn3.model]))   # index columns hard_0, hard_1, ...
mining.add_soft_targets(hard, NetworkScorer(cnn4_models))  # index column ensemble
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.artifacts import write_bytes
from metaphase.errors import UsageError
from metaphase.hne.anywhere import negatives_anywhere
from metaphase.hne.candidates import (
    CandidateError,
    Candidates,
    find_candidates,
    load_candidates,
    save_candidates,
)
from metaphase.hne.config import MiningConfig
from metaphase.hne.labelling import label_candidates
from metaphase.hne.sets import (
    Part,
    Tables,
    easy_negatives,
    hard_negatives,
    parts_by_centre,
    positives,
    validation_set,
)
from metaphase.hne.sources import TrainingSlide, opened
from metaphase.hne.stores import Judge, add_answers, is_stored, remove_stores, write_store
from metaphase.learning.data import REPEAT
from metaphase.parallel import available_cores, ordered_map
from metaphase.records import Record, file_fingerprint, plain_settings, table_fingerprint
from metaphase.slides import Slide
from metaphase.stain.standardisation import Transform, fit_slide
from metaphase.tables import named, read_table, write_table
from metaphase.tissue import TissueMask, find_tissue, load_tissue

SLIDES_AT_ONCE = 8
"""Slides that are worked on side by side, where there are cores for it; each holds up to 256 MB."""
SOFT_TARGET = "ensemble"
"""Index column with the mean probability of the ensemble."""

Made = TypeVar("Made")

Progress = Callable[[str, int, int], None]
"""Called with what is being made, slides finished and slides in all."""


class Scorer(Protocol):
    """Says how probable a mitosis is at given places."""

    @property
    def identity(self) -> str:
        """Changes when its answers may change."""

    def __call__(self, slide: Slide, points: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """Probabilities (n,) at level-0 points (n, 2)."""


class PatchScorer(Protocol):
    """Says how probable a mitosis is in given patches."""

    @property
    def identity(self) -> str:
        """Changes when its answers may change."""

    @property
    def judge(self) -> Judge:
        """Probabilities (n,) of patches (n, side, side, 3)."""


@dataclass(frozen=True)
class Mining:
    """The slides, the settings and the folder of one chain.

    In `folder`: `candidates/`, `scores/`, `tissue/` and `stain/` have a file a slide; `patches/positives`,
    `patches/easy`, `patches/hard` and `patches/validation` a store a slide that has such patches.
    """

    folder: Path
    train: Sequence[TrainingSlide]
    validation: Sequence[TrainingSlide]
    config: MiningConfig = field(default_factory=MiningConfig)
    progress: Progress | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        names = [source.name for source in (*self.train, *self.validation)]
        twice = [name for name in names if names.count(name) > 1]
        if twice or not self.train or not self.validation:
            problem = f"slides named twice: {named(twice)}" if twice else "no slides to train or validate on"
            raise UsageError(
                problem, next_step="give each slide one name and one split; both splits need at least one"
            )

    @cached_property
    def labelled_training(self) -> Tables:
        """Labelled candidates of the training slides."""
        return self._labelled("candidates for training", self.train, self.config.sets.anywhere)

    @cached_property
    def labelled_validation(self) -> Tables:
        """Labelled candidates of the validation slides."""
        return self._labelled("candidates for validation", self.validation)

    def candidates(self, source: TrainingSlide) -> Candidates:
        """Candidates of a slide, found now or by an earlier run."""
        path = self.folder / "candidates" / f"{source.name}.parquet"
        settings = plain_settings(self.config.candidates, self.config.tissue)
        record = Record("candidates", settings, self._inputs(source))
        if not record.is_done(path):
            started = time.perf_counter()
            with opened(source, self._transform(source)) as slide:
                threads = self.threads or max(1, available_cores() // _slides_at_once())
                found = find_candidates(slide, self.tissue(source), self.config.candidates, threads=threads)
            seconds = round(time.perf_counter() - started, 2)
            save_candidates(path, found, record, seconds=seconds)
        return load_candidates(path)

    def tissue(self, source: TrainingSlide) -> TissueMask:
        """Tissue of a slide: the given mask, or one found now or by an earlier run."""
        if source.tissue is not None:
            return load_tissue(source.tissue)
        path = self.folder / "tissue" / f"{source.name}.tissue.png"
        record = Record("tissue", plain_settings(self.config.tissue), _slide_inputs(source))
        if not record.is_done(path):
            with opened(source) as slide, record.noted(path):
                write_bytes(path, find_tissue(slide, self.config.tissue).to_png())
        return load_tissue(path)

    def positive_stores(self) -> list[str]:
        """Stores of all positives of the training slides."""
        found = positives(self.labelled_training)
        repeated = {
            source.name: found[source.name].assign(**{REPEAT: source.repeat}) for source in self.train
        }
        return self._stores("positives", self.train, repeated)

    def easy_stores(self) -> list[str]:
        """Stores to train CNN3 on: all positives, and negatives drawn evenly."""
        stores = self.positive_stores()
        drawn = easy_negatives(self.labelled_training, self.config.sets, self._parts)
        return stores + self._stores("easy", self.train, drawn)

    def validation_stores(self) -> list[str]:
        """Stores to choose the best epoch of every network on."""
        drawn = validation_set(self.labelled_validation, self.config.sets)
        return self._stores("validation", self.validation, drawn)

    def scores(self, scorer: Scorer) -> Tables:
        """Labelled candidates of the training slides with the `probability` that `scorer` gives each."""
        tables = {}
        for number, source in enumerate(self.train):
            self._report("scores", number, len(self.train))
            tables[source.name] = self._scored(source, self.labelled_training[source.name], scorer)
        self._report("scores", len(self.train), len(self.train))
        return tables

    def hard_stores(self, scorer: Scorer) -> list[str]:
        """Stores to train CNN4 and CNN5 on: all positives, and the negatives of all difficult sets.

        How often a patch belongs to difficult set i says the index column `hard_column(i)`.
        """
        scored = self.scores(scorer)
        probabilities = {name: table["probability"].to_numpy(np.float32) for name, table in scored.items()}
        drawn = hard_negatives(self.labelled_training, probabilities, self.config.sets, self._parts)
        return self.positive_stores() + self._stores("hard", self.train, drawn)

    def add_soft_targets(
        self, stores: Sequence[str | Path], scorer: PatchScorer, column: str = SOFT_TARGET
    ) -> None:
        """Add to each store what an ensemble says about its patches, unturned and in their own stain."""
        record = Record("soft targets", {"column": column}, {"networks": scorer.identity})
        for number, store in enumerate(stores):
            self._report("soft targets", number, len(stores))
            add_answers(store, scorer.judge, column, record)
        self._report("soft targets", len(stores), len(stores))

    @property
    def _parts(self) -> list[Part]:
        """The centres of the training slides with their shares of the negatives."""
        centres = {source.name: source.centre for source in self.train}
        repeats = {source.name: source.repeat for source in self.train}
        return parts_by_centre(self.labelled_training, centres, repeats, self.config.sets.balance)

    def _labelled(self, what: str, sources: Sequence[TrainingSlide], anywhere: float = 0.0) -> Tables:
        def label(source: TrainingSlide) -> pd.DataFrame:
            candidates = self.candidates(source)
            with opened(source) as slide:
                table = label_candidates(candidates.table, source.reference, slide, self.config.labels)
                wanted = round(anywhere / (1 - anywhere) * len(table))
                return self._with_anywhere(source, slide, table, wanted) if wanted else table

        return dict(zip((source.name for source in sources), self._each(what, sources, label), strict=True))

    def _with_anywhere(
        self, source: TrainingSlide, slide: Slide, table: pd.DataFrame, count: int
    ) -> pd.DataFrame:
        """Labelled candidates and up to `count` other places."""
        rng = np.random.default_rng((self.config.sets.seed, *source.name.encode()))
        within = self.tissue(source) if source.tissue is not None else None
        places = negatives_anywhere(slide, within, source.reference, count, self.config.labels, rng)
        return pd.concat([table.astype({"source": object}), places], ignore_index=True)

    def _scored(self, source: TrainingSlide, table: pd.DataFrame, scorer: Scorer) -> pd.DataFrame:
        path = self.folder / "scores" / f"{source.name}.parquet"
        inputs = {"candidates": table_fingerprint(table), "networks": scorer.identity}
        record = Record("scores", {}, inputs | self._inputs(source))
        if not record.is_done(path):
            with opened(source, self._transform(source)) as slide:
                answers = scorer(slide, table[["x", "y"]].to_numpy(np.float64))
            _check_scores(answers, table, source)
            with record.noted(path):
                write_table(path, table.assign(probability=answers.astype(np.float32)))
        return read_table(path)

    def _stores(self, kind: str, sources: Sequence[TrainingSlide], tables: Tables) -> list[str]:
        """Stores of the given rows, one for each slide that has any; a few slides at a time."""
        folder = self.folder / "patches" / kind
        chosen = [source for source in sources if len(tables[source.name])]
        remove_stores(folder, keep={source.name for source in chosen})

        def store(source: TrainingSlide) -> str:
            self._store(folder / source.name, source, tables[source.name])
            return str(folder / source.name)

        return self._each(f"{kind} patches", chosen, store)

    def _each(
        self, what: str, sources: Sequence[TrainingSlide], make: Callable[[TrainingSlide], Made]
    ) -> list[Made]:
        """What is made of each slide, a few slides side by side."""
        at_once = _slides_at_once()
        made: list[Made] = []
        self._report(what, 0, len(sources))
        for one in ordered_map(make, sources, threads=at_once, ahead=at_once):
            made.append(one)
            self._report(what, len(made), len(sources))
        return made

    def _store(self, folder: Path, source: TrainingSlide, table: pd.DataFrame) -> None:
        sets = self.config.sets
        settings = {"side_px": sets.side_px, "mpp": sets.mpp, "seed": sets.seed}
        record = Record("patches", settings, {"rows": table_fingerprint(table)} | self._inputs(source))
        if is_stored(folder, record):
            return
        with opened(source, self._transform(source)) as slide:
            named_rows = table.assign(slide=source.name)
            write_store(folder, slide, named_rows, record, sets, threads=self.threads)

    def _transform(self, source: TrainingSlide) -> Transform | None:
        """The way to the common stain, fitted now or by an earlier run; none where none is asked for."""
        if not self.config.standardise:
            return None
        path = self.folder / "stain" / f"{source.name}.json"
        record = Record("stain", {"method": self.config.standardise}, _slide_inputs(source))
        if not record.is_done(path):
            with opened(source) as slide, record.noted(path):
                fit_slide(slide, self.config.standardise).save(path)
        return Transform.load(path)

    def _inputs(self, source: TrainingSlide) -> dict[str, str]:
        inputs = {**_slide_inputs(source), "standardise": self.config.standardise}
        if source.tissue is not None:
            inputs["tissue"] = file_fingerprint(source.tissue)
        return inputs

    def _report(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)


def _slides_at_once() -> int:
    return max(1, min(SLIDES_AT_ONCE, available_cores() // 2))


def _slide_inputs(source: TrainingSlide) -> dict[str, str]:
    return {"slide": file_fingerprint(source.path), "mpp": str(source.mpp)}


def _check_scores(answers: npt.NDArray[np.float32], table: pd.DataFrame, source: TrainingSlide) -> None:
    if answers.shape != (len(table),) or not ((answers >= 0) & (answers <= 1)).all():
        raise CandidateError(
            f"{len(table):,} candidates got {answers.shape} answers, or some that are not probabilities",
            path=source.path,
            next_step="check the network that scores",
        )
