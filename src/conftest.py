"""What examples in docstrings begin with: `mp`, and a folder to write to, where two slides are searched."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of two corners of the demonstration."""
    import metaphase as mp

    folder = tmp_path_factory.mktemp("desk")
    Image.fromarray(mp.demo_field(0)[220:520, 380:680]).save(folder / "one.png")
    Image.fromarray(mp.demo_field(3)[200:400, 100:300]).save(folder / "two.png")
    mp.detect([folder / "one.png", folder / "two.png"], folder / "results", mpp=0.25)
    return folder / "results"


@pytest.fixture(autouse=True)
def _at_a_desk(
    request: pytest.FixtureRequest,
    doctest_namespace: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if request.node.path.parent.name == "api":
        import metaphase as mp

        doctest_namespace["mp"] = mp
        if '"results' in (request.node.dtest.docstring or ""):
            shutil.copytree(request.getfixturevalue("searched"), tmp_path / "results")
        monkeypatch.chdir(tmp_path)
