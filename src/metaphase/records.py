"""A note beside each output of what it was made from: an output is done when the note says the same again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase import __version__
from metaphase.artifacts import explained, write_text
from metaphase.errors import MetaphaseError

_ENDS_BYTES = 1 << 20


@dataclass(frozen=True)
class Record:
    """What decides an output: the stage, its settings (seeds among them) and its inputs."""

    stage: str
    settings: Mapping[str, Any]
    """Plain values, as `plain_settings` gives them."""
    inputs: Mapping[str, str]
    """Fingerprint of each input."""

    @property
    def fingerprint(self) -> str:
        """Changes with anything that decides the output."""
        content = json.dumps([self.stage, dict(self.settings), dict(self.inputs)], sort_keys=True)
        return joint_fingerprint([content])

    def matches(self, path: Path) -> bool:
        """Whether the note at `path` says that the output was made from just this."""
        try:
            return bool(json.loads(path.read_text(encoding="utf-8"))["made_from"] == self._plain())
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def is_done(self, output: Path) -> bool:
        """Whether a file is there and the note beside it matches."""
        return output.is_file() and self.matches(note_path(output))

    @contextmanager
    def noted(
        self, output: Path, facts: Mapping[str, Any] | None = None, *, note: Path | None = None
    ) -> Iterator[None]:
        """Make an output inside; its old note goes first, so that none ever stands beside other content."""
        note = note or note_path(output)
        with explained(note):
            note.unlink(missing_ok=True)
        yield
        self.write(note, facts)

    def write(self, path: Path, facts: Mapping[str, Any] | None = None) -> None:
        """Leave the note, with the program's version and whatever is worth knowing about the output."""
        note = {"made_from": self._plain(), "version": __version__, "facts": dict(facts or {})}
        write_text(path, json.dumps(note, indent=2) + "\n")

    def _plain(self) -> dict[str, Any]:
        settings = json.loads(json.dumps(dict(self.settings)))
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        inputs = dict(self.inputs)
        return {"stage": self.stage, "settings": settings, "settings_sha256": digest, "inputs": inputs}


def plain_settings(*configs: Any) -> dict[str, Any]:
    """The fields of frozen configurations, by class name."""
    return {type(config).__name__: dataclasses.asdict(config) for config in configs}


def facts_of(path: Path) -> dict[str, Any]:
    """What `Record.write` was told about an output."""
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["facts"]
    return facts


def note_path(path: Path) -> Path:
    """Where the note of a file lies."""
    return path.with_name(f"{path.name}.json")


def file_fingerprint(path: str | Path) -> str:
    """Size and checksum of both ends of a file: enough to notice another slide, and quick for gigabytes."""
    path = Path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(_ENDS_BYTES))
            file.seek(max(0, size - _ENDS_BYTES))
            digest.update(file.read(_ENDS_BYTES))
    except OSError as error:
        raise MetaphaseError(
            f"cannot be read ({error.strerror})", path=path, next_step="check the path"
        ) from error
    return f"{size}-{digest.hexdigest()[:16]}"


def table_fingerprint(table: pd.DataFrame) -> str:
    """Checksum of a table's column names and values, in their order."""
    digest = hashlib.sha256("|".join(map(str, table.columns)).encode())
    digest.update(pd.util.hash_pandas_object(table, index=False).to_numpy(np.uint64).tobytes())
    return digest.hexdigest()[:16]


def joint_fingerprint(parts: Iterable[str]) -> str:
    """Checksum of several texts or fingerprints, in their order."""
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]
