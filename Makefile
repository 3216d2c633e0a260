# Two commands do everything on a fresh Debian machine: `make demo` and `make test`.
.DEFAULT_GOAL := help
PYTHON ?= python3
export PYTHON
BIN := .venv/bin
PLUGIN := build/plugins/spank_bftd.so
SPANK := slurm_plugin/spank

.PHONY: help venv setup demo test lint plugins clean

help:
	@echo "make demo    set up what is missing, then run the main job on a private Slurm cluster (under 4 minutes)"
	@echo "make test    set up what is missing, then run all checks and tests"
	@echo "make plugins compile the SPANK plug-in for the Slurm installed here, into build/plugins"
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

plugins: $(PLUGIN)

# Warnings are errors: the plug-in is loaded into every sbatch, salloc and srun of a site.
$(PLUGIN): $(SPANK)/elastic.c $(SPANK)/spank_bftd.c $(SPANK)/elastic.h
	@echo '#include <slurm/spank.h>' | $(CC) $(CPPFLAGS) -E -x c - >/dev/null 2>&1 || \
		{ echo "plugins: no C compiler or no slurm/spank.h: install gcc and libslurm-dev (RPM: slurm-devel)" >&2; exit 1; }
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -std=c11 -O2 -fPIC -Wall -Wextra -Werror -shared $(LDFLAGS) -o $@ $(filter %.c,$^)

test: setup lint
	@$(MAKE) --silent plugins
	@BFTD_REQUIRE_ALL=1 $(BIN)/python -m pytest -q

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .demo
