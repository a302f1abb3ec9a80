"""Make the default template of the standardisation from MIDOG++ crops (CC BY 4.0).

    python recipes/calibration/stain_template.py --data ../shared/data

Every second crop of human breast cancer from UMC Utrecht on the Aperio CS2: 344 crops of 47 slides.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np
import pandas as pd

from metaphase.base.arrays import RGB
from metaphase.images.stain import standardisation
from metaphase.images.stain.standardisation import Template

TARGET = Path(standardisation.__file__).with_name("breast_he.json")


def read(path: Path) -> RGB:
    """Pixels (n, 3) of a crop without the black beyond the edge of the scan."""
    image = cv2.imread(str(path))
    if image is None:
        raise SystemExit(f"{path} is not a picture")
    pixels = cv2.cvtColor(image, cv2.COLOR_BGR2RGB).reshape(-1, 3)
    return np.asarray(pixels[pixels.max(axis=1) > 10], dtype=np.uint8)


def main() -> None:
    """Write the template into the package."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    crops = pd.read_csv(options.data / "midog-mitoses" / "patches.csv")
    crops = crops[(crops["tumor"] == "human breast cancer") & (crops["scanner"] == "Aperio CS2")]
    pixels = [read(options.data / "midog-mitoses" / name)[::9] for name in crops["image"][::2]]
    Template.of(np.concatenate(pixels)).save(options.out)


if __name__ == "__main__":
    main()
