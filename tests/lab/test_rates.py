"""How fast a machine searches, told by the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from metaphase.cli.main import app
from metaphase.lab import rates
from metaphase.lab.rates import Rates
from tests.analysis.conftest import write_slide


def test_what_a_slide_waits_for() -> None:
    quick = Rates(4.0, 0.5, 0.4, "float32", "cpu")
    assert quick.limit == "the detector"
    assert quick.share_of_limit == pytest.approx(0.8)
    assert quick.minutes(48) == pytest.approx(2)
    assert Rates(0.5, 4.0, 0.4, "float16", "cuda").limit == "decoding"


@pytest.mark.parametrize("named", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_command_measures_a_slide_or_a_simulated_one(
    he_slide: Path, model: Path, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "LEAST_SECONDS", 0.01)
    monkeypatch.setattr(rates, "SLIDE_TILES", 3)
    options = ["bench", *([str(he_slide)] if named else []), "--model", str(model), "--device", "cpu"]
    described = CliRunner().invoke(app, [*options, "--json"])
    assert described.exit_code == 0, described.output
    facts = json.loads(described.stdout)
    assert facts["limit"] in ("decoding", "the detector")
    assert facts["minutes"]["5"] == pytest.approx(5 / facts["whole_mm2_per_s"] / 60)
    shown = CliRunner().invoke(app, options)
    assert "200 mm2 of tissue" in shown.stdout


def test_a_slide_of_glass_is_refused(tmp_path: Path, model: Path) -> None:

    glass = write_slide(tmp_path / "glass.tif", np.full((400, 400, 3), 245, np.uint8))
    described = CliRunner().invoke(app, ["bench", str(glass), "--model", str(model), "--device", "cpu"])
    assert described.exit_code != 0
    assert "no tissue" in str(described.exception)
