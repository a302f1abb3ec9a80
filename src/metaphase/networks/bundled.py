"""The model that comes with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

BUNDLED = "simulated"


def bundled_model() -> Path:
    """Weights of the default detector; its card says what it may be used for."""
    return Path(str(files("metaphase") / "models" / f"{BUNDLED}.safetensors"))
