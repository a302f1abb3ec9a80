"""Settings from TOML files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from metaphase.errors import UsageError


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file; one that is missing or malformed is a `UsageError`."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot be read ({error.strerror})", path=path, next_step="check the path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not valid TOML ({error})", path=path, next_step="correct that line") from error
