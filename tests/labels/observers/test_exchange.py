"""Answers to CSV and back, and what is refused on the way in."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from metaphase.base.errors import MetaphaseError
from metaphase.base.tables import TableError
from metaphase.labels.observers.project import Project, load_project
from metaphase.labels.observers.store import AnswerStore, Imported, export_answers, import_answers
from tests.labels.observers.projects import write_project


def test_out_and_in_again(project: Project, tmp_path: Path) -> None:
    with AnswerStore(project) as store:
        store.record("Anna", "i000", "mitosis", 1.5)
        store.record("Ben, B.", "i000", "not", 2.0)
        store.record("Anna", "i001", "not")
        store.record("Anna", "i001", None)
        before = store.current()
    assert export_answers(project.folder, tmp_path / "out.csv") == 2
    assert import_answers(project.folder, tmp_path / "out.csv") == Imported(0, 0, 2)
    other = write_project(tmp_path / "other")
    assert import_answers(other.folder, tmp_path / "out.csv") == Imported(2, 0, 0)
    with AnswerStore(other) as store:
        assert store.current() == before


def test_other_tools_may_leave_out_seconds_and_time(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("\ufeffItem;Observer;Answer\ni000;01;Mitosis\ni001;01;UNSURE\n", encoding="utf-8")
    assert import_answers(project.folder, path) == Imported(2, 0, 0)
    with AnswerStore(load_project(project.folder)) as store:
        found = [(one.observer, one.item, one.answer, one.seconds) for one in store.current()]
    assert found == [("01", "i000", "mitosis", 0.0), ("01", "i001", "unsure", 0.0)]


def test_a_changed_answer_replaces_and_keeps_the_name_as_first_written(
    project: Project, tmp_path: Path
) -> None:
    with AnswerStore(project) as store:
        store.record("Anna", "i000", "not")
    path = tmp_path / "in.csv"
    path.write_text("observer,item,answer\nANNA,i000,mitosis\nanna,i001,not\n")
    assert import_answers(project.folder, path) == Imported(1, 1, 0)
    with AnswerStore(project) as store:
        assert {(one.observer, one.item, one.answer) for one in store.current()} == {
            ("Anna", "i000", "mitosis"),
            ("Anna", "i001", "not"),
        }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("observer,item\nA,i000\n", "no column answer"),
        ("", "no column observer, item, answer"),
        ("observer,item,answer\nA,i999,not\nA,x,not\n", "unknown items: i999, x"),
        ("observer,item,answer\nA,i000,perhaps\n", "unknown answers .*mitosis, not.*'perhaps'"),
        ("observer,item,answer\nA,i000,\n", "unknown answers"),
        ("observer,item,answer\nA,i000,not\na,i000,not\n", "answered more than once: i000 by A"),
        ("observer,item,answer,seconds\nA,i000,not,fast\n", "item i000: 'fast' is not a valid seconds"),
        ("observer,item,answer,seconds\nA,i000,not,-1\n", "'-1' is not a valid seconds"),
        ("observer,item,answer,seconds\nA,i000,not,nan\n", "'nan' is not a valid seconds"),
        ("observer,item,answer,time\nA,i000,not,noon\n", "'noon' is not a valid time"),
        ("observer,item,answer\n=A1,i000,not\n", "cannot be an observer's name"),
    ],
)
def test_a_bad_row_refuses_the_file(project: Project, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "in.csv"
    path.write_text(text)
    with pytest.raises(MetaphaseError, match=words):
        import_answers(project.folder, path)
    with AnswerStore(project) as store:
        assert store.current() == []


def test_files_that_cannot_be_read(project: Project, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="cannot be read"):
        import_answers(project.folder, tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableError, match="UTF-8"):
        import_answers(project.folder, tmp_path / "binary.csv")


def test_the_export_of_nothing_has_its_columns(project: Project, tmp_path: Path) -> None:
    assert export_answers(project.folder, tmp_path / "out.csv") == 0
    assert list(pd.read_csv(tmp_path / "out.csv").columns) == [
        "observer",
        "item",
        "answer",
        "seconds",
        "time",
    ]
