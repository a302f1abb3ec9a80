"""TIAToolbox from PyPI in an environment of its own, for `tests/detections/test_tiatoolbox.py`.

    python -m recipes.desks.tiatoolbox && pytest -m slow tests/detections/test_tiatoolbox.py

Only what its annotation stores import: all of TIAToolbox brings several gigabytes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PLACE = Path(tempfile.gettempdir()) / "metaphase-tiatoolbox"
PYTHON = PLACE / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
NEEDS = ("numpy<2.4.4", "pandas<3.0.3", "shapely<=2.1.2", "pyyaml<6.0.3", "typing_extensions")


def main() -> None:
    """Make the environment, or bring it up to date."""
    subprocess.run([sys.executable, "-m", "venv", PLACE], check=True)
    for packages in (("--no-deps", "tiatoolbox==2.1.3"), NEEDS):
        pip = [PYTHON, "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)  # which lists all that is left out
    print(PYTHON)


if __name__ == "__main__":
    main()
