# Everything here needs only Python 3.11 or newer and make; .venv is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two workers of one thread each: some tests start processes of their own, so there are no more on a larger machine.
TWO := --numprocesses 2 --dist worksteal

.DEFAULT_GOAL := help

help: ## Show this list.
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "contraport needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[train,report,dev]'
	@touch $@

demo: $(READY) ## Train on images with two objectives, evaluate, and write runs/demo/report.html.
	$(BIN)/contraport demo

test: $(READY) ## Run the fast tests and the examples in the documentation.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(TWO)

slow: $(READY) ## Run the tests that take longer.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(TWO) -m slow

portable: $(READY) ## Run the fast tests as other machines would.
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(BIN)/python -m pytest
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 $(BIN)/python -m pytest
	OMP_NUM_THREADS=1 LC_ALL=C TZ=Pacific/Kiritimati HOME=/dev/null $(BIN)/python -m pytest $(TWO)

lint: $(READY) ## Check style, types and the direction of imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) ## Measure speed and memory against other libraries (installs them).
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python -m benchmarks

docs: $(READY) ## Write the generated parts of the documentation again.
	$(BIN)/python docs/generate.py

build: $(READY) ## Make the wheel and the source distribution in dist/.
	$(BIN)/python -m pip install --quiet build
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

wheel: build ## Try the wheel, with core dependencies alone, on the Pythons and torches that can be had.
	$(BIN)/python tests/wheel.py dist/*.whl

site: $(READY) ## Build the site into ./site (installs Sphinx); it needs no network and has its own search.
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d .sphinx docs site
	@echo "site/index.html"

clean: ## Remove the environment and the caches.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .sphinx

.PHONY: help demo test slow portable lint bench docs build wheel site clean
