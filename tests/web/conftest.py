"""A small labelling project and its answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from metaphase.labels.observers.project import Project
from metaphase.labels.observers.store import AnswerStore
from tests.labels.observers.projects import write_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_project(tmp_path / "project")


@pytest.fixture
def store(project: Project) -> Iterator[AnswerStore]:
    with AnswerStore(project) as opened:
        yield opened
