"""Tables of a TOML file as frozen dataclasses: unknown names and wrong types are refused by name."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from metaphase.errors import UsageError

Section = TypeVar("Section")


def section(
    kind: type[Section], values: Mapping[str, Any], name: str, *, leave: Collection[str] = (), **given: Any
) -> Section:
    """Build `kind` from the table `[name]`; the file may not set what `leave` or `given` name."""
    hints = typing.get_type_hints(kind)
    allowed = [field.name for field in _fields(kind) if field.name not in {*leave, *given}]
    refuse_unknown(values, allowed, f"[{name}]")
    converted = {key: _converted(value, hints[key], f"{name}.{key}") for key, value in values.items()}
    try:
        return kind(**converted, **given)
    except TypeError as error:
        raise UsageError(f"[{name}] is incomplete ({error})", next_step="add what is missing") from error


def refuse_unknown(values: Mapping[str, Any], allowed: Collection[str], where: str) -> None:
    """Name the settings that do not exist, and those that do."""
    unknown = sorted(set(values) - set(allowed))
    if unknown:
        raise UsageError(
            f"{where} has no setting {', '.join(unknown)}",
            next_step=f"choose among {', '.join(sorted(allowed))}",
        )


def resolved(base: Path, value: str) -> str:
    """A path of a configuration file, relative to the file's folder."""
    return str(base / value) if value else ""


def _fields(kind: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


def _converted(value: Any, hint: Any, where: str) -> Any:
    """The value in the type that the field declares: lists become tuples, whole numbers may be floats."""
    if isinstance(value, list):
        value = tuple(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = _plain_types(hint)
    if plain and (not isinstance(value, plain) or (isinstance(value, bool) and bool not in plain)):
        wanted = " or ".join(kind.__name__ for kind in plain)
        raise UsageError(f"{where} is {value!r}", next_step=f"give {wanted}")
    return value


def _plain_types(hint: Any) -> tuple[type[Any], ...]:
    """Plain types that a declared type admits; none where there is nothing simple to check."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return tuple(kind for part in typing.get_args(hint) for kind in _plain_types(part))
    if origin is typing.Literal:
        return (str,)
    if origin is tuple:
        return (tuple,)
    if hint is float:
        return (float, int)
    return (hint,) if hint in (int, str, bool, dict) else ()
