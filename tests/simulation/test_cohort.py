import dataclasses
import errno
import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openslide
import pandas as pd
import pytest
from pydantic import TypeAdapter

from metaphase.base.errors import MetaphaseError, OutputError
from metaphase.simulation import cohort
from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import Displacement, SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.opening import open_slide

SMALL = SimulationConfig(
    cases=2, centres=2, width=700, height=500, seed=1, workers=1, mitoses_per_mm2=(80, 100)
)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("cohort") / "out"
    simulate_cohort(out, SMALL)
    return out


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
def test_again_and_in_two_processes_the_files_are_identical(written, tmp_path):
    simulate_cohort(tmp_path, dataclasses.replace(SMALL, workers=2))
    assert digests(tmp_path) == digests(written)


def test_a_cohort_has_all_files_and_nothing_else(written):
    per_case = {
        "he.tif",
        "phh3.tif",
        "truth.parquet",
        "truth.csv",
        "displacement.json",
        "displacement.npz",
        "case.json",
    }
    expected = {f"{case}/{name}" for case in ("case000", "case001") for name in per_case} | {"manifest.csv"}
    assert set(digests(written)) == expected


def test_the_manifest_points_to_the_slides(written):
    manifest = pd.read_csv(written / "manifest.csv")
    assert list(manifest) == ["case", "he", "phh3", "laboratory", "split", "grade", "proliferation"]
    assert list(manifest["split"]) == ["train", "test"]
    assert manifest["laboratory"].nunique() == 2
    assert all((written / path).is_file() for path in [*manifest["he"], *manifest["phh3"]])
    assert manifest["grade"].isin([1, 2, 3]).all()


@pytest.mark.parametrize("name", ["he.tif", "phh3.tif"])
def test_slides_open_in_openslide_with_their_resolution(written, name):
    with openslide.OpenSlide(written / "case001" / name) as slide:
        assert slide.dimensions == (700, 500)
        assert float(slide.properties["openslide.mpp-x"]) == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("frame", ["he", "phh3"])
def test_a_region_rendered_alone_is_what_the_slide_shows(written, frame):
    case = cohort_cases(SMALL)[0]
    with open_slide(written / "case000" / f"{frame}.tif") as slide:
        stored = slide.read(200, 150, 200, 200).astype(float)
    alone = render_region(case, frame, 200, 150, 200, 200).astype(float)
    assert np.abs(stored - alone).mean() < 6  # JPEG
    assert np.abs(stored.mean(axis=(0, 1)) - alone.mean(axis=(0, 1))).max() < 1


def test_truth_files_agree(written):
    folder = written / "case000"
    table, text = pd.read_parquet(folder / "truth.parquet"), pd.read_csv(folder / "truth.csv")
    assert len(table) == len(text) > 0
    np.testing.assert_allclose(table["x_phh3"], text["x_phh3"])
    field = TypeAdapter(Displacement).validate_json((folder / "displacement.json").read_text())
    grid = np.load(folder / "displacement.npz")
    step = int(grid["step_px"])
    node = np.array([[step, 2 * step]], float)
    np.testing.assert_allclose(grid["phh3_minus_he_px"][2, 1], (field.he_to_phh3(node) - node)[0], rtol=1e-5)


def test_a_finished_case_is_kept_and_a_missing_one_made(written, monkeypatch):
    def fail(*args: object) -> None:
        raise AssertionError("nothing is to be rendered again")

    before = digests(written)
    monkeypatch.setattr(cohort, "_write_case", fail)
    simulate_cohort(written, SMALL)
    assert digests(written) == before


def test_a_folder_of_someone_else_is_not_touched(tmp_path):
    (tmp_path / "case000").mkdir()
    (tmp_path / "case000" / "mine.txt").write_text("precious")
    with pytest.raises(OutputError, match="not a simulated case"):
        simulate_cohort(tmp_path, SMALL)
    assert (tmp_path / "case000" / "mine.txt").read_text() == "precious"


def test_a_full_disk_leaves_no_case_and_no_manifest(tmp_path, monkeypatch):
    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cohort, "write_pyramid", full)
    with pytest.raises(OutputError, match="Free some space"):
        simulate_cohort(tmp_path, SMALL)
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_is_said_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(cohort.shutil, "disk_usage", lambda _path: SimpleNamespace(free=10_000))
    with pytest.raises(OutputError, match="GB are free"):
        simulate_cohort(tmp_path, SMALL)


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(MetaphaseError, match="out"):
        simulate_cohort(tmp_path / "out", SMALL)


def test_progress_counts_every_pixel(written):
    seen: list[tuple[str, int, int]] = []
    simulate_cohort(written, SMALL, progress=lambda *values: seen.append(values))
    assert seen[-1][1] == seen[-1][2] == 2 * 2 * 700 * 500


def test_one_stain_alone_is_that_of_both(written, tmp_path):
    manifest = simulate_cohort(tmp_path, SMALL, frames=("he",))
    both, alone = digests(written), digests(tmp_path)
    assert not any("phh3.tif" in name for name in alone)
    assert (manifest["phh3"] == "").all()
    for name in ("he.tif", "truth.parquet", "truth.csv", "displacement.json"):
        assert alone[f"case001/{name}"] == both[f"case001/{name}"]


def test_another_choice_of_stains_makes_the_case_again(tmp_path):
    tiny = dataclasses.replace(SMALL, cases=1, centres=1, width=300, height=300)
    for frames in (("he",), ("he", "phh3"), ("phh3",)):
        simulate_cohort(tmp_path, tiny, frames=frames)
        made = {path.stem for path in (tmp_path / "case000").glob("*.tif")}
        assert made == set(frames)


def test_a_folder_of_other_settings_is_not_replaced(tmp_path):
    tiny = dataclasses.replace(SMALL, cases=1, centres=1, width=300, height=300)
    simulate_cohort(tmp_path, tiny)
    before = digests(tmp_path)
    other = dataclasses.replace(tiny, seed=tiny.seed + 1)
    with pytest.raises(OutputError, match=r"other settings.*seed"):
        simulate_cohort(tmp_path, other)
    assert digests(tmp_path) == before
    simulate_cohort(tmp_path, other, replace=True)
    assert digests(tmp_path) != before
