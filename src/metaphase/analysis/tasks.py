"""The three TUPAC tasks of a data set: tuned on its training part and answered for its test part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from metaphase.analysis.scoring import proliferation_at, read_cases, tables_in
from metaphase.base.arrays import Integers, Mask
from metaphase.base.errors import ResultWarning
from metaphase.base.files import write_text
from metaphase.base.tables import TableError, case_folder, flat_case, named, write_manifest, write_table
from metaphase.counting.specimen import grade_of
from metaphase.detections.files import read_detections
from metaphase.detections.table import SUMMARY
from metaphase.evaluation.comparison import load_truth
from metaphase.evaluation.grades import evaluate_scores
from metaphase.evaluation.marks import MatchingConfig
from metaphase.evaluation.metrics import (
    BootstrapConfig,
    Estimate,
    best_threshold,
    curve,
    detection_metrics,
)
from metaphase.evaluation.mitoses import evaluate_mitoses, locate
from metaphase.evaluation.operating_points import GRID, SEARCH, read_search
from metaphase.evaluation.tuning import (
    COUNT_PARTS,
    delta_for_spearman,
    thetas_for_kappa,
    tune_count,
    tune_mitoses,
)
from metaphase.reports.evaluation import Report, text, write_report
from metaphase.reports.pages import TextTable

TEST_SLIDE = "TUPAC-TE-"
UNKNOWN = Estimate(float("nan"))
FOLDS = 5
NOTE = (
    "Top 1 to 3 and paper: on the test set of the challenge. Tuned: the highest value on the training part. "
    "Held out: there, each fifth of the patients at thresholds chosen on the others."
)


@dataclass(frozen=True)
class Task:
    """A task: what the best three of the challenge and the paper reached on its test set, and what this."""

    dataset: str
    truth: str
    metric: str
    top_1: float
    top_2: float
    top_3: float
    paper: Estimate
    tuned: float | None = None
    """On the training part, where thresholds were chosen."""
    held_out: Estimate = UNKNOWN
    """There, each fifth of the patients at thresholds chosen on the others."""
    test: Estimate = UNKNOWN
    """On the test part, where its truth is known."""


TASKS = {
    "grade": Task("TUPAC-test", "grade", "kappa", 0.567, 0.534, 0.462, Estimate(0.471, 0.340, 0.603)),
    "proliferation": Task(
        "TUPAC-test", "proliferation score", "Spearman", 0.617, 0.516, 0.503, Estimate(0.519, 0.477, 0.559)
    ),
    "mitoses": Task("TUPAC-aux-test", "mitosis location", "F1", 0.652, 0.648, 0.616, Estimate(0.480)),
}
"""Table IV of the paper."""


def evaluate_tasks(truth: Path, found: Path, folder: Path) -> tuple[TextTable, list[ResultWarning]]:
    """Tune on the splits train and aux-train, answer for test and aux-test, and write table IV.

    `truth` is the folder of a data set, `found` the results of its slides. Of a data set without aux-train
    the fields are those of train and test, too. `card.json` holds what was tuned; `submission.csv` and
    `task3` are the answers for the test part, as TUPAC takes them.
    """
    cohort, points = load_truth(truth)
    (folder / "card.json").unlink(missing_ok=True)
    tasks, warnings = dict[str, Task](), list[ResultWarning]()
    if set(COUNT_PARTS) <= set(cohort.manifest):
        slides = cohort.manifest[cohort.manifest["split"].isin(("train", "test"))]
        there = np.array(
            [(case_folder(found, flat_case(case)) / SUMMARY).is_file() for case in slides["case"]], bool
        )
        if absent := list(slides["case"][~there]):
            said = f"{len(absent)} slides without results are left out: {named(absent)}"
            warnings.append(ResultWarning("no-prediction", said))
        last = max(_numbers(slides["case"][slides["split"] == "test"]), default=0)
        tasks |= _of_slides(slides[there], found, folder, last)
    if points.slides:
        splits = set(cohort.manifest["split"])
        tasks["mitoses"] = _of_fields(truth, found, folder, "aux-" if "aux-train" in splits else "")
    if not tasks:
        raise TableError("holds neither grades nor points", path=truth, next_step="check the data set")
    columns = [name.replace("_", " ") for name in vars(TASKS["grade"])]
    rows = [tuple(text(value) for value in vars(task).values()) for task in tasks.values()]
    table = TextTable("Table IV", columns, rows, NOTE)
    reached = {}
    for task in tasks.values():
        reached[task.metric] = task.held_out if np.isnan(task.test.value) else task.test
    summary = f"{found} against {truth}; thresholds chosen on the training part alone."
    report = Report("The tasks of TUPAC", summary, reached, (table,), (), {}, tuple(warnings))
    write_report(folder, report, {"table4": pd.DataFrame(rows, columns=columns)}, tasks)
    return table, warnings


def _folds(patients: Sequence[str]) -> list[Mask]:
    """Which slides are in each fold; all of a patient are in the same."""
    fold = np.unique(patients, return_inverse=True)[1] % FOLDS
    return [fold == number for number in np.unique(fold)]


# ---- tasks 1 and 2: delta by Spearman, thetas by kappa at that delta ----


def _of_slides(slides: pd.DataFrame, found: Path, folder: Path, last: int) -> dict[str, Task]:
    """`last` is the number of the last test slide, be there results of it or not."""
    manifest, counts, card, crossed = (
        folder / name for name in ("slides.csv", "counts.parquet", "card.json", "held-out.csv")
    )
    write_manifest(manifest, slides)
    results = [case_folder(found, flat_case(case)) for case in slides["case"]]
    cases = read_cases(results, manifest=manifest)
    table = proliferation_at(cases, GRID[max(case.kept_from for case in cases) <= GRID].tolist())
    table.attrs[SEARCH] = read_search(tables_in(results))
    write_table(counts, table)
    point = tune_count(manifest, counts, card, split="train")
    wide = table.pivot(index="case", columns="threshold", values="proliferation")
    tested = slides[slides["split"] == "test"]
    scores = wide.loc[tested["case"], point.delta]
    _submit(scores, grade_of(scores, point.theta1 or 0, point.theta2 or 0), folder / "submission.csv", last)
    write_table(crossed, _held_out(wide, slides[slides["split"] == "train"]))
    done = dict[str, Task]()
    for part, tuned in zip(COUNT_PARTS, (point.value, point.kappa), strict=True):
        held_out = evaluate_scores(part, manifest, crossed, split="train", skip_missing=True).overall
        done[part] = replace(TASKS[part], tuned=tuned, held_out=held_out)
        if tested[part].notna().any():
            test = evaluate_scores(part, manifest, counts, split="test", card=card).overall
            done[part] = replace(done[part], test=test)
    return dict(sorted(done.items()))


def _held_out(wide: pd.DataFrame, train: pd.DataFrame) -> pd.DataFrame:
    """Score and grade of each case, at delta and thetas of the other folds."""
    train = train.dropna(subset=list(COUNT_PARTS)).set_index("case")
    wide, parts = wide.loc[train.index], []
    for own in _folds(list(train["patient"])):
        at = {float(str(delta)): scores[~own].to_numpy() for delta, scores in wide.items()}
        delta, _ = delta_for_spearman(at, train["proliferation"][~own].to_numpy(float))
        theta1, theta2, _ = thetas_for_kappa(at[delta], train["grade"][~own].to_numpy(np.int64))
        scores = wide.loc[own, delta]
        parts.append(pd.DataFrame({"proliferation": scores, "grade": grade_of(scores, theta1, theta2)}))
    return pd.concat(parts).reset_index()


def _numbers(cases: Iterable[str]) -> list[int]:
    return [int(case.removeprefix(TEST_SLIDE)) for case in cases if re.fullmatch(TEST_SLIDE + r"\d+", case)]


def _submit(scores: pd.Series[float], grades: Integers, path: Path, last: int) -> None:
    """Grade and score of the test slides; line N is `TUPAC-TE-N`, -1 where nothing is known."""
    numbers = _numbers(scores.index)
    if not numbers or len(numbers) < len(scores):
        return
    table = pd.DataFrame({"grade": grades, "score": scores.to_numpy()}, index=numbers)
    lines = table.reindex(range(1, last + 1), fill_value=-1)
    write_text(path, lines.to_csv(index=False, header=False))


# ---- task 3: delta by F1 ----


def _of_fields(truth: Path, found: Path, folder: Path, fields: str) -> Task:
    card, train, test = folder / "card.json", f"{fields}train", f"{fields}test"
    point = tune_mitoses(truth, found, card, split=train)
    task = replace(TASKS["mitoses"], tuned=point.value, held_out=_held_out_f1(truth, found, train))
    cohort, points = load_truth(truth)
    tested = cohort.manifest[cohort.manifest["split"] == test]
    if set(tested["case"]) & set(points.slides):
        task = replace(task, test=evaluate_mitoses(truth, found, split=test, card=card).overall.f1)
    every = cohort.rename_slides(read_detections(found, every=True)).at_least(point.delta).table
    for case, he in zip(tested["case"], map(Path, tested["he"]), strict=True):
        answers = every.loc[every["slide"] == case, ["y", "x", "probability"]]
        path = folder / "task3" / he.parent.name / f"{he.stem}.csv"
        write_text(path, answers.to_csv(index=False, header=False))
    return task


def _held_out_f1(truth: Path, found: Path, split: str) -> Estimate:
    """F1 where each fold has the threshold of the others."""
    marked = locate(truth, found, split=split, matching=MatchingConfig(), every=True).marked
    deltas = np.zeros(len(marked.cases))
    for own in _folds(marked.patients):
        deltas[own], _ = best_threshold(curve(marked.of_slides(~own)))
    kept = marked.probability >= deltas[marked.slide]
    parts = {name: getattr(marked, name)[kept] for name in ("probability", "found", "distance_um", "slide")}
    return detection_metrics(replace(marked, **parts), 0.0, BootstrapConfig()).f1
