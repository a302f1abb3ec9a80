"""The errors and warnings a user may see. Each names the file, the value and the next step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar


def sentence(text: str) -> str:
    """Text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def several(number: int, noun: str) -> str:
    """`1 slide`, `1,200 slides`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


class MetaphaseError(Exception):
    """Base of every error that the user can act on; shown as one line, without a traceback."""

    def __init__(self, problem: str, *, path: str | Path | None = None, next_step: str = "") -> None:
        self.problem = problem
        self.path = Path(path) if isinstance(path, str) else path
        self.next_step = next_step
        where = f"{path}: " if path is not None else ""
        then = f". {sentence(next_step)}" if next_step else "."
        super().__init__(f"{where}{problem}{then}")

    def __reduce__(self) -> tuple[Any, ...]:
        """From a worker process it arrives as it was raised."""
        return partial(type(self), path=self.path, next_step=self.next_step), (self.problem,)


class UsageError(MetaphaseError):
    """An option or argument makes no sense, whatever the input files hold (exit code 2)."""


def require(fine: bool, name: str, value: object, range_text: str) -> None:
    """Refuse a setting that is out of its range."""
    if not fine:
        raise UsageError(f"{name} is {value}", next_step=f"give a number {range_text}")


class SlideError(MetaphaseError):
    """A slide cannot be opened or read."""


class MissingResolutionError(SlideError):
    """A slide states no believable micrometres per pixel, and none was given."""


class RegionError(MetaphaseError):
    """A region makes no sense: it has no pixels, or is not finite."""


class OutputError(MetaphaseError):
    """A result cannot be written."""


class ModelError(MetaphaseError):
    """Trained weights or their card cannot be used."""


class TrainingError(MetaphaseError):
    """Training cannot start or go on."""


@dataclass(frozen=True, slots=True)
class ResultWarning:
    """A warning of a result: what to know before relying on it, and what to do."""

    __pydantic_config__: ClassVar = {"strict": True, "extra": "forbid", "use_attribute_docstrings": True}

    code: str
    """What kind it is, the same in every version: `out-of-focus`."""
    text: str
    """What is the matter, for people: a sentence without its end."""
    next_step: str = ""
    """What to do about it; empty where the text says it all."""

    def __str__(self) -> str:
        end = "" if self.text.endswith("?") else "."
        return f"{self.text}{end} {sentence(self.next_step)}" if self.next_step else self.text

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


ResultWarnings = tuple[ResultWarning, ...]


def unique(found: Iterable[ResultWarning]) -> ResultWarnings:
    """Each different warning once, in order."""
    return tuple(dict.fromkeys(found))


def read_warnings(values: Iterable[Any]) -> ResultWarnings:
    """Warnings back from their JSON form."""
    return tuple(ResultWarning(**value) for value in values)
