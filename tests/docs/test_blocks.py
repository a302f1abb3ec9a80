"""Every code block of the pages: the commands exist as written, the files parse, and all of it runs.

What runs takes minutes, so it is asked for: `make wheel-check`, against a wheel in an environment of its own
(METAPHASE_BLOCKS=all). Otherwise blocks are read and compiled, and every command's words are parsed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import metaphase
from metaphase.cli.main import app
from tests.docs.blocks import ROOT, SHELL, Block, blocks, pages
from tests.docs.desk import given, set_desk

ALL = os.environ.get("METAPHASE_BLOCKS") == "all"
NAMES = [str(page.relative_to(ROOT)) for page in pages()]
PAIRS = "cp pairs.csv cohort.csv"
BEFORE = {
    "README.md": "rm he.svs phh3.svs reference.svs",
    "docs/evaluation.md": "mv fields.csv detections.csv",
    "docs/grading.md": "metaphase detect slide.svs -o results --threshold 0.5",
    "docs/phh3.md": PAIRS,
    "docs/reference.md": PAIRS,
}
"""What was done before a page begins."""


# ---- as written ----


@pytest.mark.parametrize("name", NAMES)
def test_blocks_are_well_formed(name: str) -> None:
    for block in blocks(ROOT / name):
        assert block.language in (
            *SHELL,
            "python",
            "toml",
            "json",
            *(["powershell"] if block.reason else []),
        ), f"{block.where}: language {block.language!r}"
        if block.language == "python":
            ast.parse(block.text, block.where)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)
        else:
            for words in _commands(block):
                _check_words(words, block.where)


@pytest.mark.parametrize("name", NAMES)
def test_commands_within_sentences_exist(name: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    for command in re.findall(r"`metaphase ([a-z0-9][^`]*)`", text):
        _find(re.split(r"[\s/]+", command), f"{name}: metaphase {command}")


def _commands(block: Block) -> Iterator[list[str]]:
    for line in block.script.splitlines():
        for part in re.split(r" && | & |; ", re.sub(r"(^|\s)#.*", "", line)):
            words = shlex.split(part)
            if words and words[0] == "metaphase":
                yield words[1:]


@cache
def _root() -> Any:
    return typer.main.get_command(app)


def _find(words: list[str], where: str) -> tuple[Any, list[str]]:
    """The command that the words name, and what is left of them."""
    command, left = _root(), list(words)
    while hasattr(command, "commands") and left and left[0] in command.commands:
        command = command.commands[left.pop(0)]
    named = not hasattr(command, "commands") or command.invoke_without_command or not left or left[0] == "..."
    assert named, f"{where}: no such command: {' '.join(words)}"
    assert command is not _root(), f"{where}: no command"
    return command, left


def _check_words(words: list[str], where: str) -> None:
    command, left = _find(words, where)
    with command.make_context(command.name, left, resilient_parsing=True) as context:
        try:
            command.make_parser(context).parse_args(list(left))
        except Exception as error:  # noqa: BLE001
            pytest.fail(f"{where}: metaphase {' '.join(words)}: {error}")


# ---- run ----


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    set_desk(folder)
    command = folder / "bin" / "metaphase"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.docs.command "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.skipif(not ALL, reason="make wheel-check")
def test_the_package_is_the_installed_one() -> None:
    assert ROOT / "src" not in Path(metaphase.__file__).parents, "an installed wheel was asked for"


@pytest.mark.filterwarnings("ignore:theirs sees:UserWarning")  # the example of docs/python.md is a slow one
@pytest.mark.parametrize("name", NAMES if ALL else [])
def test_blocks_run(name: str, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runnable = [block for block in blocks(ROOT / name) if block.reason is None]
    if not any(block.language in (*SHELL, "python") for block in runnable):
        pytest.skip("no block that runs")
    shutil.copytree(desk, tmp_path / "desk")
    monkeypatch.chdir(tmp_path / "desk")
    names = given(name)
    _run(BEFORE.get(name, "true"), name)
    for block in runnable:
        if block.language in SHELL:
            _run(block.script, block.where)
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, block.where, "exec"), names)  # noqa: S102


def _run(script: str, where: str) -> None:
    path = os.pathsep.join([str(Path("bin").resolve()), str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, env=variables, check=False
    )
    assert done.returncode == 0, f"{where}\n{script}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
