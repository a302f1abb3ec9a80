"""The package in Python: `import metaphase as mp`.

Each function is the command of its name, by the same route and with the same numbers. A slide is a path, an
open `Slide`, or pixels with `mpp`; points are a file, a folder, a table with x and y in level-0 pixels, or a
`Result`. Settings are keywords, called as in the command's `--set`.
"""

from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.record import SlideResult as Result
from metaphase.api.points import Calibration, calibrate, evaluate, register, score
from metaphase.api.results import Results, load_result, load_results
from metaphase.api.slides import (
    demo_field,
    detect,
    load_model,
    tissue,
    use_network,
)
from metaphase.base.errors import MetaphaseError
from metaphase.counting.sites import load_profile
from metaphase.counting.specimen import CountConfig
from metaphase.labels.registration.similarity import RegistrationConfig
from metaphase.slides.contract import Slide
from metaphase.slides.opening import open_slide

__all__ = [
    "Calibration",
    "CountConfig",
    "DetectionConfig",
    "MetaphaseError",
    "RegistrationConfig",
    "Result",
    "Results",
    "Slide",
    "calibrate",
    "demo_field",
    "detect",
    "evaluate",
    "load_model",
    "load_profile",
    "load_result",
    "load_results",
    "open_slide",
    "register",
    "score",
    "tissue",
    "use_network",
]
