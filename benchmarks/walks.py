"""Through how many files the program goes, and how often it comes back: the walks of four users.

python -m benchmarks.walks [detect | lab | merge | view ...]

Follows calls with `sys.setprofile` while a slide is searched (`detect`), a laboratory goes on until it asks
somebody (`lab next`), answers are merged (`label merge`) and a figure is corrected (`view`), all on slides
made for it. *Files* are those of the package in which a function ran. *Arrows* are pairs of them, the first
of which called into the second; *returns* those of them that lead to a file which the walk had entered
before the one that it comes from: a reader goes back there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import metaphase
from metaphase.lab.folder import Lab
from metaphase.lab.running import begin, go_on
from metaphase.labels.observers.project import load_project
from metaphase.labels.observers.store import AnswerStore, Entry
from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import SimulationConfig

PACKAGE = str(Path(metaphase.__file__).parent)
SIDE_PX = 768


class Walk:
    """The files that calls went through, in the order in which they were entered, and the arrows between."""

    def __init__(self) -> None:
        self.entered: dict[str, int] = {}
        self.arrows: set[tuple[str, str]] = set()
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """One event of the profiler."""
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(PACKAGE) or frame.f_code.co_name == "<module>":
            return
        self.calls += 1
        self.entered.setdefault(file, len(self.entered))
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != file:
            self.arrows.add((caller.f_code.co_filename, file))

    @property
    def returns(self) -> int:
        """Arrows that lead back."""
        return sum(
            self.entered.get(there, 0) < self.entered.get(here, len(self.entered))
            for here, there in self.arrows
        )

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Follow all that is called inside, in threads too."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def command(*words: str | Path) -> None:
    """Give a command of the command line, and keep what it prints."""
    from metaphase.cli.main import app

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        app([str(word) for word in words], standalone_mode=False)


def walk_detect(slides: Path, folder: Path) -> Walk:
    """A slide is searched, counted, exported and reported."""
    walk = Walk()
    with walk.followed(), contextlib.suppress(SystemExit):
        command("detect", slides / "case000/he.tif", "--model", "simulated", "-o", folder, "--device", "cpu")
    return walk


def walk_lab(slides: Path, folder: Path) -> Walk:
    """A laboratory's pairs, from `lab init` on until somebody is asked."""
    named = folder / "slides"
    named.mkdir(parents=True)
    for case in sorted(slides.glob("case*")):
        for stain in ("he", "phh3"):
            shutil.copy(case / f"{stain}.tif", named / f"{case.name}_{stain}.tif")
    lab = Lab(begin(folder / "lab", named, start="", name="walk").lab.root, "cpu")
    walk = Walk()
    with walk.followed():
        go_on(lab)
    return walk


def walk_merge(_slides: Path, folder: Path) -> Walk:
    """Answers of two observers become labels."""
    from tests.labels.observers.projects import write_project

    write_project(folder, 12)
    project = load_project(folder)
    with AnswerStore(project) as store:
        for name in ("Anna", "Ben"):
            store.record_many(Entry(name, item.name, "mitosis", 2.0) for item in project.items)
    walk = Walk()
    with walk.followed():
        command("label", "merge", folder, "--agree", "2")
    return walk


def walk_view(_slides: Path, folder: Path) -> Walk:
    """The viewer shows a slide, takes a correction, counts anew and puts it in force."""
    from tests.web.asgi import Client
    from tests.web.results import spread_positions, write_result, write_sparse_slide

    from metaphase.web.access import Access, Guard
    from metaphase.web.viewed import TileMaker, viewed_slides
    from metaphase.web.viewing import viewing_app

    positions = spread_positions(12, SIDE_PX, SIDE_PX)
    slide = write_sparse_slide(folder / "slide.tif", SIDE_PX, SIDE_PX, positions)
    write_result(folder / "results" / "slide", slide, SIDE_PX, SIDE_PX, positions)
    walk = Walk()
    with walk.followed():
        (shown,) = viewed_slides([folder / "results"])
        access = Access()
        app = Guard(viewing_app([shown], TileMaker()), access)
        with Client(app, "http://127.0.0.1:8502", access.token) as client:

            def posted(address: str, **content: Any) -> Any:
                answer = client.post(address, json=content)
                answer.raise_for_status()
                return answer.json()

            (row,) = posted("/api/slides", observer="Anna")["slides"]
            item = {"slide": row["key"], "x": float(positions[0][0]), "y": float(positions[0][1])}
            given = {"item": item, "answer": "not", "seconds": 1.0, "uuid": str(uuid4())}
            posted("/api/answers", observer="Anna", answers=[given])
            posted(f"/api/count/{row['key']}", observer="Anna")
            posted("/api/apply")
        shown.close()
    return walk


WALKS: dict[str, Callable[[Path, Path], Walk]] = {
    "detect": walk_detect,
    "lab": walk_lab,
    "merge": walk_merge,
    "view": walk_view,
}


def main() -> None:
    """Walk, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("walks", nargs="*", default=list(WALKS), help="which of them; by default all")
    parser.add_argument("--files", action="store_true", help="name the files in the order of the walk")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        slides = Path(folder) / "slides"
        config = SimulationConfig(
            cases=3, centres=1, width=SIDE_PX, height=SIDE_PX, seed=13, mitoses_per_mm2=(900, 1000), workers=1
        )
        simulate_cohort(slides, config)
        print(f"{'walk':<8}{'files':>7}{'arrows':>8}{'returns':>9}{'calls':>9}")
        for name in given.walks:
            walk = WALKS[name](slides, Path(folder) / name)
            print(f"{name:<8}{len(walk.entered):>7}{len(walk.arrows):>8}{walk.returns:>9}{walk.calls:>9}")
            for file in walk.entered if given.files else ():
                print(f"    {Path(file).relative_to(PACKAGE)}")


if __name__ == "__main__":
    main()
