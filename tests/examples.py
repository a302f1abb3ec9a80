"""How many examples a property test with costly ones tries: 5 in `make test`, 50 in `make test-all`."""

from hypothesis import settings

FEW = settings(max_examples=settings.default.max_examples // 4)
