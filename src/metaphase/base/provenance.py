"""One account of what made a result.

A stage declares once, by type, all that decides its result: a frozen dataclass derived from `Ingredients`,
whose fields are settings, files, slides, masks, tables and networks. Each kind of value knows what of it
counts (a slide: its content and its effective resolution; a network: its weights and what they are run at).
The account of these fields, with the stage's name and the schema of its code, is the *key* of the result and
stands in a note beside it: a result is kept where the note says the same, and made again where anything
differs. `Ingredients.why` says what.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from metaphase.base.errors import MetaphaseError
from metaphase.base.files import explained, write_text
from metaphase.base.foreign import check_plain, is_clutter, is_file, is_folder, parsing, read_json, state_of
from metaphase.base.later import pandas as pd
from metaphase.base.remote import location
from metaphase.version import __version__

ABSENT = "absent"
"""Account of a file that is not there."""
WHOLE_BYTES = 64 << 20
"""Files up to this size are read whole for their fingerprint ..."""
PIECE_BYTES, PIECES = 64 << 10, 512
"""... of larger ones so many pieces, spread evenly and with both ends among them."""
MOST_DIFFERENCES = 3
EXACT = 1 << 53
"""Up to here 8.0 counts as 8; whole floats beyond it stay floats: no JSON reader keeps hundreds of digits."""
CHECK = "check"
"""Entry of a note: checksum of the others."""
_DECIDES = "decides"


def decides(*stages: str) -> dict[str, Any]:
    """Metadata of a dataclass field that decides the results of these stages only; without any, of none.

    Threads, tile sizes and limits that only stop a run are `field(metadata=decides())`.
    """
    return {_DECIDES: stages}


class Ingredients:
    """Base of a stage's declaration; see the module. `schema` rises whenever new code gives other results."""

    stage: ClassVar[str]
    schema: ClassVar[int]

    def __init_subclass__(cls, *, stage: str, schema: int = 1) -> None:
        super().__init_subclass__()
        cls.stage, cls.schema = stage, schema

    def account(self) -> dict[str, Any]:
        """Everything that decides the result, as plain values."""
        fields = _fields_of(self, self.stage)
        return {"stage": self.stage, "schema": [self.schema], "ingredients": fields}

    @property
    def key(self) -> str:
        """Changes with anything that decides the result."""
        return fingerprint_of(self.account())

    def is_done(self, output: Path) -> bool:
        """Whether a file is there and the note beside it matches."""
        return output.is_file() and self.matches(note_path(output))

    def matches(self, note: Path) -> bool:
        """Whether the note says that the output was made from just this."""
        return not self.why(note)

    def why(self, note: Path) -> str:
        """Why the output has to be made again, in a few words; empty where it need not be."""
        return why_again(note, self.account())

    @contextmanager
    def noted(
        self, output: Path, facts: Mapping[str, Any] | None = None, *, note: Path | None = None
    ) -> Iterator[None]:
        """Make an output inside, then write its note; the old note goes first."""
        note, account = note or note_path(output), self.account()
        with explained(note):
            note.unlink(missing_ok=True)
        yield
        self.refuse_changed(account, output)
        write_note(note, account, facts)

    def refuse_changed(self, account: Mapping[str, Any], output: Path) -> None:
        """Refuse a result of which something that decides it changed since this was its account."""
        changed = list(_differences(account["ingredients"], self.account()["ingredients"], ""))
        if changed:
            raise MetaphaseError(
                f"changed during the stage {account['stage']}: {'; '.join(changed[:MOST_DIFFERENCES])}",
                path=output,
                next_step="run the same command again when nobody writes to it",
            )

    def write(self, note: Path, facts: Mapping[str, Any] | None = None) -> None:
        """Leave the note, with the program's version and whatever is worth knowing about the output."""
        write_note(note, self.account(), facts)


@dataclass(frozen=True)
class Given(Ingredients, stage=""):
    """Ingredients by name, of a stage that is a function."""

    of: str
    """The stage."""
    schema_numbers: Sequence[int]
    values: Mapping[str, Any]

    def account(self) -> dict[str, Any]:
        """Everything that decides the result, as plain values."""
        found = {name: account_of(value, self.of) for name, value in self.values.items()}
        return {"stage": self.of, "schema": list(self.schema_numbers), "ingredients": found}


@dataclass(frozen=True)
class FileContent:
    """A file as an ingredient, or a folder of files: what it holds, not what it is called."""

    path: Path

    def account(self) -> Any:
        """Its fingerprint, or that there is none; those of a folder's files by name."""
        if is_folder(self.path):
            files = [path for path in self.path.rglob("*") if path.is_file() and not is_clutter(path)]
            return {path.relative_to(self.path).as_posix(): file_fingerprint(path) for path in files}
        return file_fingerprint(self.path) if is_file(self.path) else ABSENT


def account_of(value: Any, stage: str = "") -> Any:
    """The plain account of any ingredient; a value that cannot be accounted for is a `TypeError`."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() and abs(value) <= EXACT else value
    if isinstance(value, Mapping):
        return {str(name): account_of(item, stage) for name, item in value.items()}
    if isinstance(value, enum.Enum):
        return account_of(value.value, stage)
    if hasattr(value, "account") and not isinstance(value, type):  # it says itself what of it counts
        return account_of(value.account(), stage)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields_of(value, stage)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.size <= 64:
            return account_of(array.tolist())
        digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16)
        return f"{array.dtype} {array.shape} {digest.hexdigest()}"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [account_of(item, stage) for item in value]
    if isinstance(value, pd.DataFrame):
        return table_fingerprint(value)
    advice = "wrap it in FileContent or SlideSource" if isinstance(value, Path) else "give it an account()"
    raise TypeError(f"a {type(value).__name__} does not say what of it decides a result: {advice}")


def differences(before: Any, now: Any) -> str:
    """What differs between two accounts, named by the path of fields that leads there."""
    if not isinstance(before, Mapping) or before.get("stage") != now.get("stage"):
        return "it was made by another stage"
    found = list(_differences(before.get("ingredients"), now["ingredients"], ""))
    if before.get("schema") != now["schema"]:
        found.insert(0, "this version makes it differently")
    earlier = before.get("reads")
    found += [
        f"{name} is made again"
        for name, key in now.get("reads", {}).items()
        if not isinstance(earlier, Mapping) or earlier.get(name) != key
    ]
    more = f" and {len(found) - MOST_DIFFERENCES} more" if len(found) > MOST_DIFFERENCES else ""
    return "; ".join(found[:MOST_DIFFERENCES]) + more


def made_from(note: Path) -> dict[str, Any]:
    """The account of what a note stands beside; empty where there is no sound note."""
    return _read(note, "made_from")


def why_again(note: Path, account: Mapping[str, Any]) -> str:
    """Why what a note stands beside has to be made again; empty where it says the same as `account`."""
    before = made_from(note)
    return differences(before, account) if before else "not made yet"


def write_note(note: Path, account: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> None:
    """Leave a note of what an output was made from, by which version, and what is worth knowing about it."""
    content = {"made_from": account, "version": __version__, "facts": dict(facts or {})}
    content = json.loads(json.dumps(content))  # as it is read back
    write_text(note, json.dumps(content | {CHECK: fingerprint_of(content)}, indent=2) + "\n")


def facts_of(note: Path) -> dict[str, Any]:
    """What `Ingredients.write` was given about an output; nothing where there is no sound note."""
    return _read(note, "facts")


def note_path(path: Path) -> Path:
    """Where the note of a file lies."""
    return path.with_name(f"{path.name}.json")


def file_fingerprint(path: str | Path) -> str:
    """Size and checksum of a file's content; quick for gigabytes, of which many pieces are read.

    Of a remote file, the server's own tag of its content is taken, where it has one.
    """
    path = location(path)
    check_plain(path, remote=True)
    with parsing(path, "cannot be read", next_step="check the path"):
        size, changed_ns, tag = state_of(path)
        return f"{size}-{tag}" if tag else _file_fingerprint(path, size, changed_ns)


@lru_cache(1 << 16)
def _file_fingerprint(path: Path, size: int, _changed_ns: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        if size <= WHOLE_BYTES:
            while piece := file.read(1 << 20):
                digest.update(piece)
        else:
            for start in np.linspace(0, size - PIECE_BYTES, PIECES).astype(np.int64):
                file.seek(int(start))
                digest.update(file.read(PIECE_BYTES))
    return f"{size}-{digest.hexdigest()}"


def table_fingerprint(table: pd.DataFrame) -> str:
    """Checksum of a table's column names and values, in their order."""
    digest = hashlib.blake2b("|".join(map(str, table.columns)).encode(), digest_size=16)
    digest.update(pd.util.hash_pandas_object(table, index=False).to_numpy(np.uint64).tobytes())
    return digest.hexdigest()


def fingerprint_of(account: Any) -> str:
    """Checksum of plain values."""
    text = json.dumps(account, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _fields_of(value: Any, stage: str) -> dict[str, Any]:
    return {
        field.name: account_of(getattr(value, field.name), stage)
        for field in dataclasses.fields(value)
        if stage in field.metadata.get(_DECIDES, (stage,))
    }


def _differences(before: Any, now: Any, where: str) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys((*now, *before)):
            path = f"{where}.{name}" if where else str(name)
            if name not in before or name not in now:
                yield f"{path} is {'new' if name in now else 'gone'}"
            else:
                yield from _differences(before[name], now[name], path)
    elif before != now:
        short = all(len(str(value)) <= 24 for value in (before, now))
        yield f"{where} was {before} and is {now}" if short else f"{where} has changed"


def _read(note: Path, entry: str) -> dict[str, Any]:
    """An entry of a note; a damaged note, whose check is another, says nothing."""
    try:
        content = read_json(note, "no note", next_step="")
    except MetaphaseError:
        return {}
    sound = content.pop(CHECK, None) == fingerprint_of(content)
    found = content.get(entry)
    return found if sound and isinstance(found, dict) else {}
