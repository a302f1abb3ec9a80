"""Pandas as `import pandas` gives it, but imported when it is first used: many commands touch no table."""

from importlib import import_module
from typing import TYPE_CHECKING, Any


class _Later:
    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("pandas"), name)


if TYPE_CHECKING:
    import pandas as pandas
else:
    pandas = _Later()
