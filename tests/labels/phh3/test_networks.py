"""CNN1 and CNN2: their patches, splits, training, and scores of all candidates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.arrays import RGB
from metaphase.base.errors import TrainingError
from metaphase.detections.points import OperatingPoint
from metaphase.labels.observers.project import Settings, write_project
from metaphase.labels.phh3.candidates import CLASSES, BrownConfig, Phh3Error
from metaphase.labels.phh3.cases import MITOSES, read_classified, read_mitoses, search_case
from metaphase.labels.phh3.networks import (
    LearningConfig,
    assign_splits,
    batched,
    classify_case,
    cnn1_rows,
    cnn2_rows,
    load_classifier,
    train_classifier,
    write_stores,
)
from metaphase.networks.architectures import build_network
from metaphase.networks.cards import PHH3_NETWORKS, ModelCard, NetworkSpec, bundled_model
from metaphase.networks.checkpoints import load_model, save_model
from metaphase.networks.training.patches import open_store
from metaphase.simulation.cohort import case_truth
from metaphase.simulation.config import LABORATORIES, SimulationConfig, cohort_cases
from metaphase.simulation.rendering import object_patches
from metaphase.slides.opening import SlideSource
from metaphase.slides.tiles import cut_square, cut_squares
from tests.labels.phh3.slides import Points, array_slide, draw_slide, spread_points, write_slide

GAMMA = 0.1
QUICK = LearningConfig(epochs=1, batch=4, samples_per_epoch=8, gamma=GAMMA)


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_slide(tmp_path_factory.mktemp("slide") / "phh3.tif", draw_slide(900, spread_points(12, 900)))


def write_model(path: Path, name: str, *, seed: int = 0, decision: float = 0.5) -> Path:
    """An untrained CNN1 or CNN2."""
    torch.manual_seed(seed)
    spec = NetworkSpec("classifier", GAMMA)
    tuned = OperatingPoint(name="patches", delta=decision, metric="F1", value=0.9)
    card = ModelCard(
        name=f"our {name}", family="classifier", gamma=GAMMA, mpp=0.25, patch_px=100, classes=CLASSES[name],
        thresholds={"patches": tuned},
    )  # fmt: skip
    save_model(path / f"{name}.safetensors", build_network(spec), card)
    return path / f"{name}.safetensors"


def labelled_project(folder: Path, slide: Path, labels: list[str]) -> Path:
    """A project with an item a label, its cases taking turns."""
    points: Points = spread_points(len(labels), 900, seed=1)
    items = pd.DataFrame(points, columns=["x", "y"]).astype(float)
    items = items.assign(item=[f"{folder.name}-{n}" for n in range(len(items))], slide=str(slide))
    items["case"] = [f"c{n % 4}" for n in range(len(items))]
    write_project(folder, items[["item", "slide", "x", "y", "case"]], Settings(title="t", question="q"))
    pd.DataFrame({"item": items["item"], "label": labels, "agreed": True}).to_csv(
        folder / "labels.csv", index=False
    )
    return folder


def test_batches_hold_the_same_patches_as_one_by_one() -> None:
    slide = array_slide(draw_slide(700), mpp=0.25)
    points = np.random.default_rng(0).uniform(0, 700, (40, 2))
    expected = np.stack([cut_square(slide, x, y, 60, 0.25) for x, y in points])
    found = np.zeros_like(expected)
    seen = []
    for rows, patches in batched(cut_squares(slide, points, 60, 0.25), 7):
        assert len(rows) <= 7 + 40
        found[rows] = patches
        seen += rows.tolist()
    assert sorted(seen) == list(range(40))
    np.testing.assert_array_equal(found, expected)


def test_cases_stay_whole_and_the_manifest_decides() -> None:
    rows = pd.DataFrame({"case": [f"c{n % 9}" for n in range(90)]})
    split = assign_splits(rows, seed=0)
    owners = split.groupby("case")["split"].nunique()
    assert (owners == 1).all()
    assert split.groupby("split")["case"].nunique().to_dict() == {"train": 5, "validation": 4}
    stated = rows.assign(split=["train", "validation", "test"] * 30)
    assert set(assign_splits(stated, seed=0)["split"]) == {"train", "validation"}
    with pytest.raises(Phh3Error, match="two patients"):
        assign_splits(rows[rows["case"] == "c0"], seed=0)


@given(st.integers(0, 49))
def test_a_patient_is_never_in_both_splits(seed: int) -> None:
    patients = {"c0": "P", "c1": "P", "c2": "Q", "c3": "Q", "c4": "R", "c5": ""}
    rows = pd.DataFrame({"case": list(patients) * 3}).assign(
        patient=lambda table: table["case"].map(patients), split=""
    )
    split = assign_splits(rows, seed)
    assert len(split) == len(rows)
    owner = split.assign(patient=split["patient"].where(split["patient"] != "", split["case"]))
    assert (owner.groupby("patient")["split"].nunique() == 1).all()
    assert owner.groupby("split")["patient"].nunique().to_dict() == {"train": 2, "validation": 2}


def test_two_cases_of_one_patient_cannot_be_split() -> None:
    rows = pd.DataFrame({"case": ["a", "b"], "patient": ["P", "P"]})
    with pytest.raises(Phh3Error, match="two patients"):
        assign_splits(rows, seed=0)


def test_a_patient_whom_the_manifest_tears_apart_is_refused() -> None:
    rows = pd.DataFrame({"case": ["a", "b", "c"], "split": ["train", "validation", "train"]})
    assert assign_splits(rows, seed=0)["split"].tolist() == rows["split"].tolist()
    with pytest.raises(TrainingError, match="P is in train and in validation"):
        assign_splits(rows.assign(patient=["P", "P", "Q"]), seed=0)
    kept = assign_splits(rows.assign(patient=["P", "Q", "P"]), seed=0)
    assert kept["split"].tolist() == ["train", "validation", "train"]


def two_items(slide: Path) -> pd.DataFrame:
    x, y = spread_points(12, 900)[0]
    rows = pd.DataFrame({"item": ["a", "b"], "slide": str(slide), "x": x + 0.5, "y": y + 0.5})
    return rows.assign(label=[1, 0], case=["c1", "c2"], split=["train", "validation"])


def first_patch(stores: dict[str, Path]) -> RGB:
    return open_store(stores["train"]).take(np.array([0]))[0]


def test_another_resolution_or_another_slide_makes_new_stores(tmp_path: Path) -> None:
    slide = write_slide(tmp_path / "phh3.tif", draw_slide(900, spread_points(12, 900)))
    rows = two_items(slide)
    stores = write_stores(rows, tmp_path / "out")
    before = first_patch(stores)
    assert write_stores(rows.assign(mpp=0.5), tmp_path / "out") == stores, "what the file says itself"
    finer = write_stores(rows.assign(mpp=0.4), tmp_path / "out")
    assert not set(finer.values()) & set(stores.values())
    assert not np.array_equal(first_patch(finer), before)
    write_slide(slide, draw_slide(900, spread_points(12, 900), seed=1))
    other = write_stores(rows, tmp_path / "out")
    assert not set(other.values()) & set(stores.values())
    assert not np.array_equal(first_patch(other), before)
    np.testing.assert_array_equal(first_patch(stores), before)


def test_other_labels_and_splits_make_new_stores(slide: Path, tmp_path: Path) -> None:
    rows = two_items(slide)
    made = [
        write_stores(rows, tmp_path),
        write_stores(rows.assign(label=[0, 1]), tmp_path),
        write_stores(rows.assign(split=["validation", "train"]), tmp_path),
    ]
    assert len({stores["train"] for stores in made}) == 3


def test_patches_hold_the_object_in_the_middle(slide: Path, tmp_path: Path) -> None:
    x, y = spread_points(12, 900)[0]
    rows = pd.DataFrame(
        {"item": ["a", "b"], "slide": str(slide), "x": x + 0.5, "y": y + 0.5, "label": [1, 0]}
    )
    stores = write_stores(rows.assign(case=["c1", "c2"], split=["train", "validation"]), tmp_path)
    patch = open_store(stores["train"]).take(np.array([0]))[0]
    assert patch[64, 64].sum() < 300  # brown
    assert patch[5, 5].sum() > 300
    assert write_stores(rows.assign(case=["c1", "c2"], split=["train", "validation"]), tmp_path) == stores


def test_what_the_networks_learn(slide: Path, tmp_path: Path) -> None:
    first = labelled_project(tmp_path / "p1", slide, ["artefact"] * 5 + ["mitosis", "not"] * 4)
    second = labelled_project(tmp_path / "p2", slide, ["mitosis"] * 6 + ["not"] * 4 + ["artefact"])
    assert cnn1_rows(first)["label"].value_counts().to_dict() == {1: 8, 0: 5}
    assert cnn2_rows(second)["label"].value_counts().to_dict() == {1: 6, 0: 5}
    extended = cnn2_rows(second, [first, first])
    assert extended["label"].value_counts().to_dict() == {0: 10, 1: 6}
    assert extended["item"].is_unique


def test_training_starts_from_the_weights_of_a_model(slide: Path, tmp_path: Path) -> None:
    project = labelled_project(
        tmp_path / "p", slide, ["artefact", "mitosis"] * 2 + ["mitosis", "artefact"] * 2
    )
    start = write_model(tmp_path, "cnn1", seed=7)
    still = replace(QUICK, learning_rate=1e-9, final_learning_rate=1e-9, normalisation="batch")
    result = train_classifier("cnn1", cnn1_rows(project), tmp_path / "m", still, start=start, device="cpu")
    before, after = (load_model(model)[0].state_dict() for model in (start, result.model))
    assert before.keys() == after.keys(), "the model decides the normalisation"
    for name, weights in before.items():
        torch.testing.assert_close(after[name], weights, rtol=0, atol=1e-6)
    stores = {"train": tmp_path, "validation": tmp_path}
    warm, cold = QUICK.of_network("cnn1", stores, start), QUICK.of_network("cnn1", stores)
    assert QUICK.of_network("cnn2", stores, target="positive").classes == ("other", "positive")
    assert cold.classes == ("artefact", "object")
    assert warm.learning_rate == pytest.approx(cold.learning_rate / 5)


@pytest.mark.parametrize("name", ["cnn1", "cnn2"])
def test_bundled_networks_are_known_by_their_names(name: str) -> None:
    network = load_classifier(name, PHH3_NETWORKS[name], "cpu")
    assert network.card.classes == CLASSES[name]
    assert all(data.terms for data in network.card.data)
    assert "suggestion" in network.card.intended_use
    assert bundled_model(PHH3_NETWORKS[name]).stat().st_size < 4_500_000


@pytest.mark.slow
def test_bundled_networks_tell_simulated_mitoses_from_artefacts() -> None:
    """On a slide of a laboratory that they have not seen."""
    config = SimulationConfig(cases=1, centres=1, seed=5, width=768, height=768, mitoses_per_mm2=(500, 500))
    case = replace(cohort_cases(config)[0], laboratory=LABORATORIES[3])
    truth = case_truth(case)
    wanted = truth["in_phh3"] & truth["phh3_positive"] & (truth["category"] == "mitosis")
    brown = truth["in_phh3"] & (truth["category"] == "artefact")
    for name in PHH3_NETWORKS:
        network = load_classifier(name, PHH3_NETWORKS[name], "cpu")
        yes, no = (
            network(object_patches(case, truth[rows].head(12), "phh3", 100)) for rows in (wanted, brown)
        )
        assert np.median(yes) >= network.decision > np.median(no)


def test_a_model_of_other_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Phh3Error, match="not cnn1"):
        load_classifier("cnn1", write_model(tmp_path, "cnn2"), "cpu")


def test_labels_without_one_class_are_refused(slide: Path, tmp_path: Path) -> None:
    project = labelled_project(tmp_path / "p", slide, ["mitosis"] * 8)
    with pytest.raises(Phh3Error, match="no artefact"):
        train_classifier("cnn1", cnn1_rows(project), tmp_path / "m", QUICK, device="cpu")


def test_scores_are_kept_until_weights_or_candidates_change(slide: Path, tmp_path: Path) -> None:
    search_case(SlideSource(slide), tmp_path / "case", BrownConfig(fields=8), threads=1)
    cnn1 = load_classifier("cnn1", write_model(tmp_path / "a", "cnn1"), "cpu")
    cnn2 = load_classifier("cnn2", write_model(tmp_path / "a", "cnn2", seed=1, decision=0.0), "cpu")
    scores, fresh = classify_case(SlideSource(slide), tmp_path / "case", "K-1", [cnn1])
    assert fresh
    assert not (tmp_path / "case" / MITOSES).exists()
    scores, fresh = classify_case(SlideSource(slide), tmp_path / "case", "K-1", [cnn1, cnn2])
    assert fresh
    assert {"cnn1", "cnn2"} <= set(scores.table)
    assert not classify_case(SlideSource(slide), tmp_path / "case", "K-1", [cnn1, cnn2])[1]
    assert not classify_case(SlideSource(slide, 0.5), tmp_path / "case", "K-1", [cnn1, cnn2])[1], (
        "as the file says"
    )
    assert classify_case(SlideSource(slide, 0.4), tmp_path / "case", "K-1", [cnn1, cnn2])[1], (
        "another resolution"
    )
    stricter = load_classifier("cnn2", write_model(tmp_path / "b", "cnn2", seed=1, decision=1.0), "cpu")
    assert classify_case(SlideSource(slide), tmp_path / "case", "K-1", [stricter])[1], (
        "the same weights decide otherwise"
    )
    assert len(read_mitoses(tmp_path / "case")) == 0
    classify_case(SlideSource(slide), tmp_path / "case", "K-1", [cnn1, cnn2])
    mitoses = read_mitoses(tmp_path / "case")
    assert mitoses[["slide", "label", "frame"]].drop_duplicates().values.tolist() == [
        ["K-1", "mitosis", "phh3"]
    ]
    assert len(mitoses) == 12
    search_case(SlideSource(slide), tmp_path / "case", BrownConfig(fields=8, max_area_um2=45), threads=1)
    with pytest.raises(Phh3Error, match="have changed since"):
        read_classified(tmp_path / "case")
    scores, fresh = classify_case(SlideSource(slide), tmp_path / "case", "K-1", [cnn1])
    assert fresh
    assert set(read_classified(tmp_path / "case").keys) == {"cnn1"}
    with pytest.raises(Phh3Error, match="CNN2"):
        read_mitoses(tmp_path / "case")


def test_a_case_without_candidates_is_classified(tmp_path: Path) -> None:
    blank = write_slide(tmp_path / "phh3.tif", draw_slide(700))
    search_case(SlideSource(blank), tmp_path / "case", BrownConfig(fields=8), threads=1)
    cnn2 = load_classifier("cnn2", write_model(tmp_path, "cnn2"), "cpu")
    scores, _ = classify_case(SlideSource(blank), tmp_path / "case", "c", [cnn2])
    assert len(scores.table) == 0
    assert len(pd.read_parquet(tmp_path / "case" / MITOSES)) == 0
