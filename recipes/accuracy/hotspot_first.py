"""How much of a slide must be searched in full for the same densest circle, if a first pass ranks its parts.

python recipes/accuracy/hotspot_first.py [--slides 200] [--seed 0]

Slides of 20 to 250 mm2 are drawn as in count_coverage.py: figures in foci, look-alikes in patches, scores as
the bundled pair gives them. Parts are squares of 0.5 mm, ranked by a first pass and searched best first:

known       the density of a full search, smoothed over the circle: no first pass can rank better
every Nth   every Nth square is searched in full, and the rest ranked by those around it
half, sd    everything is seen at a quarter of the cost, and each log-odds is off by that much (assumed)

Printed for each first pass and cost, the first pass included (full search: 1): the share of slides whose
circle holds as many figures as that of a full search, the mean share of these figures, and the share of
slides whose Nottingham score is the same. Of a slide without figures all are the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd
from count_coverage import World, counted, drawn_laboratory, drawn_slide
from scipy.ndimage import gaussian_filter
from scipy.special import expit, logit

from metaphase.counting.hotspot import busiest_circle
from metaphase.counting.scores import mitotic_scores
from metaphase.counting.specimen import CountConfig
from metaphase.networks.cards import bundled_model, parse_card

Floats = npt.NDArray[np.float64]
SQUARE_UM, LEAST_MM2 = 500.0, 20.0
COSTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
EVERY, ERRORS, HALF_COST = (4, 9, 16), (1.0, 2.0, 4.0), 0.25


def squares(points_um: Floats, sides: int) -> npt.NDArray[np.intp]:
    """The square of each point, by number."""
    column, row = np.clip(points_um // SQUARE_UM, 0, sides - 1).astype(np.intp).T
    return np.asarray(row * sides + column)


def density(points_um: Floats, sides: int, seen: Floats) -> Floats:
    """Points per square, smoothed over about the circle, where only some squares were seen."""
    number = np.bincount(squares(points_um, sides), minlength=sides**2).reshape(sides, sides) * seen
    sigma = CountConfig().radius_um / 2 / SQUARE_UM
    over = gaussian_filter(seen, sigma, mode="constant")
    return np.asarray(gaussian_filter(number.astype(float), sigma, mode="constant") / np.maximum(over, 1e-9))


def first_passes(
    points_um: Floats, listed: pd.DataFrame, threshold: float, sides: int, rng: np.random.Generator
) -> Iterator[tuple[str, Floats, npt.NDArray[np.bool_], float]]:
    """Each first pass: its name, how it ranks the squares, which it searched in full, its other cost."""
    nothing, everything = np.zeros((sides, sides), bool), np.ones((sides, sides))
    yield "known", density(points_um, sides, everything), nothing, 0.0
    number = np.arange(sides**2).reshape(sides, sides)
    for every in EVERY:
        step = round(every**0.5)
        seen = (number // sides % step == step // 2) & (number % sides % step == step // 2)
        yield f"every {every}th", density(points_um, sides, seen.astype(float)), seen, 0.0
    for error in ERRORS:
        odds = logit(listed["probability"].to_numpy(float)) + rng.normal(0, error, len(listed))
        found = listed.loc[expit(odds) >= threshold, ["x", "y"]].to_numpy(float)
        yield f"half, sd {error:g}", density(found, sides, everything), nothing, HALF_COST


def measured(number: int, seed: int, config: CountConfig) -> Iterator[dict[str, object]]:
    """One slide at every cost."""
    rng = np.random.default_rng((seed, number))
    one = drawn_slide(drawn_laboratory(World(), rng), rng)
    while one.area_mm2 < LEAST_MM2:
        one = drawn_slide(drawn_laboratory(World(), rng), rng)
    slide, hotspot = counted(one, config)
    points, sides = slide.mitoses_um, max(1, round(1000 * one.area_mm2**0.5 / SQUARE_UM))
    own = squares(points, sides)
    whole = score_of(len(points) and hotspot.count, config)
    for name, rank, seen, cost in first_passes(points, one.table, config.threshold, sides, rng):
        order = np.argsort(-np.where(seen, np.inf, rank + rng.uniform(0, 1e-9, rank.shape)).ravel())
        for share in COSTS:
            most = round((share - cost) * sides**2)
            if most < max(1, seen.sum()):
                continue
            kept = points[np.isin(own, order[:most])]
            found = busiest_circle(kept, config.radius_um)[2] if len(kept) else 0
            full = hotspot.count if len(points) else 0
            yield {
                "pass": name, "cost": share, "same": found == full, "found": found / full if full else 1.0,
                "score": score_of(found, config) == whole,
            }  # fmt: skip


def score_of(count: int, config: CountConfig) -> int:
    """Nottingham's, of a count by itself."""
    return mitotic_scores(config, int(count), None, config.area_mm2)[-1].found


def main() -> None:
    """Draw, search, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slides", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    card = parse_card(bundled_model("breast").with_suffix(".json"))
    config = CountConfig(threshold=card.thresholds["count"].delta)
    rows = [row for number in range(asked.slides) for row in measured(number, asked.seed, config)]
    table = pd.DataFrame(rows).groupby(["pass", "cost"], sort=False).mean()
    for measure in ("same", "found", "score"):
        print(f"\n{measure}\n{table[measure].unstack().round(3).to_string()}")


if __name__ == "__main__":
    main()
