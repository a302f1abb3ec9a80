"""Settings from TOML files as frozen dataclasses: unknown names and wrong types are refused by name.

Tables nest as dataclasses do. Pydantic checks the types, as it does of all that is read back from JSON;
ranges are checked by the dataclasses themselves, when they are made.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from metaphase.base.errors import UsageError
from metaphase.base.files import write_bytes
from metaphase.base.foreign import parsing, read_bytes

Settings = TypeVar("Settings")
MOST_DOTS = 1000
"""More of them in a line are no settings, and would keep the parser busy for hours."""
CODE_ONLY = {"code_only": True}
"""Metadata of a field that files may not set."""


def read_settings(kind: type[Settings], path: str | Path | None, **given: Any) -> Settings:
    """The settings that a TOML file holds, or the defaults where there is none; `given` ones override it."""
    if path is None:
        return settings_of(kind, {}, **given)
    with blamed(path):
        return settings_of(kind, read_toml(path), **given)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file; one that is missing or malformed is a `UsageError`."""
    data = read_bytes(path, UsageError)
    if any(line.count(b".") > MOST_DOTS for line in data.split(b"\n")):
        raise UsageError("a line is nested too deeply", path=path, next_step="correct that line")
    with parsing(path, "not valid TOML", next_step="correct that line", error=UsageError):
        return tomllib.loads(data.decode("utf-8"))


def settings_of(kind: type[Settings], values: Mapping[str, Any], where: str = "", **given: Any) -> Settings:
    """Build `kind` from the table `[where]`, nested tables included; it may not set what is `given`."""
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(typing.cast("type[Any]", kind))
    allowed = [one.name for one in fields if not one.metadata.get("code_only")]
    table = f"[{where}]" if where else "the file"
    if not isinstance(values, Mapping):
        raise UsageError(f"{where} is {values!r}", next_step=f"write a table [{where}]")
    refuse_unknown(values, allowed, table)
    converted = {
        key: _converted(value, hints[key], f"{where}.{key}" if where else key)
        for key, value in values.items()
    }
    try:
        return kind(**(converted | given))
    except TypeError as error:
        raise UsageError(f"{table} is incomplete ({error})", next_step="add what is missing") from error


def refuse_unknown(values: Mapping[str, Any], allowed: Collection[str], where: str) -> None:
    """Name the settings that do not exist, and those that do."""
    unknown = sorted(set(values) - set(allowed))
    if unknown:
        raise UsageError(
            f"{where} has no setting {', '.join(unknown)}",
            next_step=f"choose among {', '.join(sorted(allowed))}",
        )


@contextmanager
def blamed(path: str | Path) -> Iterator[None]:
    """Errors about settings met inside name the file that they came from."""
    try:
        yield
    except UsageError as error:
        if error.path is not None:
            raise
        raise UsageError(error.problem, path=path, next_step=error.next_step) from error


def resolved(base: Path, value: str) -> str:
    """A path of a configuration file, relative to the file's folder."""
    return str(base / value) if value else ""


def _converted(value: Any, hint: Any, where: str) -> Any:
    """The value in the type that the field declares: lists become tuples, whole numbers may be floats."""
    nested = [part for part in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(part)]
    if nested:
        return settings_of(typing.cast("type[Any]", nested[0]), value, where)
    try:
        return TypeAdapter(hint).validate_python(_tuples(value), strict=True)
    except ValidationError as error:
        _, is_wanted, wanted = error.errors()[0]["msg"].partition("Input should be ")
        wanted = (wanted if is_wanted else f"a {hint}").replace("tuple", "list").replace("valid ", "")
        raise UsageError(f"{where} is {value!r:.100}", next_step=f"give {wanted}") from error


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# ---- the configurations and scripts that come with the package ----


def config_files() -> dict[str, Path]:
    """Their files by name."""
    return _files_of("configs", "*.toml")


def qupath_scripts() -> dict[str, Path]:
    """The scripts for QuPath by name."""
    return _files_of("qupath", "*.groovy")


def _files_of(folder: str, pattern: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted(Path(str(files("metaphase") / folder)).glob(pattern))}


def config_line(path: Path) -> str:
    """What a configuration says of itself in its first line."""
    return path.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")


def copy_files(known: Mapping[str, Path], names: Sequence[str], folder: Path) -> list[Path]:
    """Copy known files, by default all; one that stands there with other content is refused."""
    for name in names:
        if name not in known:
            raise UsageError(f"there is no {name!r}", next_step=f"choose one of {', '.join(known)}")
    targets = {folder / known[name].name: known[name].read_bytes() for name in names or known}
    for target, content in targets.items():
        if target.exists() and (not target.is_file() or target.read_bytes() != content):
            raise UsageError(
                "is there already, with other content", path=target, next_step="name another folder with -o"
            )
    for target, content in targets.items():
        write_bytes(target, content)
    return list(targets)
