"""Paired H&E and PHH3 slides with exact truth, from many virtual laboratories."""

from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import Case, SimulationConfig, cohort_cases
from metaphase.simulation.deformation import Displacement
from metaphase.simulation.laboratories import LABORATORIES, Laboratory
from metaphase.simulation.rendering import CaseRenderer, object_patches, render_region
from metaphase.simulation.truth import case_truth, tissue_truth

__all__ = [
    "LABORATORIES",
    "Case",
    "CaseRenderer",
    "Displacement",
    "Laboratory",
    "SimulationConfig",
    "case_truth",
    "cohort_cases",
    "object_patches",
    "render_region",
    "simulate_cohort",
    "tissue_truth",
]
