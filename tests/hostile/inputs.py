"""Generators of hostile inputs, one for every kind of thing that the commands read.

Each knows the structure of its format: it begins with a sound file and breaks one or two things in it.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import math
import os
import shutil
import socket
import sqlite3
import struct
import sys
import zlib
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.trials import Attempt, Judge, Maker, Trial, must_refuse, right

ASSETS = Path("..") / ".." / "assets"
"""As a child sees them from its folder."""
SIDE = 192
SEARCH = (
    "detect",
    str(ASSETS / "slide.tif"),
    "-o",
    "out",
    "--tissue",
    "whole",
    "--floor",
    "0.3",
    "--model",
    str(ASSETS / "tiny.safetensors"),
)

# ---- odd values ----

HUGE = 10**400
ODD_NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    2,
    255,
    65535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    -(2**63),
    10**20,
    HUGE,
    -0.0,
    1e-300,
    1e300,
    1e-9,
    0.5,
    math.nan,
    math.inf,
    -math.inf,
)
ODD_TEXTS = (
    "",
    " ",
    "NA",
    "None",
    "null",
    "nan",
    "=1+2",
    "+1",
    "-1",
    "@x",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "a\nb",
    "a,b",
    'a"b',
    "../x",
    "..",
    ".",
    "/etc/x",
    "a/b",
    "a\\b",
    "CON",
    "x" * 300,
    "é",
    "e\u0301",
    "\u202egnp",
    "😀",
    "\x00",
    "\x07",
    "\x7f",
    "%2F",
    "%",
    "<script>alert(1)</script>",
    "0001",
    "1e5",
    "TRUE",
    "2020-01-01",
    "\ufeffa",
    "'",
    "';--",
    "{{7*7}}",
    "${x}",
    "\ud800",
    "a" * 70000,
)
ODD_VALUES: tuple[Any, ...] = (
    *ODD_NUMBERS,
    *ODD_TEXTS,
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    [1, 2, 3],
)
NO_NUMBER = (math.nan, math.inf, -math.inf, True, False, "x", None, [], {}, HUGE)
"""What is no finite number, wherever one is needed."""


def any_of(random: Random, *choices: Any) -> Any:
    """One of them."""
    return choices[random.randrange(len(choices))]


def bytes_changed(random: Random, data: bytes, *, most: int = 8) -> bytes:
    """Bytes flipped, zeroed, cut, doubled or put elsewhere."""
    if not data:
        return b"\0"
    out = bytearray(data)
    how = random.randrange(6)
    if how == 0:
        return bytes(out[: random.randrange(len(out))])
    if how == 1:
        start = random.randrange(len(out))
        out[start : start + random.randrange(64)] = bytes(random.randrange(64))
    elif how == 2:
        start = random.randrange(len(out))
        out[start:start] = out[start : start + random.randrange(4096)]
    else:
        for _ in range(random.randint(1, most)):
            out[random.randrange(len(out))] = random.randrange(256)
    return bytes(out)


def tree_changed(random: Random, tree: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """A copy of JSON-like values with one of them replaced, removed or renamed; where, and by what."""
    tree = copy.deepcopy(tree)
    paths = list(_paths(tree))
    path = paths[random.randrange(len(paths))]
    if not path:
        value = any_of(random, *ODD_VALUES)
        return value, path, value
    parent = tree
    for step in path[:-1]:
        parent = parent[step]
    how = random.randrange(10)
    if how == 0:
        del parent[path[-1]]
        return tree, path, "gone"
    if how == 1 and isinstance(parent, dict):
        parent[any_of(random, *ODD_TEXTS)] = parent.pop(path[-1])
        return tree, path, "renamed"
    if how == 2:
        parent[path[-1]] = [parent[path[-1]]]
        return tree, path, "wrapped"
    value = any_of(random, *ODD_VALUES)
    parent[path[-1]] = value
    return tree, path, value


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(deeper for key, value in items for deeper in _paths(value, (*path, key)))]


def json_bytes(random: Random, tree: Any) -> bytes:
    """Text of a tree, at times in a coding or of a shape that parsers choke on."""
    data = json.dumps(tree).encode("utf-8", "surrogatepass")
    how = random.randrange(24)
    if how == 0:
        return b"[" * 200_000 + data
    if how == 1:
        return data.replace(b"0", b"9" * 6000, 1)
    if how == 2:
        return json.dumps(tree).encode("utf-16", "surrogatepass")
    if how == 3:
        return b"\xef\xbb\xbf" + data
    if how == 4:
        return data.replace(b'"', b'"\xff', 1)
    if how == 5:
        return bytes_changed(random, data)
    if how == 6:
        return b'{"a":' * 50_000 + data + b"}" * 50_000
    return data


def unsound(path: Sequence[Any], value: Any, keys: Sequence[str]) -> bool:
    """Whether a number that is needed was replaced by what is none."""
    last = next((step for step in reversed(path) if isinstance(step, str)), None)
    same = any(value is odd or (value == odd and type(value) is type(odd)) for odd in NO_NUMBER)
    return last in keys and same and not (value is None and last in ("score", "probability"))


# ---- what sound inputs are made of ----


def write_assets(folder: Path) -> None:
    """A small slide, a tiny detector and tables, made once in a child."""
    folder.mkdir(parents=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _write_assets(folder)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the assets could not be made")


def _write_assets(folder: Path) -> None:
    import torch

    from metaphase.cli.main import main
    from metaphase.networks.architectures import build_network
    from metaphase.networks.cards import ModelCard, NetworkSpec
    from metaphase.networks.checkpoints import save_model

    torch.manual_seed(0)
    spec = NetworkSpec("detector", 0.05)
    network = build_network(spec)
    point = {"delta": 0.5, "suppress_um": 7.5, "theta1": 6, "theta2": 20}
    card = ModelCard.model_validate(
        {
            "name": "tiny",
            "family": "detector",
            "gamma": 0.05,
            "mpp": 0.25,
            "patch_px": 100,
            "classes": ("other", "mitosis"),
            "thresholds": {"mitoses": point, "count": point},
            "optical_density": (0.2, 0.3, 0.2),
            "data": [{"name": "none", "terms": "none"}],
        }
    )
    save_model(folder / "tiny.safetensors", network, card)
    (folder / "slide.tif").write_bytes(tiff_bytes(Random(0), "none"))
    made = folder.parent / "made" / "in"  # as deep as the folders of the trials
    made.mkdir(parents=True)
    os.chdir(made)
    sys.argv = ["metaphase", *SEARCH]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    (made / "out").rename(folder / "out")


def picture(width: int = SIDE, height: int = SIDE, samples: int = 3) -> Any:
    """Something pink with dark spots."""
    import numpy as np

    y, x = np.mgrid[:height, :width]
    spots = (np.sin(x / 9) * np.cos(y / 7) > 0.6)[..., None]
    pixels = np.where(spots, (90, 40, 120), (225, 170, 205)).astype(np.uint8)
    pixels[: height // 8] = 245
    if samples == 1:
        return pixels[..., 0]
    return pixels if samples == 3 else np.dstack([pixels, np.full((height, width), 255, np.uint8)])


def tiff_bytes(random: Random, compression: str | None = None, **options: Any) -> bytes:
    """A sound TIFF, tiled or in strips, of two levels or one."""
    import tifffile

    samples = any_of(random, 3, 3, 3, 1, 4) if compression is None else 3
    kind = compression or any_of(random, "none", "jpeg", "zlib", "lzw", "packbits", "zstd")
    kind = "zlib" if kind == "jpeg" and samples == 4 else kind
    image = picture(samples=samples)
    keywords: dict[str, Any] = {
        "photometric": "minisblack" if samples == 1 else "rgb",
        "metadata": None,
        "compression": None if kind == "none" else kind,
        "resolution": (40000, 40000),
        "resolutionunit": 3,
    } | options
    if samples == 4:
        keywords["extrasamples"] = any_of(random, ["assocalpha"], ["unassalpha"], [0])
    if compression or random.random() < 0.8:
        keywords["tile"] = (64, 64)
    else:
        keywords["rowsperstrip"] = any_of(random, 1, 16, SIDE)
    out = io.BytesIO()
    with tifffile.TiffWriter(out, bigtiff=random.random() < 0.2, ome=False) as tiff:
        tiff.write(image, **keywords)
        if random.random() < 0.6:
            tiff.write(image[::2, ::2].copy(), **{**keywords, "resolution": None, "subfiletype": 1})
    return out.getvalue()


SLIDE_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("info", "{}"),
    ("info", "{}", "--json"),
    ("info", "{}", "--mpp", "0.25"),
    ("tissue", "{}", "-o", "out", "--mpp", "0.25"),
    ("tissue", "{}", "-o", "out"),
    ("detect", "{}", "-o", "out", "--tissue", "whole", "--mpp", "0.25", "--model", "{model}"),
)


def on_slide(random: Random, file: str | Path, judge: Judge = right) -> Attempt:
    """One of the commands that open a slide."""
    command = any_of(random, *SLIDE_COMMANDS)
    model = str(ASSETS / "tiny.safetensors")
    return Attempt([part.replace("{model}", model) if part != "{}" else str(file) for part in command], judge)


# ---- slides ----

_TAGS = (
    254,
    256,
    257,
    258,
    259,
    262,
    266,
    270,
    273,
    274,
    277,
    278,
    279,
    282,
    283,
    284,
    296,
    305,
    317,
    320,
    322,
    323,
    324,
    325,
    330,
    338,
    339,
    347,
    530,
    532,
    33550,
    34665,
    65535,
)


def tiff(random: Random, folder: Path) -> Attempt:
    """A TIFF with a broken directory, header or tile."""
    data = bytearray(tiff_bytes(random))
    for _ in range(random.randint(1, 2)):
        how = random.randrange(10)
        if how < 7:
            _change_tag(random, data)
        elif how == 7:
            data = bytearray(bytes_changed(random, bytes(data)))
        elif how == 8:
            data[4:8] = struct.pack("<I", any_of(random, 0, 1, 7, 8, len(data), len(data) - 2, 2**32 - 1))
        else:
            data = data[: random.randrange(len(data) + 1)]
    file = folder / any_of(random, "slide.tif", "slide.tiff", "slide.svs", "slide.png", "slide.ndpi", "slide")
    file.write_bytes(bytes(data))
    return on_slide(random, file.name)


def _change_tag(random: Random, data: bytearray) -> None:
    """One entry of the first or second directory gets another tag, type, count or value."""
    big = bytes(data[2:3]) == b"+"
    entry, inline = (20, 8) if big else (12, 4)
    offset_form, count_form = ("<Q", "<Q") if big else ("<I", "<H")
    try:
        (offset,) = struct.unpack_from(offset_form, data, 8 if big else 4)
        (number,) = struct.unpack_from(count_form, data, offset)
        start = offset + (8 if big else 2)
        if random.random() < 0.2:
            (second,) = struct.unpack_from(offset_form, data, start + number * entry)
            if second:
                start, (number,) = second + (8 if big else 2), struct.unpack_from(count_form, data, second)
            if random.random() < 0.3:  # directories that lead nowhere, or round in a circle
                value = any_of(random, offset, len(data), 2**31, start)
                struct.pack_into(offset_form, data, start + number * entry, value)
                return
        place = start + random.randrange(max(1, number)) * entry
        how = random.randrange(5)
        if how == 0:
            struct.pack_into("<H", data, place, any_of(random, *_TAGS))
        elif how == 1:
            struct.pack_into("<H", data, place + 2, any_of(random, *range(20), 65535))
        elif how == 2:
            size = any_of(random, 0, 1, 2, 3, 5, 1000, 2**31 - 1, 2**32 - 1)
            struct.pack_into("<Q" if big else "<I", data, place + 4, size)
        else:
            value = any_of(
                random, 0, 1, 2, 3, 5, 6, 7, 8, 16, 17, 255, 4096, 65535, 300_000, 2**31 - 1, 2**32 - 1
            )
            struct.pack_into("<I", data, place + entry - inline, value)
    except struct.error:
        data[:] = bytes_changed(random, bytes(data))


def sparse(random: Random, folder: Path) -> Attempt:
    """A header that promises more than the file holds."""
    size = any_of(random, 40_000, 300_000, 2**20, 2**31 - 1, 2**32 - 1)
    side = any_of(random, 256, 4096, 65536, 16, 2**31)
    width, height = any_of(random, (size, size), (size, 256), (256, size))
    tiles = any_of(random, 0, 1, 1, 2)
    tags: list[tuple[int, int, int, int]] = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 1, 8),
        (259, 3, 1, any_of(random, 1, 7, 8)),
        (262, 3, 1, any_of(random, 2, 1, 6)),
        (277, 3, 1, any_of(random, 3, 1)),
    ]
    if random.random() < 0.7:
        tags += [
            (322, 4, 1, side),
            (323, 4, 1, side),
            (324, 4, tiles, 8),
            (325, 4, tiles, any_of(random, 0, 10)),
        ]
    else:
        tags += [
            (273, 4, tiles, 8),
            (278, 4, 1, any_of(random, 1, 16, height)),
            (279, 4, tiles, any_of(random, 0, 10)),
        ]
    body = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    (folder / "slide.tif").write_bytes(
        b"II*\0" + struct.pack("<I", 16) + bytes(8) + struct.pack("<H", len(tags)) + body + bytes(4)
    )
    return on_slide(random, "slide.tif")


def large_tile(random: Random, folder: Path) -> Attempt:
    """A compressed tile that unpacks to more, or less, or something else than its tile."""
    import imagecodecs

    data = bytearray(tiff_bytes(random, any_of(random, "jpeg", "zlib", "lzw", "packbits")))
    side = any_of(random, 16, 63, 65, 128, 4000, 9000)
    kind = random.randrange(4)
    if kind == 0:
        tile = imagecodecs.jpeg8_encode(picture(side, min(side, 256)))
    elif kind == 1:
        tile = zlib.compress(bytes(any_of(random, 10, 10**6, 10**8, 10**9)))
    elif kind == 2:
        header = bytearray(imagecodecs.jpeg8_encode(picture(64, 64)))
        place = header.find(b"\xff\xc0") + 5
        header[place : place + 4] = struct.pack(
            ">HH", any_of(random, 1, 65535, 20000), any_of(random, 1, 65535, 30000)
        )
        tile = bytes(header)
    else:
        tile = random.randbytes(500)
    import tifffile

    with tifffile.TiffFile(io.BytesIO(bytes(data))) as opened:
        page = opened.pages.first
        counts = page.tags["TileByteCounts"]
        offsets = page.tags["TileOffsets"]
    start = len(data)
    data += tile
    _put(data, offsets, random.randrange(9), start)
    _put(data, counts, 0, len(tile))
    _put(data, offsets, 0, start)
    (folder / "slide.tif").write_bytes(bytes(data))
    return on_slide(random, "slide.tif")


def _put(data: bytearray, tag: Any, index: int, value: int) -> None:
    form = {3: "<H", 4: "<I", 16: "<Q"}[int(tag.dtype)]
    struct.pack_into(
        form, data, tag.valueoffset + index * struct.calcsize(form), value & 0xFFFF if form == "<H" else value
    )


def image(random: Random, folder: Path) -> Attempt:
    """A plain image: broken, of an odd kind, or of a size that its header makes up."""
    from PIL import Image

    out = io.BytesIO()
    kind = any_of(
        random, "PNG", "PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "ICO", "TGA", "EPS", "PCX"
    )
    mode = any_of(random, "RGB", "RGBA", "L", "P", "1", "LA", "CMYK", "I;16", "F")
    made = Image.fromarray(picture(64, 64))
    try:
        made.convert(mode).save(out, kind)
    except (OSError, ValueError, KeyError):
        out = io.BytesIO()
        made.save(out, "PNG")
    data = out.getvalue()
    if random.random() < 0.7:
        data = bytes_changed(random, data)
    if random.random() < 0.25:
        width, height = any_of(
            random, (9000, 9000), (100_000, 1), (1, 2**31 - 1), (13_000, 13_000), (0, 5), (2**31 - 1,) * 2
        )
        data = png_bytes(width, height, rows=any_of(random, 0, 1, min(height, 9000)))
    if random.random() < 0.1:
        data = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n%%EndComments\n(x) run\nshowpage\n"
    name = any_of(random, "a.png", "a.jpg", "a.tif", "a.eps", "a.gif", "a.svs", "a.dcm", "a.mrxs", "a.vms")
    (folder / name).write_bytes(data)
    return on_slide(random, name)


def png_bytes(width: int, height: int, *, rows: int) -> bytes:
    """A PNG of one colour with a true or made-up size, packed to almost nothing."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj(1)
    row = b"\0" + b"\xe0\xaa\xcc" * min(width, 20_000)
    packed = b"".join(packer.compress(row) for _ in range(rows)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


# ---- tables of detections ----

POINTS = [
    ("s1", 100.5, 200.25, 0.9, "mitosis"),
    ("s1", 300.0, 20.0, 0.4, "lookalike"),
    ("s2", 5.0, 6.0, 0.95, "mitosis"),
]
COLUMNS = ("slide", "x", "y", "probability", "label")


def on_table(random: Random, file: str, judge: Judge = right) -> Attempt:
    """One of the commands that read detections."""
    commands: tuple[tuple[str, ...], ...] = (
        ("convert", file, "-o", "out.csv", "--mpp", "0.25"),
        ("convert", file, "-o", "out.parquet", "--mpp", "0.25"),
        (
            "convert",
            file,
            "-o",
            "out",
            "--to",
            any_of(random, "qupath", "asap", "grand-challenge"),
            "--mpp",
            "0.25",
        ),
        ("convert", file, "-o", "out.sqlite", "--mpp", "0.25"),
        ("score", file, "--mpp", "0.25", "--area", "5", "--draws", "10"),
        ("score", file, "--mpp", "0.25", "--draws", "0", "-o", "out.csv"),
        ("evaluate", "mitoses", "--truth", file, "--predictions", file, "--mpp", "0.25", "--bootstrap", "0"),
    )
    return Attempt(any_of(random, *commands), judge)


def csv_table(random: Random, folder: Path) -> Attempt:
    """Detections as CSV with odd cells, headers or bytes."""
    rows = [list(map(str, COLUMNS)), *([str(cell) for cell in row] for row in POINTS)]
    judge: Judge = right
    for _ in range(random.randint(1, 2)):
        row, column = random.randrange(len(rows)), random.randrange(5)
        value = any_of(random, *ODD_VALUES)
        rows[row][column] = "9" * 400 if value is HUGE else str(value)
        numeric = 0 < column < 4
        if row and numeric and str(value) in ("nan", "inf", "-inf", "True", "x"):
            judge = must_refuse
    how = random.randrange(12)
    separator = any_of(random, ",", ",", ",", ";", "\t")
    text = "\n".join(separator.join(_quoted(cell) for cell in row) for row in rows) + "\n"
    data = text.encode("utf-8", "surrogatepass")
    if how == 0:
        data = text.encode("utf-16", "surrogatepass")
    elif how == 1:
        data = bytes_changed(random, data)
    elif how == 2:
        data = data.replace(b"s", b"\xff\xfe", 1)
    elif how == 3:
        data = b"\0" * 100 + data
    if how < 4 or separator != ",":
        judge = right
    (folder / "points.csv").write_bytes(data)
    return on_table(random, "points.csv", judge)


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if any(sign in cell for sign in ',"\n\r') else cell


def parquet_table(random: Random, folder: Path) -> Attempt:
    """Detections as Parquet with columns of odd types, or broken bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, Any] = {name: [row[i] for row in POINTS] for i, name in enumerate(COLUMNS)}
    arrays = {name: pa.array(values) for name, values in columns.items()}
    name = any_of(random, *COLUMNS)
    odd: list[tuple[Any, Any]] = [
        ([True, False, True], pa.bool_()),
        ([b"a", b"\xff", b""], pa.binary()),
        ([None] * 3, pa.null()),
        ([1, 2, 3], pa.timestamp("us")),
        ([1, 2, 3], pa.duration("s")),
        ([1, 2, 3], pa.date32()),
        ([[1], [2], []], pa.list_(pa.int64())),
        ([{"a": 1}] * 3, pa.struct([("a", pa.int64())])),
        ([2**63, 1, 2], pa.uint64()),
        ([math.nan, 1.0, 2.0], pa.float64()),
        ([math.inf, 1.0, 2.0], pa.float64()),
        (["x", "y", "z"], pa.string()),
        ([None, 0.5, 0.5], pa.float64()),
        ([0.5, 0.5, 0.5], pa.float16()),
        (["NA", "None", ""], pa.string()),
        (["1", "2", "3"], pa.string()),
        (["1", "2", "1"], pa.dictionary(pa.int8(), pa.string())),
    ]
    values, kind = any_of(random, *odd)
    try:
        arrays[name] = pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        import numpy as np

        arrays[name] = pa.array(np.array([0.5, 0.5, 0.5], np.float16))
    numeric = name in ("x", "y", "probability")
    wrong = numeric and str(kind).startswith(
        ("bool", "binary", "timestamp", "duration", "date", "list", "struct", "float64")
    )
    if kind == pa.null() or (name == "probability" and kind == pa.float64() and values[0] is None):
        wrong = False
    metadata = None
    if random.random() < 0.2:
        stated = any_of(
            random,
            '{"operating_points": 5}',
            "[" * 5000,
            "5",
            '{"operating_points": {"count": {"delta": NaN}}}',
            "\xff",
        )
        metadata = {b"PANDAS_ATTRS": stated.encode("latin-1")}
    if random.random() < 0.1:
        metadata = {
            b"pandas": any_of(random, b"{}", b"5", b"\xff", b'{"columns": 5, "index_columns": ["q"]}')
        }
    table = pa.table(arrays).replace_schema_metadata(metadata)
    parquet.write_table(table, folder / "points.parquet")
    if random.random() < 0.3:
        data = (folder / "points.parquet").read_bytes()
        (folder / "points.parquet").write_bytes(bytes_changed(random, data))
        return on_table(random, "points.parquet")
    return on_table(random, "points.parquet", must_refuse if wrong else right)


def geojson(random: Random, folder: Path) -> Attempt:
    """QuPath's GeoJSON with one member of another type, or packed oddly."""
    tree = {
        "type": "FeatureCollection",
        "features": [
            {
                "type": "Feature",
                "id": "1",
                "geometry": shape,
                "properties": {
                    "objectType": "detection",
                    "classification": {"name": "mitosis", "color": [1, 2, 3]},
                    "measurements": {"probability": 0.9, "area": 5},
                    "metadata": {"a": "b"},
                },
            }
            for shape in (
                {"type": "Point", "coordinates": [10, 20]},
                {"type": "Polygon", "coordinates": [[[0, 0], [10, 0], [10, 10], [0, 0]]]},
                {"type": "MultiPoint", "coordinates": [[1, 2], [3, 4]]},
            )
        ],
    }
    changed, path, value = tree_changed(random, tree)
    data = json_bytes(random, changed)
    wrong = unsound(path, value, ("coordinates", "probability")) and isinstance(path[-1], int | str)
    wrong = wrong and data == json.dumps(changed).encode("utf-8", "surrogatepass")
    name = any_of(random, "a.geojson", "a.geojson", "a.geojson", "a.geojson.gz", "a.zip", "a.json")
    if name.endswith(".gz"):
        data = gzip.compress(data) if random.random() < 0.7 else bytes_changed(random, gzip.compress(data))
    (folder / name).write_bytes(data)
    return on_table(random, name, must_refuse if wrong and name == "a.geojson" else right)


def coco(random: Random, folder: Path) -> Attempt:
    """COCO with one member of another type."""
    tree = {
        "images": [
            {"id": 1, "file_name": "s1.tif", "width": 1000, "height": 1000},
            {"id": 2, "file_name": "s2.tif"},
        ],
        "categories": [{"id": 1, "name": "mitotic figure"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 20, 50, 50], "score": 0.9},
            {"id": 2, "image_id": 2, "category_id": 1, "bbox": [1, 2, 5, 5]},
        ],
    }
    changed, path, value = tree_changed(random, tree)
    data = json_bytes(random, changed)
    wrong = unsound(path, value, ("bbox", "score")) and data == json.dumps(changed).encode(
        "utf-8", "surrogatepass"
    )
    (folder / "a.json").write_bytes(data)
    return on_table(random, "a.json", must_refuse if wrong else right)


def grand_challenge(random: Random, folder: Path) -> Attempt:
    """Grand-Challenge points with one member of another type."""
    tree = {
        "type": "Multiple points",
        "name": "x",
        "version": {"major": 1, "minor": 0},
        "points": [
            {"name": "mitotic figure", "point": [0.1, 0.2, 0], "probability": 0.9},
            {"point": [1, 2, 0]},
        ],
    }
    changed, path, value = tree_changed(random, tree)
    data = json_bytes(random, changed)
    wrong = unsound(path, value, ("point", "probability")) and path[-1] != 2
    wrong = wrong and data == json.dumps(changed).encode("utf-8", "surrogatepass")
    (folder / "a.json").write_bytes(data)
    return on_table(random, "a.json", must_refuse if wrong else right)


def asap(random: Random, folder: Path) -> Attempt:
    """ASAP's XML with an odd attribute, coding or entity."""
    corner = '<Coordinate Order="{}" X="{}" Y="{}" />'
    values = [f"{any_of(random, 0, 1, 2)}", "10.5", "20"]
    judge: Judge = right
    if random.random() < 0.6:
        odd = any_of(random, "nan", "inf", "-inf", "", "x", "1e999", "9" * 6000, "1_0", "0x5", "１", "1e300")
        place = random.randrange(3)
        values[place] = odd
        judge = must_refuse if place and odd in ("nan", "inf", "-inf", "1e999", "x", "") else right
    kind = any_of(
        random, "Dot", "Dot", "Polygon", "PointSet", "Spline", "Rectangle", "Measurement", "", "\x01"
    )
    if kind in ("Measurement", "", "\x01"):
        judge = right
    corners = corner.format(*values) + corner.format(1, 5, 6) * random.randrange(4)
    coding = any_of(
        random, "utf-8", "utf-8", "utf-8", "UTF-16", "klingon", "ascii", "cp1252", "utf-7", "rot13", "idna"
    )
    name = any_of(
        random, "Annotation 0 p=0.9", "p=1e999", "p=nan", "p=.", "p=1.2.3", "p=5", "&lol;", "p=" + "9" * 5000
    )
    text = (
        f'<?xml version="1.0" encoding="{coding}"?>'
        + any_of(random, "", "", '<!DOCTYPE a [<!ENTITY lol "lol"><!ENTITY x SYSTEM "file:///etc/passwd">]>')
        + f'<ASAP_Annotations><Annotations><Annotation Name="{name}" Type="{kind}" PartOfGroup="a">'
        f"<Coordinates>{corners}</Coordinates></Annotation></Annotations><AnnotationGroups>"
        '<Group Name="a" PartOfGroup="b"/><Group Name="b" PartOfGroup="a"/></AnnotationGroups>'
        "</ASAP_Annotations>"
    )
    data = text.encode()
    if random.random() < 0.2:
        data, judge = bytes_changed(random, data), right
    if random.random() < 0.05:
        data, judge = b"<a>" * 100_000, right
    (folder / "a.xml").write_bytes(data)
    return on_table(random, "a.xml", judge if coding == "utf-8" and "p=0.9" in name else right)


def sliderunner(random: Random, folder: Path) -> Attempt:
    """SlideRunner's database with odd cells, tables that are something else, or broken pages."""
    from metaphase.detections.formats.sliderunner import _SCHEMA

    file = folder / "a.sqlite"
    connection = sqlite3.connect(file)
    connection.text_factory = bytes
    connection.executescript(_SCHEMA)
    rows: dict[str, list[list[Any]]] = {
        "Slides (uid, filename, width, height, directory)": [
            [1, "s1.tif", 100, 100, "d"],
            [2, "s2.tif", 5, 5, ""],
        ],
        "Classes (uid, name)": [[1, "mitosis"], [2, "other"]],
        "Annotations (uid, slide, deleted, type, agreedClass, description)": [
            [1, 1, 0, 1, 1, "p=0.9"],
            [2, 2, 0, 1, 2, ""],
        ],
        "Annotations_coordinates (annoId, coordinateX, coordinateY)": [[1, 10, 20], [2, 5, 6]],
    }
    for _ in range(random.randint(1, 2)):
        row = any_of(random, *rows[any_of(random, *rows)])
        odd = any_of(
            random,
            None,
            "text",
            b"\xff\xfe",
            1e300,
            math.inf,
            -1,
            0,
            2**62,
            1.5,
            "",
            "\ud800".encode("utf-8", "surrogatepass"),
            "x" * 300,
            "../x",
        )
        row[random.randrange(len(row))] = odd
    for table, values in rows.items():
        marks = ", ".join("?" * len(values[0]))
        for row in values:
            try:
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)
            except sqlite3.Error:
                continue
    if random.random() < 0.2:
        connection.execute("UPDATE Slides SET filename = CAST(x'ff00fe' AS TEXT) WHERE uid = 1")
    if random.random() < 0.1:
        connection.execute("DROP TABLE Annotations_coordinates")
        endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
        connection.execute(
            f"CREATE VIEW Annotations_coordinates AS {endless} "
            "SELECT 1 AS annoId, n AS coordinateX, n AS coordinateY FROM c"
        )
    connection.commit()
    connection.close()
    if random.random() < 0.3:
        file.write_bytes(bytes_changed(random, file.read_bytes()))
    return on_table(random, file.name)


# ---- manifests, settings, models, masks, projects ----


def manifest(random: Random, folder: Path) -> Attempt:
    """A cohort whose cases, paths or numbers are odd; nothing may be written beside the results."""
    slide = str(ASSETS / "slide.tif")
    heads = ["case", "he", "phh3", "centre", "split", "mpp", "tissue", "patient", "area_mm2"]
    rows = [
        ["c1", slide, "", "a", "test", "0.25", "whole", "p", "3"],
        ["c2", slide, "", "a", "test", "", "whole", "p", ""],
    ]
    for _ in range(random.randint(1, 2)):
        value = any_of(random, *ODD_VALUES)
        line = any_of(random, heads, *rows)
        line[random.randrange(len(heads))] = "9" * 400 if value is HUGE else str(value)
    text = "\n".join(",".join(map(_quoted, row)) for row in [heads, *rows]) + "\n"
    (folder / "manifest.csv").write_bytes(text.encode("utf-8", "surrogatepass"))
    (folder / "points.csv").write_text("slide,x,y,probability,label\nc1,1,2,0.9,mitosis\n")
    model = str(ASSETS / "tiny.safetensors")
    commands = (
        ("detect", "--manifest", "manifest.csv", "-o", "out", "--model", model),
        ("score", "points.csv", "--manifest", "manifest.csv", "--draws", "0"),
        ("convert", "points.csv", "--manifest", "manifest.csv", "-o", "out", "--to", "coco"),
        ("phh3", "candidates", "manifest.csv", "-w", "out"),
    )
    before = _outside(folder)

    def stayed_inside(printed: str) -> str:
        new = sorted(_outside(folder) - before)
        escapes = "escape sequence printed" if "\x1b" in printed else ""
        return f"wrote {new[0]}" if new else escapes

    return Attempt(any_of(random, *commands), always=stayed_inside)


def _outside(folder: Path) -> set[str]:
    """Whatever lies beside and above the folder of results, as far as a child may reach."""
    near = {str(path) for path in folder.iterdir() if path.name not in ("out", "manifest.csv")}
    above = {
        str(path)
        for path in folder.parent.iterdir()
        if path.name not in ("said.txt", "command.json", "verdict.json")
    }
    return near | above | {str(path) for path in Path("/etc").glob("x*")}


TOML = {
    "simulate": {"cases": 1, "width": 512, "height": 512, "mitoses_per_mm2": [250, 450], "seed": 3},
    "labels": {"positive_um": 12.5},
    "sets": {"easy_negatives": 40, "mpp": 0.5},
    "training": {"augment": "RB", "batch": 16, "epochs": 1, "augmentation": {"translation_px": 3}},
    "ensemble": {"networks": 2, "gamma": 0.2},
    "students": {"gammas": [0.2]},
    "test": {"suppress_um": 12.5},
}


def settings(random: Random, folder: Path) -> Attempt:
    """Settings as TOML with one value of another type, or text that is none."""
    name = any_of(random, "run", "run", "experiments", "simulate", "phh3", "train")
    tree: Any = TOML if name in ("run", "experiments") else dict(TOML["simulate"])
    changed, _, _ = tree_changed(random, tree)
    text = _toml(changed)
    data = text.encode("utf-8", "surrogatepass")
    how = random.randrange(10)
    if how == 0:
        data = b"a = " + b"[" * 100_000
    elif how == 1:
        data = b"cases = " + b"9" * 6000
    elif how == 2:
        data = bytes_changed(random, data)
    elif how == 3:
        data = b"[" + b"a." * 50_000 + b"a]\n" + data
    (folder / "a.toml").write_bytes(data)
    (folder / "manifest.csv").write_text("case,he,phh3,centre,split\n")
    commands: dict[str, tuple[str, ...]] = {
        "run": ("run", "a.toml", "--status", "-o", "out"),
        "experiments": ("experiments", "a.toml", "--status", "-o", "out"),
        "simulate": ("simulate", "out", "--config", "a.toml", "--width", "300", "--cases", "0"),
        "phh3": ("phh3", "candidates", "manifest.csv", "-w", "out", "--config", "a.toml"),
        "train": ("train", "a.toml", "-o", "out"),
    }
    return Attempt(commands[name])


def _toml(tree: Any, where: str = "") -> str:
    if not isinstance(tree, dict):
        return f"value = {_toml_value(tree)}\n"
    plain = [
        f"{json.dumps(key)} = {_toml_value(value)}"
        for key, value in tree.items()
        if not isinstance(value, dict)
    ]
    tables = [
        f"[{where}{json.dumps(key)}]\n" + _toml(value, f"{where}{json.dumps(key)}.")
        for key, value in tree.items()
        if isinstance(value, dict)
    ]
    return "\n".join([*plain, *tables]) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, float | int):
        return str(value) if value is not HUGE else "9" * 400
    return any_of(Random(0), "1979-05-27") if value is None else json.dumps(value)


def model(random: Random, folder: Path) -> Attempt:
    """A model whose card, weights or name is odd."""
    weights = (ASSETS / "tiny.safetensors").read_bytes()
    card = json.loads((ASSETS / "tiny.json").read_bytes())
    judge: Judge = right
    how = random.randrange(10)
    if how < 6:
        card, path, value = tree_changed(random, card)
        number = path and path[-1] in ("delta", "suppress_um", "theta1", "theta2", "gamma", "mpp")
        if number and isinstance(value, float) and not math.isfinite(value):
            judge = must_refuse
    elif how < 8:
        (size,) = struct.unpack_from("<Q", weights)
        header = json.loads(weights[8 : 8 + size])
        header, _, _ = tree_changed(random, header)
        text = json_bytes(random, header)
        weights = (
            struct.pack("<Q", any_of(random, len(text), 0, 2**63, len(weights))) + text + weights[8 + size :]
        )
    else:
        weights = bytes_changed(random, weights)
    if how >= 6 and isinstance(card, dict):
        card["weights_sha256"] = ""
    data = json_bytes(random, card)
    if data != json.dumps(card).encode("utf-8", "surrogatepass"):
        judge = right
    (folder / "m.safetensors").write_bytes(weights)
    (folder / "m.json").write_bytes(data)
    slide = str(ASSETS / "slide.tif")
    (folder / "points.csv").write_text("slide,x,y,probability,label\nc1,1,2,0.9,mitosis\n")
    commands = (
        ("model", "info", "m.safetensors"),
        ("model", "info", "m.json", "--json"),
        ("detect", slide, "-o", "out", "--tissue", "whole", "--mpp", "0.25", "--model", "m.safetensors"),
        ("score", "points.csv", "--card", "m.json", "--mpp", "0.25", "--draws", "0"),
        ("model", "package", "m.safetensors", "-o", "n.safetensors"),
    )
    return Attempt(any_of(random, *commands), judge)


def mask(random: Random, folder: Path) -> Attempt:
    """A tissue mask that is broken, huge, or of another slide."""
    import numpy as np
    from PIL import Image, PngImagePlugin

    place: Any = {"mpp": 1.0, "x": 0, "y": 0, "scale": 4.0}
    changed, path, value = tree_changed(random, place)
    judge: Judge = right
    if path and unsound(path, value, ("mpp", "x", "y", "scale")):
        judge = must_refuse
    text = PngImagePlugin.PngInfo()
    key = "metaphase-tissue"
    stated = json_bytes(random, changed).decode("latin-1")
    if stated != json.dumps(changed):
        judge = right
    text.add_text(key, stated)
    shape = any_of(random, (48, 48), (48, 48), (1, 1), (5, 500), (48, 48, 3), (9000, 9000))
    out = io.BytesIO()
    Image.fromarray(np.full(shape, 255, np.uint8)).save(out, "PNG", pnginfo=text, compress_level=1)
    data = out.getvalue()
    if random.random() < 0.2:
        data, judge = bytes_changed(random, data), right
    (folder / "mask.png").write_bytes(data)
    slide, weights = str(ASSETS / "slide.tif"), str(ASSETS / "tiny.safetensors")
    return Attempt(
        ("detect", slide, "-o", "out", "--tissue", "mask.png", "--mpp", "0.25", "--model", weights), judge
    )


def project(random: Random, folder: Path) -> Attempt:
    """A labelling project with odd items, settings or answers."""
    home = folder / "project"
    home.mkdir()
    heads, rows = (
        ["item", "slide", "x", "y", "case", "mpp"],
        [["i1", "s.tif", "1", "2", "c", ""], ["i2", "s.tif", "5", "6", "c", ""]],
    )
    answers = [
        ["observer", "item", "answer", "seconds", "time"],
        ["Anna", "i1", "mitosis", "1.5", ""],
        ["Bob", "i1", "not", "2", ""],
    ]
    about: Any = {
        "title": "t",
        "question": "q",
        "answers": [{"name": "mitosis", "key": "a"}, {"name": "not", "key": "b"}],
        "close_um": 64,
    }
    which = random.randrange(3)
    value = any_of(random, *ODD_VALUES)
    cell = "9" * 400 if value is HUGE else str(value)
    if which == 0:
        line = any_of(random, heads, *rows)
        line[random.randrange(len(line))] = cell
    elif which == 1:
        line = any_of(random, *answers)
        line[random.randrange(len(line))] = cell
    else:
        about, _, _ = tree_changed(random, about)
    (home / "project.json").write_bytes(json_bytes(random, about))
    for name, table in (("project/items.csv", [heads, *rows]), ("answers.csv", answers)):
        text = "\n".join(",".join(map(_quoted, row)) for row in table) + "\n"
        data = text.encode("utf-8", "surrogatepass")
        (folder / name).write_bytes(bytes_changed(random, data) if random.random() < 0.1 else data)
    if random.random() < 0.15:
        (home / "answers.sqlite").write_bytes(
            any_of(random, b"", b"x" * 5000, random.randbytes(5000), b"SQLite format 3\0" + bytes(100))
        )
    return Attempt(
        any_of(
            random,
            ("label", "import", "project", "answers.csv"),
            ("label", "export", "project", "o.csv"),
            ("label", "merge", "project"),
        )
    )


# ---- options, names, special files, workspaces ----

NUMERIC_OPTIONS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("detect", "{slide}", "-o", "out", "--tissue", "whole", "--model", "{model}"): (
        "--mpp",
        "--threshold",
        "--theta1",
        "--theta2",
        "--suppress-um",
        "--smooth-um",
        "--floor",
        "--tile",
        "--batch",
        "--device",
        "--precision",
        "--format",
        "--tissue",
        "--model",
    ),
    ("score", "points.csv", "--mpp", "0.25", "--area", "5"): (
        "--mpp",
        "--area",
        "--theta1",
        "--theta2",
        "--draws",
        "--threshold",
    ),
    ("convert", "points.csv", "-o", "out.csv"): ("--mpp", "--threshold", "--suppress-um", "--to"),
    ("evaluate", "mitoses", "--truth", "points.csv", "--predictions", "points.csv", "--mpp", "0.25"): (
        "--radius-um",
        "--border-um",
        "--bootstrap",
        "--threshold",
        "--matching",
        "--by",
        "--split",
    ),
    ("info", "{slide}"): ("--mpp",),
    ("tissue", "{slide}", "-o", "out"): ("--mpp",),
    ("simulate", "out", "--width", "300", "--height", "300", "--cases", "1", "--centres", "1"): (
        "--cases",
        "--width",
        "--height",
        "--centres",
        "--seed",
    ),
}


def options(random: Random, folder: Path) -> Attempt:
    """An option with a number that cannot be, or with text."""
    command = any_of(random, *NUMERIC_OPTIONS)
    option = any_of(random, *NUMERIC_OPTIONS[command])
    value = any_of(
        random,
        "nan",
        "inf",
        "-inf",
        "-1",
        "0",
        "1e308",
        "1e-308",
        "1e-9",
        "5",
        "-0.0",
        "9" * 400,
        "x",
        "",
        " ",
        "mps",
        "cuda:99",
        "meta",
        "../x",
        ".",
        "\x1b[31m",
        "1e5",
        "0.5",
        "٣",
    )
    (folder / "points.csv").write_text(
        "slide,x,y,probability,label\nc1,1,2,0.9,mitosis\nc1,50,60,0.7,mitosis\n"
    )
    names = {"{slide}": str(ASSETS / "slide.tif"), "{model}": str(ASSETS / "tiny.safetensors")}
    judge = (
        must_refuse
        if value in ("nan", "inf", "-inf", "1e308") and option not in ("--by", "--split")
        else right
    )
    arguments = [*(names.get(part, part) for part in command), option, value]

    def quiet(printed: str) -> str:
        return "escape sequence printed" if "\x1b" in printed else ""

    return Attempt(arguments, judge, quiet)


def names(random: Random, folder: Path) -> Attempt:
    """A sound file with an odd name; two slides, of which one must not take the other with it."""
    stem = any_of(
        random,
        b"\xff\xfe",
        b"a\nb",
        b"\x1b[31mred",
        b"a" * 240,
        "é".encode(),
        b"NA",
        b"None",
        b"=1+2",
        b"-x",
        b" ",
        b"a b",
        b"%2F",
        b"..a",
        b"$(id)",
        b"<b>",
        b"{x}",
        b"[bold]",
        b"\xe2\x80\xaegnp",
        b"CON",
        b"x" * 249,
        b"nan",
        b"1e5",
        b"0001",
    )
    slide = (ASSETS / "slide.tif").read_bytes()
    name = stem + any_of(random, b".tif", b".tif", b".csv")
    if name.endswith(b".csv"):
        (folder / os.fsdecode(name)).write_text("x,y,probability\n1,2,0.9\n")
        command: tuple[str | bytes, ...] = any_of(
            random,
            ("convert", b"./" + name, "-o", "out.csv"),
            ("convert", b"./" + name, "-o", "out", "--to", "qupath"),
            ("score", b"./" + name, "--mpp", "0.25", "--area", "3", "--draws", "0"),
            ("convert", b"./" + name, "-o", "out.sqlite"),
            ("convert", b"./" + name, "-o", "out", "--to", "asap"),
        )
    else:
        (folder / os.fsdecode(name)).write_bytes(slide)
        (folder / "sound.tif").write_bytes(slide)
        weights = str(ASSETS / "tiny.safetensors")
        command = any_of(
            random,
            ("info", b"./" + name),
            ("info", b"./" + name, "--json"),
            ("tissue", b"./" + name, "-o", "out"),
            ("detect", b"./" + name, "sound.tif", "-o", "out", "--tissue", "whole", "--model", weights),
            (
                "detect",
                b"./" + name,
                "-o",
                "out",
                "--tissue",
                "whole",
                "--model",
                weights,
                "--format",
                "csv",
                "--json",
            ),
        )
    both = "sound.tif" in command

    def went_on(printed: str) -> str:
        if "\x1b" in printed:
            return "escape sequence printed"
        lost = both and not Path("out/sound/report.html").is_file()
        return "the other slide was lost" if lost or (both and not Path("out/index.html").is_file()) else ""

    return Attempt(command, always=went_on)


def special(random: Random, folder: Path) -> Attempt:
    """Something that is no plain file, wherever a file is read."""
    name = any_of(
        random,
        "x.tif",
        "x.csv",
        "x.parquet",
        "x.geojson",
        "x.json",
        "x.xml",
        "x.sqlite",
        "x.toml",
        "x.png",
        "x.safetensors",
    )
    path = folder / name
    kind = random.randrange(7)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(name)
    elif kind == 2:
        path.symlink_to(any_of(random, "/dev/zero", "/dev/random", "/dev/full", "/dev/null", "/dev/tty"))
    elif kind == 3:
        path.symlink_to(name)
    elif kind == 4:
        path.mkdir()
    elif kind == 5:
        path.symlink_to("nowhere")
    else:
        path.symlink_to(any_of(random, "/proc/self/mem", "/proc/self/environ", "/proc/kmsg"))
    slide, weights = str(ASSETS / "slide.tif"), str(ASSETS / "tiny.safetensors")
    (folder / "points.csv").write_text("slide,x,y,probability,label\nc1,1,2,0.9,mitosis\n")
    (folder / "project").mkdir()
    (folder / "project" / any_of(random, "items.csv", "project.json", "answers.sqlite")).symlink_to(
        folder / name
    )
    commands: tuple[tuple[str, ...], ...] = (
        ("info", name),
        ("tissue", name, "-o", "out"),
        ("convert", name, "-o", "out.csv", "--mpp", "0.25"),
        ("score", name, "--mpp", "0.25", "--draws", "0"),
        ("detect", slide, "-o", "out", "--model", name),
        ("detect", slide, "-o", "out", "--model", weights, "--tissue", name),
        ("detect", "--manifest", name, "-o", "out", "--model", weights),
        ("detect", name, "-o", "out", "--model", weights, "--tissue", "whole", "--mpp", "0.25"),
        ("detect", slide, "-o", name, "--model", weights, "--tissue", "whole"),
        ("run", name, "--status"),
        ("simulate", "out", "--config", name),
        ("model", "info", name),
        ("score", "points.csv", "--card", name, "--mpp", "0.25"),
        ("label", "export", "project", "o.csv"),
        ("label", "import", "project", name),
        ("convert", "points.csv", "-o", name),
        ("train", name, "-o", "out"),
    )
    return Attempt(any_of(random, *commands))


def workspace(random: Random, folder: Path) -> Attempt:
    """What an earlier run left, with one file damaged: the result is the same, or there is an error."""
    shutil.copytree(ASSETS / "out", folder / "out")
    undisturbed = _numbers(folder / "out" / "slide" / "summary.json")
    files = sorted(path for path in (folder / "out").rglob("*") if path.is_file())
    victim = any_of(random, *files)
    data = victim.read_bytes()
    how = random.randrange(6)
    if how == 0:
        victim.unlink()
        victim.mkdir()
    elif how == 1:
        victim.unlink()
        os.mkfifo(victim)
    elif victim.suffix == ".json" and how < 5:
        changed, _, _ = tree_changed(random, json.loads(data))
        victim.write_bytes(json_bytes(random, changed))
    else:
        victim.write_bytes(bytes_changed(random, data))
    if random.random() < 0.3:
        (folder / "out" / "errors.log").mkdir(exist_ok=True)
    if random.random() < 0.4:
        for note in (folder / "out" / "slide" / "stages").glob("search*.json"):
            if note.is_file():
                note.unlink()
        (folder / "out" / "slide" / "tiles.journal").write_bytes(
            any_of(random, b"", bytes(100), b'{"job": "x"}\n' + bytes(60), b"\xff" * 50)
        )

    def same(_printed: str) -> str:
        now = _numbers(folder / "out" / "slide" / "summary.json")
        return "" if now == undisturbed else f"{victim.name}: {undisturbed} became {now}"

    return Attempt(SEARCH, same)


def _numbers(summary: Path) -> Any:
    if not summary.is_file():
        return None
    content = json.loads(summary.read_text())
    return [
        content["mitoses"],
        content["score"]["count"],
        content["score"]["grade"],
        content["mpp"],
        content["tissue_mm2"],
    ]


FAMILIES: dict[str, tuple[Maker, int]] = {
    "tiff": (tiff, 22),
    "sparse": (sparse, 6),
    "large-tile": (large_tile, 4),
    "image": (image, 9),
    "csv": (csv_table, 8),
    "parquet": (parquet_table, 7),
    "geojson": (geojson, 7),
    "coco": (coco, 5),
    "grand-challenge": (grand_challenge, 4),
    "asap": (asap, 5),
    "sliderunner": (sliderunner, 5),
    "manifest": (manifest, 6),
    "toml": (settings, 5),
    "model": (model, 6),
    "mask": (mask, 4),
    "project": (project, 4),
    "options": (options, 6),
    "names": (names, 4),
    "special": (special, 4),
    "workspace": (workspace, 1),
}
"""Makers, and their shares of the inputs."""


CORPUS: dict[str, tuple[int, ...]] = {
    "tiff": (20, 25, 39, 47, 55, 57, 98, 147, 158, 166),
    "sparse": (8, 9, 17, 40),
    "parquet": (0, 13, 18, 21, 23, 34, 43, 119, 121),
    "geojson": (10, 13, 15, 21, 35),
    "coco": (5, 27, 66),
    "grand-challenge": (3, 32),
    "asap": (3, 11),
    "sliderunner": (16, 68),
    "toml": (2, 14, 23),
}
"""Inputs of seed 1 that failed once, each in another way; tests beside the readers name what was wrong."""
CORPUS_SEED = 1


def corpus() -> list[Trial]:
    """Inputs that failed once."""
    return [Trial(name, number, FAMILIES[name][0]) for name, numbers in CORPUS.items() for number in numbers]


def trials(inputs: int, families: Sequence[str]) -> list[Trial]:
    """So many inputs, shared by the families."""
    whole = sum(FAMILIES[name][1] for name in families)
    return [
        Trial(name, number, FAMILIES[name][0])
        for name in families
        for number in islice(count(), math.ceil(inputs * FAMILIES[name][1] / whole))
    ]
