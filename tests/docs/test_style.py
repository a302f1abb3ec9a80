"""Plain words in what people read: no retired term, no sentence over 40 words.

The glossary of ARCHITECTURE.md decides which words are used; its column *not* names those retired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from metaphase.cli.main import app
from tests.docs.blocks import ROOT

RETIRED = {
    "second look": "re-check",
    "false detections?": "false positives",
    "found from": "threshold",
    "counted from": "threshold",
    "crews?": "workers",
    "hired?": "workers",
    "cautions?": "warning",
    "told": "error message, or: stated, shown",
    "site profiles?": "the laboratory's profile",
    "reviewers?": "observer",
    "abroad": "other laboratories",
    "at home": "the training laboratory",
    "as one thread": "workflow",
}
"""Retired terms, as patterns of whole words, and what is said instead."""
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/notebooks/*.ipynb")
"""What is read here. A sweep of the code adds its files."""
IN_CODE = (
    "second look",
    "false detections?",
    "crews?",
    "hired",
    "cautions?",
    "told",
    "site profiles?",
    "at home",
)
"""Those that names, comments and messages of the code must not use either."""
MOST_WORDS = 40

READ = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
NAMES = [str(path.relative_to(ROOT)) for path in READ]


def text_of(path: Path) -> str:
    """A page, or the cells of a notebook that are no code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def prose(text: str) -> str:
    """Text without code: what stands between backticks is one word, links are their words."""
    text = re.sub(r"^[ ]*```.*?^[ ]*```|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "CODE", text)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def sentences(text: str) -> Iterator[str]:
    """Sentences of paragraphs, points of lists and cells of tables."""
    for part in re.split(r"\n\s*\n|\n\s*(?:[-*>#]|\d+\.)\s|\n(?=\|)|\|", prose(text)):
        yield from re.split(r"(?<=[.!?])\s+", part)


def retired(text: str) -> list[str]:
    """The retired terms that a text uses."""
    return [term for term in RETIRED if re.search(rf"\b(?:{term})\b", prose(text), re.IGNORECASE)]


def helps() -> Iterator[tuple[str, str]]:
    """What `--help` prints of every command and option."""
    left: list[tuple[str, Any]] = [("metaphase", typer.main.get_command(app))]
    while left:
        name, command = left.pop()
        yield name, command.help or ""
        yield from ((f"{name} {one.name}", getattr(one, "help", None) or "") for one in command.params)
        left += [(f"{name} {key}", one) for key, one in getattr(command, "commands", {}).items()]


@pytest.mark.parametrize("path", READ, ids=NAMES)
def test_no_retired_term(path: Path) -> None:
    assert not retired(text_of(path))


def test_no_retired_term_in_the_code() -> None:
    paths = [path for end in ("py", "html", "js") for path in (ROOT / "src" / "metaphase").rglob(f"*.{end}")]
    assert len(paths) > 200
    terms = re.compile(rf"(?<![^\W_])(?:{'|'.join(IN_CODE)})(?![^\W_])".replace(" ", "[ _]"), re.IGNORECASE)
    found = {
        str(path): terms.findall(path.read_text(encoding="utf-8"))
        for path in paths
        if "openseadragon" not in str(path)
    }
    assert not {path: words for path, words in found.items() if words}


@pytest.mark.parametrize("path", READ, ids=NAMES)
def test_sentences_are_short(path: Path) -> None:
    found = sentences(text_of(path))
    assert not [one for one in found if len(one.split()) > MOST_WORDS]


def test_help_is_plain() -> None:
    found = dict(helps())
    assert len(found) > 200
    assert not {name: retired(text) for name, text in found.items() if retired(text)}
    long = {name: one for name, text in found.items() for one in sentences(text)}
    assert not {name: one for name, one in long.items() if len(one.split()) > MOST_WORDS}


def test_the_glossary_names_what_is_retired() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\| ([^|]*) \|$", text.split("## Glossary")[1].split("\n## ")[0], re.MULTILINE)
    named = ", ".join(rows)
    assert not [term for term in RETIRED if not re.search(rf"\b(?:{term})\b", named)]


def test_the_style_test_can_fail() -> None:
    assert retired("It is *told* once, after a second\nlook.".replace("\n", " ")) == ["second look", "told"]
    assert not retired("`told` in code, and untold")
    (long,) = [one for one in sentences("word " * 41 + "end. Short.") if len(one.split()) > MOST_WORDS]
    assert long.endswith("end.")
