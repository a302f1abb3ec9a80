"""Values that nobody expects, and sound things with one of them broken."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

HUGE = 10**400
ODD_NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 255, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63, -(2**63), 10**20, HUGE, -0.0, 1e-300,
    1e300, 1e-9, 0.5, math.nan, math.inf, -math.inf,
)  # fmt: skip
ODD_TEXTS = (
    "", " ", "NA", "None", "null", "nan", "=1+2", "+1", "-1", "@x", "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07", "a\nb", "a,b", 'a"b', "../x", "..", ".", "/etc/x", "a/b", "a\\b", "CON", "x" * 300,
    "é", "e\u0301", "\u202egnp", "😀", "\x00", "\x07", "\x7f", "%2F", "%", "<script>alert(1)</script>",
    "0001", "1e5", "TRUE", "2020-01-01", "\ufeffa", "'", "';--", "{{7*7}}", "${x}", "\ud800", "a" * 70000,
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    *ODD_NUMBERS, *ODD_TEXTS, None, True, False, [], {}, [[]], [None], {"a": 1}, [1, 2, 3],
)  # fmt: skip
NO_NUMBER = (math.nan, math.inf, -math.inf, True, False, "x", None, [], {}, HUGE)
"""What is no finite number, wherever one is needed."""


def any_of(random: Random, *choices: Any) -> Any:
    """One of them."""
    return choices[random.randrange(len(choices))]


def bytes_changed(random: Random, data: bytes, *, most: int = 8) -> bytes:
    """Bytes flipped, zeroed, cut, doubled or put elsewhere."""
    if not data:
        return b"\0"
    out = bytearray(data)
    how = random.randrange(6)
    if how == 0:
        return bytes(out[: random.randrange(len(out))])
    if how == 1:
        start = random.randrange(len(out))
        out[start : start + random.randrange(64)] = bytes(random.randrange(64))
    elif how == 2:
        start = random.randrange(len(out))
        out[start:start] = out[start : start + random.randrange(4096)]
    else:
        for _ in range(random.randint(1, most)):
            out[random.randrange(len(out))] = random.randrange(256)
    return bytes(out)


def tree_changed(random: Random, tree: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """A copy of JSON-like values with one of them replaced, removed or renamed; where, and by what."""
    tree = copy.deepcopy(tree)
    paths = list(_paths(tree))
    path = paths[random.randrange(len(paths))]
    if not path:
        value = any_of(random, *ODD_VALUES)
        return value, path, value
    parent = tree
    for step in path[:-1]:
        parent = parent[step]
    how = random.randrange(10)
    if how == 0:
        del parent[path[-1]]
        return tree, path, "gone"
    if how == 1 and isinstance(parent, dict):
        parent[any_of(random, *ODD_TEXTS)] = parent.pop(path[-1])
        return tree, path, "renamed"
    if how == 2:
        parent[path[-1]] = [parent[path[-1]]]
        return tree, path, "wrapped"
    value = any_of(random, *ODD_VALUES)
    parent[path[-1]] = value
    return tree, path, value


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(deeper for key, value in items for deeper in _paths(value, (*path, key)))]


def json_bytes(random: Random, tree: Any) -> bytes:
    """Text of a tree, at times in a coding or of a shape that parsers choke on."""
    data = json.dumps(tree).encode("utf-8", "surrogatepass")
    how = random.randrange(24)
    if how == 0:
        return b"[" * 200_000 + data
    if how == 1:
        return data.replace(b"0", b"9" * 6000, 1)
    if how == 2:
        return json.dumps(tree).encode("utf-16", "surrogatepass")
    if how == 3:
        return b"\xef\xbb\xbf" + data
    if how == 4:
        return data.replace(b'"', b'"\xff', 1)
    if how == 5:
        return bytes_changed(random, data)
    if how == 6:
        return b'{"a":' * 50_000 + data + b"}" * 50_000
    return data


def unsound(path: Sequence[Any], value: Any, keys: Sequence[str]) -> bool:
    """Whether a number that is needed was replaced by what is none."""
    last = next((step for step in reversed(path) if isinstance(step, str)), None)
    same = any(value is odd or (value == odd and type(value) is type(odd)) for odd in NO_NUMBER)
    return last in keys and same and not (value is None and last in ("score", "probability"))
