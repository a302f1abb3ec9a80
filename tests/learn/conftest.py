from tests.analysis.conftest import he_slide, model

__all__ = ["he_slide", "model"]
