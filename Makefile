# Every target sets itself up: `make demo` and `make test` work on a fresh clone (Linux, Python 3.11 or 3.12).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CODE := stateplay_rl tests examples docs
WORKERS ?= 2

# One thread a process: pytest runs several, and sums do not depend on the machine.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup test test-fast test-gpu check lint format-check ruff types layers docs docs-check format \
	demo golden bench clean

help:  ## this list
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(STAMP)  ## make .venv once; quick when nothing changed

# Torch first and pinned: left to the resolver it may bring a build of several GB.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' \
		|| { echo "Python 3.11 or 3.12 is needed, $(PYTHON) is another: make PYTHON=python3.12 ..." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[world,reward,dev]'
	touch $(STAMP)

test: setup  ## all tests
	$(BIN)/python -m pytest -n $(WORKERS)

test-fast: setup  ## tests without the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not gpu"

test-gpu: setup  ## tests that need a CUDA device
	$(BIN)/python -m pytest -n 0 -m gpu

check: lint test  ## format, lint, types, layers, docs, tests

lint: format-check ruff types layers docs-check  ## everything of `check` but the tests

format-check: setup
	$(BIN)/ruff format --check $(CODE)

ruff: setup
	$(BIN)/ruff check $(CODE)

types: setup  ## mypy, strict
	$(BIN)/mypy

layers: setup  ## imports run one way
	$(BIN)/lint-imports --no-logo

docs: setup  ## write docs/commands.md from the code
	$(BIN)/python docs/generate.py

docs-check: setup
	$(BIN)/python docs/generate.py --check

format: setup  ## reformat and fix what can be fixed
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

demo: setup  ## the whole chain on the embedded world; writes demo/
	OMP_NUM_THREADS=2 $(BIN)/python examples/demo.py --out demo

golden: setup  ## compare with the golden vectors
	$(BIN)/python -m stateplay_rl verify golden tests/golden

bench: setup  ## timings of the hot paths; asserts nothing
	$(BIN)/python examples/bench.py

clean:  ## remove caches, keep .venv and outputs
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
