"""Tissue of a simulated slide, where the simulator knows it exactly."""

from __future__ import annotations

import numpy as np
import pytest

from metaphase.images.tissue.finding import find_tissue
from metaphase.simulation.cohort import tissue_truth
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.arrays import ArraySlide


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_simulated_slides_of_two_laboratories(index: int) -> None:
    case = cohort_cases(SimulationConfig(cases=2, centres=2, width=2816, height=2304, seed=3))[index]
    slide = ArraySlide(render_region(case, "he", 0, 0, case.width, case.height), 0.25)
    tissue = find_tissue(slide)
    truth = tissue_truth(case, tissue.mpp)
    assert np.count_nonzero(tissue.mask & truth) / np.count_nonzero(tissue.mask | truth) >= 0.95
