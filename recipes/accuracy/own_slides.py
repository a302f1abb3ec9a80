"""What own slides add: `metaphase lab` on simulated laboratories, beside the bundled pair as it comes.

    python -m recipes.accuracy.own_slides --folder OUT --device cuda     # 0, 1, 3 and 9 pairs to learn from
    python -m recipes.accuracy.own_slides --folder OUT --toy             # 6 pairs in all, two CPU cores
    python -m recipes.accuracy.own_slides --folder OUT --toy --kill 3    # killed at random moments
    python -m recipes.accuracy.own_slides --folder OUT --odd             # slides that do not fit
    python -m recipes.accuracy.own_slides --folder OUT --corrections 50  # answers about one slide, no PHH3

A cohort is simulated; the slides of two laboratories are put into a folder as a laboratory would have them,
and `metaphase lab init` and `metaphase lab next` are run as users type them, with the port of their pages in
use. Whenever a page asks, simulated observers, who err at known rates, answer through its database. The
packaged model and the bundled one are then tried on other slides of the same laboratories and on slides of a
third one. Run it again to go on after a stop; once the cohort is there (`--pairs 0`), the numbers of pairs
may be tried side by side.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.rehearsal import answer

from metaphase.analysis.cohort import cohort_slides
from metaphase.analysis.record import load_results
from metaphase.analysis.run import detect_cohort
from metaphase.base.tables import write_table
from metaphase.detections.table import MITOSIS
from metaphase.evaluation.marks import MatchingConfig
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.evaluation.mitoses import evaluate_mitoses
from metaphase.lab.folder import Lab
from metaphase.lab.pairing import splits_of
from metaphase.lab.parts import Asked
from metaphase.lab.rates import measure_rates
from metaphase.lab.running import standings
from metaphase.labels.observers.positions import PositionLog, position_name
from metaphase.learn.sources import truth_of
from metaphase.networks.cards import BUNDLED, parse_card
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import SimulationConfig
from metaphase.simulation.observers import FOUR_OBSERVERS

OWN, UNSEEN, PORT = ("birch", "cedar"), "dover", 8500
TOY = """
[phh3]
epochs = 4
samples_per_epoch = 300
batch = 32
normalisation = "batch"
augment = "RCB"

[run.dense]
student_steps = 40
"""
"""For two CPU cores; what is delivered is trained longer."""
CORRECTED = """
[cohort]
manifest = "manifest.csv"

[reference]
table = "reference.csv"

[training]
method = "dense"
batch = 8
stain_mix = 0.3
learning_rate = 2e-4

[dense]
start = "breast"
student_steps = 300
trust = 0.3

[test]
suppress_um = 15.0
smooth_um = 1.75
"""
POLL_S = 3.0


def total_of(training: int) -> int:
    """The least number of pairs of which `metaphase lab` learns from so many."""
    for total in range(3, 200):
        rows = pd.DataFrame({"patient": range(total), "laboratory": ""}).astype(str)
        if splits_of(rows, {}).count("train") == training:
            return total
    raise SystemExit(f"no cohort has {training} training pairs")


def simulated(folder: Path, options: argparse.Namespace) -> pd.DataFrame:
    """The cohort of all tries: cases of the own laboratories, which take turns, and of the unseen one.

    `use` says what they are for: to learn from, or to be tested on at home or abroad.
    """
    each = max(-(-(options.most + options.test) // 2), options.test)
    config = SimulationConfig(
        cases=1 + 3 * each, centres=4, training_share=0.0, width=options.side, height=options.side,
        mitoses_per_mm2=tuple(options.mitoses), lookalikes_per_mm2=300.0, seed=options.seed,
        workers=options.workers,
    )  # fmt: skip
    simulate_cohort(folder, config)
    manifest = pd.read_csv(folder / "manifest.csv", dtype={"case": str})
    own = manifest[manifest["laboratory"].isin(OWN)].head(options.most + options.test)
    unseen = manifest[manifest["laboratory"] == UNSEEN].head(options.test)
    uses = ["learn"] * options.most + ["home"] * options.test + ["abroad"] * options.test
    return pd.concat([own, unseen]).assign(use=uses)


def laid_out(cohort: Path, cases: pd.DataFrame, folder: Path) -> None:
    """Copy pairs as a laboratory has them: one folder, names with a stain, and a table of patients."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases["case"]:
        for stain, name in (("he", "HE"), ("phh3", "PHH3")):
            target = folder / f"{case}-{name}.tif"
            if not target.exists():
                shutil.copy(cohort / case / f"{stain}.tif", target)
    table = cases[["case", "laboratory"]].assign(patient=cases["case"])
    table.to_csv(folder / "patients.csv", index=False)


def run_command(arguments: Sequence[str], root: Path) -> subprocess.Popen[str]:
    """A command as the user types it, in the laboratory's folder."""
    return subprocess.Popen([sys.executable, "-m", "metaphase", *arguments], cwd=root, text=True)


def waiting(lab: Lab) -> Iterator[Asked]:
    """Pages on which somebody has to answer now."""
    for one in standings(lab):
        if one.status == "waiting for a person":
            yield from (page for page in one.step.pages if not page.complete)


def followed(lab: Lab, truths: dict[str, pd.DataFrame], options: argparse.Namespace) -> dict[str, Any]:
    """`metaphase lab next` until it ends, people answering, killed as often as asked for."""
    generator = np.random.default_rng(options.seed)
    answers, commands, kills = 0, 0, options.kill
    started = time.perf_counter()
    device = ["--device", options.device] if options.device else []
    while True:
        process = run_command(["lab", "next", *device], lab.root)
        commands += 1
        deadline = time.perf_counter() + generator.uniform(20, options.kill_within) if kills else np.inf
        while process.poll() is None and time.perf_counter() < deadline:
            time.sleep(POLL_S)
            for page in waiting(lab):
                answers += answer(lab, page, truths, FOUR_OBSERVERS[: options.observers], seed=options.seed)
        if process.poll() is None:
            process.kill()
            process.wait()
            kills -= 1
            print(f"killed after {time.perf_counter() - started:.0f} s", flush=True)
        elif process.returncode:
            raise SystemExit(f"metaphase lab next ended with {process.returncode}")
        else:
            seconds = time.perf_counter() - started
            return {"commands": 1 + commands, "paths": 1, "answers": answers, "minutes": seconds / 60}


def judged(model: str | Path, root: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """How good a model is on the slides of a bench, by the truth of the simulation, and how fast."""
    ready = ReadyDetector(load_detector([model]), EngineConfig(device=options.device))
    slides = cohort_slides(root / "manifest.csv")
    detect_cohort(slides, root / name, ready)
    result = evaluate_mitoses(
        root / "truth.csv", root / name / "candidates.parquet", manifest=root / "manifest.csv",
        matching=MatchingConfig(threshold=ready.detector.points.mitoses.delta), bootstrap=BootstrapConfig(),
    )  # fmt: skip
    rates = [measure_rates(ready, slides[0].slide).whole_mm2_per_s for _ in range(3)]
    return {"f1": str(result.overall.f1), "precision": str(result.overall.precision),
            "recall": str(result.overall.recall), "highest_f1": round(float(np.nanmax(result.curve.f1)), 3),
            "s_per_mm2": round(1 / max(rates), 4)}  # fmt: skip


def he_of(cohort: Path, case: str) -> Path:
    """The H&E slide of a case."""
    return (cohort / case / "he.tif").resolve()


def write_bench(cohort: Path, cases: pd.DataFrame, root: Path) -> None:
    """Manifest and truth of slides to test on."""
    root.mkdir(parents=True, exist_ok=True)
    tables = [truth_of({"case": case, "he": he_of(cohort, case)}) for case in cases["case"]]
    write_table(root / "truth.csv", pd.concat(tables, ignore_index=True).rename(columns={"case": "slide"}))
    slides = [str(he_of(cohort, case)) for case in cases["case"]]
    write_table(root / "manifest.csv", cases[["case", "laboratory"]].assign(he=slides, phh3="", split="test"))


def everywhere(
    model: str | Path, cohort: Path, name: str, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """At home and in the third laboratory; the bundled pair beside it, in the same minutes."""
    described = {}
    for bench in ("home", "abroad"):
        described[bench] = judged(model, cohort.parent / bench, name, options)
        if model != BUNDLED:
            described[f"{bench}, {BUNDLED}"] = judged(
                BUNDLED, cohort.parent / bench, f"{name}-bundled", options
            )
    return described


def tried(total: int, cohort: Path, cases: pd.DataFrame, options: argparse.Namespace) -> dict[str, Any]:
    """One laboratory of so many pairs, from its folder of slides to figures."""
    root = cohort.parent / f"pairs{total}"
    own = cases[cases["use"] == "learn"].head(total)
    laid_out(cohort, own, root / "slides")
    lab = Lab(root / "lab", options.device)
    lab.root.mkdir(exist_ok=True)
    started = time.perf_counter()
    if run_command(["lab", "init", "../slides", "--start", options.start], lab.root).wait():
        raise SystemExit("metaphase lab init failed")
    text = (lab.root / "lab.toml").read_text().replace("agree = 1 ", f"agree = {options.agree} ")
    if options.calibration is not None:
        text = text.replace("answers = 100", f"answers = {options.calibration}")
    if options.toy and "[run.training]\n" not in text.replace("# [run.training]", ""):
        text += TOY
    (lab.root / "lab.toml").write_text(text)
    minutes = (time.perf_counter() - started) / 60
    truths = {case: pd.read_parquet(cohort / case / "truth.parquet") for case in own["case"]}
    story = followed(lab, truths, options)
    story["minutes"] = round(story["minutes"] + minutes, 1)
    known = parse_card(lab.model.with_suffix(".json")).known_metrics
    rows = pd.DataFrame({"patient": own["case"], "laboratory": own["laboratory"]})
    learnt = splits_of(rows, {}).count("train")
    return {
        "pairs": total,
        "pairs learnt from": learnt,
        "start": options.start,
        **story,
        "delivered": known.chosen,
        **everywhere(lab.model, cohort, f"pairs{total}", options),
    }


def corrected(cohort: Path, cases: pd.DataFrame, options: argparse.Namespace) -> dict[str, Any]:
    """Somebody answers about detections of one slide; two labelled slides choose, no PHH3 is there."""
    root = cohort.parent / f"corrections{options.corrections}"
    root.mkdir(exist_ok=True)
    own = cases[(cases["use"] == "learn") & (cases["laboratory"] == OWN[0])].head(3)
    rows = pd.concat([own, cases[cases["use"] == "home"]])
    rows = rows.assign(phh3="", patient=rows["case"], he=[str(he_of(cohort, case)) for case in rows["case"]])
    rows["split"] = np.where(rows["use"] == "home", "test", "validation")
    table = rows[["case", "he", "phh3", "laboratory", "split", "patient"]]
    write_table(root / "one.csv", table.head(1))
    write_table(root / "manifest.csv", table[1:])
    labels = [truth_of(row) for row in table[1:].to_dict("records")]
    write_table(root / "reference.csv", pd.concat(labels, ignore_index=True))
    ready = ReadyDetector(load_detector([BUNDLED]), EngineConfig(device=options.device))
    detect_cohort(cohort_slides(root / "one.csv"), root / "results", ready)
    (result,) = load_results([root / "results"])
    found = result.candidates.sort_values("probability", ascending=False)
    real = truth_of(rows.iloc[0].to_dict())[["x", "y"]].to_numpy(float)
    reach_px = MatchingConfig().radius_um / result.mpp
    answers = {MITOSIS: 0, "not": 0}
    with PositionLog(result.folder, options.side, options.side) as log:
        for x, y in found.head(options.corrections)[["x", "y"]].to_numpy(float).tolist():
            apart = np.hypot(real[:, 0] - x, real[:, 1] - y)
            verdict = MITOSIS if apart.min() <= reach_px else "not"
            log.record("observer", position_name(x, y), verdict)
            answers[verdict] += 1
    (root / "run.toml").write_text(CORRECTED)
    arguments = ["run", "run.toml", "-o", "run", "--corrections", "results"]
    started = time.perf_counter()
    device = ["--device", options.device] if options.device else []
    if run_command([*arguments, *device], root).wait():
        raise SystemExit("metaphase run failed")
    model = root / "run" / "model" / "pair.safetensors"
    return {"corrections": answers, "minutes": round((time.perf_counter() - started) / 60, 1),
            "delivered": parse_card(model.with_suffix(".json")).known_metrics.chosen,
            **everywhere(model, cohort, f"corrections{options.corrections}", options)}  # fmt: skip


def odd_folder(options: argparse.Namespace) -> None:
    """A folder with slides that do not fit, and what `metaphase lab init` says of it."""
    root: Path = options.folder.resolve() / "odd"
    cohort = root.parent / f"seed{options.seed}" / "cohort"
    cases = simulated(cohort, options)
    own = list(cases.loc[cases["use"] == "learn", "case"])
    slides = root / "slides"
    shutil.rmtree(slides, ignore_errors=True)
    laid_out(cohort, cases[cases["use"] == "learn"], slides)

    def path(number: int, stain: str) -> Path:
        return slides / f"{own[number]}-{stain}.tif"

    def exchange(one: Path, other: Path) -> None:
        aside = slides / "aside"
        one.rename(aside)
        other.rename(one)
        aside.rename(other)

    exchange(path(0, "PHH3"), path(1, "PHH3"))
    exchange(path(2, "HE"), path(2, "PHH3"))
    path(3, "PHH3").unlink()
    shutil.copy(path(4, "HE"), path(4, "PHH3"))
    whole = path(5, "HE").read_bytes()
    path(5, "HE").write_bytes(whole[: len(whole) // 2])
    described = ["PHH3 slides exchanged with the next", "PHH3 slides exchanged with the one before",
            "names of the two stains swapped", "PHH3 slide missing", "PHH3 slide is a copy of the H&E",
            "H&E slide cut off at half of its bytes"]  # fmt: skip
    for case, what in zip(own, described, strict=False):
        print(f"{case}: {what}")
    lab = root / "lab"
    lab.mkdir(exist_ok=True)
    raise SystemExit(run_command(["lab", "init", "../slides"], lab).wait())


def main() -> None:
    """Parse, run, tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pairs", type=int, nargs="+", default=[0, 1, 3, 9], help="pairs to learn from")
    parser.add_argument("--most-pairs", type=int, default=9, help="that the cohort is made for")
    parser.add_argument("--test", type=int, help="slides at home and abroad; by default 8 each, for a toy 3")
    parser.add_argument("--side", type=int, help="pixels; by default 4096, for a toy 1536")
    parser.add_argument("--mitoses", type=float, nargs=2, default=(60.0, 250.0), help="per mm2 of tumour")
    parser.add_argument("--start", default=BUNDLED, help="model to start from")
    parser.add_argument("--calibration", type=int, help="answers of the calibration, 0 for none")
    parser.add_argument("--observers", type=int, default=1)
    parser.add_argument("--agree", type=int, default=1, help="observers of every item")
    parser.add_argument("--corrections", type=int, help="only: so many answers about one slide")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--toy", action="store_true", help="6 pairs, short trainings, for two cores")
    parser.add_argument("--kill", type=int, default=0, help="how often to kill it at a random moment")
    parser.add_argument("--kill-within", type=float, default=240.0, help="seconds within which it is killed")
    parser.add_argument("--odd", action="store_true", help="only: a folder with slides that do not fit")
    parser.add_argument("--device")
    parser.add_argument("--seed", type=int, default=41)
    options = parser.parse_args()
    small = options.toy or options.odd
    options.side = options.side or (1536 if small else 4096)
    options.test = options.test or (3 if small else 8)
    options.mitoses = (150.0, 350.0) if small else options.mitoses
    totals = [0, 6] if small else [total_of(count) if count else 0 for count in options.pairs]
    options.most = 6 if small else total_of(options.most_pairs)
    if options.odd:
        odd_folder(options)
    root: Path = options.folder.resolve() / f"seed{options.seed}"
    cohort = root / "cohort"
    cases = simulated(cohort, options)
    for bench in ("home", "abroad"):
        write_bench(cohort, cases[cases["use"] == bench], root / bench)
    taken = socket.socket()
    with suppress(OSError):  # another trial has it
        taken.bind(("127.0.0.1", PORT))
        taken.listen()
    tries: dict[str, Any] = {f"pairs{total}": total for total in totals}
    for name, total in tries.items() if options.corrections is None else [("corrections", None)]:
        if total is None:
            described = corrected(cohort, cases, options)
        elif total:
            described = tried(total, cohort, cases, options)
        else:
            described = {"pairs": 0} | everywhere(BUNDLED, cohort, BUNDLED, options)
        row = described | {"seed": options.seed, "side": options.side}
        print(json.dumps(row, indent=2), flush=True)
        (options.folder / f"{name}-seed{options.seed}.json").write_text(json.dumps(row) + "\n")
    taken.close()


if __name__ == "__main__":
    main()
