# Everything a developer or a user runs. `make help` is the index.
# Needs Python >= 3.11, git and make; all else comes from package registries into .venv and ~/.cache/icestream.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv
STAMP  := $(VENV)/.synced
UV_VERSION := 0.13.7
# With bytecode files, each of the many Python processes starts a second sooner.
unexport PYTHONDONTWRITEBYTECODE
# Kinds of tests run side by side, the longest first: docs/decisions/0017-test-runner.md.
KINDS_OF_TESTS := "pytest tests/fault" "pytest tests/integration" "pytest tests/unit tests/conformance tests/property" "pytest tests/e2e"

.DEFAULT_GOAL := help
.PHONY: help setup servers demo test check unit integration fault e2e soak mutants bench docs lock format clean

help: ## show this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(STAMP) ## build the environment in .venv from the lock file (quick when nothing changed)

$(UV):
	@echo "setup: creating $(VENV) and installing uv $(UV_VERSION) into it"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "setup: Python 3.11 or newer is needed; set PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(STAMP): requirements.lock pyproject.toml bench/pyproject.toml dev/pyproject.toml | $(UV)
	@echo "setup: installing the locked dependencies"
	@$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable . --editable dev --editable bench
	@touch $@

servers: setup ## install the servers and jars that tests need into the cache folder (quick when they are there)
	@$(BIN)/python dev/ensure_servers.py

demo: setup ## publish, crash, replay, commit to Iceberg and verify, on this machine
	@$(BIN)/icestream demo

test: check servers ## everything that must pass: check, then all tests, three kinds at a time
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python dev/side_by_side.py 3 $(KINDS_OF_TESTS)

check: setup ## lint, types, layers, dependencies, mutants' targets
	@echo "check: ruff"      && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "check: mypy"      && $(BIN)/mypy
	@echo "check: layers"    && PYTHONPATH=src $(BIN)/lint-imports --no-cache
	@echo "check: deptry"    && $(BIN)/deptry src
	@echo "check: mutants"   && $(BIN)/python dev/mutants.py --check

unit: setup servers ## tests of parts: unit, property and conformance
	@$(BIN)/pytest tests/unit tests/conformance tests/property

integration: setup servers ## tests of several parts, with real servers and Spark
	@$(BIN)/pytest tests/integration

fault: setup servers ## crashes, power cuts, full disks, cut connections
	@$(BIN)/pytest tests/fault

e2e: setup servers ## whole processes, as users start them
	@$(BIN)/pytest tests/e2e

soak: setup servers ## the long fault and load runs (ICESTREAM_SOAK=1 widens every seeded test)
	@ICESTREAM_SOAK=1 $(BIN)/pytest tests/property tests/fault tests/e2e tests/unit/testing tests/integration/migration

mutants: setup ## remove a safeguard at a time and see a test fail
	@$(BIN)/python dev/mutants.py

bench: setup ## measure this machine: floors and icestream side by side
	@$(BIN)/icestream bench ack && $(BIN)/icestream bench produce && $(BIN)/icestream bench fanout \
	    && $(BIN)/icestream bench pipeline && $(BIN)/icestream bench replay \
	    && $(BIN)/icestream bench cloud

docs: setup ## build the documentation into docs/_build/html
	@$(BIN)/icestream config docs > docs/settings.md
	@$(BIN)/python -m icestream.cli.reference > docs/cli.md
	@$(BIN)/sphinx-build -q -W -b html docs docs/_build/html && echo "docs: docs/_build/html/index.html"

lock: $(UV) ## resolve dependencies anew into requirements.lock
	@$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --all-extras --group dev --group docs \
	    --python-version 3.11 --custom-compile-command "make lock" -o requirements.lock pyproject.toml

format: setup ## format the code and apply safe fixes
	@$(BIN)/ruff check --fix-only . ; $(BIN)/ruff format .

clean: ## remove the environment and all that was built
	@rm -rf $(VENV) build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
