"""Sidecars that tell whether an output is finished and from what it was made."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from metaphase.artifacts import write_text
from metaphase.errors import UsageError
from metaphase.phh3.errors import Phh3Error

END_BYTES = 1_000_000
"""A file is recognised by its size and by this much of its beginning and of its end."""
Record = dict[str, Any]


def fingerprint(path: str | Path) -> str:
    """A checksum of a file's size, beginning and end: quick, however large the slide."""
    path = Path(path)
    digest = hashlib.sha256()
    try:
        size = path.stat().st_size
        digest.update(str(size).encode())
        with path.open("rb") as file:
            digest.update(file.read(END_BYTES))
            file.seek(max(0, size - END_BYTES))
            digest.update(file.read(END_BYTES))
    except OSError as error:
        raise Phh3Error(
            f"cannot be read ({error.strerror})", path=path, next_step="check the path"
        ) from error
    return digest.hexdigest()


def write_record(path: str | Path, record: Record) -> None:
    """Write a sidecar; done last, it says that the output beside it is whole."""
    write_text(path, json.dumps(record, indent=1) + "\n")


def read_record(path: str | Path) -> Record | None:
    """The sidecar, or None where there is none that can be read."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def is_made_from(record: Record | None, made_from: Record) -> bool:
    """Whether a sidecar says that its output was made from exactly this."""
    plain = json.loads(json.dumps(made_from))
    return record is not None and record.get("made_from") == plain


def case_folder(workspace: str | Path, case: str) -> Path:
    """The folder of a case; a case whose name cannot be a folder's is a `UsageError`."""
    if case in ("", ".", "..") or Path(case).name != case or "\\" in case:
        raise UsageError(
            f"the case {case!r} cannot name a folder",
            next_step="use letters, digits, dots, - and _ in `case`",
        )
    return Path(workspace) / case
