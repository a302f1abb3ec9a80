"""Which candidates are drawn, and what a labelling project holds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.errors import OutputError, UsageError
from metaphase.base.tables import read_manifest, write_table
from metaphase.labels.observers.project import (
    DEFAULT_ANSWERS,
    LabellingError,
    Settings,
    load_project,
    read_items,
    read_labels,
    write_project,
)
from metaphase.labels.phh3.cases import CANDIDATES, CANDIDATES_NOTE, Classified, write_classified
from metaphase.labels.phh3.networks import cnn2_rows
from metaphase.labels.phh3.sampling import DrawConfig, Purpose, draw_project, draw_sample

ASKED = Settings(title="title", question="mitosis?")
POOL = pd.DataFrame(
    {
        "item": [f"i{n}" for n in range(100)],
        "case": ["a"] * 80 + ["b"] * 15 + ["c"] * 5,
        "probability": np.linspace(0, 1, 100),
    }
)


@given(st.integers(1, 150), st.booleans(), st.floats(0, 1), st.integers(0, 5))
def test_each_candidate_at_most_once_and_as_many_as_asked(
    count: int, per_case: bool, active: float, seed: int
) -> None:
    drawn = draw_sample(POOL, DrawConfig(count, per_case, active, seed), decision=0.5)
    assert len(drawn) == min(count, 100)
    assert drawn["item"].is_unique


def test_the_same_seed_draws_the_same_and_order_is_random() -> None:
    first, again = (draw_sample(POOL, DrawConfig(50, seed=3)) for _ in range(2))
    pd.testing.assert_frame_equal(first, again)
    numbers = first["item"].str[1:].astype(int)
    assert not numbers.is_monotonic_increasing
    assert set(draw_sample(POOL, DrawConfig(50, seed=4))["item"]) != set(first["item"])


def test_per_case_draws_equally_from_each() -> None:
    counts = draw_sample(POOL, DrawConfig(30, per_case=True))["case"].value_counts()
    assert counts.to_dict() == {"a": 13, "b": 12, "c": 5} or counts.to_dict() == {"a": 12, "b": 13, "c": 5}


def test_active_items_lie_nearest_to_the_decision() -> None:
    drawn = draw_sample(POOL, DrawConfig(10, active_share=1.0), decision=0.3)
    assert drawn["probability"].between(0.24, 0.36).all()
    with pytest.raises(UsageError, match="classify"):
        draw_sample(POOL, DrawConfig(10, active_share=0.5))


def test_every_candidate_has_equal_odds() -> None:
    hits = np.zeros(100)
    for seed in range(300):
        hits[draw_sample(POOL, DrawConfig(20, seed=seed))["item"].str[1:].astype(int)] += 1
    assert abs(hits - 60).max() < 30  # 60 expected, standard deviation 7
    assert abs(hits[:80].mean() - 60) < 2


def items(folder: Path) -> pd.DataFrame:
    columns = {"x": [1.0, 2.0, 3.0], "y": [4.0, 5.0, 6.0], "case": ["01"] * 3}
    return pd.DataFrame({"item": ["01-0", "01-1", "01-2"], "slide": str(folder / "s.tif"), **columns})


def test_a_project_round_trips_and_is_never_overwritten(tmp_path: Path) -> None:
    write_project(tmp_path / "deep" / "project", items(tmp_path), ASKED)
    stored = pd.read_csv(tmp_path / "deep" / "project" / "items.csv")
    assert stored["slide"][0] == "../../s.tif"
    back = read_items(tmp_path / "deep" / "project")
    assert Path(back["slide"][0]).resolve() == (tmp_path / "s.tif").resolve()
    assert back["case"].tolist() == ["01"] * 3
    settings = json.loads((tmp_path / "deep" / "project" / "project.json").read_text())
    assert settings == {"title": "title", "question": "mitosis?"}
    with pytest.raises(OutputError):
        write_project(tmp_path / "deep" / "project", items(tmp_path), ASKED)


def test_only_agreed_labels_are_read(tmp_path: Path) -> None:
    write_project(tmp_path, items(tmp_path), ASKED)
    with pytest.raises(LabellingError, match="label merge"):
        read_labels(tmp_path)
    (tmp_path / "labels.csv").write_text(
        "item,label,agreed,votes_mitosis\n01-2,mitosis,true,4\n01-1,unsure,true,0\n01-0,,false,2\n"
    )
    assert read_labels(tmp_path)[["item", "label"]].values.tolist() == [["01-2", "mitosis"]]
    (tmp_path / "labels.csv").write_text("item,label,agreed\n01-0,,false\n")
    with pytest.raises(LabellingError, match="agreed"):
        read_labels(tmp_path)


def test_items_have_the_resolution_of_the_phh3_slide(tmp_path: Path) -> None:
    found = pd.DataFrame({"candidate": [0, 1], "x": [5.0, 6.0], "y": [7.0, 8.0], "dab_mean": [0.1, 0.2]})
    for case in "abc":
        write_table(tmp_path / "work" / case / CANDIDATES, found)
        (tmp_path / "work" / case / CANDIDATES_NOTE).write_text("{}")
    (tmp_path / "cohort.csv").write_text(
        "case,patient,phh3,split,mpp,phh3_mpp\n"
        "a,P,a.tif,train,0.25,0.5\nb,P,b.tif,train,0.25,\nc,Q,c.tif,train,,\nd,R,d.tif,test,,\n"
    )
    manifest = read_manifest(tmp_path / "cohort.csv")
    drawn = draw_project(manifest, tmp_path / "work", tmp_path / "project", "cnn1", DrawConfig(99))
    assert len(drawn.items) == 6
    assert "dab_mean" not in drawn.items, "nothing tells what a program thinks of an item"
    known = drawn.items.drop_duplicates("case").set_index("case").sort_index()
    assert known["mpp"].fillna(0).to_dict() == {"a": 0.5, "b": 0.25, "c": 0}
    assert known["patient"].to_dict() == {"a": "P", "b": "P", "c": "Q"}


def test_the_first_round_asks_what_cnn1_warnings_and_tells_nobody(tmp_path: Path) -> None:
    """Of a case that it has seen; one that it has not gives random items only."""
    found = pd.DataFrame({"candidate": range(40), "x": 1.0, "y": np.arange(40.0)})
    for case in "ab":
        write_table(tmp_path / "work" / case / CANDIDATES, found)
        (tmp_path / "work" / case / CANDIDATES_NOTE).write_text("{}")
    said = found.assign(cnn1=np.linspace(0, 1, 40), cnn2=0.5)
    write_classified(tmp_path / "work" / "a", "a", Classified(said, {}, {"cnn1": 0.8, "cnn2": 0.5}))
    (tmp_path / "cohort.csv").write_text("case,phh3,split\na,a.tif,train\nb,b.tif,validation\n")
    manifest = read_manifest(tmp_path / "cohort.csv")
    config = DrawConfig(20, active_share=0.4)
    drawn = draw_project(manifest, tmp_path / "work", tmp_path / "project", "cnn1", config).items
    doubted = drawn[drawn["turn"] == 1]
    assert sorted(doubted["y"]) == list(range(28, 36)), "nearest to 0.8"
    assert set(doubted["case"]) == {"a"}
    assert set(drawn[drawn["turn"] == 0]["case"]) == {"a", "b"}
    assert not {"cnn1", "cnn2", "probability"} & set(read_items(tmp_path / "project"))


def test_all_candidates_go_to_people_where_cnn1_keeps_too_few(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The bundled CNN1 keeps few of the true figures on stains that it never saw."""
    found = pd.DataFrame({"candidate": range(40), "x": 1.0, "y": np.arange(40.0)})
    for case, kept in (("a", 30), ("b", 3)):
        write_table(tmp_path / "work" / case / CANDIDATES, found)
        (tmp_path / "work" / case / CANDIDATES_NOTE).write_text("{}")
        said = found.assign(cnn1=(np.arange(40) < kept).astype(float))
        write_classified(tmp_path / "work" / case, case, Classified(said, {}, {"cnn1": 0.5}))
    write_table(tmp_path / "work" / "c" / CANDIDATES, found)
    (tmp_path / "work" / "c" / CANDIDATES_NOTE).write_text("{}")
    (tmp_path / "cohort.csv").write_text("case,phh3,split\n" + "".join(f"{n},{n}.tif,train\n" for n in "abc"))
    manifest = read_manifest(tmp_path / "cohort.csv")
    kept = draw_project(manifest, tmp_path / "work", tmp_path / "kept", "cnn2", DrawConfig())
    assert kept.items["case"].value_counts().to_dict() == {"a": 30, "b": 3}
    assert kept.skipped == ("c",)
    assert "b: CNN1 keeps 3 of 40 candidates" in caplog.text
    assert "a: CNN1" not in caplog.text
    caplog.clear()
    config = DrawConfig(source="all", active_share=0.1)
    every = draw_project(manifest, tmp_path / "work", tmp_path / "all", "cnn2", config)
    assert every.items["case"].value_counts().to_dict() == {"a": 40, "b": 40, "c": 40}
    assert not every.skipped
    assert not caplog.text
    assert load_project(tmp_path / "all").settings.answers[2].counts_as == "not"


def test_the_second_round_pools_artefacts_and_asks_for_the_target(tmp_path: Path) -> None:
    found = pd.DataFrame({"candidate": range(4), "x": 1.0, "y": np.arange(4.0)})
    write_table(tmp_path / "work" / "a" / CANDIDATES, found)
    (tmp_path / "work" / "a" / CANDIDATES_NOTE).write_text("{}")
    write_classified(tmp_path / "work" / "a", "a", Classified(found.assign(cnn1=1.0), {}, {"cnn1": 0.5}))
    (tmp_path / "cohort.csv").write_text("case,phh3,split\na,a.tif,train\n")
    manifest = read_manifest(tmp_path / "cohort.csv")

    def asked(folder: str, purpose: Purpose, **settings: str) -> Settings:
        draw_project(manifest, tmp_path / "work", tmp_path / folder, purpose, DrawConfig(**settings))
        return load_project(tmp_path / folder).settings

    assert asked("one", "cnn1").answers == DEFAULT_ANSWERS
    paper = asked("two", "cnn2")
    assert [one.counts_as for one in paper.answers] == ["", "", "not", ""]
    other = asked("three", "cnn2", target="positive nucleus")
    assert other.question == "Is the brown object in the middle a positive nucleus?"
    assert [one.name for one in other.answers] == ["positive nucleus", "not", "artefact", "unsure"]
    assert asked("four", "cnn2", question="Brown?").question == "Brown?"
    (tmp_path / "three" / "labels.csv").write_text(
        "item,label,agreed\na-0,positive nucleus,true\na-1,not,true\na-2,unsure,true\na-3,mitosis,true\n"
    )
    rows = cnn2_rows(tmp_path / "three")
    assert dict(zip(rows["item"], rows["label"], strict=True)) == {"a-0": 1, "a-1": 0}
    with pytest.raises(UsageError, match="'artefact' is another answer"):
        DrawConfig(target="artefact")
