# Two commands do everything on a fresh Debian machine: `make demo` and `make test`.
.DEFAULT_GOAL := help
PYTHON ?= python3
export PYTHON
BIN := .venv/bin

.PHONY: help venv setup demo test lint clean

help:
	@echo "make demo    set up what is missing, then run the main job on a private Slurm cluster (under 4 minutes)"
	@echo "make test    set up what is missing, then run all checks and tests"
	@echo "make venv    only the Python environment (.venv), without horovod and Slurm"
	@echo "make lint    formatting, linting and type checks"
	@echo "make clean   remove .venv and build products (the horovod wheel stays in the cache)"

venv:
	@bash tools/setup.sh venv

setup:
	@bash tools/setup.sh full

demo: setup
	@$(BIN)/python -m examples.demo

lint: venv
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

test: setup lint
	@BFTD_REQUIRE_ALL=1 $(BIN)/python -m pytest -q

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .demo
