"""From simulated slides to CNN5, with networks so small that it takes seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metaphase.learn.mining.mining import Mining, MiningConfig, TrainingSlide
from metaphase.learn.mining.sets import SetConfig, hard_column
from metaphase.networks.cards import NetworkSpec
from metaphase.networks.judging import NetworkJudge
from metaphase.networks.training.data import open_set
from metaphase.networks.training.loop import train
from metaphase.networks.training.protocol import TrainingConfig
from metaphase.simulation.cohort import case_truth
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.opening import SlideSource
from tests.learn.mining.pictures import write_slide

SIDE = 640
SETS = SetConfig(
    easy_negatives=40, hard_negatives=60, hard_sets=2, validation_positives=1.0, validation_negatives=0.5
)


def simulated(folder: Path) -> list[TrainingSlide]:
    """One slide to train on and one to validate on."""
    settings = SimulationConfig(
        cases=2, centres=1, width=SIDE, height=SIDE, mitoses_per_mm2=(600, 600), seed=5, workers=1
    )
    sources = []
    for case in cohort_cases(settings):
        path = write_slide(folder / f"{case.name}.tif", render_region(case, "he", 0, 0, SIDE, SIDE))
        truth = case_truth(case).rename(columns={"x_he": "x", "y_he": "y"})
        mitoses = truth.loc[truth["category"] == "mitosis", ["x", "y"]]
        sources.append(TrainingSlide(case.name, SlideSource(path), mitoses))
    return sources


def trained(name: str, folder: Path, stores: list[str], held_out: list[str], target: str = "label") -> Path:
    """A tiny network after one short epoch."""
    config = TrainingConfig(
        train=tuple(stores), validation=tuple(held_out), network=NetworkSpec(gamma=0.04), name=name,
        target=target, augment="R", batch=16, epochs=1, samples_per_epoch=48, seed=len(name),
    )  # fmt: skip
    return train(config, folder / name, device="cpu").model


@pytest.fixture(scope="module")
def mining(tmp_path_factory: pytest.TempPathFactory) -> Mining:
    folder = tmp_path_factory.mktemp("chain")
    first, second = simulated(folder)
    return Mining(folder / "mining", [first], [second], MiningConfig(sets=SETS))


@pytest.mark.slow
def test_from_slides_to_a_distilled_network(mining: Mining) -> None:
    folder, held_out = mining.folder.parent, mining.validation_stores()
    cnn3 = NetworkJudge([trained("cnn3", folder, mining.easy_stores(), held_out)], "cpu")
    hard = mining.hard_stores(cnn3)
    index = open_set(hard).index
    assert index[hard_column(0)].sum() == index[hard_column(1)].sum() == 60
    members = [trained("cnn4", folder, hard, held_out), folder / "cnn3" / "cnn3.safetensors"]
    ensemble = NetworkJudge(members, "cpu")
    mining.add_soft_targets(hard, ensemble)
    soft = open_set(hard).targets("ensemble")
    assert soft.std() > 0
    assert trained("cnn5", folder, hard, held_out, target="ensemble").is_file()
    _check_judge(mining, cnn3, members, ensemble)


def _check_judge(mining: Mining, cnn3: NetworkJudge, members: list[Path], ensemble: NetworkJudge) -> None:
    """What is said of positions is said of their patches, and an ensemble is the mean of its members."""
    source = mining.train[0]
    stored = open_set(mining.easy_stores())
    patches, points = stored.take(np.arange(len(stored.index))), stored.index[["x", "y"]].to_numpy()
    with source.slide.open() as slide:
        np.testing.assert_allclose(cnn3(slide, points), cnn3.judge(patches), atol=1e-5)
    single = [NetworkJudge([member], "cpu").judge(patches) for member in members]
    np.testing.assert_allclose(ensemble.judge(patches), np.mean(single, axis=0), atol=1e-6)
    assert ensemble.identity != cnn3.identity
    table = mining.judged(cnn3)[source.name]
    assert table["probability"].between(0, 1).all()
    assert len(table) == len(mining.labelled_training[source.name])


def test_every_simulated_mitosis_has_its_patch(mining: Mining) -> None:
    for source, tables in (
        (mining.train[0], mining.labelled_training),
        (mining.validation[0], mining.labelled_validation),
    ):
        table = tables[source.name]
        assert (table["label"] == 1).sum() == len(source.reference) > 3
        assert (table.loc[table["label"] == 1, "distance_um"] <= 7.5).all()
