"""What is done with detections: counts of anybody's points, calibration, registration, evaluation."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.analysis.record import SlideResult as Result
from metaphase.analysis.scoring import score_detections
from metaphase.api.given import AnySlide, Points, configured, file_of, slide_source
from metaphase.api.results import Results
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.tables import read_table
from metaphase.counting.clinical import SlideCount
from metaphase.counting.likely import ObserverError
from metaphase.counting.sites import SampleConfig, SiteProfile, save_profile
from metaphase.counting.specimen import CountConfig
from metaphase.evaluation.marks import MatchingConfig
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.evaluation.mitoses import MitosisResult, evaluate_mitoses
from metaphase.labels.observers.project import ITEMS
from metaphase.labels.registration.outputs import Annotations, Registered, register_slides
from metaphase.labels.registration.similarity import RegistrationConfig
from metaphase.learn.calibration import DETECTIONS, SAMPLE, draw_sample, fit_profile

REGISTERED = Path("metaphase-registered")
"""Where registered pairs lie for which no folder is named."""


def score(
    detections: Points,
    *,
    slide: AnySlide | None = None,
    mpp: float | None = None,
    area_mm2: float | None = None,
    tissue: bool = True,
    threshold: float | None = None,
    theta1: float | None = None,
    theta2: float | None = None,
    card: str | Path | None = None,
    site: str | Path | SiteProfile | None = None,
    config: CountConfig | None = None,
    **settings: float,
) -> SlideCount:
    """Count and grade the points of one slide, whoever found them, as `metaphase score` does.

    Where nothing else is given, they are counted at the operating point that they carry, else from 0.8 on;
    results of a slide by their own profile, as they stand.

    Parameters:
        detections: A `Result`, a table with x and y in level-0 pixels (and `probability`), or a file in any
            format that is read.
        slide: The slide, whose tissue and resolution count.
        mpp: Micrometres per pixel, where there is no slide.
        area_mm2: Area of the tissue, where there is no slide.
        tissue: Whether to find the tissue of the slide.
        threshold: Lowest probability that counts.
        theta1: Counts up to this are grade 1.
        theta2: Counts above this are grade 3.
        card: A model card, whose operating point is used.
        site: The laboratory's profile, or its file.
        config: A `CountConfig`; `settings` go before what it says.
        settings: `field_diameter_mm`, `percentile`, `seed`, ... of `CountConfig`.

    Returns:
        A `SlideCount`: `count`, `likely`, `scores`, `per_mm2`, `hotspot`, `warnings`.

    Raises:
        MetaphaseError: The points belong to several slides, or lack a resolution.

    Examples:
        >>> import pandas as pd
        >>> found = pd.DataFrame({"x": [100.0, 400.0], "y": [100.0, 300.0], "probability": [0.9, 0.85]})
        >>> counted = mp.score(found, mpp=0.25, area_mm2=12.0)
        >>> counted.count, counted.per_mm2
        (2, 1.0)
    """
    settled = None if config is None and not settings else config or CountConfig()
    if settled is not None:
        (settled,) = configured("mp.score", settings, settled)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="metaphase-"))
        source = None if slide is None else slide_source(slide, mpp, Path(scratch))
        file = stack.enter_context(file_of(detections, "slide" if source is None else source.path.stem))
        scored = score_detections(
            [file],
            slide=None if source is None else source.path,
            mpp=mpp if source is None else source.mpp,
            area_mm2=area_mm2,
            tissue=tissue,
            thresholds=() if threshold is None else (threshold,),
            theta1=theta1,
            theta2=theta2,
            card=None if card is None else Path(card),
            site=site,
            config=settled,
        )
    for failure in scored.failures:
        raise MetaphaseError(failure.message.rstrip("."))
    if len(scored.counts) != 1:
        raise UsageError(
            f"the detections belong to {len(scored.counts)} slides",
            path=file,
            next_step="give those of one slide at a time",
        )
    ((_, count),) = scored.counts
    return count.count_only


@dataclass(frozen=True)
class Calibration:
    """Detections of a laboratory's slides for somebody to answer, and the profile that the answers make."""

    folder: Path

    @property
    def items(self) -> pd.DataFrame:
        """What is asked: `item`, `slide`, `x`, `y`; add the column `answer` (mitosis, not, unsure)."""
        return read_table(self.folder / DETECTIONS / ITEMS)

    def fit(
        self,
        answers: pd.DataFrame | str | Path | None = None,
        output: str | Path | None = None,
        *,
        name: str = "",
        **settings: float,
    ) -> SiteProfile:
        """The laboratory's profile, as `metaphase calibrate fit` makes it, for `detect(..., site=profile)`.

        Parameters:
            answers: A table with `item` and `answer` (and `observer`), or its file; by default the answers
                given in `metaphase label serve`.
            output: A file for the profile (JSON).
            name: What the profile is called; by default as its folder.
            settings: `missed` and `false_alarms`, the shares of answers that are wrong.

        Returns:
            The profile: `precision` at the thresholds, `described()`.

        Raises:
            MetaphaseError: There are too few answers, or some about what was not asked.
        """
        (error,) = configured("fit", settings, ObserverError())
        with file_of(answers, "answers") as file:
            profile = fit_profile(self.folder, name, answers=file, error=error)
        if output is not None:
            save_profile(output, profile)
        return profile


def calibrate(
    results: Results | Result | Sequence[str | Path | Result] | str | Path | None = None,
    output: str | Path = "metaphase-calibration",
    **settings: int,
) -> Calibration:
    """Draw about 100 detections of a laboratory's slides to be answered, as `metaphase calibrate draw` does.

    The answers make a profile (`Calibration.fit`), with which intervals of the laboratory's counts become
    narrower.

    Parameters:
        results: What `detect` gave for slides of the laboratory, or its folders; without them, the
            calibration in `output` is opened again.
        output: Folder of the calibration; `metaphase label serve OUTPUT/detections` asks in a browser.
        settings: `answers`, how many detections are asked about, and `seed`.

    Returns:
        A `Calibration`: `items` is what to answer, `fit(answers)` gives the profile.

    Raises:
        MetaphaseError: The folder holds a calibration already, the slides were not searched alike, or it is
            not known how the model errs.

    Examples:
        >>> calibration = mp.calibrate("results", "calibration")  # a folder of `detect`
        >>> calibration.items.columns.tolist()
        ['item', 'slide', 'x', 'y', 'case', 'mpp']
    """
    folder = Path(output)
    if results is not None:
        several = [results] if isinstance(results, Result | str | os.PathLike) else results
        paths = [each.folder if isinstance(each, Result) else Path(each) for each in several]
        (config,) = configured("mp.calibrate", settings, SampleConfig())
        draw_sample(paths, folder, config)
    elif not (folder / SAMPLE).is_file():
        raise UsageError("holds no calibration", path=folder, next_step="give results to draw one from")
    return Calibration(folder)


def register(
    he: AnySlide,
    phh3: AnySlide,
    output: str | Path | None = None,
    *,
    mpp: float | None = None,
    points: Points | None = None,
    annotations: Annotations | None = None,
    config: RegistrationConfig | None = None,
    accept_doubtful: bool = False,
    **settings: Any,
) -> Registered:
    """Register a PHH3 slide with the H&E slide of the same section, as `metaphase register` does.

    Parameters:
        he: The H&E slide.
        phh3: The PHH3 slide of the same section.
        output: A folder; by default `metaphase-registered/HE-PHH3`, by the slides' names.
        mpp: Micrometres per pixel of pixels, and of files that state none.
        points: Points of the PHH3 slide, to be carried over.
        annotations: A GeoJSON file of either slide, to be carried over.
        config: A `RegistrationConfig`; `settings` go before what it says.
        accept_doubtful: Carry over all points of a doubtful pair, not only sure ones, after looking at its
            picture.
        settings: `any_stains`, `transform`, `seed`, ... of `RegistrationConfig`.

    Returns:
        A `Registered`: `verdict`, `transform` (`phh3_to_he`, `he_to_phh3`), `points`, `summary`.

    Raises:
        MetaphaseError: A slide cannot be read, or is not of the stain that it should be.

    Examples:
        >>> pair = mp.register("he.tif", "phh3.tif", points="points.csv")  # doctest: +SKIP
        >>> pair.verdict, len(pair.points)  # doctest: +SKIP
        ('reliable', 12)
    """
    above = REGISTERED if output is None else Path(output)
    first, second = slide_source(he, mpp, above), slide_source(phh3, mpp, above)
    (config,) = configured("mp.register", settings, config or RegistrationConfig())
    folder = above / f"{first.path.stem}-{second.path.stem}" if output is None else above
    with file_of(points, second.path.stem) as file:
        summary, _ = register_slides(
            first,
            second,
            folder,
            points=file,
            annotations=annotations,
            config=config,
            accept_doubtful=accept_doubtful,
        )
    return Registered(folder, summary)


def evaluate(
    truth: Points,
    predictions: Points,
    *,
    mpp: float | None = None,
    manifest: str | Path | None = None,
    by: Sequence[str] = (),
    split: str | None = None,
    card: str | Path | None = None,
    matching: MatchingConfig | None = None,
    bootstrap: BootstrapConfig | None = None,
    **settings: Any,
) -> MitosisResult:
    """Compare detections with the truth, as `metaphase evaluate mitoses` does.

    Parameters:
        truth: Mitotic figures: a file, a folder, or a table with x, y (and `slide`) in level-0 pixels.
        predictions: The detections, with `probability`; or a `Result`.
        mpp: Micrometres per pixel of all slides, where there is no manifest.
        manifest: The slides, with resolution and patient.
        by: Columns of the manifest to report by.
        split: Only this split of the manifest.
        card: A model card, whose threshold is used.
        matching: A `MatchingConfig`; `settings` go before what it says.
        bootstrap: How patients are drawn for the intervals, likewise.
        settings: `threshold`, `radius_um`, `ignore`, ... of `MatchingConfig`; `samples`, `confidence`,
            `seed` of `BootstrapConfig`.

    Returns:
        A `MitosisResult`: `table()` with precision, recall, F1 and their intervals; `overall`, `slides`.

    Raises:
        MetaphaseError: Tables lack columns, slides do not belong together, or a threshold was tuned on them.

    Examples:
        >>> import pandas as pd
        >>> truth = pd.DataFrame({"x": [100.0, 400.0], "y": [100.0, 300.0]})
        >>> found = pd.DataFrame({"x": [104.0, 800.0], "y": [100.0, 600.0], "probability": [0.9, 0.8]})
        >>> mp.evaluate(truth, found, mpp=0.25, samples=0).overall.f1.value
        0.5
    """
    matching, bootstrap = configured(
        "mp.evaluate", settings, matching or MatchingConfig(), bootstrap or BootstrapConfig()
    )
    with file_of(truth, "slide") as true, file_of(predictions, "slide") as found:
        return evaluate_mitoses(
            true,
            found,
            manifest=manifest,
            by=by,
            split=split,
            mpp=mpp,
            card=card,
            matching=matching,
            bootstrap=bootstrap,
        )
