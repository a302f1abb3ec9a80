"""From several observers' answers to labels, how well they agree, and whether more labels would help."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit

from metaphase.base.arrays import Floats, Integers
from metaphase.base.errors import UsageError
from metaphase.labels.observers.project import Project
from metaphase.labels.observers.store import Given

# ---- how well observers agree beyond chance ----


def winners(votes: Integers, agree: int) -> Integers:
    """Index of the answer that at least `agree` observers gave, or -1: too few agree, or two answers tie.

    `votes` counts the observers by item (row) and answer (column).
    """
    most = votes.max(axis=1)
    alone = (votes == most[:, None]).sum(axis=1) == 1
    return np.where((most >= agree) & alone, votes.argmax(axis=1), -1)


def count_votes(sheet: pd.DataFrame, answers: Sequence[str]) -> Integers:
    """Votes by item and answer, from a sheet with a row an item and a column an observer."""
    cells = sheet.to_numpy(dtype=object)
    return np.stack([(cells == answer).sum(axis=1) for answer in answers], axis=1).astype(np.int64)


DRAWS = 1000
"""How often items are drawn for the interval of a kappa."""


class Kappa(NamedTuple):
    """Agreement beyond chance, with its 95 % interval; NaN where chance leaves nothing open."""

    value: float
    low: float
    high: float


def cohen_kappa(first: npt.ArrayLike, second: npt.ArrayLike) -> Kappa:
    """Unweighted kappa of two observers' answers to the same items."""
    one, two = np.asarray(first), np.asarray(second)
    answers = np.union1d(one, two)
    count = len(answers)
    cells = np.searchsorted(answers, one) * count + np.searchsorted(answers, two)
    counts = np.bincount(cells.astype(np.int64), minlength=count**2)
    of_first, of_second = np.repeat(np.eye(count), count, axis=0), np.tile(np.eye(count), (count, 1))
    return _kappa(counts, (of_first * of_second).sum(axis=1), of_first, of_second)


def fleiss_kappa(votes: Integers) -> Kappa:
    """Fleiss' kappa; each row holds the votes of one item, all rows of the same number of observers."""
    patterns, counts = np.unique(votes, axis=0, return_counts=True)
    observers = votes.sum(axis=1).max(initial=0)
    if observers < 2:
        return Kappa(math.nan, math.nan, math.nan)
    alike = (patterns * (patterns - 1)).sum(axis=1) / (observers * (observers - 1))
    return _kappa(counts, alike, patterns / observers, patterns / observers)


def _kappa(counts: Integers, alike: Floats, first: Floats, second: Floats) -> Kappa:
    """The kappa of so many items of each kind, and its interval by drawing the items again and again.

    Of each kind, `alike` is the share of pairs of answers that are the same, and `first` and `second` (kinds,
    answers) are the shares of the answers of either side, which would meet by chance.
    """
    total = int(counts.sum())
    if not total:
        return Kappa(math.nan, math.nan, math.nan)
    drawn = np.random.default_rng(0).multinomial(total, counts / total, DRAWS)
    shares = np.vstack([counts, drawn]) / total
    expected = ((shares @ first) * (shares @ second)).sum(axis=1)
    undefined = expected >= 1 - 1e-12
    kappas = np.where(undefined, np.nan, (shares @ alike - expected) / np.where(undefined, 1, 1 - expected))
    defined = kappas[1:][~undefined[1:]]
    low, high = np.percentile(defined, (2.5, 97.5)) if len(defined) else (math.nan, math.nan)
    return Kappa(float(kappas[0]), float(low), float(high))


def pairwise_kappas(sheet: pd.DataFrame) -> pd.DataFrame:
    """Each pair of observers: how many items both answered, the share answered alike, and Cohen's kappa
    with its interval."""
    rows = []
    for one, two in combinations(sheet.columns, 2):
        both = sheet[(sheet[one] != "") & (sheet[two] != "")]
        first, second = (both[name].to_numpy(dtype=str) for name in (one, two))
        alike = float((first == second).mean()) if len(both) else math.nan
        rows.append((one, two, len(both), alike, *cohen_kappa(first, second)))
    return pd.DataFrame(rows, columns=["observer", "other", "items", "alike", "kappa", "low", "high"])


# ---- from several observers' answers to labels ----

AGREE = 3
"""Observers who must agree; the paper asks 3 of 4."""


@dataclass(frozen=True)
class Pooled:
    """How alike observers answered once answers that count together are one (`Answer.counts_as`)."""

    pairs: pd.DataFrame
    """As `Merged.pairs`."""
    fleiss: Kappa


@dataclass(frozen=True)
class Merged:
    """Labels, and what they rest on."""

    agree: int
    labels: pd.DataFrame
    """One row an item: item, label (empty where too few agree), agreed (True or False), votes_<answer>. An
    answer with too few votes of its own stands as what it counts as."""
    sheet: pd.DataFrame
    """Answers by item (rows) and observer (columns), empty text where there is none."""
    disagreements: pd.DataFrame
    """Items answered differently, the most divided first, with everybody's answer."""
    observers: pd.DataFrame
    """observer, answers, seconds (median), minutes, per_hour, changes."""
    pairs: pd.DataFrame
    """observer, other, items, alike, kappa (Cohen's, unweighted), and low and high of its 95 % interval."""
    fleiss: Kappa
    """Fleiss' kappa over `complete` items."""
    complete: int
    """Items that all observers answered."""
    pooled: Pooled | None = None
    """The same for the pooled question, where answers of the project count together."""

    @property
    def labelled(self) -> int:
        """Items with a label."""
        return int((self.labels["label"] != "").sum())


def merge_answers(
    project: Project, given: Sequence[Given], agree: int = AGREE, changes: dict[str, int] | None = None
) -> Merged:
    """Labels of all items, those nobody answered included, from the answers that stand."""
    sheet = answer_sheet(project, given)
    _check_agree(agree, list(sheet.columns), project)
    votes = count_votes(sheet, project.answer_names)
    full = votes.sum(axis=1) == sheet.shape[1]
    complete = votes[full]
    return Merged(
        agree=agree,
        labels=_labels(project, votes, agree),
        sheet=sheet,
        disagreements=_disagreements(project, sheet, votes),
        observers=_speeds(given, changes or {}),
        pairs=pairwise_kappas(sheet),
        fleiss=fleiss_kappa(complete),
        complete=len(complete),
        pooled=_pooled(project, sheet, full) if project.counted_as != project.answer_names else None,
    )


def _pooled(project: Project, sheet: pd.DataFrame, full: Truths) -> Pooled:
    counted = dict(zip(project.answer_names, project.counted_as, strict=True))
    asked = sheet.replace(counted)
    votes = count_votes(asked, sorted(set(counted.values())))[full]
    return Pooled(pairwise_kappas(asked), fleiss_kappa(votes))


def answer_sheet(project: Project, given: Sequence[Given]) -> pd.DataFrame:
    """Answers by item, in the project's order, and observer, by name; empty text where there is none."""
    rows = [(answer.item, answer.observer, answer.answer) for answer in given]
    frame = pd.DataFrame(rows, columns=["item", "observer", "answer"])
    sheet = frame.pivot(index="item", columns="observer", values="answer").rename_axis(columns=None)
    return sheet.reindex(pd.Index(project.by_name, name="item")).astype(object).fillna("")


def divided_items(given: Sequence[Given]) -> set[str]:
    """Items that were answered differently."""
    answers = {(answer.item, answer.answer) for answer in given}
    return {item for item, count in Counter(item for item, _ in answers).items() if count > 1}


def _labels(project: Project, votes: Integers, agree: int) -> pd.DataFrame:
    names = project.answer_names
    target = np.array([names.index(name) for name in project.counted_as])
    together = votes @ np.eye(len(names), dtype=np.int64)[target]
    group = winners(together, agree)
    own = winners(np.where(target == group[:, None], votes, 0), agree)
    label = np.array([*names, ""], dtype=object)[np.where(own >= 0, own, group)]  # -1 takes the last
    frame = pd.DataFrame({"item": list(project.by_name), "label": label, "agreed": group >= 0})
    for position, name in enumerate(project.answer_names):
        frame[f"votes_{name}"] = votes[:, position]
    return frame


def _disagreements(project: Project, sheet: pd.DataFrame, votes: Integers) -> pd.DataFrame:
    """The most divided first: by how little ahead the first answer is, then by how many answered."""
    ranked = np.sort(votes, axis=1)
    divided = np.flatnonzero(ranked[:, -2] > 0)
    lead, total = ranked[divided, -1] - ranked[divided, -2], votes[divided].sum(axis=1)
    rows = divided[np.lexsort((divided, -total, lead))]
    items = [project.items[row] for row in rows]
    frame = pd.DataFrame(
        [(item.name, item.case, str(item.slide), item.x, item.y) for item in items],
        columns=["item", "case", "slide", "x", "y"],
    )
    answers = sheet.iloc[rows].reset_index(drop=True).add_prefix("answer_")
    return pd.concat([frame, answers], axis=1)


def _speeds(given: Sequence[Given], changes: dict[str, int]) -> pd.DataFrame:
    frame = pd.DataFrame(
        [(answer.observer, answer.seconds) for answer in given], columns=["observer", "seconds"]
    )
    seconds = frame.groupby("observer")["seconds"]
    table = seconds.agg(answers="size", seconds="median", minutes="sum").reset_index()
    table["minutes"] /= 60
    table["per_hour"] = (60 * table["answers"] / table["minutes"]).where(table["minutes"] > 0)
    return table.assign(changes=[changes.get(name, 0) for name in table["observer"]])


def _check_agree(agree: int, observers: list[str], project: Project) -> None:
    if agree < 1:
        raise UsageError(f"agree is {agree}", next_step="give at least 1")
    if not observers:
        raise UsageError(
            "nobody has answered yet", path=project.folder, next_step="label first, or import answers"
        )
    if agree > len(observers):
        raise UsageError(
            f"{agree} observers cannot agree: only {len(observers)} answered ({', '.join(observers)})",
            path=project.folder,
            next_step=f"wait for more observers, or lower --agree to {len(observers)} or less",
        )


# ---- would more labels help? A learning curve of a quick classifier, while people label ----
#
# The classifier is a logistic regression of the candidates' measurements (and their squares), fitted in
# milliseconds. It is not the network that will be trained, and no better; but where it has stopped learning
# from more labels of the same kind, they add little.

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the labels, at which the curve is measured."""
CURVE_DRAWS = 20
"""Samples of each size."""
LEAST_OF_CLASS = 20
"""Labels of either class without which nothing is said."""
LITTLE_GAIN = 0.02
"""What doubling the labels may add to F1 where it is called enough."""
GOOD_F1 = 0.8
"""Lower limit of F1 without which a flat curve says nothing."""
RIDGE, STEPS = 1.0, 12
Truths = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CurvePoint:
    """F1 of the quick classifier, learnt from so many labels, on those of other patients."""

    labels: int
    f1: float
    low: float
    high: float


@dataclass(frozen=True)
class LearningCurve:
    """How F1 grew with the labels."""

    points: tuple[CurvePoint, ...]

    @property
    def gain(self) -> float:
        """What the last doubling of the labels added."""
        half = next(point for point in self.points if point.labels >= self.points[-1].labels / 2)
        return self.points[-1].f1 - half.f1

    @property
    def enough(self) -> bool:
        """Whether more labels of the same kind would add little; what has learnt little cannot say so."""
        return self.gain <= LITTLE_GAIN and self.points[-1].low >= GOOD_F1

    def __str__(self) -> str:
        """In a line."""
        last = self.points[-1]
        text = f"quick F1 {last.f1:.2f} [{last.low:.2f}, {last.high:.2f}] from {last.labels} labels"
        advice = "enough: more labels would hardly help" if self.enough else "more may help"
        return f"{text}, {self.gain:+.2f} by the last doubling: {advice}"


def learning_curve(features: Floats, labels: Truths, patients: Sequence[str]) -> LearningCurve | None:
    """F1 against the number of labels, tested on patients not learnt from; none where there are too few.

    Intervals hold 95 % of the draws of labels and patients.
    """
    names, owner = np.unique(np.asarray(patients, dtype=object).astype(str), return_inverse=True)
    if min(int(labels.sum()), int((~labels).sum())) < LEAST_OF_CLASS or len(names) < 2:
        return None
    spread = features.std(axis=0)
    scaled = np.clip((features - features.mean(axis=0)) / np.where(spread > 0, spread, 1), -4, 4)
    known = np.column_stack([np.ones(len(scaled)), scaled, scaled**2])
    rng = np.random.default_rng(0)
    points = []
    for share in SHARES:
        values, used = [], 0
        for _ in range(CURVE_DRAWS):
            held = np.isin(owner, rng.permutation(len(names))[: max(1, len(names) // 3)])
            learnt = rng.permutation(np.flatnonzero(~held))
            learnt = learnt[: max(4, round(share * len(learnt)))]
            if len(set(labels[learnt].tolist())) < 2 or not labels[held].any():
                continue
            weights = _fitted(known[learnt], labels[learnt])
            said = known[held] @ weights > 0
            values.append(2 * (said & labels[held]).sum() / max(1, said.sum() + labels[held].sum()))
            used = max(used, len(learnt))
        if values:
            low, high = np.percentile(values, (2.5, 97.5))
            points.append(CurvePoint(used, float(np.mean(values)), float(low), float(high)))
    return LearningCurve(tuple(points)) if len(points) == len(SHARES) else None


def _fitted(known: Floats, labels: Truths) -> Floats:
    """Ridge logistic regression by Newton's steps, both classes of equal weight."""
    share = labels.mean()
    importance = np.where(labels, 0.5 / share, 0.5 / (1 - share))
    weights = np.zeros(known.shape[1])
    penalty = np.full(known.shape[1], RIDGE)
    penalty[0] = 1e-6
    for _ in range(STEPS):
        chance = expit(np.clip(known @ weights, -30, 30))
        slope = known.T @ (importance * (chance - labels)) + penalty * weights
        curve = (known.T * (importance * np.maximum(chance * (1 - chance), 1e-3))) @ known + np.diag(penalty)
        weights = weights - np.linalg.solve(curve, slope)
    return weights
