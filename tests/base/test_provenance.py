"""What made a result: typed ingredients, keys, notes, and reasons in words."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metaphase.base.errors import MetaphaseError
from metaphase.base.provenance import (
    ABSENT,
    PIECE_BYTES,
    WHOLE_BYTES,
    FileContent,
    Ingredients,
    account_of,
    decides,
    differences,
    facts_of,
    file_fingerprint,
    note_path,
    table_fingerprint,
)
from metaphase.base.stages import Facts, Report, stage


@dataclass(frozen=True)
class Inner:
    radius_um: float = 7.5
    threads: int = field(default=2, metadata=decides())
    late: int = field(default=0, metadata=decides("late stage"))


@dataclass(frozen=True)
class Made(Ingredients, stage="test", schema=1):
    t: float = 0.6
    pair: tuple[int, ...] = (1, 2)
    inner: Inner = field(default_factory=Inner)


@dataclass(frozen=True)
class MadeLater(Ingredients, stage="late stage"):
    inner: Inner = field(default_factory=Inner)


def test_done_means_the_same_ingredients(tmp_path: Path) -> None:
    output = tmp_path / "a.bin"
    with Made().noted(output, {"count": 3}):
        output.write_bytes(b"x")
    assert Made().is_done(output)
    assert not Made(t=0.5).is_done(output)
    assert not Made(inner=Inner(radius_um=8.0)).is_done(output)
    assert facts_of(note_path(output)) == {"count": 3}
    output.unlink()
    assert not Made().is_done(output)


def test_fields_decide_the_stages_they_say_and_no_others() -> None:
    assert Made(inner=Inner(threads=9)).key == Made().key
    assert Made(inner=Inner(late=1)).key == Made().key
    assert MadeLater(Inner(late=1)).key != MadeLater().key
    assert MadeLater(Inner(threads=9)).key == MadeLater().key


def test_another_schema_of_the_code_makes_it_again(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Newer(Ingredients, stage="test", schema=2):
        t: float = 0.6
        pair: tuple[int, ...] = (1, 2)
        inner: Inner = field(default_factory=Inner)

    Made().write(tmp_path / "note.json")
    assert Made().matches(tmp_path / "note.json")
    assert Newer().why(tmp_path / "note.json") == "this version makes it differently"


def test_the_reason_names_what_changed(tmp_path: Path) -> None:
    note = tmp_path / "note.json"
    assert Made().why(note) == "not made yet"
    Made().write(note)
    assert Made().why(note) == ""
    assert Made(t=0.5, inner=Inner(8.0)).why(note) == "t was 0.6 and is 0.5; inner.radius_um was 7.5 and is 8"
    assert MadeLater().why(note) == "it was made by another stage"


def test_an_old_note_never_stands_beside_new_content(tmp_path: Path) -> None:
    output = tmp_path / "a.bin"
    with Made(t=1).noted(output):
        output.write_bytes(b"old")

    def killed_after_writing() -> None:
        with Made(t=2).noted(output):
            output.write_bytes(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed_after_writing()
    assert not Made(t=1).is_done(output)
    assert not Made(t=2).is_done(output)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"made_from": 3}', "7"])
def test_damaged_notes_do_not_match(tmp_path: Path, text: str) -> None:
    output = tmp_path / "a.bin"
    output.write_bytes(b"x")
    note_path(output).write_text(text)
    assert not Made().is_done(output)


class Colour(enum.Enum):
    RED = "red"


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(Colour.RED)
trees = st.recursive(
    plain, lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(trees)
@example(1e300)
@example([1.5e308, 2.0**53, -(2.0**70)])
def test_any_plain_value_has_an_account_that_survives_its_note(tmp_path_factory: Any, value: Any) -> None:
    @dataclass(frozen=True)
    class Anything(Ingredients, stage="anything"):
        value: Any

    note = tmp_path_factory.mktemp("notes") / "note.json"
    Anything(value).write(note)
    assert Anything(value).matches(note)


@pytest.mark.parametrize("value", [Path("slide.svs"), b"bytes", object(), {1, 2}])
def test_what_cannot_be_accounted_for_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="does not say what of it decides"):
        account_of(value)


def test_arrays_and_tables_count_by_what_they_hold() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0], "label": [0, 1]})
    assert table_fingerprint(table) == table_fingerprint(table.copy())
    assert account_of(table) != account_of(table.iloc[::-1])
    assert account_of(table) != account_of(table.rename(columns={"x": "y"}))
    large = np.zeros(1000)
    assert account_of(large) == account_of(large.copy()) != account_of(large + 1)
    assert account_of(np.eye(2)) == [[1.0, 0.0], [0.0, 1.0]]


def test_a_file_counts_by_its_content_and_not_by_its_name(tmp_path: Path) -> None:
    first, second = tmp_path / "a.bin", tmp_path / "b.bin"
    first.write_bytes(bytes(3_000_000))
    second.write_bytes(bytes(3_000_000))
    assert FileContent(first).account() == FileContent(second).account()
    middle = bytearray(3_000_000)
    middle[1_500_000] = 1
    second.write_bytes(middle)
    assert FileContent(first).account() != FileContent(second).account()
    assert FileContent(tmp_path / "gone").account() == ABSENT
    with pytest.raises(MetaphaseError, match=r"gone\.svs: no such file, so it cannot be read\. Check"):
        file_fingerprint(tmp_path / "gone.svs")


def test_large_files_are_judged_by_pieces_all_over(tmp_path: Path) -> None:
    path = tmp_path / "slide"
    size = WHOLE_BYTES + 1_000_003
    with path.open("wb") as file:
        file.truncate(size)
    seen = {file_fingerprint(path)}
    for position in (0, size // 2, size - 1):
        with path.open("r+b") as file:
            file.seek(max(0, position - PIECE_BYTES))
            file.write(b"\1" * min(2 * PIECE_BYTES + 100_000, size - max(0, position - PIECE_BYTES)))
        seen.add(file_fingerprint(path))
    assert len(seen) == 4


def test_a_folder_counts_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "points").mkdir()
    (tmp_path / "points" / "a.csv").write_text("x,y")
    before = FileContent(tmp_path / "points").account()
    (tmp_path / "points" / "a.csv").write_text("x,y,z")
    assert FileContent(tmp_path / "points").account() != before


def test_a_whole_number_is_the_same_with_and_without_a_point(tmp_path: Path) -> None:
    note = tmp_path / "note.json"
    Made(t=1).write(note)
    assert Made(t=1.0).matches(note)
    assert Made(t=1.0).key == Made(t=1).key


def test_the_schema_of_what_a_stage_uses_counts_too() -> None:
    def account() -> dict[str, Any]:
        @stage("outer", "made of what is kept elsewhere", uses=(MadeLater,))
        def outer(_owner: None, _report: Report, *, t: float) -> Facts:
            return {}

        return outer(None, t=1.0).ingredients.account()

    before = account()
    try:
        MadeLater.schema = 2
        assert differences(before, account()) == "this version makes it differently"
    finally:
        MadeLater.schema = 1
    assert account() == before


def test_a_key_is_told_from_every_other_one() -> None:
    others = [Made(t=2), Made(pair=(1, 2, 3)), MadeLater(), replace(Made(), inner=Inner(0.1))]
    assert len({Made().key, *(other.key for other in others)}) == 5


@dataclass(frozen=True)
class MadeOfAFile(Ingredients, stage="test of a file"):
    file: FileContent


def test_what_changes_while_it_is_used_gives_no_result(tmp_path: Path) -> None:
    file, output = tmp_path / "in", tmp_path / "out"
    file.write_text("before")
    made_from = MadeOfAFile(FileContent(file))

    def work() -> None:
        with made_from.noted(output):
            output.write_text("half of each")
            file.write_text("afterwards")

    with pytest.raises(MetaphaseError, match=r"out: changed during the stage .*: file"):
        work()
    assert not made_from.is_done(output)
