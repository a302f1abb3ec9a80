"""Whole-slide mitosis detection for breast histology.

`import metaphase as mp` is quick: each name is loaded when it is first used.

>>> import metaphase as mp
>>> mp.detect.__module__
'metaphase.api'
"""

from importlib import import_module
from typing import Any

from metaphase.version import __version__ as __version__

__all__ = [
    "CountConfig",
    "DetectionConfig",
    "MetaphaseError",
    "RegistrationConfig",
    "Result",
    "Slide",
    "detect",
    "evaluate",
    "load_model",
    "load_profile",
    "load_result",
    "open_slide",
    "register",
    "score",
    "use_network",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'metaphase' has no attribute {name!r}")
    return getattr(import_module("metaphase.api"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
