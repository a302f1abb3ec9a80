# `make demo` and `make test` are all a newcomer needs; both make the environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint format bench clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "metaphase needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)  ## a simulated pair of slides, what they are, where their tissue is; ends with pictures to open
	$(BIN)/metaphase simulate demo --cases 1 --centres 1 --width 8192 --height 6144 --seed 1
	$(BIN)/metaphase info demo/case000/he.tif
	$(BIN)/metaphase tissue demo/case000/he.tif demo/case000/phh3.tif -o demo/tissue
	@echo "Open demo/tissue/he.tissue.jpg, and demo/case000/he.tif in QuPath or any slide viewer."

test: $(READY)  ## all tests
	$(BIN)/python -m pytest -n auto

lint: $(READY)  ## style, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## speed and memory, as ratios within one run
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/stain_augmentation.py
	$(BIN)/python benchmarks/evaluation_speed.py
	$(BIN)/python benchmarks/training.py --gamma 0.2 --patches 512 --steps 10

clean:
	rm -rf $(VENV) demo
