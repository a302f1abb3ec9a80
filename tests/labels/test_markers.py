"""The label factory for another marker: a nuclear one like Ki-67, which a third of ordinary nuclei show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy.spatial import cKDTree

from metaphase.base.arrays import RGB
from metaphase.base.tables import read_manifest
from metaphase.images.stain.deconvolution import H_DAB_RESIDUAL, combine
from metaphase.labels.building import BuildConfig, build_cohort, given_points
from metaphase.labels.observers.project import load_project, read_target
from metaphase.labels.observers.store import AnswerStore, Entry
from metaphase.labels.phh3.candidates import BrownConfig
from metaphase.labels.phh3.cases import read_candidates, search_case
from metaphase.labels.phh3.networks import (
    LearningConfig,
    classify_case,
    cnn1_rows,
    cnn2_rows,
    load_classifier,
    train_classifier,
)
from metaphase.labels.phh3.sampling import DrawConfig, Purpose, draw_project
from metaphase.labels.reference import ReferenceConfig
from metaphase.labels.registration.similarity import Similarity
from metaphase.learn.calibration import merge_project
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.opening import SlideSource
from tests.labels.reference.pairs import REGISTRATION, save
from tests.labels.registration.slides import MPP, he_slide, moved

WIDTH, HEIGHT = 640, 600
TO_HE = Similarity(1.0, 0.004, 7.0, -5.0)
NUCLEI = BrownConfig(min_area_um2=20.0, max_area_um2=150.0, join_um=0.0)
"""Sizes of nuclei; neighbours are not the plates of one figure."""
TARGET = "positive nucleus"
QUICK = LearningConfig(epochs=1, batch=4, samples_per_epoch=8, gamma=0.1)
Positions = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Marked:
    """A pair with positions in pixels of the brown slide, and of the positive nuclei in H&E."""

    he: ArraySlide
    brown: ArraySlide
    positive: Positions
    artefacts: Positions
    positive_he: Positions


def apart(points: Positions, least: float, most: int) -> list[int]:
    """The first points that keep a distance from those before."""
    tree, kept = cKDTree(points), list[int]()
    for index, near in enumerate(tree.query_ball_point(points, least)):
        if len(kept) < most and not set(near).intersection(kept):
            kept.append(index)
    return kept


def drawn(seed: int) -> Marked:
    """Nuclei of 7 to 9 um, every third of them brown; squares, specks and smears that are no nuclei."""
    rng = np.random.default_rng(seed)
    cells = rng.uniform((30, 30), (WIDTH - 30, HEIGHT - 30), (3000, 2))
    cells = cells[apart(cells, 26.0, 260)]
    kind = rng.permutation(len(cells)) % 12
    blue, dab = np.zeros((2, HEIGHT, WIDTH), np.float32)
    for (x, y), what in zip(cells, kind, strict=True):
        if what < 11:
            axes, turn = tuple(int(v) for v in rng.uniform(7, 9, 2)), float(rng.uniform(0, 180))
            for canvas, dark in ((blue, rng.uniform(0.6, 1.1)), (dab, 1.0 if what < 4 else 0.0)):
                cv2.ellipse(canvas, (round(x), round(y)), axes, turn, 0, 360, float(dark), -1, cv2.LINE_AA)
    blue, there = (cv2.GaussianBlur(canvas, (0, 0), 1.2) for canvas in (blue, dab))
    here = TO_HE.invert(cells * MPP) / MPP
    seen = moved(there, TO_HE)
    squares = here[kind == 11]
    for x, y in np.rint(squares).astype(int).tolist():
        cv2.rectangle(seen, (x - 6, y - 6), (x + 6, y + 6), 1.4, -1)
    for x, y in rng.uniform(30, 570, (30, 2)).astype(int).tolist():
        cv2.circle(seen, (x, y), 2, 1.2, -1)
    cv2.ellipse(seen, (300, 25), (60, 12), 0, 0, 360, 1.5, -1)
    stains = np.stack([0.15 + 0.4 * moved(blue, TO_HE), seen + 0.02, np.zeros_like(seen)], axis=-1)
    noise = np.random.default_rng(seed).normal(0, 2, stains.shape)
    pixels: RGB = np.clip(combine(stains, H_DAB_RESIDUAL) * 255 + noise, 0, 255).astype(np.uint8)
    positive = kind < 4
    return Marked(he_slide(blue), ArraySlide(pixels, MPP), here[positive], squares, cells[positive])


@pytest.fixture(scope="module")
def pairs() -> dict[str, Marked]:
    return {"a": drawn(1), "b": drawn(2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, pairs: dict[str, Marked]) -> Path:
    """The cohort, its candidates found with sizes of nuclei."""
    folder = tmp_path_factory.mktemp("marker")
    for name, pair in pairs.items():
        save(folder / f"{name}.png", pair.brown)
        search_case(SlideSource(folder / f"{name}.png", MPP), folder / "work" / name, NUCLEI)
    save(folder / "a-he.png", pairs["a"].he)
    (folder / "cohort.csv").write_text(
        f"case,he,phh3,mpp,split\na,a-he.png,a.png,{MPP},train\nb,,b.png,{MPP},validation\n"
    )
    return folder


def shown(points: Positions, positions: Positions) -> npt.NDArray[np.bool_]:
    """Which points lie within 3 um of a position."""
    return np.asarray(cKDTree(positions).query(points)[0] * MPP <= 3)


def test_candidates_are_the_brown_nuclei_and_little_else(folder: Path, pairs: dict[str, Marked]) -> None:
    for name, pair in pairs.items():
        found = read_candidates(folder / "work" / name)[["x", "y"]].to_numpy()
        assert shown(pair.positive, found).mean() > 0.95
        assert shown(found, np.vstack([pair.positive, pair.artefacts])).mean() > 0.95


def asked(folder: Path, pairs: dict[str, Marked], purpose: Purpose, observers: Sequence[str]) -> Path:
    """A project whose items observers answered by the truth, the last of four now and then not."""
    project, manifest = folder / purpose, read_manifest(folder / "cohort.csv")
    draw_project(manifest, folder / "work", project, purpose, DrawConfig(target=TARGET))
    loaded = load_project(project)
    assert TARGET in loaded.settings.question
    with AnswerStore(loaded) as store:
        for item in loaded.items:
            place, pair = np.array([[item.x, item.y]]), pairs[item.case]
            truth = "artefact" if shown(place, pair.artefacts)[0] else "not"
            truth = TARGET if shown(place, pair.positive)[0] else truth
            for name in observers:
                wrong = name == observers[-1] and len(observers) > 1 and item.name.endswith("7")
                store.record_many([Entry(name, item.name, "not" if wrong else truth, 1.0)])
    merge_project(project, agree=min(3, len(observers)))
    return project


@pytest.mark.slow
def test_from_brown_nuclei_to_labels_on_the_other_slide(folder: Path, pairs: dict[str, Marked]) -> None:
    """Both rounds with the marker's own words, networks of its own classes, and its nuclei in H&E."""
    first = asked(folder, pairs, "cnn1", ["Ann"])
    cnn1 = train_classifier("cnn1", cnn1_rows(first), folder / "m1", QUICK, target=TARGET, device="cpu")
    slides = {name: SlideSource(folder / f"{name}.png", MPP) for name in pairs}
    for name, slide in slides.items():
        keeps_all = load_classifier("cnn1", cnn1.model, "cpu")
        keeps_all.card.thresholds["patches"].__dict__["delta"] = 0.0  # one epoch on 8 patches teaches nothing
        classify_case(slide, folder / "work" / name, name, [keeps_all])
    second = asked(folder, pairs, "cnn2", ["Ann", "Bea", "Cid", "Dot"])
    rows = cnn2_rows(second, [first])
    assert read_target(second) == TARGET
    labels = pd.read_csv(second / "labels.csv")
    assert (labels["label"] == TARGET).sum() == rows["label"].sum() > 100
    cnn2 = train_classifier("cnn2", rows, folder / "m2", QUICK, target=TARGET, device="cpu")
    network = load_classifier("cnn2", cnn2.model, "cpu")
    assert network.card.classes == ("other", TARGET)
    answers, _ = classify_case(slides["a"], folder / "work" / "a", "a", [network])
    assert {"cnn1", "cnn2"} <= set(answers.table)

    agreed = rows[(rows["label"] == 1) & (rows["case"] == "a")]
    agreed[["x", "y"]].to_csv(folder / "a.csv", index=False)
    config = BuildConfig(
        registration=REGISTRATION, reference=ReferenceConfig(require_visible=False, min_distance_um=4.0)
    )
    built = build_cohort(
        folder / "cohort.csv", folder / "labels", given_points, config, points=folder / "a.csv"
    )
    kept = built.table[built.table["accepted"]]
    assert len(kept) > 0.9 * len(agreed)
    assert shown(kept[["x", "y"]].to_numpy(), pairs["a"].positive_he).mean() > 0.98
