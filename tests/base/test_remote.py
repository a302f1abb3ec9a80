"""Slides, manifests and models by URL: the same as from a disk, little of it fetched, failures survived."""

from __future__ import annotations

import copy
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from metaphase.base import remote
from metaphase.base.errors import MetaphaseError, OutputError, SlideError, UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import is_file, read_bytes
from metaphase.base.provenance import file_fingerprint
from metaphase.base.remote import RemoteFile, RemotePath, location
from metaphase.base.tables import TableError, read_manifest
from metaphase.images.tissue.finding import load_tissue
from metaphase.slides.opening import SlideSource, open_slide
from metaphase.slides.writer import PyramidFormat, write_pyramid
from tests.base.servers import RangeServer, serving

pytest.importorskip("obstore", reason="the extra remote is not installed")
SIDE_PX = 2048


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    noise = np.random.default_rng(1).integers(0, 255, (SIDE_PX, SIDE_PX, 3), np.uint8)
    tiles = (noise[y : y + 256, x : x + 256] for y in range(0, SIDE_PX, 256) for x in range(0, SIDE_PX, 256))
    (folder / "bucket").mkdir()
    write_pyramid(
        folder / "bucket" / "a slide.tif", tiles, SIDE_PX, SIDE_PX, PyramidFormat(mpp=0.25, tile_px=256)
    )
    (folder / "cohort.csv").write_text("case,he\nnear,bucket/a slide.tif\nfar,s3://bucket/a slide.tif\n")
    (folder / "forbidden.tif").write_bytes(b"II*\0")
    (folder / "image.png").write_bytes(b"\x89PNG")
    return folder


@pytest.fixture
def s3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    with serving(folder) as server:
        for name, value in {
            "ENDPOINT_URL": server.url,
            "ALLOW_HTTP": "true",
            "ACCESS_KEY_ID": "nobody",
            "SECRET_ACCESS_KEY": "nothing",
            "REGION": "here",
        }.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        remote._store.cache_clear()
        yield server
        remote._store.cache_clear()


def test_a_slide_of_s3_is_the_one_on_the_disk_and_little_of_it_is_fetched(
    s3: RangeServer, folder: Path
) -> None:
    path = folder / "bucket" / "a slide.tif"
    with open_slide("s3://bucket/a slide.tif") as far, open_slide(path) as near:
        assert (far.levels, far.mpp, far.info.backend) == (near.levels, near.mpp, near.info.backend)
        part = (300, 400, 300, 300)
        assert (far.read(*part) == near.read(*part)).all()
        assert s3.bytes_sent < 0.3 * path.stat().st_size
        again = s3.bytes_sent
        far.read(*part)
        assert s3.bytes_sent == again  # what overlaps is fetched once
    assert read_bytes("s3://bucket/a slide.tif") == path.read_bytes()


@pytest.mark.parametrize("every", [2, 10])
def test_a_server_that_fails_at_times(folder: Path, every: int) -> None:
    with serving(folder, fail_every=every) as server:
        url = f"{server.url}/bucket/a%20slide.tif"
        with open_slide(url) as far, open_slide(folder / "bucket" / "a slide.tif") as near:
            for x in range(0, SIDE_PX, 128):
                assert (far.read(x, x, 100, 100) == near.read(x, x, 100, 100)).all()
        assert server.failed >= (3 if every == 2 else 1)


def test_one_that_always_fails_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "RETRIES", 1)
    with (
        serving(folder, fail_every=1) as server,
        pytest.raises(SlideError, match="the server did not deliver it"),
    ):
        open_slide(f"{server.url}/bucket/a%20slide.tif")


def test_a_manifest_names_slides_by_url_or_beside_itself(s3: RangeServer) -> None:
    table = read_manifest(f"{s3.url}/cohort.csv").set_index("case")
    assert str(location(table.loc["near", "he"])) == f"{s3.url}/bucket/a slide.tif"
    assert str(location(table.loc["far", "he"])) == "s3://bucket/a slide.tif"
    for name in ("near", "far"):
        with open_slide(Path(table.loc[name, "he"])) as slide:
            assert slide.width == SIDE_PX


def test_a_url_stays_one_whatever_is_made_of_it() -> None:
    path = location(Path("s3://bucket/folder/a.svs"))
    for made in (path, location(path), copy.copy(path), path.absolute(), path.resolve()):
        assert isinstance(made, RemotePath)
        assert str(made) == f"{made}" == os.fspath(made) == "s3://bucket/folder/a.svs"
    assert str(path.with_suffix(".json")) == "s3://bucket/folder/a.json"
    assert str(path.parent / "b.csv") == "s3://bucket/folder/b.csv"
    assert isinstance(SlideSource(Path("https://host/a.tif")).path, RemotePath)
    assert not isinstance(location("s3/a.tif"), RemotePath)
    moved = copy.copy(SlideError("is gone", path=path))
    assert (str(moved), moved.path) == ("s3://bucket/folder/a.svs: is gone.", path)


def test_results_know_a_slide_that_changed(s3: RangeServer, folder: Path) -> None:
    changing, url = folder / "changing.tif", f"{s3.url}/changing.tif"
    changing.write_bytes(bytes(1000))
    first = file_fingerprint(url)
    with RemoteFile(RemotePath(url)) as file:
        assert file.at(10, 5) == bytes(5)
        changing.write_bytes(bytes(999) + b"1")
        with pytest.raises(MetaphaseError, match="changed on the server"):
            file.at(20, 5)
    remote._status.cache_clear()
    assert file_fingerprint(url) != first


def test_what_cannot_be_read_by_url_is_told(s3: RangeServer, folder: Path, tmp_path: Path) -> None:
    def refused(error: type[MetaphaseError], what: str, url: str) -> None:
        with pytest.raises(error, match=what):
            open_slide(url)

    refused(SlideError, "no such file", f"{s3.url}/absent.tif")
    refused(SlideError, "no permission", f"{s3.url}/forbidden.tif")
    refused(SlideError, "is not a TIFF", f"{s3.url}/image.png")
    refused(UsageError, "query or a password", f"{s3.url}/image.png?key=1")
    refused(UsageError, "names no file", "s3://bucket")
    with serving(folder, ranges=False) as plain:
        refused(SlideError, "serves whole files only", f"{plain.url}/bucket/a%20slide.tif")
    assert not is_file(f"{s3.url}/absent.tif")
    assert SlideSource(Path(f"{s3.url}/forbidden.tif")).effective_mpp is None  # told in its turn
    with pytest.raises(TableError, match="no such file"):
        read_manifest("s3://bucket/absent.csv")
    with pytest.raises(MetaphaseError, match=r"s3://bucket/mask\.png: is read from a disk only"):
        load_tissue(Path("s3://bucket/mask.png"))
    with pytest.raises(OutputError, match="not written to URLs"):
        write_text("s3://bucket/out.txt", "")


def test_reading_on(s3: RangeServer, folder: Path) -> None:
    content = (folder / "bucket" / "a slide.tif").read_bytes()
    with RemoteFile(RemotePath("s3://bucket/a slide.tif")) as file:
        assert hashlib.sha256(file.read()).digest() == hashlib.sha256(content).digest()
        file.seek(remote.BLOCK_BYTES - 10)
        assert file.read(20) == content[remote.BLOCK_BYTES - 10 : remote.BLOCK_BYTES + 10]
        file.seek(-5, 2)
        assert file.read(10) == content[-5:]


def test_an_answer_that_takes_long_is_waited_for_with_a_word(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote, "WORD_S", 0.01)
    with serving(folder) as server:
        server.lock.acquire()  # which its answers need
        waiting = threading.Thread(target=lambda: is_file(f"{server.url}/cohort.csv"))
        waiting.start()
        until = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.01)
        server.lock.release()
        waiting.join()
    assert caplog.messages == [
        f"{server.url}/cohort.csv: no answer for 0.01 s; it waits at most 149.99 s more"
    ]
