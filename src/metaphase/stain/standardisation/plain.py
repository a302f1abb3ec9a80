"""Dataclasses of numbers as JSON files: readable, diffable, nothing executed on loading."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from metaphase.artifacts import write_text
from metaphase.stain.errors import StainFileError

Value = TypeVar("Value")


def write_plain(path: str | Path, form: str, content: dict[str, Any]) -> None:
    """Write `content` under the name of its format."""
    write_text(path, json.dumps({"format": form, **content}, indent=1) + "\n")


def read_plain(path: str | Path, form: str, parse: Callable[[dict[str, Any]], Value]) -> Value:
    """Read a file of the given format and let `parse` make a value of it."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["format"] != form:
            raise ValueError(f"its format is {data['format']!r}")
        return parse(data)
    except OSError as error:
        raise StainFileError(
            f"cannot be read ({error.strerror})", path=path, next_step="check the path and its permissions"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise StainFileError(
            f"is not a {form} file ({error})", path=path, next_step="save it again with metaphase stain"
        ) from error


def from_plain(kind: type[Value], data: Any) -> Value:
    """Make a float, a tuple or a dataclass of those from what `asdict` and JSON left of it.

    Raises KeyError, TypeError or ValueError where the data do not fit.
    """
    if kind is float:
        number = float(data)
        if not math.isfinite(number):
            raise ValueError(f"{number} is not a number")
        return number  # type: ignore[return-value]
    inner = get_args(kind)
    if inner:
        kinds = [inner[0]] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(from_plain(k, item) for k, item in zip(kinds, data, strict=True))  # type: ignore[return-value]
    hints = get_type_hints(kind)
    return kind(**{f.name: from_plain(hints[f.name], data[f.name]) for f in fields(kind)})  # type: ignore[arg-type]
