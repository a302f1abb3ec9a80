"""Generators of hostile inputs, one module for every kind of thing that the commands read.

Each knows the structure of its format: it begins with a sound file and breaks one or two things in it. A
module has `make`, which makes one input in an empty folder, and `SHARE`, its part of the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.hostile.inputs import (
    annotation_store,
    asap,
    believed,
    calibration,
    cases,
    certain,
    coco,
    csv_table,
    damaged,
    dataset,
    dicom,
    drawn,
    escape,
    further,
    geojson,
    grand_challenge,
    image,
    large_tile,
    manifest,
    mask,
    model,
    names,
    onnx_graph,
    options,
    parquet_table,
    project,
    result,
    settings,
    site,
    sliderunner,
    sparse,
    special,
    stains,
    tiff,
    waits,
    workspace,
)
from tests.hostile.trials import Trial

FAMILIES = {
    "tiff": tiff,
    "sparse": sparse,
    "large-tile": large_tile,
    "image": image,
    "csv": csv_table,
    "parquet": parquet_table,
    "geojson": geojson,
    "coco": coco,
    "grand-challenge": grand_challenge,
    "asap": asap,
    "sliderunner": sliderunner,
    "manifest": manifest,
    "toml": settings,
    "model": model,
    "mask": mask,
    "project": project,
    "options": options,
    "names": names,
    "special": special,
    "calibration": calibration,
    "cases": cases,
    "dataset": dataset,
    "result": result,
    "site": site,
    "stains": stains,
    "workspace": workspace,
    "further": further,
    "dicom": dicom,
    "onnx": onnx_graph,
    "waits": waits,
    "damaged": damaged,
    "annotation-store": annotation_store,
    "escape": escape,
    "certain": certain,
    "believed": believed,
    "drawn": drawn,
}

CORPUS: dict[str, dict[int, tuple[int, ...]]] = {
    "tiff": {1: (20, 25, 39, 47, 55, 57, 98, 147, 158, 166)},
    "sparse": {1: (8, 9, 17, 40), 74: (263,)},
    "parquet": {1: (0, 13, 18, 21, 23, 34, 43, 119, 121), 11: (221,)},
    "geojson": {1: (10, 13, 15, 21, 35), 11: (10,), 72: (301,)},
    "coco": {1: (5, 27, 66)},
    "grand-challenge": {1: (3, 32)},
    "asap": {1: (3, 11)},
    "sliderunner": {1: (16, 68)},
    "toml": {1: (2, 14, 23), 75: (89,)},
    "csv": {3: (17,)},
    "image": {11: (187,)},
    "manifest": {3: (126,), 11: (280,), 21: (3, 477), 41: (67,)},
    "model": {3: (103,)},
    "options": {3: (229, 402), 11: (259,), 62: (38, 40), 77: (330,)},
    "dicom": {62: (385,), 75: (475,)},
    "stains": {11: (37,)},
    "special": {3: (173,), 64: (54,)},
    "workspace": {63: (4, 122)},
    "result": {3: (48, 385), 41: (273,)},
    "mask": {41: (95,), 71: (68,)},
    "cases": {51: (139,), 76: (135,)},
    "further": {76: (68,), 77: (290,)},
    "dataset": {3: (116,), 11: (232,)},
    "site": {5: (5, 7)},
    "drawn": {12: (3, 14)},
}
"""Inputs that failed once, each in another way, by seed; tests beside the readers name what was wrong.

Drawing in another order makes other inputs of them: let generators grow at their end, or in a new module.
"""


def corpus() -> list[Trial]:
    """Inputs that failed once."""
    return [
        Trial(name, number, seed, FAMILIES[name].make)
        for name, by_seed in CORPUS.items()
        for seed, numbers in by_seed.items()
        for number in numbers
    ]


def trials(inputs: int, seed: int, families: Sequence[str]) -> list[Trial]:
    """So many inputs, shared by the families."""
    whole = sum(FAMILIES[name].SHARE for name in families)
    return [
        Trial(name, number, seed, FAMILIES[name].make)
        for name in families
        for number in range(math.ceil(inputs * FAMILIES[name].SHARE / whole))
    ]
