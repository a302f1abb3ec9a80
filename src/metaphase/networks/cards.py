"""The model card: what a network is, and all that a user needs to know of it; the bundled models."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass as model_dataclass

from metaphase.base.errors import ModelError, ResultWarning, ResultWarnings, UsageError, several
from metaphase.base.foreign import check_plain, parsing, plugin_names, read_bytes, read_json
from metaphase.base.remote import RemotePath, location
from metaphase.base.settings import settings
from metaphase.detections.points import OperatingPoints, refuse_two_searches
from metaphase.version import __version__

# ---- what logits mean ----

Numbers = TypeVar("Numbers", bound=Any)
"""Of an array, or of a tensor."""


@model_dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Calibration:
    """Logits, smoothed, times a scale and shifted: then a probability means how often it is right."""

    scale: Annotated[float, Field(gt=0, le=100)] = 1.0
    shift: Annotated[float, Field(ge=-100, le=100)] = 0.0

    def __call__(self, logits: Numbers) -> Numbers:
        """Calibrated logits."""
        if self == Calibration():
            return logits
        calibrated: Numbers = logits * self.scale + self.shift
        return calibrated


# ---- which network ----

PATCH_PX = 100
"""Side of the patches that the networks classify."""
RECEPTIVE_PX = 97
"""Side of what one output of a detector sees: the strided layers leave the last 3 pixels of a patch out."""
OUTPUT_STRIDE_PX = 4
"""Output (i, j) of a detector sees pixels from (4 i, 4 j) on, and means the point `PATCH_PX / 2` further."""


def outputs_along(side_px: int) -> int:
    """Outputs that a detector gives along a side."""
    return (side_px - RECEPTIVE_PX) // OUTPUT_STRIDE_PX + 1


Normalisation = Literal["none", "batch"]
Family = str
Width = Annotated[float, Field(ge=1 / 32, le=4)]
"""Of a network, relative to the full one; the paper has 0.6 to 1."""
DETECTORS: tuple[Family, ...] = ("detector", "residual", "lite")
"""Our families that search slides: the same patches, output stride and receptive field."""
PLAIN, PATCHES = "plain", "patches"
"""Families of a network that was given as it is, which nothing builds again: a detector, a classifier."""


def families() -> tuple[Family, ...]:
    """All that are known: ours, and those that other packages add, which search slides too."""
    return (*DETECTORS, "classifier", PLAIN, PATCHES, *plugin_names("metaphase.networks"))


@settings
class NetworkSpec:
    """All that is needed to build a network again."""

    family: Family = "detector"
    """`detector`: the paper's all-convolutional CNN3, CNN4 and CNN5; `residual`: a detector of residual
    blocks in their place; `lite`: the beginning of EfficientNet-Lite0, which may start from ImageNet's
    weights; `classifier`: CNN1 and CNN2; others are built by packages that name them as entry points."""
    gamma: Width = 1.0
    """Width factor: each layer has floor(gamma x filters) of the full width."""
    normalisation: Normalisation = "none"
    """`none` as in the paper; `batch` adds batch normalisation, which `fold_normalisation` takes out."""

    def __post_init__(self) -> None:
        unnormalised = self.family in DETECTORS[1:] and self.normalisation == "none"
        if self.family not in families() or unnormalised:
            raise UsageError(
                f"there is no network {self.family!r} with normalisation {self.normalisation!r}",
                next_step=f"families: {', '.join(families())}, or install the package that defines it; "
                f"normalisations: none, batch ({', '.join(DETECTORS[1:])} have batch only)",
            )


@dataclass(frozen=True)
class NetworkIdentity:
    """What of a model decides its answers."""

    weights_sha256: str
    network: NetworkSpec
    mpp: float


@dataclass(frozen=True)
class SecondIdentity:
    """What of a re-check decides its answers."""

    weights_sha256: str
    floor: float


@dataclass(frozen=True)
class AnswerIdentity:
    """What of a final answer by views decides."""

    answered_from: float


Identity = NetworkIdentity | SecondIdentity | AnswerIdentity | Calibration


# ---- the model card ----

MAX_CARD_BYTES = 4_000_000
Density = Annotated[float, Field(gt=0, lt=10, allow_inf_nan=False)]


class Strict(BaseModel):
    """What is written as JSON or TOML; anything unknown in it is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TrainingData(Strict):
    """One source of training images and the terms it came under."""

    name: str
    terms: str
    positives: int | None = None
    negatives: int | None = None


class AtypicalModel(Strict):
    """Another network, which is asked whether a mitosis is atypical."""

    model: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")
    """Name of its files beside this card, without suffix."""
    weights_sha256: str


class SecondModel(AtypicalModel):
    """Another network, which is asked about the positions that this one points to."""

    floor: float = Field(gt=0, lt=1)
    """Positions from this probability on are re-checked; then the mean of both logits decides."""
    answered_from: float | None = Field(None, gt=0, lt=1)
    """Where the smoothed mean of both, not calibrated, reaches this, the mean logit of turned and mirrored
    views is the answer. Without it, in older models, the smoothed mean is."""


class EightBits(Strict):
    """What a network needs to search in 8 bits on a CPU (`networks.exporting`)."""

    ranges: tuple[tuple[float, float], ...]
    """Lowest and highest value of each feature map on tissue, in the order of the graph."""
    error: float = Field(gt=0, le=20)
    """Logits, smoothed, by which it may say less than in float32 where something is found."""
    graph_sha256: str = ""
    """Of the file beside the .onnx one, where these weights were exported."""


class KnownMetrics(BaseModel):
    """Entries of a card's metrics that are read again; whatever else stands there is for people."""

    validation: dict[str, float | None] = {}
    chosen: str = ""
    learnt: dict[str, int] = Field({}, alias="learnt from")
    """Mitoses and patients of the slides that it was trained on last."""
    not_labelled: tuple[str, ...] = Field((), alias="not labelled")
    """What of its PHH3 slides the bundled networks alone decided."""


class ModelCard(Strict):
    """Written beside the weights as JSON; read back strictly."""

    format: Literal[1] = 1
    name: str
    family: Family
    gamma: float = Field(ge=1 / 32, le=4)
    normalisation: Normalisation = "none"
    mpp: float = Field(gt=0, lt=20)
    patch_px: int = Field(gt=0, le=4096)
    classes: tuple[str, str]
    thresholds: OperatingPoints = {}
    """Operating points: `patches` from training, the others from `metaphase run` or `evaluate tune`."""
    second: SecondModel | None = None
    calibration: Calibration | None = None
    atypical: AtypicalModel | None = None
    eight_bits: EightBits | None = None
    optical_density: tuple[Density, Density, Density] | None = None
    """Mean optical density (base 10) of stained training pixels in red, green and blue; tells how far a slide
    is from what the network learned on."""
    recipe: dict[str, Any] = {}
    data: tuple[TrainingData, ...] = ()
    metrics: dict[str, Any] = {}
    intended_use: str = "Research only; not for diagnosis."
    known_failures: tuple[str, ...] = ()
    seed: int | None = None
    versions: dict[str, str] = {}
    weights_sha256: str = ""
    graph_sha256: str = ""
    """Of the .onnx file, where these weights were exported as one."""

    @model_validator(mode="after")
    def _one_search(self) -> Self:
        refuse_two_searches(self.thresholds)
        try:
            _ = self.known_metrics
        except ValidationError as error:
            raise ValueError(f"metrics.{first_problem(error)}") from error
        if self.family not in families():
            raise ValueError(
                f"the network {self.family!r} belongs to no installed package: install the one that "
                f"made the model (known: {', '.join(families())})"
            )
        return self

    @property
    def known_metrics(self) -> KnownMetrics:
        """Those of its metrics that are read again."""
        return KnownMetrics.model_validate(self.metrics)

    @property
    def spec(self) -> NetworkSpec:
        """What to build for these weights."""
        return NetworkSpec(self.family, self.gamma, self.normalisation)

    @property
    def identity(self) -> NetworkIdentity:
        """What decides the network's answers; all else may change without a new search."""
        return NetworkIdentity(self.weights_sha256, self.spec, self.mpp)

    @property
    def identities(self) -> tuple[Identity, ...]:
        """What decides the model's answers: network, the one that re-checks, calibration."""
        identities: list[Identity] = [self.identity]
        if self.second is not None:
            identities.append(SecondIdentity(self.second.weights_sha256, self.second.floor))
            if self.second.answered_from is not None:
                identities.append(AnswerIdentity(self.second.answered_from))
        return tuple(identities) if self.calibration is None else (*identities, self.calibration)


def vouched_bytes(path: Path, stated_sha256: str, what: str) -> bytes:
    """The bytes of weights or of a graph; others than the card vouches for are refused: results name them."""
    data = read_bytes(path, ModelError)
    checksum = hashlib.sha256(data).hexdigest()
    if checksum != stated_sha256:
        why = "checksum differs" if stated_sha256 else f"it states no checksum; theirs is {checksum}"
        raise ModelError(
            f"the {what} not what the card describes ({why})",
            path=path,
            next_step="fetch the model and its card together again, or write the model once more",
        )
    return data


OBSERVED = "running_mean", "running_var", "num_batches_tracked"
"""Of normalisation: what is no parameter."""


@dataclass(frozen=True)
class StoredNetwork:
    """A network on disk, which is built where it is computed: weights that its card vouches for."""

    path: Path
    card: ModelCard
    data: bytes = field(repr=False)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        again = "fetch the model again"
        with parsing(self.path, "not a safetensors file", next_step=again, error=ModelError):
            from safetensors.numpy import load  # which graphs do not need

            tensors = load(self.data)
        return sum(tensor.size for name, tensor in tensors.items() if not name.endswith(OBSERVED))


def stored_network(path: str | Path) -> StoredNetwork:
    """Weights and their card; `path` may name either file."""
    path = Path(path).with_suffix(".safetensors")
    card = parse_card(path.with_suffix(".json"))
    return StoredNetwork(path, card, vouched_bytes(path, card.weights_sha256, "weights are"))


GOOD_F1, ENOUGH_PATIENTS, ENOUGH_MITOSES = 0.5, 3, 100
"""Below one of these a model says of itself that it is not to be trusted much."""
LEARNT_FROM, NOT_LABELLED = "learnt from", "not labelled"
"""Entries of a card's metrics, as `KnownMetrics` has them."""


def warnings_about(card: ModelCard) -> ResultWarnings:
    """What a model's card says against it: for the end of its training, and for every report by it."""
    warnings = []

    def warn(code: str, text: str, next_step: str) -> None:
        warnings.append(ResultWarning(code, text, next_step))

    point = card.thresholds.get("mitoses")
    if point is not None and point.metric == "F1" and point.value is not None and point.value < GOOD_F1:
        text = f"the model is poor: F1 {point.value:.2f} on the slides that chose its threshold"
        warn("poor-model", text, "label more slides and train again before counting with it")
    if point is not None and 0 < len(point.patients) < ENOUGH_PATIENTS:
        text = f"the slides of only {several(len(point.patients), 'patient')} chose the model's threshold"
        warn("few-patients", text, "calibrate it on other slides (metaphase calibrate), or add pairs")
    learnt, skipped = card.known_metrics.learnt, card.known_metrics.not_labelled
    positives = [data.positives for data in card.data if data.positives is not None]
    mitoses = learnt.get("mitoses", sum(positives)) if learnt or positives else None
    if mitoses is not None and mitoses < ENOUGH_MITOSES:
        text = f"the model learnt from only {mitoses} mitoses"
        warn("few-labels", text, "add slides with mitoses and train again")
    if skipped:
        text = f"nobody labelled {' and '.join(skipped)} of its PHH3 slides: bundled networks did"
        warn("rounds-skipped", text, "answer the rounds (round1 and round2 in lab.toml) and train again")
    return tuple(warnings)


def current_versions() -> dict[str, str]:
    """What made a model or a result: this package, what computes networks, and Python."""
    runtime = "torch" if find_spec("torch") else "onnxruntime"
    return {"metaphase": __version__, runtime: version(runtime), "python": platform.python_version()}


def parse_card(path: Path) -> ModelCard:
    """Read a card; anything but a well-formed one is a `ModelError`."""
    again = "fetch the model again"
    beside = "keep the .json beside the .safetensors"
    if check_plain(path, ModelError, if_missing=beside, remote=True) > MAX_CARD_BYTES:
        raise ModelError("too large for a model card", path=path, next_step="check that it is the right file")
    values = read_json(path, "not a model card", next_step=again, error=ModelError)
    with parsing(path, "not a model card", next_step=again, error=ModelError):
        try:
            card = ModelCard.model_validate(values)
            card.model_dump_json()  # whatever a card says can be written
        except ValidationError as error:
            raise ValueError(first_problem(error)) from error
    return card


def first_problem(error: ValidationError) -> str:
    """The field of the first mistake, and what is wrong with it."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


# ---- the models that come with the package ----

BUNDLED = "breast"
"""The default detector; `simulated` is the other one, which never saw a real image."""
PAPER_MODEL = "paper"
"""The detector of the paper's kind, by its method from real fields: what the paper's way takes by default."""

PHH3_NETWORKS = {"cnn1": "phh3-cnn1", "cnn2": "phh3-cnn2"}
"""The bundled CNN1 and CNN2: they suggest what people label, and a laboratory's own start from them."""


def card_of(model: str | Path) -> ModelCard:
    """The card of a model, which a path or the plain name of a bundled one means."""
    return parse_card(named_model(model).with_suffix(".json"))


def bundled_model(name: str = BUNDLED) -> Path:
    """Weights of a detector of the package; its card says what it may be used for.

    Where torch is not installed, the same detector as a graph for ONNX Runtime, which the wheel holds.
    """
    folder = Path(str(files("metaphase") / "models"))
    graph = folder / "onnx" / f"{name}.onnx"
    return graph if graph.is_file() and find_spec("torch") is None else folder / f"{name}.safetensors"


def bundled_graph(card: ModelCard) -> Path | None:
    """The graph of the package for a card's very network, where there is one."""
    graph = Path(str(files("metaphase") / "models" / "onnx" / f"{card.name}.onnx"))
    if not graph.is_file():
        return None
    own = parse_card(graph.with_suffix(".json"))
    same = own.identity == card.identity and (own.eight_bits is None) == (card.eight_bits is None)
    return graph if same else None


def named_model(model: str | Path) -> Path:
    """The file that is meant by a path, or by the plain name of a bundled model."""
    path = location(model)
    if isinstance(path, RemotePath):
        return path
    is_folder = not path.name or path.is_dir()
    if not is_folder and (path.exists() or path.with_suffix(".safetensors").exists()):
        return path
    bundled = bundled_model(path.name)
    if path.name == str(model) and bundled.is_file():  # even beside a folder of that name
        return bundled
    if is_folder:
        raise ModelError("is a folder, not a model", path=path, next_step="name the .safetensors file")
    names = ", ".join(sorted(each.stem for each in bundled.parent.glob(f"*{bundled.suffix}")))
    raise ModelError(
        "no such model", path=path, next_step=f"give a .safetensors file, or a bundled model ({names})"
    )
