"""`metaphase label` as typed: what is printed, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from metaphase.base.errors import UsageError
from metaphase.base.tables import TableError
from metaphase.cli.view import label
from metaphase.labels.observers.project import Project
from metaphase.labels.observers.store import AnswerStore
from metaphase.web import labelling
from metaphase.web.serving import Running
from tests.labels.observers.projects import write_project


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(label, [str(argument) for argument in arguments])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = write_project(tmp_path / "p", 6)
    with AnswerStore(made) as store:
        for observer in ("Anna", "Ben", "Cleo"):
            for item in ("i000", "i001"):
                store.record(observer, item, "mitosis" if item == "i000" else "not", 2.0)
        store.record("Ben", "i001", "unsure", 3.0)
    return made


def test_merge_prints_observers_and_counts(project: Project) -> None:
    result = run("merge", project.folder)
    assert result.exit_code == 0, result.output
    assert "1 of 6 items have a label (1 mitosis); 1 to discuss" in result.output
    assert "Anna" in result.output
    assert "agreement.html" in result.output
    assert (project.folder / "labels.csv").is_file()


def test_merge_as_json_elsewhere(project: Project, tmp_path: Path) -> None:
    result = run("merge", project.folder, "--agree", "2", "-o", tmp_path / "out", "--json")
    assert json.loads(result.output)["labels"] == {"mitosis": 1, "not": 1}
    assert (tmp_path / "out" / "labels.csv").is_file()


def test_merge_of_some_observers(project: Project) -> None:
    chosen = ("--observer", "Anna", "--observer", "Ben")
    found = json.loads(run("merge", project.folder, "--agree", "2", *chosen, "--json").output)
    assert [row["observer"] for row in found["observers"]] == ["Anna", "Ben"]


def test_export_and_import(project: Project, tmp_path: Path) -> None:
    assert "6 answers" in run("export", project.folder, "-o", tmp_path / "a.csv").output
    result = run("import", project.folder, tmp_path / "a.csv")
    assert result.output.strip() == "0 new answers, 0 replaced, 6 known already"
    (tmp_path / "a.csv").write_text("observer,item,answer\nA,nothing,not\n")
    assert isinstance(run("import", project.folder, tmp_path / "a.csv").exception, TableError)


def test_serve_hands_over_its_options_and_prints_the_link(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:

    (project.folder / "secret-a.png").unlink()
    asked: dict[str, Any] = {}

    def pretend(folder: Path, **options: Any) -> None:
        options.pop("ready")(Running("http://somewhere/", len(project.items)))
        asked.update(options, folder=folder)

    monkeypatch.setattr(labelling, "serve_project", pretend)
    result = run("serve", project.folder, "--port", "0", "--token", "t" * 20)
    assert asked == {"folder": project.folder, "host": "127.0.0.1", "port": 0, "token": "t" * 20}
    assert result.stdout == "http://somewhere/\n"
    assert "3 of 6 items have no picture: 1 slide missing, first " in result.stderr


def test_too_few_observers_is_wrong_use(project: Project) -> None:
    assert isinstance(run("merge", project.folder, "--agree", "4").exception, UsageError)
