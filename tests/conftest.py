"""Fixtures that all tests share."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.sharing import FOLDER

CALM = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "OPENCV_FOR_THREADS_NUM": "1"}
for name, value in CALM.items():
    os.environ.setdefault(name, value)  # the tests run side by side: threads of each would fight

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background; tests stop servers by it
    signal.signal(signal.SIGINT, signal.default_int_handler)

for name, examples in (("quick", 20), ("thorough", 200)):  # `make test` and `make test-all`
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.differing_executors],  # of classes of contracts
    )
settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    """A folder for what all workers share; they have that of the process which started them."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="metaphase-tests-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real histology images, or a skip where there is none."""
    repository = Path(__file__).parents[1]
    folder = Path(os.environ.get("METAPHASE_DATA", repository.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set METAPHASE_DATA to its folder")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, or a skip where it or playwright is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    path = next(filter(None, found), None)
    if path is None:
        pytest.skip("no chromium on the path")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()
