"""Make slides from different laboratories look alike: fit on a slide, save, apply to any region.

Three methods with one interface: `hsd` (per slide, in hue-saturation-density space), and the usual
baselines `macenko` and `reinhard`.
"""
