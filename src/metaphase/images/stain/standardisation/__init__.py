"""Make slides from different laboratories look alike: fit on a slide, save, apply to any region.

Three methods with one interface: `hsd` (per slide, in hue-saturation-density space), and the usual
baselines `macenko` and `reinhard`.
"""

from metaphase.images.stain.standardisation.transform import (
    METHODS,
    LookupTable,
    SamplingConfig,
    StainTransform,
    Template,
    fit_slide,
    sample_slide,
    standardise_slide,
    template_of_slide,
)

__all__ = [
    "METHODS",
    "LookupTable",
    "SamplingConfig",
    "StainTransform",
    "Template",
    "fit_slide",
    "sample_slide",
    "standardise_slide",
    "template_of_slide",
]
