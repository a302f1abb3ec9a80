"""Options that are settings: the fields of a settings class, with their types, defaults and meanings.

A command names the class (imported when it is needed) and the fields that have options of their own;
`--set NAME=VALUE` reaches all others. `given` makes the settings of what the command line says.
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
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from metaphase.base.errors import UsageError
from metaphase.base.settings import meanings, read_settings, refuse_unknown

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., None])
GIVEN: ContextVar[Mapping[str, tuple[str, Any]]] = ContextVar("given", default={})  # noqa: B039 -- never changed
"""What the command line says of settings: by name, the option and the value."""


def given(kind: type[Made], file: Path | None = None, **more: Any) -> Made:
    """The settings that the command line states; those of a TOML file stand below them."""
    names = {field.name for field in dataclasses.fields(typing.cast(Any, kind))}
    stated = {name: one for name, one in GIVEN.get().items() if name in names}
    values = {name: value for name, (_, value) in stated.items()}
    made: Any = read_settings(kind, file, values, {name: option for name, (option, _) in stated.items()})
    return typing.cast(Made, dataclasses.replace(made, **more))


@dataclasses.dataclass(frozen=True)
class Taken:
    """Settings that a command takes."""

    path: str
    """Module and name of their class."""
    options: Mapping[str, str]
    """Fields with an option of their own, and how that is spelled."""
    others: Sequence[str] | None = None
    """Fields that `--set` reaches; by default all the rest."""

    @cached_property
    def kind(self) -> Any:
        """Their class."""
        module, _, name = self.path.rpartition(".")
        return getattr(import_module(f"metaphase.{module}"), name)

    @cached_property
    def types(self) -> dict[str, Any]:
        """The type of each setting that a command line can state."""
        hints = typing.get_type_hints(self.kind)
        return {name: plain for name, hint in hints.items() if (plain := _plain(hint))}

    def parameters(self) -> list[Parameter]:
        """The options, as typer takes them."""
        said, defaults = meanings(self.kind), {one.name: one.default for one in dataclasses.fields(self.kind)}
        return [
            _parameter(name, self.types[name], typer.Option(option, help=said[name]), defaults[name])
            for name, option in self.options.items()
        ]


def takes(
    path: str, *names: str, others: Sequence[str] | None = None, **spelled: str
) -> Callable[[Function], Function]:
    """The command takes settings: these fields as options, the others by `--set`."""
    options = {name: f"--{name.replace('_', '-')}" for name in names} | spelled
    taken = Taken(path, options, others)

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


def _parameter(name: str, kind: Any, option: Any, default: Any) -> Parameter:
    optional = kind | None if default is None else kind
    default = None if kind == list[str] else default
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[optional, option])


LISTED = "\n\nParameters:\n"


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
        """Its parameters, what it needs first."""
        return self._ordered

    @params.setter
    def params(self, own: list[Any]) -> None:
        self._own = own

    @cached_property
    def _ordered(self) -> list[Any]:
        number = len(self._settings) - bool(self._others)
        shown, rare = self._settings[:number], self._settings[number:]
        needed = [param for param in self._own if param.required]
        return [*needed, *shown, *(param for param in self._own if not param.required), *rare]

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters with `--help`, which says in plain words what they take."""
        params = super().get_params(ctx)
        for param in params:
            _show_plainly(param)
        return params

    @property
    def _takes(self) -> list[Taken]:
        return getattr(self.callback, "takes", [])

    @cached_property
    def _others(self) -> dict[str, Any]:
        """The type of each setting that `--set` reaches."""
        own = {param.name for param in self._own}
        return {
            name: kind
            for taken in self._takes
            for name, kind in taken.types.items()
            if name not in own
            and name not in taken.options
            and (taken.others is None or name in taken.others)
        }

    @cached_property
    def _settings(self) -> list[Any]:
        """The options that are settings, and `--set`."""
        if not self._takes:
            return []
        parameters = [one for taken in self._takes for one in taken.parameters()]
        if self._others:
            text = f"A rarely needed setting, may be repeated: {', '.join(sorted(self._others))}."
            option = typer.Option("--set", metavar="NAME=VALUE", help=text)
            parameters.append(_parameter("other_settings", list[str], option, None))

        def command(**_: Any) -> None:
            """Only its options are wanted."""

        vars(command)["__signature__"] = inspect.Signature(parameters)
        app = typer.Typer(add_completion=False)
        app.command()(command)
        return list(typing.cast(Any, typer.main.get_command(app)).params)

    def invoke(self, ctx: Any) -> Any:
        """Take the settings from what was given, check the rest, then run."""
        stated = {}
        for param in self._settings:
            value = ctx.params.pop(param.name)
            if ctx.get_parameter_source(param.name).name == "COMMANDLINE":
                stated[param.name] = param.opts[0], value
        for text in stated.pop("other_settings", ("", ()))[1]:
            name, sign, value = text.partition("=")
            if not sign:
                raise UsageError(f"--set {text}", next_step="write --set NAME=VALUE")
            refuse_unknown([name], self._others, "--set")
            stated[name] = f"--set {name}", _value(value, self._others[name])
        for name, own in ctx.params.items():
            for value in own if isinstance(own, list | tuple) else (own,):
                if isinstance(value, float) and not math.isfinite(value):
                    raise UsageError(
                        f"--{name.replace('_', '-')} is {value}", next_step="give a finite number"
                    )
        before = GIVEN.set(stated)
        try:
            return super().invoke(ctx)
        finally:
            GIVEN.reset(before)


def _value(text: str, kind: Any) -> Any:
    """A value as it is written: JSON, or text."""
    try:
        return text if kind is str else json.loads(text)
    except (ValueError, RecursionError):
        return text


LIST = re.compile(r"<list\[(.+)\]>")


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
