"""Would the tests notice? Some lines of the core, each broken once: `python -m tests.mutations`.

For each, the tests near it run first, then all, until one fails. All options go to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MUTANTS = """
networks/engine/positions.py
- peak &= inner > _shifted(logits, dy, dx)
+ peak &= inner >= _shifted(logits, dy, dx)
networks/engine/positions.py
- places[1] + down, places[2] + right
+ places[1] + right, places[2] + down
networks/engine/positions.py
- return math.ceil(3 * sigma)
+ return math.ceil(2 * sigma)
networks/engine/second.py
- np.asarray((own + others) / 2, np.float32)
+ np.asarray(own + others, np.float32)
networks/engine/second.py
- shift = first.output[which] - side // 2
+ shift = first.output[which]
networks/engine/streaming.py
- offset_px = (peaks.output - BORDER) * OUTPUT_STRIDE_PX
+ offset_px = peaks.output * OUTPUT_STRIDE_PX
networks/engine/streaming.py
- first_px = PATCH_PX / 2 + OUTPUT_STRIDE_PX
+ first_px = PATCH_PX + OUTPUT_STRIDE_PX
detections/matching.py
- (square >= distance**2) & (point != near)
+ (square > distance**2) & (point != near)
detections/matching.py
- order = np.lexsort((x, y, -score))
+ order = np.lexsort((y, x, -score))
detections/matching.py
- TOUCHING = 1.5
+ TOUCHING = 1.2
detections/matching.py
- (pairs["j"], pairs["i"], pairs["v"], -prob
+ (pairs["j"], pairs["i"], -pairs["v"], -prob
counting/hotspot.py
- counts[counts > 0]
+ counts[counts >= 0]
counting/hotspot.py
- middles = middles[bound > best]
+ middles = middles[bound > best + 1]
counting/hotspot.py
- / step - 0.5) + 1 - lattice.column
+ / step - 0.5) - lattice.column
base/provenance.py
- return output.is_file() and self.matches(note_path(output))
+ return output.is_file()
base/provenance.py
- if before.get("schema") != now["schema"]:
+ if before.get("schema") is None:
base/provenance.py
- sound = check is None or check == fingerprint_of(content)
+ sound = True
base/provenance.py
- if stage in field.metadata.get(_DECIDES, (stage,))
+ if field.name
base/sharing/leases.py
- != stated.get("started")
+ == stated.get("started")
base/sharing/leases.py
- if path.read_bytes() != lapsed.content:
+ if not path.exists():
base/sharing/leases.py
- if not self._is_mine(_read(self._path)):
+ if not _read(self._path):
counting/scores.py
- sum(number > edge for edge in most)
+ sum(number >= edge for edge in most)
counting/clinical.py
- asked >= FEWEST_SURE and right < LEAST_RIGHT * asked
+ asked >= FEWEST_SURE and right < 0
counting/likely.py
- missed, refused = one * error.missed
+ missed, refused = 0 * one * error.missed
counting/likely.py
- value - circle.area_mm2 * weight * (density
+ value - weight * (density
counting/sites.py
- self.shapes.items() if name != slide
+ self.shapes.items() if name
labels/registration/transform.py
- points - self.field.at(guess)
+ points + self.field.at(guess)
labels/registration/correlation.py
- > exclusion_px**2
+ < exclusion_px**2
labels/registration/evidence.py
- return self.p_value <= FAILED_P and
+ return
detections/formats/qupath.py
- width / 2), CORNERS
+ width), CORNERS
detections/formats/asap.py
- key=lambda one: int(one.get("Order", 0))
+ key=lambda one: 0
labels/observers/store.py
- SELECT MAX(sequence) FROM log
+ SELECT MIN(sequence) FROM log
labels/observers/store.py
- self._latest = max(self._latest, now())
+ self._latest = now()
"""
"""File, a part of a line that stands there once, and what takes its place."""


def notices(source: Path, mutant: tuple[str, str, str], options: list[str]) -> str:
    """The first test that fails where the line is broken, or nothing."""
    name, before, after = mutant
    path = source / "metaphase" / name
    text = path.read_text(encoding="utf-8")
    if text.count(before) != 1:
        sys.exit(f"{name}: {before!r} is there {text.count(before)} times")
    path.write_text(text.replace(before, after), encoding="utf-8")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(ROOT)))}
    home = ROOT / "tests" / Path(name).parent
    near = next(folder for folder in (home, *home.parents) if folder.is_dir())
    try:
        for positions in (near, ROOT / "tests"):
            command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", *options, str(positions)]
            done = subprocess.run(
                command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
            )
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            if done.returncode not in (0, 5):
                return failed[0].split(" - ")[0] if failed else f"exit {done.returncode}"
    finally:
        path.write_text(text, encoding="utf-8")
    return ""


def main(options: list[str]) -> int:
    """Exit code: how many lines nobody notices."""
    lines = MUTANTS.strip().splitlines()
    mutants = [(lines[at], lines[at + 1][2:], lines[at + 2][2:]) for at in range(0, len(lines), 3)]
    unseen = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        source = Path(folder)
        shutil.copytree(
            ROOT / "src" / "metaphase", source / "metaphase", ignore=shutil.ignore_patterns("models")
        )
        (source / "metaphase" / "models").symlink_to(ROOT / "src" / "metaphase" / "models")
        for number, mutant in enumerate(mutants, 1):
            began = time.monotonic()
            noticed = notices(source, mutant, options)
            unseen += not noticed
            verdict = noticed or "NOT NOTICED"
            print(
                f"{number:2} {mutant[0]}: {mutant[2]}: {verdict} ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    print(f"{len(mutants) - unseen} of {len(mutants)} noticed")
    return unseen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
