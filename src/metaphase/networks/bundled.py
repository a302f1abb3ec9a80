"""The models that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

BUNDLED = "breast"
"""The default detector; `simulated` is the other one, which never saw a real image."""


def bundled_model(name: str = BUNDLED) -> Path:
    """Weights of a detector of the package; its card says what it may be used for."""
    return Path(str(files("metaphase") / "models" / f"{name}.safetensors"))


def named_model(model: str | Path) -> Path:
    """The file that is meant by a path, or by the plain name of a bundled model."""
    bundled = bundled_model(str(model))
    is_name = Path(model).name == str(model) and not Path(model).exists()
    return bundled if is_name and bundled.is_file() else Path(model)
