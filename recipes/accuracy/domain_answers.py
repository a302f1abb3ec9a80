"""What the networks of `domain_ablation.py` said about the test patches, and the figures and tables of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from domain_patches import AWAY, HOME, TRAIN, VALIDATION

from metaphase.base.arrays import Floats, Floats32, Integers
from metaphase.base.errors import UsageError
from metaphase.base.files import atomic_path, write_text
from metaphase.evaluation import BootstrapConfig, Estimate
from metaphase.evaluation.marks import Marked
from metaphase.evaluation.metrics import draws, estimate, ratio, slide_counts
from metaphase.images.stain.augmentation import RECIPES

# ---- experiments and answers ----


@dataclass(frozen=True)
class Experiment:
    """Networks to compare: of each seed one network, or an ensemble."""

    number: int
    augment: str
    seeds: tuple[tuple[str, ...], ...]
    """Names of the networks of each seed."""


def network_name(augment: str, seed: int) -> str:
    """Name of a network."""
    return f"{augment.lower()}-{seed:02d}"


def experiments(seeds: int, members: int) -> list[Experiment]:
    """The paper's experiments 1 to 4. An ensemble begins with the network of its seed of experiment 3."""
    firsts = range(0, seeds * members, members)
    single = [
        Experiment(number, augment, tuple((network_name(augment, first),) for first in firsts))
        for number, augment in enumerate(RECIPES, 1)
    ]
    teams = [
        tuple(network_name(RECIPES[-1], seed) for seed in range(first, first + members)) for first in firsts
    ]
    return [*single, Experiment(len(RECIPES) + 1, RECIPES[-1], tuple(teams))]


def plan(seeds: int, members: int) -> list[tuple[str, int]]:
    """Recipe and seed of every network, in an order that fills the table from the start."""
    firsts = range(0, seeds * members, members)
    singles = [(augment, first) for first in firsts for augment in RECIPES]
    others = [(RECIPES[-1], first + member) for first in firsts for member in range(1, members)]
    return singles + others


class Answers:
    """What networks said about the test patches of a direction, in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}
        self.rows = pd.DataFrame()
        self.logits: dict[str, Floats32] = {}
        if path.exists():
            with np.load(path) as file:
                self.facts = json.loads(str(file["facts"]))
                self.rows = pd.DataFrame({name: file[f"row:{name}"] for name in self.facts["columns"]})
                self.logits = {name: file[f"network:{name}"] for name in self.facts["networks"]}

    def begin(self, rows: pd.DataFrame, facts: dict[str, Any]) -> None:
        """Say what the answers are about; a file that is about something else is refused."""
        facts = facts | {"columns": list(rows.columns)}
        known = {name: value for name, value in self.facts.items() if name != "networks"}
        networks = self.facts.get("networks", {})
        if self.facts and (known != facts or not rows.equals(self.rows.astype(rows.dtypes.to_dict()))):
            raise UsageError(
                "the answers there were made with other settings",
                path=self.path,
                next_step="choose another folder",
            )
        self.rows, self.facts = rows, facts | {"networks": networks}

    def add(self, name: str, logits: Floats32, validation_f1: float) -> None:
        """Keep the answers of one more network."""
        self.logits[name] = logits
        self.facts["networks"][name] = validation_f1
        arrays: dict[str, Any] = {f"row:{name}": self._plain(name) for name in self.rows.columns}
        arrays |= {f"network:{name}": values for name, values in self.logits.items()}
        with atomic_path(self.path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, facts=np.array(json.dumps(self.facts)), **arrays)

    def _plain(self, column: str) -> npt.NDArray[Any]:
        values = self.rows[column].to_numpy()
        return values.astype(np.str_) if values.dtype == object else values

    def probability(self, networks: Sequence[str]) -> Floats | None:
        """Mean probability of some networks; None while one of them is missing."""
        if not set(networks) <= self.logits.keys():
            return None
        each = [1 / (1 + np.exp(-self.logits[name].astype(np.float64))) for name in networks]
        return np.asarray(np.mean(each, axis=0))


# ---- figures ----

FALSE_SHARES = {"recall_1": 0.01, "recall_03": 0.003}
"""Recall where this share of a group's own negatives is called a mitosis."""
USER_SHARE = 0.01
"""The threshold that a user takes along calls this share of the validation slides' negatives mitoses."""
FIGURES = {
    "recall_1": "recall at 1 % false",
    "recall_03": "recall at 0.3 % false",
    "user_recall": "recall at home's threshold",
    "user_false": "false at home's threshold",
    "auc": "AUC",
}
DIFFERENCES = ((2, 1), (3, 1), (4, 3))
ALL = "all others"
TOP_SHARE, STEPS = 0.15, 400
"""Every negative among this share of the highest is a threshold, and so many quantiles of all answers."""

Drawn = dict[str, Floats]
"""Each figure in every draw of slides, and the number of mitoses drawn."""


def groups_of(rows: pd.DataFrame) -> dict[str, Integers]:
    """Rows of the test at home, and of each other scanner."""
    named = rows["part"].where(rows["part"] != AWAY, rows["scanner"])
    names = [HOME, *sorted(set(named) - {HOME, VALIDATION})]
    return {name: np.flatnonzero(named == name) for name in names}


def marked_patches(rows: pd.DataFrame, probability: Floats) -> Marked:
    """Patches of some slides as marked detections: those of mitoses are found, all others false."""
    number, slides = rows["slide"].factorize(sort=True)
    positive, names = rows["label"].to_numpy() == 1, tuple(map(str, slides))
    order = np.argsort(-probability, kind="stable")
    return Marked(
        probability=probability[order],
        found=positive[order],
        distance_um=np.full(len(rows), np.nan),
        slide=number[order].astype(np.int64),
        truths=np.bincount(number[positive], minlength=len(slides)),
        area_mm2=np.full(len(slides), np.nan),
        cases=names,
        patients=names,
    )


def _above(values: Floats) -> Floats:
    """Thresholds that just leave each of the values out."""
    return np.nextafter(values, np.inf)


def share_threshold(negatives: Floats, share: float) -> float:
    """The lowest threshold that calls at most this share of the negatives mitoses."""
    falling = np.sort(negatives)[::-1]
    return float(_above(falling[int(share * len(falling))]))


def figures_of(marked: Marked, user: float, times: Floats) -> Drawn:
    """All figures of one group in every draw of its slides."""
    negatives = marked.probability[~marked.found]
    top = negatives[: round(TOP_SHARE * len(negatives)) + 1]
    spread = np.quantile(marked.probability, np.linspace(0, 1, STEPS))
    thresholds = np.unique(np.concatenate([_above(top), spread]))[::-1]
    other = np.bincount(marked.slide[~marked.found], minlength=len(marked.cases))
    mitoses, others = times @ marked.truths, times @ other
    true, false = (times @ table for table in slide_counts(marked, thresholds))
    found, called = ratio(true, mitoses[:, None]), ratio(false, others[:, None])
    at_user = [(times @ table)[:, 0] for table in slide_counts(marked, np.array([user]))]
    drawn = {name: np.where(called <= share, found, 0).max(axis=1) for name, share in FALSE_SHARES.items()}
    drawn |= {"user_recall": ratio(at_user[0], mitoses), "user_false": ratio(at_user[1], others)}
    corner = np.zeros((len(times), 1))
    steps = np.diff(np.hstack([corner, called]))
    heights = (np.hstack([corner, found[:, :-1]]) + found) / 2
    return drawn | {"auc": (steps * heights).sum(axis=1), "mitoses": mitoses}


def all_others(groups: Mapping[str, Drawn]) -> Drawn:
    """Mean over the scanners that were not trained on, each with its own thresholds, by their mitoses.

    Where one has too few slides to draw from, no draws are left but the first.
    """
    away = [drawn for name, drawn in groups.items() if name != HOME]
    common = min(len(drawn["mitoses"]) for drawn in away)
    mitoses = np.stack([drawn["mitoses"][:common] for drawn in away])
    return {
        name: (np.stack([drawn[name][:common] for drawn in away]) * mitoses).sum(axis=0) / mitoses.sum(axis=0)
        for name in FIGURES
    }


def network_figures(answers: Answers, probability: Floats, config: BootstrapConfig) -> dict[str, Drawn]:
    """Figures by group; the first draw is every slide once, the others are the same for every network."""
    rows = answers.rows
    held_out = (rows["part"] == VALIDATION) & (rows["label"] == 0)
    user = share_threshold(probability[held_out.to_numpy()], USER_SHARE)
    groups: dict[str, Drawn] = {}
    for number, (name, chosen) in enumerate(groups_of(rows).items()):
        marked = marked_patches(rows.iloc[chosen], probability[chosen])
        seeded = BootstrapConfig(config.samples, config.confidence, config.seed + number)
        times = np.vstack([np.ones(len(marked.cases)), draws(marked.patients, seeded)])
        groups[name] = figures_of(marked, user, times)
    return groups | {ALL: all_others(groups)}


Values = dict[str, dict[str, dict[str, Any]]]
"""By group and figure: estimate (mean over seeds, interval over slides) and the value of each seed."""


def _summary(seeds: Sequence[dict[str, Drawn]], config: BootstrapConfig) -> Values:
    """Means over seeds, with intervals over slides."""

    def one(drawn: Sequence[Floats]) -> dict[str, Any]:
        mean = np.mean(drawn, axis=0)
        shown = asdict(estimate(float(mean[0]), mean[1:], config))
        return shown | {"seeds": [float(values[0]) for values in drawn]}

    return {
        group: {name: one([seed[group][name] for seed in seeds]) for name in FIGURES} for group in seeds[0]
    }


def _minus(one: dict[str, Drawn], other: dict[str, Drawn]) -> dict[str, Drawn]:
    return {group: {name: one[group][name] - other[group][name] for name in FIGURES} for group in one}


def summarise(answers: Answers, wanted: Sequence[Experiment], config: BootstrapConfig) -> dict[str, Any]:
    """Figures of the experiments, and differences between them seed by seed, of what there is."""
    drawn: dict[int, dict[int, dict[str, Drawn]]] = {}
    for experiment in wanted:
        for seed, networks in enumerate(experiment.seeds):
            probability = answers.probability(networks)
            if probability is not None:
                seen = network_figures(answers, probability, config)
                drawn.setdefault(experiment.number, {})[seed] = seen
    pairs = {}
    for one, other in DIFFERENCES:
        both = sorted(drawn.get(one, {}).keys() & drawn.get(other, {}).keys())
        if both:
            pairs[f"{one} - {other}"] = [_minus(drawn[one][seed], drawn[other][seed]) for seed in both]
    return {
        "facts": {name: value for name, value in answers.facts.items() if name != "columns"},
        "experiments": {
            str(experiment.number): {
                "augment": experiment.augment,
                "networks": len(experiment.seeds[0]),
                "seeds": len(drawn[experiment.number]),
                "validation_f1": [
                    answers.facts["networks"][name]
                    for seed in drawn[experiment.number]
                    for name in experiment.seeds[seed]
                ],
                "figures": _summary(list(drawn[experiment.number].values()), config),
            }
            for experiment in wanted
            if experiment.number in drawn
        },
        "differences": {name: _summary(seeds, config) for name, seeds in pairs.items()},
    }


# ---- tables ----


def _cell(value: Mapping[str, Any], sign: str = "") -> str:
    """A figure with its interval."""
    shown = Estimate(value["value"], value["low"], value["high"])
    text = f"{shown.value:{sign}.3f}"
    return text if np.isnan(shown.low) else f"{text} [{shown.low:{sign}.3f}, {shown.high:{sign}.3f}]"


def _range(value: Mapping[str, Any], sign: str = "") -> str:
    """The least and the greatest of the seeds."""
    return f"{min(value['seeds']):{sign}.3f} to {max(value['seeds']):{sign}.3f}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _main_table(results: Mapping[str, Any]) -> str:
    """Experiments on all other scanners."""
    headings = ["experiment", "augment", "networks", "seeds", FIGURES["recall_1"], "seeds from to"]
    headings += [label for name, label in FIGURES.items() if name != "recall_1"]
    headings += ["at home: " + FIGURES["recall_1"], "validation F1 of the networks"]
    rows = []
    for number, one in results["experiments"].items():
        away, home = one["figures"][ALL], one["figures"][HOME]
        cells = [number, one["augment"], str(one["networks"]), str(one["seeds"])]
        cells += [_cell(away["recall_1"]), _range(away["recall_1"])]
        cells += [_cell(away[name]) for name in FIGURES if name != "recall_1"]
        chosen = one["validation_f1"]
        rows.append([*cells, _cell(home["recall_1"]), f"{min(chosen):.3f} to {max(chosen):.3f}"])
    return _table(headings, rows)


def _groups(results: Mapping[str, Any]) -> list[str]:
    """The test groups, without their mean."""
    some = next(iter(results["experiments"].values()))
    return [group for group in some["figures"] if group != ALL]


def _shown(groups: Sequence[str]) -> list[str]:
    return ["at home" if group == HOME else group for group in groups]


def _size_table(results: Mapping[str, Any]) -> str:
    """How large the test groups are, and how far from the training slides."""
    facts, groups = results["facts"], _groups(results)
    counts = [facts["crops"][group] for group in groups]
    rows = [
        ["mitoses, slides", *(f"{count['mitoses']:,}, {count['slides']}" for count in counts)],
        ["colour ratio to training", *(f"{facts['colour'][group]:.2f}" for group in groups)],
    ]
    return _table(["tested on", *_shown(groups)], rows)


def _group_table(results: Mapping[str, Any], name: str) -> str:
    """One figure by test group."""
    groups = _groups(results)
    rows = [
        [f"experiment {number}", *(_cell(one["figures"][group][name]) for group in groups)]
        for number, one in results["experiments"].items()
    ]
    return _table([FIGURES[name], *_shown(groups)], rows)


def _difference_table(results: Mapping[str, Any]) -> str:
    """What separates the experiments."""
    groups = _groups(results)
    rows = [
        [f"{name}, {FIGURES[figure]}", _cell(by_group[ALL][figure], "+"), _range(by_group[ALL][figure], "+"),
         *(_cell(by_group[group][figure], "+") for group in groups)]
        for name, by_group in results["differences"].items()
        for figure in FIGURES
    ]  # fmt: skip
    return _table(["difference", ALL, "seeds from to", *_shown(groups)], rows)


def markdown(results: Mapping[str, Any]) -> str:
    """All tables of one direction."""
    crops, settings = results["facts"]["crops"], results["facts"]["settings"]
    trained = "Trained on {mitoses:,} mitoses of {slides} slides".format(**crops[TRAIN])
    parts = [f"{trained}, {settings['scanner']}; 95 % intervals by drawing slides."]
    if results["experiments"]:
        parts += [_main_table(results), _size_table(results)]
        parts += [_group_table(results, name) for name in FIGURES]
    if results["differences"]:
        parts.append(_difference_table(results))
    return "\n\n".join(parts) + "\n"


def write_tables(folder: Path, answers: Answers, wanted: Sequence[Experiment], samples: int) -> None:
    """Write `results.json` and `table.md` of what there is."""
    results = summarise(answers, wanted, BootstrapConfig(samples))
    write_text(folder / "results.json", json.dumps(results, indent=1) + "\n")
    write_text(folder / "table.md", markdown(results))
