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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from rich.table import Table
from typer.core import TyperCommand

from metaphase.base.errors import UsageError
from metaphase.base.settings import read_settings, refuse_unknown, settings_of
from metaphase.cli.console import print_json, say, stdout, warn

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., object])
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
    stated = [(name, given) for name, given in _given.get().items() if name in names]
    return {name: given.value for name, given in stated}, {name: given.option for name, given in stated}


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
    if kind is Annotated or type(None) in parts:
        return _plain(parts[0])
    return hint if hint in (str, int, float, bool) else None


class Answer:
    """What a command found: `plain` for programs (`--json`); lines, tables and warnings for people.

    A command of whose inputs some `failed` ends with exit code 1.
    """

    def __init__(
        self, plain: Any, *shown: object, warnings: Iterable[object] = (), failed: object = False
    ) -> None:
        self.plain, self.shown, self.warnings, self.failed = plain, shown, warnings, bool(failed)

    def print(self, as_json: bool) -> None:
        """Print it."""
        if as_json:
            print_json(self.plain)
            return
        for part in self.shown:
            if not isinstance(part, Table):
                say(part)
            elif part.columns:
                stdout.print(part)
        warn(*self.warnings)


def _made_by_typer(name: str, kind: Any, default: Any, option: Any) -> Any:
    """An option as typer makes it of a parameter."""

    def command(**_: Any) -> None:
        """Only its option is wanted."""

    default = None if kind == list[str] else default
    annotation: Any = Annotated[kind if default is not None else kind | None, option]
    parameter = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    vars(command)["__signature__"] = inspect.Signature([parameter])
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return typing.cast(Any, typer.main.get_command(app)).params[0]


class Command(TyperCommand):
    """A command whose docstring says what its parameters are, and some of whose options are settings.

    One that returns an `Answer` has the option `--json`.
    """

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
        others = [param for param in self._own if not param.required]
        if str(getattr(self.callback, "__annotations__", {}).get("return")).startswith(Answer.__name__):
            text = "Print the result as JSON, for programs."
            others.append(_made_by_typer("as_json", bool, False, typer.Option("--json", help=text)))
            others[-1].secondary_opts = []
        settings, reached = self._stated
        if reached:
            text = f"A rarely needed setting, may be repeated: {', '.join(sorted(reached))}."
            option = typer.Option("--set", metavar="NAME=VALUE", help=text)
            others.append(_made_by_typer("other_settings", list[str], None, option))
        return [*needed, *settings, *others]

    @cached_property
    def _stated(self) -> tuple[list[Any], dict[str, Any]]:
        """The settings that are options, and the types of those that `--set` reaches."""
        own, options, others = {param.name for param in self._own}, [], {}
        for path, spelled, reached in getattr(self.callback, "takes", ()):
            module, _, title = path.rpartition(".")
            fields = getattr(import_module(f"metaphase.{module}"), title).__pydantic_fields__
            for name, option in spelled.items():
                described = typer.Option(option, help=fields[name].description)
                kind = _plain(fields[name].annotation)
                options.append(_made_by_typer(name, kind, fields[name].default, described))
            for name in fields.keys() - spelled.keys() - own if reached is None else reached:
                if kind := _plain(fields[name].annotation):
                    others[name] = kind
        return options, others

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters with `--help`, which says in plain words what they take."""
        params = super().get_params(ctx)
        for param in params:
            _show_plainly(param)
        return params

    def invoke(self, ctx: Any) -> Any:
        """Take the settings from what was given, check the rest, run, and print the answer."""
        settings, reached = self._stated
        stated = {}
        for param in settings:
            value = ctx.params.pop(param.name)
            if ctx.get_parameter_source(param.name).name == "COMMANDLINE":
                stated[param.name] = Given(value, param.opts[0])
        for text in ctx.params.pop("other_settings", None) or ():
            name, sign, value = text.partition("=")
            if not sign:
                raise UsageError(f"--set {text}", next_step="write --set NAME=VALUE")
            refuse_unknown([name], reached, "--set")
            stated[name] = Given(_value(value, reached[name]), f"--set {name}")
        for name, own in ctx.params.items():
            for value in own if isinstance(own, list | tuple) else (own,):
                if isinstance(value, float) and not math.isfinite(value):
                    raise UsageError(
                        f"--{name.replace('_', '-')} is {value}", next_step="give a finite number"
                    )
        as_json, before = ctx.params.pop("as_json", False), _given.set(stated)
        try:
            answer = super().invoke(ctx)
        finally:
            _given.reset(before)
        if isinstance(answer, Answer):
            answer.print(as_json)
            raise typer.Exit(int(answer.failed))


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
