"""The long mode: `python -m tests.hostile --inputs 10000 --seed 1` prints a table of what became of them."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.hostile.inputs import FAMILIES, corpus, trials
from tests.hostile.inputs.sound import write_assets
from tests.hostile.trials import FAILURES, Trial, preload, print_table, run_trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000, help="how many, shared by the families")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same inputs")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="inputs tried side by side")
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES), help="only these")
    parser.add_argument("--corpus", action="store_true", help="only those that failed once")
    parser.add_argument("--only", help="one input again, as FAMILY-NUMBER; what it printed is shown")
    given = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "METAPHASE_LOG": os.devnull}
    preload()
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        write_assets(Path(folder) / "assets")
        chosen = (
            corpus() if given.corpus else trials(given.inputs, given.seed, given.family or list(FAMILIES))
        )
        if given.only:
            family, _, number = given.only.rpartition("-")
            chosen = [Trial(family, int(number), given.seed, FAMILIES[family].make)]
        Random(given.seed).shuffle(chosen)  # what goes wrong anywhere shows early
        results = []
        for stop in (signal.SIGINT, signal.SIGTERM):  # a shell's background ignores the first
            signal.signal(stop, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):  # the table so far
            for result in run_trials(chosen, Path(folder), at_once=given.at_once):
                results.append(result)
                if len(results) % 500 == 0:
                    print(f"{len(results)} of {len(chosen)}", file=sys.stderr, flush=True)
                if result.outcome in FAILURES or given.only:
                    name = f"{result.trial.name} of seed {result.trial.seed}"
                    print(f"{name}: {result.outcome}: {result.detail}\n    {result.command}", flush=True)
    print_table(results, sys.stdout)
    return int(any(result.outcome in FAILURES for result in results))


if __name__ == "__main__":
    sys.exit(main())
