"""Commands: their docstrings say what their parameters are, and settings are options without another word.

A command names the class of its settings (imported when it is needed) and the fields that have options of
their own; `--set NAME=VALUE` reaches the others. `given` makes the settings of what the command line says.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from typer.core import TyperCommand

from metaphase.base.errors import UsageError
from metaphase.base.settings import meanings, read_settings, refuse_unknown, settings_of

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., None])
LISTED = "\n\nParameters:\n"
"""After this, the docstring of a command says what its parameters are."""
LIST = re.compile(r"<list\[(.+)\]>")


class Given(NamedTuple):
    """What the command line says of a setting."""

    value: Any
    option: str


_given: ContextVar[Mapping[str, Given]] = ContextVar("given", default={})  # noqa: B039 -- never changed


def given(kind: type[Made], file: Path | None = None, **more: Any) -> Made:
    """The settings that the command line states; those of a TOML file stand below them."""
    made: Any = read_settings(kind, file, *_stated(kind))
    return typing.cast(Made, dataclasses.replace(made, **more))


def restated(made: Made) -> Made:
    """Settings, what the command line states of them put in place."""
    values, spelled = _stated(type(made))
    known = dataclasses.asdict(typing.cast(Any, made))
    return settings_of(type(made), known | values, spelled=spelled)


def _stated(kind: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """What the command line says of settings of a kind, and by which options."""
    names = {field.name for field in dataclasses.fields(kind)}
    stated = {name: one for name, one in _given.get().items() if name in names}
    values = {name: one.value for name, one in stated.items()}
    return values, {name: one.option for name, one in stated.items()}


class Taken(NamedTuple):
    """Settings that a command takes."""

    path: str
    """Module and name of their class."""
    options: Mapping[str, str]
    """Fields with an option of their own, and how that is spelled."""
    others: Sequence[str] | None
    """Fields that `--set` reaches; by default all the rest."""


def takes(
    path: str, *names: str, others: Sequence[str] | None = None, **spelled: str
) -> Callable[[Function], Function]:
    """The command takes settings: these fields as options, the others by `--set`."""
    taken = Taken(path, {name: f"--{name.replace('_', '-')}" for name in names} | spelled, others)

    def mark(command: Function) -> Function:
        vars(command).setdefault("takes", []).insert(0, taken)
        return command

    return mark


def _plain(hint: Any) -> Any:
    """The type of an option for a field; None where no option can state it."""
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if kind is typing.Literal:
        return str
    if kind is tuple:
        return list[str] if parts == (str, ...) else None
    if type(None) in parts:
        return _plain(parts[0])
    return hint if hint in (str, int, float, bool) else None


def _parameter(name: str, kind: Any, default: Any, option: Any) -> Parameter:
    """A parameter as typer takes it."""
    default = None if kind == list[str] else default
    annotation: Any = Annotated[kind if default is not None else kind | None, option]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _made_by_typer(parameters: Sequence[Parameter]) -> list[Any]:

    def command(**_: Any) -> None:
        """Only its options are wanted."""

    vars(command)["__signature__"] = inspect.Signature(parameters)
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return list(typing.cast(Any, typer.main.get_command(app)).params)


class Command(TyperCommand):
    """A command whose docstring says what its parameters are, and some of whose options are settings."""

    def __init__(self, *args: Any, help: str, **more: Any) -> None:  # noqa: A002 -- as typer calls it
        about, _, listed = help.partition(LISTED)
        super().__init__(*args, help=about, **more)
        meant = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {6}.*)*)", listed, re.MULTILINE))
        for param in self._own:
            param.help = getattr(param, "help", None) or " ".join(meant.get(param.name, "").split())
            if param.default is False:
                param.secondary_opts = []

    @property
    def params(self) -> list[Any]:
        """Its parameters; those that are settings are looked up when they are needed."""
        return self._ordered

    @params.setter
    def params(self, own: list[Any]) -> None:
        self._own = own

    @cached_property
    def _ordered(self) -> list[Any]:
        """What it needs first; one list, to which typer adds `--help` for a moment."""
        needed = [param for param in self._own if param.required]
        return [*needed, *self._settings, *(param for param in self._own if not param.required), *self._set]

    @cached_property
    def _fields(self) -> dict[str, tuple[str | None, Any, Any, str]]:
        """The settings that can be stated: their option, type, default and meaning."""
        own, found = {param.name for param in self._own}, {}
        for path, options, others in getattr(self.callback, "takes", ()):
            module, _, title = path.rpartition(".")
            kind = getattr(import_module(f"metaphase.{module}"), title)
            hints, said = typing.get_type_hints(kind), meanings(kind)
            defaults = {field.name: field.default for field in dataclasses.fields(kind)}
            for name in [*options, *(name for name in defaults if name not in options)]:
                plain, option = _plain(hints[name]), options.get(name)
                reached = name not in own and (others is None or name in others)
                if option or (plain and reached):
                    found[name] = option, plain, defaults[name], said.get(name, "")
        return found

    @cached_property
    def _settings(self) -> list[Any]:
        """The settings that are options."""
        return _made_by_typer(
            [
                _parameter(name, kind, default, typer.Option(option, help=said))
                for name, (option, kind, default, said) in self._fields.items()
                if option
            ]
        )

    @cached_property
    def _others(self) -> dict[str, Any]:
        """The types of the other settings."""
        return {name: kind for name, (option, kind, *_) in self._fields.items() if not option}

    @cached_property
    def _set(self) -> list[Any]:
        """`--set`, where there are other settings."""
        if not self._others:
            return []
        text = f"A rarely needed setting, may be repeated: {', '.join(sorted(self._others))}."
        option = typer.Option("--set", metavar="NAME=VALUE", help=text)
        return _made_by_typer([_parameter("other_settings", list[str], None, option)])

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters with `--help`, which says in plain words what they take."""
        params = super().get_params(ctx)
        for param in params:
            _show_plainly(param)
        return params

    def invoke(self, ctx: Any) -> Any:
        """Take the settings from what was given, check the rest, then run."""
        stated = {}
        for param in self._settings:
            value = ctx.params.pop(param.name)
            if ctx.get_parameter_source(param.name).name == "COMMANDLINE":
                stated[param.name] = Given(value, param.opts[0])
        for text in ctx.params.pop("other_settings", None) or ():
            name, sign, value = text.partition("=")
            if not sign:
                raise UsageError(f"--set {text}", next_step="write --set NAME=VALUE")
            refuse_unknown([name], self._others, "--set")
            stated[name] = Given(_value(value, self._others[name]), f"--set {name}")
        for name, own in ctx.params.items():
            for value in own if isinstance(own, list | tuple) else (own,):
                if isinstance(value, float) and not math.isfinite(value):
                    raise UsageError(
                        f"--{name.replace('_', '-')} is {value}", next_step="give a finite number"
                    )
        before = _given.set(stated)
        try:
            return super().invoke(ctx)
        finally:
            _given.reset(before)


class Group(typer.Typer):
    """A command with commands below it."""

    def __init__(self, about: str, *, no_args_is_help: bool = True) -> None:
        super().__init__(help=about, no_args_is_help=no_args_is_help)

    def command(
        self, name: str | None = None, *, cls: Any = Command, **more: Any
    ) -> Callable[[Function], Function]:
        """As typer's, of our commands."""
        return super().command(name, cls=cls, **more)


def _value(text: str, kind: Any) -> Any:
    """A value as it is written: JSON, or text."""
    try:
        return text if kind is str else json.loads(text)
    except (ValueError, RecursionError):
        return text


def _show_plainly(param: Any) -> None:
    """Lists are shown as `<path>...`, flags take nothing, and formats are those there are."""
    if hasattr(param, "display_type_rich") and "display_type_rich" not in vars(param):
        shown = param.display_type_rich

        def plain(ctx: Any) -> str:
            kind = str(shown(ctx=ctx) or "").replace("<bool>", "")
            return LIST.sub(lambda found: f"<{found[1].lower()}>...", kind)

        param.display_type_rich = plain
    if "_of_formats}" in (getattr(param, "help", None) or ""):
        from metaphase.detections.files import format_titles, known_formats

        names = ", ".join(known_formats())
        param.help = param.help.format(titles_of_formats=format_titles(), names_of_formats=names)
