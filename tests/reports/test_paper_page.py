"""The paper's page: its figures hold what they are given, its tables read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from metaphase.base.arrays import RGB
from metaphase.reports.pages import TextTable
from metaphase.reports.paper import (
    ChainStep,
    Part,
    chain_figure,
    grid_figure,
    latex,
    picture_figure,
    sheet_figure,
    verdict_figure,
    write_paper_page,
)

RNG = np.random.default_rng(0)


def picture(side: int = 8) -> RGB:
    return RNG.integers(0, 255, (side, side, 3), np.uint8)


def test_every_picture_is_shown_once() -> None:
    tiles = [picture() for _ in range(23)]
    (axes,) = sheet_figure({"pairs": tiles[:3], "fields": tiles[3:]}).axes
    shown = [image.get_array() for image in axes.images]
    assert all(np.array_equal(one, tile) for one, tile in zip(shown, tiles, strict=True))
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["pairs", "fields", "fields"]
    places = {tuple(image.get_extent()) for image in axes.images}
    assert len(places) == 23
    (left, right), (low, high) = axes.get_xlim(), sorted(axes.get_ylim())
    assert all(left <= box[0] < box[1] <= right and low <= box[3] < box[2] <= high for box in places)


def test_the_verdict_is_the_colour_of_the_frame() -> None:
    (axes,) = verdict_figure([picture() for _ in range(3)], [True, False, True], ["0.9", "0.8", "0.7"]).axes
    colours = [frame.get_edgecolor() for frame in axes.patches]
    assert colours[0] == colours[2] != colours[1]
    assert [text.get_text() for text in axes.texts] == ["0.9", "0.8", "0.7"]


def test_a_chain_has_an_arrow_before_each_step_but_the_first() -> None:
    steps = [ChainStep(f"step {number}", "1,234", "22,000") for number in range(6)]
    axes = chain_figure({"Training": steps, "Inference": steps[:2]}).axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("→") == 5 + 1
    assert len(axes.patches) == texts.count("1,234") == 8
    assert texts.count("Training") == 1


def test_a_page_of_parts_with_their_files(tmp_path: Path) -> None:
    table = TextTable("", ["alias", "cases"], [["a & b", "1,000"], ["c_d", "5 %"]])
    parts = [
        Part("table-1", "Table I", "What.", "18 cases.", table=table),
        Part("figure-1", "Figure 1", "Which.", "dark.", figure=grid_figure([[picture()]], ["H&E"])),
        Part("figure-2", "Figure 2", "None.", "tiles.", missing="Give <fields>."),
        Part("figure-3", "Figure 3", "One.", "one.", figure=picture_figure(picture(16))),
    ]
    page = write_paper_page(tmp_path, "mine", parts, ()).read_text()
    assert page.count("<img") == 2
    assert "Give &lt;fields&gt;." in page
    assert pd.read_csv(tmp_path / "tables" / "table-1.csv").to_numpy().tolist() == [
        list(row) for row in table.rows
    ]
    assert (tmp_path / "tables" / "table-1.tex").read_text() == latex(table, "Table I. What.", "table-1")
    assert r"a \& b & 1,000 \\" in (tmp_path / "tables" / "table-1.tex").read_text()
    made = {path.name for path in (tmp_path / "figures").iterdir()}
    assert made == {f"figure-{number}.{kind}" for number in (1, 3) for kind in ("png", "pdf")}
