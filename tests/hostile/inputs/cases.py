"""Tables with one row a case or patch, for evaluation, tuning and observer studies."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import HUGE, ODD_VALUES, any_of, bytes_changed
from tests.hostile.inputs.sound import ASSETS, quoted
from tests.hostile.trials import Attempt

SHARE = 5


def make(random: Random, folder: Path) -> Attempt:
    cases = [f"c{number}" for number in range(8)]
    truth = [["case", "grade", "proliferation", "split"]]
    truth += [[case, str(1 + number % 3), f"{number / 8}", "test"] for number, case in enumerate(cases)]
    given = [["case", "threshold", "count", "grade", "proliferation"]]
    given += [
        [case, f"{at}", str(4 * n), str(1 + n % 3), f"{n}"]
        for at in (0.5, 0.7)
        for n, case in enumerate(cases)
    ]
    key = [
        ["item", "kind", "slide", "x", "y"],
        *([f"{n:04}", any_of(random, "detection", "distractor"), "s", "1", "2"] for n in range(8)),
    ]
    sheet = [["item", "answer"], *([f"{n:04}", any_of(random, "mitosis", "not", "unsure")] for n in range(8))]
    tables = {"truth.csv": truth, "given.csv": given, "key.csv": key, "sheet.csv": sheet}
    compared = ("--truth", "truth.csv", "--predictions", "given.csv")
    command = any_of(
        random,
        ("evaluate", "grade", *compared),
        ("evaluate", "grade", *compared, "-o", "out"),
        ("evaluate", "proliferation", *compared),
        ("evaluate", "tune", "count", *compared),
        ("evaluate", "tune", "count", *compared, "--card", "card.json"),
        ("evaluate", "tune", "mitoses", *compared),
        ("observers", "read", "sheet.csv", "--key", "key.csv", "--recall", "0.7"),
    )  # fmt: skip
    for name in [name for name in tables if name in command] * random.randint(1, 2):
        table = tables[name]
        if "grade" in command and name == "given.csv":
            del table[len(cases) + 1 :]
        value = any_of(random, *ODD_VALUES)
        line = any_of(random, *table)
        line[random.randrange(len(line))] = "9" * 400 if value is HUGE else str(value)
    for name, table in tables.items():
        data = ("\n".join(",".join(map(quoted, row)) for row in table) + "\n").encode(
            "utf-8", "surrogatepass"
        )
        (folder / name).write_bytes(bytes_changed(random, data) if random.random() < 0.05 else data)
    (folder / "card.json").write_bytes((ASSETS / "tiny.json").read_bytes())
    return Attempt(command)
