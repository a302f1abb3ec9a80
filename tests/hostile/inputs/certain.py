"""Tables that call the probability otherwise: no row of them may count as certain without a word."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of
from tests.hostile.trials import Attempt

SHARE = 2
CALLED = (
    "score", "confidence", "prob", "conf", "detection_score", "Score", "CONFIDENCE", "Detection Score", "p",
    "likelihood", "mitosis_score", "prediction", "P(mitosis)", "class_probability", "network output", "logit",
)  # fmt: skip


def make(random: Random, folder: Path) -> Attempt:
    values = [random.uniform(0.01, 0.3) for _ in range(any_of(random, 2, 12))]
    scale = any_of(random, 1, 1, 1, 100)
    column, parted = any_of(random, *CALLED), any_of(random, ",", ",", ";")
    cells = [f"{scale * value:.3f}" for value in values]
    cells = [cell.replace(".", ",") for cell in cells] if parted == ";" else cells
    rows = [(f"{9 * number}", "5", cell) for number, cell in enumerate(cells)]
    text = "\n".join(parted.join(row) for row in (("x", "y", column), *rows)) + "\n"
    (folder / "points.csv").write_text(text)

    def right(printed: str) -> str:
        if re.search("warning: .*probab", printed) or (scale > 1 and column not in CALLED[:8]):
            return ""
        (count,) = json.loads(printed[printed.index("[") :])
        return f"{count['counted']} of {column} count" if count["counted"] else ""

    return Attempt(("score", "points.csv", "--mpp", "0.25", "--area", "3", "--json"), right)
