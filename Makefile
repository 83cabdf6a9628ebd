# Everything is set up in .venv by the first command that needs it; a second run reuses what is there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup run test coverage lint generate verify conformance bench clean

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## make .venv with what the lock file says

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Fencepost needs Python 3.11 or later; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv module. On Debian: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing what requirements.lock lists (the first time takes a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

run: $(READY) ## the main job, embedded: hash the standard library and check the manifest
	@mkdir -p build
	@$(BIN)/fencepost run examples/checksums/job.yaml --app examples.checksums.worker:worker --workers 2 --store build/checksums.db
	@test -f build/checksums.sha256 || { echo "build/checksums.sha256 was removed after the job had written it: rm build/checksums.db*, then again"; exit 1; }
	@sha256sum --check --quiet build/checksums.sha256 && \
	  echo "sha256sum confirms build/checksums.sha256: $$(wc -l < build/checksums.sha256) files"

test: $(READY) ## all tests, against a real API server that is built and started for them
	@$(BIN)/python -m tests.cluster.build
	@$(BIN)/python -m pytest $(ARGS)

coverage: $(READY) ## every branch of the core is run by the tests of the core alone
	@$(BIN)/python -m pytest -q tests/protocol --cov=fencepost.protocol --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100

lint: $(READY) ## ruff, mypy --strict, import-linter, and that nothing generated is stale
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m fencepost.api.generate --check

generate: $(READY) ## write crds/ from the models
	@$(BIN)/python -m fencepost.api.generate

verify: generate lint ## regenerate, check, and fail if that changed a file
	@git diff --exit-code -- crds

conformance: $(READY) ## a line for each promise and store
	@$(BIN)/python -m tests.cluster.build
	@$(BIN)/python -m tests.conformance

bench: $(READY) ## measure, beside what it is compared with; writes build/bench.json
	@$(BIN)/python -m tests.cluster.build
	@$(BIN)/python -m tests.bench

clean: ## remove what was made here (not the cache of built binaries)
	@rm -rf build $(VENV)
