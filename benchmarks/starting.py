"""Seconds until the ten commonest commands have said what there is to say, and what they import for it.

    python benchmarks/starting.py [--repeats 3] [--beside SRC] [--json FILE]

The demonstration is searched once; then nothing is left to do but to show it. Commands take turns; of the
repeats the fastest counts, on a quiet machine. Processor time is less disturbed by other work. Imports are
those of `python -X importtime`. `--beside` names the folder `src` of another checkout, measured in the same
turns on the same results. Exits with 1 where a command is over its budget.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parents[1] / "src"
SLIDE, RESULTS = "demo/carcinoma.tif", "demo/results"
BUDGETS_S = {
    "--version": 0.5,
    "--help": 0.5,
    "view --help": 0.5,
    "configs list": 0.5,
    "detect --help": 1.5,
    "model info breast": 1.0,
    f"info {SLIDE}": 1.0,
    f"score {RESULTS}": 1.0,
    f"convert {RESULTS}/carcinoma/detections.geojson --mpp 0.25 -o points.csv": 2.0,
    f"detect {SLIDE} -o {RESULTS}": 2.0,
}
"""Of wall time on a quiet machine."""
HEAVY = ("torch", "onnxruntime", "scipy.optimize", "scipy.stats", "scipy.special", "matplotlib", "pandas")


def command(words: str, source: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The finished command of one checkout."""
    line = [sys.executable, *options, "-m", "metaphase", *words.split()]
    variables = {**os.environ, "PYTHONPATH": str(source)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(line, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"metaphase {words}: {done.stderr[-2000:]}")
    return done


def seconds(words: str, source: Path, folder: Path) -> tuple[float, float]:
    """Wall and processor time of a command."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command(words, source, folder)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imported(words: str, source: Path, folder: Path) -> list[str]:
    """The heavy modules that a command imports."""
    said = command(words, source, folder, "-X", "importtime").stderr
    names = re.findall(r"^import time:.*\| +(\S+)$", said, re.MULTILINE)
    return [one for one in HEAVY if any(f"{name}.".startswith(f"{one}.") for name in names)]


def main() -> int:
    """Measure, print a table; the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    sources = [HERE, *([asked.beside.resolve()] if asked.beside else [])]
    rows, over = [], False
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        command("demo demo", HERE, folder)
        print(f"{'':44} {'budget':>6}  wall s, processor s, imports; beside", flush=True)
        for words, budget in BUDGETS_S.items():
            turns = [[seconds(words, one, folder) for one in sources] for _ in range(asked.repeats)]
            best = [tuple(map(min, zip(*each, strict=True))) for each in zip(*turns, strict=True)]
            heavy = [imported(words, one, folder) for one in sources]
            over = over or best[0][0] > budget
            rows.append({"command": words, "budget_s": budget, "seconds": best, "imports": heavy})
            parts = [
                f"{wall:5.2f} {cpu:5.2f} {' '.join(names) or '-'}"
                for (wall, cpu), names in zip(best, heavy, strict=True)
            ]
            print(f"{words[:44]:44} {budget:6.1f}  {'; '.join(parts)}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
