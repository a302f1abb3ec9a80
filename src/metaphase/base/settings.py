"""Settings: each is a field of a dataclass under `@settings`, with its range, its default and what it means.

Pydantic checks them wherever they come from: Python, the tables of a TOML file (which nest as the dataclasses
do), or the command line (`metaphase.cli.options`). What is wrong is refused by its name, with its value and
what to give.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import tomllib
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic import ValidationInfo as Info
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic_core import PydanticCustomError

from metaphase.base.errors import UsageError
from metaphase.base.files import write_bytes
from metaphase.base.foreign import parsing, read_bytes

Settings = TypeVar("Settings")
MOST_DOTS = 1000
"""More of them in a line are no settings, and would keep the parser busy for hours."""
CHECKED = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


@typing.dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def settings(kind: type[Settings]) -> type[Settings]:
    """A frozen dataclass whose fields are checked when it is made; what is wrong is a `UsageError`."""
    made: Any = checked_dataclass(kind, frozen=True, config=CHECKED)
    check = made.__init__

    @functools.wraps(check)
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        try:
            check(self, *values, **named)
        except ValidationError as error:
            _refuse(made, error)

    made.__init__ = __init__
    return typing.cast("type[Settings]", made)


# ---- what a field may hold, beside pydantic's `PositiveInt` and the like ----


def _refuse_in_file(value: Any, info: Info) -> Any:
    if info.mode == "json":
        raise PydanticCustomError(UNKNOWN, "only code sets it")
    return value


def _beside_file(value: str, info: Info) -> str:
    return resolved(info.context, value) if info.context else value


def _in_order(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError("a lowest and then a highest number")
    return value


Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
InnerShare = Annotated[float, Field(gt=0, lt=1)]
IN_ORDER = AfterValidator(_in_order)
"""Of two numbers: `Annotated[tuple[float, float], IN_ORDER]`."""
PathText = Annotated[str, AfterValidator(_beside_file)]
"""A path; one in a file is relative to the file's folder."""
CODE_ONLY = BeforeValidator(_refuse_in_file)
"""Of a field that files may not set: `Annotated[int, CODE_ONLY]`."""
UNKNOWN = "unexpected_keyword_argument"


# ---- reading them ----


def read_settings(
    kind: type[Settings],
    path: str | Path | None,
    given: Mapping[str, Any] = {},
    spelled: Mapping[str, str] = {},
) -> Settings:
    """The settings that a TOML file holds, or the defaults where there is none; `given` ones override it."""
    if path is None:
        return settings_of(kind, given, spelled=spelled)
    with blamed(path):
        return settings_of(kind, read_toml(path) | dict(given), base=Path(path).parent, spelled=spelled)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file; one that is missing or malformed is a `UsageError`."""
    data = read_bytes(path, UsageError)
    if any(line.count(b".") > MOST_DOTS for line in data.split(b"\n")):
        raise UsageError("a line is nested too deeply", path=path, next_step="correct that line")
    windows = ", a path of Windows as C:/slides" if b"\\" in data else ""
    with parsing(path, "not valid TOML", next_step=f"correct that line{windows}", error=UsageError):
        return tomllib.loads(data.decode("utf-8-sig"))


def settings_of(
    kind: type[Settings],
    values: Mapping[str, Any],
    where: str = "",
    *,
    base: Path | None = None,
    spelled: Mapping[str, str] = {},
) -> Settings:
    """The settings of the table `[where]`, nested tables included; paths in it start at `base`.

    Errors call a setting as it is `spelled`.
    """
    try:
        return TypeAdapter(kind).validate_json(json.dumps(values, default=str), context=base)
    except ValidationError as error:
        _refuse(kind, error, where, spelled)


def refuse_unknown(values: Collection[str], allowed: Collection[str], where: str) -> None:
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


# ---- what is wrong ----


def _refuse(
    kind: Any, error: ValidationError, where: str = "", spelled: Mapping[str, str] = {}
) -> typing.NoReturn:
    """Raise the first fault: the setting's name in its table, its value, and what to give."""
    faults = error.errors(include_url=False, include_context=False)
    fault, path = faults[0], faults[0]["loc"]
    name = _named(path, where)
    name = spelled.get(name, name)
    if fault["type"] == UNKNOWN:
        alike = [each["loc"] for each in faults if each["type"] == UNKNOWN and each["loc"][:-1] == path[:-1]]
        hints = _hints_of(_declared(kind, path[:-1]))
        known = [field for field, hint in hints.items() if CODE_ONLY not in typing.get_args(hint)]
        table = _named(path[:-1], where)
        refuse_unknown([str(names[-1]) for names in alike], known, f"[{table}]" if table else "the file")
    if fault["type"] == "missing":
        raise UsageError(f"{name} is missing", next_step="add it")
    said = fault["msg"].removeprefix("Input should be ").replace("valid ", "")
    said = said.replace("a integer", "a whole number").replace("a array", "a list")
    wanted = {
        "dataclass_type": f"write a table [{name}]",
        "too_short": "name at least one",
        "finite_number": "give a finite number",
        "value_error": f"give {said.removeprefix('Value error, ')}",
    }
    step = wanted.get(fault["type"], f"give {_range_text(_declared(kind, path)) or said}")
    raise UsageError(f"{name} is {fault['input']!r:.100}", next_step=step)


def _named(path: Sequence[int | str], where: str) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"{where}{''.join(steps)}".removeprefix(".")


def _parts(hint: Any) -> Iterator[Any]:
    """A type, and all that it is made of, metadata included."""
    yield hint
    for part in typing.get_args(hint):
        yield from getattr(part, "metadata", ()) or _parts(part)


def _hints_of(hint: Any) -> dict[str, Any]:
    """The fields of the settings that a type speaks of."""
    kinds = (part for part in _parts(hint) if isinstance(part, type) and dataclasses.is_dataclass(part))
    kind = next(kinds, None)
    return {} if kind is None else typing.get_type_hints(kind, include_extras=True)


def _declared(kind: Any, path: Sequence[int | str]) -> Any:
    """The type of a field, by its place among nested settings."""
    hint = kind
    for name in path:
        hint = _hints_of(hint).get(str(name), hint)
    return hint


BOUNDS = {
    "gt": "above",
    "ge": "of at least",
    "lt": "below",
    "le": "of at most",
    "multiple_of": "a multiple of",
}


def _range_text(hint: Any) -> str:
    """`a number above 0 and at most 1`; empty where a type knows no bounds."""
    bounds = {key: getattr(part, key) for part in _parts(hint) for key in BOUNDS if hasattr(part, key)}
    if {"ge", "le"} <= bounds.keys():
        return f"a number from {bounds['ge']:g} to {bounds['le']:g}"
    said = " and ".join(f"{BOUNDS[key]} {bound:g}" for key, bound in bounds.items())
    return said and f"a number {said}"


# ---- the configurations and scripts that come with the package ----


def config_files() -> dict[str, Path]:
    """Paths of the bundled configurations, by name."""
    return _files_of("configs", "*.toml")


def qupath_scripts() -> dict[str, Path]:
    """The scripts for QuPath by name."""
    return _files_of("qupath", "*.groovy")


def fields_of_view() -> dict[str, Path]:
    """Fields of a real carcinoma by name; `LICENSE.txt` beside them says whose they are."""
    return _files_of("fields", "*.jpg")


def _files_of(folder: str, pattern: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted(Path(str(files("metaphase") / folder)).glob(pattern))}


def config_line(path: Path) -> str:
    """The first line of a configuration, which says what it is for."""
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
