"""A small case that the simulation tests share."""

from __future__ import annotations

import pytest

from metaphase.simulation.config import Case, SimulationConfig, cohort_cases
from metaphase.simulation.rendering import CaseRenderer


@pytest.fixture(scope="session")
def case() -> Case:
    """A case of about half a square millimetre, rich in mitoses."""
    config = SimulationConfig(
        cases=1,
        centres=1,
        width=2600,
        height=2200,
        seed=4,
        mitoses_per_mm2=(150, 150),
        lookalikes_per_mm2=300,
        workers=1,
    )
    return cohort_cases(config)[0]


@pytest.fixture(scope="session")
def renderer(case: Case) -> CaseRenderer:
    """Its renderer, with the libraries drawn once."""
    return CaseRenderer(case)
