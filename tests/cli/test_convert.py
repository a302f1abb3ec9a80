"""`metaphase convert` as a user meets it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from metaphase.cli.main import main
from metaphase.detections.files import read_detections
from tests.detections.published import drawing, write_asap

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command within this process: exit code, output and errors."""

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["metaphase", "convert", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), *capsys.readouterr()

    return command


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two points on one slide, none on another."""
    path = tmp_path / "points.csv"
    path.write_text("slide,x,y,probability\nfall ä.svs,100,200,0.95\nfall ä.svs,300,400,0.5\nb,,,\n")
    return path


def test_through_every_format_and_back(run: Run, table: Path, tmp_path: Path) -> None:
    source: Path = table
    for name in ("qupath", "asap", "grand-challenge", "coco", "sliderunner", "parquet", "csv"):
        code, output, errors = run(source, "-o", tmp_path / name, "--to", name, "--mpp", "0.25", "--json")
        assert code == 0, errors
        done = json.loads(output)
        assert (done["points"], done["slides"], len(done["files"])) == (2, 2, 2)
        source = tmp_path / name
    found = read_detections(source)
    assert set(found.slides) == {"fall ä.svs", "b"}
    assert found.table[["x", "y", "probability"]].to_numpy() == pytest.approx(
        read_detections(table).table[["x", "y", "probability"]].to_numpy(), abs=0.01
    )


def test_threshold_and_the_line_for_people(run: Run, table: Path, tmp_path: Path) -> None:
    code, output, _ = run(table, "-o", tmp_path / "out.parquet", "--threshold", "0.8")
    assert code == 0
    assert output == f"1 point of 2 slides: {tmp_path / 'out.parquet'}\n"
    assert len(read_detections(tmp_path / "out.parquet").table) == 1


def test_neighbours_go_and_what_is_left_out_is_said(run: Run, tmp_path: Path) -> None:
    shapes = [drawing("Dot", "None", (1, 1)), drawing("Dot", "None", (2, 1)), drawing("Measurement", "None")]
    path = write_asap(tmp_path / "s.xml", shapes)
    code, output, errors = run(path, "-o", tmp_path / "o.csv", "--suppress-um", "2.5", "--mpp", "0.25")
    assert (code, output) == (0, f"1 point of 1 slide: {tmp_path / 'o.csv'}\n")
    assert "warning: s.xml: 1 annotations of the type Measurement left out" in errors.replace("\n", " ")
    code, output, _ = run(path, "-o", tmp_path / "o.csv", "--json")
    assert [warning["code"] for warning in json.loads(output)["warnings"]] == ["objects-left-out"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{table}"], 2, "Missing option"),
        (["absent.csv", "-o", "{tmp}/out.csv"], 1, "absent.csv: no such file or folder"),
        (["{table}", "-o", "{tmp}/out"], 2, "Give --to with one of asap"),
        (["{table}", "-o", "{tmp}/out.json"], 2, "Give --to with one of grand-challenge, coco"),
        (["{table}", "-o", "{tmp}/out", "--to", "word"], 2, "there is no format 'word'"),
        (["{table}", "-o", "{tmp}/out.geojson"], 2, "Name a folder and give --to qupath"),
        (["{table}", "-o", "{tmp}/out", "--to", "grand-challenge"], 1, "give it with --mpp"),
        (["{table}", "-o", "{tmp}/out.csv", "--threshold", "80"], 2, "from 0 to 1"),
        (["{table}", "{table}", "-o", "{tmp}/out.csv"], 1, "slide fall ä.svs is in"),
        (["{table}", "-o", "{table}/out.csv"], 1, "cannot write"),
    ],
)
def test_wrong_use_is_one_line_and_an_exit_code(
    run: Run, table: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    left, _, errors = run(*(argument.format(table=table, tmp=tmp_path) for argument in arguments))
    assert left == code
    assert message.lower() in errors.lower()
