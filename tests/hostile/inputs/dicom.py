"""DICOM with odd elements: slides of one file and of several, annotations, files that name a remote slide."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import ODD_NUMBERS, ODD_TEXTS, any_of, bytes_changed, json_bytes, tree_changed
from tests.hostile.inputs.sound import ASSETS, on_slide, on_table
from tests.hostile.trials import Attempt

SHARE = 8
SYNTAXES = (
    "1.2.840.10008.1.2", "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.2", "1.2.840.10008.1.2.4.50",
    "1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.201", "1.2.840.10008.1.2.5",
    "1.2.3", "",
)  # fmt: skip
NUMBERS = ("US", "SS", "UL", "SL", "FL", "FD", "UV", "SV")
PLACE = {"url": "http://127.0.0.1:9/dicom-web", "study": "1.2.3", "series": "1.2.4"}
"""Nobody listens there."""


def make(random: Random, folder: Path) -> Attempt:
    import tests.slides.dicoms  # noqa: F401 -- with the packages that made the assets

    how = random.random()
    if how < 0.1:
        (folder / "a.dicomweb").write_bytes(json_bytes(random, tree_changed(random, PLACE)[0]))
        return on_slide(random, "a.dicomweb")
    if how < 0.35:
        (folder / "a.dcm").write_bytes(changed(random, (ASSETS / "ann.dcm").read_bytes()))
        return on_table(random, "a.dcm")
    sources = sorted((ASSETS / any_of(random, "plain", "series")).glob("*.dcm"))
    target = random.randrange(len(sources))
    (folder / "s").mkdir()
    for number, source in enumerate(sources):
        data = source.read_bytes()
        (folder / "s" / source.name).write_bytes(changed(random, data) if number == target else data)
    slide = any_of(random, Path("s"), Path("s") / sources[target].name)
    how = random.random()
    if how < 0.15:
        (folder / "p.csv").write_text("slide,x,y\ns,10,20\n")
        return Attempt(("convert", "p.csv", "-o", "p.dcm", "--slide", str(slide)))
    attempt = on_slide(random, slide)
    if attempt.arguments[0] == "detect" and how < 0.6:
        return Attempt([*attempt.arguments, "--format", "dicom", "--any-stain"])
    return attempt


def changed(random: Random, data: bytes) -> bytes:
    """A file with one or two elements changed, or some of its bytes."""
    import pydicom

    if random.random() < 0.25:
        return bytes_changed(random, data)
    with warnings.catch_warnings(action="ignore"):
        dataset = pydicom.dcmread(io.BytesIO(data))
        for _ in range(any_of(random, 1, 1, 2)):
            with contextlib.suppress(Exception):  # pydicom refuses to make some
                _change(random, dataset)
        if random.random() < 0.1:
            dataset.file_meta.TransferSyntaxUID = any_of(random, *SYNTAXES)
        out = io.BytesIO()
        try:
            dataset.save_as(out, enforce_file_format=random.random() < 0.5)
        except Exception:  # noqa: BLE001 -- or to write them
            return bytes_changed(random, data)
    return out.getvalue()


def _change(random: Random, dataset: Any) -> None:
    holders = [dataset, *_inner(dataset)]
    holder = any_of(random, *holders)
    element = holder[any_of(random, *holder.keys())]
    how = random.random()
    if how < 0.2:
        del holder[element.tag]
    elif element.VR == "SQ":
        items = list(element.value)
        element.value = any_of(random, [], items * 50, [*items, copy.deepcopy(holder)], [type(holder)()])
    elif element.VR in NUMBERS:
        element.value = any_of(random, *ODD_NUMBERS, None, [1, 2, 3], [])
    elif element.VR in ("OB", "OW", "OD", "OF", "OL", "OV", "UN"):
        element.value = any_of(
            random, b"", element.value[: len(element.value) // 2], element.value * 3, b"\xff" * 64
        )
    elif element.VR in ("IS", "DS"):
        element._value = any_of(random, "0", "-1", "99999999999", "1e400", "x", "", ["1", "2"])
    else:
        element._value = any_of(random, *ODD_TEXTS, "1.2.3", ["a", "b"], None)


def _inner(dataset: Any) -> list[Any]:
    """The items of all sequences, at any depth."""
    found = []
    for element in dataset:
        if element.VR == "SQ":
            for item in element.value:
                found += [item, *_inner(item)]
    return found
