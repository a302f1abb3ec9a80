"""The paper of one's own data: what a file says, what comes from elsewhere, all of it on simulated slides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from metaphase.base.errors import UsageError
from metaphase.base.settings import config_files
from metaphase.cli.main import app
from metaphase.detections.table import detection_set
from metaphase.lab.paper import (
    FIELDS,
    TEST,
    TUNE,
    Elsewhere,
    _take_project,
    _write_outside,
    outside_manifest,
    read_paper,
)
from metaphase.lab.paper_parts import VALUES, _Parts, layer_rows
from metaphase.labels.observers.project import Settings, load_project, write_project
from metaphase.labels.observers.store import AnswerStore, Entry
from metaphase.learn.calibration import current_answers
from metaphase.learn.comparison import PAPER_F1, summarise
from metaphase.learn.config import read_run_config
from metaphase.networks.architectures import build_detector
from metaphase.networks.cards import NetworkSpec

TINY = """
[paper.pairs]
cases = 5
centres = 1
width = 1536
height = 1536
mitoses_per_mm2 = [300, 500]
lookalikes_per_mm2 = 100
seed = 2
workers = 1

[paper.outside]
cases = 6
centres = 3
training_share = 0.0
width = 768
height = 768
mitoses_per_mm2 = [100, 600]
seed = 4
workers = 1

[paper.rounds]
round1 = 120
round2 = 120
unsure_share = 0.0
agree = 3
review = 0

[paper.phh3]
normalisation = "batch"
gamma = 0.1
batch = 16
epochs = 3
samples_per_epoch = 160
augment = "R"
learning_rate = 2e-3

[sets]
easy_negatives = 60
hard_negatives = 80
validation_positives = 1.0
validation_negatives = 0.1

[training]
batch = 16
epochs = 1
samples_per_epoch = 64
normalisation = "batch"
learning_rate = 2e-3

[ensemble]
networks = 1
gamma = 0.04

[students]
gammas = [0.04, 0.05, 0.06]

[test]
bootstrap = 50
suppress_um = 12.5

[experiments]
seeds = 1
"""


RUN = read_run_config(config_files()["paper"])


def test_a_manifest_alone_has_the_papers_numbers(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("case,he,phh3\n")
    paper, own = read_paper(tmp_path / "pairs.csv", tmp_path), RUN
    assert paper.manifest == str(tmp_path / "pairs.csv")
    assert (paper.run.sets, paper.run.training, paper.run.ensemble) == (own.sets, own.training, own.ensemble)
    assert (paper.section.rounds.round1, paper.section.rounds.agree) == (2000, 3)
    assert paper.lab.settings.rounds.round1 == 0, "nobody has labelled: the bundled networks decide"


@pytest.mark.parametrize(
    "text", ["[training]\nbatch = 8\n", '[cohort]\nmanifest = "a.csv"\n[paper.pairs]\ncases = 2\n']
)
def test_pairs_are_named_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(UsageError, match=r"run\.toml: it names no pairs, or both"):
        read_paper(tmp_path / "run.toml", tmp_path)


def test_half_of_the_patients_judge_where_no_split_is_stated(tmp_path: Path) -> None:
    paper = read_paper(config_files()["paper-tiny"], tmp_path)
    rows = {
        "case": ["a/1", "a/2", "b/1"],
        "he": "x.tif",
        "laboratory": "l",
        "split": "",
        "patient": ["a", "a", "b"],
    }
    points = {"slide": ["a/1", "b/1", "c"], "x": 1.0, "y": 2.0, "label": ["mitosis", "artefact", "mitosis"]}
    truth = detection_set(pd.DataFrame(points), ("a/1", "a/2", "b/1", "c"), "truth")
    _write_outside(paper, FIELDS, pd.DataFrame(rows), truth)
    fields = outside_manifest(paper, FIELDS)
    assert fields is not None
    assert fields["case"].tolist() == ["fields-a-1", "fields-a-2", "fields-b-1"]
    assert fields["split"].tolist() == [TUNE, TUNE, TEST]
    written = pd.read_csv(paper.outside / "truth.csv")
    assert written.dropna()["slide"].tolist() == ["fields-a-1"]
    assert set(written["slide"]) == set(fields["case"]), "those without a figure are known to have none"
    _write_outside(paper, FIELDS, pd.DataFrame(rows | {"split": ["train", "train", "test"]}))
    fields = outside_manifest(paper, FIELDS)
    assert fields is not None
    assert fields["split"].tolist() == [TUNE, TUNE, TEST]


def test_answers_of_a_project_are_taken_once_and_again_when_they_change(tmp_path: Path) -> None:
    items = pd.DataFrame({"item": ["a-1", "a-2"], "slide": "a.tif", "x": 1.0, "y": 2.0, "case": "a"})
    write_project(tmp_path / "mine", items, Settings(title="brown"))
    with pytest.raises(UsageError, match="nobody has answered"):
        _take_project(tmp_path / "mine", tmp_path / "out" / "round1")
    with AnswerStore(load_project(tmp_path / "mine")) as store:
        store.record_many([Entry("Anna", "a-1", "mitosis"), Entry("Ben", "a-1", "not")])
    _take_project(tmp_path / "mine", tmp_path / "out" / "round1")
    (tmp_path / "out" / "round1" / "labels.csv").write_text("merged")
    _take_project(tmp_path / "mine", tmp_path / "out" / "round1")
    assert (tmp_path / "out" / "round1" / "labels.csv").exists()
    with AnswerStore(load_project(tmp_path / "mine")) as store:
        store.record_many([Entry("Anna", "a-2", "artefact")])
    _take_project(tmp_path / "mine", tmp_path / "out" / "round1")
    assert not (tmp_path / "out" / "round1" / "labels.csv").exists()
    taken = [(one.observer, one.item, one.answer) for one in current_answers(tmp_path / "out" / "round1")]
    assert sorted(taken) == [("Anna", "a-1", "mitosis"), ("Anna", "a-2", "artefact"), ("Ben", "a-1", "not")]
    assert load_project(tmp_path / "out" / "round1").settings.title == "brown"


def test_a_study_shows_its_detections_with_the_verdict_of_most_observers(tmp_path: Path) -> None:
    key = {"item": ["0001", "0002", "0003"], "kind": ["detection", "distractor", "detection"], "slide": "a"}
    pd.DataFrame(key | {"x": 1.0, "y": 1.0, "probability": [0.9, 0.4, 0.8]}).to_csv(tmp_path / "key.csv")
    said = {
        "Anna": ("mitosis", "not", "not"),
        "Ben": ("mitosis", "not", "unsure"),
        "Eve": ("not", "not", "mitosis"),
    }
    for name, answers in said.items():
        (tmp_path / name / "patches").mkdir(parents=True)
        pd.DataFrame({"item": key["item"], "answer": answers}).to_csv(tmp_path / name / "answers.csv")
    for number, item in enumerate(key["item"]):
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(
            tmp_path / "Anna" / "patches" / f"{item}.png"
        )
    sheets = "".join(f'"{name}/answers.csv", ' for name in said)
    (tmp_path / "run.toml").write_text(
        f'[cohort]\nmanifest = "a.csv"\n[paper]\nstudy = "key.csv"\nanswers = [{sheets}]\n'
    )
    shown, text = _Parts(
        read_paper(tmp_path / "run.toml", tmp_path), Elsewhere(), summarise(RUN, {}, ())
    ).judged
    assert [(int(pixels.max()), verdict, caption) for pixels, verdict, caption in shown] == [
        (0, True, "0.900"),
        (2, False, "0.800"),
    ]
    assert "majority confirmed 1 of 2" in text


def test_the_networks_layers_are_those_of_the_paper() -> None:
    rows = layer_rows(build_detector(NetworkSpec()))
    own = [" ".join(row[1:4]) for row in rows]
    papers = [
        text.replace("γ", "").replace("stride ", "").replace(",", "") for text in VALUES["tables"]["layers"]
    ]
    papers[papers.index("dropout")] = "– – –"
    assert own == papers
    assert {row[-1] for row in rows[:-2]} == {"Leaky-ReLU (0.01)"}
    assert rows[-1][-1] == "Softmax"


def test_the_papers_values_are_the_same_in_both_places() -> None:
    said = VALUES["parts"]["table-3"]["paper"]
    assert all(f"{value:.3f}" in said for number, value in PAPER_F1.items() if number != 6)


@pytest.mark.slow
def test_the_paper_of_simulated_laboratories(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(TINY)
    arguments = ["paper", str(tmp_path / "small.toml"), "-o", str(tmp_path / "out")]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    page = (tmp_path / "out" / "index.html").read_text()
    parts = list(VALUES["parts"])
    assert [page.index(f'id="{name}"') for name in parts] == sorted(
        page.index(f'id="{name}"') for name in parts
    )
    made = {path.stem for path in (tmp_path / "out").glob("*/*.pdf")}
    assert made >= {name for name in parts if name.startswith("figure")} - {"figure-8"}  # may find nothing
    tables = {path.stem: pd.read_csv(path) for path in (tmp_path / "out" / "tables").glob("*.csv")}
    assert set(tables) == {name for name in parts if name.startswith("table")}
    assert tables["table-3"]["experiment"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert tables["table-1"]["cases"].gt(0).all()
    assert tables["table-4"]["this run"].str.match(r"'?-?[01]\.\d{3}|undefined|–").all()
    reference = pd.read_parquet(tmp_path / "out" / "training" / "reference.parquet")
    assert reference["case"].str.startswith("fields-").any()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.safetensors")}
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output
    assert " done " not in again.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before
    alone = TINY[: TINY.index("[paper.outside]")] + TINY[TINY.index("[paper.rounds]") :]
    (tmp_path / "small.toml").write_text(alone)
    third = CliRunner().invoke(app, arguments)
    assert third.exit_code == 0, third.output
    page = (tmp_path / "out" / "index.html").read_text()
    assert all(VALUES["missing"][kind][:40] in page for kind in ("fields", "slides"))
    assert {path: path.stat().st_mtime_ns for path in before} == before, "networks do not depend on the tests"
