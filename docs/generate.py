"""Pages of the site that come from elsewhere: README.md, the reference of the code, notebooks that run."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import itertools
import json
import re
import tempfile
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from metaphase.reports.record import SCHEMA, summary_schema

ROOT = Path(__file__).parents[1]
NOT_HERE = re.compile(r"\[([^\]]+)\]\((?:\.\./)?(?:docs|[A-Z]+\.md|recipes[^)]*|src[^)]*)\)")
"""Links to what is no page of the site: their words stay."""


def on_files(files: Files, config: Any) -> Files:
    """Called by mkdocs: the files of the site."""
    pages: dict[str, str | bytes] = {
        "index.md": start(),
        "glossary.md": glossary(),
        "reference-cli.md": commands(),
        "reference-python.md": python(),
        "reference-summary.md": summary(),
        "summary.schema.json": json.dumps(summary_schema(), indent=1, ensure_ascii=False),
    }
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        pages |= notebook(path)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs: a page's text."""
    return NOT_HERE.sub(r"\1", markdown)


def start() -> str:
    """README.md, whose links point from the folder above."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/([^)]+)\)", r"](\1)", text).replace("ARCHITECTURE.md#glossary", "glossary.md")


def glossary() -> str:
    """The glossary of ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    _, found = text.split("\n## Glossary\n", 1)
    return "# Glossary\n" + found.split("\n## ", 1)[0] + "\n"


# ---- commands ----


def commands() -> str:
    """Every command with its parameters, as typer knows them."""
    import typer

    from metaphase.cli.main import app

    root: Any = typer.main.get_command(app)
    return "\n\n".join(["# Commands", root.epilog or "", *_described(root, "metaphase")]) + "\n"


def _described(command: Any, name: str) -> Iterator[str]:
    import typer

    inner = getattr(command, "commands", {})
    if not inner:
        yield f"## {name}"
        yield inspect.cleandoc(command.help or "")
        command.get_params(typer.Context(command))  # completes what help says
        rows = [_row(one) for one in command.params if not getattr(one, "hidden", False)]
        yield "\n".join(["| parameter | |", "|---|---|", *rows])
    for one in inner:
        yield from _described(inner[one], f"{name} {one}")


def _row(param: Any) -> str:
    option = any(name.startswith("-") for name in param.opts)
    shown = ", ".join([*param.opts, *param.secondary_opts]) if option else (param.metavar or param.name)
    described = (getattr(param, "help", "") or "").replace("|", "\\|")
    plain = isinstance(param.default, int | float | str) and not isinstance(param.default, bool)
    default = f" Default: {param.default}." if plain and param.default != "" else ""
    required = " Required." if param.required else ""
    return f"| `{shown}` | {described}{default}{required} |".replace("`|", "`\\|")


# ---- import metaphase as mp ----


def python() -> str:
    """Every name of `import metaphase as mp`, and what its functions return."""
    import metaphase

    parts = ["# Python", "Everything of `import metaphase as mp`; [from Python](python.md) shows how."]
    values = {name: getattr(metaphase, name) for name in metaphase.__all__}
    for name, value in values.items():
        parts += _entry(f"mp.{name}", value)
    returned = {kind for value in values.values() if inspect.isfunction(value) for kind in _returned(value)}
    for kind in sorted(returned - set(values.values()), key=lambda kind: kind.__name__):
        parts += _entry(kind.__name__, kind)
    return "\n\n".join(parts) + "\n"


def _returned(function: Any) -> list[type]:
    """Our classes that a function may return; in a list, too."""
    stated = eval(function.__annotations__["return"], function.__globals__)
    found, left = [], [stated]
    while left:
        one = left.pop()
        left += typing.get_args(one)
        found += [one] if inspect.isclass(one) and one.__module__.startswith("metaphase.") else []
    return found


def _plain(parameter: inspect.Parameter) -> str:
    """A parameter as it is written in code."""
    return re.sub(r": '([^']*)'", r": \1", str(parameter)).replace("metaphase.", "")


def documented(text: str) -> str:
    """A docstring as Markdown: parameters as a list, examples as code."""
    about, *parts = re.split(r"^(Parameters|Returns|Raises|Examples):\n", text, flags=re.MULTILINE)
    found = [about.rstrip()]
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        inner = inspect.cleandoc(part).strip()
        if name == "Examples":
            inner = f"```python\n{inner}\n```"
        elif name != "Returns":
            inner = re.sub(r"^(\w+): ", r"- `\1`: ", inner, flags=re.MULTILINE)
        found += [f"**{name}**", inner]
    return "\n\n".join(found)


def _entry(name: str, value: Any) -> list[str]:
    parts = [f"## {name}"]
    if inspect.isfunction(value) or name.endswith("Config"):
        given = inspect.signature(value)
        lines = [f"    {_plain(one)}," for one in given.parameters.values()]
        shown = "" if given.return_annotation in (None, "None") else f" -> {given.return_annotation}"
        parts.append("\n".join(["```python", f"{name}(", *lines, f"){shown}", "```"]))
    parts.append(documented(inspect.cleandoc(value.__doc__ or "")))
    members = (
        [f"- `{key}`: {described}" for key, described in _members(value).items()]
        if inspect.isclass(value)
        else []
    )
    return [*parts, "\n".join(members)] if members else parts


def _members(kind: type) -> dict[str, str]:
    """What a class has that is not private: attributes by what stands below them, else by their type."""
    described: dict[str, str] = {}
    for base in kind.__bases__:
        described |= _members(base) if base.__module__.startswith("metaphase.") else {}
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    for one, below in itertools.pairwise([*tree.body, ast.Pass()]):
        if isinstance(one, ast.AnnAssign):
            said = below.value if isinstance(below, ast.Expr) else None
            words = said.value if isinstance(said, ast.Constant) else f"`{ast.unparse(one.annotation)}`"
            described[ast.unparse(one.target)] = " ".join(words.split())
        elif isinstance(one, ast.FunctionDef):
            described[one.name] = " ".join((ast.get_docstring(one) or "").split())
    return {key: words for key, words in described.items() if words and not key.startswith("_")}


# ---- summary.json ----


def summary() -> str:
    """Every key of `summary.json`, as its schema describes it."""
    schema = summary_schema()
    parts = [
        "# summary.json",
        "The result of `metaphase detect` for one slide, for programs. "
        "[The JSON Schema](summary.schema.json) has the same, with types. "
        f"`schema` is {SCHEMA}: it is raised when a key changes its meaning. Keys may be added.",
    ]
    for name, part in {"": schema, **schema["$defs"]}.items():
        rows = [f"| `{key}` | {one['description']} |" for key, one in part["properties"].items()]
        title = [f"## {name.lstrip('_')}"] if name else []
        parts += [*title, "\n".join(["| key | meaning |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


# ---- notebooks ----


def notebook(path: Path) -> dict[str, str | bytes]:
    """A notebook's page and its pictures, by their names in the site; its cells run in an empty folder."""
    import matplotlib

    matplotlib.use("agg")
    page = f"notebook-{path.stem}.md"
    parts, pictures = [], {}
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                parts.append(text)
                continue
            said, drawn = run_cell(text, names, f"{path.name}, cell {number}")
            parts += [f"```python\n{text}\n```", *said]
            for position, picture in enumerate(drawn):
                name = f"images/{path.stem}-{number}-{position}.png"
                pictures[name] = picture
                parts.append(f"![what the cell draws]({name})")
    link = f"*The page is this notebook, run: [{path.name}](notebooks/{path.name}).*"
    return {page: "\n\n".join([parts[0], link, *parts[1:]]) + "\n", **pictures}


def run_cell(text: str, names: dict[str, Any], where: str) -> tuple[list[str], list[bytes]]:
    """What a cell prints and ends with, as Markdown, and the pictures that it draws, as PNG."""
    import matplotlib.pyplot as plt

    tree = ast.parse(text, where)
    shown = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) and not text.endswith(";") else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, where, "exec"), names)  # noqa: S102
        value = None if shown is None else eval(compile(ast.Expression(shown.value), where, "eval"), names)
    said = [f"```text\n{printed.getvalue().rstrip()}\n```"] if printed.getvalue() else []
    if hasattr(value, "to_frame"):
        value = value.to_frame("")
    if hasattr(value, "to_html"):
        said.append(re.sub(r' (class|border|style)="[^"]*"', "", value.to_html(index=bool(value.index.name))))
    elif hasattr(value, "_repr_html_"):
        said.append(value._repr_html_())
    elif value is not None:
        said.append(f"```text\n{value!r}\n```")
    drawn = []
    for figure in map(plt.figure, plt.get_fignums()):
        file = io.BytesIO()
        figure.savefig(file, dpi=110, bbox_inches="tight")
        drawn.append(file.getvalue())
    plt.close("all")
    return said, drawn
