"""What comes with the package, what help says, and what is told before anything heavy starts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from metaphase.base.errors import MissingResolutionError, UsageError
from metaphase.base.provenance import Ingredients
from metaphase.base.settings import config_files
from metaphase.base.stages import Report, Stage, StageState, States, Watch
from metaphase.cli.main import app
from metaphase.cli.run import watched

ROOT = Path(__file__).parents[2]


def call(*arguments: object, width: int = 100) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": str(width)})


def test_configs_are_listed_and_copied(tmp_path: Path) -> None:
    listed = call("configs", "list").stdout
    assert all(name in listed for name in ("tiny", "paper", "experiments", "breast"))
    assert call("configs", "copy", "-o", tmp_path / "all").exit_code == 0
    assert tomllib.loads((tmp_path / "all" / "paper.toml").read_text())["cohort"]["standardise"] == "hsd"
    assert call("configs", "copy", "tiny", "-o", tmp_path / "one").stdout.count(".toml") == 1
    (tmp_path / "one" / "tiny.toml").write_text("# mine")
    for arguments, message in ((("tiny",), "already"), (("absent",), "Choose one of")):
        error = call("configs", "copy", *arguments, "-o", tmp_path / "one").exception
        assert isinstance(error, UsageError)
        assert message in str(error)
    assert (tmp_path / "one" / "tiny.toml").read_text() == "# mine"


def test_the_warning_of_a_small_comparison_stands_below_its_table(tmp_path: Path) -> None:
    shown = call("experiments", config_files()["experiments-tiny"], "-o", tmp_path, "--status").stdout
    assert "a difference may have the wrong sign" in shown
    assert shown.index("difference of highest F1") < shown.index("warning: ")


def test_without_a_terminal_a_run_tells_from_the_start_how_far_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage = Stage("slides", "slides, simulated", (), (), lambda _: {}, Ingredients())
    running, done = (StageState(stage, "running"),), (StageState(stage, "done", 3.0),)

    def work(report: Report, watch: Watch) -> States:
        watch(running)
        assert "1/1 slides begins: slides, simulated" in capsys.readouterr().err
        for part in range(4):
            report("case 1", part, 4)
        watch(done)
        return done

    assert watched(work) == done
    said = capsys.readouterr().err
    assert "case 1  0 of 4" in said
    assert "1 of 4" not in said
    assert "1/1 slides  3.0 s" in said


def test_the_source_distribution_has_all_that_the_readme_names() -> None:
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert {"/Makefile", "/src", "/tests", "/constraints.txt"} <= set(included["sdist"]["include"])


@pytest.mark.parametrize("command", ["detect", "score", "convert", "view"])
def test_help_speaks_plainly(command: str) -> None:
    shown = call(command, "--help", width=140).stdout
    assert "..." in shown
    assert "list[" not in shown
    assert "<bool>" not in shown


def test_a_missing_resolution_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        Image.fromarray(np.full((300, 300, 3), 240, np.uint8)).save(tmp_path / name)
    done = call("detect", tmp_path / "a.png", tmp_path / "b.png", "-o", tmp_path / "out", "--model", "absent")
    assert isinstance(done.exception, MissingResolutionError)
    assert "--mpp" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_the_metric_stands_beside_its_value(tmp_path: Path) -> None:
    (tmp_path / "truth.csv").write_text("case,grade\na,1\nb,2\nc,3\n")
    (tmp_path / "found.csv").write_text("case,grade\na,1\nb,2\nc,3\n")
    files = ("--truth", tmp_path / "truth.csv", "--predictions", tmp_path / "found.csv")
    shown = call("evaluate", "grade", *files).stdout
    assert "quadratic kappa" in shown
    assert '"metric": "quadratic kappa"' in call("evaluate", "grade", *files, "--json").stdout
