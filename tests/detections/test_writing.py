"""What is written is read back the same, within what each format can hold."""

from __future__ import annotations

import errno
import json
import re
import tempfile
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.errors import OutputError, UsageError
from metaphase.base.tables import TableError, table_attributes
from metaphase.detections.files import FORMATS, convert_detections, read_detections, write_detections
from metaphase.detections.formats.contract import noted_probability, probability_note
from metaphase.detections.table import DetectionSet, detection_set, file_stem, identities, slide_of_stem
from tests.detections.sets import NAMES, detection_sets, points_by_slide, provenance_set
from tests.examples import FEW
from tests.slides.dicoms import write_plain
from tests.slides.images import blob_image
from tests.work import lines_run, most_bytes

PLACE_PX = {"csv": 1e-9, "parquet": 0.0, "sliderunner": 0.5, "tiatoolbox": 0.0}
OTHER_PLACE_PX = 0.0011
PROBABILITY = {"asap": 1e-6, "sliderunner": 1e-6, "dicom": 1e-6}
OTHER_PROBABILITY = 1e-12
MANY_SLIDES = [known.name for known in FORMATS if not known.one_slide]
ONE_SLIDE = [known.name for known in FORMATS if known.one_slide]
DOCS = Path(__file__).parents[2] / "docs" / "formats.md"
EVERY = pytest.mark.parametrize("name", [known.name for known in FORMATS])


class AnySlide(dict[str, Path]):
    """Whatever a slide is called, it is this DICOM file."""

    @cached_property
    def path(self) -> Path:
        return write_plain(Path(tempfile.mkdtemp()) / "slide.dcm", blob_image())

    def get(self, *_: object) -> Path:  # type: ignore[override]
        return self.path

    def __bool__(self) -> bool:
        return True


SOURCES = AnySlide()


def suffix_of(name: str) -> str:
    return next(known.suffixes[0] for known in FORMATS if known.name == name)


def _position(point: tuple[float, float, float, str]) -> tuple[str, float, float]:
    return point[3], point[0], point[1]


def assert_same(found: DetectionSet, expected: DetectionSet, name: str) -> None:
    ours, theirs = points_by_slide(found), points_by_slide(expected)
    assert set(ours) == set(theirs)
    if name == "dicom":  # groups of one label follow each other
        ours, theirs = (
            {slide: sorted(points, key=_position) for slide, points in each.items()}
            for each in (ours, theirs)
        )
    for slide, points in theirs.items():
        assert [point[3] for point in ours[slide]] == [point[3] for point in points]
        got, want = (np.array([p[:3] for p in one]).reshape(-1, 3) for one in (ours[slide], points))
        assert np.abs(got[:, :2] - want[:, :2]).max(initial=0) <= PLACE_PX.get(name, OTHER_PLACE_PX)
        assert np.abs(got[:, 2] - want[:, 2]).max(initial=0) <= PROBABILITY.get(name, OTHER_PROBABILITY)


@EVERY
@given(detections=detection_sets(), mpp=st.sampled_from([0.1214, 0.25, 0.5]))
@FEW
def test_a_folder_of_one_file_a_slide_reads_back(name: str, detections: DetectionSet, mpp: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = write_detections(detections, folder, name, mpp=mpp, sources=SOURCES)
        assert len(files) == len(detections.slides)
        assert_same(read_detections(folder, mpp=mpp), detections, name)


@pytest.mark.parametrize("name", MANY_SLIDES)
@given(detections=detection_sets())
@FEW
def test_one_file_of_many_slides_reads_back(name: str, detections: DetectionSet) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"all{suffix_of(name)}"
        assert write_detections(detections, path, name, mpp=0.25) == [path]
        found = read_detections(path)
        assert_same(found, detections, name)
        if name in ("coco", "sliderunner"):
            assert found.slides == detections.slides


@pytest.mark.parametrize("name", ONE_SLIDE)
@given(detections=detection_sets(max_slides=1))
@FEW
def test_one_file_of_one_slide_goes_where_it_is_told(name: str, detections: DetectionSet) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"new{suffix_of(name)}"
        write_detections(detections, path, name, mpp=0.25, sources=SOURCES)
        assert read_detections(path, mpp=0.25).slides == ("new",)
        assert_same(read_detections(path, mpp=0.25, slide=detections.slides[0]), detections, name)


@pytest.mark.parametrize("name", ["qupath", "asap"])
def test_the_hotspot_is_a_shape_and_no_figure(name: str, tmp_path: Path) -> None:
    """Whoever opens the file sees the circle; it is neither read nor converted, nor told as left out."""
    detections, circles = provenance_set(), {"a.svs": [(500.0, 400.0, 300.0)]}
    files = write_detections(detections, tmp_path / "out", name, mpp=0.25, hotspots=circles)
    with_circle = [path for path in files if "Hotspot" in path.read_text()]
    assert [slide_of_stem(path.stem) for path in with_circle] == ["a.svs"]
    again = read_detections(tmp_path / "out", mpp=0.25)
    assert points_by_slide(again) == points_by_slide(read_without(detections, name, tmp_path / "plain"))
    assert not again.warnings
    found, _ = convert_detections([tmp_path / "out"], tmp_path / "out.csv", mpp=0.25)
    assert len(found.table) == len(detections.table)
    assert not found.warnings


def read_without(detections: DetectionSet, name: str, folder: Path) -> DetectionSet:
    """What comes back where no circle was written."""
    write_detections(detections, folder, name, mpp=0.25)
    return read_detections(folder, mpp=0.25)


def test_the_hotspot_is_a_closed_line_around_the_circle(tmp_path: Path) -> None:
    """Annotation without fill, in level-0 pixels, which QuPath does not let anybody move by mistake."""
    circle = (500.0, 400.0, 300.0)
    detections = DetectionSet(provenance_set().table.iloc[:2], ("a.svs",))
    (path,) = write_detections(
        detections, tmp_path / "a.geojson", "qupath", mpp=0.25, hotspots={"a.svs": [circle]}
    )
    shapes = [one for one in json.loads(path.read_text())["features"]
              if one["properties"].get("name") == "Hotspot"]  # fmt: skip
    (corners,) = shapes[0]["geometry"]["coordinates"]
    assert len(shapes) == 1
    assert corners[0] == corners[-1]
    away = np.hypot(*(np.array(corners) - circle[:2]).T)
    np.testing.assert_allclose(away, circle[2], atol=0.01)
    assert shapes[0]["properties"]["isLocked"]


@pytest.mark.parametrize("name", [known.name for known in FORMATS if known.name != "dicom"])
def test_writing_again_gives_the_same_file(name: str, tmp_path: Path) -> None:
    one, two = (write_detections(provenance_set(), tmp_path / part, name, mpp=0.25) for part in ("1", "2"))
    assert [path.name for path in one] == [path.name for path in two]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


@pytest.mark.parametrize("name", ["csv", "parquet", "qupath", "tiatoolbox"])
def test_provenance_survives(name: str, tmp_path: Path) -> None:
    write_detections(provenance_set(), tmp_path, name)
    table = read_detections(tmp_path).table
    assert table["tile"].tolist() == [7, 8, 9]
    assert table["distance_um"].fillna(-1).tolist() == [0.5, -1, 2.25]
    assert table["model"].tolist() == ["cnn5", "cnn5", "CNN5 ½"]
    assert table["mixed"].fillna("").map(str).tolist() == ["1", "two", ""]


def test_whole_numbers_stay_whole_beside_an_empty_slide(tmp_path: Path) -> None:
    write_detections(provenance_set(), tmp_path / "d.csv")
    lines = (tmp_path / "d.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "slide,x,y,probability,label,tile,distance_um,model,mixed"
    assert lines[1] == "a.svs,1.5,3.25,0.0,mitosis,7,0.5,cnn5,1"
    assert lines[-1] == "leer – 空.svs,,,,,,,,"
    found = read_detections(tmp_path / "d.csv")
    assert found.slides == ("a.svs", "b.svs", "leer – 空.svs")


@EVERY
def test_twice_the_points_are_no_more_than_twice_the_work(name: str, tmp_path: Path) -> None:
    """In lines of Python, in memory and in bytes on disk, there and back."""

    def there_and_back(count: int) -> int:
        rng = np.random.default_rng(0)
        frame = pd.DataFrame(
            {"slide": "s", "x": rng.uniform(0, 1e5, count), "y": rng.uniform(0, 1e5, count)}
        ).assign(probability=rng.random(count), label=rng.choice(["mitosis", "lookalike"], count))
        (path,) = write_detections(detection_set(frame), tmp_path, name, mpp=0.25, sources=SOURCES)
        assert len(read_detections(path, mpp=0.25).table) == count
        return path.stat().st_size

    def cost(count: int) -> npt.NDArray[np.int64]:
        call = partial(there_and_back, count)
        return np.array([call(), lines_run(call), most_bytes(call)])

    there_and_back(10)  # what is imported and remembered once
    assert (cost(400) <= 2.1 * cost(200)).all()


@given(NAMES)
def test_file_names_are_safe_and_turn_back(name: str) -> None:
    stem = file_stem(name)
    assert slide_of_stem(stem) == name
    assert not set(stem) & set('/\\:*?"<>|')
    assert not stem.startswith(".")
    assert not stem.endswith((".", " "))


@pytest.mark.parametrize("name", ["../../etc/x", "..", ".hidden", "C:\\slides\\a.svs", "a\nb", "50%"])
def test_hostile_names_stay_in_the_folder(name: str, tmp_path: Path) -> None:
    points = detection_set(pd.DataFrame({"slide": [name], "x": [1], "y": [2]}))
    (path,) = write_detections(points, tmp_path / "out", "asap")
    assert path.parent == tmp_path / "out"
    assert path.resolve().parent == (tmp_path / "out").resolve()
    assert read_detections(tmp_path / "out").slides == (name,)


def test_a_name_that_only_looks_encoded_stays() -> None:
    assert slide_of_stem("a%20b") == "a%20b"
    assert slide_of_stem("100%") == "100%"


@given(st.floats(0, 1))
def test_probability_notes(probability: float) -> None:
    note = probability_note(probability)
    assert noted_probability(f"mitotic figure 3 {note}") == pytest.approx(probability, abs=1e-6)
    assert noted_probability("drawn by p=hand") is None
    assert noted_probability(None) is None


def test_identities_depend_on_slide_place_and_label_only() -> None:
    frame = pd.DataFrame({"slide": ["s", "s", "s", "t"], "x": [1, 1, 2, 1], "y": [1, 1, 1, 1]})
    first = identities(detection_set(frame).table)
    assert len(set(first)) == 4
    assert identities(detection_set(frame.assign(probability=0.5)).table) == first
    assert identities(detection_set(frame.iloc[[2, 0, 1, 3]]).table) == [first[i] for i in (2, 0, 1, 3)]


@pytest.mark.parametrize(
    ("target", "name", "error", "message"),
    [
        ("out", None, UsageError, "does not say the format. Give --to with one of asap, coco"),
        ("out.json", None, UsageError, "fits several formats. Give --to with one of grand-challenge, coco"),
        ("out.tsv", "tsv", UsageError, "no format 'tsv'. Choose one of asap, coco"),
        ("out.csv", "qupath", UsageError, "do not end in .csv. End the name in .geojson, or name a folder"),
        ("out.xml", None, UsageError, "holds one slide, and there are 3. Name a folder and give --to asap"),
        ("out", "grand-challenge", OutputError, "resolution of slide a.svs is not known.*--mpp"),
        ("out.json", "coco", OutputError, "a box needs it.*--mpp"),
    ],
)
def test_what_cannot_be_written_says_why(
    tmp_path: Path, target: str, name: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write_detections(provenance_set(), tmp_path / target, name)
    assert not list(tmp_path.rglob("*.*"))


def test_slides_that_some_systems_take_for_one_file(tmp_path: Path) -> None:
    points = detection_set(pd.DataFrame({"slide": ["Case", "case"], "x": [1, 2], "y": [1, 2]}))
    with pytest.raises(OutputError, match="Case and case may have the same name"):
        write_detections(points, tmp_path, "asap")
    write_detections(points, tmp_path / "d.csv")


@EVERY
def test_no_point_is_lost_whose_slide_nobody_announced(name: str, tmp_path: Path) -> None:
    careless = DetectionSet(provenance_set().table, ())
    write_detections(careless, tmp_path, name, mpp=0.25, sources=SOURCES)
    assert len(read_detections(tmp_path, mpp=0.25).table) == 3


@EVERY
def test_a_full_disk_leaves_the_old_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    path = tmp_path / f"s{suffix_of(name)}"
    path.write_text("old")
    points = detection_set(pd.DataFrame({"slide": ["s"], "x": [1.0], "y": [2.0]}))
    assert SOURCES.path.is_file()
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match="Free some space"):
        write_detections(points, path, name, mpp=0.25, sources=SOURCES)
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_conversion_joins_thresholds_and_uses_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,probability\n10,20,0.9\n30,40,0.1\n")
    (tmp_path / "b.geojson").write_text('{"type":"FeatureCollection","features":[]}')
    (tmp_path / "m.csv").write_text("case,he,mpp,width,height\n1,slides/a.svs,0.5,900,800\nb,,0.25,,\n")
    found, files = convert_detections(
        [tmp_path / "a.csv", tmp_path / "b.geojson"],
        tmp_path / "c.json",
        "coco",
        manifest=tmp_path / "m.csv",
        threshold=0.9,
    )
    assert files == [tmp_path / "c.json"]
    assert found.slides == ("a", "b")
    text = (tmp_path / "c.json").read_text()
    assert '"bbox":[-2.5,7.5,25.0,25.0]' in text
    assert '"file_name":"a","width":900,"height":800' in text
    assert '{"id":2,"file_name":"b"}' in text


def test_conversion_suppresses_neighbours_of_one_slide_and_label(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(
        "slide,x,y,probability,label\n"
        "05/01.tif,100,100,0.5,mitosis\n05/01.tif,110,100,0.9,mitosis\n05/01.tif,130,100,0.4,mitosis\n"
        "05/01.tif,111,100,0.1,lookalike\n06/01.tif,110,100,0.2,mitosis\nempty,,,,\n"
    )
    (tmp_path / "m.csv").write_text("case,mpp\ntupac-aux/05/01,0.25\ntupac-aux/06/01,2\n")
    for resolution in ({"mpp": 0.25}, {"manifest": tmp_path / "m.csv"}):
        found, _ = convert_detections([tmp_path / "d.csv"], tmp_path / "o.csv", suppress_um=5, **resolution)
        assert found.slides == ("05/01.tif", "06/01.tif", "empty")
        assert found.table["probability"].tolist() == [0.9, 0.4, 0.1, 0.2]  # 20 px are 5 um
        assert read_detections(tmp_path / "o.csv").slides == found.slides
    with pytest.raises(OutputError, match=r"slide 05/01.tif is not known, and suppression.*--mpp"):
        convert_detections([tmp_path / "d.csv"], tmp_path / "o.csv", suppress_um=5)
    with pytest.raises(UsageError, match="--suppress-um is 0"):
        convert_detections([tmp_path / "d.csv"], tmp_path / "o.csv", suppress_um=0, mpp=0.25)


def test_conversion_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n10,20\n")
    (tmp_path / "b.csv").write_text("slide,x,y\na,1,2\n")
    with pytest.raises(TableError, match=r"slide a is in a.csv and in b.csv"):
        convert_detections([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "c.csv")
    with pytest.raises(UsageError, match="from 0 to 1"):
        convert_detections([tmp_path / "a.csv"], tmp_path / "c.csv", threshold=80)
    with pytest.raises(UsageError, match="0 um/px is not the resolution"):
        convert_detections([tmp_path / "a.csv"], tmp_path / "c.csv", mpp=0)
    with pytest.raises(UsageError, match="--to"):
        convert_detections([tmp_path / "absent.csv"], tmp_path / "c.json")


def test_suppression_is_told_to_who_tunes_on_it(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"slide": "a", "x": [0.0, 10.0], "y": 0.0, "probability": [0.9, 0.8], "label": "mitosis"}
    )
    table.attrs["operating_points"] = {"model": "m", "mitoses": {"delta": 0.5, "suppress_um": 2.0}}
    table.to_parquet(tmp_path / "in.parquet")
    convert_detections([tmp_path / "in.parquet"], tmp_path / "out.parquet", mpp=0.25, suppress_um=7.5)
    stated = table_attributes(tmp_path / "out.parquet")["operating_points"]
    assert stated["mitoses"]["suppress_um"] == 7.5


def test_the_documentation_lists_the_formats_there_are() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| `(\.\w+)` \| (one|many) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE
    )
    known = [(one.name, one.suffixes[0], "one" if one.one_slide else "many") for one in FORMATS]
    assert sorted(rows) == sorted(known)
