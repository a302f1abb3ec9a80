from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

import pandas as pd
import pytest

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import LIMITS, check_plain, finite, is_file, parse_json, parsing, raised
from metaphase.base.provenance import CHECK, facts_of, why_again, write_note
from metaphase.base.settings import read_toml
from metaphase.base.sharing.batch import ERRORS, run_batch
from metaphase.base.tables import Remark, TableError, read_manifest, read_table, require_numbers, write_table


def test_pipes_devices_sockets_and_folders_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("device").symlink_to("/dev/zero")
    Path("kernel").symlink_to("/proc/kmsg")  # looks plain, and never ends
    Path("circle").symlink_to("circle")
    Path("folder").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    for name in ("pipe", "device", "kernel", "socket", "circle", "folder", "absent", "a\0b"):
        with pytest.raises(MetaphaseError, match=r"not a file|cannot be read|folder"):
            check_plain(name)
        assert not is_file(name)
        with pytest.raises(UsageError):
            read_toml(name)
        with pytest.raises(TableError):
            read_table(name)


def test_json_of_any_depth_and_numbers_of_any_length_are_values_or_value_errors() -> None:
    for text in ("[" * 200_000, '{"a":' * 50_000, "9" * 6000, b"\xff", ""):
        with contextlib.suppress(ValueError):
            assert parse_json(text) == float("inf")
    assert parse_json("9" * 400) == float("inf")
    assert parse_json(str(2**62)) == 2**62


@pytest.mark.parametrize("value", [True, None, [], {}, "x", float("nan"), float("inf"), 10**400, b"1"])
def test_only_finite_numbers_are_numbers(value: object) -> None:
    with pytest.raises(ValueError):
        finite(value)
    assert finite("0.5") == finite(0.5) == 0.5


def test_whatever_a_library_raises_names_the_file() -> None:
    for problem in (KeyError("a"), RecursionError("x"), MemoryError(), OverflowError("y"), LookupError()):
        with pytest.raises(TableError, match=r"^a\.csv: is broken \(.+\)"):  # noqa: SIM117
            with parsing("a.csv", "is broken", next_step="mend it", error=TableError):
                raise problem


def test_limits_are_raised_by_a_setting_and_never_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert raised(10) == 10
    monkeypatch.setenv(LIMITS, "2.5")
    assert raised(10) == 25
    for wrong in ("0.5", "nan", "x", "inf"):
        monkeypatch.setenv(LIMITS, wrong)
        with pytest.raises(UsageError, match=LIMITS):
            raised(10)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 100_000, "a = " + "9" * 6000, "[" + "a." * 50_000 + "a]", "\ufffe", "a"]
)
def test_toml_that_chokes_parsers_is_wrong_use(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(UsageError):
        read_toml(path)


def test_a_damaged_note_says_nothing(tmp_path: Path) -> None:
    note, account = tmp_path / "note.json", {"stage": "a", "schema": [1], "ingredients": {"x": 0.1}}
    write_note(note, account, {"count": 3})
    assert not why_again(note, account)
    assert facts_of(note) == {"count": 3}
    content = json.loads(note.read_text())
    note.write_text(json.dumps(content | {"facts": {"count": 4}}))
    assert why_again(note, account)
    assert facts_of(note) == {}
    del content[CHECK]
    note.write_text(json.dumps(content))
    assert why_again(note, account)
    note.unlink()
    os.mkfifo(note)
    assert why_again(note, account)


def test_a_log_that_cannot_be_written_stops_no_cohort(tmp_path: Path) -> None:
    (tmp_path / ERRORS).mkdir()

    def work(number: int, _progress: object) -> int:
        return 1 // number

    batch = run_batch({"a": 0, "b": 1}, work, tmp_path)
    assert list(batch.results) == ["b"]
    assert not run_batch({"b": 1}, work, tmp_path).failures


def test_names_that_are_no_text_can_be_written(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "caf\udce9")
    assert (tmp_path / "a.txt").read_text() == "caf\\udce9"


NAMES = [
    "=1+2",
    "+x",
    "-1",
    "-x",
    "@x",
    "'=x",
    "''=x",
    "'a",
    " a",
    "a ",
    " ",
    "a\rb",
    "a\nb",
    "\tb",
    'a"b',
    "NA",
    "#x",
]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_names_come_back_as_they_were(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"table.{suffix}"
    write_table(path, pd.DataFrame({"slide": NAMES, "=x": range(len(NAMES))}))
    back = read_table(path)
    assert back["slide"].tolist() == NAMES
    assert list(back.columns) == ["slide", "=x"]


def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    names = ["=cmd()", "+1+2", "+49", "@x", "-x", "-inf"]
    write_table(tmp_path / "a.csv", pd.DataFrame({"slide": names, "x": -1.5}))
    cells = [cell for line in (tmp_path / "a.csv").read_text().splitlines() for cell in line.split(",")]
    assert not [cell for cell in cells if cell[0] in "=+@-" and cell != "-1.5"]


@pytest.mark.parametrize(
    "cells",
    [[True, False], [b"1", b"2"], pd.to_datetime(["2020-01-01"] * 2), ["1", "x"], [{}, 1], [[1], [2]]],
)
def test_truths_times_and_bytes_are_no_numbers(cells: object) -> None:
    with pytest.raises(TableError, match="not a number"):
        require_numbers(pd.DataFrame({"x": cells}), ["x"])


def test_a_manifest_has_finite_numbers(tmp_path: Path) -> None:
    path = tmp_path / "manifest.csv"
    path.write_text(f"case,he,mpp\na,a.tif,0.25\nb,b.tif,{'9' * 400}\n")
    with pytest.raises(TableError, match=r"mpp"):
        read_manifest(path)


def test_a_table_of_ours_with_a_changed_byte_is_no_other_table(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": [float(number) for number in range(200)]})
    write_table(tmp_path / "a.parquet", table)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    values = data.find(b"\xf0?")  # within the column
    data[values] ^= 0x10
    (tmp_path / "b.parquet").write_bytes(data)
    with pytest.raises(TableError, match="cannot be read as a table"):
        read_table(tmp_path / "b.parquet")


def test_what_is_said_of_a_table_is_shared_by_tables_made_of_it(tmp_path: Path) -> None:
    described = Remark(model="breast", cases=["a", "b"])
    table = pd.DataFrame({"x": [1.0, 2.0]})
    table.attrs["points"] = described
    write_table(tmp_path / "a.parquet", table)
    back = read_table(tmp_path / "a.parquet")
    assert back.attrs == {"points": described}
    for one in (table, back):
        assert one[one["x"] > 1].assign(y=0).attrs["points"] is one.attrs["points"]
