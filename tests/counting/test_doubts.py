"""What is said where the tissue does not allow a count of 2 mm2."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from metaphase.counting.clinical import count_slide

MPP = 0.25


@pytest.mark.parametrize(("length_mm", "code"), [(3.98, "little-tissue"), (4.02, "only-area")])
def test_an_area_alone_never_counts_without_a_word(length_mm: float, code: str) -> None:
    """A core of 0.5 mm: of a little less than 2 mm2 all is counted, of a little more what a circle holds."""
    x = np.linspace(0, length_mm * 1000 / MPP, 20)
    table = pd.DataFrame({"x": x, "y": 1000.0, "probability": 1.0})
    count = count_slide(table, mpp=MPP, area_mm2=0.5 * length_mm)
    assert code in [one.code for one in count.warnings]
    assert (count.count == 20) == (code == "little-tissue")
    assert "only-area" not in [one.code for one in count_slide(table, mpp=MPP).warnings]
