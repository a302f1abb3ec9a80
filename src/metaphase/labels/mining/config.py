"""What the stages of the H&E detector are told; the defaults are the paper's numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from metaphase.base.config import CODE_ONLY
from metaphase.base.errors import UsageError
from metaphase.base.provenance import decides
from metaphase.images.tissue.finding import TissueConfig
from metaphase.slides import WORKING_MPP

HARD = "difficult sets"
"""The stage that alone depends on some of the numbers."""
PositiveRule = Literal["nearest", "stated"]


@dataclass(frozen=True)
class CandidateConfig:
    """Which places of a slide may be mitoses at all: dark points, darkest first, each with its own circle."""

    diameter_um: float = 25.0
    """d, the diameter of the circle that a candidate claims: 100 px at 0.25 um/px."""
    threshold: float = 0.6
    """t: only pixels whose mean of red, green and blue, from 0 to 1, is below this become candidates."""
    mpp: float = WORKING_MPP
    """Resolution at which minima are sought, in um/px; 0.5 is about three times as fast."""
    max_candidates: int = field(default=5_000_000, metadata=decides())
    """A slide with more is refused: its memory and scoring time would be out of hand."""
    max_dark_share: float = field(default=0.98, metadata=decides())
    """A slide with a larger share of its tissue below the threshold is refused as too dark to tell."""

    def __post_init__(self) -> None:
        _require_positive("diameter_um", self.diameter_um)
        _require_positive("mpp", self.mpp)
        _require_share("threshold", self.threshold)
        _require_share("max_dark_share", self.max_dark_share)
        _require_count("max_candidates", self.max_candidates, 1)
        if self.diameter_um < 2 * self.mpp:
            raise UsageError(
                f"circles of {self.diameter_um} um are smaller than two pixels of {self.mpp} um",
                next_step="give a larger diameter_um or a finer mpp",
            )


@dataclass(frozen=True)
class LabelConfig:
    """When a candidate is a mitosis."""

    rule: PositiveRule = "nearest"
    """`nearest`: the nearest candidate within `own_um` of a reference point is positive (where there is none,
    a patch on the point itself), all others within `positive_um` are ignored. `stated`: as in the paper's
    text, every candidate within `positive_um` is positive, cells next to a mitosis included."""
    positive_um: float = 25.0
    """d of the paper: a candidate at most this far from a reference point is no negative."""
    own_um: float = 7.5
    """How far the dark centre of a mitosis may lie from its reference point."""
    ignore_um: float = 0.0
    """Candidates at most this far from a point labelled `ignore` are left out; 0: as `positive_um`."""

    def __post_init__(self) -> None:
        if self.rule not in ("nearest", "stated"):
            raise UsageError(f"no label rule is called {self.rule!r}", next_step="give nearest or stated")
        _require_positive("positive_um", self.positive_um)
        _require_positive("own_um", self.own_um)
        if not 0 <= self.ignore_um < math.inf or self.own_um > self.positive_um:
            raise UsageError(
                f"own_um = {self.own_um}, positive_um = {self.positive_um}, ignore_um = {self.ignore_um}",
                next_step="give own_um of at most positive_um, and ignore_um of at least 0",
            )

    @property
    def reach_um(self) -> float:
        """Radius around a point labelled `ignore`."""
        return self.ignore_um or self.positive_um


@dataclass(frozen=True)
class SetConfig:
    """How many patches each network learns from."""

    easy_negatives: int = 100_000
    """Negatives of the easy set, drawn evenly from all candidates of the training slides."""
    hard_negatives: int = field(default=400_000, metadata=decides(HARD))
    """Negatives of each difficult set, drawn with replacement, in proportion to CNN3's probability."""
    hard_sets: int = field(default=10, metadata=decides(HARD) | CODE_ONLY)
    """k, the number of difficult sets, one a network of the ensemble."""
    even_share: float = field(default=0.0, metadata=decides(HARD))
    """Share of a difficult set's negatives that are drawn evenly instead; 0 as in the paper."""
    balance: float = 0.0
    """How far the negatives of each centre follow its positives in number: 0 takes candidates as they fall, 1
    gives every centre the same share of both classes, so that a network cannot tell them by the centre. In
    between, what does not follow the positives goes by the square root of the candidates."""
    anywhere: float = 0.0
    """Up to this share of the training slides' negatives lie anywhere, glass included, not at dark points; 0
    as in the paper. Places near a mitosis are left out; a slide with a tissue mask of its own gives them
    within it."""
    validation_positives: float = 0.1
    """Share of the positives of the validation slides that the validation set holds."""
    validation_negatives: float = 0.1
    """Share of their negatives."""
    side_px: int = 128
    """Side of the stored patches: the networks' 100 px and room for turning and shifting them."""
    mpp: float = WORKING_MPP
    """Resolution of the stored patches, in um/px."""
    seed: int = 0
    """Of all draws."""

    def __post_init__(self) -> None:
        _require_count("easy_negatives", self.easy_negatives, 1)
        _require_count("hard_negatives", self.hard_negatives, 1)
        _require_count("hard_sets", self.hard_sets, 1)
        _require_count("side_px", self.side_px, 2)
        _require_count("seed", self.seed, 0)
        _require_positive("mpp", self.mpp)
        for name, value in (("even_share", self.even_share), ("balance", self.balance)):
            if not 0 <= value <= 1:
                raise UsageError(f"{name} = {value} makes no sense", next_step="give a share from 0 to 1")
        if not 0 <= self.anywhere < 1:
            raise UsageError(f"anywhere = {self.anywhere} makes no sense", next_step="give a share below 1")
        _require_share("validation_positives", self.validation_positives)
        _require_share("validation_negatives", self.validation_negatives)


@dataclass(frozen=True)
class MiningConfig:
    """All that is told to the chain from slides to patch stores."""

    candidates: CandidateConfig = field(default_factory=CandidateConfig)
    """Where to look."""
    labels: LabelConfig = field(default_factory=LabelConfig)
    """What is positive."""
    sets: SetConfig = field(default_factory=SetConfig)
    """How many patches."""
    tissue: TissueConfig = field(default_factory=TissueConfig)
    """For slides that come without a tissue mask."""
    standardise: str = ""
    """Method that brings all slides to one stain first, `hsd` as in the paper, or none."""


def _require_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise UsageError(f"{name} = {value} makes no sense", next_step="give a number above 0")


def _require_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise UsageError(f"{name} = {value} makes no sense", next_step="give a number above 0, at most 1")


def _require_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} = {value} makes no sense", next_step=f"give a whole number from {least} on")
