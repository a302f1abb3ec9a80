"""Merging on disk: labels, disagreements, the page and its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from metaphase.base.errors import UsageError
from metaphase.labels.observers.consensus import merge_answers
from metaphase.labels.observers.project import DEFAULT_ANSWERS, LabellingError, Project
from metaphase.labels.observers.store import AnswerStore, Entry
from metaphase.learn.calibration import merge_project
from tests.labels.observers.projects import write_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_project(tmp_path / "project")


def label(project: Project, sheet: dict[str, list[str]]) -> None:
    with AnswerStore(project) as store:
        for observer, answers in sheet.items():
            pairs = zip(project.by_name, answers, strict=False)
            store.record_many(Entry(observer, item, answer, 2.0) for item, answer in pairs if answer)


SHEET = {
    "Anna": ["mitosis", "mitosis", "not", "artefact"],
    "Ben": ["mitosis", "not", "not", "artefact"],
    "Cleo": ["mitosis", "mitosis", "not", ""],
    "Dan": ["not", "not", "not", "artefact"],
}


def test_what_is_written(project: Project) -> None:
    label(project, SHEET)
    merged = merge_project(project.folder)
    labels = pd.read_csv(project.folder / "labels.csv", keep_default_na=False)
    assert list(labels["label"])[:5] == ["mitosis", "", "not", "artefact", ""]
    assert list(labels["agreed"])[:5] == [True, False, True, True, False]
    assert list(labels["votes_not"])[:5] == [1, 2, 4, 0, 0]
    votes = [f"votes_{name}" for name in project.answer_names]
    assert list(labels.columns) == ["item", "label", "agreed", *votes]
    assert len(labels) == len(project.items)
    divided = pd.read_csv(project.folder / "disagreements.csv", keep_default_na=False)
    assert list(divided["item"]) == ["i001", "i000"]
    assert list(divided.columns)[:5] == ["item", "case", "slide", "x", "y"]
    assert divided.loc[0, "answer_Ben"] == "not"
    record = json.loads((project.folder / "agreement.json").read_text())
    assert record["labels"] == {"mitosis": 1, "not": 1, "artefact": 1}
    assert record["items_answered_by_all"] == 3
    assert record["fleiss_kappa"] == pytest.approx(merged.fleiss.value)
    assert len(record["pairs"]) == 6


def test_answers_that_count_together(tmp_path: Path) -> None:
    answers = [one.model_dump() for one in DEFAULT_ANSWERS]
    answers[2]["counts_as"] = "not"
    project = write_project(tmp_path, 2, {"answers": answers})
    label(
        project, {"A": ["not", "not"], "B": ["not", "mitosis"], "C": ["artefact"] * 2, "D": ["artefact"] * 2}
    )
    merged = merge_project(project.folder)
    assert list(merged.labels["label"]) == ["not", "not"]
    record = json.loads((project.folder / "agreement.json").read_text())
    assert record["pooled"]["fleiss_kappa"] == pytest.approx(
        merged.pooled.fleiss.value if merged.pooled else 9
    )
    assert len(record["pooled"]["pairs"]) == 6
    page = (project.folder / "agreement.html").read_text()
    assert "Pooled, artefact counts as not." in page
    assert "The same, pooled" in page
    answers[2]["counts_as"] = "nothing"
    (project.folder / "project.json").write_text(json.dumps({"answers": answers}))
    with pytest.raises(LabellingError, match="counts_as nothing is no answer that counts by itself"):
        merge_project(project.folder)


def test_the_page_holds_pictures_and_escapes_names(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 4, {"title": "<script>alert(1)</script>"})
    label(project, {**SHEET, "Eve & <i>": ["unsure"]})
    (project.folder / "secret-a.png").unlink()  # of item 1, which is divided
    merge_project(project.folder, output=tmp_path / "out")
    page = (tmp_path / "out" / "agreement.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 2
    assert "the slide cannot be read here" in page
    assert "<script>" not in page
    assert "Eve &amp; &lt;i&gt;" in page
    assert not (project.folder / "labels.csv").exists()


def test_some_observers_only(project: Project) -> None:
    label(project, SHEET)
    merged = merge_project(project.folder, agree=2, observers=["anna", "Ben"])
    assert list(merged.sheet.columns) == ["Anna", "Ben"]
    assert merged.labelled == 3
    with pytest.raises(UsageError, match=r"these observers have not answered: Zed.*Anna, Ben, Cleo, Dan"):
        merge_project(project.folder, observers=["Zed"])


def test_one_answer_alike_has_no_kappa(project: Project) -> None:
    label(project, {"A": ["not", "not"], "B": ["not", "not"]})
    merged = merge_project(project.folder, agree=2)
    assert np.isnan(merged.fleiss.value)
    record = json.loads((project.folder / "agreement.json").read_text())
    assert record["fleiss_kappa"] is None
    assert record["pairs"][0]["kappa"] is None
    assert "–" in (project.folder / "agreement.html").read_text()


def test_four_observers_with_known_errors_recover_the_truth(tmp_path: Path) -> None:
    """As in the paper: 3 of 4 agree, and what is kept is cleaner than any one observer."""
    project = write_project(tmp_path, 400)
    rng = np.random.default_rng(1)
    truth = np.where(rng.random(400) < 0.45, "mitosis", "not")
    with AnswerStore(project) as store:
        for observer in "ABCD":
            wrong = rng.random(400) < 0.1
            said = np.where(wrong, np.where(truth == "not", "mitosis", "not"), truth)
            pairs = zip(project.by_name, said.tolist(), strict=True)
            store.record_many(Entry(observer, item, answer, 1.0) for item, answer in pairs)
        merged = merge_answers(project, store.current())
    kept = (merged.labels["label"] != "").to_numpy()
    right = merged.labels["label"].to_numpy()[kept] == truth[kept]
    assert kept.mean() > 0.9
    assert right.mean() > 0.985
    assert 0.5 < merged.fleiss.value < 0.8  # expected 1 - 2 * 0.1 * 0.9 / 0.5 = 0.64
