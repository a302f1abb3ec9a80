"""The observer study: blind, complete, and the paper's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from metaphase.base.errors import UsageError
from metaphase.base.tables import TableError, write_table
from metaphase.evaluation.observers import (
    StudyConfig,
    export_observers,
    judge,
    plan_study,
    proportion,
    read_observers,
)

MPP = 0.25


def table(count: int, probability: float) -> pd.DataFrame:
    generator = np.random.default_rng(count)
    frame = pd.DataFrame({"slide": "s", "x": generator.uniform(0, 900, count)})
    return frame.assign(y=generator.uniform(0, 700, count), probability=probability)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A slide with a red square at every detection and a blue one at every distractor."""
    points = pd.concat([table(12, 0.9), table(20, 0.3)], ignore_index=True)
    pixels = np.full((800, 1000, 3), 255, np.uint8)
    for x, y, probability in zip(points["x"], points["y"], points["probability"], strict=True):
        colour = (200, 0, 0) if probability > 0.5 else (0, 0, 200)
        pixels[int(y) - 2 : int(y) + 3, int(x) - 2 : int(x) + 3] = colour
    Image.fromarray(pixels).save(tmp_path / "slide.png")
    write_table(tmp_path / "points.csv", points)
    write_table(tmp_path / "manifest.csv", pd.DataFrame({"case": ["s"], "he": ["slide.png"], "mpp": [MPP]}))
    return tmp_path


def export(study: Path, **options: object):  # type: ignore[no-untyped-def]
    return export_observers(
        study / "points.csv",
        study / "manifest.csv",
        study / "for-observer",
        key=study / "key.csv",
        threshold=0.5,
        config=StudyConfig(patch_um=8, **options),  # type: ignore[arg-type]
    )


def test_patches_show_the_object_in_the_middle_and_names_say_nothing(study: Path) -> None:
    exported = export(study)
    assert exported.key["kind"].value_counts().to_dict() == {"detection": 12, "distractor": 12}
    for item, kind in zip(exported.key["item"], exported.key["kind"], strict=True):
        patch = np.asarray(Image.open(study / f"for-observer/patches/{item}.png"))
        assert patch.shape == (32, 32, 3)
        red, _, blue = patch[15:17, 15:17].reshape(-1, 3).mean(axis=0)
        assert (red > blue) == (kind == "detection")
    sheet = pd.read_csv(study / "for-observer/answers.csv", dtype=str)
    assert sheet.columns.tolist() == ["item", "answer"]
    assert sheet["item"].tolist() == sorted(exported.key["item"])
    files = {path.name for path in (study / "for-observer").rglob("*") if path.is_file()}
    assert files == {"answers.csv", "README.txt", *(f"{item}.png" for item in exported.key["item"])}


def test_order_follows_the_seed_and_mixes_kinds(study: Path) -> None:
    keys = [plan_study(table(30, 0.9), table(30, 0.1), StudyConfig(seed=seed)) for seed in (0, 0, 1)]
    pd.testing.assert_frame_equal(keys[0], keys[1])
    assert not keys[0].equals(keys[2])
    assert 5 < (keys[0]["kind"].head(30) == "detection").sum() < 25


def test_answers_read_back(study: Path) -> None:
    key = export(study, detections=10, distractors=4).key
    said = np.where(key["kind"] == "detection", "Mitosis", "not")
    said[np.flatnonzero(key["kind"] == "detection")[:3]] = ["not", "unsure", "0"]
    said[np.flatnonzero(key["kind"] == "distractor")[0]] = "yes"
    sheet = pd.DataFrame({"item": key["item"].astype(int), "answer": said})
    write_table(study / "anna.csv", sheet.sample(frac=1, random_state=0))
    write_table(study / "bert.csv", sheet.assign(answer="mitosis"))
    write_table(study / "carl.csv", sheet.assign(answer="not"))
    anna, bert, carl, most = read_observers(
        study / "key.csv", [study / f"{name}.csv" for name in ("anna", "bert", "carl")], recall=0.5
    )
    assert (anna.observer, anna.confirmed, anna.judged, anna.called_mitosis) == ("anna", 7, 10, 1)
    assert anna.alternative_f1 == pytest.approx(2 * 0.7 * 0.5 / 1.2)
    assert (bert.confirmed, carl.confirmed) == (10, 0)
    assert (most.observer, most.confirmed, most.called_mitosis) == ("majority", 7, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.iloc[1:], "1 items not answered"),
        (lambda s: s.assign(answer=[None, *s["answer"][1:]]), "1 items not answered"),
        (lambda s: pd.concat([s, s.head(1)]), "answered more than once"),
        (lambda s: pd.concat([s, pd.DataFrame({"item": ["9999"], "answer": ["not"]})]), "not of this study"),
        (lambda s: s.assign(answer="perhaps"), "no answer: perhaps"),
    ],
)
def test_incomplete_or_odd_answers_are_refused(study: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    sheet = pd.DataFrame({"item": export(study).key["item"], "answer": "not"})
    write_table(study / "a.csv", change(sheet))
    with pytest.raises(TableError, match=message):
        read_observers(study / "key.csv", [study / "a.csv"])


def test_a_key_without_items_is_none(study: Path) -> None:
    sheet = pd.DataFrame({"item": export(study).key["item"], "answer": "not"})
    write_table(study / "a.csv", sheet)
    write_table(study / "key.csv", pd.DataFrame(columns=["item", "kind"]))
    with pytest.raises(TableError, match="the key has no item"):
        read_observers(study / "key.csv", [study / "a.csv"])


def test_the_key_may_not_lie_with_the_observer(study: Path) -> None:
    with pytest.raises(UsageError, match="in the observer's folder"):
        export_observers(
            study / "points.csv",
            study / "manifest.csv",
            study / "out",
            key=study / "out/key.csv",
        )
    with pytest.raises(UsageError, match="50 detections are wanted and there are 12"):
        export(study, detections=50)


def test_the_papers_observer() -> None:
    key = pd.DataFrame({"item": [f"{i:04}" for i in range(181)], "kind": "detection"})
    answers = pd.Series([True] * 128 + [False] * 53, index=key["item"])
    result = judge(key, answers, recall=0.494)
    assert round(result.precision.value, 3) == 0.707
    assert 0.581 <= result.alternative_f1 < 0.582
    assert np.isnan(proportion(0, 0).value)
