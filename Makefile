# On a bare machine with Python 3.11+ and make: `make demo` and `make test` do everything.
PYTHON ?= python3
VENV := $(if $(LOWEST),.venv-lowest,.venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
export JAX_PLATFORMS ?=
unexport PYTHONDONTWRITEBYTECODE # tests start hundreds of processes, and each would compile the sources again

.DEFAULT_GOAL := help
.PHONY: help demo check quick test test-slow test-lowest lint format docs notebooks bench bench-gpu bench-peers bench-plan data proto clean

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "pisco needs Python 3.11 or newer; set PYTHON=python3.12, say" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml | $(VENV)/bin/python
	$(if $(LOWEST),$(BIN)/python tools/lowest.py > $(VENV)/lowest.txt)
	$(BIN)/python -m pip install --quiet $(if $(LOWEST),--constraint $(VENV)/lowest.txt) --editable '.[test]'
	@touch $@

$(DEV_STAMP): pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(STAMP)

demo: $(STAMP) ## PISCO on the bundled a9a over a ring of 10: a table and a plot
	$(BIN)/pisco demo

check: ## lint, types and, at the same time, the quick tests
	@$(MAKE) --no-print-directory --jobs 2 lint quick

quick: $(DEV_STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'quick and not slow' tests

test: $(STAMP) ## the tests (7 to 8 minutes on 2 cores)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m 'not slow'

test-slow: $(STAMP) ## the tests that take minutes each
	XLA_FLAGS="$$XLA_FLAGS" $(BIN)/python -m pytest -m slow

test-lowest: ## the tests with the lowest versions that pyproject.toml allows (LOWEST=1: other targets with them)
	@$(MAKE) --no-print-directory test LOWEST=1

lint: $(DEV_STAMP) ## format check, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(DEV_STAMP) ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DEV_STAMP) ## build the documentation site strictly into site/
	$(BIN)/zensical build --strict --clean

notebooks: $(STAMP) ## execute the notebooks in examples/
	$(BIN)/python -m pip install --quiet --editable '.[notebooks]'
	$(BIN)/python tools/run_notebooks.py

bench: $(STAMP) ## benchmarks as ratios: JSON rows, then a table (minutes; on a quiet machine)
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/bench_bytes.py
	$(BIN)/python benchmarks/bench_scaling.py

bench-gpu: $(STAMP) ## the benchmarks about an accelerator (install the extra `cuda` first)
	$(BIN)/python benchmarks/run.py --accelerator

bench-plan: $(DEV_STAMP) ## plans against an exhaustive grid on twelve problems, and weights, as JSON (an hour or more)
	$(BIN)/python benchmarks/bench_plan.py
	$(BIN)/python benchmarks/bench_weights.py --a9a

bench-peers: $(STAMP) ## time per round against NVFlare, Flower, PyTorch, fedjax, pfl; PEERS="torch pfl" for some
	$(BIN)/python benchmarks/peers/run.py $(PEERS)

data: $(STAMP) ## rebuild the bundled a9a from raw UCI Adult
	$(BIN)/python tools/build_a9a.py

proto: $(DEV_STAMP) ## write wire_pb2.py and keys_pb2.py anew from wire.proto and keys.proto
	$(BIN)/python -m pip install --quiet grpcio-tools
	$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src src/pisco/federation/runtime/*.proto

clean: ## remove the environment and build products
	rm -rf .venv .venv-* .peers .cache build dist site .pytest_cache .ruff_cache
