"""Detectors as ONNX graphs, for other programs and for `engine.onnx`: pixels in, probabilities out.

The graph takes `pixels`, uint8 RGB (tiles, height, width, 3) at the card's um/px, 97 px or more a side, and
gives `probability` and `logit`, float32 (tiles, rows, columns): output (i, j) means the point 50 px right of
and below (4 j, 4 i). Normalisation is folded into the convolutions, in double precision. The package
`onnx` writes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from metaphase.base.arrays import RGB, Floats32
from metaphase.base.errors import ModelError, UsageError
from metaphase.base.files import write_bytes, write_text
from metaphase.networks.architectures import LOST_PX, InvertedBlock, ResidualBlock, Subcells
from metaphase.networks.cards import (
    DETECTORS,
    OUTPUT_STRIDE_PX,
    RECEPTIVE_PX,
    EightBits,
    ModelCard,
    named_model,
)
from metaphase.networks.checkpoints import load_model
from metaphase.networks.engine.layers import PIXEL_MAX, fold_logits
from metaphase.networks.engine.onnx import (
    LOGIT,
    PIXELS,
    PROBABILITY,
    OnnxNetwork,
    Quick,
    own_graph,
    quick_path,
)
from metaphase.networks.engine.positions import smoothed, smoothing_reach

OPSET, IR_VERSION = 17, 8
"""Of 2022: what runtimes of the last years read."""
SUMMED_STEPS = 63
"""Of the largest weight of a filter: sums of two products fit 16 bits, as processors without VNNI have it."""
INT32 = np.iinfo(np.int32).min, np.iinfo(np.int32).max
SUBCELLS = 2
"""Outputs a side of a cell."""
FLOAT = 1
"""ONNX's number of float32."""
WINDOW_PX, WINDOWS_EACH, SIGMA = 321, 12, 1.75
"""Squares by which 8 bits are measured, for each laboratory, and the smoothing of their logits in outputs."""
UNSURE, LEAST_ERROR = 2.2, 0.05
"""Logits up to which an answer is unsure, 0.1 to 0.9: there the error counts. It is never stated as less."""
Pictures = Mapping[str, Sequence[RGB]]
"""Pictures of tissue, 97 px or more a side, by laboratory."""
Setting = int | float | str | Sequence[int]
Ranges = Sequence[tuple[float, float]]
"""Lowest and highest value of each feature map of a graph, in its order."""


def export_model(model: str | Path, output: str | Path) -> ModelCard:
    """Write a detector as `OUTPUT.onnx`, its card beside it; returns the card as written.

    So is its form in 8 bits, where the card knows the ranges for it, and the model that it asks to look
    again, under its own name.
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
            next_step="give one of the families " + ", ".join(DETECTORS) + "; see `metaphase model info`",
        )
    if card.second is not None:
        export_model(source.with_name(card.second.model), target.with_name(card.second.model))
    graph = graph_of(network, card)
    changes: dict[str, object] = {"graph_sha256": graph.sha256}
    if graph.quick is not None and card.eight_bits is not None:
        checksum = hashlib.sha256(graph.quick.data).hexdigest()
        changes["eight_bits"] = card.eight_bits.model_copy(update={"graph_sha256": checksum})
        write_bytes(quick_path(target), graph.quick.data)
    card = card.model_copy(update=changes)
    write_bytes(target, graph.data)
    write_text(target.with_suffix(".json"), card.model_dump_json(indent=2) + "\n")
    return card


def graph_of(network: nn.Sequential, card: ModelCard) -> OnnxNetwork:
    """A detector for ONNX Runtime, with its form in 8 bits where the card knows the ranges for it."""
    data = detector_graph(network, card)
    quick = None
    if card.eight_bits is not None:
        quick = Quick(detector_graph(network, card, card.eight_bits.ranges), card.eight_bits.error)
    return OnnxNetwork(Path(card.name), data, hashlib.sha256(data).hexdigest(), quick)


class GraphNetwork(nn.Module):
    """A detector that ONNX Runtime computes, on a CPU several times faster than PyTorch; it cannot learn."""

    def __init__(self, network: nn.Sequential, card: ModelCard) -> None:
        super().__init__()
        self._run = own_graph(detector_graph(network, card), [LOGIT])

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, rows, columns) of images (n, 3, height, width) of pixels divided by 255."""
        pixels = (PIXEL_MAX * images).round().byte().permute(0, 2, 3, 1)
        return torch.from_numpy(self._run(pixels.contiguous().numpy())[0])


def detector_graph(network: nn.Sequential, card: ModelCard, ranges: Ranges = ()) -> bytes:
    """The graph of a detector, with its card's name, resolution and intended use inside.

    With the ranges of its feature maps it computes in 8 bits.
    """
    return _detector(network, ranges).written(card, (PROBABILITY, LOGIT))


def measured_eight_bits(
    network: nn.Sequential, card: ModelCard, learnt: Pictures, left_out: Pictures
) -> EightBits | None:
    """What the search in 8 bits needs: ranges on what was learnt from, the error on what was left out.

    Nothing where ONNX Runtime is missing: such a model searches in float32.
    """
    if find_spec("onnxruntime") is None:
        return None
    ranges = tuple(
        (round(low, 4), round(high, 4)) for low, high in measured_ranges(network, card, _windows(learnt))
    )
    graphs = detector_graph(network, card), detector_graph(network, card, ranges)
    exact, rounded = (_smoothed_logits(graph, _windows(left_out)) for graph in graphs)
    unsure = (np.abs(exact) < UNSURE) | (np.abs(exact).min() >= UNSURE)
    error = float(np.quantile((exact - rounded)[unsure], 0.999))
    return EightBits(ranges=ranges, error=max(LEAST_ERROR, round(error, 2)))


def _smoothed_logits(graph: bytes, pictures: Sequence[RGB]) -> Floats32:
    """What a graph says about pictures; as it is where all of them are too small to be smoothed."""
    run = own_graph(graph, [LOGIT])
    logits = [run(picture[None])[0] for picture in pictures]
    wide = [values for values in logits if min(values.shape[1:]) > 2 * smoothing_reach(SIGMA)]
    parts = [smoothed(values, SIGMA) for values in wide] or logits
    return np.concatenate([values.ravel() for values in parts])


def _windows(pictures: Pictures) -> list[RGB]:
    """As many squares of each laboratory; crops too small for a network are mirrored at their edge."""
    rng, squares = np.random.default_rng(0), []
    for images in pictures.values():
        for number in rng.choice(len(images), WINDOWS_EACH):
            beyond = [(0, max(0, RECEPTIVE_PX - side)) for side in images[number].shape[:2]]
            image = np.pad(images[number], (*beyond, (0, 0)), mode="symmetric")
            sides = [min(WINDOW_PX, side) for side in image.shape[:2]]
            y, x = (
                int(rng.integers(whole - side + 1))
                for whole, side in zip(image.shape[:2], sides, strict=True)
            )
            squares.append(np.ascontiguousarray(image[y : y + sides[0], x : x + sides[1]]))
    return squares


def measured_ranges(network: nn.Sequential, card: ModelCard, windows: Iterable[RGB]) -> Ranges:
    """Lowest and highest value of each feature map on some pictures of tissue."""
    graph = _detector(network, ())
    run = own_graph(graph.written(card, graph.maps), graph.maps)
    limits = [[(values.min(), values.max()) for values in run(window[None])] for window in windows]
    lowest, highest = np.min(limits, 0)[:, 0], np.max(limits, 0)[:, 1]
    return tuple((float(low), float(high)) for low, high in zip(lowest, highest, strict=True))


def _detector(network: nn.Sequential, ranges: Ranges) -> Graph:
    graph = Graph(ranges)
    logits = graph.network(network, graph.pixels, output=LOGIT)
    graph.add("Sigmoid", logits, output=PROBABILITY)
    return graph


@dataclass(frozen=True, eq=False)
class Value:
    """What a node of a graph gives, by its name; arithmetic adds nodes.

    Floats become float32, whole numbers int64; numbers of NumPy keep their type.
    """

    graph: Graph
    name: str

    def __add__(self, other: Operand) -> Value:
        return self.graph.add("Add", self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.graph.add("Sub", self, other)

    def __mul__(self, other: Operand) -> Value:
        return self.graph.add("Mul", self, other)

    def __truediv__(self, other: Operand) -> Value:
        return self.graph.add("Div", self, other)

    def __mod__(self, other: Operand) -> Value:
        return self.graph.add("Mod", self, other)

    def __gt__(self, other: Operand) -> Value:
        return self.graph.add("Greater", self, other)

    def __ge__(self, other: Operand) -> Value:
        return self.graph.add("GreaterOrEqual", self, other)

    def __and__(self, other: Value) -> Value:
        return self.graph.add("And", self, other)

    def __invert__(self) -> Value:
        return self.graph.add("Not", self)

    def cut(self, axis: int, first: int, last: int) -> Value:
        """What lies from `first` to before `last` along an axis."""
        return self.graph.add("Slice", self, [first], [last], [axis])

    def cast(self, kind: int) -> Value:
        """The same numbers in another of ONNX's types."""
        return self.graph.add("Cast", self, to=kind)


Operand = Value | npt.ArrayLike


class Graph:
    """Nodes and constants as they are added; with ranges, feature maps are rounded to 8 bits."""

    def __init__(self, ranges: Ranges = ()) -> None:
        self._ranges = iter(ranges)
        self._rounds = bool(ranges)
        self._nodes: list[tuple[str, list[str], str, Mapping[str, Setting]]] = []
        self._constants: dict[str, npt.NDArray[np.generic]] = {}
        self._steps: dict[Value, tuple[float, int]] = {}
        self.pixels = Value(self, PIXELS)
        self.maps: list[str] = []
        """Feature maps that have a range each."""

    def add(self, operation: str, *inputs: Operand, output: str = "", **settings: Setting) -> Value:
        """What an operation gives."""
        names = [value.name if isinstance(value, Value) else self.constant(value) for value in inputs]
        output = output or f"{operation.lower()}_{len(self._nodes)}"
        self._nodes.append((operation, names, output, settings))
        return Value(self, output)

    def constant(self, value: npt.ArrayLike) -> str:
        """The name of a constant."""
        name = f"constant_{len(self._constants)}"
        self._constants[name] = np.array(value, np.float32 if type(value) is float else None)
        return name

    def network(self, network: nn.Sequential, pixels: Value, output: str = "") -> Value:
        """Logits (tiles, rows, columns) of a network about uint8 pixels (tiles, height, width, 3)."""
        *body, head = fold_logits(network)
        values = self._convolution(self._modules(self._planes(pixels), body), head)
        if isinstance(network[-1], Subcells):
            values = self.add("DepthToSpace", values, blocksize=SUBCELLS, mode="CRD")
            values = self._without_outputs_beyond(values, pixels)
        return self.add("Squeeze", values, [1], output=output)

    def _planes(self, pixels: Value) -> Value:
        """Pixels as (tiles, 3, height, width)."""
        pixels = self.add("Transpose", pixels, perm=(0, 3, 1, 2))
        return self._dequantized(pixels, 1.0, 0) if self._rounds else pixels.cast(FLOAT)

    def _map(self, values: Value) -> Value:
        """A feature map, in 8 bits where ranges are known."""
        self.maps.append(values.name)
        if not self._rounds:
            return values
        low, high = next(self._ranges)
        low, high = min(low, 0.0), max(high, 1e-6)
        step = (high - low) / 255
        return self._quantized(values, step, round(-low / step))

    def _quantized(self, values: Value, step: float, zero: int) -> Value:
        return self._dequantized(
            self.add("QuantizeLinear", values, np.float32(step), np.uint8(zero)), step, zero
        )

    def _dequantized(self, rounded: Value, step: float, zero: int) -> Value:
        values = self.add("DequantizeLinear", rounded, np.float32(step), np.uint8(zero))
        self._steps[values] = step, zero
        return values

    def _modules(self, values: Value, layers: Sequence[nn.Module]) -> Value:
        """Folded layers, one after the other."""
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            if isinstance(layer, nn.Conv2d):
                values = self._convolution(values, layer)
                if not isinstance(following, nn.ReLU6):
                    values = self._map(values)
            elif isinstance(layer, nn.LeakyReLU):
                values = self._leaky(values, layer.negative_slope)
            elif isinstance(layer, nn.ReLU6):
                values = self._map(self.add("Clip", values, 0.0, 6.0))
            elif isinstance(layer, nn.ZeroPad2d):
                left, right, top, bottom = layer.padding
                values = self._cropped(values, (-top, -left), (bottom, right))
            elif isinstance(layer, ResidualBlock):
                inner = self._modules(values, [layer.first, nn.LeakyReLU(layer.slope), layer.second])
                beside = self._cropped(values, (LOST_PX, LOST_PX), (-LOST_PX, -LOST_PX))
                if isinstance(layer.shortcut, nn.Conv2d):
                    beside = self._modules(beside, [layer.shortcut])
                values = self._leaky(self._map(inner + beside), layer.slope)
            elif isinstance(layer, InvertedBlock):
                inner, lost = self._modules(values, layer.steps()), layer.lost_px
                if lost:
                    inner = self._map(inner + self._cropped(values, (lost, lost), (-lost, -lost)))
                values = inner
            else:
                raise TypeError(f"no ONNX for {type(layer).__name__}")
        return values

    def _convolution(self, values: Value, conv: nn.Module) -> Value:
        """In float32, or with weights of 8 bits, a step for each filter, where its input has such."""
        assert isinstance(conv, nn.Conv2d)
        weight = conv.weight.detach().double().cpu().numpy()
        bias = np.zeros(len(weight)) if conv.bias is None else conv.bias.detach().double().cpu().numpy()
        given: list[Operand] = [weight.astype(np.float32), bias.astype(np.float32)]
        if values in self._steps:
            step, _ = self._steps[values]
            largest = np.abs(weight).max((1, 2, 3))
            steps = np.where(largest > 0, largest, 1.0) / (SUMMED_STEPS if conv.groups == 1 else 127)
            rounded = np.rint(weight / steps[:, None, None, None]).astype(np.int8)
            whole = np.rint(bias / steps / step).clip(*INT32).astype(np.int32)
            pairs = (rounded, steps), (whole, steps * step)
            given = [self.add("DequantizeLinear", each, by.astype(np.float32), axis=0) for each, by in pairs]
        return self.add("Conv", values, *given, strides=conv.stride, group=conv.groups)

    def _leaky(self, values: Value, slope: float) -> Value:
        return self._map(self.add("LeakyRelu", values, alpha=float(slope)))

    def _cropped(self, values: Value, first: tuple[int, int], last: tuple[int, int]) -> Value:
        """Rows and columns from `first` to `last`."""
        cropped = self.add("Slice", values, first, last, (2, 3))
        return self._quantized(cropped, *self._steps[values]) if values in self._steps else cropped

    def _without_outputs_beyond(self, values: Value, pixels: Value) -> Value:
        """Without the outputs of a last cell that see beyond the image."""
        shape = self.add("Slice", self.add("Shape", pixels), [1], [3])
        ends = (shape - [RECEPTIVE_PX]) / [OUTPUT_STRIDE_PX] + [1]
        return self.add("Slice", values, [0, 0], ends, [2, 3])

    def written(
        self, card: ModelCard, outputs: Sequence[str], shape: Sequence[str] = ("tiles", "rows", "columns")
    ) -> bytes:
        """The model, whose outputs have a shape."""
        try:
            import onnx
            from onnx import helper, numpy_helper
        except ImportError as error:
            raise ModelError(
                "a graph of a network is written by the package onnx",
                next_step="pip install 'metaphase[torch]'",
            ) from error
        kinds, named = onnx.TensorProto, helper.make_tensor_value_info
        nodes = []
        for operation, inputs, output, settings in self._nodes:
            nodes.append(helper.make_node(operation, inputs, [output]))
            nodes[-1].attribute.extend(helper.make_attribute(*each) for each in settings.items())
        inner = ("tiles", "{} channels", "{} rows", "{} columns")
        sides = {each: inner if each in self.maps else shape for each in outputs}
        ends = [named(each, kinds.FLOAT, [side.format(each) for side in sides[each]]) for each in outputs]
        pixels = named(PIXELS, kinds.UINT8, ("tiles", "height", "width", 3))
        constants = [numpy_helper.from_array(value, name) for name, value in self._constants.items()]
        graph = helper.make_graph(nodes, "detector", [pixels], ends, constants)
        about = {"name": card.name, "mpp": f"{card.mpp:g}", "intended_use": card.intended_use}
        about |= {"weights_sha256": card.weights_sha256}
        model = onnx.ModelProto(producer_name="metaphase", graph=graph)
        helper.set_model_props(model, about)
        versions = onnx.ModelProto(ir_version=IR_VERSION, opset_import=[helper.make_opsetid("", OPSET)])
        # two messages in a row are one; in this order a graph keeps its checksum, and searches by it are kept
        return b"".join(each.SerializeToString() for each in (versions, model))
