"""`metaphase reference`: cohorts with bad pairs, resumption, and observers' decisions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.cli.phh3 import reference
from tests.labels.reference.pairs import drawn_pair
from tests.labels.reference.workspaces import write_manifest, write_pair, write_settings


def run(*arguments: str | Path, code: int = 0) -> str:
    """Standard output of a command that must end with `code`."""
    result = CliRunner().invoke(reference, [str(argument) for argument in arguments])
    if isinstance(result.exception, MetaphaseError):
        raise result.exception
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good pair, one of different tissue, and rows that cannot be used."""
    folder = tmp_path_factory.mktemp("cohort")
    good, other = drawn_pair(1), drawn_pair(2, mitoses=4)
    rows = [
        write_pair(folder, "01", good),
        write_pair(folder, "mismatch", good, phh3="other-phh3.png"),
        {"case": "no-phh3", "he": "01-he.png"},
        {"case": "gone", "he": "01-he.png", "phh3": "nowhere.png", "mpp": 0.5, "points": "01.csv"},
        {"case": "no-points", "he": "01-he.png", "phh3": "01-phh3.png", "mpp": 0.5},
    ]
    write_pair(folder, "other", other)
    (folder / "01.csv").write_text((folder / "01.csv").read_text() + "9999,9999,0.8\n")
    write_settings(folder)
    return write_manifest(folder, rows)


@pytest.fixture(scope="module")
def results(cohort: Path) -> dict[str, dict[str, object]]:
    folder = cohort.parent
    out = run(
        "build", "--manifest", cohort, "-o", folder / "w", "--config", folder / "quick.toml", "--json", code=1
    )
    return {row["case"]: row for row in json.loads(out)}


def test_settings_of_the_decision_need_no_file(cohort: Path, results: dict[str, dict[str, object]]) -> None:
    """Nothing is registered again; the paper's way keeps what is refused otherwise."""
    assert results
    folder = cohort.parent
    shutil.copytree(folder / "w", folder / "w2")
    kept = "--config", folder / "quick.toml", "--set", "min_contrast=99"
    for more, accepted in (((), 0), (("--set", "keep=all"), 8)):
        out = run("build", "--manifest", cohort, "-o", folder / "w2", *kept, *more, "--json", code=1)
        first = json.loads(out)[0]
        assert (first["accepted"], first["again"]) == (accepted, "")
    with pytest.raises(UsageError, match=r"--set transform is 'paper'. Give 'smooth' or 'shifts'"):
        run("build", "--manifest", cohort, "-o", folder / "w2", "--set", "transform=paper")


def test_one_bad_pair_does_not_stop_the_others(cohort: Path, results: dict[str, dict[str, object]]) -> None:
    assert {case: row["status"] for case, row in results.items()} == {
        "01": "done", "mismatch": "failed", "no-phh3": "skipped", "gone": "failed", "no-points": "failed",
    }  # fmt: skip
    assert (results["01"]["points"], results["01"]["accepted"]) == (9, 8)
    assert "does not correspond" in str(results["mismatch"]["reason"])
    assert "nowhere.png" in str(results["gone"]["reason"])
    assert "no points of case no-points" in str(results["no-points"]["reason"])
    workspace = cohort.parent / "w"
    assert "nowhere.png" in (workspace / "errors.log").read_text()
    fit = pd.read_csv(workspace / "manifest.csv", dtype=str)
    assert fit["case"].tolist() == ["01"]
    assert (workspace / fit["he"][0]).is_file()


def test_the_table_holds_every_point(cohort: Path, results: dict[str, dict[str, object]]) -> None:
    table = pd.read_csv(cohort.parent / "w" / "reference.csv", dtype={"case": str})
    assert table["case"].value_counts().to_dict() == {"01": 9, "mismatch": 8}
    off = table[table["x_phh3"] == 9999]
    assert off["cause"].tolist() == ["registration"]
    assert not table.loc[table["case"] == "mismatch", "accepted"].any()
    shapes = json.loads((cohort.parent / "w" / "01" / "reference.geojson").read_text())
    assert len(shapes["features"]) == 8
    assert (cohort.parent / "w" / "01" / "registration.png").is_file()


def test_only_what_is_missing_is_done_again(cohort: Path, results: dict[str, dict[str, object]]) -> None:
    folder = cohort.parent
    arguments = ("build", "--manifest", cohort, "-o", folder / "w", "--config", folder / "quick.toml")
    again = {row["case"]: row for row in json.loads(run(*arguments, "--json", code=1))}
    assert again["01"] == results["01"] | {"again": ""}
    assert again["mismatch"] == results["mismatch"] | {"again": ""}
    settings = (folder / "quick.toml").read_text() + "[reference]\nmin_confidence = 1.0\n"
    (folder / "strict.toml").write_text(settings)
    shown = run("build", "--manifest", cohort, "-o", folder / "w", "--config", folder / "strict.toml", code=1)
    assert "refused: confidence" in shown
    assert "0 of 17 points accepted" in shown
    run(*arguments, code=1)


def test_decisions_survive_building_again(cohort: Path, results: dict[str, dict[str, object]]) -> None:
    folder = cohort.parent
    with pytest.raises(UsageError, match="nobody has reviewed"):
        run("apply", folder / "w")
    table = pd.read_csv(folder / "w" / "reference.csv", dtype={"case": str})
    positions = table.loc[table["accepted"], ["case", "x", "y", "x_phh3", "y_phh3"]].head(1)
    positions.assign(decision="reject", observer="Anna", time="2026-01-01").to_csv(
        folder / "d.csv", index=False
    )
    for _ in range(2):
        described = json.loads(run("apply", folder / "w", "--decisions", folder / "d.csv", "--json"))
        assert described == {"reviewed": 1, "changed": 1, "stale": 0, "points": 17, "accepted": 7}
    run("build", "--manifest", cohort, "-o", folder / "w", "--config", folder / "quick.toml", code=1)
    after = pd.read_csv(folder / "w" / "reference.csv", dtype={"case": str})
    assert after.loc[after["observer"] == "Anna", "accepted"].tolist() == [False]
    assert int(after["accepted"].sum()) == 7
    shapes = json.loads((folder / "w" / "01" / "reference.geojson").read_text())
    assert len(shapes["features"]) == 7


def test_wrong_use_is_told_before_any_work(cohort: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Give one of them"):
        run("build", "--manifest", cohort, "-o", tmp_path, "--cnn2", "x.safetensors")
    plain = tmp_path / "plain.csv"
    plain.write_text("case,he,phh3\na,he.png,phh3.png\n")
    with pytest.raises(UsageError, match="CNN1 alone"):
        run("build", "--manifest", plain, "-o", tmp_path / "w", "--cnn1", "x.safetensors")
    with pytest.raises(UsageError, match="Check --points"):
        run("build", "--manifest", plain, "-o", tmp_path / "w", "--points", tmp_path / "none")
    (tmp_path / "bad.toml").write_text("[reference]\nvisible = 1\n")
    with pytest.raises(UsageError, match=r"\[reference\]"):
        run("build", "--manifest", plain, "-o", tmp_path / "w", "--config", tmp_path / "bad.toml")
    described = json.loads(run("build", "--manifest", plain, "-o", tmp_path / "w", "--json", code=1))
    assert "phh3 classify" in described[0]["reason"]


@pytest.mark.slow
def test_points_come_from_a_folder_or_from_one_table(tmp_path: Path) -> None:
    row = write_pair(tmp_path, "01", drawn_pair(), points="")
    manifest = write_manifest(tmp_path, [{k: v for k, v in row.items() if k != "points"}])
    settings = write_settings(tmp_path)
    folder = tmp_path / "points"
    folder.mkdir()
    (folder / "01.csv").write_bytes((tmp_path / "01.csv").read_bytes())
    arguments = (
        "build",
        "--manifest",
        manifest,
        "-o",
        tmp_path / "w",
        "--config",
        settings,
        "--json",
        "--points",
    )
    first = json.loads(run(*arguments, folder))[0]
    table = pd.read_csv(folder / "01.csv").assign(slide="01")
    pd.concat([table, table.assign(slide="02")]).to_csv(tmp_path / "all.csv", index=False)
    second = json.loads(run(*arguments, tmp_path / "all.csv"))[0]
    assert (first["points"], first["accepted"]) == (8, 8)
    assert second == first | {"again": ""}
    table.assign(slide="02").to_csv(tmp_path / "all.csv", index=False)
    third = json.loads(run(*arguments, tmp_path / "all.csv", code=1))[0]
    assert "has no row for case 01" in third["reason"]
