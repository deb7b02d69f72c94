# On a bare machine with Python 3.11+ and make: `make demo` and `make test` do everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
export JAX_PLATFORMS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format docs bench bench-peers data clean

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "pisco needs Python 3.11 or newer; set PYTHON=python3.12, say" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

$(DEV_STAMP): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(STAMP)

demo: $(STAMP) ## PISCO on the bundled a9a over a ring of 10: a table and a plot
	$(BIN)/pisco demo

test: $(STAMP) ## the tests (under 10 minutes on 2 cores)
	$(BIN)/python -m pytest -n auto -m 'not slow'

test-slow: $(STAMP) ## the tests that take minutes each
	$(BIN)/python -m pytest -m slow

lint: $(DEV_STAMP) ## format check, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(DEV_STAMP) ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DEV_STAMP) ## build the documentation site strictly into site/
	$(BIN)/mkdocs build --strict

bench: $(DEV_STAMP) ## benchmarks, as JSON
	$(BIN)/python benchmarks/bench_round.py

bench-peers: $(STAMP) ## time per round against NVFlare, Flower, PyTorch, fedjax, pfl; PEERS="torch pfl" for some
	$(BIN)/python benchmarks/peers/run.py $(PEERS)

data: $(STAMP) ## rebuild the bundled a9a from raw UCI Adult
	$(BIN)/python tools/build_a9a.py

clean: ## remove the environment and build products
	rm -rf $(VENV) .peers build dist site .pytest_cache .ruff_cache
