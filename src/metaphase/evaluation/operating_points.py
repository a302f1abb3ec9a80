"""Operating points of a model card: saved, loaded, chosen, and refused on the cases that chose them.

Also the slides of a split with what is to be found on them (`Bench`), what a network finds there, and the
rule that chooses a threshold for laboratories of which most gave crops of mitoses only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pydantic import TypeAdapter, ValidationError

from metaphase.base.arrays import Floats
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import read_json
from metaphase.base.later import pandas as pd
from metaphase.base.tables import TableError, named, table_attributes
from metaphase.detections.points import (
    SHARED_BY_POINTS,
    OperatingPoint,
    OperatingPoints,
    PointName,
    UsedPoints,
    plain_point,
    points_of,
    refuse_two_searches,
)
from metaphase.detections.table import (
    IGNORE,
    MITOSIS,
    OPERATING_POINTS,
    SUMMARY,
    DetectionSet,
    PeakMethod,
    detection_set,
)
from metaphase.evaluation.comparison import Cohort, compare, complete
from metaphase.evaluation.marks import Marked, MatchingConfig, mark, matches
from metaphase.evaluation.metrics import (
    THRESHOLD_RULES,
    BootstrapConfig,
    Estimate,
    ThresholdRule,
    curve,
    draws,
    estimate,
    f1_of_counts,
    ratio,
    slide_counts,
)

SECTION = "thresholds"
TEST_SPLIT = "test"
SEARCH = "search"
"""What tables state of the search: `method` and `floor`."""
OWN_FILES = ("search", "candidates", "detections")
"""Stems of the files with points that `metaphase detect` writes for a slide."""
_POINTS: TypeAdapter[dict[PointName, OperatingPoint]] = TypeAdapter(OperatingPoints)


def save_point(path: str | Path, *new: OperatingPoint, dropped: Sequence[PointName] = ()) -> None:
    """Write points into the card's section `thresholds`, and remove those that are dropped; all else stays.

    A new point keeps the former numbers of the search (`suppress_um`, `smooth_um`) where it states none.
    Points that would need two searches of a slide are refused.
    """
    path = Path(path)
    card = _load(path) if path.exists() else {}
    points = {name: point for name, point in _points_in(card, path).items() if name not in dropped}
    for point in new:
        if before := points.get(point.name):
            kept = {name: getattr(before, name) for name in SHARED_BY_POINTS if getattr(point, name) is None}
            point = point.model_copy(update=kept)
        points[point.name] = point
    try:
        refuse_two_searches(points)
    except ValueError as error:
        raise TableError(
            str(error),
            path=path,
            next_step="detect with the card's own suppress_um and smooth_um (--set), or tune both again",
        ) from error
    card[SECTION] = {name: plain_point(point) for name, point in points.items()}
    write_text(path, json.dumps(card, indent=2, ensure_ascii=False) + "\n")


def load_point(path: str | Path, name: PointName) -> OperatingPoint:
    """The point of that name in a card."""
    point = _points_in(_load(Path(path)), path).get(name)
    if point is None:
        raise TableError(
            f"the model card has no operating point for {name}",
            path=path,
            next_step=f"run `metaphase evaluate tune {name}` on a tuning set first",
        )
    return point


def load_points(path: str | Path) -> UsedPoints:
    """Both points of a card, complete; a card that holds none is an error."""
    points = _points_in(_load(Path(path)), path)
    if not points.keys() & {"mitoses", "count"}:
        raise TableError(
            "the model card has no operating point for mitoses or count",
            path=path,
            next_step="run `metaphase evaluate tune` on a tuning set first",
        )
    return points_of(points)


def _points_in(card: Mapping[str, Any], path: str | Path) -> dict[PointName, OperatingPoint]:
    try:
        return _POINTS.validate_python(card.get(SECTION, {}))
    except ValidationError as error:
        first = error.errors()[0]
        raise TableError(
            f"its operating points are invalid ({'.'.join(map(str, first['loc']))}: {first['msg']})",
            path=path,
            next_step=f"correct the section {SECTION}, or tune again (`metaphase evaluate tune`)",
        ) from error


def read_point(tables: Sequence[Path], name: PointName) -> OperatingPoint | None:
    """The operating point that results of `metaphase detect` carry; None where none does.

    A Parquet table carries them itself; of other files in the folder of a slide, its summary tells. Tables of
    different models or points, or of which only some state one, are refused.
    """
    points: list[tuple[str, OperatingPoint] | None] = []
    for table in tables:
        if (stated := _stated_in(table, name)) not in points:
            points.append(stated)
    if len(points) > 1:
        described = sorted(f"{p[1].delta:g} of the model {p[0]}" if p else "none stated" for p in points)
        raise UsageError(
            f"the tables were made at different operating points ({'; '.join(described)})",
            path=tables[0],
            next_step="evaluate them separately, or give one --threshold for all",
        )
    return points[0][1] if points and points[0] else None


def _stated_in(table: Path, name: PointName) -> tuple[str, OperatingPoint] | None:
    """The model and the point that a table states."""
    stated: Any = read_statement(table)
    if stated is None:
        return None
    try:
        return str(stated["model"]), OperatingPoint.model_validate(stated[name] | {"name": name})
    except (TypeError, KeyError, ValidationError) as error:
        raise TableError(
            f"states no operating point for {name} that can be read",
            path=table,
            next_step="run `metaphase detect` again, which costs seconds, or give --threshold",
        ) from error


def read_statement(table: Path) -> dict[str, Any] | None:
    """Model and operating points that a table carries, or the Parquet tables of its slide, or the summary."""
    stems = (table.stem, *OWN_FILES) if table.stem in OWN_FILES else ()
    beside = [table.parent / f"{stem}.parquet" for stem in stems]
    carried = (table_attributes(path).get(OPERATING_POINTS) for path in (table, *beside))
    return next(filter(None, carried), None) or summary_beside(table).get(OPERATING_POINTS)


def read_search(tables: Sequence[Path], floor: float = 0.0) -> dict[str, Any]:
    """How all detections of tables from `floor` on were taken from the probability map; nothing where they do
    not agree. Tables of counts carry the same."""
    statements = [
        table_attributes(path).get(SEARCH) or (read_statement(path) or {}).get(SEARCH) for path in tables
    ]
    stated = statements[0] if statements else None
    if not isinstance(stated, dict) or statements.count(stated) < len(statements):
        return {}
    method, kept = stated.get("method"), stated.get("floor")
    if method not in get_args(PeakMethod) or not isinstance(kept, float) or not 0 <= kept <= 1:
        return {}
    return {"method": method, "floor": max(floor, kept)}


def summary_beside(table: Path) -> dict[str, Any]:
    """What the summary of a slide's folder says about its own files; nothing about others."""
    if table.stem not in OWN_FILES:
        return {}
    try:
        return read_json(table.parent / SUMMARY, "no summary", next_step="")
    except MetaphaseError:
        return {}


def refuse_reuse(tuned: OperatingPoint, cohort: Cohort) -> None:
    """Refuse to test on slides or patients that a point was tuned on."""
    patients, cases = set(tuned.patients), set(tuned.cases)
    rows = zip(cohort.manifest["case"], cohort.manifest["patient"], strict=True)
    shared = [case for case, patient in rows if case in cases or patient in patients]
    if shared:
        raise UsageError(
            f"{len(shared)} slides were used to tune the operating point {tuned.name}: {named(shared)}",
            path=cohort.source,
            next_step="test on other patients, or choose a split with --split",
        )


def refuse_test_slides(cohort: Cohort) -> None:
    """Refuse to tune on slides that the manifest marks as test."""
    reserved = cohort.manifest["case"][cohort.manifest["split"].str.lower() == TEST_SPLIT]
    if len(reserved):
        raise UsageError(
            f"{len(reserved)} slides are marked {TEST_SPLIT} and cannot be used to tune: {named(reserved)}",
            path=cohort.source,
            next_step="choose the tuning slides with --split",
        )


def threshold_of_several(
    fields: Marked, crops: Sequence[Marked] = (), others: Sequence[Marked] = ()
) -> tuple[float, float]:
    """The threshold of the highest F1 that several laboratories lead one to expect, and that F1.

    Complete `fields` of one laboratory say how many mitoses there are per mm2 and, together with `others`
    (complete but for their mitoses), how many false positives. Recall is the mean over these fields and
    each slide of `crops`, which show mitoses and hardly any other tissue. With `fields` alone it is
    `best_threshold`, the highest of equals. NaN without detections, or where the fields have no mitoses.
    Areas must be known.
    """
    thresholds = np.unique(np.concatenate([part.probability for part in (fields, *crops)]))[::-1]
    complete = (fields, *others)
    false = np.sum([slide_counts(part, thresholds)[1].sum(axis=0) for part in complete], axis=0)
    false_per_mm2 = ratio(false, sum(part.area_mm2.sum() for part in complete))
    there_per_mm2 = ratio(fields.truths.sum() or np.nan, fields.area_mm2.sum())
    rows = [ratio(slide_counts(fields, thresholds)[0].sum(axis=0, keepdims=True), fields.truths.sum())]
    rows += [ratio(slide_counts(part, thresholds)[0], part.truths[:, None]) for part in crops]
    recalls = np.concatenate(rows)
    known = ~np.isnan(recalls).any(axis=1)  # those without mitoses say nothing
    recall = ratio(recalls[known].sum(axis=0), known.sum())
    f1 = np.round(f1_of_counts(recall * there_per_mm2, false_per_mm2, there_per_mm2), 12)
    if np.isnan(f1).all():
        return float("nan"), float("nan")
    best = int(np.nanargmax(f1))
    return float(thresholds[best]), float(f1[best])


def _load(path: Path) -> dict[str, Any]:
    return read_json(path, "no model card", next_step="give a JSON model card", error=TableError)


GRID = np.round([*np.linspace(0.01, 0.99, 99), 0.992, 0.994, 0.996, 0.998, 0.999, 0.9995], 4)
"""Thresholds of the F1 curves; finer at the end, where networks that saw balanced batches are cut."""
Found = Mapping[str, "pd.DataFrame"]
"""Detections `x, y, probability` of each case."""


@dataclass(frozen=True)
class Bench:
    """Slides of one split with their mitoses."""

    cohort: Cohort
    truth: DetectionSet
    matching: MatchingConfig

    def mark(self, found: Found) -> Marked:
        """Mark each detection true or false; `found` must cover every slide of the split."""
        parts = [table.assign(slide=case) for case, table in found.items()]
        by_folder = detection_set(pd.concat(parts, ignore_index=True), tuple(found))
        predictions = self.cohort.rename_slides(by_folder)  # folders are not called as every case is
        comparison = compare(self.cohort, self.truth, predictions)
        return mark(comparison.cohort, tuple(matches(comparison, self.matching)), self.matching)

    def centres(self) -> list[str]:
        """Laboratory of each slide, in the order of the marks."""
        return [str(centre) or "unknown" for centre in self.cohort.manifest["laboratory"]]


def bench_of(cohort: pd.DataFrame, reference: pd.DataFrame, split: str, matching: MatchingConfig) -> Bench:
    """The slides of a split, ready to compare detections with."""
    slides = complete(Cohort(cohort[cohort["split"] == split].reset_index(drop=True), f"split {split}"))
    own = reference[reference["case"].isin(slides.cases) & reference["label"].isin((MITOSIS, IGNORE))]
    truth = detection_set(own.rename(columns={"case": "slide"}), slides.cases, "reference standard")
    return Bench(slides, truth, matching)


def measure(
    validation: Marked, test: Marked, centres: list[str], rule: ThresholdRule = "steady"
) -> dict[str, Any]:
    """Plain values of one network, from which its tables and curves are made.

    Counts a slide at the threshold of the validation slides that the rule takes, and on the grid of them.
    """
    chosen, reached = THRESHOLD_RULES[rule](curve(validation))
    return measure_at(0.5 if np.isnan(chosen) else chosen, reached, test, centres)


def measure_at(chosen: float, reached: float, test: Marked, centres: list[str]) -> dict[str, Any]:
    """The same at a threshold that was chosen elsewhere, where F1 was `reached`."""
    true, false = slide_counts(test, np.array([chosen]))
    rows = pd.DataFrame({"case": test.cases, "patient": test.patients, "centre": centres})
    rows = rows.assign(truths=test.truths, true=true[:, 0].astype(int), false=false[:, 0].astype(int))
    steps = slide_counts(test, GRID)
    return {
        "threshold": chosen,
        "validation_f1": None if np.isnan(reached) else float(reached),
        "slides": rows.to_dict("list"),
        "curve_true": steps[0].astype(int).tolist(),
        "curve_false": steps[1].astype(int).tolist(),
    }


@dataclass(frozen=True)
class BenchCounts:
    """The measured values of one network, or of several seeds of one experiment, over some test slides."""

    true: Floats
    """Found mitoses (networks, slides) at each network's own validation threshold."""
    false: Floats
    truths: Floats
    """Mitoses to find (slides)."""
    curve_true: Floats
    """Found mitoses (networks, slides, thresholds) on `GRID`."""
    curve_false: Floats
    patients: tuple[str, ...]

    def f1_at_validation(self, bootstrap: BootstrapConfig) -> Estimate:
        """Mean over the networks, with the interval of drawing slides."""
        return estimate(float(np.mean(self.each_f1())), self.drawn(bootstrap), bootstrap)

    def highest_f1(self, bootstrap: BootstrapConfig) -> Estimate:
        """The paper's figure: each network at its best threshold of the grid, chosen on these very slides."""
        best = np.nan_to_num(self.curves()).argmax(axis=1)
        at = np.arange(len(best)), slice(None), best
        chosen = replace(self, true=self.curve_true[at], false=self.curve_false[at])
        return chosen.f1_at_validation(bootstrap)

    def curves(self) -> Floats:
        """F1 by network and threshold, an array (networks, thresholds)."""
        return f1_of_counts(self.curve_true.sum(axis=1), self.curve_false.sum(axis=1), self.truths.sum())

    def each_f1(self) -> list[float]:
        """F1 of each network at its validation threshold."""
        values: list[float] = f1_of_counts(
            self.true.sum(axis=1), self.false.sum(axis=1), self.truths.sum()
        ).tolist()
        return values

    def drawn(self, bootstrap: BootstrapConfig) -> Floats:
        """Mean F1 at the validation thresholds in every draw of slides; the same draws for every network."""
        times = draws(self.patients, bootstrap)
        f1 = f1_of_counts(self.true @ times.T, self.false @ times.T, times @ self.truths)
        return np.asarray(f1.mean(axis=0))


def counts_of(results: list[dict[str, Any]], centres: set[str] | None = None) -> BenchCounts:
    """Measured values of networks tested on the same slides, on those of some laboratories or all."""
    slides = pd.DataFrame(results[0]["slides"])
    chosen = slides["centre"].isin(centres if centres is not None else set(slides["centre"])).to_numpy()

    def stacked(values: list[Any]) -> Floats:
        return np.asarray(values, np.float64)[:, chosen]

    return BenchCounts(
        true=stacked([result["slides"]["true"] for result in results]),
        false=stacked([result["slides"]["false"] for result in results]),
        truths=slides["truths"].to_numpy(np.float64)[chosen],
        curve_true=stacked([result["curve_true"] for result in results]),
        curve_false=stacked([result["curve_false"] for result in results]),
        patients=tuple(slides["patient"].astype(str)[chosen]),
    )
