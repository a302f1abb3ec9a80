"""Put the results of `metaphase experiments` into docs/experiments.md: tables, curves and times.

python recipes/figures/experiments_page.py out/experiments/results [--docs docs]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

BEGIN, END = "<!-- begin results -->", "<!-- end results -->"
PICTURE = "images/experiments_curves.png"


def section(results: Path) -> str:
    """The text between the markers."""
    seconds = json.loads((results / "results.json").read_text(encoding="utf-8"))["seconds"]
    spent = {name: value for name, value in seconds.items() if value is not None}
    training = sum(value for name, value in spent.items() if re.match(r"cnn|exp|label", name))
    testing = sum(value for name, value in spent.items() if name.startswith("test "))
    data = sum(spent.values()) - training - testing
    times = (
        f"Time: slides, candidates and patches {data:.0f} s, training {training:.0f} s, "
        f"testing {testing:.0f} s, in all {sum(spent.values()) / 60:.1f} minutes."
    )
    tables = (results / "table.md").read_text(encoding="utf-8").strip()
    return f"{tables}\n\n![F1 against the threshold by experiment]({PICTURE})\n\n{times}"


def main() -> None:
    """Replace the section and the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    options = parser.parse_args()
    page = options.docs / "experiments.md"
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{section(options.results)}\n{END}{after}", encoding="utf-8")
    (options.docs / "images").mkdir(exist_ok=True)
    shutil.copyfile(options.results / "curves.png", options.docs / PICTURE)


if __name__ == "__main__":
    main()
