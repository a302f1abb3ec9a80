"""The log of answers: durable, append-only, written once a uuid."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaphase.base.errors import UsageError
from metaphase.labels.observers.project import LabellingError, Project, load_project
from metaphase.labels.observers.store import AnswerStore, Entry, clean_observer
from tests.labels.observers.projects import write_project


def standing(store: AnswerStore, observer: str | None = None) -> dict[tuple[str, str], str]:
    return {(one.observer, one.item): one.answer for one in store.current(observer)}


def test_the_latest_answer_stands_and_none_takes_it_back(store: AnswerStore) -> None:
    store.record("Anna", "i000", "mitosis", 2.0)
    store.record("Anna", "i001", "not", 1.0)
    store.record("Ben", "i000", "artefact")
    store.record("Anna", "i000", "unsure", 0.5)
    store.record("Anna", "i001", None, 0.25)
    assert standing(store) == {("Ben", "i000"): "artefact", ("Anna", "i000"): "unsure"}
    assert standing(store, "Anna") == {("Anna", "i000"): "unsure"}
    assert store.seconds_spent("Anna") == 3.75
    assert store.changes() == {"Anna": 2, "Ben": 0}


LOGS = st.lists(
    st.tuples(
        st.sampled_from("ABC"),
        st.sampled_from(["i000", "i001"]),
        st.sampled_from(["not", "unsure", None]),
    ),
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LOGS)
def test_current_is_the_log_replayed(project: Project, log: list[tuple[str, str, str | None]]) -> None:
    project.answers_path.unlink(missing_ok=True)
    expected = {(observer, item): answer for observer, item, answer in log}
    with AnswerStore(project) as store:
        store.record_many(Entry(*entry) for entry in log)
        assert standing(store) == {key: answer for key, answer in expected.items() if answer is not None}


def test_a_name_in_other_letters_is_the_same_person(store: AnswerStore) -> None:
    store.record("Zoë  Meier", "i000", "not")
    store.record("ZOË meier ", "i001", "not")
    assert store.observers() == ["Zoë Meier"]
    assert store.known(" zoë MEIER") == "Zoë Meier"


def test_the_same_uuid_is_written_once(store: AnswerStore) -> None:
    entry = Entry("Anna", "i000", "not", uuid="u")
    assert store.record_many([entry]) == 1
    store.record("Anna", "i000", "mitosis")
    assert store.record_many([entry, Entry("Anna", "i001", "not")]) == 1
    assert standing(store)["Anna", "i000"] == "mitosis"


@pytest.mark.parametrize("name", ["", "  ", "=cmd()", "@x", "a" * 65, "a\x00b", "<b>"])
def test_odd_names_are_refused(store: AnswerStore, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be an observer's name"):
        store.record(name, "i000", "not")
    assert store.observers() == []


def test_names_keep_spaces_hyphens_and_accents() -> None:
    assert clean_observer("  Dr.\tÅsa  O'Neil-Ruiz ") == "Dr. Åsa O'Neil-Ruiz"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (Entry("A", "elsewhere", "not"), "'elsewhere' is not an item"),
        (Entry("A", "i000", "maybe"), "'maybe' is not an answer"),
        (Entry("A", "i000", "not", -1.0), "-1.0 seconds"),
        (Entry("A", "i000", "not", float("nan")), "nan seconds"),
    ],
)
def test_one_bad_entry_refuses_all(store: AnswerStore, entry: Entry, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        store.record_many([Entry("A", "i001", "not"), entry])
    assert store.current() == []


def test_the_log_cannot_be_rewritten(store: AnswerStore, project: Project) -> None:
    store.record("Anna", "i000", "not")
    with sqlite3.connect(project.answers_path) as other:
        for statement in ("UPDATE log SET answer = 'mitosis'", "DELETE FROM log"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                other.execute(statement)
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()


def test_each_answer_waits_for_the_disk(store: AnswerStore) -> None:
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_killed_process_loses_nothing_it_reported(project: Project) -> None:
    code = f"""
import os, signal
from metaphase.labels.observers.project import load_project
from metaphase.labels.observers.store import AnswerStore
store = AnswerStore(load_project({str(project.folder)!r}))
for item in ("i000", "i001", "i002"):
    store.record("Anna", item, "not", 1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with AnswerStore(project) as store:
        assert [one.item for one in store.current("Anna")] == ["i000", "i001", "i002"]


def test_threads_and_a_second_process_write_together(project: Project) -> None:
    with AnswerStore(project) as first, AnswerStore(project) as second:

        def work(store: AnswerStore, observer: str) -> None:
            for item in project.by_name:
                store.record(observer, item, "not")

        jobs = [(first, "A"), (first, "B"), (second, "C"), (second, "D")]
        threads = [threading.Thread(target=work, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(first.current()) == 4 * len(project.items)


def test_items_may_be_added_but_not_changed_under_answers(project: Project) -> None:
    path = project.folder / "items.csv"
    with AnswerStore(project) as store:
        store.record("Anna", "i003", "not")
        store.record("Anna", "i004", "not")
        store.record("Anna", "i004", None)
    frame = pd.read_csv(path)
    extra = frame.iloc[:1].assign(item="more")
    pd.concat([extra, frame[frame["item"] != "i004"]]).to_csv(path, index=False)
    AnswerStore(load_project(project.folder)).close()
    frame[frame["item"] != "i003"].to_csv(path, index=False)
    with pytest.raises(LabellingError, match=r"items\.csv.*1 items were changed or removed.*i003.*Put back"):
        AnswerStore(load_project(project.folder))
    frame.assign(x=frame["x"] + 5).to_csv(path, index=False)
    with pytest.raises(LabellingError, match="i003"):
        AnswerStore(load_project(project.folder))


def test_a_damaged_database_is_explained(project: Project) -> None:
    project.answers_path.write_bytes(b"this is no database, whatever its name says" * 50)
    with pytest.raises(LabellingError, match=r"answers\.sqlite.*damaged.*\.recover"):
        AnswerStore(project)


def test_a_page_gone_bad_is_noticed_on_opening(project: Project) -> None:
    with AnswerStore(project) as store:
        store.record_many(Entry("Anna", item, "not") for item in project.by_name for _ in range(60))
    data = bytearray(project.answers_path.read_bytes())
    data[8192 : 8192 + 4096] = b"\xff" * 4096
    project.answers_path.write_bytes(data)
    with pytest.raises(LabellingError, match="damaged"):
        AnswerStore(project)


def test_foreign_and_newer_databases_are_left_alone(project: Project) -> None:
    other = sqlite3.connect(project.answers_path)
    other.execute("CREATE TABLE notes (text)")
    other.commit()
    other.close()
    with pytest.raises(LabellingError, match="some other database"):
        AnswerStore(project)
    project.answers_path.unlink()
    AnswerStore(project).close()
    other = sqlite3.connect(project.answers_path)
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(LabellingError, match="newer version"):
        AnswerStore(project)


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 2)
    gone = Project(tmp_path / "gone", project.settings, project.items)
    with pytest.raises(LabellingError, match="cannot be opened"):
        AnswerStore(gone)


def test_a_uuid_used_again_for_something_else_loses_nothing(project: Project) -> None:
    one, other = (item.name for item in project.items[:2])
    with AnswerStore(project) as store:
        first = Entry("Anna", one, "mitosis", uuid="same")
        entries = [first, Entry("Anna", other, "not", uuid="same"), Entry("Bob", one, "not", uuid="same")]
        assert store.record_many(entries) == 3
        assert store.record_many(entries) == 0
        assert store.record_many([Entry("Anna", one, "not", uuid="same")]) == 1
        given = {(one.observer, one.item): one.answer for one in store.current()}
    assert given == {("Anna", one): "not", ("Anna", other): "not", ("Bob", one): "not"}


def test_answers_are_their_owners_only(project: Project) -> None:
    with AnswerStore(project):
        kept = [path for path in project.folder.iterdir() if path.name.startswith("answers.sqlite")]
        assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    project.answers_path.chmod(0o664)
    with AnswerStore(project):
        assert project.answers_path.stat().st_mode & 0o777 == 0o660


def test_where_the_clock_jumps_the_order_stays(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over a restart; the latest of several decisions is the one that was given last."""
    days = iter(["2026-03-02", "2031-01-01", "2026-03-03", "1970-01-01"])
    monkeypatch.setattr("metaphase.labels.observers.store.now", lambda: f"{next(days)}T00:00:00.000+00:00")
    for answer in ("mitosis", "not", "mitosis", "not"):
        with AnswerStore(project) as store:
            store.record("Anna", "i000", answer)
    with AnswerStore(project) as store:
        (given,) = store.current()
        times = [time for (time,) in store._rows("SELECT time FROM log ORDER BY sequence")]
    assert given.answer == "not"
    assert times == sorted(times)
