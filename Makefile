# Everything a newcomer needs: `make demo`, `make test`, `make down`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo down test test-long setup binaries lint types unit simulation fleet lock bench clean

demo: setup            ## a local fleet of real control planes, and the walk-through in gang and in queue mode
	$(BIN)/python -m hack.demo

down: setup            ## stop what `make demo` started
	$(BIN)/python -m hack.fleet down

test: setup lint types unit simulation binaries fleet

test-long: setup lint types unit simulation binaries
	$(BIN)/python -m hack.longrun

setup: $(VENV)/.installed

# `python3` may be older than the project needs: say so in one line instead of failing inside pip.
$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "muster needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "the venv module is missing: install your system's python3-venv package"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

binaries: setup        ## Kubernetes, etcd, kwok: built once into the cache from pinned Go modules
	$(BIN)/python -m hack.fleet build

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest -q tests/unit

simulation: setup
	$(BIN)/python -m pytest -q -m "not long" tests/simulation

fleet: setup binaries
	$(BIN)/python -m pytest -v -m "not long" tests/fleet

bench: setup binaries
	$(BIN)/python -m hack.bench

lock: setup            ## re-resolve requirements.lock from pyproject.toml
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --group dev --generate-hashes --no-header --no-annotate --no-emit-index-url \
	  --python-version 3.11 pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
