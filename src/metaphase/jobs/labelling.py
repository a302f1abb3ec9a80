"""Merging on disk: answers in, labels, disagreements and a page about them out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metaphase.base.errors import UsageError
from metaphase.base.tables import named, write_table
from metaphase.labels.observers.consensus import AGREE, Merged, merge_answers
from metaphase.labels.observers.project import LABELS, load_project
from metaphase.labels.observers.store import AnswerStore, Given
from metaphase.reports.agreement import write_agreement_page

DISAGREEMENTS = "disagreements.csv"


def merge_project(
    folder: str | Path,
    agree: int = AGREE,
    output: str | Path | None = None,
    observers: Sequence[str] | None = None,
) -> Merged:
    """Merge a project's answers (of all observers, or of those named).

    Writes labels, disagreements and a report to `output`, which is the project's folder by default.
    """
    project = load_project(folder)
    with AnswerStore(project) as store:
        given = _chosen(store.current(), observers, store)
        changes = store.changes()
    merged = merge_answers(project, given, agree, changes)
    target = project.folder if output is None else Path(output)
    write_table(target / LABELS, merged.labels)
    write_table(target / DISAGREEMENTS, merged.disagreements)
    write_agreement_page(target, project, merged)
    return merged


def _chosen(given: list[Given], observers: Sequence[str] | None, store: AnswerStore) -> list[Given]:
    if observers is None:
        return given
    wanted = {store.known(name) for name in observers}
    unknown = wanted - {one.observer for one in given}
    if unknown:
        raise UsageError(
            f"nobody of that name has answered: {named(sorted(unknown))}",
            next_step=f"observers are {', '.join(store.observers()) or 'none yet'}",
        )
    return [one for one in given if one.observer in wanted]
