"""What a command may wait for or be misled by: leases, pipes where it writes, endless graphs, odd answers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import HUGE, ODD_TEXTS, ODD_VALUES, any_of
from tests.hostile.inputs.sound import ASSETS, SEARCH
from tests.hostile.trials import Attempt, must_refuse

SHARE = 5
WRITTEN = (
    "out/.batch/slide.lease", "out/.batch/slide.failed.json", "out/errors.log", "out/index.html", "out/slide",
    "out/slide/tiles.journal", "out/slide/stages", "out/slide/summary.json", "out/slide/search.parquet",
)  # fmt: skip
NO_FOLDERS = (
    "/proc/self/out",
    "/sys/out",
    "/dev/null",
    "/dev/full/x",
    "pipe",
    "pipe/out",
    "file",
    "/proc/1/fd",
)


def make(random: Random, folder: Path) -> Attempt:
    return any_of(random, _lease, _in_the_way, _no_folder, _graph, _answers, _labels, _metrics)(
        random, folder
    )


def _lease(random: Random, folder: Path) -> Attempt:
    """Of nobody, or of a process that has ended or cannot be."""
    from metaphase.base.sharing.leases import this_machine

    stated = {
        "token": any_of(random, "t", "", None), "machine": this_machine(), "host": any_of(random, *ODD_TEXTS),
        "process": any_of(random, *ODD_VALUES), "started": any_of(random, "", "1", None),
    }  # fmt: skip
    stated["process"] = 2**60 if stated["process"] is HUGE else stated["process"]
    path = folder / "out" / ".batch" / "slide.lease"
    path.parent.mkdir(parents=True)
    path.write_bytes(any_of(random, b"", b"{}", b"[1]", *[json.dumps(stated).encode()] * 5))
    return Attempt(SEARCH)


def _in_the_way(random: Random, folder: Path) -> Attempt:
    """Something else where the command writes."""
    path = folder / any_of(random, *WRITTEN)
    path.parent.mkdir(parents=True)
    any_of(random, os.mkfifo, Path.mkdir, lambda one: one.symlink_to("nowhere"), Path.touch)(path)
    return Attempt((*SEARCH, *any_of(random, (), ("--probability-map",))))


def _no_folder(random: Random, folder: Path) -> Attempt:
    os.mkfifo(folder / "pipe")
    (folder / "file").touch()
    output = any_of(random, *NO_FOLDERS)
    return Attempt([output if part == "out" else part for part in SEARCH], must_refuse)


def _graph(random: Random, folder: Path) -> Attempt:
    """A loop, a branch, or features far larger than any picture."""
    import numpy as np
    import onnx

    model = onnx.load(ASSETS / "graph.onnx")
    helper, nodes = onnx.helper, model.graph.node
    if random.random() < 0.5:
        body = helper.make_graph([], "body", [], [])
        kind = any_of(random, ("Loop", "body"), ("Scan", "body"), ("If", "then_branch"))
        nodes.append(helper.make_node(kind[0], ["pixels"], ["y"], **{kind[1]: body}))
    else:
        sides = np.array([any_of(random, 2, 10**3, 10**6), 1, 1, 1])
        model.graph.initializer.append(onnx.numpy_helper.from_array(sides, "sides"))
        nodes.insert(1, helper.make_node("Expand", [nodes[0].output[0], "sides"], ["wide"]))
        nodes[2].input[0] = "wide"
    data = model.SerializeToString()
    card = json.loads((ASSETS / "graph.json").read_bytes()) | {
        "graph_sha256": hashlib.sha256(data).hexdigest()
    }
    (folder / "m.onnx").write_bytes(data)
    (folder / "m.json").write_text(json.dumps(card))
    return Attempt((*SEARCH[:-1], "m.onnx"), must_refuse)


def _answers(random: Random, folder: Path) -> Attempt:
    """Stored answers about nothing on the slide."""
    shutil.copytree(ASSETS / "reviewed", folder / "out")
    before = json.loads((folder / "out/slide/summary.json").read_text())["detections"]
    items = ("-5000.0 5.0", "100000000.0 1.0", "5.0 999999999.0", "x", "1.0 1.0")
    answers = ("mitosis", "moved 100000000.0 5.0", "moved -9.0 1.0", "<b>")
    rows = [(any_of(random, *items[:4]), any_of(random, *answers)) for _ in range(9)] + [
        (items[4], answers[1])
    ]
    with sqlite3.connect(folder / "out/slide/review.sqlite") as log:
        for number, (item, answer) in enumerate(rows):
            said = (f"u{number}", "Eve", item, answer)
            log.execute("INSERT INTO log (uuid, observer, item, answer, number, seconds, time) "
                        "VALUES (?, ?, ?, ?, 0, 0, '')", said)  # fmt: skip

    def counted(_printed: str) -> str:
        now = json.loads(Path("out/slide/summary.json").read_text())["detections"]
        return "" if now == before else f"{before} detections became {now}"

    return Attempt(("review", "apply", "out"), counted)


def _labels(random: Random, folder: Path) -> Attempt:
    label = any_of(random, "tumour", "2", "cell", "Region*", "apoptosis", "ja")
    (folder / "points.csv").write_text(
        f"slide,x,y,probability,label\na,1,2,0.9,{label}\na,900,2,0.9,{label}\n"
    )
    return Attempt(("score", "points.csv", "--mpp", "0.25"), must_refuse)


def _metrics(random: Random, folder: Path) -> Attempt:
    (folder / "m.safetensors").write_bytes((ASSETS / "tiny.safetensors").read_bytes())
    card: dict[str, Any] = json.loads((ASSETS / "tiny.json").read_bytes())
    value = any_of(random, *ODD_VALUES)
    name = any_of(random, "validation", "learnt from", "not labelled", "chosen")
    card["metrics"] = {name: any_of(random, value, [value], {"mitoses": value, "patients": 1}, {"f1": value})}
    (folder / "m.json").write_text(json.dumps(card))
    return Attempt(any_of(random, ("model", "info", "m.safetensors"), (*SEARCH[:-1], "m.safetensors")))
