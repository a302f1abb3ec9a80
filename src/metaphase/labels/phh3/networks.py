"""CNN1 (artefact or not) and CNN2 (mitosis or not): trained on labelled candidates, asked about all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from metaphase.base.arrays import RGB, Floats32, Integers
from metaphase.base.provenance import FileContent, Ingredients
from metaphase.base.settings import settings
from metaphase.base.sharing.batch import Batch, BatchWatch, Progress, Workers, run_batch
from metaphase.base.stages import Report, silent
from metaphase.labels.observers.project import ARTEFACT, MITOSIS, read_labels
from metaphase.labels.phh3.candidates import CLASSES, Phh3Error
from metaphase.labels.phh3.cases import (
    CANDIDATES,
    Classified,
    Phh3Case,
    phh3_cases,
    read_candidates,
    read_classified,
    write_classified,
)
from metaphase.networks.architectures import centre_crop, patch_probability
from metaphase.networks.cards import ModelCard, NetworkSpec, Normalisation, Width, named_model, parse_card
from metaphase.networks.checkpoints import choose_device, load_model
from metaphase.networks.training.data import check_disjoint, split_cases
from metaphase.networks.training.loop import TrainingResult, train
from metaphase.networks.training.patches import PatchWriter
from metaphase.networks.training.protocol import TrainingConfig, TrainingProtocol
from metaphase.slides.contract import WORKING_MPP, Slide
from metaphase.slides.opening import SlideSource
from metaphase.slides.tiles import cut_squares

TRAIN, VALIDATION = "train", "validation"
SIDE_PX = 128
"""Side of the stored patches: the networks' 100 px and room for turning and shifting them."""
TRAIN_SHARE = 10 / 18
"""Of the cases, as in the paper."""
WARM_SHARE = 0.2
"""Learning rates of a training that starts from a model, as a share of those that start from nothing."""
LETTERS = "REB"
"""Rotation and mirroring, elastic deformation, blur; every recipe also shifts."""


@settings
class LearningConfig(TrainingProtocol):
    """How CNN1 or CNN2 is trained; the defaults are the paper's."""

    augment: str = LETTERS
    """Letters of the augmentation recipe."""
    normalisation: Normalisation = "none"
    """`none` as in the paper, or `batch`."""
    gamma: Width = 1.0
    """Width factor of the network."""

    def of_network(
        self, name: str, stores: Mapping[str, Path], start: str | Path = "", target: str = MITOSIS
    ) -> TrainingConfig:
        """The whole training of CNN1 or CNN2; a model to start from decides what network it is."""
        shared = {
            "train": (str(stores[TRAIN]),),
            "validation": (str(stores[VALIDATION]),),
            "name": name,
            "classes": _classes(name, target),
        }
        if not start:
            spec = NetworkSpec("classifier", self.gamma, self.normalisation)
            return self.training(network=spec, **shared)
        model = named_model(start)
        gentle = replace(
            self,
            learning_rate=WARM_SHARE * self.learning_rate,
            final_learning_rate=WARM_SHARE * self.final_learning_rate,
        )
        spec = parse_card(model.with_suffix(".json")).spec
        return gentle.training(network=spec, start=str(model.resolve()), **shared)


def train_classifier(
    name: str,
    rows: pd.DataFrame,
    folder: Path,
    config: LearningConfig,
    *,
    start: str | Path = "",
    target: str = MITOSIS,
    device: str | None = None,
    report: Report = silent,
) -> TrainingResult:
    """Train `cnn1` on `cnn1_rows`, or `cnn2` on `cnn2_rows`; run it again to go on after a stop.

    `start` is a model whose weights it begins with, a file or a bundled one by name; `target` names class 1
    of CNN2.
    """
    rows = assign_splits(rows, config.seed)
    _check_classes(rows, _classes(name, target))
    stores = write_stores(rows, folder)
    return train(config.of_network(name, stores, start, target), folder, device=device, report=report)


def _classes(name: str, target: str) -> tuple[str, str]:
    no, yes = CLASSES[name]
    return no, target if yes == MITOSIS else yes


def cnn1_rows(project: Path) -> pd.DataFrame:
    """Labelled items of a project with class 0 for artefacts and 1 for everything else."""
    labels = read_labels(project)
    return labels.assign(label=(labels["label"] != ARTEFACT).astype(int))


def cnn2_rows(project: Path, artefacts: Sequence[Path] = (), also: Sequence[Path] = ()) -> pd.DataFrame:
    """Labelled items of a project with class 1 for mitoses and 0 for everything else.

    The artefacts labelled in the projects `artefacts` (those of CNN1) are further negatives, as in the paper.
    Of the projects `also`, all labels are taken.
    """
    rows = pd.concat([read_labels(folder) for folder in (project, *also)], ignore_index=True)
    for other in artefacts:
        labels = read_labels(other)
        rows = pd.concat([rows, labels[labels["label"] == ARTEFACT]], ignore_index=True)
    rows = rows.drop_duplicates("item", ignore_index=True)
    return rows.assign(label=(rows["label"] == MITOSIS).astype(int))


def assign_splits(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Every patient as a whole in `train` or `validation`: as the manifest said, or 10 to 8 at random.

    Where the project does not say whose an item is, the case stands for the patient.
    """
    patient = rows["case"]
    if "patient" in rows:
        patient = rows["patient"].where(rows["patient"].notna() & (rows["patient"] != ""), rows["case"])
    stated = set(rows["split"].dropna()) if "split" in rows else set()
    if {TRAIN, VALIDATION} <= stated:
        kept = rows["split"].isin((TRAIN, VALIDATION))
        parts = {name: patient[kept & (rows["split"] == name)] for name in (TRAIN, VALIDATION)}
        check_disjoint("patient", **parts)
        return rows[kept].reset_index(drop=True)
    patients = sorted(patient.unique())
    if len(patients) < 2:
        raise Phh3Error(
            f"labels of {len(patients)} patient cannot be split",
            next_step="label candidates of two patients or more (the manifest's column patient)",
        )
    training = min(max(1, round(TRAIN_SHARE * len(patients))), len(patients) - 1)
    counts = {TRAIN: training, VALIDATION: len(patients) - training}
    drawn = split_cases(patients, counts=counts, seed=seed)
    owner = {name: split for split, group in drawn.items() for name in group}
    return rows.assign(split=patient.map(owner))


@dataclass(frozen=True, eq=False)
class LabelledPatches(Ingredients, stage="PHH3 patches"):
    """What decides the patches that CNN1 or CNN2 learns from."""

    items: pd.DataFrame
    slides: tuple[SlideSource, ...]
    side_px: int = SIDE_PX
    mpp: float = WORKING_MPP


def write_stores(rows: pd.DataFrame, folder: Path) -> dict[str, Path]:
    """Cut the patches of labelled items into a store a split, unless they are there."""
    ordered = rows.sort_values(["slide", "y", "x"], ignore_index=True)
    slides = {str(path): _source(str(path), group) for path, group in ordered.groupby("slide", sort=False)}
    items = ordered[["item", "case", "label", "split", "x", "y"]]
    made_from = LabelledPatches(items, tuple(slides.values()))
    output = folder / "patches" / made_from.key
    stores = {split: output / split for split in (TRAIN, VALIDATION)}
    for split, store in stores.items():
        if (store / "store.json").exists():
            continue
        with PatchWriter(store, side_px=SIDE_PX, mpp=WORKING_MPP) as writer:
            for path, group in ordered[ordered["split"] == split].groupby("slide", sort=False):
                named = group.assign(source="observers", slide=group["case"])
                with slides[str(path)].open() as slide:
                    writer.cut(slide, named[["source", "item", "label", "slide", "x", "y"]])
    made_from.write(output / "patches.json")
    return stores


def _source(path: str, items: pd.DataFrame) -> SlideSource:
    stated = items["mpp"].dropna().tolist() if "mpp" in items else []
    return SlideSource(Path(path), float(stated[0]) if stated else None)


def _check_classes(rows: pd.DataFrame, classes: tuple[str, str]) -> None:
    for split in (TRAIN, VALIDATION):
        labels = rows.loc[rows["split"] == split, "label"]
        for label, called in enumerate(classes):
            if not (labels == label).any():
                raise Phh3Error(
                    f"no {called} among the {len(labels)} labels of the {split} cases",
                    next_step="label more candidates or add slides; in lab.toml round1 = 0 and round2 = 0 "
                    "take the bundled networks instead",
                )


# ---- CNN1 and CNN2 on every candidate of a slide ----

BLOCK_PX = 512
"""Candidates of one block of this side (patch pixels) are read together: tiles are decoded once."""
BATCH = 256


@dataclass(frozen=True, eq=False)
class Classifier:
    """A loaded CNN1 or CNN2."""

    name: str
    network: nn.Sequential
    card: ModelCard
    device: torch.device

    @property
    def decision(self) -> float:
        """Least probability of a yes, tuned on the validation cases."""
        return self.card.thresholds["patches"].delta

    def account(self) -> dict[str, Any]:
        """All that decides what the network answers."""
        return {"network": self.card.identity, "decision": self.decision}

    @torch.inference_mode()
    def __call__(self, patches: RGB) -> Floats32:
        """Probability of class 1 for each patch (n, side, side, 3)."""
        images = centre_crop(torch.from_numpy(patches).to(self.device), self.card.patch_px)
        answers: Floats32 = patch_probability(self.network(images)).cpu().numpy()
        return answers


@dataclass(frozen=True)
class CandidatesClassified(Ingredients, stage="PHH3 classification"):
    """What decides a network's column."""

    slide: SlideSource
    candidates: FileContent
    network: Classifier


def load_classifier(name: str, path: str | Path, device: str | None = None) -> Classifier:
    """Load CNN1 or CNN2, from its file or by a bundled name; a model of something else is a `Phh3Error`."""
    chosen = choose_device(device)
    path = named_model(path)
    network, card = load_model(path, chosen)
    if card.family != "classifier" or card.classes[0] != CLASSES[name][0] or "patches" not in card.thresholds:
        raise Phh3Error(
            f"is {card.name!r}, a {card.family} of {' and '.join(card.classes)}, and not {name}",
            path=path,
            next_step=f"give the model that metaphase phh3 train-{name} made",
        )
    return Classifier(name, network.to(memory_format=torch.channels_last), card, chosen)  # type: ignore[call-overload]


def classify_case(
    source: SlideSource,
    folder: Path,
    case: str,
    classifiers: Sequence[Classifier],
    progress: Progress | None = None,
) -> tuple[Classified, bool]:
    """Ask about the candidates in a case's folder, and write answers and mitoses; says whether it had to.

    Columns that the same network made of the same slide and candidates are kept.
    """
    table = read_candidates(folder)
    answers = _kept(folder, table)
    candidates = FileContent(folder / CANDIDATES)
    keys = {network.name: CandidatesClassified(source, candidates, network).key for network in classifiers}
    due = [network for network in classifiers if answers.keys.get(network.name) != keys[network.name]]
    if not due:
        return answers, False
    with source.open() as slide:
        columns = classify_candidates(slide, table, due, progress)
    answers = replace(
        answers,
        table=answers.table.assign(**columns),
        keys=answers.keys | keys,
        decisions=answers.decisions | {network.name: network.decision for network in due},
    )
    write_classified(folder, case, answers)
    return answers, True


def classify_candidates(
    slide: Slide, table: pd.DataFrame, classifiers: Sequence[Classifier], progress: Progress | None = None
) -> dict[str, Floats32]:
    """Probabilities of each candidate by each network's name."""
    if len({(network.card.patch_px, network.card.mpp) for network in classifiers}) > 1:
        raise Phh3Error("CNN1 and CNN2 want different patches", next_step="train both at one resolution")
    columns = {network.name: np.zeros(len(table), np.float32) for network in classifiers}
    card = classifiers[0].card
    points = table[["x", "y"]].to_numpy(float)
    done = 0
    for rows, patches in batched(
        cut_squares(slide, points, card.patch_px, card.mpp, block_px=BLOCK_PX), BATCH
    ):
        for network in classifiers:
            columns[network.name][rows] = network(patches)
        done += len(rows)
        if progress is not None:
            progress(done, len(table))
    return columns


def batched(groups: Iterable[tuple[Integers, RGB]], size: int) -> Iterator[tuple[Integers, RGB]]:
    """Gather small groups into batches of about `size`, and cut large ones."""
    waiting: list[tuple[Integers, RGB]] = []
    for group in chain(groups, [None]):
        if group is not None:
            waiting.append(group)
        if waiting and (group is None or sum(len(rows) for rows, _ in waiting) >= size):
            rows, patches = (np.concatenate(parts) for parts in zip(*waiting, strict=True))
            for start in range(0, len(rows), size):
                yield rows[start : start + size], patches[start : start + size]
            waiting = []


def _kept(folder: Path, table: pd.DataFrame) -> Classified:
    """Earlier columns of these very candidates, or none."""
    try:
        answers = read_classified(folder)
    except Phh3Error:
        return Classified(table, {}, {})
    known = all(name in answers.table for name in answers.keys)
    return answers if known else Classified(table, {}, {})


# ---- all cases of a cohort ----

CALLED = {"cnn1": "objects", "cnn2": "mitoses"}
"""What the candidates are that a network says yes to."""


@dataclass(frozen=True)
class Phh3Classified:
    """What the networks said about the candidates of a case."""

    candidates: int
    counts: Mapping[str, int]
    """Objects and mitoses, where their networks have spoken."""
    reused: bool


def classify_cohort(
    manifest: Path,
    workspace: Path,
    classifiers: Sequence[Classifier],
    *,
    watch: BatchWatch | None = None,
    pool: Workers | None = None,
) -> Batch[Phh3Classified]:
    """Ask the networks about every candidate; with CNN2, write each slide's mitoses."""

    def classify(case: Phh3Case, progress: Progress) -> Phh3Classified:
        answers, fresh = classify_case(case.slide, case.folder, case.name, classifiers, progress)
        counts = {
            CALLED[name]: int((answers.table[name] >= decision).sum())
            for name, decision in answers.decisions.items()
        }
        return Phh3Classified(len(answers.table), counts, not fresh)

    return run_batch(phh3_cases(manifest, workspace), classify, workspace, watch, pool)
