"""How many true mitotic figures a circle holds, by what is listed in it and on the rest of its slide.

What a detector lists is a mixture: mitotic figures, whose log-odds are normal, and look-alikes, whose
log-odds fall off exponentially; some look-alikes are spread over the tissue, some come with the figures. A
*shape* says where the figures' log-odds lie, how fast the look-alikes' fall, and how many come with a figure;
a *level*, how many look-alikes a laboratory usually has. A slide's shape is drawn around that of its
laboratory, which is drawn from a prior over laboratories; some slides are unlike their laboratory, and are
drawn from the prior. The circle's shape and densities are drawn around those of the rest of the slide, so
that what is seen there says only in part what the circle holds: both were searched, so that the circle was
chosen for its many detections does no harm.

All of it is computed on grids. Answers replace the guess for what they are about, and narrow everything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
from pydantic import TypeAdapter

from metaphase.base.arrays import Floats, Integers, Mask
from metaphase.base.errors import UsageError
from metaphase.base.settings import Share, settings

LISTED_FROM = 0.1
"""Probability from which on all detections are known."""
_BEGINS = np.array([LISTED_FROM, 0.15, 0.2, 0.27, 0.35, 0.45, 0.55, 0.65, 0.75, 0.83, 0.9, 0.95, 0.98])
EDGES = np.log(_BEGINS / (1 - _BEGINS))
"""Log-odds at which the bins begin."""
SHIFTS = np.arange(-2.95, 4.3, 0.65)
FALLS = np.log([0.42, 0.58, 0.8, 1.08, 1.45, 2.0])
COMPANY = np.log([0.06, 0.15, 0.35, 0.8, 1.8])
DULL = np.array([-1.25, -0.35, 0.55])
DULL_WIDTH, DULL_UNLISTED = -1.3, 0.2
_GRIDS = ((SHIFTS, FALLS, COMPANY, np.zeros(1)), (DULL, FALLS, COMPANY, np.full(1, DULL_WIDTH)))
SHAPES = np.concatenate([np.stack(np.meshgrid(*grid), axis=-1).reshape(-1, 4) for grid in _GRIDS])
"""Mean log-odds of the figures; in logarithms, fall of the look-alikes, how many come with a figure, and how
much narrower than usual the figures' log-odds lie: on a blurred slide none is sure, and a share unlisted."""
LEVELS = np.array([-1.2, 0.0, 1.2, 2.4])
"""How far the log density of a laboratory's look-alikes lies from the usual one."""
STEP = 0.33
DENSITIES = np.arange(-4.5, 7.6, STEP)
"""Log densities per mm2, of figures and of look-alikes."""
SHARES = np.arange(-8, 7.01, 0.35)
"""Log-odds of the share of figures, with their company, among what is listed."""
SPREADS = np.array([0.2, 0.4, 0.8, 1.4])
"""How much the figures' log-odds may differ between the slides of a laboratory (standard deviation)."""
NEVER = 0.05
"""Standard deviation of what does not differ within a laboratory."""
LEAST_REST_MM2 = 0.5
"""Less tissue beside the circle says nothing about it."""
DRAWS = 4000
CLEAREST = 1e-4
"""Probabilities nearer to 0 or 1 than this say no more."""


def log_odds(probability: Floats) -> Floats:
    """Of a probability, not beyond what is clear."""
    return np.asarray(scipy.special.logit(np.clip(probability, CLEAREST, 1 - CLEAREST)))


@settings
class LaboratoryPrior:
    """What is supposed of laboratories and slides before any answer, for one model."""

    shift: tuple[float, float] = (0.7, 0.9)
    """Mean log-odds of the figures: middle and scale over laboratories."""
    fall: tuple[float, float] = (float(np.log(1.2)), 0.25)
    """Logarithm of the fall of the look-alikes' log-odds: the same."""
    company: tuple[float, float] = (float(np.log(0.33)), 0.6)
    """Logarithm of the number of look-alikes that come with a figure: the same."""
    freedom: float = 3.0
    """Degrees of freedom of Student's t over laboratories: few are heavy tails."""
    spread_weights: tuple[float, ...] = (0.35, 0.35, 0.22, 0.08)
    """Of `SPREADS`."""
    slide_sd: tuple[float, float] = (0.25, 0.35)
    """How much fall and company differ between the slides of a laboratory."""
    figures: tuple[float, float] = (0.0, 2.0)
    """Log density per mm2 on a slide: mean and standard deviation."""
    lookalikes: tuple[float, float] = (float(np.log(3.8)), 0.9)
    """The same of look-alikes at or above the floor, in a laboratory of the usual level."""
    level_weights: tuple[float, ...] = (0.07, 0.75, 0.12, 0.06)
    """Of `LEVELS`."""
    unlike: tuple[Share, Share] = (0.1, 0.1)
    """Share of the laboratories that are like no other, of any shape; and of the slides that are not like
    those of their laboratory."""
    circle_sd: tuple[float, float] = (1.0, 0.6)
    """How much the log densities of figures and look-alikes in the circle differ from the slide's."""
    nests_freedom: float = 3.0
    """Degrees of freedom of Student's t for that of look-alikes: few are nests of them in the circle."""
    circle_shape_sd: tuple[float, float, float] = (0.4, 0.15, 0.4)
    """How much each part of the circle's shape differs from that of the rest of its slide."""
    width: float = 2.5
    """Standard deviation of the figures' log-odds."""
    unlisted: float = 0.04
    """Share of the figures that no score could list."""
    idle: Share = 0.03
    """Share of the reviews whose answers say nothing: one answer to all, or any to each."""
    company_fall: float = 0.65
    """Fall of the log-odds of look-alikes that come with figures."""
    most_unanswered: tuple[int, int] = (40, 100)
    """Unanswered detections in the circle, and beside it, say no more than so many would: no slide has just
    the supposed shapes."""


def prior_of(plain: Mapping[str, Any]) -> LaboratoryPrior:
    """A prior from its JSON form; what it does not say is usual."""
    return TypeAdapter(LaboratoryPrior).validate_json(json.dumps(plain))


@settings
class ObserverError:
    """How often an answer is wrong."""

    missed: Share = 0.06
    """Share of the mitotic figures that are called something else."""
    false_alarms: Share = 0.03
    """Share of all else that is called a mitotic figure."""

    def __post_init__(self) -> None:
        if self.missed + self.false_alarms >= 1:
            raise UsageError(
                f"an observer who misses {self.missed:g} and sees {self.false_alarms:g} too many",
                next_step="give two shares from 0 on, together below 1",
            )


USUAL_OBSERVER = ObserverError()
NO_OBSERVER = ObserverError(0.5, 0.5 - 1e-9)
"""Whose answers say nothing."""


@dataclass(frozen=True, eq=False)
class Tally:
    """What is listed in a part of a slide, by bin of its log-odds."""

    unanswered: Floats
    yes: Floats
    no: Floats
    area_mm2: float
    """Tissue of the part."""
    added: int = 0
    """Figures that people added."""

    @property
    def listed(self) -> float:
        """Number of detections that are listed."""
        return float(self.unanswered.sum() + self.yes.sum() + self.no.sum())


def tally(log_odds: Floats, answer: Floats, area_mm2: float, added: int = 0) -> Tally:
    """Count detections at or above the floor; `answer` is 1, 0 or NaN."""
    bins = np.searchsorted(EDGES, log_odds, side="right") - 1

    def number(chosen: Mask) -> Floats:
        return np.bincount(bins[chosen & (bins >= 0)], minlength=len(EDGES)).astype(np.float64)

    return Tally(number(np.isnan(answer)), number(answer == 1), number(answer == 0), area_mm2, added)


@lru_cache(maxsize=8)
def densities_by_bin(prior: LaboratoryPrior) -> tuple[Floats, Floats, Floats]:
    """(shapes, bins) of figures, look-alikes, and company of figures; figures sum to what is listed."""
    edges = np.append(EDGES, np.inf)
    unlisted = np.where(SHAPES[:, 3:] < 0, DULL_UNLISTED, prior.unlisted)
    figures = (1 - unlisted) * np.diff(
        scipy.stats.norm.cdf((edges - SHAPES[:, :1]) / (prior.width * np.exp(SHAPES[:, 3:]))), axis=1
    )

    def falling(rate: Floats | float) -> Floats:
        return np.asarray(-np.diff(np.exp(-rate * (edges - edges[0])), axis=-1))

    return figures, falling(np.exp(SHAPES[:, 1:2])), np.exp(SHAPES[:, 2:3]) * falling(prior.company_fall)


def _capped(part: Tally, most: int) -> tuple[Floats, float]:
    """Unanswered detections by bin, weighted down to `most`; the weight of all that is listed."""
    unanswered = part.unanswered * min(1.0, most / max(part.unanswered.sum(), 1.0))
    left = unanswered.sum() + part.yes.sum() + part.no.sum()
    return unanswered, float(left / part.listed) if part.listed else 1.0


def _mixture(
    part: Tally, unanswered: Floats, figures: Floats, others: Floats, error: ObserverError
) -> Floats:
    """Log-likelihood where figures and all else have these intensities (..., bins)."""
    value = np.log(figures + others) @ unanswered
    if part.yes.any():
        value = value + np.log(figures * (1 - error.missed) + others * error.false_alarms + 1e-300) @ part.yes
    if part.no.any():
        value = value + np.log(figures * error.missed + others * (1 - error.false_alarms) + 1e-300) @ part.no
    return np.asarray(value)


def slide_likelihood(
    circle: Tally, rest: Tally, prior: LaboratoryPrior, error: ObserverError = USUAL_OBSERVER
) -> Floats:
    """Log-likelihood of what is listed, with the prior: (levels, shapes, figures, look-alikes)."""
    figures, others, company = densities_by_bin(prior)
    unanswered, weight = _capped(circle, prior.most_unanswered[0])
    steps = np.arange(1 - len(DENSITIES), len(DENSITIES)) * STEP
    ratio = np.exp(steps)[None, :, None]  # of figures to look-alikes: the mixture depends on nothing else
    mixed = _mixture(
        circle, unanswered, ratio * figures[:, None], others[:, None] + ratio * company[:, None], error
    )
    number = unanswered.sum() + circle.yes.sum() + circle.no.sum()
    row, column = np.indices((len(DENSITIES),) * 2)
    value = mixed[:, row - column + len(DENSITIES) - 1] + number * DENSITIES
    listed = (figures + company).sum(axis=1)[:, None, None]
    density = np.exp(DENSITIES)
    value = value - circle.area_mm2 * weight * (density[:, None] * listed + density)
    if circle.added:  # so many, at least, the detector did not list
        beyond = circle.area_mm2 * density[:, None] * (1 - figures.sum(axis=1))[:, None, None]
        value = value + scipy.stats.poisson.logsf(circle.added - 1, np.maximum(beyond, 1e-9))
    if rest.area_mm2 <= LEAST_REST_MM2:
        of_figures, of_others = _normal(DENSITIES, *prior.figures), _of_lookalikes(DENSITIES, prior)
        return np.asarray(value + of_figures[:, None] + of_others[:, None, None, :])
    return np.asarray(value + _of_the_rest(rest, prior, error))


def _of_lookalikes(log_density: Floats, prior: LaboratoryPrior) -> Floats:
    """Log prior (levels, ...) of a slide's density of look-alikes."""
    mean, sd = prior.lookalikes
    return _normal(log_density, mean + LEVELS.reshape(-1, *[1] * log_density.ndim), sd)


def _of_the_rest(rest: Tally, prior: LaboratoryPrior, error: ObserverError) -> Floats:
    """What the rest of the slide says about the circle: (levels, shapes, figures, look-alikes)."""
    figures, others, company = densities_by_bin(prior)
    listed = (figures + company).sum(axis=1, keepdims=True)
    if rest.listed:  # its density is as seen, and a share of it are figures with their company
        seen = np.log(rest.listed / rest.area_mm2)
        of_figures = seen - np.logaddexp(0, -SHARES) - np.log(listed)
        of_others = seen - np.logaddexp(0, SHARES)[None]
        one, other = (np.exp(part - seen)[..., None] for part in (of_figures, of_others))
        unanswered, _ = _capped(rest, prior.most_unanswered[1])
        mixed = other * others[:, None] + one * company[:, None]
        value = _mixture(rest, unanswered, one * figures[:, None], mixed, error)
    else:
        of_figures = of_others = DENSITIES[None]
        value = -rest.area_mm2 * np.exp(of_figures) * (1 + listed)
    value = value + _normal(of_figures, *prior.figures) + _of_lookalikes(of_others, prior)
    spread, nests = prior.circle_sd
    near = np.exp(_normal(DENSITIES, (of_figures - spread**2 / 2)[..., None], spread))
    away = (DENSITIES - (of_others[0] - nests**2 / 2)[:, None]) / nests
    beside = (1 + away**2 / prior.nests_freedom) ** (-(prior.nests_freedom + 1) / 2)
    weights = np.exp(value - value.max())
    sums = np.swapaxes(near * weights[..., None], -1, -2) @ beside
    return np.asarray(np.log(_around(sums, prior) + 1e-300) + value.max())


def _around(density: Floats, prior: LaboratoryPrior) -> Floats:
    """Densities by shape (levels, shapes, ...) of the circle, from those of the rest of its slide."""
    away = np.square((SHAPES[:, None] - SHAPES) / (*prior.circle_shape_sd, NEVER)).sum(axis=-1)
    kernel = np.exp(-0.5 * away)
    kernel /= kernel.sum(axis=0)
    return np.asarray(kernel @ density.reshape(*density.shape[:2], -1)).reshape(density.shape)


def _normal(value: Floats, mean: Floats | float, sd: float) -> Floats:
    """Log density, without its constant."""
    return np.asarray(-0.5 * ((value - mean) / sd) ** 2 - np.log(sd))


# ---- laboratories ----


@lru_cache(maxsize=8)
def _slides_of(prior: LaboratoryPrior) -> Floats:
    """(spreads, shapes, shapes): from the shape of a laboratory to those of its slides."""
    away = (SHAPES[:, None] - SHAPES[None]) ** 2
    others = (away[..., 1:] / np.square((*prior.slide_sd, NEVER))).sum(axis=-1)
    near = np.exp(-0.5 * (away[..., 0] / np.square(SPREADS)[:, None, None] + others))
    return np.asarray(near / near.sum(axis=2, keepdims=True))


def slide_prior(slides: Iterable[Floats], prior: LaboratoryPrior) -> Floats:
    """Log prior (levels, shapes) of a slide, given the log-likelihoods of both of its laboratory's others."""
    kernels = _slides_of(prior)
    parts = (prior.shift, prior.fall, prior.company)
    usual = (SHAPES[:, 3] == 0) * scipy.special.softmax(
        sum(
            scipy.stats.t.logpdf((SHAPES[:, number] - middle) / scale, prior.freedom)
            for number, (middle, scale) in enumerate(parts)
        )
    )
    laboratories, slides_unlike = prior.unlike
    of_shapes = np.log((1 - laboratories) * usual / usual.sum() + laboratories / len(SHAPES))
    spreads, levels = (np.log(weights)[:, None] for weights in (prior.spread_weights, prior.level_weights))
    posterior = spreads[:, None] + levels + of_shapes
    anywhere = (np.exp(posterior) @ kernels).sum(axis=0)
    for likelihood in slides:
        likely = np.exp(likelihood - likelihood.max())
        like = likely @ np.swapaxes(kernels, 1, 2)
        unlike = float((anywhere * likely).sum())
        posterior = posterior + np.log((1 - slides_unlike) * like + slides_unlike * unlike + 1e-300)
    weights = np.exp(posterior - scipy.special.logsumexp(posterior))
    like = (weights @ kernels).sum(axis=0)
    return np.asarray(np.log((1 - slides_unlike) * like + slides_unlike * anywhere + 1e-300))


def by_shape(likelihood: Floats) -> Floats:
    """Log-likelihood (levels, shapes) of a slide, whatever its densities."""
    top = likelihood.max(axis=(2, 3), keepdims=True)
    return np.asarray(np.log(np.exp(likelihood - top).sum(axis=(2, 3))) + top[..., 0, 0])


def draw_true_figures(
    circle: Tally,
    rest: Tally,
    prior_of_slide: Floats,
    prior: LaboratoryPrior,
    error: ObserverError,
    seed: int,
) -> tuple[Integers, Integers]:
    """Draws as of `draw_figures`, in some of which what people said of the slide is taken for nothing.

    Of an observer who says nothing, each share of yes is as likely as any other. Answers that fit the model
    rule that out; where they contradict all that it lists, the interval stays as wide as without them.
    """
    likelihood = slide_likelihood(circle, rest, prior, error)
    drawn = draw_figures(likelihood, prior_of_slide, circle, prior, error, seed)
    yes, no = (float((getattr(circle, name) + getattr(rest, name)).sum()) for name in ("yes", "no"))
    if yes + no == 0:
        return drawn
    idle = slide_likelihood(circle, rest, prior, NO_OBSERVER)
    said = np.log(2) * (yes + no) + scipy.special.betaln(yes + 1, no + 1)
    evidence, other = (
        scipy.special.logsumexp(by_shape(value) + prior_of_slide) for value in (likelihood, idle)
    )
    odds = scipy.special.logit(prior.idle) + said + other - evidence
    nothing = np.random.default_rng(seed).uniform(size=DRAWS) < scipy.special.expit(odds)
    if not nothing.any():
        return drawn
    instead = draw_figures(idle, prior_of_slide, circle, prior, NO_OBSERVER, seed)
    marked, unmarked = (np.where(nothing, *both) for both in zip(instead, drawn, strict=True))
    return marked, unmarked


def draw_figures(
    likelihood: Floats,
    prior_of_slide: Floats,
    circle: Tally,
    prior: LaboratoryPrior,
    error: ObserverError = USUAL_OBSERVER,
    seed: int = 0,
) -> tuple[Integers, Integers]:
    """Draws of the true figures in the circle: of those listed or added, and of those without a mark."""
    generator = np.random.default_rng(seed)
    value = likelihood + prior_of_slide[..., None, None]
    weights = np.exp(value - value.max()).sum(axis=0)
    upto = np.cumsum(weights)
    chosen = np.searchsorted(upto, generator.uniform(size=DRAWS) * upto[-1], side="right")
    shape, row, column = np.unravel_index(chosen, weights.shape)
    figures, others, company = (part[shape] for part in densities_by_bin(prior))
    ones, twos = (
        np.exp(DENSITIES[index] + generator.uniform(-STEP / 2, STEP / 2, DRAWS))[:, None]
        for index in (row, column)
    )
    one, other = ones * figures, twos * others + ones * company
    right, wrong = one * (1 - error.missed), other * error.false_alarms
    missed, refused = one * error.missed, other * (1 - error.false_alarms)
    parts = (
        (circle.unanswered, one / (one + other)),
        (circle.yes, right / (right + wrong)),
        (circle.no, missed / (missed + refused)),
    )
    listed = sum(generator.binomial(number.astype(np.int64), chance).sum(axis=1) for number, chance in parts)
    expected = circle.area_mm2 * ones[:, 0] * (1 - figures.sum(axis=1))
    # What was added is among those that the detector did not list.
    poisson = scipy.stats.poisson
    least = poisson.cdf(circle.added - 1, expected)
    missing = poisson.ppf(least + generator.uniform(size=DRAWS) * (1 - least), expected) - circle.added
    unmarked = np.maximum(np.nan_to_num(missing, posinf=0), 0).astype(np.int64)
    return np.asarray(listed + circle.added, np.int64), unmarked
