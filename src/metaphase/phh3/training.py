"""CNN1 (artefact or not) and CNN2 (mitosis or not) from labelled candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from metaphase.learning.config import TrainingConfig
from metaphase.learning.cutting import cut_patches
from metaphase.learning.patches import PatchWriter
from metaphase.learning.sampling import split_cases
from metaphase.learning.training import TrainingResult, Watcher, train
from metaphase.networks import NetworkSpec
from metaphase.networks.architectures import Normalisation
from metaphase.phh3.errors import Phh3Error
from metaphase.phh3.projects import ARTEFACT, MITOSIS, read_labels
from metaphase.records import table_fingerprint
from metaphase.slides import open_slide

TRAIN, VALIDATION = "train", "validation"
TRAIN_SHARE = 10 / 18
"""Of the cases, as in the paper."""
LETTERS = "REB"
"""Rotation and mirroring, elastic deformation, blur; every recipe also shifts."""
CLASSES = {"cnn1": ("artefact", "object"), "cnn2": ("other", "mitosis")}


@dataclass(frozen=True)
class LearningConfig:
    """How CNN1 or CNN2 is trained; the defaults are the paper's."""

    epochs: int = 20
    batch: int = 64
    samples_per_epoch: int | None = None
    """Patches shown an epoch; by default as many as there are."""
    normalisation: Normalisation = "none"
    """`none` as in the paper, or `batch`."""
    augment: str = LETTERS
    """Letters of the augmentation recipe."""
    seed: int = 0
    """Of the split, the weights and the order."""

    def training(self, name: str, stores: dict[str, Path]) -> TrainingConfig:
        """The whole protocol of a network."""
        return TrainingConfig(
            train=(str(stores[TRAIN]),),
            validation=(str(stores[VALIDATION]),),
            network=NetworkSpec("classifier", normalisation=self.normalisation),
            name=name,
            classes=CLASSES[name],
            augment=self.augment,
            batch=self.batch,
            epochs=self.epochs,
            samples_per_epoch=self.samples_per_epoch,
            seed=self.seed,
        )


def train_cnn1(
    project: str | Path,
    folder: str | Path,
    config: LearningConfig,
    *,
    device: str | None = None,
    watch: Watcher | None = None,
) -> TrainingResult:
    """Learn to tell objects from artefacts from a labelled project; run it again to go on after a stop."""
    return _train("cnn1", cnn1_rows(project), Path(folder), config, device, watch)


def train_cnn2(
    project: str | Path,
    folder: str | Path,
    config: LearningConfig,
    *,
    artefacts: Sequence[str | Path] = (),
    device: str | None = None,
    watch: Watcher | None = None,
) -> TrainingResult:
    """Learn to tell mitoses from other candidates; run it again to go on after a stop."""
    return _train("cnn2", cnn2_rows(project, artefacts), Path(folder), config, device, watch)


def cnn1_rows(project: str | Path) -> pd.DataFrame:
    """Labelled items of a project with class 0 for artefacts and 1 for everything else."""
    labels = read_labels(project)
    return labels.assign(label=(labels["label"] != ARTEFACT).astype(int))


def cnn2_rows(project: str | Path, artefacts: Sequence[str | Path] = ()) -> pd.DataFrame:
    """Labelled items of a project with class 1 for mitoses and 0 for everything else.

    The artefacts labelled in the projects `artefacts` (those of CNN1) are further negatives, as in the paper.
    """
    rows = read_labels(project)
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
    device: str | None,
    watch: Watcher | None,
) -> TrainingResult:
    rows = assign_splits(rows, config.seed)
    _check_classes(name, rows)
    stores = write_stores(rows, folder)
    return train(config.training(name, stores), folder, device=device, watch=watch)


def assign_splits(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Every case as a whole in `train` or `validation`: as the manifest said, or 10 to 8 at random."""
    stated = set(rows["split"].dropna()) if "split" in rows else set()
    if {TRAIN, VALIDATION} <= stated:
        return rows[rows["split"].isin((TRAIN, VALIDATION))].reset_index(drop=True)
    cases = sorted(rows["case"].unique())
    if len(cases) < 2:
        raise Phh3Error(
            f"labels of {len(cases)} case cannot be split", next_step="label candidates of two cases or more"
        )
    training = min(max(1, round(TRAIN_SHARE * len(cases))), len(cases) - 1)
    counts = {TRAIN: training, VALIDATION: len(cases) - training}
    owner = {
        case: split for split, group in split_cases(cases, counts=counts, seed=seed).items() for case in group
    }
    return rows.assign(split=rows["case"].map(owner))


def write_stores(rows: pd.DataFrame, folder: Path) -> dict[str, Path]:
    """Cut the patches of labelled items into a store a split, unless they are there."""
    ordered = rows.sort_values(["slide", "y", "x"], ignore_index=True)
    content = table_fingerprint(ordered[["item", "label", "split", "x", "y"]])
    stores = {split: folder / "patches" / content / split for split in (TRAIN, VALIDATION)}
    for split, store in stores.items():
        if not (store / "store.json").exists():
            _write_store(ordered[ordered["split"] == split], store)
    return stores


def _write_store(rows: pd.DataFrame, store: Path) -> None:
    with PatchWriter(store) as writer:
        for path, group in rows.groupby("slide", sort=False):
            with open_slide(str(path), mpp=_stated_mpp(group)) as slide:
                patches = cut_patches(slide, group[["x", "y"]].to_numpy(float))
                for patch, row in zip(patches, group.to_dict("records"), strict=True):
                    facts = {"label": row["label"], "slide": row["case"], "x": row["x"], "y": row["y"]}
                    writer.add(patch, source="observers", item=row["item"], **facts)


def _stated_mpp(items: pd.DataFrame) -> float | None:
    stated = items["mpp"].dropna().tolist() if "mpp" in items else []
    return float(stated[0]) if stated else None


def _check_classes(name: str, rows: pd.DataFrame) -> None:
    for split in (TRAIN, VALIDATION):
        labels = rows.loc[rows["split"] == split, "label"]
        for label, called in enumerate(CLASSES[name]):
            if not (labels == label).any():
                raise Phh3Error(
                    f"no {called} among the {len(labels)} labels of the {split} cases",
                    next_step="label more candidates, or split the cases differently",
                )
