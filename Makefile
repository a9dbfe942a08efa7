# Every target works in a fresh clone: it makes .venv and installs what it needs, once.
#   PYTHON  what .venv is made with: 3.11 or newer
#   JOBS    processes that run tests, one more than two cores since many tests wait; 0: none but pytest's own
#   ARGS    more arguments for pytest: make test ARGS="tests/data -k resume"
PYTHON ?= python3
JOBS ?= 3
ARGS ?=
#   SEED    which cases of large enumerations are sampled
SEED ?= 0

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo java browser pages weights test test-all test-exhaustive test-gpu coverage check bench bench-gpu
.PHONY: dashboard constraints notebooks clean
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e

help:
	@echo "make demo [KILL=1]  train sixteen networks on real images; KILL=1: kill it halfway, resume, compare"
	@echo "make test           quick tests and a walk through every service; ARGS=PATH: any part"
	@echo "make test-all       all tests; large enumerations are sampled (SEED=N)"
	@echo "make test-exhaustive  all tests, every case of enumerations, 1000 examples of each law: hours"
	@echo "make weights        pretrained weights for the tests and examples that use them, into build/weights"
	@echo "make test-gpu       the tests that need an NVIDIA GPU, with the PyTorch that is there"
	@echo "make coverage       make test, and which lines of the package it ran, also in processes that tests start"
	@echo "make check          lint, format, types, layers, documented commands and names, exact versions"
	@echo "make dashboard      build the pages of the dashboard, with Node.js 20 or newer"
	@echo "make bench          run every benchmark; results go to build/bench.jsonl too"
	@echo "make bench-gpu      the benchmarks that need an NVIDIA GPU; results go to benchmarks/results"
	@echo "make constraints    resolve the newest versions of everything into constraints.txt"
	@echo "make notebooks      run the notebooks of examples/ anew, with their outputs"
	@echo "make clean          remove .venv, caches and build/"

demo: .venv/.demo
	$(BIN)/hopyard demo $(if $(filter-out 0,$(strip $(KILL))),--kill)

# What Spark's tests need: Java 17 or newer.
java:
	@tools/java.sh

# What the tests of the dashboard need: Chromium, and its pages, which npm builds.
browser:
	@tools/browser.sh

pages:
	@tools/pages.sh

weights: .venv/.dev
	$(BIN)/python tools/weights.py

# The levels are those of tests/sampling.py.
test coverage: export HOPYARD_TESTS := quick
test-all: export HOPYARD_TESTS := ci
test-exhaustive: export HOPYARD_TESTS := exhaustive
test test-all test-exhaustive coverage: export HOPYARD_SEED := $(SEED)
test: java browser pages .venv/.dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-all: java browser pages .venv/.dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-exhaustive: java browser pages .venv/.dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout 0 $(ARGS)

# Both need a PyTorch with CUDA, which is not the one that .venv gets: PYTHON is a Python that has it, with what else the
# package needs.
GPU_FILES := tests/training/torch/test_captured.py tests/data/test_torch_loader.py tests/stockroom/models/test_shelf.py
HAS_GPU := $(PYTHON) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("PyTorch sees no GPU; see nvidia-smi.")'
test-gpu:
	$(HAS_GPU)
	PYTHONPATH=src $(PYTHON) -m pytest -n 0 -m gpu $(GPU_FILES) $(ARGS)

bench-gpu:
	$(HAS_GPU)
	mkdir -p benchmarks/results
	machine=$$($(PYTHON) -c 'import torch; print(torch.cuda.get_device_name().replace(" ", "-"))'); \
	for benchmark in benchmarks/gpu/*.py; do \
	  PYTHONPATH=src $(PYTHON) "$$benchmark" | tee -a "benchmarks/results/$$machine.jsonl"; \
	done

coverage: java browser pages .venv/.dev
	rm -rf build/coverage
	mkdir -p build/coverage
	$(BIN)/python -m coverage run -m pytest -n $(JOBS) --dist worksteal $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

check: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python tools/typed.py
	$(BIN)/lint-imports
	$(BIN)/python -m pip check --disable-pip-version-check
	$(BIN)/python tools/constraints.py check
	$(BIN)/python tools/pages.py
	$(BIN)/python tools/slow.py

bench: java browser pages .venv/.dev
	mkdir -p build
	failed=; for benchmark in benchmarks/[!_]*.py; do \
	  echo "$$(date +%T) $$benchmark" >&2; \
	  $(BIN)/python "$$benchmark" | tee -a build/bench.jsonl || failed+=" $$benchmark"; \
	done; if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

dashboard:
	cd dashboard && npm ci --no-audit --no-fund && npm run check && npm run build

constraints: .venv/.dev
	$(BIN)/python tools/constraints.py write

notebooks: .venv/.dev
	$(BIN)/python tools/notebooks.py

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that has pip is used as it is; one that was interrupted in the making is completed.
.venv/.made:
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	touch $@

# `dev` contains `demo`: the larger installation satisfies the smaller one.
.venv/.demo: pyproject.toml constraints.txt | .venv/.made
	$(INSTALL) '.[demo]'
	touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/.made
	$(INSTALL) '.[dev]'
	touch $@ .venv/.demo
