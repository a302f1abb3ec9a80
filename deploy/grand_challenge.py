"""An algorithm of Grand Challenge: one slide or region of /input in, /output/mitotic-figures.json out.

The platform describes the inputs in /input/inputs.json, of which the one image is taken, and expects points
in millimetres from the centre of the first pixel ("Multiple points"): `mitotic figure` from the operating
point for mitoses on, `non-mitotic figure` for what the network found less likely. The report and all else lie
in /output/metaphase. METAPHASE_MPP gives micrometres per pixel to files that state none, METAPHASE_MODEL
another model.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import metaphase as mp

ENDINGS = (".tif", ".tiff", ".svs", ".png", ".jpg", ".jpeg", ".ndpi", ".mrxs", ".scn", ".bif", ".dcm")
POINTS = "mitotic-figures.json"


def image_of(inputs: Path) -> Path:
    """The one image that the platform put there."""
    described = inputs / "inputs.json"
    try:
        sockets = json.loads(described.read_text(encoding="utf-8"))
        folders = [
            inputs / one["interface"]["relative_path"]
            for one in sockets
            if one["interface"]["super_kind"].lower() == "image"
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise mp.MetaphaseError(
            f"does not describe the inputs ({error})",
            path=described,
            next_step="mount the folder that the platform mounts",
        ) from error
    files = [path for folder in folders for path in sorted(folder.glob("*")) if path.is_file()]
    images = [path for path in files if path.suffix.lower() in ENDINGS]
    if len(images) != 1:
        there = ", ".join(path.name for path in files) or "nothing"
        raise mp.MetaphaseError(
            f"one image is needed, and there is {there}",
            path=folders[0] if folders else inputs,
            next_step=f"give one of {' '.join(ENDINGS)}",
        )
    return images[0]


def points_of(result: Any) -> dict[str, Any]:
    """All candidates as the platform takes them."""
    least, mpp = result.summary["operating_points"]["mitoses"]["delta"], result.mpp
    points = [
        {
            "name": "mitotic figure" if row.probability >= least else "non-mitotic figure",
            "point": [(row.x - 0.5) * mpp / 1000, (row.y - 0.5) * mpp / 1000, 0.0],
            "probability": row.probability,
        }
        for row in result.candidates.itertuples()
    ]
    version = {"major": 1, "minor": 0}
    return {"name": "mitotic figures", "type": "Multiple points", "points": points, "version": version}


def main(inputs: Path, outputs: Path) -> int:
    """Search the image; the exit code."""
    try:
        mpp = os.environ.get("METAPHASE_MPP")
        model = os.environ.get("METAPHASE_MODEL")
        result = mp.detect(
            image_of(inputs), outputs / "metaphase", model=model or None, mpp=float(mpp) if mpp else None
        )
    except mp.MetaphaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    (outputs / POINTS).write_text(json.dumps(points_of(result), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:] or ("/input", "/output"))))
