"""Outputs appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaphase.base.errors import MetaphaseError, OutputError
from metaphase.base.files import atomic_path, held, refuse_link, write_text
from metaphase.base.sharing.batch import run_batch


def test_failure_keeps_the_earlier_file(tmp_path: Path) -> None:
    target = tmp_path / "new folder" / "table.csv"
    write_text(target, "old")
    with pytest.raises(KeyError), atomic_path(target) as temporary:  # noqa: PT012 -- both lines belong to the case
        temporary.write_text("half")
        raise KeyError
    assert target.read_text() == "old"
    assert list(target.parent.iterdir()) == [target]


def test_file_in_the_way_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("I am a file")
    with pytest.raises(OutputError, match=r"result\.json: cannot write .* in the way"):
        write_text(tmp_path / "out" / "result.json", "{}")


def test_messages_name_file_problem_and_next_step() -> None:
    error = MetaphaseError("the file is empty (0 bytes)", path="a b.svs", next_step="copy it again")
    assert str(error) == "a b.svs: the file is empty (0 bytes). Copy it again."


def test_nothing_is_written_where_a_link_in_the_results_leads(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "results", tmp_path / "theirs"
    (mine / "slide").mkdir(parents=True)
    theirs.write_text("theirs")
    for name in ("errors.log", "table.csv", "lock"):
        (mine / name).symlink_to(theirs)
    run_batch({"a": 1}, lambda *_: 1 // 0, mine)
    write_text(mine / "table.csv", "mine")
    with (
        pytest.raises(OutputError, match="is a link, and results are not written through links"),
        held(mine / "lock"),
    ):
        pass
    assert theirs.read_text() == "theirs"
    (mine / "other").symlink_to(tmp_path)
    (mine / "round").symlink_to(mine / "round")
    refuse_link(mine / "slide", mine)
    for name in ("other", "other/x"):
        with pytest.raises(OutputError, match="is a link"):
            refuse_link(mine / name, mine)
    with pytest.raises(OutputError, match="is a link"):
        refuse_link(mine / "round")
