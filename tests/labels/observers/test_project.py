"""Project folders: what is read, and what is refused with which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from metaphase.base.errors import MetaphaseError
from metaphase.labels.observers.project import LabellingError, Project, load_project
from tests.labels.observers.projects import write_project


def rewrite(project: Project, **columns: Any) -> Project:
    path = project.folder / "items.csv"
    pd.read_csv(path).assign(**columns).to_csv(path, index=False)
    return load_project(project.folder)


def test_defaults(project: Project) -> None:
    assert project.answer_names == ("mitosis", "not", "artefact", "unsure")
    assert [answer.key for answer in project.settings.answers] == ["m", "n", "a", "u"]
    item = project.items[0]
    assert item.slide == project.folder / "secret-b.png"
    assert (item.case, item.mpp) == ("patient-2", 0.5)
    assert len(project.by_number) == 12


def test_case_and_mpp_are_optional_and_absolute_slides_stay(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item,slide,x,y\n007,/slides/a.svs,1,2\n")
    (item,) = load_project(tmp_path).items
    assert (item.name, item.slide, item.case, item.mpp) == ("007", Path("/slides/a.svs"), "", None)


def test_order_is_an_observers_own_and_stays(project: Project) -> None:
    anna, ben = project.order_for("Anna"), project.order_for("Ben")
    assert sorted(anna) == sorted(ben) == sorted(project.by_number)
    assert anna != ben
    assert anna != [item.number for item in project.items]
    assert project.order_for("anna") == anna


def test_added_items_do_not_disturb_the_order(tmp_path: Path) -> None:
    fewer, more = write_project(tmp_path / "p", 20).order_for("Anna"), None
    path = tmp_path / "p" / "items.csv"
    path.write_text(path.read_text() + "new,secret-a.png,99,99,c,0.5,0.5\n")
    more = load_project(tmp_path / "p").order_for("Anna")
    assert [number for number in more if number in set(fewer)] == fewer


def test_numbers_follow_the_place_and_not_the_folder(project: Project) -> None:
    before = [item.number for item in project.items]
    frame = pd.read_csv(project.folder / "items.csv")
    moved = rewrite(project, slide="elsewhere/" + frame["slide"])
    assert [item.number for item in moved.items] == before
    shifted = rewrite(project, x=frame["x"] + 1)
    assert not {item.number for item in shifted.items} & set(before)


def test_missing_slides_are_counted(project: Project) -> None:
    (project.folder / "secret-a.png").unlink()
    assert project.missing_slides() == {project.folder / "secret-a.png": 6}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("item,slide,x\n1,a,2\n", "no column y"),
        ("item,slide,x,y\n", "has no items"),
        ("item,slide,x,y\n1,a,2,3\n1,b,2,3\n", "more than once: 1"),
        ("item,slide,x,y\n1,a,2,3\n2,b,left,3\n", "'left', which is not a number"),
        ("item,slide,x,y\n1,a,2,3\n2,b,,3\n", "row 2 has no position"),
        ("item,slide,x,y\n1,a,2,3\n2,b,inf,3\n", "row 2 has no position"),
        ("item,slide,x,y\n1,a,2,3\n2,,2,3\n", "row 2 has no item or no slide"),
        ("item,slide,x,y,mpp\n1,a,2,3,-1\n", "row 1 has no valid mpp"),
    ],
)
def test_bad_items_are_named(tmp_path: Path, rows: str, words: str) -> None:
    (tmp_path / "items.csv").write_text(rows)
    with pytest.raises(MetaphaseError, match=words) as caught:
        load_project(tmp_path)
    assert "items.csv" in str(caught.value)
    assert caught.value.next_step


def test_a_folder_without_items_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(LabellingError, match=r"no items\.csv.*item, slide, x, y"):
        load_project(tmp_path)


TWO = [{"name": "yes", "key": "1"}, {"name": "no", "key": "2"}]


def test_settings_are_read_and_foreign_fields_left_alone(tmp_path: Path) -> None:
    settings = {"title": "Round 1", "answers": TWO, "close_um": 32, "made_by": "phh3 sample"}
    project = write_project(tmp_path, 3, settings)
    assert project.settings.title == "Round 1"
    assert project.answer_names == ("yes", "no")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"answers": [*TWO, {"name": "maybe", "key": "1"}]}, "the same key"),
        ({"answers": [*TWO, {"name": "no", "key": "3"}]}, "the same name"),
        ({"answers": [*TWO, {"name": "zero", "key": "z"}]}, "the page itself uses the key z"),
        ({"answers": TWO[:1]}, "answers"),
        ({"answers": [*TWO, {"name": "x", "key": "X"}]}, r"answers\.2\.key"),
        ({"answers": [*TWO, {"name": "x", "key": "x", "colour": "red;}"}]}, r"answers\.2\.colour"),
        ({"close_um": 300}, "context_um must be larger"),
        ({"title": ""}, "title"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(LabellingError, match=words) as caught:
        write_project(tmp_path, 3, settings)
    assert "project.json" in str(caught.value)


def test_settings_that_are_no_json(project: Project) -> None:
    (project.folder / "project.json").write_text("{title")
    with pytest.raises(LabellingError, match=r"project\.json.*JSON"):
        load_project(project.folder)


def test_identity_tells_projects_apart_without_naming_them(tmp_path: Path) -> None:
    one, two = write_project(tmp_path / "one", 3), write_project(tmp_path / "two", 3)
    assert one.identity != two.identity
    assert one.identity == load_project(tmp_path / "one").identity
    assert "one" not in json.dumps(one.identity)
