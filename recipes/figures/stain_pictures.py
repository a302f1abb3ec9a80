"""The pictures of docs/stain.md, from real crops.

python recipes/figures/stain_pictures.py --data ../shared/data [--out docs/images]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from metaphase.base.arrays import RGB
from metaphase.images.stain.augmentation import Augmentation
from metaphase.images.stain.augmentation.gallery import GalleryConfig, gallery
from metaphase.images.stain.deconvolution import H_DAB_RESIDUAL, HE_RESIDUAL, stain_pictures
from metaphase.images.stain.pictures import write_picture
from metaphase.images.stain.pixels import to_uint8
from metaphase.images.stain.standardisation import METHODS, Transform

MITOSES = ("8575.jpg", "8645.jpg", "8652.jpg", "9003.jpg", "8729.jpg", "8897.jpg")
"""Human breast, from MIDOG++: metaphases, an anaphase, a prometaphase, a telophase."""
FIELDS = (
    "icpr2012-aperio/A00_01.jpg",
    "icpr2012-aperio/A03_03.jpg",
    "midesec/P0_03.jpg",
    "midesec/P0_30.jpg",
)
GAP = 4


def read(path: Path) -> RGB:
    """A picture file."""
    image = cv2.imread(str(path))
    if image is None:
        raise SystemExit(f"{path} is not a picture")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), dtype=np.uint8)


def sheet(rows: list[list[RGB]], titles: list[str]) -> RGB:
    """Pictures of one size in rows under column titles."""
    padding = ((0, GAP), (0, GAP), (0, 0))
    padded = [[np.pad(picture, padding, constant_values=255) for picture in row] for row in rows]
    body = np.vstack([np.hstack(row) for row in padded])
    image = Image.fromarray(np.pad(body, ((22, 0), (0, 0), (0, 0)), constant_values=255))
    pen = ImageDraw.Draw(image)
    for i, title in enumerate(titles):
        pen.text((i * padded[0][0].shape[1] + 2, 3), title, fill=(0, 0, 0), font=ImageFont.load_default(13))
    return np.asarray(image)


def deconvolved(data: Path) -> RGB:
    """An H&E and a PHH3 crop with each stain alone."""
    he = read(data / FIELDS[2])[100:300, 100:300]
    phh3 = sorted((data / "phh3-tiles" / "tumour").glob("*.jpg"))
    brown = read(phh3[14])[28:228, 28:228]
    rows = [
        [he, *stain_pictures(he, HE_RESIDUAL).values()],
        [brown, *stain_pictures(brown, H_DAB_RESIDUAL).values()],
    ]
    return sheet(rows, ["H&E, PHH3", "haematoxylin", "eosin, DAB", "residual"])


def augmented_mitoses(data: Path) -> RGB:
    """Mitoses, each with seven versions of the full recipe."""
    rows = []
    for name in MITOSES:
        patch = read(data / "midog-mitoses" / name)
        batch = torch.from_numpy(patch)[None].expand(7, -1, -1, -1)
        augmented = Augmentation("RCSEHBG")(batch, torch.Generator().manual_seed(5))
        rows.append([patch[14:114, 14:114], *to_uint8(augmented.permute(0, 2, 3, 1).numpy())])
    return sheet(rows, ["original", "RCSEHBG"])


def standardised(data: Path) -> RGB:
    """Fields of two laboratories before and after each method."""
    rows = []
    for name in FIELDS:
        field = read(data / name)
        crop = field[200:400, 200:400]
        rows.append([crop, *(Transform.fit(field[:1024, :1024], method).apply(crop) for method in METHODS)])
    return sheet(rows, ["before", *METHODS])


def main() -> None:
    """Write all pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    patch = read(options.data / "midog-mitoses" / MITOSES[0])
    pictures = {
        "deconvolution": deconvolved(options.data),
        "gallery": gallery(patch, GalleryConfig(rows=4, seed=2)),
        "mitoses": augmented_mitoses(options.data),
        "standardisation": standardised(options.data),
    }
    for name, picture in pictures.items():
        write_picture(options.out / f"stain-{name}.jpg", picture)


if __name__ == "__main__":
    main()
