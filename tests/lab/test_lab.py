"""A laboratory's thread: odd slides are named, people are waited for, a killed run goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from metaphase.base.errors import OutputError, UsageError
from metaphase.base.files import held
from metaphase.base.provenance import Ingredients
from metaphase.base.stages import Facts, Report, Stage, StageState, run_stages
from metaphase.cli.lab import _shower, _tell_step
from metaphase.cli.lab import lab as commands
from metaphase.cli.progress import progress_bar
from metaphase.lab import pairing, running
from metaphase.lab.folder import Lab, find_lab, write_settings
from metaphase.lab.label_steps import skipped_rounds
from metaphase.lab.pairing import (
    Found,
    Paired,
    Role,
    Seen,
    groups_of,
    look_at,
    manifest_of,
    named_role,
    pair_slides,
    propose,
    splits_of,
    stated_facts,
)
from metaphase.lab.parts import Asked, Reporting, Step, StepProgress, asked_round, say_enough
from metaphase.lab.running import (
    Standing,
    begin,
    go_on,
    hold_folder,
    last_words,
    page_content,
    standings,
    steps_of,
)
from metaphase.labels.observers.project import load_project, read_items
from metaphase.labels.observers.store import AnswerStore, Entry
from metaphase.labels.phh3.cases import read_mitoses
from metaphase.networks.checkpoints import load_model
from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import SimulationConfig
from metaphase.simulation.observers import FOUR_OBSERVERS
from tests.labels.observers.projects import write_project
from tests.learn.run_samples import TINY_LAB
from tests.rehearsal import answer


def seen(name: str, looks: Role = "", problem: str = "") -> Seen:
    key, role = named_role(Path("s") / name, Path("s"))
    return Seen(Path("s") / name, key, role, looks or role, problem)


# ---- pairing ----


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("P01-HE.tif", ("P01", "he")),
        ("P01 phh3.svs", ("P01", "phh3")),
        ("PHH3/B-12.svs", ("B-12", "phh3")),
        ("lab a/p1/H&E.tif", ("lab a/p1", "he")),
        ("12_h&e_x.ndpi", ("12_x", "he")),
        ("the_slide.tif", ("the_slide", "")),
    ],
)
def test_names_tell_key_and_stain(path: str, found: tuple[str, str]) -> None:
    assert named_role(Path("s") / path, Path("s")) == found


def test_pairs_are_proposed_by_name_and_swapped_names_are_told() -> None:
    slides = [seen("a-HE.tif"), seen("a-PHH3.tif"), seen("b-HE.tif", "phh3"), seen("b-PHH3.tif", "he")]
    pairs, rest = propose([*slides, seen("c-HE.tif")])
    assert [(one.case, one.he.path.name) for one in pairs] == [("a", "a-HE.tif"), ("b", "b-PHH3.tif")]
    assert pairs[0].note == ""
    assert "swapped" in pairs[1].note
    assert [one.path.name for one in rest] == ["c-HE.tif"]


def test_the_tissue_decides_and_all_that_is_odd_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The PHH3 slides of a and b are exchanged, c lacks one, that of d is H&E, e is cut off, f is fine."""
    tissue = {"a-PHH3.tif": "b", "b-PHH3.tif": "a"}
    looks: dict[str, Role] = {"d-PHH3.tif": "he"}
    names = [
        f"{key}-{stain}.tif" for key in "abcdef" for stain in ("HE", "PHH3") if (key, stain) != ("c", "PHH3")
    ]
    for name in names:
        (tmp_path / name).touch()

    def shows(one: Seen) -> str:
        return tissue.get(one.path.name, one.path.name[0])

    def looked(path: Path, folder: Path) -> Seen:
        key, role = named_role(path, folder)
        problem = "damaged slide" if path.name == "e-HE.tif" else ""
        return Seen(path, key, role, looks.get(path.name, role), problem)

    def verdict(_lab: Lab, pair: Found) -> tuple[str, str]:
        same = shows(pair.he) == shows(pair.phh3)
        return ("reliable", "") if same else ("failed", "the tissue does not correspond")

    monkeypatch.setattr(pairing, "look_at", looked)
    monkeypatch.setattr(pairing, "_verdict", verdict)
    monkeypatch.setattr(pairing, "_same", lambda one, other: shows(one) == shows(other))
    paired = pair_slides(Lab(tmp_path / "lab"), tmp_path)
    assert [(one.case, one.phh3.path.name) for one in paired.pairs] == [
        ("a", "b-PHH3.tif"),
        ("b", "a-PHH3.tif"),
        ("f", "f-PHH3.tif"),
    ]
    described = "\n".join(paired.notes)
    assert "a: paired by content, not by name: a-HE.tif shows the tissue of b-PHH3.tif" in described
    assert "c-HE.tif: its PHH3 slide is missing" in described
    assert "d-PHH3.tif: looks like H&E, not like PHH3 as its name says: wrong stain" in described
    assert "e-HE.tif: damaged slide" in described
    assert "e-PHH3.tif: its partner cannot be used: e-HE.tif" in described
    assert {path.name for path, _ in paired.left_out} == {
        "c-HE.tif", "d-HE.tif", "d-PHH3.tif", "e-HE.tif", "e-PHH3.tif",
    }  # fmt: skip


def test_patients_stay_together_and_centres_take_turns() -> None:
    rows = pd.DataFrame(
        {"patient": [f"p{number // 2}" for number in range(16)], "laboratory": ["a"] * 8 + ["b"] * 8}
    )
    split = pd.Series(splits_of(rows, {}))
    assert split.groupby(rows["patient"]).nunique().max() == 1
    assert set(split) == {"train", "validation", "test"}
    assert set(rows["laboratory"][split == "train"]) == {"a", "b"}
    kept = dict(zip(rows["patient"], split, strict=True))
    more = pd.concat([rows, pd.DataFrame({"patient": ["new"], "laboratory": ["b"]})], ignore_index=True)
    assert splits_of(more, kept) == [*split, "train"]
    with pytest.raises(UsageError, match="2 patients, and 3 are needed"):
        splits_of(rows.head(4), {})


def test_patients_come_from_a_table_or_from_names(tmp_path: Path) -> None:
    cases = ["p1_a", "p1_b", "p2_a", "p3_a"]
    pairs = tuple(Found(case, seen(f"{case}-HE.tif"), seen(f"{case}-PHH3.tif")) for case in cases)
    manifest, notes = manifest_of(Paired(pairs, ()), {})
    assert list(manifest["patient"]) == ["p1", "p1", "p2_a", "p3_a"]
    assert "p1_a, p1_b are treated as one patient" in notes[0]
    pd.DataFrame(
        {"slide": [f"{case}-HE.tif" for case in cases], "patient": list("wxyz"), "laboratory": "A"}
    ).to_csv(tmp_path / "t.csv", index=False)
    manifest, notes = manifest_of(Paired(pairs, ()), stated_facts(None, tmp_path))
    assert list(manifest["patient"]) == list("wxyz")
    assert set(manifest["laboratory"]) == {"A"}
    assert notes == []
    assert groups_of(["case_1", "case_2"]) == {}


def test_the_folder_is_found_from_below_and_a_missing_one_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(tmp_path, "here", tmp_path / "slides", "simulated")
    (tmp_path / "cases" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "cases" / "a")
    assert find_lab().root == tmp_path.resolve()
    with pytest.raises(UsageError, match=r"no lab.toml here.*lab init"):
        find_lab(tmp_path / "cases")


def test_only_one_goes_on_at_a_time(tmp_path: Path) -> None:
    with held(tmp_path / ".running") as free:
        assert free
        with (
            pytest.raises(UsageError, match="another process is already working here"),
            hold_folder(Lab(tmp_path)),
        ):
            pass
    with hold_folder(Lab(tmp_path)):
        pass


# ---- who is waited for, and how far it is ----


@pytest.fixture
def asking(tmp_path: Path) -> Lab:
    """A laboratory that asks two observers about four brown objects."""
    write_settings(tmp_path, "here", tmp_path / "slides", "")
    settings = tmp_path / "lab.toml"
    settings.write_text(settings.read_text().replace("agree = 1", "agree = 2"))
    write_project(tmp_path / "round1", 4)
    return Lab(tmp_path)


def say(lab: Lab, observer: str, items: int) -> Asked:
    project = load_project(lab.round(1))
    with AnswerStore(project) as store:
        store.record_many(Entry(observer, item.name, "mitosis", 2.0) for item in project.items[:items])
    (asked,) = asked_round(lab, 1)
    return asked


def test_two_observers_are_waited_for_from_the_start(asking: Lab) -> None:
    first = say(asking, "Anna", 4)
    assert (first.answered, first.items, first.enough) == (0, 4, False)
    assert str(first) == "0 of 4 answered by 2 observers each"
    assert not say(asking, "Ben", 3).enough
    last = say(asking, "Ben", 4)
    assert (last.answered, last.enough) == (4, True)


def test_a_round_ends_when_somebody_says_so_until_more_is_asked(asking: Lab) -> None:
    (nothing,) = asked_round(asking, 1)
    with pytest.raises(UsageError, match=r"nobody has answered anything in round 1.*lab.toml"):
        say_enough(nothing)
    say_enough(say(asking, "Anna", 2))
    assert say(asking, "Anna", 2).enough
    write_project(asking.round(1), 6)
    assert not say(asking, "Anna", 2).enough


def test_items_that_cannot_be_shown_are_left_out_and_told(asking: Lab) -> None:
    (asking.round(1) / "unavailable.json").write_text(
        json.dumps({"i001": "outside", "i000": "gone", "x": "?"})
    )
    say(asking, "Anna", 4)
    project = load_project(asking.round(1))
    with AnswerStore(project) as store:
        store.record_many(Entry("Ben", name, "not") for name in ("i000", "i002", "i003"))
    (asked,) = asked_round(asking, 1)
    assert (asked.items, asked.answered, asked.left_out, asked.complete) == (3, 3, 1, True)
    assert "1 more cannot be shown" in str(asked)


def test_progress_counts_parts_of_slides() -> None:
    described: list[tuple[str, float, float]] = []
    Reporting("at", lambda *one: described.append(one)).started("b", 1, 2)(1, 4)
    assert described == [("at b", 1, 2), ("at b", 1.25, 2)]


@dataclass(frozen=True)
class Nothing(Ingredients, stage="nothing"):
    """Decides nothing."""


def one_step(lab: Lab, monkeypatch: pytest.MonkeyPatch, work: Callable[[Report], Facts]) -> None:
    step = Step(Stage("only", "the only step", (), ("made.txt",), work, Nothing()))
    standing = Standing(step, "next", "", StageState(step.stage, "waiting"))
    content = dict.fromkeys(("notes", "centres", "rounds", "model", "warnings"), ())
    content |= {"name": "here", "command": "", "standing": [standing], "splits": {}, "patients": 1}
    content |= {"root": lab.root, "pictures": {}, "refresh_s": 0}
    monkeypatch.setattr(running, "steps_of", lambda _lab: [step])
    monkeypatch.setattr(running, "page_content", lambda _lab, _steps=None: content)


def test_answers_are_read_once_for_each_step_that_is_done(
    asking: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(_report: Report) -> Facts:
        (asking.root / "made.txt").touch()
        return {}

    one_step(asking, monkeypatch, work)
    built, listed = [], running.steps_of
    monkeypatch.setattr(running, "steps_of", lambda lab: built.append(lab) or listed(lab))
    go_on(asking)
    assert len(built) == 2, "once to find the step, once to find that nothing is left"


def test_steps_are_built_once_where_the_questions_are_there(
    asking: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once more where they had to be drawn first."""
    drawn, built = [True, False, False], []
    one_step(asking, monkeypatch, lambda _report: {})
    (step,) = running.steps_of(asking)

    def listed(lab: Lab) -> list[Step]:
        built.append(lab)
        return [replace(step, pages=asked_round(lab, 1), prepare=lambda _report: drawn.pop(0))]

    monkeypatch.setattr(running, "steps_of", listed)
    for often in (2, 3):
        waiting = go_on(asking)
        assert waiting is not None
        assert waiting.what == "round 1: object or artefact"
        assert len(built) == often


def test_a_step_tells_how_far_it_is_on_page_and_in_status(
    asking: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def work(report: Report) -> Facts:
        report("working hard", 1, 4)
        with held(asking.lock):
            seen.append(standings(asking)[0])
        (asking.root / "made.txt").touch()
        return {}

    monkeypatch.setattr(running, "WRITTEN_EVERY_S", 0)
    monkeypatch.setattr(running, "SHOWN_EVERY_S", 0)
    one_step(asking, monkeypatch, work)
    with progress_bar() as bar:
        assert go_on(asking, say=_tell_step, watch=_shower(bar)) is None
        assert bar.tasks[0].description == "0/1 working hard"
        assert bar.tasks[0].percentage == 25
    (standing,) = seen
    assert (standing.status, standing.what) == ("running", "working hard: 25%")
    assert not asking.progress.exists()
    assert capsys.readouterr().err.startswith("1/1 only  0."), "one line where there is no terminal"
    assert standings(asking)[0].status == "done"


def test_a_step_that_is_never_done_is_not_done_for_ever(asking: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(_report: Report) -> Facts:
        (asking.root / "made.txt").touch()
        return {}

    one_step(asking, monkeypatch, work)
    monkeypatch.setattr(running, "first_open", lambda *_: (0, ()))
    with pytest.raises(OutputError, match="step only ran, but its result does not hold"):
        go_on(asking)


# ---- the whole thread ----


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cohort")
    config = SimulationConfig(
        cases=3, centres=1, width=768, height=768, seed=13, mitoses_per_mm2=(900, 1000), workers=1
    )
    simulate_cohort(folder, config)
    return folder


@pytest.fixture(scope="module")
def slides(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slides")
    for case in ("case000", "case001", "case002"):
        for stain in ("he", "phh3"):
            shutil.copy(cohort / case / f"{stain}.tif", folder / f"{case}_{stain}.tif")
    return folder


def test_a_cut_off_slide_and_a_wrong_stain_are_seen(he_slide: Path, tmp_path: Path) -> None:
    whole = he_slide.read_bytes()
    for share in (0.1, 0.5, 0.95):
        (tmp_path / "x-HE.tif").write_bytes(whole[: int(share * len(whole))])
        assert look_at(tmp_path / "x-HE.tif", tmp_path).problem
    (tmp_path / "x-PHH3.tif").write_bytes(whole)
    wrong = look_at(tmp_path / "x-PHH3.tif", tmp_path)
    assert (wrong.named, wrong.looks, wrong.role) == ("phh3", "he", "he")


class Killed(BaseException):
    """Somebody pulled the plug."""


def killing(after: int) -> Callable[[StepProgress], None]:
    count = 0

    def watch(now: StepProgress) -> None:
        nonlocal count
        count += 1
        if count >= after:
            raise Killed(now.what)

    return watch


@pytest.mark.slow
def test_from_a_folder_to_a_detector(slides: Path, cohort: Path, tmp_path: Path) -> None:
    """Killed three times on the way; people answer whatever is asked; the end says how to use the model."""
    begun = begin(tmp_path, slides, start="", name="tiny")
    lab = begun.lab
    assert len(begun.manifest) == 3
    assert sorted(begun.manifest["split"]) == ["test", "train", "validation"]
    settings = (lab.root / "lab.toml").read_text()
    settings = settings.replace("review = 50", "review = 5").replace("answers = 100", "answers = 0")
    (lab.root / "lab.toml").write_text(settings + TINY_LAB)
    lab = Lab(lab.root, "cpu")
    truths = {case: pd.read_parquet(cohort / case / "truth.parquet") for case in begun.manifest["case"]}
    moments = iter(np.random.default_rng(3).integers(2, 12, 3).tolist())
    kills, asked = [], []
    while True:
        after = next(moments, None)
        try:
            stopped = go_on(lab, watch=killing(after)) if after else go_on(lab)
        except Killed as moment:
            kills.append(str(moment))
            continue
        if stopped is None:
            break
        waiting = [one.step.name for one in standings(lab) if one.status == "waiting for a person"]
        assert len(waiting) == 1
        assert not stopped.enough
        asked.append(stopped.what.split(":")[0])
        answer(lab, stopped, truths, FOUR_OBSERVERS[:1])
    assert kills
    assert asked[0] == "round 1"
    assert set(read_items(lab.round(1))["turn"]) == {0, 1}, "some of it is what the bundled networks doubt"
    assert {one.status for one in standings(lab)} == {"done"}
    card = load_model(lab.model)[1]
    assert card.name == "tiny"
    assert card.metrics["learnt from"]["patients"] == 1
    lines, warnings = last_words(lab)
    assert lines[-1] == f"metaphase detect SLIDE... -o DIR --model {lab.model}"
    assert "few-patients" in {warning.code for warning in warnings}
    assert any("chose the model's threshold" in failure for failure in card.known_failures)
    summary = json.loads(next(lab.results.glob("*/summary.json")).read_text())
    assert "few-patients" in {warning["code"] for warning in summary["warnings"]}
    assert (lab.evaluation / "index.html").is_file()
    page = lab.page.read_text()
    assert "All is done" in page
    assert "metaphase detect SLIDE" in page
    result = CliRunner().invoke(commands, ["--lab", str(lab.root), "--json"])
    assert json.loads(result.stdout)["next"] == ""
    (lab.root / "lab.toml").write_text(settings + TINY_LAB.replace("student_steps = 2", "student_steps = 3"))
    changed = {one.step.name: one for one in standings(Lab(lab.root, "cpu"))}
    assert changed["cnn2"].status == "done"
    assert changed["detector"].status == "out of date"
    assert "student_steps" in changed["detector"].what
    assert page_content(Lab(lab.root))["command"] == "metaphase lab next"
    assert replace(changed["detector"].state).status == "waiting"


@pytest.mark.slow
def test_skipped_rounds_take_the_bundled_networks_and_are_told(slides: Path, tmp_path: Path) -> None:
    lab = begin(tmp_path, slides, start="", name="tiny").lab
    settings = (lab.root / "lab.toml").read_text().replace("round1 = 600", "round1 = 0")
    (lab.root / "lab.toml").write_text(settings)
    names = [step.name for step in steps_of(Lab(lab.root, "cpu"))]
    assert names[:4] == ["candidates", "cnn1", "round 2", "cnn2"]
    (lab.root / "lab.toml").write_text(settings.replace("round2 = 400", "round2 = 0"))
    lab = Lab(lab.root, "cpu")
    steps = steps_of(lab)
    assert [step.name for step in steps[:4]] == ["candidates", "cnn1", "cnn2", "reference"]
    states = run_stages([step.stage for step in steps[:3]], lab.root)
    assert states[2].facts["bundled"] == "phh3-cnn2"
    assert states[2].facts["mitoses"] == sum(
        len(read_mitoses(position)) for position in lab.cases.glob("case*")
    )
    assert skipped_rounds(lab) == ["artefacts", "mitoses"]
    assert load_model(lab.network("cnn2") / "cnn2.safetensors")[1].name == "phh3-cnn2"


def test_the_detector_goes_on_from_the_bundled_pair(tmp_path: Path) -> None:
    write_settings(tmp_path, "ours", tmp_path, "breast")
    pd.DataFrame({"case": [], "he": [], "phh3": [], "laboratory": [], "split": []}).to_csv(
        tmp_path / "manifest.csv"
    )
    lab = Lab(tmp_path, "cpu")
    assert [spec.family for spec in lab.chain.specs.values()] == ["lite", "residual"]
    assert lab.chain.candidates == ("new", "mean", "start")
    assert lab.run_config.card.name == "ours"
