"""Code blocks of the pages: what each says, and why one is not run.

A comment right above a fence, `<!-- not run: reason -->`, keeps it from running; nothing else does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHELL = ("sh", "console")
FENCE = re.compile(
    r"(?:^[ ]*<!-- not run: (?P<reason>[^\n]*?) -->\n)?"
    r"^(?P<indent>[ ]*)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One fence of a page."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None
    """Why it is not run."""

    @property
    def where(self) -> str:
        """The position to look at when it fails."""
        return f"{self.page}:{self.line}"

    @property
    def script(self) -> str:
        """What a shell gets: without prompts."""
        return re.sub(r"^ *\$ ", "", self.text, flags=re.MULTILINE)


def pages() -> list[Path]:
    """Every page that a user reads."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The fences of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            str(page.relative_to(ROOT)), text.count("\n", 0, found.start("language")) + 1,
            found["language"], found["text"], found["reason"],
        )
        for found in FENCE.finditer(text)
    ]  # fmt: skip
