"""ASAP's XML with an odd attribute, coding or entity."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of, bytes_changed
from tests.hostile.inputs.sound import on_table
from tests.hostile.trials import Attempt, Judge, must_refuse, right

SHARE = 5


def make(random: Random, folder: Path) -> Attempt:
    corner = '<Coordinate Order="{}" X="{}" Y="{}" />'
    values = [f"{any_of(random, 0, 1, 2)}", "10.5", "20"]
    judge: Judge = right
    if random.random() < 0.6:
        odd = any_of(random, "nan", "inf", "-inf", "", "x", "1e999", "9" * 6000, "1_0", "0x5", "１", "1e300")
        position = random.randrange(3)
        values[position] = odd
        judge = must_refuse if position and odd in ("nan", "inf", "-inf", "1e999", "x", "") else right
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
