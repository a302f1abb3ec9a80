"""Trained networks on disk: `NAME.safetensors` for the weights, `NAME.json` for the card. No pickles."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from metaphase.artifacts import write_bytes, write_text
from metaphase.errors import ModelError
from metaphase.networks.architectures import build_network
from metaphase.networks.cards import ModelCard, parse_card

Tensors = dict[str, torch.Tensor]


def save_model(path: str | Path, network: nn.Module, card: ModelCard, *, half: bool = False) -> ModelCard:
    """Write weights and card; returns the card as written, with the weights' checksum.

    `half` stores 16-bit numbers, for models that travel with the package; they are read back as 32-bit.
    """
    path = Path(path).with_suffix(".safetensors")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    if half:
        tensors = {name: t.half() if t.is_floating_point() else t for name, t in tensors.items()}
    data = save(tensors)
    card = card.model_copy(update={"weights_sha256": hashlib.sha256(data).hexdigest()})
    write_bytes(path, data)
    write_text(path.with_suffix(".json"), card.model_dump_json(indent=2) + "\n")
    return card


def load_model(path: str | Path, device: str | torch.device = "cpu") -> tuple[nn.Sequential, ModelCard]:
    """The network in evaluation mode, and its card. `path` may name either file."""
    path = Path(path).with_suffix(".safetensors")
    card = parse_card(path.with_suffix(".json"))
    tensors = read_tensors(path, card.weights_sha256)
    network = build_network(card.spec)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelError(
            f"the weights do not fit the {card.family} with gamma {card.gamma:g} that the card describes",
            path=path,
            next_step="keep each .json with the .safetensors it was written with",
        ) from error
    return network.eval().to(device), card


def read_tensors(path: Path, expected_sha256: str = "") -> Tensors:
    """Tensors of a safetensors file; a malformed, missing or exchanged file is a `ModelError`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"cannot be read ({error.strerror})", path=path, next_step="check the path"
        ) from error
    if expected_sha256 and hashlib.sha256(data).hexdigest() != expected_sha256:
        raise ModelError(
            "the weights are not those that the card describes (checksum differs)",
            path=path,
            next_step="fetch weights and card together again",
        )
    try:
        return load(data)
    except (SafetensorError, ValueError) as error:
        raise ModelError(
            f"not a safetensors file ({error})", path=path, next_step="fetch the model again"
        ) from error
