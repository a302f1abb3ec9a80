"""Several sources of detections on the same slides: what each finds, and how far they lie apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase.base.errors import ResultWarnings, UsageError
from metaphase.detections.matching import NOBODY, match
from metaphase.detections.table import MITOSIS
from metaphase.evaluation.marks import Marked, MatchingConfig, SlideMatch
from metaphase.evaluation.metrics import (
    FEW_PATIENTS,
    RATES,
    BootstrapConfig,
    DetectionMetrics,
    Estimate,
    detection_metrics,
    draw_metrics,
    draws,
    estimate,
)
from metaphase.evaluation.mitoses import Located, doubts, locate, point_of

FALSE = "false"
"""Label of a position where a source has a detection and the labels have no mitosis."""


@dataclass(frozen=True)
class Source:
    """Detections of one program or model, from its threshold on."""

    name: str
    path: str
    threshold: float
    point: str
    """Where the threshold comes from."""
    marked: Marked
    metrics: DetectionMetrics


def column_of(name: str) -> str:
    """The column of a source's probabilities."""
    return f"{name}: probability"


@dataclass(frozen=True)
class SourcesResult:
    """How well each source agrees with the labels, and where they differ."""

    sources: tuple[Source, ...]
    differences: dict[tuple[str, str], dict[str, Estimate]]
    """Of each pair of sources the first's rates less the second's, with paired intervals."""
    positions: pd.DataFrame
    """`slide, x, y, label` (mitosis or false) and, as `NAME: probability`, what each source gives it, NaN
    below its threshold. A mitosis that nobody finds is there, too."""
    manifest: pd.DataFrame
    """Of the slides: `case, he, mpp` and what else is known."""
    settings: dict[str, Any]
    warnings: ResultWarnings

    def table(self) -> pd.DataFrame:
        """All metrics, one row a source."""
        return pd.DataFrame(
            [
                {"source": source.name, "threshold": source.threshold} | source.metrics.row()
                for source in self.sources
            ]
        )

    def found_by(self) -> pd.Series[Any]:
        """The names of the sources that find each position."""
        names = np.array([source.name for source in self.sources])
        found = self.positions[[column_of(name) for name in names]].notna().to_numpy()
        return pd.Series([tuple(names[row].tolist()) for row in found], self.positions.index)


def compare_sources(
    labels: str | Path,
    sources: Sequence[str | Path],
    *,
    thresholds: Sequence[float] = (),
    matching: MatchingConfig | None = None,
    bootstrap: BootstrapConfig | None = None,
) -> SourcesResult:
    """Compare sources of detections (results of `metaphase detect`, or files in any format) with labels and
    with each other.

    `thresholds` are one for all or one each; without them each source has the point `mitoses` that its tables
    state, and all detections of one that states none count.
    """
    matching, bootstrap = matching or MatchingConfig(), bootstrap or BootstrapConfig()
    if len(sources) < 2:
        raise UsageError("one source has nothing to be compared with", next_step="name two or more")
    if len(thresholds) not in (0, 1, len(sources)):
        raise UsageError(
            f"there are {len(thresholds)} thresholds for {len(sources)} sources",
            next_step="give --threshold once for all, or once for each in their order",
        )
    if wrong := [threshold for threshold in thresholds if not 0 <= threshold <= 1]:
        raise UsageError(f"the threshold is {wrong[0]:g}", next_step="give a probability from 0 to 1")
    given: list[float | None] = [*thresholds] or [None]
    given *= len(sources) // len(given)
    results = [
        _source(name, path, threshold, labels, matching, bootstrap)
        for name, path, threshold in zip(_names(sources), sources, given, strict=True)
    ]
    measured, located = [source for source, _ in results], [located for _, located in results]
    cohort = located[0].comparison.cohort
    tables = [
        _positions(case, [result.slides[row] for result in located], measured, matching)
        for row, case in enumerate(cohort.cases)
    ]
    warnings = dict.fromkeys(
        replace(warning, text=f"{source.name}: {warning.text}")
        for source, result in results
        for warning in (*result.comparison.warnings, *doubts(result.marked))
        if warning.code != FEW_PATIENTS
    )
    few = [warning for warning in doubts(located[0].marked) if warning.code == FEW_PATIENTS]
    settings = {"labels": str(labels)} | asdict(matching) | asdict(bootstrap)
    for source in measured:
        settings[source.name] = f"{source.path}, from {source.threshold:.6g} ({source.point})"
    del settings["threshold"]
    return SourcesResult(
        tuple(measured),
        _differences(measured, bootstrap),
        pd.concat(tables, ignore_index=True),
        cohort.manifest,
        settings,
        (*warnings, *few),
    )


def _source(
    name: str,
    path: str | Path,
    threshold: float | None,
    labels: str | Path,
    matching: MatchingConfig,
    bootstrap: BootstrapConfig,
) -> tuple[Source, Located]:
    """One source from its threshold on, and all its detections beside the labels."""
    own = threshold is None
    located = locate(labels, path, matching=matching, every=not own)
    point = point_of(path, located.comparison.cohort, own=own)
    if point is not None:
        threshold, origin = point.delta, point.source or "of its card"
    else:
        threshold, origin = (0.0, "all of it") if threshold is None else (threshold, "given")
    metrics = detection_metrics(located.marked, threshold, bootstrap)
    return Source(name, str(path), threshold, origin, located.marked, metrics), located


def _names(sources: Sequence[str | Path]) -> list[str]:
    """What each is called: its file or folder, or its path where two would be called alike."""
    short = [Path(path).resolve().stem for path in sources]
    times = Counter(short)
    names = [str(path) if times[name] > 1 else name for path, name in zip(sources, short, strict=True)]
    for name, several in Counter(names).items():
        if several > 1:
            raise UsageError("is named twice", path=name, next_step="compare it with another source")
    return names


def _differences(
    sources: Sequence[Source], bootstrap: BootstrapConfig
) -> dict[tuple[str, str], dict[str, Estimate]]:
    """Each draw of patients is the same for all sources, so what they have in common cancels out."""
    times = draws(sources[0].marked.patients, bootstrap)
    drawn = {source.name: draw_metrics(source.marked, source.threshold, times) for source in sources}

    def difference(first: Source, second: Source, rate: str) -> Estimate:
        value = getattr(first.metrics, rate).value - getattr(second.metrics, rate).value
        return estimate(value, drawn[first.name][rate] - drawn[second.name][rate], bootstrap)

    return {
        (first.name, second.name): {rate: difference(first, second, rate) for rate in RATES}
        for first, second in combinations(sources, 2)
    }


def _positions(
    case: str, slides: Sequence[SlideMatch], sources: Sequence[Source], matching: MatchingConfig
) -> pd.DataFrame:
    """The mitoses of a slide and what is false on it, with the probability that each source gives them.

    False positives of two sources within the radius are one position, that of the first source.
    """
    mpp, truths = slides[0].mpp, len(slides[0].truths)
    places, given = slides[0].truths, np.full((len(sources), truths), np.nan)
    for row, slide, source in zip(given, slides, sources, strict=True):
        counted = slide.probability >= source.threshold
        right = counted & (slide.matched != NOBODY)
        row[slide.matched[right]] = slide.probability[right]
    for number, (slide, source) in enumerate(zip(slides, sources, strict=True)):
        wrong = (slide.probability >= source.threshold) & (slide.matched == NOBODY)
        positions, probability = slide.positions[wrong], slide.probability[wrong]
        place = match(
            positions * mpp, probability, places[truths:] * mpp, matching.radius_um, matching.method
        )
        new = place == NOBODY
        place[new] = len(places) - truths + np.arange(new.sum())
        places = np.concatenate([places, positions[new]])
        given = np.pad(given, ((0, 0), (0, int(new.sum()))), constant_values=np.nan)
        given[number, truths + place] = probability
    label = np.where(np.arange(len(places)) < truths, MITOSIS, FALSE)
    table = pd.DataFrame({"slide": case, "x": places[:, 0], "y": places[:, 1], "label": label})
    return table.assign(**{column_of(source.name): row for source, row in zip(sources, given, strict=True)})
