from __future__ import annotations

from pathlib import Path

import pytest

from metaphase.base.foreign import printable
from metaphase.cli import main as entry
from metaphase.cli.console import complain
from tests.cli.running import run


def test_an_unforeseen_error_is_one_line_and_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise IndexError("no\nsuch thing")

    monkeypatch.setattr(entry, "app", broken)
    monkeypatch.setenv(entry.LOG, str(tmp_path / "trace.log"))
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == entry.FAULT
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "IndexError" in said[0]
    assert str(tmp_path / "trace.log") in said[0]
    assert "Traceback" in (tmp_path / "trace.log").read_text()


def test_names_do_not_reach_the_terminal_as_commands(capsys: pytest.CaptureFixture[str]) -> None:
    complain("\x1b]0;title\x07 \x1b[31mred \u202egnp \udce9 é")
    said = capsys.readouterr().err
    assert printable(said) == said
    assert "é" in said


@pytest.mark.parametrize(
    "command",
    [
        ("score", "x.csv", "--set", "theta1=NaN"),
        ("evaluate", "mitoses", "--truth", "a", "--predictions", "b", "--set", "radius_um=Infinity"),
        ("phh3", "sample", "--manifest", "m", "-w", "w", "-o", "o", "--set", "active_share=NaN"),
    ],
)
def test_no_option_takes_what_is_no_finite_number(command: tuple[str, ...]) -> None:
    done = run(*command)
    assert done.returncode == 2
    assert "finite number" in done.stderr


def test_a_slide_whose_name_is_no_text_takes_no_other_with_it(tmp_path: Path) -> None:
    (tmp_path / "caf\udce9.tif").write_bytes(b"no slide")
    done = run("tissue", tmp_path / "caf\udce9.tif", tmp_path / "absent.tif", "-o", tmp_path / "out")
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 2


def test_a_foreign_name_of_any_length_is_a_short_message(capsys: pytest.CaptureFixture[str]) -> None:
    complain("a" * 70_000)
    assert len(capsys.readouterr().err) < 4000


def test_what_the_machine_refuses_is_said_with_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> None:
        raise PermissionError(13, "Permission denied", "secret.tif")

    monkeypatch.setattr(entry, "app", refused)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 1
    assert "secret.tif: Permission denied" in capsys.readouterr().err
