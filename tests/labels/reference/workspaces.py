"""A small cohort in files, good pairs and bad ones, and a workspace built from it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd

from metaphase.labels.building import BuildConfig, Built, build_cohort, given_points
from tests.labels.reference.pairs import QUICK, REGISTRATION, DrawnPair, drawn_pair, save
from tests.labels.registration.slides import MPP
from tests.sharing import made_once


def write_pair(folder: Path, case: str, pair: DrawnPair, **changes: object) -> dict[str, object]:
    """Slides and points of a case; returns its manifest row."""
    save(folder / f"{case}-he.png", pair.he)
    save(folder / f"{case}-phh3.png", pair.phh3)
    points = pd.DataFrame(pair.mitoses_phh3, columns=["x", "y"]).assign(probability=0.9)
    points.to_csv(folder / f"{case}.csv", index=False)
    row = {
        "case": case,
        "he": f"{case}-he.png",
        "phh3": f"{case}-phh3.png",
        "mpp": MPP,
        "points": f"{case}.csv",
    }
    return row | changes


def write_manifest(folder: Path, rows: list[dict[str, object]]) -> Path:
    pd.DataFrame(rows).to_csv(folder / "manifest.csv", index=False)
    return folder / "manifest.csv"


def write_settings(folder: Path) -> Path:
    """Settings that make registration of small slides quick."""
    lines = [f"{name} = {value}" for name, value in QUICK.items()]
    (folder / "quick.toml").write_text("[registration]\n" + "\n".join(lines) + "\n")
    return folder / "quick.toml"


def built_workspace(folder: Path) -> Path:
    """A workspace with one good case `01`, of one's own."""
    shutil.copytree(made_once("reference", _build), folder, dirs_exist_ok=True)
    return folder / "workspace"


def _build(folder: Path) -> Built:
    manifest = write_manifest(folder, [write_pair(folder, "01", drawn_pair())])
    return build_cohort(manifest, folder / "workspace", given_points, BuildConfig(registration=REGISTRATION))
