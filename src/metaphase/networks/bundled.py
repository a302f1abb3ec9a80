"""The models that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from metaphase.errors import ModelError

BUNDLED = "breast"
"""The default detector; `simulated` is the other one, which never saw a real image."""


def bundled_model(name: str = BUNDLED) -> Path:
    """Weights of a detector of the package; its card says what it may be used for."""
    return Path(str(files("metaphase") / "models" / f"{name}.safetensors"))


def named_model(model: str | Path) -> Path:
    """The file that is meant by a path, or by the plain name of a bundled model."""
    path = Path(model)
    if path.exists() or path.with_suffix(".safetensors").exists():
        return path
    bundled = bundled_model(path.name)
    if path.name != str(model) or not bundled.is_file():
        names = ", ".join(sorted(each.stem for each in bundled.parent.glob("*.safetensors")))
        raise ModelError(
            "no such model", path=path, next_step=f"give a .safetensors file, or a bundled model ({names})"
        )
    return bundled
