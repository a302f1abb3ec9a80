"""CNN1 (artefact or not) and CNN2 (mitosis or not) from labelled candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from metaphase.base.provenance import Ingredients
from metaphase.labels.observers.project import ARTEFACT, MITOSIS, read_labels
from metaphase.labels.phh3.config import CLASSES, Phh3Error
from metaphase.networks.cards import NetworkSpec, Normalisation, named_model, parse_card
from metaphase.networks.training.config import TrainingConfig, TrainingProtocol
from metaphase.networks.training.data import check_disjoint, split_cases
from metaphase.networks.training.loop import TrainingResult, Watcher, train
from metaphase.networks.training.patches import PatchWriter
from metaphase.slides import WORKING_MPP, SlideSource, cut_squares

TRAIN, VALIDATION = "train", "validation"
SIDE_PX = 128
"""Side of the stored patches: the networks' 100 px and room for turning and shifting them."""
TRAIN_SHARE = 10 / 18
"""Of the cases, as in the paper."""
WARM_SHARE = 0.2
"""Learning rates of a training that starts from a model, as a share of those that start from nothing."""
LETTERS = "REB"
"""Rotation and mirroring, elastic deformation, blur; every recipe also shifts."""


@dataclass(frozen=True, kw_only=True)
class LearningConfig(TrainingProtocol):
    """How CNN1 or CNN2 is trained; the defaults are the paper's."""

    augment: str = LETTERS
    """Letters of the augmentation recipe."""
    normalisation: Normalisation = "none"
    """`none` as in the paper, or `batch`."""
    gamma: float = 1.0
    """Width factor of the network."""

    def of_network(self, name: str, stores: Mapping[str, Path], start: str | Path = "") -> TrainingConfig:
        """The whole training of CNN1 or CNN2; a model to start from decides what network it is."""
        shared = {
            "train": (str(stores[TRAIN]),),
            "validation": (str(stores[VALIDATION]),),
            "name": name,
            "classes": CLASSES[name],
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


def train_cnn1(
    project: str | Path,
    folder: str | Path,
    config: LearningConfig,
    *,
    start: str | Path = "",
    device: str | None = None,
    watch: Watcher | None = None,
) -> TrainingResult:
    """Learn to tell objects from artefacts from a labelled project; run it again to go on after a stop.

    `start` is a model whose weights it begins with, a file or a bundled one by name.
    """
    return _train("cnn1", cnn1_rows(project), Path(folder), config, start, device, watch)


def train_cnn2(
    project: str | Path,
    folder: str | Path,
    config: LearningConfig,
    *,
    artefacts: Sequence[str | Path] = (),
    also: Sequence[str | Path] = (),
    start: str | Path = "",
    device: str | None = None,
    watch: Watcher | None = None,
) -> TrainingResult:
    """Learn to tell mitoses from other candidates; run it again to go on after a stop."""
    return _train("cnn2", cnn2_rows(project, artefacts, also), Path(folder), config, start, device, watch)


def cnn1_rows(project: str | Path) -> pd.DataFrame:
    """Labelled items of a project with class 0 for artefacts and 1 for everything else."""
    labels = read_labels(project)
    return labels.assign(label=(labels["label"] != ARTEFACT).astype(int))


def cnn2_rows(
    project: str | Path, artefacts: Sequence[str | Path] = (), also: Sequence[str | Path] = ()
) -> pd.DataFrame:
    """Labelled items of a project with class 1 for mitoses and 0 for everything else.

    The artefacts labelled in the projects `artefacts` (those of CNN1) are further negatives, as in the paper.
    Of the projects `also`, all labels are taken.
    """
    rows = pd.concat([read_labels(one) for one in (project, *also)], ignore_index=True)
    for other in artefacts:
        labels = read_labels(other)
        rows = pd.concat([rows, labels[labels["label"] == ARTEFACT]], ignore_index=True)
    rows = rows.drop_duplicates("item", ignore_index=True)
    return rows.assign(label=(rows["label"] == MITOSIS).astype(int))


def _train(
    name: str,
    rows: pd.DataFrame,
    folder: Path,
    config: LearningConfig,
    start: str | Path,
    device: str | None,
    watch: Watcher | None,
) -> TrainingResult:
    rows = assign_splits(rows, config.seed)
    _check_classes(name, rows)
    stores = write_stores(rows, folder)
    return train(config.of_network(name, stores, start), folder, device=device, watch=watch)


def assign_splits(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Every patient as a whole in `train` or `validation`: as the manifest said, or 10 to 8 at random."""
    patient = patients_of(rows)
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


def patients_of(rows: pd.DataFrame) -> pd.Series[str]:
    """The patient of each item; its case, where the project does not say."""
    if "patient" not in rows:
        return rows["case"]
    return rows["patient"].where(rows["patient"].notna() & (rows["patient"] != ""), rows["case"])


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
    place = folder / "patches" / made_from.key
    stores = {split: place / split for split in (TRAIN, VALIDATION)}
    for split, store in stores.items():
        if not (store / "store.json").exists():
            _write_store(ordered[ordered["split"] == split], slides, store)
    made_from.write(place / "patches.json")
    return stores


def _write_store(rows: pd.DataFrame, slides: Mapping[str, SlideSource], store: Path) -> None:
    with PatchWriter(store, side_px=SIDE_PX, mpp=WORKING_MPP) as writer:
        for path, group in rows.groupby("slide", sort=False):
            records = group.to_dict("records")
            with slides[str(path)].open() as slide:
                cut = cut_squares(slide, group[["x", "y"]].to_numpy(float), SIDE_PX, WORKING_MPP)
                for numbers, patches in cut:
                    for patch, row in zip(patches, (records[number] for number in numbers), strict=True):
                        facts = {"label": row["label"], "slide": row["case"], "x": row["x"], "y": row["y"]}
                        writer.add(patch, source="observers", item=row["item"], **facts)


def _source(path: str, items: pd.DataFrame) -> SlideSource:
    stated = items["mpp"].dropna().tolist() if "mpp" in items else []
    return SlideSource(Path(path), float(stated[0]) if stated else None)


def _check_classes(name: str, rows: pd.DataFrame) -> None:
    for split in (TRAIN, VALIDATION):
        labels = rows.loc[rows["split"] == split, "label"]
        for label, called in enumerate(CLASSES[name]):
            if not (labels == label).any():
                raise Phh3Error(
                    f"no {called} among the {len(labels)} labels of the {split} cases",
                    next_step="label more candidates, or split the cases differently",
                )
