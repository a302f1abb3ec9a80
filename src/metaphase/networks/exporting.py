"""Detectors as ONNX graphs, for other programs and for `engine.onnx`: pixels in, probabilities out.

The graph takes `pixels`, uint8 RGB (tiles, height, width, 3) at the card's um/px, 97 px or more a side, and
gives `probability` and `logit`, float32 (tiles, rows, columns): output (i, j) means the point 50 px right of
and below (4 j, 4 i). Normalisation is folded into the convolutions, in double precision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from metaphase.base.errors import MetaphaseError, ModelError, UsageError
from metaphase.base.files import write_bytes, write_text
from metaphase.networks.architectures import LOST_PX, InvertedBlock, ResidualBlock, Subcells
from metaphase.networks.cards import DETECTORS, OUTPUT_STRIDE_PX, RECEPTIVE_PX, ModelCard, named_model
from metaphase.networks.checkpoints import load_model
from metaphase.networks.engine.layers import FoldedBlock, FoldedConv, fold_cells, fold_detector
from metaphase.networks.engine.onnx import LOGIT, PIXELS, PROBABILITY

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 17, 8
"""Of 2022: what runtimes of the last years read."""
SUBCELLS = 2
"""Outputs a side of a cell."""


def export_model(model: str | Path, output: str | Path) -> ModelCard:
    """Write a detector as `OUTPUT.onnx`, its card beside it; returns the card as written.

    So is the one that it asks to look again, under its own name.
    """
    source = named_model(model).with_suffix(".safetensors")
    target = Path(output).with_suffix(".onnx")
    if target.with_suffix(".safetensors").exists():
        raise UsageError(
            "its card would overwrite that of the .safetensors beside it", path=target, next_step="change -o"
        )
    network, card = load_model(source)
    if card.family not in DETECTORS:
        raise ModelError(
            f"is a {card.family} of patches, not a detector",
            path=source,
            next_step="give one of the families " + ", ".join(DETECTORS) + "; `metaphase model info` tells",
        )
    if card.second is not None:
        export_model(source.with_name(card.second.model), target.with_name(card.second.model))
    data = detector_graph(network, card).SerializeToString()
    card = card.model_copy(update={"graph_sha256": hashlib.sha256(data).hexdigest()})
    write_bytes(target, data)
    write_text(target.with_suffix(".json"), card.model_dump_json(indent=2) + "\n")
    return card


def detector_graph(network: nn.Sequential, card: ModelCard) -> onnx.ModelProto:
    """The graph of a detector, with its card's name, resolution and intended use inside."""
    onnx = _onnx()
    graph = _Graph(onnx)
    values = graph.add("Transpose", graph.add("Cast", PIXELS, to=onnx.TensorProto.FLOAT), perm=(0, 3, 1, 2))
    if not isinstance(network[-1], Subcells):
        folded = fold_detector(network)
        layers: list[FoldedConv | FoldedBlock] = [*folded.small, folded.wide]
        head = FoldedConv(folded.head[None, :, None, None], folded.head.new_full((1,), folded.head_bias))
        values = graph.convolution(graph.layers(values, layers, folded.slope), head)
    else:
        values = graph.modules(values, fold_cells(network))
        values = graph.add("DepthToSpace", values, blocksize=SUBCELLS, mode="CRD")
        values = graph.cropped(values)
    graph.add("Squeeze", values, graph.constant(np.array([1])), output=LOGIT)
    graph.add("Sigmoid", LOGIT, output=PROBABILITY)
    return graph.finished(card)


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise MetaphaseError(
            "writing ONNX needs the package onnx", next_step="pip install 'metaphase[onnx]'"
        ) from error
    return onnx


class _Graph:
    """Nodes and constants as they are added."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def add(self, operation: str, *inputs: str, output: str = "", **settings: Any) -> str:
        """The name of what an operation gives."""
        output = output or f"{operation.lower()}_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operation, inputs, [output], **settings))
        return output

    def constant(self, value: Any) -> str:
        """The name of a constant."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(value, name))
        return name

    def convolution(self, values: str, conv: FoldedConv) -> str:
        """A valid convolution in float32."""
        weight, bias = (self.constant(each.float().numpy()) for each in (conv.weight, conv.bias))
        return self.add("Conv", values, weight, bias, strides=(conv.stride, conv.stride))

    def layers(self, values: str, layers: list[FoldedConv | FoldedBlock], slope: float) -> str:
        """Convolutions and residual blocks with their leaky ReLU."""
        for layer in layers:
            if isinstance(layer, FoldedBlock):
                total = self._block(values, layer, slope)
            else:
                total = self.convolution(values, layer)
            values = self.add("LeakyRelu", total, alpha=slope)
        return values

    def modules(self, values: str, layers: Iterable[nn.Module]) -> str:
        """The folded layers of a detector of cells, one after the other."""
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                values = self._conv2d(values, layer)
            elif isinstance(layer, nn.LeakyReLU):
                values = self.add("LeakyRelu", values, alpha=layer.negative_slope)
            elif isinstance(layer, nn.ReLU6):
                limits = (self.constant(np.array(limit, np.float32)) for limit in (0, 6))
                values = self.add("Clip", values, *limits)
            elif isinstance(layer, nn.ZeroPad2d):
                left, right, top, bottom = layer.padding
                values = self._cut(values, (-top, -left), (bottom, right))
            elif isinstance(layer, ResidualBlock):
                values = self._residual(values, layer)
            elif isinstance(layer, InvertedBlock):
                inner = self.modules(values, layer.steps())
                lost = layer.lost_px
                if lost:
                    inner = self.add("Add", inner, self._cut(values, (lost, lost), (-lost, -lost)))
                values = inner
            else:
                raise TypeError(f"no ONNX for {type(layer).__name__}")
        return values

    def _conv2d(self, values: str, conv: nn.Conv2d) -> str:
        weight = self.constant(conv.weight.detach().float().cpu().numpy())
        bias = np.zeros(conv.out_channels) if conv.bias is None else conv.bias.detach().cpu().numpy()
        given = values, weight, self.constant(bias.astype(np.float32))
        return self.add("Conv", *given, strides=conv.stride, group=conv.groups)

    def _residual(self, values: str, block: ResidualBlock) -> str:
        inner = self.add("LeakyRelu", self._conv2d(values, block.first), alpha=block.slope)
        middle = self._cut(values, (LOST_PX, LOST_PX), (-LOST_PX, -LOST_PX))
        if isinstance(block.shortcut, nn.Conv2d):
            middle = self._conv2d(middle, block.shortcut)
        total = self.add("Add", self._conv2d(inner, block.second), middle)
        return self.add("LeakyRelu", total, alpha=block.slope)

    def _cut(self, values: str, first: tuple[int, int], last: tuple[int, int]) -> str:
        """Rows and columns from `first` to `last`."""
        edges = map(self.constant, (np.array(first), np.array(last), np.array([2, 3])))
        return self.add("Slice", values, *edges)

    def _block(self, values: str, block: FoldedBlock, slope: float) -> str:
        inner = self.add("LeakyRelu", self.convolution(values, block.first), alpha=slope)
        middle = self._cut(values, (LOST_PX, LOST_PX), (-LOST_PX, -LOST_PX))
        if block.shortcut is not None:
            middle = self.convolution(middle, block.shortcut)
        return self.add("Add", self.convolution(inner, block.second), middle)

    def cropped(self, values: str) -> str:
        """Without the outputs of a last cell that see beyond the image."""
        shape = self.add(
            "Slice", self.add("Shape", PIXELS), *map(self.constant, (np.array([1]), np.array([3])))
        )
        first = self.add("Sub", shape, self.constant(np.array([RECEPTIVE_PX])))
        sides = self.add("Div", first, self.constant(np.array([OUTPUT_STRIDE_PX])))
        ends = self.add("Add", sides, self.constant(np.array([1])))
        return self.add(
            "Slice", values, self.constant(np.array([0, 0])), ends, self.constant(np.array([2, 3]))
        )

    def finished(self, card: ModelCard) -> onnx.ModelProto:
        """The checked model."""
        helper, types = self._onnx.helper, self._onnx.TensorProto
        outputs = [
            helper.make_tensor_value_info(name, types.FLOAT, ["tiles", "rows", "columns"])
            for name in (PROBABILITY, LOGIT)
        ]
        pixels = helper.make_tensor_value_info(PIXELS, types.UINT8, ["tiles", "height", "width", 3])
        graph = helper.make_graph(self._nodes, "detector", [pixels], outputs, self._constants)
        opsets = [helper.make_opsetid("", OPSET)]
        model: onnx.ModelProto = helper.make_model(graph, producer_name="metaphase", opset_imports=opsets)
        model.ir_version = IR_VERSION
        about = {"name": card.name, "mpp": f"{card.mpp:g}", "intended_use": card.intended_use}
        helper.set_model_props(model, about | {"weights_sha256": card.weights_sha256})
        self._onnx.checker.check_model(model, full_check=True)
        return model
