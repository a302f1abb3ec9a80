"""From a folder of slides to a manifest of pairs: names propose, the tissue decides, the odd is named."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True)
class Seen:
    """A slide as it was found."""

    path: Path
    key: str
    """Its name without the words for stains."""
    named: Role
    """The stain in its name."""
    looks: Role = ""
    """The stain it shows, where that is certain."""
    problem: str = ""
    """Why it cannot be used."""

    @property
    def role(self) -> Role:
        """Its stain: as it looks, else as its name says."""
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
        odd = [f"{pair.case}: {pair.note}" for pair in self.pairs if pair.note]
        return odd + [f"{path.name}: {why}" for path, why in self.left_out]


# ---- finding slides ----


def find_slides(folder: Path, leave_out: Iterable[Path] = ()) -> list[Path]:
    """Slide files below a folder, hidden ones and those of some folders left out."""
    if not folder.is_dir():
        raise UsageError("no such folder", path=folder, next_step="give the folder with the slides")
    skipped = {path.resolve() for path in leave_out}
    slides = [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in WHOLE_SLIDES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and skipped.isdisjoint(path.resolve().parents)
    ]
    if not slides:
        raise UsageError(
            f"no slide in the folder ({', '.join(sorted(WHOLE_SLIDES))})",
            path=folder,
            next_step="give the folder with the slides",
        )
    return sorted(slides, key=lambda path: natural(str(path)))


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
        role = next(filter(None, roles), role)
        left = "".join(word for word, stain in zip(words, roles, strict=True) if not stain)
        kept.append(re.sub(r"[\s_.\-]+", lambda gap: gap[0][0], left).strip(" _.-"))
    return "/".join(filter(None, kept)), role


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
    paths, seen = find_slides(folder, own), list[Seen]()
    for number, path in enumerate(paths):
        report(f"looking at {path.name}", number, len(paths))
        seen.append(look_at(path, folder))
    proposed, rest = propose([slide for slide in seen if not slide.problem])
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
    pairs += _by_content(lab, rest, proposed, report)
    used = {slide.path for pair in pairs for slide in (pair.he, pair.phh3)}
    left_out = [
        (slide.path, slide.problem or reasons.get(slide.path) or _alone(slide, seen))
        for slide in seen
        if slide.path not in used
    ]
    return Paired(_numbered(pairs), tuple(left_out))


def _numbered(pairs: list[Found]) -> tuple[Found, ...]:
    """The pairs in order, of which no two have the same name."""
    often, unique = Counter[str](), []
    for pair in sorted(pairs, key=lambda pair: natural(pair.case)):
        often[pair.case] += 1
        number = often[pair.case]
        unique.append(pair if number == 1 else replace(pair, case=f"{pair.case}-{number}"))
    return tuple(unique)


def propose(slides: Sequence[Seen]) -> tuple[list[Found], list[Seen]]:
    """Pairs by name, one H&E and one PHH3 slide of the same key; and the slides left over."""
    groups: dict[str, list[Seen]] = defaultdict(list)
    for slide in slides:
        groups[slide.key.lower()].append(slide)
    pairs, rest = [], list[Seen]()
    for group in groups.values():
        he, phh3 = _by_stain(group)
        if len(he) == len(phh3) == 1:
            pairs.append(_pair(he[0], phh3[0]))
        else:
            rest += group
    return pairs, rest


def _by_stain(slides: Sequence[Seen]) -> tuple[list[Seen], ...]:
    return tuple([slide for slide in slides if slide.role == role] for role in ("he", "phh3"))


def _pair(he: Seen, phh3: Seen, note: str = "") -> Found:
    """Two slides as a pair, with what is odd about them."""
    if he.named == "phh3" and phh3.named == "he":
        odd = [
            f"the names are swapped: {phh3.path.name} looks like PHH3 and {he.path.name} like H&E; used so"
        ]
    else:
        odd = [
            f"{slide.path.name} looks like {CALLED[slide.role]} and is used as such"
            for slide in (he, phh3)
            if slide.named and slide.named != slide.role
        ]
    return Found(he.key.replace("/", "-") or "case", he, phh3, "; ".join(filter(None, (note, *odd))))


def _verdict(lab: Lab, pair: Found) -> tuple[str, str]:
    he, phh3 = SlideSource(pair.he.path), SlideSource(pair.phh3.path)
    try:
        summary, _ = register_slides(he, phh3, lab.registration / pair.case)
    except MetaphaseError as error:
        return "failed", str(error)
    return summary["verdict"], "; ".join(summary["reasons"])


def _by_content(lab: Lab, rest: list[Seen], tried: Sequence[Found], report: Report) -> list[Found]:
    """Pair what names left over, by looking which tissue corresponds."""
    known = [(pair.he, pair.phh3) for pair in tried]
    tries = [pair for pair in product(*_by_stain(rest)) if pair not in known]
    pairs: list[Found] = []
    taken: set[Path] = set()
    for number, (he, phh3) in enumerate(tries[:MOST_TRIES]):
        if {he.path, phh3.path} & taken:
            continue
        report(f"comparing {he.path.name} with {phh3.path.name}", number, len(tries))
        if _same(he, phh3):
            note = f"paired by content, not by name: {he.path.name} shows the tissue of {phh3.path.name}"
            pair = _pair(he, phh3, note)
            if _verdict(lab, pair)[0] == "reliable":
                pairs.append(pair)
                taken |= {he.path, phh3.path}
    return pairs


def _same(he: Seen, phh3: Seen) -> bool:
    with SlideSource(he.path).open() as first, SlideSource(phh3.path).open() as second:
        return same_tissue(first, second)


def _alone(slide: Seen, slides: Sequence[Seen]) -> str:
    """Why a slide has no partner."""
    if slide.named and slide.looks and slide.named != slide.looks:
        looks, name = CALLED[slide.looks], CALLED[slide.named]
        return f"looks like {looks}, not like {name} as its name says: wrong stain"
    partners = [each for each in slides if each.key.lower() == slide.key.lower() and each.path != slide.path]
    spoilt = [each.path.name for each in partners if each.problem]
    if spoilt:
        return f"its partner cannot be used: {named(spoilt)}"
    if not partners:
        other = CALLED["phh3" if slide.role == "he" else "he"]
        return f"its {other} slide is missing, and none of those left shows its tissue"
    return f"its partner is in doubt: {named(each.path.name for each in partners)}"


# ---- patients, laboratories, splits ----


def groups_of(cases: Iterable[str]) -> dict[str, list[str]]:
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
    facts: dict[str, dict[str, str]] = {}
    for path in files_in(folder, "*.csv") if table is None else [table]:
        frame = read_table(path)
        names = [name for name in ("case", "slide", "he", "phh3", "file") if name in frame.columns]
        columns = [name for name in ("patient", "laboratory") if name in frame.columns]
        if table is not None and not (names and columns):
            raise UsageError(
                f"has the columns {named(map(str, frame.columns))}",
                path=path,
                next_step="name the slides in a column slide or case, and give patient, laboratory or both",
            )
        for row in frame[[*names, *columns]].apply(as_text).to_dict("records") if columns else ():
            known = {key: row[key] for key in columns}
            facts |= {called: known for column in names for called in slide_names(row[column])}
    return facts


def manifest_of(
    paired: Paired,
    facts: dict[str, dict[str, str]],
    earlier: pd.DataFrame | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """The manifest, split by patient, and notes about patients that were guessed from names.

    Patients of an earlier manifest keep their split.
    """
    columns = ["case", "he", "phh3", "laboratory", "patient"]
    rows = pd.DataFrame([_row(pair, facts) for pair in paired.pairs], columns=columns)
    notes = list[str]()
    for stem, group in groups_of(rows["case"]).items() if (rows["patient"] == "").any() else ():
        notes.append(f"{named(group)} are treated as one patient, {stem}, and stay in one split")
        rows.loc[rows["case"].isin(group) & (rows["patient"] == ""), "patient"] = stem
    rows["patient"] = rows["patient"].mask(rows["patient"] == "", rows["case"])
    kept = {} if earlier is None else dict(zip(earlier["patient"], earlier["split"], strict=True))
    return rows.assign(split=splits_of(rows, kept)), notes


def _row(pair: Found, facts: dict[str, dict[str, str]]) -> dict[str, str]:
    """What is known of a pair; without a table the folder in which it lies is the laboratory."""
    names = (pair.case, *slide_names(str(pair.he.path)), *slide_names(str(pair.phh3.path)))
    known = next((facts[name] for name in names if name in facts), None)
    if known is None:
        folder, _, inside = pair.he.key.partition("/")
        known = {"laboratory": folder if inside else ""}
    return {
        "case": pair.case,
        "he": str(pair.he.path.resolve()),
        "phh3": str(pair.phh3.path.resolve()),
        "laboratory": known.get("laboratory", ""),
        "patient": known.get("patient", ""),
    }


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
    """Write the table of all slides: in which pair each is, or why in none."""
    rows = [
        (str(slide.path), role, pair.case, pair.note)
        for pair in paired.pairs
        for role, slide in (("he", pair.he), ("phh3", pair.phh3))
    ]
    rows += [(str(path), "", "", why) for path, why in paired.left_out]
    write_table(lab.slides, pd.DataFrame(rows, columns=["slide", "role", "case", "what"]))
