"""From a folder of slides to a manifest of pairs: names propose, the tissue decides, the odd is named."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from metaphase.base.arrays import Box
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.foreign import files_in
from metaphase.base.stages import Report, silent
from metaphase.base.tables import as_text, named, natural, read_table, slide_names, write_table
from metaphase.images.inspection import inspect_slide
from metaphase.lab.folder import Lab
from metaphase.labels.registration.outputs import register_slides
from metaphase.labels.registration.pair import same_tissue
from metaphase.slides.opening import WHOLE_SLIDES, SlideSource

Role = Literal["he", "phh3", ""]
STAIN_WORDS: dict[str, Role] = {
    **dict.fromkeys(("he", "h&e", "hne", "hande", "hes", "hematoxylin", "haematoxylin", "eosin"), "he"),
    **dict.fromkeys(("phh3", "pph3", "ph3", "ihc", "dab"), "phh3"),
}
ROLES: dict[str, Role] = {"H&E": "he", "DAB": "phh3"}
CALLED = {"he": "H&E", "phh3": "PHH3"}
SURE = 0.9
"""A stain that is so sure overrules the name."""
PROBE_PX = 64
MOST_TRIES = 60
"""Pairs of slides that are looked at where names do not help."""
LEAST_PATIENTS = 3
"""One to learn from, one to choose the threshold, one to test."""
TEST_SHARE, VALIDATION_SHARE = 0.2, 0.25
Ask = Callable[[str], bool]


@dataclass(frozen=True)
class Seen:
    """A slide as it was found."""

    path: Path
    key: str
    """What is left of its name without the words for stains."""
    named: Role
    """What its name says."""
    looks: Role = ""
    """What it looks like, where that is sure."""
    problem: str = ""
    """Why it cannot be used."""

    @property
    def role(self) -> Role:
        """What it is taken for."""
        return self.looks or self.named


@dataclass(frozen=True)
class Found:
    """A pair of slides whose tissue corresponds."""

    case: str
    he: Seen
    phh3: Seen
    note: str = ""
    """What is odd about it."""


@dataclass(frozen=True)
class Paired:
    """What came of a folder."""

    pairs: tuple[Found, ...]
    left_out: tuple[tuple[Path, str], ...]
    """Slides that are in no pair, and why."""

    @property
    def notes(self) -> list[str]:
        """What is odd, slide by slide."""
        odd = [f"{one.case}: {one.note}" for one in self.pairs if one.note]
        return odd + [f"{path.name}: {why}" for path, why in self.left_out]


# ---- finding slides ----


def find_slides(folder: Path, leave_out: Iterable[Path] = ()) -> list[Path]:
    """Slide files below a folder, hidden ones and those of some folders left out."""
    if not folder.is_dir():
        raise UsageError("no such folder", path=folder, next_step="give the folder with the slides")
    skipped = [path.resolve() for path in leave_out]
    found = [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in WHOLE_SLIDES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not any(path.resolve().is_relative_to(position) for position in skipped)
    ]
    return sorted(found, key=lambda path: natural(str(path)))


def named_role(path: Path, folder: Path) -> tuple[str, Role]:
    """What a slide is called without the words for stains, and the stain that its name tells.

    >>> named_role(Path("s/p1/HE.tif"), Path("s")), named_role(Path("s/PHH3/p1_a.svs"), Path("s"))
    (('p1', 'he'), ('p1_a', 'phh3'))
    """
    kept: list[str] = []
    role: Role = ""
    for part in path.relative_to(folder).with_suffix("").parts:
        words = re.split(r"([\s_.\-]+)", part)
        roles = [STAIN_WORDS.get(word.lower(), "") for word in words]
        role = next((one for one in roles if one), role)
        left = "".join(word for word, one in zip(words, roles, strict=True) if not one)
        kept.append(re.sub(r"[\s_.\-]+", lambda gap: gap[0][0], left).strip(" _.-"))
    return "/".join(part for part in kept if part), role


def look_at(path: Path, folder: Path) -> Seen:
    """Open a slide, guess its stain, and read its last corner, which a copy that was cut off lacks."""
    key, role = named_role(path, folder)
    try:
        with SlideSource(path).open() as slide:
            _ = slide.mpp
            stain = inspect_slide(slide).stain
            for level in (0, len(slide.levels) - 1):
                size = slide.levels[level]
                side = min(PROBE_PX, size.width, size.height)
                slide.read_level(level, Box(size.width - side, size.height - side, side, side))
    except MetaphaseError as error:
        return Seen(path, key, role, problem=error.problem)
    looks = ROLES.get(stain.name, "") if stain.confidence >= SURE else ""
    if not looks and not role:
        return Seen(path, key, role, problem=f"neither name nor colours show the stain ({stain.name})")
    return Seen(path, key, role, looks)


# ---- pairing ----


def pair_slides(lab: Lab, folder: Path, *, report: Report = silent) -> Paired:
    """Find, look at and pair the slides of a folder; registration says whether a pair is one."""
    own = (lab.registration, lab.cases, lab.detector, lab.results, lab.root / "model")
    paths = find_slides(folder, own)
    if not paths:
        raise UsageError(
            f"no slide in the folder ({', '.join(sorted(WHOLE_SLIDES))})",
            path=folder,
            next_step="give the folder with the slides",
        )
    seen = []
    for number, path in enumerate(paths):
        report(f"looking at {path.name}", number, len(paths))
        seen.append(look_at(path, folder))
    problems = {one.path: one.problem for one in seen if one.problem}
    usable = [one for one in seen if not one.problem]
    proposed, rest = propose(usable)
    pairs, reasons = list[Found](), dict[Path, str]()
    for number, pair in enumerate(proposed):
        report(f"registering {pair.case}", number, len(proposed))
        verdict, why = _verdict(lab, pair)
        if verdict == "reliable":
            pairs.append(pair)
        else:
            because = f"{pair.he.path.name} and {pair.phh3.path.name}: {why}"
            reasons |= dict.fromkeys((pair.he.path, pair.phh3.path), because)
            rest += [pair.he, pair.phh3]
    by_content, rest = _by_content(lab, rest, report)
    left_out = problems | {one.path: reasons.get(one.path) or _alone(one, seen) for one in rest}
    often, unique = Counter[str](), []
    for one in sorted((*pairs, *by_content), key=lambda one: natural(one.case)):
        often[one.case] += 1  # a second of the same name is numbered
        number = often[one.case]
        unique.append(one if number == 1 else replace(one, case=f"{one.case}-{number}"))
    return Paired(tuple(unique), tuple(sorted(left_out.items(), key=lambda each: natural(str(each[0])))))


def propose(slides: Sequence[Seen]) -> tuple[list[Found], list[Seen]]:
    """Pairs by name, one H&E and one PHH3 slide of the same key; and the slides left over."""
    groups: dict[str, list[Seen]] = defaultdict(list)
    for one in slides:
        groups[one.key.lower()].append(one)
    pairs, rest = [], list[Seen]()
    for group in groups.values():
        he, phh3 = ([one for one in group if one.role == role] for role in ("he", "phh3"))
        if len(he) == len(phh3) == 1:
            pairs.append(
                Found(he[0].key.replace("/", "-") or "case", he[0], phh3[0], _swapped(he[0], phh3[0]))
            )
        else:
            rest += group
    return pairs, rest


def _swapped(he: Seen, phh3: Seen) -> str:
    if he.named == "phh3" and phh3.named == "he":
        return f"the names are swapped: {phh3.path.name} looks like PHH3 and {he.path.name} like H&E; used so"
    odd = [one for one in (he, phh3) if one.named and one.named != one.role]
    return "; ".join(f"{one.path.name} looks like {CALLED[one.role]} and is used as such" for one in odd)


def _verdict(lab: Lab, pair: Found) -> tuple[str, str]:
    try:
        summary, _ = register_slides(
            SlideSource(pair.he.path), SlideSource(pair.phh3.path), lab.registration / pair.case
        )
    except MetaphaseError as error:
        return "failed", str(error)
    return summary["verdict"], "; ".join(summary["reasons"])


def _by_content(lab: Lab, rest: list[Seen], report: Report) -> tuple[list[Found], list[Seen]]:
    """Pair what names left over, by looking which tissue corresponds."""
    he, phh3 = ([one for one in rest if one.role == role] for role in ("he", "phh3"))
    tries = [each for each in product(he, phh3) if each[0].key.lower() != each[1].key.lower()]
    often = Counter(one.key.lower() for one in rest)  # of more than two, none was tried by name
    tries += [each for each in product(he, phh3) if each not in tries and often[each[0].key.lower()] > 2]
    found: list[Found] = []
    taken: set[Path] = set()
    for number, (one, other) in enumerate(tries[:MOST_TRIES]):
        if {one.path, other.path} & taken:
            continue
        report(f"comparing {one.path.name} with {other.path.name}", number, len(tries))
        if not _same(one, other):
            continue
        text = f"paired by content, not by name: {one.path.name} shows the tissue of {other.path.name}"
        note = "; ".join(filter(None, (text, _swapped(one, other))))
        pair = Found(one.key.replace("/", "-"), one, other, note)
        verdict, _ = _verdict(lab, pair)
        if verdict == "reliable":
            found.append(pair)
            taken |= {one.path, other.path}
    return found, [one for one in rest if one.path not in taken]


def _same(he: Seen, phh3: Seen) -> bool:
    with SlideSource(he.path).open() as first, SlideSource(phh3.path).open() as second:
        return same_tissue(first, second)


def _alone(one: Seen, slides: Sequence[Seen]) -> str:
    """Why a slide has no partner."""
    other = "phh3" if one.role == "he" else "he"
    if one.named and one.looks and one.named != one.looks:
        return f"looks like {CALLED[one.looks]}, not like {CALLED[one.named]} as its name says: wrong stain"
    partners = [each for each in slides if each.key.lower() == one.key.lower() and each.path != one.path]
    spoilt = [each.path.name for each in partners if each.problem]
    if spoilt:
        return f"its partner cannot be used: {named(spoilt)}"
    if not partners:
        return f"its {CALLED[other]} slide is missing, and none of those left shows its tissue"
    return f"its partner is in doubt: {named(each.path.name for each in partners)}"


# ---- patients, laboratories, splits ----


def groups_of(cases: Sequence[str]) -> dict[str, list[str]]:
    """Cases whose names differ in their last part only, where that does not hold for all of them.

    >>> groups_of(["p1_a", "p1_b", "p2_a"]), groups_of(["case_1", "case_2"])
    ({'p1': ['p1_a', 'p1_b']}, {})
    """
    stems: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        stem = re.sub(r"[\s_.\-]+[^\s_.\-]+$", "", case)
        stems[stem].append(case)
    return {stem: group for stem, group in stems.items() if len(group) > 1 and len(stems) > 1}


def stated_facts(table: Path | None, folder: Path) -> dict[str, dict[str, str]]:
    """Patient and laboratory by the name of a slide or case, from a table given or found in the folder."""
    tables = [table] if table is not None else files_in(folder, "*.csv")
    facts: dict[str, dict[str, str]] = {}
    for path in tables:
        frame = read_table(path)
        names = [name for name in ("case", "slide", "he", "phh3", "file") if name in frame.columns]
        columns = [name for name in ("patient", "laboratory") if name in frame.columns]
        if not names or not columns:
            if table is None:
                continue
            raise UsageError(
                f"has the columns {named(map(str, frame.columns))}",
                path=path,
                next_step="name the slides in a column slide or case, and give patient, laboratory or both",
            )
        for row in frame[[*names, *columns]].apply(as_text).to_dict("records"):
            known = {key: row[key] for key in columns}
            facts |= {called: known for column in names for called in slide_names(row[column])}
    return facts


def manifest_of(
    paired: Paired,
    facts: dict[str, dict[str, str]],
    earlier: pd.DataFrame | None = None,
    *,
    ask: Ask | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """The manifest, split by patient, and what was supposed where nothing says it.

    Patients of an earlier manifest keep their split.
    """
    cases = [one.case for one in paired.pairs]
    known, notes = [_facts_of(one, facts) for one in paired.pairs], list[str]()
    groups = {} if all(each.get("patient") for each in known) else groups_of(cases)
    patient_of = {case: case for case in cases}
    for stem, group in groups.items():
        if ask is None or ask(f"Are {named(group)} slides of one patient ({stem})?"):
            patient_of |= dict.fromkeys(group, stem)
            if ask is None:
                notes.append(f"{named(group)} are treated as one patient, {stem}, and stay in one split")
    rows = pd.DataFrame(
        {
            "case": one.case,
            "he": str(one.he.path.resolve()),
            "phh3": str(one.phh3.path.resolve()),
            "laboratory": each.get("laboratory") or "",
            "patient": each.get("patient") or patient_of[one.case],
        }
        for one, each in zip(paired.pairs, known, strict=True)
    )
    rows = rows.reindex(columns=["case", "he", "phh3", "laboratory", "patient"])
    kept = {} if earlier is None else dict(zip(earlier["patient"], earlier["split"], strict=True))
    return rows.assign(split=splits_of(rows, kept)), notes


def _facts_of(pair: Found, facts: dict[str, dict[str, str]]) -> dict[str, str]:
    """What a table says of a pair; else the folder in which it lies is the laboratory."""
    for name in (pair.case, *slide_names(str(pair.he.path)), *slide_names(str(pair.phh3.path))):
        if name in facts:
            return facts[name]
    return {"laboratory": pair.he.key.split("/")[0] if "/" in pair.he.key else ""}


def splits_of(rows: pd.DataFrame, kept: dict[str, str]) -> list[str]:
    """A split for each row; all slides of a patient have one, and laboratories take turns. New ones train."""
    patients = list(dict.fromkeys(rows["patient"]))
    if len(patients) < LEAST_PATIENTS:
        raise UsageError(
            f"there are pairs of {len(patients)} patients, and {LEAST_PATIENTS} are needed: one to "
            "train on, one to choose the threshold, one to test",
            next_step="add pairs; until then use the bundled model, and calibrate it (metaphase calibrate)",
        )
    if kept:
        return [kept.get(patient) or "train" for patient in rows["patient"]]
    laboratory = rows.drop_duplicates("patient", keep="last").set_index("patient")["laboratory"]
    drawn = pd.Series([patients[number] for number in np.random.default_rng(0).permutation(len(patients))])
    turns = drawn.groupby(drawn.map(laboratory)).cumcount()
    dealt = drawn[turns.argsort(kind="stable")].tolist()
    test, validation = (max(1, round(share * len(dealt))) for share in (TEST_SHARE, VALIDATION_SHARE))
    split = ["test"] * test + ["validation"] * validation + ["train"] * (len(dealt) - test - validation)
    owner = dict(zip(dealt, split, strict=True))
    return [owner[patient] for patient in rows["patient"]]


def write_slides(lab: Lab, paired: Paired) -> None:
    """What became of every slide."""
    rows = [
        {"slide": str(one.path), "role": role, "case": pair.case, "what": pair.note}
        for pair in paired.pairs
        for role, one in (("he", pair.he), ("phh3", pair.phh3))
    ]
    rows += [{"slide": str(path), "role": "", "case": "", "what": why} for path, why in paired.left_out]
    write_table(lab.slides, pd.DataFrame(rows, columns=["slide", "role", "case", "what"]))
