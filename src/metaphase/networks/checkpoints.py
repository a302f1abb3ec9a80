"""Trained networks on disk: `NAME.safetensors` for the weights, `NAME.json` for the card. No pickles."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import nn

from metaphase.base.errors import ModelError, UsageError
from metaphase.base.files import write_bytes, write_text
from metaphase.base.foreign import parsing, read_bytes
from metaphase.networks.additions import CardAdditions, completed_card
from metaphase.networks.architectures import build_network, is_finite
from metaphase.networks.cards import ModelCard, StoredNetwork, named_model, stored_network


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
    stored = stored_network(path)
    return network_of(stored).to(device), stored.card


def network_of(stored: StoredNetwork) -> nn.Sequential:
    """The network of a file, in evaluation mode."""
    path, card = stored.path, stored.card
    with parsing(path, "not a safetensors file", next_step="fetch the model again", error=ModelError):
        tensors = load(stored.data)
    with torch.device("meta"):  # shapes only: a card may ask for far more than the file holds
        expected = build_network(card.spec).state_dict()
    if _shapes(expected) != _shapes(tensors):
        raise ModelError(
            f"the weights do not fit the {card.family} with gamma {card.gamma:g} that the card describes",
            path=path,
            next_step="keep each .json with the .safetensors it was written with",
        )
    network = build_network(card.spec)
    network.load_state_dict(tensors)
    if not is_finite(network.state_dict().values()):
        raise ModelError(
            "some weights are not finite", path=path, next_step="train again, or fetch the model again"
        )
    return network.eval()


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def package_model(
    model: str | Path,
    output: str | Path,
    *,
    name: str = "",
    additions: CardAdditions | None = None,
) -> ModelCard:
    """Write a trained model as one to give away: small, with a card that says all; returns that card.

    `name` defaults to the output's; weights have 16 bits.
    """
    source = named_model(model).with_suffix(".safetensors")
    target = Path(output).with_suffix(".safetensors")
    if target.resolve() == source.resolve():
        raise UsageError("it would overwrite the model it is made from", path=target, next_step="change -o")
    network, card = load_model(source)
    card = completed_card(card, name or target.stem, additions or CardAdditions())
    if not card.data or not all(data.terms for data in card.data):
        raise ModelError(
            "the card does not name its training data and their terms",
            path=source.with_suffix(".json"),
            next_step="give --card FILE with a table [[data]] of name and terms for each source",
        )
    for other in filter(None, (card.second, card.atypical)):
        for suffix in (".safetensors", ".json"):
            beside = source.parent / f"{other.model}{suffix}"
            write_bytes(target.parent / beside.name, read_bytes(beside, ModelError))
    return save_model(target, network, card, half=True)


def choose_device(device: str | None, local_rank: int = 0) -> torch.device:
    """The named device, or a GPU where there is one; `local_rank` says which, of several processes."""
    if device is None:
        return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UsageError(
            f"there is no device {device!r}", next_step="give cpu, cuda, cuda:N or mps"
        ) from error
    if chosen.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"the device {device!r} is not supported", next_step="give cpu, cuda, cuda:N or mps")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(
            "this machine has no device mps", next_step="use --device cpu; mps needs a Mac with Apple's chip"
        )
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"this machine has no device {device}",
            next_step=f"it has {torch.cuda.device_count()} GPUs that can be used; use --device cpu",
        )
    return torch.device("cuda", local_rank) if device == "cuda" else chosen
