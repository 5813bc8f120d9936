# Every target is one line of what and one of how; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

FLAVOUR ?= cpu
PYTHON ?=
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin

# The environment's bytecode is written once, on first import; its absence costs seconds at every start.
unexport PYTHONDONTWRITEBYTECODE PYTHONHOME
export PYTHONPATH := $(CURDIR)/src
export PYTHONNOUSERSITE := 1
export PATH := $(BIN):$(PATH)

.PHONY: help setup repro test test-recipes test-real test-gpu soak image ui bench shell lock lint check format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv from the locks (FLAVOUR=cpu|cuda); does nothing when it is up to date
	@FLAVOUR=$(FLAVOUR) PYTHON=$(PYTHON) scripts/setup.sh

repro: setup ## the default experiment: fetch what it needs, run what is not up to date
	@./lockstep repro

test: setup ## the tests that need no daemon and no root (about 10 minutes on two cores)
	@python -m pytest -n auto --maxprocesses 4 --dist loadfile

test-recipes: setup ## every recipe planned as it is, and run with its model shrunk (about 4 minutes on two cores)
	@python -m pytest tests/recipes -n auto --maxprocesses 4 --dist loadfile

test-real: setup ## the tests against real Docker, Apptainer and Slurm (installs them: Debian, as root)
	@tests/real/setup.sh
	@python -m pytest tests/real -m "real and not soak"

test-gpu: setup ## the checks that need one NVIDIA GPU of 80 GB or more (skipped, loudly, without one)
	@python -m pytest tests/gpu -m gpu -rs -s

soak: setup ## the long forms of the tests
	@python -m pytest tests -m soak --timeout 7200

image: setup ## wheelhouse, image, SIF and image.lock (FLAVOUR=cpu|cuda)
	@./lockstep image build --flavour $(FLAVOUR)

ui: setup ## the MLflow UI over this checkout's runs
	@./lockstep ui

bench: setup ## what things cost: start-up, first step, speed by engine, saves (each script of benchmarks/ in turn)
	@for script in benchmarks/[a-z]*.py; do python "$$script"; done

shell: setup ## a shell in which python, dvc and lockstep are this checkout's
	@PATH="$(CURDIR):$$PATH" exec $${SHELL:-sh}

lock: setup ## resolve requirements/*.in anew (keeps locked versions) and write locks and image.lock
	@./lockstep image lock

lint: setup ## ruff, mypy, import contracts, shellcheck
	@ruff check .
	@ruff format --check .
	@mypy
	@lint-imports --no-logo
	@shellcheck -x lockstep scripts/*.sh .ci/run tests/real/*.sh slurm/*.sbatch slurm/lib/*.sh

check: lint test ## lint and test

format: setup ## let ruff format and fix
	@ruff check --fix-only --quiet .
	@ruff format .

clean: ## remove the environment and all caches; runs, results and data stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache wheelhouse
