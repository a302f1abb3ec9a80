"""How far apart laboratories look before and after standardisation.

    python recipes/accuracy/stain_distance.py --data ../shared/data [--cases 4] [--json FILE]

Distance: sliced Wasserstein distance between the colours of two laboratories' tissue in CIELAB, in units
of Delta E (mean over 64 directions). Real fields: ICPR 2012 (Aperio) and MiDeSeC. Simulated fields: the
same tissue stained and scanned by every virtual laboratory, mean over all pairs. Transforms lead to the
default template, which neither saw, and are fitted once a laboratory or once a field.
The floor is the distance between two halves of one laboratory's fields, averaged over laboratories.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np

from metaphase.base.arrays import RGB
from metaphase.images.stain.standardisation import METHODS, Template, Transform
from metaphase.simulation import LABORATORIES, SimulationConfig, cohort_cases, render_region, tissue_truth

Laboratories = Mapping[str, list[RGB]]
"""Fields as pixels (n, 3), by laboratory."""
REAL = {"ICPR 2012 Aperio": "icpr2012-aperio/*.jpg", "MiDeSeC": "midesec/*.jpg"}
FIELD_PX = 1024
SIMULATED_PX = 512
MASK_MPP = 4.0
DIRECTIONS = 64
PIXELS = 40_000


def read(path: Path) -> RGB:
    """A square of a picture file."""
    image = cv2.imread(str(path))
    if image is None:
        raise SystemExit(f"{path} is not a picture")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB)[:FIELD_PX, :FIELD_PX], dtype=np.uint8)


def real_fields(data: Path) -> Laboratories:
    """Pixels (n, 3) of each field."""
    return {
        name: [read(path).reshape(-1, 3) for path in sorted(data.glob(pattern))]
        for name, pattern in REAL.items()
    }


def simulated_fields(cases: int) -> Laboratories:
    """The same places of the same tissue, from every virtual laboratory."""
    found: dict[str, list[RGB]] = {laboratory.name: [] for laboratory in LABORATORIES}
    for case in cohort_cases(SimulationConfig(cases=cases, width=2048, height=2048, centres=1, seed=3)):
        rows, columns = np.nonzero(tissue_truth(case, mpp=MASK_MPP))
        x, y = (int(places[len(places) // 2] * MASK_MPP / 0.25) for places in (columns, rows))
        for laboratory in LABORATORIES:
            stained = dataclasses.replace(case, laboratory=laboratory)
            pixels = render_region(
                stained, "he", x - SIMULATED_PX // 2, y - SIMULATED_PX // 2, *[SIMULATED_PX] * 2
            )
            found[laboratory.name].append(pixels.reshape(-1, 3))
    return found


def tissue_sample(laboratories: Laboratories) -> Laboratories:
    """Some tissue pixels of each field, which are followed through every transform."""
    rng = np.random.default_rng(0)

    def some(field: RGB, count: int) -> RGB:
        tissue = field[field.mean(axis=1) < 225]
        return np.asarray(tissue[rng.integers(0, len(tissue), count)])

    return {
        name: [some(field, PIXELS // len(fields)) for field in fields]
        for name, fields in laboratories.items()
    }


def distance(a: RGB, b: RGB) -> float:
    """Sliced Wasserstein distance in CIELAB."""
    rng = np.random.default_rng(1)
    directions = rng.normal(size=(3, DIRECTIONS))
    directions /= np.linalg.norm(directions, axis=0)
    levels = np.linspace(0, 1, 400)
    labs = (cv2.cvtColor(pixels[None].astype(np.float32) / 255, cv2.COLOR_RGB2LAB)[0] for pixels in (a, b))
    first, second = (np.quantile(lab @ directions, levels, axis=0) for lab in labs)
    return float(np.abs(first - second).mean())


def between(laboratories: Laboratories) -> float:
    """Mean distance over all pairs of laboratories."""
    clouds = [np.concatenate(fields) for fields in laboratories.values()]
    return float(np.mean([distance(a, b) for a, b in itertools.combinations(clouds, 2)]))


def within(laboratories: Laboratories) -> float:
    """Mean distance of the odd from the even fields of one laboratory."""
    halves = ((np.concatenate(f[::2]), np.concatenate(f[1::2])) for f in laboratories.values())
    return float(np.mean([distance(a, b) for a, b in halves]))


def standardised(
    laboratories: Laboratories, sample: Laboratories, method: str, *, each_field: bool
) -> Laboratories:
    """The sample, mapped to the default template by transforms fitted on the fields."""
    template = Template.default()

    def mapped(pixels: RGB, fitted_on: list[RGB]) -> RGB:
        transform = Transform.fit(np.concatenate([f[::15] for f in fitted_on]), method, template)
        exact = transform.source.towards(transform.template, pixels.astype(np.float32))
        return (exact + 0.5).astype(np.uint8)

    result: dict[str, list[RGB]] = {}
    for name, fields in laboratories.items():
        if each_field:
            result[name] = [
                mapped(pixels, [field]) for pixels, field in zip(sample[name], fields, strict=True)
            ]
        else:
            result[name] = [mapped(np.concatenate(sample[name]), fields)]
    return result


def distances(laboratories: Laboratories) -> dict[str, float]:
    """Before, and after each method fitted in each way."""
    sample = tissue_sample(laboratories)
    result = {"within a laboratory": within(sample), "before": between(sample)}
    for method in METHODS:
        for way in ("a laboratory", "a field"):
            after = standardised(laboratories, sample, method, each_field=way == "a field")
            result[f"{method}, {way}"] = between(after)
    return result


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=4, help="simulated cases")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = {
        "real": distances(real_fields(options.data)),
        "simulated": distances(simulated_fields(options.cases)),
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
