"""Speed and memory of writing a simulated case, both slides counted.

    python benchmarks/simulation_speed.py --width 4096 --height 4096
    python benchmarks/simulation_speed.py --width 40000 --height 40000 --stop-after 300

Prints finished level-0 pixels per second of wall time and per second of processor time (what other
work on the machine does not change), and the peak memory of all processes together.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import psutil

from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import SimulationConfig


class Enough(Exception):
    """Raised to end a long run early."""


class Meter:
    """Watches the run from its progress calls."""

    def __init__(self, stop_after: float) -> None:
        self.start, self.stop_after = time.perf_counter(), stop_after
        self.pixels, self.peak, self.processor_s = 0, 0, 0.0

    def __call__(self, _what: str, done: int, _total: int) -> None:
        """Note memory and processor time at each finished block."""
        self.pixels = done
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        self.peak = max(self.peak, sum(process.memory_full_info().pss for process in family))
        self.processor_s = sum(sum(process.cpu_times()[:2]) for process in family)
        if time.perf_counter() - self.start > self.stop_after:
            raise Enough

    def report(self) -> str:
        """What was measured."""
        wall_s = time.perf_counter() - self.start
        return (
            f"{self.pixels / 1e6:.0f} Mpx in {wall_s:.0f} s: {self.pixels / 1e6 / wall_s:.2f} Mpx/s; "
            f"{self.pixels / 1e6 / self.processor_s:.2f} Mpx per processor second; "
            f"peak memory {self.peak / 1e9:.2f} GB"
        )


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--height", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds")
    options = parser.parse_args()
    config = SimulationConfig(
        cases=1, centres=1, width=options.width, height=options.height, workers=options.workers
    )
    meter = Meter(options.stop_after)
    with tempfile.TemporaryDirectory() as folder:
        try:
            simulate_cohort(folder, config, progress=meter)
        except Enough:
            print("stopped early")
        print(meter.report())


if __name__ == "__main__":
    main()
