"""Pages of the site that come from elsewhere: the start from README.md, the reference from the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
NOT_HERE = re.compile(r"\[([^\]]+)\]\((?:\.\./)?(?:docs|[A-Z]+\.md|recipes[^)]*|src[^)]*)\)")
"""Links to what is no page of the site: their words stay."""


def on_files(files: Files, config: Any) -> Files:
    """Called by mkdocs: the files of the site."""
    pages = {"index.md": start(), "reference-cli.md": commands(), "reference-python.md": python()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs: a page's text."""
    return NOT_HERE.sub(r"\1", markdown)


def start() -> str:
    """README.md, whose links point from the folder above."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/([^)]+)\)", r"](\1)", text)


# ---- commands ----


def commands() -> str:
    """Every command with its parameters, as typer knows them."""
    import typer

    from metaphase.cli.main import app

    root: Any = typer.main.get_command(app)
    return "\n\n".join(["# Commands", root.epilog or "", *_told(root, "metaphase")]) + "\n"


def _told(command: Any, name: str) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    if not inner:
        yield f"## {name}"
        yield inspect.cleandoc(command.help or "")
        rows = [_row(one) for one in command.params if not getattr(one, "hidden", False)]
        yield "\n".join(["| parameter | |", "|---|---|", *rows])
    for one in inner:
        yield from _told(inner[one], f"{name} {one}")


def _row(param: Any) -> str:
    option = any(name.startswith("-") for name in param.opts)
    shown = ", ".join([*param.opts, *param.secondary_opts]) if option else (param.metavar or param.name)
    told = (getattr(param, "help", "") or "").replace("|", "\\|")
    plain = isinstance(param.default, int | float | str) and not isinstance(param.default, bool)
    default = f" Default: {param.default}." if plain and param.default != "" else ""
    required = " Required." if param.required else ""
    return f"| `{shown}` | {told}{default}{required} |".replace("`|", "`\\|")


# ---- import metaphase as mp ----


def python() -> str:
    """Every name of `import metaphase as mp`, from its signature and docstring."""
    import metaphase

    parts = ["# Python", "Everything of `import metaphase as mp`; [from Python](python.md) shows how."]
    for name in sorted(metaphase.__all__, key=str.lower):
        parts += _entry(name, getattr(metaphase, name))
    return "\n\n".join(parts) + "\n"


def _plain(parameter: inspect.Parameter) -> str:
    """A parameter as it is written in code."""
    return re.sub(r": '([^']*)'", r": \1", str(parameter)).replace("metaphase.", "")


def _entry(name: str, value: Any) -> list[str]:
    parts = [f"## mp.{name}"]
    if inspect.isfunction(value) or hasattr(value, "__dataclass_fields__"):
        given = inspect.signature(value)
        lines = [f"    {_plain(one)}," for one in given.parameters.values()]
        shown = "" if given.return_annotation in (None, "None") else f" -> {given.return_annotation}"
        parts.append("\n".join(["```python", f"mp.{name}(", *lines, f"){shown}", "```"]))
    parts.append(inspect.cleandoc(value.__doc__ or ""))
    members = [
        f"- `{key}`: {inspect.cleandoc(one.__doc__ or '').splitlines()[0]}"
        for key, one in vars(value).items()
        if inspect.isclass(value) and not key.startswith("_") and getattr(one, "__doc__", None)
        and (isinstance(one, property) or hasattr(one, "attrname") or inspect.isfunction(one))
    ]  # fmt: skip
    return [*parts, "\n".join(members)] if members else parts
