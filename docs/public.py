"""Write the tables of docs/public.md, what a version promises to keep, from the code."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

PAGE = Path(__file__).with_name("public.md")


def page() -> str:
    """The page: its first words as they are, then the tables."""
    tables = {
        "Commands": ("command", commands()),
        "Settings": ("table of a TOML file, or command", settings()),
        "Python": ("name of `import metaphase as mp`", python()),
        "File formats": ("format", formats()),
    }
    parts = [
        "\n".join(
            [
                f"## {title}",
                "",
                f"| {head} | |",
                "|---|---|",
                *(f"| `{name}` | {text} |" for name, text in rows),
            ]
        )
        for title, (head, rows) in tables.items()
    ]
    promise = PAGE.read_text(encoding="utf-8").split("## ", 1)[0]
    return promise + "\n\n".join(parts) + "\n"


def commands() -> Iterator[tuple[str, str]]:
    """Every command with its options."""
    import typer

    from metaphase.cli.main import app

    def below(command: Any, name: str) -> Iterator[tuple[str, str]]:
        inner = getattr(command, "commands", None)
        for word in inner or ():
            yield from below(inner[word], f"{name} {word}".strip())
        if inner is None:
            options = [
                one.opts[0] for one in command.params if one.opts[0].startswith("-") and one.name != "help"
            ]
            yield name, joined(options)

    return below(typer.main.get_command(app), "")


def settings() -> Iterator[tuple[str, str]]:
    """Every setting, by the file or the command that takes it."""
    from metaphase.analysis.config import DetectionConfig
    from metaphase.lab.folder import LabSettings
    from metaphase.labels.building import BuildConfig
    from metaphase.learn.config import RunConfig

    yield "detect --set", names(DetectionConfig)
    for file, kind in (("run", RunConfig), ("lab.toml", LabSettings), ("reference build", BuildConfig)):
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            stated = inspect.get_annotations(kind, eval_str=True).get(field.name)
            section = next(filter(dataclasses.is_dataclass, (stated, *get_args(stated))), None)
            if section:
                yield f"{file}: [{field.name}]", names(section)


def names(kind: Any) -> str:
    """The fields of settings or of a file."""
    return joined(getattr(kind, "model_fields", None) or [field.name for field in dataclasses.fields(kind)])


def joined(words: Iterable[str]) -> str:
    """Words as one piece of code."""
    return f"`{' '.join(words)}`" if words else ""


def python() -> Iterator[tuple[str, str]]:
    """Every name of the package, and the parameters of its functions."""
    import metaphase

    for name in sorted(metaphase.__all__, key=str.lower):
        value = getattr(metaphase, name)
        if inspect.isfunction(value):
            yield f"mp.{name}", joined(inspect.signature(value).parameters)
        elif dataclasses.is_dataclass(value):
            members = [one for one, what in vars(value).items() if isinstance(what, property)]
            fields = [field.name for field in dataclasses.fields(value)]
            yield f"mp.{name}", joined([one for one in dict.fromkeys([*fields, *members]) if one[0] != "_"])
        else:
            yield f"mp.{name}", joined([one for one in vars(value) if not one.startswith("_")])


def formats() -> Iterator[tuple[str, str]]:
    """Every format of ours with its version, and of others those that are read or written."""
    from metaphase.counting.sites import SiteProfile
    from metaphase.detections.files import FORMATS
    from metaphase.detections.table import COLUMNS
    from metaphase.images.stain.colours import TEMPLATE_FORMAT, TRANSFORM_FORMAT
    from metaphase.labels.observers.store import VERSION as ANSWERS
    from metaphase.labels.registration.transform import VERSION as TRANSFORM
    from metaphase.networks.cards import ModelCard
    from metaphase.reports.record import SCHEMA, summary_schema

    yield "summary.json", f"schema {SCHEMA}: {joined(summary_schema()['properties'])}"
    yield "detections.parquet", joined(COLUMNS)
    yield "review.sqlite, answers.sqlite", f"version {ANSWERS}"
    yield "transform.json", f"version {TRANSFORM}"
    yield "a laboratory's profile", f"format 3: {names(SiteProfile)}"
    yield "a model's card", f"format 1: {names(ModelCard)}"
    yield "stain transform and template", f"`{TRANSFORM_FORMAT}`, `{TEMPLATE_FORMAT}`"
    for form in FORMATS:
        yield form.name, joined(form.suffixes)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
