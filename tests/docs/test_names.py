"""What pages and comments name is there: settings, names of the package, scripts."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from metaphase.lab.folder import LabSettings
from metaphase.labels.building import BuildConfig
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
    """Whether a table of `metaphase run`, of a laboratory's folder or of `reference build` has a key."""
    sections = [get_type_hints(kind).get(table) for kind in (RunConfig, LabSettings, BuildConfig)]
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


PLACE = re.compile(r"`([a-z_]+(?:\.\w+)+):(\w+(?:\.\w+)*)`")
"""Where a statement of the paper stands in the code: a module below `metaphase`, and what is in it."""


def is_there(module: str, path: str) -> bool:
    """Whether a module has a name; the last part may be a setting, which has no value in its class."""
    value = import_module(f"metaphase.{module}")
    *above, last = path.split(".")
    for word in above:
        value = getattr(value, word)
    return hasattr(value, last) or last in getattr(
        value, "model_fields", getattr(value, "__dataclass_fields__", ())
    )


def test_every_statement_of_the_paper_has_its_place() -> None:
    rows = [
        line for line in READ["docs/paper.md"].split("## `--paper`")[0].splitlines() if line.startswith("| ")
    ]
    statements = [row for row in rows if not row.startswith("| in the paper")]
    assert len(statements) >= 60
    for row in statements:
        places = PLACE.findall(row.split(" | ")[1])
        assert places or "`recipes/" in row, f"no place: {row}"
        for module, name in places:
            assert is_there(module, name), f"{module}:{name}"
    assert not is_there("learn.config", "StudentSection.gamma")
