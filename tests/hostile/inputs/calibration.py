"""A calibration whose sample, projects or answers are damaged."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import HUGE, ODD_VALUES, any_of, bytes_changed
from tests.hostile.inputs.sound import ASSETS, quoted
from tests.hostile.trials import Attempt

SHARE = 3


def make(random: Random, folder: Path) -> Attempt:
    import pandas as pd

    home = folder / "calibration"
    shutil.copytree(ASSETS / "calibration", home)
    items = list(pd.read_csv(home / "detections" / "items.csv", dtype=str)["item"])
    rows = [
        ["observer", "item", "answer"],
        *(["Anna", item, any_of(random, "mitosis", "not")] for item in items),
    ]
    if random.random() < 0.6:
        for _ in range(random.randint(1, 2)):
            value = any_of(random, *ODD_VALUES)
            rows[random.randrange(len(rows))][random.randrange(3)] = (
                "9" * 400 if value is HUGE else str(value)
            )
    text = "\n".join(",".join(map(quoted, row)) for row in rows) + "\n"
    (folder / "answers.csv").write_bytes(text.encode("utf-8", "surrogatepass"))
    if random.random() < 0.5:
        victim = any_of(random, *sorted(path for path in home.rglob("*") if path.is_file()))
        if random.random() < 0.2:
            victim.unlink()
        else:
            victim.write_bytes(bytes_changed(random, victim.read_bytes()))
    fit = ("calibrate", "fit", "calibration", "-o", "site.json")
    taken = ("label", "import", "calibration/detections", "answers.csv")
    commands = ((*fit, "--answers", "answers.csv"), (*fit, "--answers", "answers.csv", "--json"), fit, taken)
    return Attempt(any_of(random, *commands))
