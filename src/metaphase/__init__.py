"""Whole-slide mitosis detection for breast histology.

`import metaphase as mp` is quick: each name is loaded when it is first used. In the order of a day's work:

- `mp.demo_field()`: pixels of a real carcinoma, to try things on
- `mp.open_slide(slide)`: a file, or pixels of NumPy, PIL, dask, zarr or xarray, as a `Slide`
- `mp.tissue(slide)`: where its tissue is
- `mp.load_model(name)`: a detector for many slides; `mp.use_network(network, name)`: one of your own
- `mp.detect(slides)`: a `Result` for each: count, interval, score, table, report
- `mp.load_result(folder)`, `mp.load_results(folder)`: the same, later
- `mp.score(points)`: count and score of anybody's detections
- `mp.calibrate(results)`: a laboratory's profile by about 100 answers; `mp.load_profile(file)` reads it
- `mp.register(he, phh3)`: PHH3 onto H&E
- `mp.evaluate(truth, predictions)`: precision, recall and F1 with their intervals

Whatever is wrong with the input is a `mp.MetaphaseError`: `problem`, `path`, `next_step`.

>>> import metaphase as mp
>>> mp.detect.__module__
'metaphase.api.slides'
"""

from metaphase.version import __version__ as __version__

__all__ = [  # noqa: RUF022 -- in the order of a day's work
    "demo_field",
    "open_slide",
    "tissue",
    "load_model",
    "use_network",
    "detect",
    "load_result",
    "load_results",
    "score",
    "calibrate",
    "load_profile",
    "register",
    "evaluate",
    "Result",
    "Results",
    "Calibration",
    "Slide",
    "MetaphaseError",
    "DetectionConfig",
    "CountConfig",
    "RegistrationConfig",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'metaphase' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("metaphase.api"), name)


def __dir__() -> list[str]:
    return [name for name in globals() if name.startswith("__")] + __all__
