"""The same folder on Linux, Windows and macOS: acted out here, since the tests run on Linux."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.analysis import index
from metaphase.analysis.cohort import cohort_slides, named_slides
from metaphase.analysis.record import found_from
from metaphase.analysis.tissue import outline_slides
from metaphase.base.errors import MetaphaseError, OutputError, UsageError
from metaphase.base.files import stated_path, stored_path, write_text
from metaphase.base.foreign import LONGEST_NAME, files_in, folder_key, folder_name
from metaphase.base.parallel import most_processes
from metaphase.base.provenance import FileContent
from metaphase.base.settings import read_toml
from metaphase.base.sharing import batch, leases
from metaphase.base.tables import read_manifest, rows_by_name, rows_of_slide, write_manifest
from metaphase.cli import view as pages
from metaphase.labels.observers.project import Settings, load_project, write_project
from metaphase.slides import tiles
from metaphase.slides.opening import companions, open_slide
from metaphase.slides.tiff import TiffSlide
from metaphase.web import serving
from tests.analysis.conftest import he_slide, model
from tests.cli import running
from tests.desks import sit_down

__all__ = ["he_slide", "model"]

# ---- a desk with Windows ----


def _at_a_desk(scenario: Callable[..., None], *arguments: object) -> None:
    """Act a scenario out in a process of its own, which has all modules imported."""
    process = running._forking().Process(target=scenario, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def _command(*words: str | Path) -> int:
    from metaphase.cli.main import main

    sys.argv = ["metaphase", *map(str, words)]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _says(capture: Path, *words: str | Path) -> tuple[int, str]:
    """The exit code of a command, and what it says on stderr."""
    with capture.open("w", encoding="utf-8") as file, contextlib.redirect_stderr(file):
        code = _command(*words)
    return code, capture.read_text(encoding="utf-8")


def _detects(folder: Path, slide: Path, model: Path) -> None:
    import metaphase.web.viewing  # noqa: F401 -- before it is hidden what libraries want on Linux

    sit_down()
    slides, out = folder / "slides", folder / "out"
    slides.mkdir()
    names = ("nul.tif", "...png", "counts.csv.png", "good.tif")
    for name in names:
        (slides / name).write_bytes(slide.read_bytes() if name == "good.tif" else b"no picture")
    common = ("--model", model, "-o", out, "--tissue", "whole", "--device", "cpu")
    assert _command("detect", *(slides / name for name in names), *common) == 1
    log = (out / "errors.log").read_text(encoding="utf-8").splitlines()
    assert [line.partition(":")[0] for line in log] == ["%2E%2E", "%6Eul", "counts%2Ecsv"]
    assert list(pd.read_csv(out / "counts.csv")["case"]) == ["good"]
    assert sorted(one.name for one in folder.iterdir()) == ["out", "slides"]
    good = ("detect", slides / "good.tif", *common, "--prune")
    with (out / "counts.csv").open(encoding="utf-8"):  # as a spreadsheet does
        code, said = _says(folder / "said", *good)
    assert code == 1
    assert "counts.csv: cannot write" in said
    assert "Excel" in said
    assert "%6Eul" not in (out / "index.html").read_text(encoding="utf-8")
    assert _command(*good) == 0
    _views(out)


def _views(out: Path) -> None:
    from metaphase.web.viewing import serve_view

    urls = list[str]()
    started = {"port": 0, "ready": lambda one: urls.append(one.url)}
    threading.Thread(target=serve_view, args=([out],), kwargs=started, daemon=True).start()
    until = time.monotonic() + 60
    while not urls and time.monotonic() < until:
        time.sleep(0.01)
    with urllib.request.urlopen(urls[0]) as page:
        assert page.status == 200


def _pairs(folder: Path) -> None:
    sit_down()
    sizes = ("--cases", "1", "--centres", "1", "--width", "512", "--height", "512")
    assert _command("simulate", "-o", folder / "pairs", *sizes) == 0
    os.chdir(folder)
    code, said = _says(folder / "said", "lab", "init", "pairs")
    assert (code, "3 are needed" in said) == (2, True)  # slides of one patient, looked at and registered
    assert list((folder / "registration").iterdir())


@pytest.mark.slow
def test_a_laboratory_begins_on_windows(tmp_path: Path) -> None:
    _at_a_desk(_pairs, tmp_path)


@pytest.mark.slow
def test_detect_a_bad_slide_an_open_table_and_the_viewer_on_windows(
    tmp_path: Path, he_slide: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path.parent / "state"))
    _at_a_desk(_detects, tmp_path, he_slide, model)


@pytest.mark.slow
def test_every_module_is_imported_without_what_posix_alone_has() -> None:
    code = "from tests.desks import *; hide_modules(); assert import_everything() > 150"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ---- processes and leases ----


class _Windows:
    """`sys`, as a module of ours sees it there."""

    platform = "win32"

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


def test_nobody_is_signalled_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise AssertionError("os.kill ends a process there")

    monkeypatch.setattr(os, "kill", killed)
    monkeypatch.setattr(leases, "sys", _Windows())
    monkeypatch.setattr(leases, "_started_on_windows", {7: "100", 8: None}.get)
    stated = {"token": "t", "machine": leases.this_machine(), "started": "100"}
    for process, started, ended in ((7, "100", False), (7, "99", True), (8, "100", False)):
        said = json.dumps(stated | {"process": process, "started": started})
        assert leases.Holder(said.encode()).ended is ended


def test_a_process_of_somebody_else_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    monkeypatch.setattr(os, "kill", refused)
    monkeypatch.setattr(leases, "Path", lambda _: Path("/nowhere"))  # macOS has no /proc
    stated = {"token": "t", "machine": leases.this_machine(), "process": 1, "started": None}
    assert not leases.Holder(json.dumps(stated).encode()).ended


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EPERM, errno.ENOTSUP])
def test_a_disk_without_links_has_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, "no links on exFAT")

    monkeypatch.setattr(os, "link", refused)
    with leases.holding(tmp_path / "a.lease") as lease:
        assert isinstance(lease, leases.Lease)


def test_whoever_reads_a_lease_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refusals = os.unlink, [PermissionError(errno.EACCES, "is open")] * 2

    def unlinked(path: Any, **options: Any) -> None:
        if refusals and str(path).endswith(".lease"):
            raise refusals.pop()
        real(path, **options)

    monkeypatch.setattr(os, "unlink", unlinked)
    with leases.holding(tmp_path / "a.lease"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_process_gets_shared_memory_by_its_name_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "sys", _Windows())
    monkeypatch.setattr(tiles.mmap, "mmap", lambda *given: given)
    shared = tiles._shared_memory()
    assert shared.file == tiles.NO_FILE
    there = pickle.loads(pickle.dumps(shared))  # noqa: S301 -- as processes get it
    assert there.mapped(4096) == shared.mapped(4096) == (-1, 4096, f"{shared.name}-4096")
    monkeypatch.setattr("metaphase.base.parallel.sys", _Windows())
    assert (most_processes(96), most_processes(4)) == (61, 4)


def test_threads_without_positioned_reads_share_a_file_that_nobody_else_reads(
    he_slide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pread")
    with open_slide(he_slide) as slide:
        assert isinstance(slide, TiffSlide)
        for level in slide._levels:
            monkeypatch.setattr(level.page.parent.filehandle, "_fh", None)  # tifffile's way to the file
        assert slide.read(0, 0, slide.width, slide.height, mpp=0.25).std() > 0
        assert slide.thumbnail(100).std() > 0


def test_a_reserved_port_is_a_busy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = serving.socket.socket.bind, list[int]()

    def bound(self: Any, address: Any) -> None:
        asked.append(address[1])
        if len(asked) == 1:
            raise PermissionError(errno.EACCES, "WSAEACCES")
        real(self, address)

    monkeypatch.setattr(serving.socket, "socket", type("Socket", (serving.socket.socket,), {"bind": bound}))
    serving.listening("127.0.0.1", 50051).close()
    assert asked == [50051, 0]


def test_the_log_of_failures_needs_no_flag_of_posix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_NONBLOCK")

    def fails(*_: object) -> None:
        raise MetaphaseError("bad")

    assert len(batch.run_batch({"a": 1, "b": 2}, fails, tmp_path).failures) == 2
    assert len((tmp_path / "errors.log").read_text().splitlines()) == 2


def test_failures_that_cannot_be_recorded_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MetaphaseError("bad")

    def refused(*_: object) -> None:
        raise OutputError("cannot write (File name too long)")

    noted = list[str]()
    monkeypatch.setattr(batch, "write_text", refused)
    monkeypatch.setattr(batch.BatchWatch, "noted", lambda _, what: noted.append(what))
    assert len(batch.run_batch({"a": 1, "b": 2}, fails, tmp_path).failures) == 2
    assert [one.rpartition(": ")[2] for one in noted] == ["a, b"]


@pytest.mark.parametrize(("system", "opened"), [("win32", 1), ("darwin", 1), ("linux", 0)])
def test_a_page_opens_by_itself_at_a_desk(monkeypatch: pytest.MonkeyPatch, system: str, opened: int) -> None:
    urls = list[str]()
    desk = SimpleNamespace(platform=system, stdout=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(pages, "sys", desk)
    monkeypatch.setattr(pages.webbrowser, "open", urls.append)
    pages.announce("slide")(serving.Running("http://127.0.0.1:1/?token=a", 1))
    assert len(urls) == opened


# ---- names ----

DEVICES = ("CON", "nul", "Aux", "PRN", "COM1", "lpt9", "CONIN$", "com²")
NAMES = st.one_of(
    st.text(min_size=1, max_size=120),
    st.text("aA.: /\\?*|<>%~é\u0301\ud8ff"[:-1], min_size=1, max_size=12),
    st.builds("{}{}".format, st.sampled_from(DEVICES), st.sampled_from(("", ".", ".x", " .x", "x"))),
)


@given(NAMES)
def test_a_name_of_a_folder_is_one_everywhere(name: str) -> None:
    folder = folder_name(name)
    assert folder_name(folder) == folder
    assert len(folder.encode()) <= LONGEST_NAME
    for path in (PureWindowsPath("C:/out", folder), PurePosixPath("/out", folder)):
        assert path.name == folder
        assert path.parent == type(path)("C:/out" if path.drive else "/out")
    assert not PureWindowsPath(folder).is_reserved()
    assert not PureWindowsPath(f"{folder}.tissue.png").is_reserved()
    assert folder[-1] not in ". "
    assert folder[0] != "."
    assert not set(folder) & set('<>:"/\\|?*\0\x1f')


def test_names_stay_apart_and_most_stay_as_they_are() -> None:
    usual = ["S1", "TCGA-A1-A0SK-01Z-00-DX1.A44D70FA-4D96-43F4-9DD7-A61535786297", "Fälle 2023_7", "a (2)"]
    assert [folder_name(name) for name in usual] == usual
    odd = [
        "x",
        "x.",
        "x ",
        "a:b",
        "a?b",
        "NUL",
        "NULL",
        "COM1",
        "é" * 90,
        "é" * 91,
        "..",
        ".",
        "removed",
        "x.csv",
    ]
    assert len({folder_key(name) for name in odd}) == len(odd)
    assert folder_key("S1") == folder_key("s1")
    assert folder_key("é") == folder_key("e\u0301")


def test_slides_whose_folders_would_be_one_are_refused_before_the_search(tmp_path: Path) -> None:
    for pair in (("S1.tif", "s1.tif"), ("e\u0301.tif", "é.tif"), ("a:b.tif", "a%3Ab.tif")):
        with pytest.raises(UsageError, match="would overwrite those of") as caught:
            named_slides([tmp_path / name for name in pair])
        assert all(name in str(caught.value) for name in pair)
    assert list(named_slides([Path("a/S1.tif"), Path("b/s1.tif")])) == ["a-S1", "b-s1"]
    (tmp_path / "m.csv").write_text("case,he\nS1,a.tif\ns1,b.tif\n")
    with pytest.raises(MetaphaseError, match="more than once: S1, s1"):
        read_manifest(tmp_path / "m.csv")


def test_results_of_renamed_folders_are_those_of_their_cases(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("case,he\na?b,x.tif\nc,d:e.tif\n")
    names = [one.name for one in cohort_slides(tmp_path / "m.csv")]
    assert names == ["a%3Fb", "c"]
    known = rows_by_name(read_manifest(tmp_path / "m.csv"))
    assert [rows_of_slide(name, known) for name in (*names, "d%3Ae")] == [[0], [1], [1]]


def test_tissue_of_a_slide_named_after_a_folder_above_stays_in_the_results(
    tmp_path: Path, he_slide: Path
) -> None:
    inside = tmp_path / "slides"
    inside.mkdir()
    odd = inside / "...tif"
    odd.write_bytes(he_slide.read_bytes())
    outline_slides(named_slides([odd]), tmp_path / "results" / "out")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["results", "slides"]
    assert sorted(one.name for one in (tmp_path / "results").iterdir()) == ["out"]


# ---- paths that files keep ----


def test_paths_are_kept_with_slashes_and_from_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stored_path(tmp_path / "slides" / "a.tif", tmp_path / "lab") == "../slides/a.tif"
    assert stored_path("s3://bucket/a.tif", tmp_path) == "s3://bucket/a.tif"
    assert stated_path("..\\slides\\a.tif", tmp_path) == "../slides/a.tif"

    def other_drive(*_: object) -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr(os.path, "relpath", other_drive)
    assert stored_path("/d/a.tif", tmp_path) == "/d/a.tif"
    items = pd.DataFrame({"item": ["1"], "slide": ["/d/a.tif"], "x": [1.0], "y": [1.0], "case": ["a"]})
    write_project(tmp_path / "project", items, Settings())
    assert load_project(tmp_path / "project").items[0].slide == Path("/d/a.tif")


def test_a_project_of_windows_has_the_same_item_numbers_here(tmp_path: Path) -> None:
    for slide, folder in (("../slides/a.tif", "here"), ("..\\slides\\a.tif", "there")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "items.csv").write_text(f"item,slide,x,y,case\n1,{slide},1,1,a\n")
    here, there = (load_project(tmp_path / name).items[0] for name in ("here", "there"))
    assert here.number == there.number
    assert there.slide == tmp_path / "there" / "../slides/a.tif"


def test_a_manifest_of_windows_and_one_that_moved_are_read(tmp_path: Path, he_slide: Path) -> None:
    lab = tmp_path / "lab"
    lab.mkdir()
    (tmp_path / "slides").mkdir()
    slide = tmp_path / "slides" / "a.tif"
    slide.write_bytes(b"x")
    (lab / "m.csv").write_text("case,he\na,..\\slides\\a.tif\n")
    rows = read_manifest(lab / "m.csv")
    assert Path(rows["he"][0]).read_bytes() == b"x"
    write_manifest(lab / "cases" / "m.csv", rows)
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert Path(read_manifest(moved / "lab" / "cases" / "m.csv")["he"][0]).read_bytes() == b"x"


@pytest.mark.parametrize("stated", ["slides\\a.tif", "C:\\study\\slides\\a.tif", "/other/slides/a.tif"])
def test_a_slide_is_found_beside_results_that_moved_with_it(tmp_path: Path, stated: str) -> None:
    slide = tmp_path / "slides" / "a.tif"
    slide.parent.mkdir()
    slide.write_bytes(b"x")
    assert found_from(tmp_path / "results" / "a", stated) == slide


def test_what_asks_for_slides_still_asks_after_a_move(tmp_path: Path) -> None:
    (tmp_path / "study" / "slides").mkdir(parents=True)
    asks = str(tmp_path / "study" / "slides")
    index.ask_for(tmp_path / "study" / "out", {}, {asks: ["a", "b"]})
    moved = (tmp_path / "study").rename(tmp_path / "moved")
    index.ask_for(moved / "out", {}, {str(moved / "other"): ["c"]})
    assert set(json.loads((moved / "out" / "cohort.json").read_text())["slides"]) == {"../slides", "../other"}


def test_what_systems_leave_in_folders_is_nobodys(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "b.dat").write_bytes(b"b")
    (tmp_path / "a.mrxs").write_bytes(b"")

    def seen() -> tuple[Any, ...]:
        return FileContent(folder).account(), companions(tmp_path / "a.mrxs"), files_in(folder, "**/*.dat")

    before = seen()
    assert list(before[0]) == ["deep/b.dat"]
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._b.dat"):
        (folder / name).write_bytes(b"clutter")
    assert (
        FileContent(folder).account(),
        companions(tmp_path / "a.mrxs"),
        files_in(folder, "**/*.dat"),
    ) == before


# ---- files ----


def test_a_file_is_synced_as_it_was_written_and_its_path_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    real, seen = os.replace, list[Path]()

    def synced(file: int) -> None:
        assert fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY

    def replaced(path: Any, target: Any) -> None:
        seen.append(Path(path))
        if len(seen) < 3:
            raise PermissionError(errno.EACCES, "a virus scanner has it open")
        real(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    target = tmp_path / f"{'n' * 80}.tissue.geojson"
    write_text(target, "{}")
    assert target.read_text() == "{}"
    assert len(str(seen[-1])) < len(str(target))
    assert seen[-1].suffixes == target.suffixes


def test_only_a_file_that_is_in_use_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaphase.base.files.PAUSES_S", ())

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", refused)
    for name, advice in (("there.csv", "Excel"), ("new.csv", "folder you may write to")):
        (tmp_path / "there.csv").write_text("")
        with pytest.raises(OutputError, match=advice):
            write_text(tmp_path / name, "a")


def test_settings_of_notepad_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfname = 'a'\n")
    assert read_toml(tmp_path / "a.toml") == {"name": "a"}
    (tmp_path / "b.toml").write_text('slides = "C:\\slides"\n')
    with pytest.raises(UsageError, match=r"C:/"):
        read_toml(tmp_path / "b.toml")
