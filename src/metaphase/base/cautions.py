"""Warnings as values: what a user should know before relying on a result, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Caution:
    """One warning."""

    code: str
    """What kind it is, the same in every version: `out-of-focus`."""
    text: str
    """What is the matter, for people."""
    next_step: str = ""
    """What to do about it; empty where the text says it all."""

    def __str__(self) -> str:
        return f"{self.text}: {self.next_step}" if self.next_step else self.text

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


Cautions = tuple[Caution, ...]


def unique(cautions: Iterable[Caution]) -> Cautions:
    """Each different warning once, in order."""
    return tuple(dict.fromkeys(cautions))


def read_cautions(values: Iterable[Any]) -> Cautions:
    """Warnings back from their JSON form."""
    return tuple(Caution(**value) for value in values)
