"""The chain from slides to patch stores, one slide at a time and resumable: every step keeps what is done.

mining = Mining(folder, train, validation)
cnn3 = train(TrainingConfig(train=mining.easy_stores(), validation=mining.validation_stores()), ...)
hard = mining.hard_stores(NetworkJudge([cnn3.model]))   # index columns hard_0, hard_1, ...
mining.add_soft_targets(hard, NetworkJudge(cnn4_models))  # index column ensemble
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import pandas as pd

from metaphase.base.arrays import Floats
from metaphase.base.files import write_bytes
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.base.provenance import Ingredients
from metaphase.base.settings import settings
from metaphase.base.stages import Report, silent
from metaphase.base.tables import read_table, write_table
from metaphase.detections.table import MITOSIS
from metaphase.images.stain.standardisation import StainTransform, StandardisedSlide, fit_slide
from metaphase.images.tissue.finding import TissueConfig, TissueMask, TissueSource, load_tissue
from metaphase.learn.mining.candidates import (
    CandidateConfig,
    CandidateError,
    find_candidates,
    threshold_for_recall,
)
from metaphase.learn.mining.sets import (
    POSITIVE,
    LabelConfig,
    SetConfig,
    Tables,
    darkest_near,
    easy_negatives,
    hard_negatives,
    label_candidates,
    points_of,
    validation_set,
    with_label,
)
from metaphase.networks.training.data import REPEAT
from metaphase.networks.training.patches import (
    RECORD,
    SUMMARY,
    add_answers,
    remove_stores,
    write_store,
)
from metaphase.slides.contract import Slide
from metaphase.slides.opening import SlideSource

if TYPE_CHECKING:
    from metaphase.networks.judging import NetworkJudge

# ---- the slides that networks learn from ----


@dataclass(frozen=True, eq=False)
class TrainingSlide:
    """An H&E slide with its reference standard."""

    name: str
    """The case; also the name of its files."""
    slide: SlideSource
    """What opens it."""
    reference: pd.DataFrame
    """Points of this slide: x, y in level-0 pixels and, where there are others than mitoses, label."""
    tissue: TissueSource | None = None
    """Where its tissue comes from; without it, tissue is found by the settings of the chain."""
    repeat: int = 1
    """How often each of its mitoses counts, so that a small collection has weight beside a large one."""


# ---- what decides each step's result ----


@dataclass(frozen=True)
class SeenSlide:
    """A slide as networks see it: where, and in which colours."""

    slide: SlideSource
    tissue: TissueSource
    standardise: str


@dataclass(frozen=True)
class TissueFound(Ingredients, stage="tissue"):
    """The tissue of a slide that came without a mask."""

    slide: SlideSource
    tissue: TissueSource


@dataclass(frozen=True)
class StainFitted(Ingredients, stage="stain"):
    """The way from a slide's colours to the common ones."""

    slide: SlideSource
    method: str


@dataclass(frozen=True)
class CandidatesFound(Ingredients, stage="candidates"):
    """The candidates of a slide."""

    seen: SeenSlide
    config: CandidateConfig


@dataclass(frozen=True, eq=False)
class CandidatesJudged(Ingredients, stage="probabilities"):
    """What a network says about the candidates of a slide."""

    seen: SeenSlide
    candidates: pd.DataFrame
    networks: str


@dataclass(frozen=True, eq=False)
class PatchesCut(Ingredients, stage="patches"):
    """A store of patches of a slide."""

    seen: SeenSlide
    rows: pd.DataFrame
    side_px: int
    mpp: float


@dataclass(frozen=True)
class SoftTargetsAdded(Ingredients, stage="soft targets"):
    """What an ensemble says about the patches of a store."""

    column: str
    networks: str


# ---- the chain itself ----

SLIDES_AT_ONCE = 8
"""Slides that are worked on side by side, where there are cores for it; each holds up to 256 MB."""
SOFT_TARGET = "ensemble"
"""Index column with the mean probability of the ensemble."""

Item = TypeVar("Item")
Made = TypeVar("Made")
Standardise = Literal["", "hsd"]
"""By which method all slides are brought to one stain."""


@settings
class MiningConfig:
    """The settings of the chain from slides to patch stores."""

    candidates: CandidateConfig = CandidateConfig()
    """Where to look."""
    labels: LabelConfig = LabelConfig()
    """What is positive."""
    sets: SetConfig = SetConfig()
    """How many patches."""
    tissue: TissueConfig = TissueConfig()
    """For slides that come without a tissue mask."""
    standardise: Standardise = ""
    """Method that brings all slides to one stain first, or none."""


@dataclass(frozen=True)
class Mining:
    """The slides, the settings and the folder of one chain.

    In `folder`: `candidates/`, `probabilities/`, `tissue/` and `stain/` have a file a slide;
    `patches/positives`, `patches/easy`, `patches/hard` and `patches/validation` a store a slide that
    has such patches.
    """

    folder: Path
    train: Sequence[TrainingSlide]
    validation: Sequence[TrainingSlide]
    config: MiningConfig
    progress: Report = silent
    threads: int | None = None

    @cached_property
    def labelled_training(self) -> Tables:
        """Labelled candidates of the training slides."""
        return self._label("candidates for training", self.train)

    @cached_property
    def labelled_validation(self) -> Tables:
        """Labelled candidates of the validation slides."""
        return self._label("candidates for validation", self.validation)

    @cached_property
    def darkness(self) -> Floats:
        """Intensity of the darkest candidate within d of each mitosis of validation slides; 1 for none."""
        parts = [np.empty(0)]
        for source in self.validation:
            with source.slide.open() as slide:
                within = self.config.candidates.diameter_um / slide.mpp
            parts.append(darkest_near(self.found(source), points_of(source.reference, MITOSIS), within))
        return np.concatenate(parts)

    @cached_property
    def threshold(self) -> float:
        """t: as configured, or the lowest that recalls enough of the validation slides' mitoses."""
        highest, recall = self.config.candidates.threshold, self.config.candidates.recall
        if not recall:
            return highest
        chosen = threshold_for_recall(self.darkness, recall)
        if chosen is None:
            reached = float((self.darkness < 1).mean())
            raise CandidateError(
                f"candidates darker than {highest:g} recall {reached:.3f} of the validation slides' "
                f"mitoses, not {recall:g}",
                next_step="raise threshold in [candidates], or lower recall",
            )
        return chosen

    def candidates(self, source: TrainingSlide) -> pd.DataFrame:
        """Candidates of a slide at the threshold: those of a higher one, up to it."""
        found = self.found(source)
        if not self.config.candidates.recall:
            return found
        return found[found["intensity"] < self.threshold].reset_index(drop=True)

    def found(self, source: TrainingSlide) -> pd.DataFrame:
        """Candidates of a slide at the configured threshold, found now or by an earlier run."""
        return read_table(self.find(source))

    def find(self, source: TrainingSlide) -> Path:
        """Find them, unless an earlier run has; the file they are in."""
        path = self.folder / "candidates" / f"{source.name}.parquet"
        record = CandidatesFound(self._seen_slide(source), self.config.candidates)
        if not record.is_done(path):
            threads = self.threads or max(1, available_cores() // _slides_at_once())
            tissue = self.tissue(source)
            with record.noted(path), self._opened(source) as slide:
                write_table(path, find_candidates(slide, tissue, self.config.candidates, threads=threads))
        return path

    def tissue(self, source: TrainingSlide) -> TissueMask:
        """Tissue of a slide: the given mask, or one found now or by an earlier run."""
        wanted = self._seen_slide(source).tissue
        if source.tissue is not None:
            with source.slide.open() as slide:
                return wanted.of(slide)
        path, record = self.folder / "tissue" / f"{source.name}.tissue.png", TissueFound(source.slide, wanted)
        if not record.is_done(path):
            with source.slide.open() as slide, record.noted(path):
                write_bytes(path, wanted.of(slide).to_png())
        return load_tissue(path)

    def positive_stores(self) -> list[str]:
        """Stores of all positives of the training slides."""
        found = with_label(self.labelled_training, POSITIVE)
        repeated = {
            source.name: found[source.name].assign(**{REPEAT: source.repeat}) for source in self.train
        }
        return self._stores("positives", self.train, repeated)

    def easy_stores(self) -> list[str]:
        """Stores to train CNN3 on: all positives, and negatives drawn evenly."""
        stores = self.positive_stores()
        drawn = easy_negatives(self.labelled_training, self.config.sets)
        return stores + self._stores("easy", self.train, drawn)

    def validation_stores(self) -> list[str]:
        """Stores to choose the best epoch of every network on."""
        drawn = validation_set(self.labelled_validation, self.config.sets)
        return self._stores("validation", self.validation, drawn)

    def judged(self, judge: NetworkJudge) -> Tables:
        """Labelled candidates of the training slides with the `probability` that `judge` gives each."""
        return {
            source.name: self._judge(source, self.labelled_training[source.name], judge)
            for source in self._in_turn("probabilities", self.train)
        }

    def hard_stores(self, judge: NetworkJudge) -> list[str]:
        """Stores to train CNN4 and CNN5 on: all positives, and the negatives of all difficult sets.

        How often a patch belongs to difficult set i says the index column `hard_column(i)`.
        """
        drawn = hard_negatives(self.judged(judge), self.config.sets)
        return self.positive_stores() + self._stores("hard", self.train, drawn)

    def add_soft_targets(self, stores: Sequence[str | Path], judge: NetworkJudge) -> None:
        """Add to each store what an ensemble says about its patches, unturned and in their own stain."""
        record = SoftTargetsAdded(SOFT_TARGET, judge.identity)
        for store in self._in_turn("soft targets", stores):
            add_answers(store, judge.judge, SOFT_TARGET, record)

    def _label(self, what: str, sources: Sequence[TrainingSlide]) -> Tables:
        def label(source: TrainingSlide) -> pd.DataFrame:
            candidates = self.candidates(source)
            with source.slide.open() as slide:
                return label_candidates(candidates, source.reference, slide, self.config.labels)

        return dict(zip((source.name for source in sources), self._each(what, sources, label), strict=True))

    def _judge(self, source: TrainingSlide, table: pd.DataFrame, judge: NetworkJudge) -> pd.DataFrame:
        path = self.folder / "probabilities" / f"{source.name}.parquet"
        record = CandidatesJudged(self._seen_slide(source), table, judge.identity)
        if not record.is_done(path):
            with self._opened(source) as slide:
                answers = judge(slide, table[["x", "y"]].to_numpy(np.float64))
            with record.noted(path):
                write_table(path, table.assign(probability=answers.astype(np.float32)))
        return read_table(path)

    def _stores(self, kind: str, sources: Sequence[TrainingSlide], tables: Tables) -> list[str]:
        """Stores of the given rows, one for each slide that has any; a few slides at a time."""
        folder = self.folder / "patches" / kind
        chosen = [source for source in sources if len(tables[source.name])]
        remove_stores(folder, keep={source.name for source in chosen})

        size = self.config.sets.side_px, self.config.sets.mpp

        def store(source: TrainingSlide) -> str:
            target, table = folder / source.name, tables[source.name]
            record = PatchesCut(self._seen_slide(source), table, *size)
            if not record.matches(target / RECORD) or not (target / SUMMARY).is_file():
                with self._opened(source) as slide:
                    rows = table.assign(slide=source.name)
                    write_store(target, slide, rows, record, *size, threads=self.threads)
            return str(target)

        return self._each(f"{kind} patches", chosen, store)

    def _each(
        self, what: str, sources: Sequence[TrainingSlide], make: Callable[[TrainingSlide], Made]
    ) -> list[Made]:
        """The result for each slide, a few slides at a time."""
        at_once = _slides_at_once()
        results = ordered_map(make, sources, threads=at_once, ahead=at_once)
        return [next(results) for _ in self._in_turn(what, sources)]

    def _in_turn(self, what: str, items: Sequence[Item]) -> Iterator[Item]:
        """The items one by one, with progress."""
        for number, item in enumerate(items):
            self.progress(what, number, len(items))
            yield item
        self.progress(what, len(items), len(items))

    @contextmanager
    def _opened(self, source: TrainingSlide) -> Iterator[Slide]:
        """A slide as networks see it."""
        with source.slide.open() as slide:
            if self.config.standardise:
                yield StandardisedSlide(slide, self.transform_of(source.name, source.slide))
            else:
                yield slide

    def transform_of(self, name: str, slide: SlideSource) -> StainTransform:
        """The way from the colours of a slide of the training laboratories to the common ones."""
        path = self.folder / "stain" / f"{name}.json"
        record = StainFitted(slide, self.config.standardise)
        if not record.is_done(path):
            with slide.open() as opened, record.noted(path):
                fit_slide(opened).save(path)
        return StainTransform.load(path)

    def _seen_slide(self, source: TrainingSlide) -> SeenSlide:
        tissue = source.tissue or TissueSource(config=self.config.tissue)
        return SeenSlide(source.slide, tissue, self.config.standardise)


def _slides_at_once() -> int:
    return max(1, min(SLIDES_AT_ONCE, available_cores() // 2))
