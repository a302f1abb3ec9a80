"""Notes beside outputs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from metaphase.errors import MetaphaseError
from metaphase.records import (
    Record,
    facts_of,
    file_fingerprint,
    joint_fingerprint,
    note_path,
    table_fingerprint,
)


def record(**settings: object) -> Record:
    return Record("test", settings, {"slide": "abc"})


def test_done_means_the_same_settings_and_inputs(tmp_path: Path) -> None:
    output = tmp_path / "a.bin"
    with record(t=0.6, pair=(1, 2)).noted(output, {"count": 3}):
        output.write_bytes(b"x")
    assert record(t=0.6, pair=(1, 2)).is_done(output)
    assert not record(t=0.5, pair=(1, 2)).is_done(output)
    assert not Record("test", {"t": 0.6, "pair": (1, 2)}, {"slide": "other"}).is_done(output)
    assert facts_of(note_path(output)) == {"count": 3}
    output.unlink()
    assert not record(t=0.6, pair=(1, 2)).is_done(output)


def test_an_old_note_never_stands_beside_new_content(tmp_path: Path) -> None:
    output = tmp_path / "a.bin"
    with record(t=1).noted(output):
        output.write_bytes(b"old")

    def killed_after_writing() -> None:
        with record(t=2).noted(output):
            output.write_bytes(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed_after_writing()
    assert not record(t=1).is_done(output)
    assert not record(t=2).is_done(output)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"made_from": 3}'])
def test_damaged_notes_do_not_match(tmp_path: Path, text: str) -> None:
    output = tmp_path / "a.bin"
    output.write_bytes(b"x")
    note_path(output).write_text(text)
    assert not record().is_done(output)


def test_fingerprints_notice_changes(tmp_path: Path) -> None:
    path = tmp_path / "slide"
    path.write_bytes(bytes(3_000_000))
    before = file_fingerprint(path)
    path.write_bytes(bytes(2_999_999) + b"1")
    assert file_fingerprint(path) != before
    table = pd.DataFrame({"x": [1.0, 2.0], "label": [0, 1]})
    assert table_fingerprint(table) == table_fingerprint(table.copy())
    assert table_fingerprint(table) != table_fingerprint(table.iloc[::-1])
    assert table_fingerprint(table) != table_fingerprint(table.rename(columns={"x": "y"}))
    assert joint_fingerprint(["a", "b"]) == joint_fingerprint(iter("ab")) != joint_fingerprint("ba")


def test_a_missing_file_has_no_fingerprint_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(MetaphaseError, match=r"gone\.svs: cannot be read .*\. Check the path\.$"):
        file_fingerprint(tmp_path / "gone.svs")


def test_a_record_is_told_from_every_other_one_but_not_by_the_order_of_its_settings() -> None:
    one = record(t=1, pair=(1, 2))
    assert one.fingerprint == record(pair=[1, 2], t=1).fingerprint
    others = [
        record(t=2, pair=(1, 2)),
        Record("test", one.settings, {}),
        Record("other", one.settings, one.inputs),
    ]
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 4
