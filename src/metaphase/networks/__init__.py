"""The architectures of the paper with their numbers, and how trained networks are stored."""

from metaphase.networks.architectures import (
    DETECTORS,
    OUTPUT_STRIDE_PX,
    PATCH_PX,
    RECEPTIVE_PX,
    NetworkSpec,
    build_network,
    fold_normalisation,
    parameter_count,
    probability,
)
from metaphase.networks.bundled import bundled_model, named_model
from metaphase.networks.cards import ModelCard, TrainingData, TunedThreshold, current_versions
from metaphase.networks.checkpoints import load_model, read_tensors, save_model

__all__ = [
    "DETECTORS",
    "OUTPUT_STRIDE_PX",
    "PATCH_PX",
    "RECEPTIVE_PX",
    "ModelCard",
    "NetworkSpec",
    "TrainingData",
    "TunedThreshold",
    "build_network",
    "bundled_model",
    "current_versions",
    "fold_normalisation",
    "load_model",
    "named_model",
    "parameter_count",
    "probability",
    "read_tensors",
    "save_model",
]
