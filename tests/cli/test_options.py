"""Fields of settings classes are options of commands."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from metaphase.base.errors import UsageError
from metaphase.cli.main import app
from metaphase.cli.options import Command, given, takes
from metaphase.counting.likely import ObserverError
from metaphase.images.tissue.finding import TissueConfig

toy = typer.Typer()
made: list[object] = []


@toy.command(cls=Command)
@takes("images.tissue.finding.TissueConfig", "min_colour", mpp="--at")
@takes("counting.likely.ObserverError", others=["missed"])
def look(config: Path | None = None) -> None:
    """Look."""
    made[:] = [given(TissueConfig, config), given(ObserverError, false_alarms=0.25)]


def called(*arguments: str | Path) -> str:
    done = CliRunner().invoke(toy, list(map(str, arguments)))
    if isinstance(done.exception, UsageError):
        return str(done.exception)
    assert done.exit_code == 0, done.output
    return done.output


def test_options_are_fields_with_their_types_defaults_and_meanings() -> None:
    shown = " ".join(called("--help").replace("│", " ").split())
    assert "--min-colour <float> Least difference of absorbance" in shown
    assert "--at <float> Working resolution in um/px" in shown
    assert "[default: 8.0]" in shown
    assert "NAME=VALUE" in shown
    assert "min_object_um2" in shown
    assert "missed" in shown
    assert "false_alarms" not in shown


def test_what_is_given_is_made_into_settings(tmp_path: Path) -> None:
    called()
    assert made == [TissueConfig(), ObserverError(0.06, 0.25)]
    called("--at", "4", "--set", "bridge_um=2", "--set", "missed=0.5")
    assert made == [TissueConfig(mpp=4, bridge_um=2), ObserverError(0.5, 0.25)]
    (tmp_path / "c.toml").write_text("mpp = 2\nbridge_um = 3\n")
    called("--config", tmp_path / "c.toml", "--set", "bridge_um=5", "--at", "8")
    assert made[0] == TissueConfig(mpp=8, bridge_um=5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--at", "0"], "--at is 0.0. Give a number above 0."),
        (["--at", "nan"], "--at is nan. Give a finite number."),
        (["--set", "missed=2"], "--set missed is 2. Give a number from 0 to 1."),
        (["--set", "missed=x"], "--set missed is 'x'. Give a number from 0 to 1."),
        (["--set", "missed"], "--set missed. Write --set NAME=VALUE."),
        (["--set", "false_alarms=0.1"], "--set has no setting false_alarms. Choose among bridge_um,"),
    ],
)
def test_what_is_wrong_is_named_as_it_was_spelled(arguments: list[str], message: str) -> None:
    assert message in called(*arguments)


def test_there_are_no_more_options_than_people_can_survey() -> None:
    def options(command: object) -> int:
        inner = getattr(command, "commands", None)
        if inner is not None:
            return sum(map(options, inner.values()))
        return sum(
            one.param_type_name == "option" and one.name != "help"
            for one in command.params  # type: ignore[attr-defined]
        )

    assert 200 < options(typer.main.get_command(app)) <= 250
