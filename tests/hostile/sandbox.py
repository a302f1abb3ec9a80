"""What commands may write: what their output options and folders name, and nothing else around them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

OPTIONS = ("-o", "--output", "--card", "--lab")
"""What follows them is written."""
FOLDERS = ("review", "label", "view", "calibrate", "lab")
"""Commands of commands whose first folder is written into."""
OWN = re.compile(r"(said\.txt|command\.json|verdict\.json)$|[a-z-]+-\d+-\d+(/|$)")
"""Files of the harness, and the places of other trials."""
State = dict[str, tuple[int, ...]]


def around(place: Path) -> State:
    """All that lies in and beside the place of a trial, by what tells whether it was written."""
    found: State = {}
    for top in (place, *(one for one in place.parent.iterdir() if not OWN.match(one.name))):
        for path in (top, *top.rglob("*")):
            name = path.relative_to(place.parent).as_posix()
            if OWN.search(path.name) and path.is_file():
                continue
            state = path.lstat()
            changed = (state.st_size, state.st_mtime_ns, state.st_ino) if not path.is_dir() else ()
            found[name] = (state.st_mode, *changed)
    return found


def written_elsewhere(before: State, place: Path, arguments: Sequence[str]) -> str:
    """What a command changed around it that it was not told to write; empty where nothing."""
    after = around(place)
    told = [value for option, value in pairwise(arguments) if option in OPTIONS]
    told += arguments[2:3] if arguments[0] in FOLDERS else []
    home = f"{place.name}/in"
    mine = [f"{home}/{Path(one)}" for one in told if ".." not in Path(one).parts]
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    odd = [name for name in changed if not any(_belongs(name, one) for one in mine)]
    return f"written elsewhere: {', '.join(odd[:3])}" if odd else ""


def _belongs(name: str, told: str) -> bool:
    """Whether a file is what was told, lies in it, or is the note or card beside it."""
    beside = (told, f"{told}.json", Path(told).with_suffix(".json").as_posix())
    return name in beside or name.startswith(f"{told}/")
