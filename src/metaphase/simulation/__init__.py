"""Paired H&E and PHH3 slides with exact truth, from many virtual laboratories."""

from metaphase.simulation.cohort import case_truth, simulate_cohort, tissue_truth
from metaphase.simulation.config import (
    LABORATORIES,
    Case,
    Displacement,
    SimulationConfig,
    VirtualLaboratory,
    cohort_cases,
)
from metaphase.simulation.rendering import CaseRenderer, object_patches, render_region

__all__ = [
    "LABORATORIES",
    "Case",
    "CaseRenderer",
    "Displacement",
    "SimulationConfig",
    "VirtualLaboratory",
    "case_truth",
    "cohort_cases",
    "object_patches",
    "render_region",
    "simulate_cohort",
    "tissue_truth",
]
