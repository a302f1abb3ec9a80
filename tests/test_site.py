"""The documentation as a site: every page in its menu, no broken link, notebooks that run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import metaphase as mp
from metaphase.reports.record import summary_schema

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: metaphase[docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path.stem for path in tmp_path.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= pages
    commands, python = ((tmp_path / f"reference-{name}.html").read_text() for name in ("cli", "python"))
    assert "metaphase review import" in commands
    assert "--probability-map" in commands
    assert all(f"mp.{name}" in python for name in mp.__all__)
    slides, evaluation = (
        (tmp_path / f"notebook-{name}.html").read_text() for name in ("slides", "evaluation")
    )
    assert "no interval: nothing is known" in slides
    assert "recall" in evaluation
    assert json.loads((tmp_path / "summary.schema.json").read_text()) == summary_schema()
    drawn = {path.name for path in (tmp_path / "images").glob("*.png")}
    assert {"slides-9-0.png", "evaluation-7-0.png", "python-6-0.png", "python-8-0.png"} <= drawn


def load_generate() -> Any:
    """The module that makes pages; it needs mkdocs."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: metaphase[docs]")
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    return generate


def test_the_glossary_and_the_summary_are_pages() -> None:
    generate = load_generate()
    assert "| mitotic count |" in generate.glossary()
    assert "## " not in generate.glossary()
    page = generate.summary()
    assert "| `likely` | How many true figures the circle holds; null where that cannot be said. |" in page
    assert "## CountConfig" in page
    assert "](glossary.md)" in generate.start()


def test_the_reference_has_what_functions_return() -> None:
    """With every attribute: what is not in `mp`, too."""
    generate = load_generate()
    assert "**Parameters**\n\n- `slide`: A slide, or" in generate.python()
    assert "**Examples**\n\n```python\n>>> " in generate.python()
    entries = dict(re.findall(r"^## (.+?)$\n(.*?)(?=^## |\Z)", generate.python(), re.DOTALL | re.MULTILINE))
    for name, attributes in {
        "mp.Result": ("count", "likely", "score", "table", "report", "warnings", "folder"),
        "mp.Slide": ("read", "mpp", "thumbnail"),
        "ReadyDetector": ("predict", "mpp"),
        "SlideCount": ("count", "likely", "hotspot", "scores"),
        "Registered": ("verdict", "transform", "points"),
        "MitosisResult": ("overall", "slides", "table"),
        "SiteProfile": (),
        "mp.Results": ("counts", "table"),
        "mp.Calibration": ("items", "fit"),
        "TissueMask": ("area_mm2", "polygons"),
    }.items():
        assert all(f"- `{attribute}`: " in entries[name] for attribute in attributes), name
