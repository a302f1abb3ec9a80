"""The tile journal keeps what finished and drops what a kill cut short."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaphase.analysis.journal import TileJournal
from metaphase.base.arrays import Box
from metaphase.base.errors import OutputError
from metaphase.slides.contract import KINDS, Flaw

RESULTS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def _fill(path: Path, counts: list[int]) -> list[np.ndarray]:
    results = [np.random.default_rng(i).random((count, 3)) for i, count in enumerate(counts)]
    with TileJournal(path, "job") as journal:
        for tile, points in enumerate(results):
            journal.add(tile, points)
    return results


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(counts=RESULTS, cut=st.integers(0, 400))
def test_a_cut_file_keeps_its_whole_records(tmp_path: Path, counts: list[int], cut: int) -> None:
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    results = _fill(path, counts)
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    with TileJournal(path, "job") as journal:
        kept = len(journal.finished)
        assert list(journal.finished) == list(range(kept))
        for tile, points in journal.finished.items():
            np.testing.assert_array_equal(points, results[tile])
        assert (cut == 0 and kept == len(counts)) or (cut > 0 and kept < len(counts))
        for tile in range(kept, len(counts)):
            journal.add(tile, results[tile])
    assert path.read_bytes() == whole


def test_a_flipped_bit_ends_the_sound_part(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _fill(path, [2, 2, 2])
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.write_bytes(data)
    with TileJournal(path, "job") as journal:
        assert list(journal.finished) == [0, 1]


def test_another_job_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _fill(path, [2, 2])
    with TileJournal(path, "other model") as journal:
        assert journal.finished == {}
        assert journal.peaks().shape == (0, 3)


def test_points_come_in_the_order_of_tiles(tmp_path: Path) -> None:
    with TileJournal(tmp_path / "journal", "job") as journal:
        journal.add(7, np.full((1, 3), 7.0))
        journal.add(2, np.full((2, 3), 2.0))
        assert journal.peaks()[:, 0].tolist() == [2, 2, 7]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="file"):
        TileJournal(tmp_path / "file" / "journal", "job")


@pytest.mark.parametrize("zeros", [12, 13, 400])
def test_zeros_at_the_end_are_no_record(tmp_path: Path, zeros: int) -> None:
    """As a power cut may leave them: they would say that tile 0 holds nothing."""
    path = tmp_path / "tiles.journal"
    points = np.array([[1.0, 2.0, 0.9]])
    with TileJournal(path, "job") as journal:
        journal.add(0, points)
    path.write_bytes(path.read_bytes() + bytes(zeros))
    with TileJournal(path, "job") as journal:
        np.testing.assert_array_equal(journal.peaks(), points)


@pytest.mark.parametrize(
    "text", ['{"tile": 1, "peaks": [1]}', '{"flaws": 3}', "[]", "no JSON", "[" * 100_000]
)
def test_a_line_that_somebody_else_wrote_ends_the_sound_part(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.journal"
    with TileJournal(path, "job") as journal:
        journal.add(0, np.ones((2, 3)))
    line = text.encode() + b"\n"
    path.write_bytes(path.read_bytes() + b"%08x " % zlib.crc32(line) + line)
    with TileJournal(path, "job") as journal:
        assert set(journal.finished) == {0}


@pytest.mark.parametrize("fresh", [True, False])
def test_a_pipe_in_its_place_is_refused_and_not_waited_for(tmp_path: Path, fresh: bool) -> None:
    os.mkfifo(tmp_path / "journal")
    with pytest.raises(OutputError, match="not a file"):
        TileJournal(tmp_path / "journal", "job", fresh=fresh)


def test_flaws_outlive_a_kill_beside_the_tiles(tmp_path: Path) -> None:
    flaws = [Flaw(kind, Box(2**31 + number, 7, 256, 3)) for number, kind in enumerate(KINDS)]
    with TileJournal(tmp_path / "journal", "job") as journal:
        journal.note(flaws[:1])
        journal.add(0, np.ones((2, 3)))
        journal.note(flaws[1:])
        journal.note([])
        assert journal.flaws == flaws
    with TileJournal(tmp_path / "journal", "job") as journal:
        assert journal.flaws == flaws
        assert list(journal.finished) == [0]
        assert len(journal.peaks()) == 2


def test_what_a_link_in_its_place_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "tiles.journal").symlink_to(tmp_path / "theirs")
    with pytest.raises(OutputError, match=r"tiles\.journal: is a link"):
        TileJournal(tmp_path / "tiles.journal", "job")
    assert (tmp_path / "theirs").read_text() == "theirs"
