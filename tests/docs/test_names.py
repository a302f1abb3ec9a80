"""What pages and comments name is there: settings, names of the package, scripts."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from metaphase.lab.folder import LabSettings
from metaphase.learn.config import RunConfig
from tests.docs.blocks import ROOT, pages

NAMES = [str(page.relative_to(ROOT)) for page in pages()]
COMMIT = r"commit\s+(?:# )?[0-9a-f]{7}\b|at [0-9a-f]{7}\b"
"""Of which what is gone is part."""
READ = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}


def found(dotted: str) -> Any:
    """What a dotted name means: a module, or what is in one."""
    words = dotted.split(".")
    for end in range(len(words), 0, -1):
        try:
            value = import_module(".".join(words[:end]))
        except ModuleNotFoundError:
            continue
        for word in words[end:]:
            value = getattr(value, word)
        return value
    raise AssertionError(dotted)


def setting(table: str, key: str) -> bool:
    """Whether a table of `metaphase run` or of a laboratory's folder has a key."""
    sections = [get_type_hints(kind).get(table) for kind in (RunConfig, LabSettings)]
    kinds = [part for one in sections for part in (one, *getattr(one, "__args__", ()))]
    return any(is_dataclass(kind) and key in get_type_hints(kind) for kind in kinds)


@pytest.mark.parametrize("name", NAMES)
def test_names_and_settings_exist(name: str) -> None:
    for dotted in re.findall(r"`(metaphase(?:\.\w+)+)[`(]", READ[name]):
        if not (ROOT / "deploy" / dotted).is_file():
            found(dotted)
    for line in READ[name].splitlines():
        for table, key in re.findall(r"`\[(\w+)\] (\w+)", line):
            assert setting(table, key) or re.search(COMMIT, line), f"[{table}] {key}"


def test_what_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError):
        found("metaphase.detections.Format")
    assert setting("training", "normalisation")
    assert not setting("training", "family")


def test_scripts_exist_or_name_the_commit_that_has_them() -> None:
    paths = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.toml"), *map(ROOT.joinpath, NAMES)]
    cited: list[str] = []
    for path in paths:
        for paragraph in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
            for script in re.findall(r"(?:recipes|benchmarks)/[\w/]+\.py", paragraph):
                cited.append(script)
                there = Path(ROOT / script).is_file() or re.search(COMMIT, paragraph)
                assert there, f"{path}: {script} is gone, and no commit that has it stands beside"
    assert len(cited) > 30
