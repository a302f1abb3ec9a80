"""Warnings with what to do about them, and what the model was made for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"no tissue",
        "Look at the slide; if it does hold tissue, give a mask of your own with --tissue.",
    ),
    (
        r"phh3|\bdab\b|immunohisto|brown",
        "Use the H&E slide of the same tissue: this model cannot count on another stain.",
    ),
    (
        r"focus|blur|not sharp",
        "Look at the hotspot and the gallery: where nuclei are not sharp, mitoses are missed. "
        "Rescan, then count again.",
    ),
    (
        r"--mpp|do not fit together|\bscale\b",
        "Check the micrometres per pixel with the scanner's maker: the area of the hotspot depends on them.",
    ),
    (
        r"\b20x|coarser|interpolated",
        "The count may be far off, in either direction. Scan at 40x where the number matters.",
    ),
    (
        r"stain|colou?r",
        "Check the gallery by eye: if it shows many cells that are no mitoses, or if you find mitoses "
        "without a dot, tune the threshold on slides of this laboratory first.",
    ),
    (
        r"mm2 of tissue",
        "Take a slide with more tumour where there is one; the number is not scaled up to the whole circle.",
    ),
    (
        r"decod|damaged|tiles?\b",
        "Parts of the slide were not seen. Copy or export the file again, and repeat.",
    ),
)
"""Patterns in the order in which they are tried, and the advice for the first that fits."""


@dataclass(frozen=True)
class Warned:
    """One warning and its next step; the latter is empty where the warning says it all."""

    text: str
    advice: str


@dataclass(frozen=True)
class Notice:
    """What stands above everything else about the model's purpose."""

    title: str
    text: str


def warned(texts: Iterable[str]) -> tuple[Warned, ...]:
    """Each different warning once, in order, and each piece of advice with the first that calls for it."""
    unique = dict.fromkeys(text.strip() for text in texts if text.strip())
    given: set[str] = set()
    found = []
    for text in unique:
        advice = _advice(text)
        found.append(Warned(text[0].upper() + text[1:], "" if advice in given else advice))
        given.add(advice)
    return tuple(found)


def notice_of(card: Mapping[str, Any]) -> Notice | None:
    """What the model's card says against clinical use, or None where it says nothing."""
    sources = [str(source.get("name", "")) for source in card.get("data") or ()]
    simulated = [bool(re.search("simulat|synthetic", name, re.IGNORECASE)) for name in sources]
    use = str(card.get("intended_use") or "").strip()
    if simulated and all(simulated):
        return Notice(
            "Made with a model trained on simulated slides only",
            f"It shows how the software works; its numbers say nothing about a patient. {use}".strip(),
        )
    if any(simulated):
        return Notice("Made with a model trained partly on simulated slides", use)
    if re.search(r"research|not for (diagnos|clinical)", use, re.IGNORECASE):
        return Notice("For research", use)
    return None


def _advice(text: str) -> str:
    return next((advice for pattern, advice in ADVICE if re.search(pattern, text, re.IGNORECASE)), "")
