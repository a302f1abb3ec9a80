"""What comes from elsewhere, as checked values: plain files, JSON, numbers, names, and limits on their size.

A reader of something foreign does its work inside `parsing`, so that nothing but an error which names the
file leaves it, and takes bytes, JSON and numbers from here.

Backends, formats and networks of other packages (`plugins`) are entry points of theirs, and there wherever
ours are:

    [project.entry-points."metaphase.slides"]      # a `slides.contract.SlideBackend`
    [project.entry-points."metaphase.formats"]     # a `detections.formats.contract.Format`
    [project.entry-points."metaphase.networks"]    # a function that builds a network of a `NetworkSpec`
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.remote import RemotePath, location, reported_as

# ---- limits ----

LIMITS = "METAPHASE_LIMITS"
"""Environment setting: a factor on every limit, for files that are really so large."""
RAISE_LIMITS = f"if the file is what it should be, set {LIMITS}=10 to allow ten times as much"


def raised(limit: int) -> int:
    """A limit on what a file may ask for, times the factor that the user has set."""
    text = os.environ.get(LIMITS, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1 <= factor < math.inf:
        raise UsageError(f"{LIMITS} is {text!r}", next_step="give a factor from 1 on, or unset it")
    return int(limit * factor)


# ---- files ----


@contextmanager
def parsing(
    path: str | Path | None, what: str, *, next_step: str, error: type[MetaphaseError] = MetaphaseError
) -> Iterator[None]:
    """Turn whatever goes wrong while reading a file into an error that names the file."""
    try:
        yield
    except MetaphaseError:
        raise
    except Exception as problem:
        raise error(f"{what} ({described(problem)})", path=path, next_step=next_step) from problem


def described(problem: BaseException) -> str:
    """What an exception says, in one short line."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    if isinstance(problem, RecursionError):
        return "it is nested too deeply"
    text = " ".join(str(problem).split())[:200]
    if isinstance(problem, MemoryError):
        return "it needs more memory than there is"
    if isinstance(problem, KeyError):
        return f"{text} is missing"
    return repr(problem)[:200] if isinstance(problem, IndexError) or not text else text


_MADE_UP = (("/", "proc"), ("/", "sys"))
"""Folders of the kernel, some of whose files look plain and never end."""


def is_made_up(path: str | Path) -> bool:
    """Whether the kernel makes up what is there; a path that leads nowhere, round in circles, is no such."""
    try:
        return location(path).resolve().parts[:2] in _MADE_UP
    except (OSError, RuntimeError, ValueError):
        return False


def check_plain(
    path: str | Path,
    error: type[MetaphaseError] = MetaphaseError,
    *,
    if_missing: str = "check the spelling and the disk",
    remote: bool = False,
) -> int:
    """The size of a plain file; a folder, and a pipe, device or socket, which might never end, is refused.

    So is a URL, unless the caller reads `remote` files.
    """
    path = location(path)
    if isinstance(path, RemotePath) and not remote:
        raise error("is read from a disk only", path=path, next_step="copy it, or mount the storage")
    try:
        with reported_as(error):
            status = path.stat()
    except (OSError, ValueError) as problem:
        missing = isinstance(problem, FileNotFoundError)
        what = "no such file, so it cannot be read" if missing else f"cannot be read ({described(problem)})"
        raise error(what, path=path, next_step=if_missing) from problem
    if stat.S_ISDIR(status.st_mode):
        raise error("is a folder", path=path, next_step="name the file inside it")
    if not stat.S_ISREG(status.st_mode) or is_made_up(path):
        raise error("is a pipe, device or socket, not a file", path=path, next_step="save it as a file first")
    return status.st_size


def is_file(path: str | Path) -> bool:
    r"""Whether a plain file of this name is there; names of foreign tables may be longer than any file's.

    >>> is_file("x" * 5000), is_file("\0")
    (False, False)
    """
    try:
        return (path := location(path)).is_file() and not is_made_up(path)
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Whether a folder of this name is there."""
    try:
        return location(path).is_dir()
    except (OSError, ValueError):
        return False


def read_bytes(path: str | Path, error: type[MetaphaseError] = MetaphaseError) -> bytes:
    """The content of a plain file."""
    path = location(path)
    check_plain(path, error, remote=True)
    with reported_as(error), parsing(path, "cannot be read", next_step="check its permissions", error=error):
        return path.read_bytes()


def state_of(path: Path) -> tuple[int, int, str]:
    """Size, time of change and, of a remote file, the server's tag of its content."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, getattr(found, "tag", "")


# ---- values ----

LONGEST_WHOLE = 300
"""Digits of the longest whole number that is still a finite float."""


def parse_json(data: bytes | str) -> Any:
    """Parsed JSON, of whose whole numbers all can become floats; whatever is none is a `ValueError`."""
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        return json.loads(text, parse_int=_whole_number)
    except RecursionError as error:
        raise ValueError(described(error)) from error


def _whole_number(digits: str) -> float:
    return int(digits) if len(digits) <= LONGEST_WHOLE else float(digits)


def read_json(
    path: str | Path, what: str, *, next_step: str, error: type[MetaphaseError] = MetaphaseError
) -> dict[str, Any]:
    """The JSON object that a plain file holds; `what` says what a file that holds none is not."""
    data = read_bytes(path, error)
    with parsing(path, what, next_step=next_step, error=error):
        values = parse_json(data)
        if not isinstance(values, dict):
            raise TypeError("not a JSON object")
        return values


def finite(value: Any) -> float:
    """A number of a foreign file, which may stand there as text; all else, and NaN, is a `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{str(value)[:40]!r} is not a number")  # noqa: TRY004 -- of a file, not of a caller
    if isinstance(value, str) and "_" in value:  # Python's own way to write 1000 as 1_000
        raise ValueError(f"{value[:40]!r} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number")
    return number


def is_text(value: str) -> bool:
    r"""Whether a string can be written: JSON may hold half of a character, and names bytes of any kind.

    >>> is_text("é"), is_text("\ud800")
    (True, False)
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def printable(text: str) -> str:
    r"""Text without what would move a cursor, change a colour or turn the direction of writing.

    >>> print(printable("\x1b[31mred"))
    \x1b[31mred
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def readable_name(name: str) -> str:
    r"""A file's name as text that every file and page can hold; bytes that are no UTF-8 become %XX.

    >>> readable_name("caf\udce9"), readable_name("café")
    ('caf%E9', 'café')
    """
    return re.sub("[\udc80-\udcff]", lambda found: f"%{ord(found[0]) - 0xDC00:02X}", name)


LONGEST_NAME = 80
"""Bytes of a folder's name; files in it are called like it, and Windows takes paths of 259 characters."""
_UNSAFE = re.compile(
    r"""[\x00-\x1f\x7f<>:"/\\|?*] | ^\. | [. ]+$
    | ^(?=(?:con|prn|aux|nul|com\d|com[¹²³]|lpt\d|lpt[¹²³]|conin\$|conout\$)[ ]*(?:\.|$)).
    | \.(?=(?:html|js|csv|parquet|json|log)$) | ^r(?=emoved$)""",
    re.IGNORECASE | re.VERBOSE,
)
"""What Linux, Windows or macOS refuses, hides or takes for a device; what is called as our own files are."""


def folder_name(name: str) -> str:
    """What the folder of a slide or case is called, the same on every system; most names stay as they are.

    >>> [folder_name(name) for name in ("S1.2", "..", "a:b?", "x. ", "nul.1", "counts.csv")]
    ['S1.2', '%2E%2E', 'a%3Ab%3F', 'x%2E%20', '%6Eul.1', 'counts%2Ecsv']
    """
    name = unicodedata.normalize("NFC", readable_name(name))
    name = _UNSAFE.sub(lambda match: "".join(f"%{ord(letter):02X}" for letter in match[0]), name)
    name = unicodedata.normalize("NFC", name)
    if len(data := name.encode(errors="replace")) <= LONGEST_NAME:
        return name
    check = hashlib.blake2b(data, digest_size=4).hexdigest()
    return f"{data[: LONGEST_NAME - len(check) - 1].decode(errors='ignore')}~{check}"


def folder_key(name: str) -> str:
    """The folder name in lower case: equal for names that Windows or macOS does not tell apart."""
    return folder_name(name).casefold()


def is_clutter(path: Path) -> bool:
    """Whether macOS or Windows left a file there, for itself."""
    return path.name.startswith("._") or path.name.lower() in (".ds_store", "thumbs.db", "desktop.ini")


def files_in(folder: Path, pattern: str) -> list[Path]:
    """What people left in a folder, by a pattern (`**/*.csv`: also below it)."""
    found = (path for path in folder.glob(pattern) if not is_clutter(path))
    return sorted(found, key=lambda path: path.parts)  # the same order on every system


def library(
    module: str,
    extra: str,
    what: str = "reading it needs",
    *,
    path: Path | None = None,
    instead: str = "",
    error: type[MetaphaseError] = MetaphaseError,
) -> Any:
    """Import a library of an extra; where it is not installed, the error says how to install it."""
    try:
        return import_module(module)
    except ImportError as problem:
        advice = f"pip install 'metaphase[{extra}]'{instead}"
        package = module.partition(".")[0]
        raise error(f"{what} the package {package}", path=path, next_step=advice) from problem


Group = Literal["metaphase.slides", "metaphase.formats", "metaphase.networks"]
_log = logging.getLogger(__name__)


@cache
def plugin_names(group: Group) -> tuple[str, ...]:
    """The names of the plug-ins of a group; nothing is loaded."""
    return tuple(sorted({entry.name for entry in entry_points(group=group)}))


@cache
def plugins(group: Group) -> dict[str, Any]:
    """The plug-ins of a group by name; one that cannot be loaded is left out, and the log says why."""
    loaded: dict[str, Any] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        try:
            loaded.setdefault(entry.name, entry.load())
        except Exception as error:  # noqa: BLE001 -- code of others may fail in any way, and ours goes on
            _log.warning("%s of %s cannot be used: %s", entry.name, entry.value, error)
    return loaded
