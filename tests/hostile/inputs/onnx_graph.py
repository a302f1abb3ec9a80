"""An ONNX model whose graph or card is odd; at times the card vouches for the changed graph."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import any_of, bytes_changed, json_bytes, tree_changed
from tests.hostile.inputs.sound import ASSETS
from tests.hostile.trials import Attempt

SHARE = 5
KINDS = ("Conv", "LeakyRelu", "Sigmoid", "Loop", "If", "Reshape", "NoSuchOp", "Gather", "Cast")
SIZES = (0, -1, 1, 2**31, 2**62, 3)


def make(random: Random, folder: Path) -> Attempt:
    import onnx  # noqa: F401 -- what made the graph

    data = (ASSETS / "graph.onnx").read_bytes()
    card: Any = json.loads((ASSETS / "graph.json").read_bytes())
    how = random.random()
    if how < 0.25:
        card = tree_changed(random, card)[0]
    else:
        data = bytes_changed(random, data) if how < 0.5 else changed(random, data)
        if random.random() < 0.9:
            card["graph_sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "m.onnx").write_bytes(data)
    if random.random() < 0.95:
        (folder / "m.json").write_bytes(json_bytes(random, card))
    slide = str(ASSETS / "slide.tif")
    search = ("detect", slide, "-o", "out", "--tissue", "whole", "--mpp", "0.25", "--model", "m.onnx")
    return Attempt(any_of(random, ("model", "info", "m.onnx"), search, search, search))


def changed(random: Random, data: bytes) -> bytes:
    """One thing of the graph replaced: a node, an attribute, a constant, an input or output, the version."""
    import onnx

    model = onnx.load_from_string(data)
    graph = model.graph
    node = any_of(random, *graph.node)
    how = random.randrange(8)
    if how == 0:
        node.op_type = any_of(random, *KINDS)
    elif how == 1:
        graph.node.remove(node)
    elif how == 2:
        node.input[0] = any_of(random, "", "nowhere", node.output[0])
    elif how == 3:
        constant = any_of(random, *graph.initializer)
        constant.dims[:] = [any_of(random, *SIZES) for _ in constant.dims]
    elif how == 4:
        constant = any_of(random, *graph.initializer)
        constant.raw_data = any_of(random, b"", b"\xff" * len(constant.raw_data), constant.raw_data[:5])
    elif how == 5:
        position = any_of(random, *graph.input, *graph.output)
        position.type.tensor_type.elem_type = any_of(random, 0, 1, 2, 7, 8, 99)
    elif how == 6:
        position = any_of(random, *graph.input, *graph.output)
        position.name = any_of(random, "", "x", "pixels", "\u202e")
    else:
        model.opset_import[0].version = any_of(random, 0, 1, 99, 2**40)
    return bytes(model.SerializeToString())
