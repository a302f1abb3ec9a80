"""Experiments 1 to 4 between real scanners: MIDOG++ mitoses of one scanner train, those of all others test.

    python recipes/accuracy/domain_ablation.py --pack crops.parquet --data FOLDER
    python recipes/accuracy/domain_ablation.py --crops crops.parquet --folder OUT --work WORK
    python recipes/accuracy/domain_ablation.py --folder OUT --tables-only

OUT/DIRECTION/ gets `answers.npz` (what every network said about every test patch), `results.json` and
`table.md`, anew after every network; run it again to go on after a stop. WORK holds patches and networks.

A crop shows one mitosis, in its middle. Negatives are other places of the same crop: most on dark nuclei, and
its labelled look-alikes. A patch around such a place would be known by two things. It reaches beyond the
crop, where it goes on as its mirror image: each place therefore also gives a positive patch, around the
mitosis, that is mirrored at lines of the same distances. And the mitosis lies within it: tissue from a corner
of another crop of the slide is laid over that, in the positive patch at the same distance and direction.
`--blank-px 32` is the control: with blank middles hardly anything should be left to tell the classes by.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from PIL import Image

from metaphase.base.arrays import RGB, Floats, Floats32, Integers, Mask
from metaphase.base.errors import UsageError
from metaphase.base.files import atomic_path, write_text
from metaphase.base.parallel import available_cores, in_order
from metaphase.evaluation import BootstrapConfig, Estimate
from metaphase.evaluation.marks import Marked
from metaphase.evaluation.metrics import draws, estimate, ratio, slide_counts
from metaphase.images.stain.augmentation import RECIPES
from metaphase.images.stain.pixels import stained_density
from metaphase.labels.mining.candidates import intensity_sums
from metaphase.networks.architectures import centre_crop
from metaphase.networks.cards import NetworkSpec
from metaphase.networks.checkpoints import choose_device, load_model
from metaphase.networks.training.config import TrainingConfig
from metaphase.networks.training.data import Feeder, open_set, split_cases
from metaphase.networks.training.loop import feed_in_order, train
from metaphase.networks.training.patches import PatchWriter, open_store

DIRECTIONS = {"histech": "3D Histech", "aperio": "Aperio CS2"}
"""Scanners that train, each tested on all others."""
TRAIN, VALIDATION, HOME, AWAY = "train", "validation", "home", "away"
"""Parts of a direction: three kinds of slides of the training scanner, and all slides of the others."""
HELD_OUT_SHARE = 0.15
"""Share of the training scanner's slides, by tumour, that validate; as many test at home."""

# ---- crops, from the data folder or packed into one file ----

CROP_PX, MIDDLE = 128, 64
BLACK, BLACK_SHARE = 12, 0.002
"""Pixels darker than this in every channel lie beyond the scan; crops with a larger share are left out."""


def read_crops(source: Path, most: int | None = None) -> pd.DataFrame:
    """Crops with exactly one labelled mitosis; `most` of each scanner, slide by slide."""
    frame = _unpacked(source) if source.is_dir() else pd.read_parquet(source)
    if most is None:
        return frame
    order = np.random.default_rng(0).permutation(frame["slide"].unique())
    shuffled = frame.set_index("slide").loc[order].reset_index()
    return shuffled.groupby("scanner").head(most).reset_index(drop=True)


def _unpacked(data: Path) -> pd.DataFrame:
    """The folder's crops, less those that show a second mitosis or the edge of a scan."""
    frame = pd.read_csv(data / "midog-mitoses" / "patches.csv")
    others = pd.read_csv(data / "midog-neighbours.csv")
    alone = ~frame["image"].isin(others.loc[others["label"] == "mitosis", "image"])
    frame = frame.loc[alone, ["image", "slide", "tumor", "scanner"]]
    frame["jpeg"] = [(data / "midog-mitoses" / image).read_bytes() for image in frame["image"]]
    places = {
        image: group[["x", "y"]].to_numpy().ravel().tolist() for image, group in others.groupby("image")
    }
    frame["lookalikes"] = [places.get(image, []) for image in frame["image"]]
    whole = [(_pixels(jpeg).max(axis=2) < BLACK).mean() < BLACK_SHARE for jpeg in frame["jpeg"]]
    return frame[whole].sort_values(["scanner", "tumor", "slide", "image"]).reset_index(drop=True)


def _pixels(jpeg: bytes) -> RGB:
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))


def with_parts(crops: pd.DataFrame, scanner: str) -> pd.DataFrame:
    """The crops, each with its part in the direction that trains on `scanner`."""
    part = dict.fromkeys(crops["slide"], AWAY)
    for _, group in crops[crops["scanner"] == scanner].groupby("tumor"):
        slides = sorted(group["slide"].unique())
        held_out = max(1, round(HELD_OUT_SHARE * len(slides)))
        counts = {VALIDATION: held_out, HOME: held_out, TRAIN: len(slides) - 2 * held_out}
        for name, chosen in split_cases(slides, counts=counts, seed=0).items():
            part |= dict.fromkeys(chosen, name)
    return crops.assign(part=crops["slide"].map(part))


# ---- places of a crop, and the two patches that each gives ----

PLACES, DARK_PLACES = 4, 3
"""Negatives of a crop, and how many of them are look-alikes and dark nuclei; the others lie anywhere."""
AWAY_PX, EDGE_PX = 40, 16
"""How far negatives are from the mitosis and from the edge of the crop, at least."""
BLUR_PX, NEARBY_PX = 3.0, 17
"""Dark nuclei are the darkest pixels of squares of this side, after such a blur."""
GRAFT_PX, FEATHER_PX = 24, 6
"""Radius of the tissue that is laid over a mitosis, and the width of its soft edge."""
CORNERS = (GRAFT_PX + 2, CROP_PX - GRAFT_PX - 2)
"""Where in a crop such tissue is taken, in x and y: clear of its mitosis and of its edge."""
BLANK = (200, 150, 190)
"""What blank middles show."""


def _distance(x: float, y: float) -> Floats:
    """Of every pixel of a crop from a point, (side, side)."""
    along = np.arange(CROP_PX) + 0.5
    distance: Floats = np.hypot(along - x, (along - y)[:, None])
    return distance


def _allowed() -> Mask:
    """Where negatives may lie."""
    inside = np.zeros((CROP_PX, CROP_PX), np.bool_)
    inside[EDGE_PX:-EDGE_PX, EDGE_PX:-EDGE_PX] = True
    return inside & (_distance(MIDDLE, MIDDLE) >= AWAY_PX)


ALLOWED = _allowed()


def places_of(crop: RGB, lookalikes: Sequence[float], rng: np.random.Generator) -> Integers:
    """Places (n, 2) of a crop's negatives: look-alikes, dark nuclei, and others."""
    labelled = np.asarray(lookalikes, float).reshape(-1, 2).astype(np.int64)
    labelled = labelled[((labelled >= 0) & (labelled < CROP_PX)).all(axis=1)]
    labelled = labelled[ALLOWED[labelled[:, 1], labelled[:, 0]]]
    chosen = np.concatenate([labelled, _dark(crop)])[:DARK_PLACES]
    anywhere = rng.permutation(np.argwhere(ALLOWED)[:, ::-1])
    return np.concatenate([chosen, anywhere[: PLACES - len(chosen)]])


def _dark(crop: RGB) -> Integers:
    """Places of dark spots, the darkest first: pixels than which none is darker nearby."""
    sums = cv2.GaussianBlur(intensity_sums(crop).astype(np.float32), (0, 0), BLUR_PX)
    lowest = cv2.erode(sums, np.ones((NEARBY_PX, NEARBY_PX), np.uint8))
    rows, columns = np.nonzero((sums == lowest) & ALLOWED)
    order = np.argsort(sums[rows, columns], kind="stable")
    return np.stack([columns, rows], axis=1)[order]


def view(crop: RGB, centre: Integers, place: Integers, graft: RGB, blank_px: float) -> RGB:
    """The patch around `centre` of a crop, as if the crop had the edges that it has around `place`.

    A graft lies where the middle of the crop is, seen from `place`.
    """
    x, y = (centre + MIDDLE - place).tolist()
    source = _grafted(crop, x, y, graft)
    if blank_px:
        source[_distance(*centre.tolist()) < blank_px] = BLANK
    columns, rows = (centre[axis] + _mirrored(int(place[axis])) for axis in (0, 1))
    return source[np.ix_(rows, columns)]


def _mirrored(place: int) -> Integers:
    """Which pixels, counted from `place`, a patch shows whose crop is mirrored at its edges."""
    at = place + np.arange(-MIDDLE, MIDDLE)
    folded = np.where(at < 0, -1 - at, np.where(at >= CROP_PX, 2 * CROP_PX - 1 - at, at))
    return np.asarray(folded - place)


def _grafted(crop: RGB, x: int, y: int, graft: RGB) -> RGB:
    """A copy of the crop with a round graft around (x, y), softly blended; it may pass the edge."""
    weight = np.clip((GRAFT_PX - _distance(x, y)) / FEATHER_PX, 0, 1)[..., None]
    rows, columns = (np.clip(np.arange(CROP_PX) - at + GRAFT_PX, 0, 2 * GRAFT_PX - 1) for at in (y, x))
    laid = graft[np.ix_(rows, columns)]
    return np.asarray(np.rint(crop + weight * (laid.astype(np.float32) - crop)), np.uint8)


def _graft(crops: Sequence[RGB], number: int, rng: np.random.Generator) -> RGB:
    """Tissue (2 radii, 2 radii, 3) of a corner of another crop of the slide; of this one if it is alone."""
    other = (number + int(rng.integers(1, max(2, len(crops))))) % len(crops)
    x, y = rng.choice(CORNERS, 2).tolist()
    return crops[other][y - GRAFT_PX : y + GRAFT_PX, x - GRAFT_PX : x + GRAFT_PX]


def slide_patches(slide: pd.DataFrame, blank_px: float) -> list[tuple[RGB, dict[str, Any]]]:
    """Patches of a slide's crops, with their index rows: for each place a negative, then a positive."""
    crops = [_pixels(jpeg) for jpeg in slide["jpeg"]]
    middle, made = np.array([MIDDLE, MIDDLE]), []
    for number, row in enumerate(slide.to_dict("records")):
        rng = np.random.default_rng(int(Path(row["image"]).stem))
        about = {name: row[name] for name in ("image", "slide", "tumor", "scanner", "part")}
        for place in places_of(crops[number], row["lookalikes"], rng):
            graft = _graft(crops, number, rng)
            for label, centre in ((0, place), (1, middle)):
                pixels = view(crops[number], centre, place, graft, blank_px)
                x, y = place.tolist()
                made.append((pixels, about | {"label": label, "x": x, "y": y, "source": "midog++"}))
    return made


def make_store(folder: Path, crops: pd.DataFrame, blank_px: float) -> None:
    """Write the patches of some crops, unless they are there."""
    if (folder / "store.json").exists():
        return
    slides = [group for _, group in crops.groupby("slide")]
    cores = available_cores()
    with PatchWriter(folder) as writer, ProcessPoolExecutor(cores) as pool:
        for patches in in_order(pool, partial(slide_patches, blank_px=blank_px), slides, 4 * cores):
            for pixels, row in patches:
                writer.add(pixels, **row)


# ---- networks and their answers ----


@dataclass(frozen=True)
class Settings:
    """What decides the answers of a network beside its recipe and seed."""

    scanner: str
    gamma: float
    normalisation: str
    epochs: int
    samples: int
    batch: int
    blank_px: float
    most: int | None


@dataclass(frozen=True)
class Experiment:
    """Networks to compare: of each seed one network, or an ensemble."""

    number: int
    augment: str
    seeds: tuple[tuple[str, ...], ...]
    """Names of the networks of each seed."""


def network_name(augment: str, seed: int) -> str:
    """Name of a network."""
    return f"{augment.lower()}-{seed:02d}"


def experiments(seeds: int, members: int) -> list[Experiment]:
    """The paper's experiments 1 to 4. An ensemble begins with the network of its seed of experiment 3."""
    firsts = range(0, seeds * members, members)
    single = [
        Experiment(number, augment, tuple((network_name(augment, first),) for first in firsts))
        for number, augment in enumerate(RECIPES, 1)
    ]
    teams = [
        tuple(network_name(RECIPES[-1], seed) for seed in range(first, first + members)) for first in firsts
    ]
    return [*single, Experiment(len(RECIPES) + 1, RECIPES[-1], tuple(teams))]


def plan(seeds: int, members: int) -> list[tuple[str, int]]:
    """Recipe and seed of every network, in an order that fills the table from the start."""
    firsts = range(0, seeds * members, members)
    singles = [(augment, first) for first in firsts for augment in RECIPES]
    others = [(RECIPES[-1], first + member) for first in firsts for member in range(1, members)]
    return singles + others


class Answers:
    """What networks said about the test patches of a direction, in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}
        self.rows = pd.DataFrame()
        self.logits: dict[str, Floats32] = {}
        if path.exists():
            with np.load(path) as file:
                self.facts = json.loads(str(file["facts"]))
                self.rows = pd.DataFrame({name: file[f"row:{name}"] for name in self.facts["columns"]})
                self.logits = {name: file[f"network:{name}"] for name in self.facts["networks"]}

    def begin(self, rows: pd.DataFrame, facts: dict[str, Any]) -> None:
        """Say what the answers are about; a file that is about something else is refused."""
        facts = facts | {"columns": list(rows.columns)}
        known = {name: value for name, value in self.facts.items() if name != "networks"}
        networks = self.facts.get("networks", {})
        if self.facts and (known != facts or not rows.equals(self.rows.astype(rows.dtypes.to_dict()))):
            raise UsageError(
                "the answers there were made with other settings",
                path=self.path,
                next_step="choose another folder",
            )
        self.rows, self.facts = rows, facts | {"networks": networks}

    def add(self, name: str, logits: Floats32, validation_f1: float) -> None:
        """Keep the answers of one more network."""
        self.logits[name] = logits
        self.facts["networks"][name] = validation_f1
        arrays: dict[str, Any] = {f"row:{name}": self._plain(name) for name in self.rows.columns}
        arrays |= {f"network:{name}": values for name, values in self.logits.items()}
        with atomic_path(self.path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, facts=np.array(json.dumps(self.facts)), **arrays)

    def _plain(self, column: str) -> npt.NDArray[Any]:
        values = self.rows[column].to_numpy()
        return values.astype(np.str_) if values.dtype == object else values

    def probability(self, networks: Sequence[str]) -> Floats | None:
        """Mean probability of some networks; None while one of them is missing."""
        if not set(networks) <= self.logits.keys():
            return None
        each = [1 / (1 + np.exp(-self.logits[name].astype(np.float64))) for name in networks]
        return np.asarray(np.mean(each, axis=0))


class Ablation:
    """One direction: its patches, its networks, their answers."""

    def __init__(self, name: str, crops: pd.DataFrame, settings: Settings, folder: Path, work: Path) -> None:
        self.name, self.settings, self.work = name, settings, work / name
        _require_same(self.work / "settings.json", asdict(settings))
        crops = with_parts(crops, settings.scanner)
        parts = {TRAIN: [TRAIN], VALIDATION: [VALIDATION], "test": [HOME, AWAY]}
        for store, names in parts.items():
            chosen = crops[crops["part"].isin(names)]
            make_store(self.work / "patches" / store, chosen, settings.blank_px)
            print(f"{name}: {store} patches of {len(chosen):,} crops", flush=True)
        self.tested = open_set([self._store(VALIDATION), self._store("test")])
        self.answers = Answers(folder / name / "answers.npz")
        columns = ["image", "slide", "tumor", "scanner", "part", "label", "x", "y"]
        facts = {"settings": asdict(settings), "crops": _counts(crops), "colour": self._colours()}
        self.answers.begin(self.tested.index[columns], facts)

    def _store(self, part: str) -> str:
        return str(self.work / "patches" / part)

    def _colours(self) -> dict[str, float]:
        """Largest ratio of a colour channel's mean density to that of the training patches, by group."""
        rng = np.random.default_rng(0)
        trained = open_store(self._store(TRAIN))
        home = stained_density(trained.take(np.sort(rng.integers(0, len(trained), COLOUR_SAMPLE))))
        ratios = {}
        for group, rows in groups_of(self.tested.index).items():
            density = stained_density(self.tested.take(np.sort(rng.choice(rows, COLOUR_SAMPLE))))
            ratios[group] = round(float(np.exp(np.abs(np.log(density / home)).max())), 3)
        return ratios

    def config(self, augment: str, seed: int) -> TrainingConfig:
        """How a network is trained."""
        chosen = self.settings
        return TrainingConfig(
            train=(self._store(TRAIN),),
            validation=(self._store(VALIDATION),),
            network=NetworkSpec("detector", chosen.gamma, chosen.normalisation),  # type: ignore[arg-type]
            name=network_name(augment, seed),
            augment=augment,
            batch=chosen.batch,
            epochs=chosen.epochs,
            samples_per_epoch=chosen.samples,
            seed=seed,
        )

    def run(self, networks: Sequence[tuple[str, int]], device: str | None, deadline: float) -> Iterator[str]:
        """Train and ask the networks that are left, until the deadline; yields a line for each."""
        chosen = choose_device(device)
        feed = Feeder(self.tested, chosen)
        for augment, seed in networks:
            name = network_name(augment, seed)
            if name in self.answers.logits:
                continue
            if time.monotonic() > deadline:
                print(f"{self.name}: out of time before {name}", flush=True)
                return
            started = time.monotonic()
            result = train(self.config(augment, seed), self.work / name, device=device)
            trained = time.monotonic()
            self.answers.add(name, _ask(result.model, feed, len(self.tested.index), chosen), result.best)
            seconds = f"{trained - started:.1f} s and {time.monotonic() - trained:.1f} s"
            yield f"{name}, validation F1 {result.best:.3f}, trained and asked in {seconds}"


@torch.inference_mode()
def _ask(model: Path, feed: Feeder, count: int, device: torch.device) -> Floats32:
    """Logit of every test patch, in full precision: rounded ones would be equal too often."""
    network, _ = load_model(model, device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    logits = [
        network(centre_crop(pixels)).flatten(1).diff(dim=1)[:, 0]
        for pixels in feed_in_order(feed, np.arange(count), ASKED_AT_ONCE)
    ]
    said: Floats32 = torch.cat(logits).float().cpu().numpy()
    return said


ASKED_AT_ONCE, COLOUR_SAMPLE = 1024, 500


def _counts(crops: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Mitoses and slides of each part, and of each scanner that tests."""
    named = crops["part"].where(crops["part"] != AWAY, crops["scanner"])
    counted = crops.groupby(named)["slide"].agg(["size", "nunique"])
    return {str(name): {"mitoses": int(row["size"]), "slides": int(row["nunique"])}
            for name, row in counted.iterrows()}  # fmt: skip


def _require_same(path: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a folder, or refuse others than it has."""
    text = json.dumps(settings, indent=1)
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise UsageError(
            "the folder was made with other settings", path=path, next_step="choose another folder"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


# ---- figures ----

FALSE_SHARES = {"recall_1": 0.01, "recall_03": 0.003}
"""Recall where this share of a group's own negatives is called a mitosis."""
USER_SHARE = 0.01
"""The threshold that a user takes along calls this share of the validation slides' negatives mitoses."""
FIGURES = {
    "recall_1": "recall at 1 % false",
    "recall_03": "recall at 0.3 % false",
    "user_recall": "recall at home's threshold",
    "user_false": "false at home's threshold",
    "auc": "AUC",
}
DIFFERENCES = ((2, 1), (3, 1), (4, 3))
ALL = "all others"
TOP_SHARE, STEPS = 0.15, 400
"""Every negative among this share of the highest is a threshold, and so many quantiles of all answers."""

Drawn = dict[str, Floats]
"""Each figure in every draw of slides, and the number of mitoses drawn."""


def groups_of(rows: pd.DataFrame) -> dict[str, Integers]:
    """Rows of the test at home, and of each other scanner."""
    named = rows["part"].where(rows["part"] != AWAY, rows["scanner"])
    names = [HOME, *sorted(set(named) - {HOME, VALIDATION})]
    return {name: np.flatnonzero(named == name) for name in names}


def marked_patches(rows: pd.DataFrame, probability: Floats) -> Marked:
    """Patches of some slides as marked detections: those of mitoses are found, all others false."""
    number, slides = rows["slide"].factorize(sort=True)
    positive, names = rows["label"].to_numpy() == 1, tuple(map(str, slides))
    order = np.argsort(-probability, kind="stable")
    return Marked(
        probability=probability[order],
        found=positive[order],
        distance_um=np.full(len(rows), np.nan),
        slide=number[order].astype(np.int64),
        truths=np.bincount(number[positive], minlength=len(slides)),
        area_mm2=np.full(len(slides), np.nan),
        cases=names,
        patients=names,
    )


def _above(values: Floats) -> Floats:
    """Thresholds that just leave each of the values out."""
    return np.nextafter(values, np.inf)


def share_threshold(negatives: Floats, share: float) -> float:
    """The lowest threshold that calls at most this share of the negatives mitoses."""
    falling = np.sort(negatives)[::-1]
    return float(_above(falling[int(share * len(falling))]))


def figures_of(marked: Marked, user: float, times: Floats) -> Drawn:
    """All figures of one group in every draw of its slides."""
    negatives = marked.probability[~marked.found]
    top = negatives[: round(TOP_SHARE * len(negatives)) + 1]
    spread = np.quantile(marked.probability, np.linspace(0, 1, STEPS))
    thresholds = np.unique(np.concatenate([_above(top), spread]))[::-1]
    other = np.bincount(marked.slide[~marked.found], minlength=len(marked.cases))
    mitoses, others = times @ marked.truths, times @ other
    true, false = (times @ table for table in slide_counts(marked, thresholds))
    found, called = ratio(true, mitoses[:, None]), ratio(false, others[:, None])
    at_user = [(times @ table)[:, 0] for table in slide_counts(marked, np.array([user]))]
    drawn = {name: np.where(called <= share, found, 0).max(axis=1) for name, share in FALSE_SHARES.items()}
    drawn |= {"user_recall": ratio(at_user[0], mitoses), "user_false": ratio(at_user[1], others)}
    corner = np.zeros((len(times), 1))
    steps = np.diff(np.hstack([corner, called]))
    heights = (np.hstack([corner, found[:, :-1]]) + found) / 2
    return drawn | {"auc": (steps * heights).sum(axis=1), "mitoses": mitoses}


def all_others(groups: Mapping[str, Drawn]) -> Drawn:
    """Mean over the scanners that were not trained on, each with its own thresholds, by their mitoses."""
    away = [drawn for name, drawn in groups.items() if name != HOME]
    mitoses = np.stack([drawn["mitoses"] for drawn in away])
    return {
        name: (np.stack([drawn[name] for drawn in away]) * mitoses).sum(axis=0) / mitoses.sum(axis=0)
        for name in FIGURES
    }


def network_figures(answers: Answers, probability: Floats, config: BootstrapConfig) -> dict[str, Drawn]:
    """Figures by group; the first draw is every slide once, the others are the same for every network."""
    rows = answers.rows
    held_out = (rows["part"] == VALIDATION) & (rows["label"] == 0)
    user = share_threshold(probability[held_out.to_numpy()], USER_SHARE)
    groups: dict[str, Drawn] = {}
    for number, (name, chosen) in enumerate(groups_of(rows).items()):
        marked = marked_patches(rows.iloc[chosen], probability[chosen])
        seeded = BootstrapConfig(config.samples, config.confidence, config.seed + number)
        times = np.vstack([np.ones(len(marked.cases)), draws(marked.patients, seeded)])
        groups[name] = figures_of(marked, user, times)
    return groups | {ALL: all_others(groups)}


Values = dict[str, dict[str, dict[str, Any]]]
"""By group and figure: estimate (mean over seeds, interval over slides) and the value of each seed."""


def _summary(seeds: Sequence[dict[str, Drawn]], config: BootstrapConfig) -> Values:
    """Means over seeds, with intervals over slides."""

    def one(drawn: Sequence[Floats]) -> dict[str, Any]:
        mean = np.mean(drawn, axis=0)
        shown = asdict(estimate(float(mean[0]), mean[1:], config))
        return shown | {"seeds": [float(values[0]) for values in drawn]}

    return {
        group: {name: one([seed[group][name] for seed in seeds]) for name in FIGURES} for group in seeds[0]
    }


def _minus(one: dict[str, Drawn], other: dict[str, Drawn]) -> dict[str, Drawn]:
    return {group: {name: one[group][name] - other[group][name] for name in FIGURES} for group in one}


def summarise(answers: Answers, wanted: Sequence[Experiment], config: BootstrapConfig) -> dict[str, Any]:
    """Figures of the experiments, and differences between them seed by seed, of what there is."""
    drawn: dict[int, dict[int, dict[str, Drawn]]] = {}
    for experiment in wanted:
        for seed, networks in enumerate(experiment.seeds):
            probability = answers.probability(networks)
            if probability is not None:
                seen = network_figures(answers, probability, config)
                drawn.setdefault(experiment.number, {})[seed] = seen
    pairs = {}
    for one, other in DIFFERENCES:
        both = sorted(drawn.get(one, {}).keys() & drawn.get(other, {}).keys())
        if both:
            pairs[f"{one} - {other}"] = [_minus(drawn[one][seed], drawn[other][seed]) for seed in both]
    return {
        "facts": {name: value for name, value in answers.facts.items() if name != "columns"},
        "experiments": {
            str(experiment.number): {
                "augment": experiment.augment,
                "networks": len(experiment.seeds[0]),
                "seeds": len(drawn[experiment.number]),
                "validation_f1": [
                    answers.facts["networks"][name]
                    for seed in drawn[experiment.number]
                    for name in experiment.seeds[seed]
                ],
                "figures": _summary(list(drawn[experiment.number].values()), config),
            }
            for experiment in wanted
            if experiment.number in drawn
        },
        "differences": {name: _summary(seeds, config) for name, seeds in pairs.items()},
    }


# ---- tables ----


def _cell(value: Mapping[str, Any], sign: str = "") -> str:
    """A figure with its interval."""
    shown = Estimate(value["value"], value["low"], value["high"])
    text = f"{shown.value:{sign}.3f}"
    return text if np.isnan(shown.low) else f"{text} [{shown.low:{sign}.3f}, {shown.high:{sign}.3f}]"


def _range(value: Mapping[str, Any], sign: str = "") -> str:
    """The least and the greatest of the seeds."""
    return f"{min(value['seeds']):{sign}.3f} to {max(value['seeds']):{sign}.3f}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _main_table(results: Mapping[str, Any]) -> str:
    """Experiments on all other scanners."""
    headings = ["experiment", "augment", "networks", "seeds", FIGURES["recall_1"], "seeds from to"]
    headings += [label for name, label in FIGURES.items() if name != "recall_1"]
    headings += ["at home: " + FIGURES["recall_1"], "validation F1 of the networks"]
    rows = []
    for number, one in results["experiments"].items():
        away, home = one["figures"][ALL], one["figures"][HOME]
        cells = [number, one["augment"], str(one["networks"]), str(one["seeds"])]
        cells += [_cell(away["recall_1"]), _range(away["recall_1"])]
        cells += [_cell(away[name]) for name in FIGURES if name != "recall_1"]
        chosen = one["validation_f1"]
        rows.append([*cells, _cell(home["recall_1"]), f"{min(chosen):.3f} to {max(chosen):.3f}"])
    return _table(headings, rows)


def _groups(results: Mapping[str, Any]) -> list[str]:
    """The test groups, without their mean."""
    some = next(iter(results["experiments"].values()))
    return [group for group in some["figures"] if group != ALL]


def _shown(groups: Sequence[str]) -> list[str]:
    return ["at home" if group == HOME else group for group in groups]


def _size_table(results: Mapping[str, Any]) -> str:
    """How large the test groups are, and how far from the training slides."""
    facts, groups = results["facts"], _groups(results)
    counts = [facts["crops"][group] for group in groups]
    rows = [
        ["mitoses, slides", *(f"{count['mitoses']:,}, {count['slides']}" for count in counts)],
        ["colour ratio to training", *(f"{facts['colour'][group]:.2f}" for group in groups)],
    ]
    return _table(["tested on", *_shown(groups)], rows)


def _group_table(results: Mapping[str, Any], name: str) -> str:
    """One figure by test group."""
    groups = _groups(results)
    rows = [
        [f"experiment {number}", *(_cell(one["figures"][group][name]) for group in groups)]
        for number, one in results["experiments"].items()
    ]
    return _table([FIGURES[name], *_shown(groups)], rows)


def _difference_table(results: Mapping[str, Any]) -> str:
    """What separates the experiments."""
    groups = _groups(results)
    rows = [
        [f"{name}, {FIGURES[figure]}", _cell(by_group[ALL][figure], "+"), _range(by_group[ALL][figure], "+"),
         *(_cell(by_group[group][figure], "+") for group in groups)]
        for name, by_group in results["differences"].items()
        for figure in FIGURES
    ]  # fmt: skip
    return _table(["difference", ALL, "seeds from to", *_shown(groups)], rows)


def markdown(results: Mapping[str, Any]) -> str:
    """All tables of one direction."""
    crops, settings = results["facts"]["crops"], results["facts"]["settings"]
    trained = "Trained on {mitoses:,} mitoses of {slides} slides".format(**crops[TRAIN])
    parts = [f"{trained}, {settings['scanner']}; 95 % intervals by drawing slides."]
    if results["experiments"]:
        parts += [_main_table(results), _size_table(results)]
        parts += [_group_table(results, name) for name in FIGURES]
    if results["differences"]:
        parts.append(_difference_table(results))
    return "\n\n".join(parts) + "\n"


def write_tables(folder: Path, answers: Answers, wanted: Sequence[Experiment], samples: int) -> None:
    """Write `results.json` and `table.md` of what there is."""
    results = summarise(answers, wanted, BootstrapConfig(samples))
    write_text(folder / "results.json", json.dumps(results, indent=1) + "\n")
    write_text(folder / "table.md", markdown(results))


# ---- command line ----


def prepared(name: str, crops: pd.DataFrame, options: argparse.Namespace) -> Ablation:
    """A direction with its patches made."""
    settings = Settings(
        DIRECTIONS[name], options.gamma, options.normalisation, options.epochs,
        options.samples, options.batch, options.blank_px, options.most,
    )  # fmt: skip
    (options.folder / name).mkdir(parents=True, exist_ok=True)
    return Ablation(name, crops, settings, options.folder, options.work or options.folder / "work")


def run_direction(ablation: Ablation, options: argparse.Namespace, deadline: float) -> None:
    """Train and ask all networks of a direction; tables get their intervals in the end."""
    folder, name = options.folder / ablation.name, ablation.name
    wanted, networks = experiments(options.seeds, options.members), plan(options.seeds, options.members)
    started = time.monotonic()
    try:
        for line in ablation.run(networks, options.device, deadline):
            write_tables(folder, ablation.answers, wanted, samples=0)
            done = f"{len(ablation.answers.logits)} of {len(networks)}"
            print(f"{name}: {done}, {time.monotonic() - started:.0f} s: {line}", flush=True)
    finally:
        write_tables(folder, ablation.answers, wanted, options.bootstrap)


def main() -> None:
    """Pack, or train and ask, or only make the tables anew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the crops of --data to one file")
    parser.add_argument("--crops", type=Path, metavar="FILE", help="such a file, instead of --data")
    parser.add_argument("--folder", type=Path, help="where results go")
    parser.add_argument("--work", type=Path, help="where patches and networks go; FOLDER/work by default")
    parser.add_argument("--tables-only", action="store_true", help="from the answers in FOLDER")
    parser.add_argument("--directions", nargs="+", choices=list(DIRECTIONS), default=list(DIRECTIONS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--members", type=int, default=5, help="networks of an ensemble")
    parser.add_argument("--gamma", type=float, default=1.0)
    parser.add_argument("--normalisation", default="none", choices=("none", "batch"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=28_160, help="patches an epoch")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--blank-px", type=float, default=0.0, help="control: blank middles of this radius")
    parser.add_argument("--most", type=int, help="crops of a scanner, for a trial")
    parser.add_argument("--minutes", type=float, default=np.inf, help="begin no network after these")
    parser.add_argument("--bootstrap", type=int, default=1000, help="draws of slides")
    parser.add_argument("--device")
    options = parser.parse_args()
    if options.pack:
        with atomic_path(options.pack) as temporary:
            read_crops(options.data).to_parquet(temporary, index=False)
        return
    if options.tables_only:
        wanted = experiments(options.seeds, options.members)
        for path in sorted(options.folder.glob("*/answers.npz")):
            write_tables(path.parent, Answers(path), wanted, options.bootstrap)
        return
    deadline = time.monotonic() + 60 * options.minutes
    crops = read_crops(options.crops or options.data, options.most)
    # All patches come first: processes are not to be forked once a GPU is in use.
    ablations = [prepared(name, crops, options) for name in options.directions]
    for ablation in ablations:
        run_direction(ablation, options, deadline)


if __name__ == "__main__":
    main()
