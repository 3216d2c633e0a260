# Two commands do everything on a fresh Debian machine: `make demo` and `make test`.
.DEFAULT_GOAL := help
PYTHON ?= python3
export PYTHON
# pytest keeps the tests that it has rewritten: ten seconds a process
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
PLUGIN := build/plugins/spank_bftd.so
SPANK := slurm_plugin/plugins/spank
# The names of the back-ends, for the plug-in.
BACKENDS := build/spank/backends.h
# Tests wait more than they work, so they run side by side, file by file: those with a cluster after all others, whose
# work would make its daemons late.
CLUSTER := cluster or accounting or browser
NOT_PURE := $(CLUSTER) or horovod or torch or plot or slow
SIDE_BY_SIDE = $(BIN)/python -m pytest -q --dist loadfile --no-loadscope-reorder
# Many of them wait for processes: two more than there are cores keep all of these at work. Those with a cluster wait most.
WORKERS := -n $(shell echo $$(($$(nproc) + 2)))
CLUSTER_WORKERS := -n $(shell echo $$(($$(nproc) + 4)))
# How long `make year` takes.
MINUTES := 60
PURE_TESTS = $(SIDE_BY_SIDE) -n auto -m "not ($(NOT_PURE))"

.PHONY: help venv setup setup-test setup-release demo test test-alone test-fast test-latest lock lint types plugins docs \
	evidence year deb rpm release release-check man install clean test-slurm test-pyslurm

help:
	@echo "make demo    set up what is missing, then run the main job on a private Slurm cluster (under 4 minutes)"
	@echo "make test    set up what is missing, then run all checks and tests"
	@echo "make test-fast  the pure tests alone, in under a minute: no Slurm, no processes"
	@echo "make test-latest  the pure tests with the newest releases of all packages, in build/latest"
	@echo "make lock    write tools/requirements.lock anew, the versions that set-up installs"
	@echo "make test-slurm RELEASE=26.05  run the tests that need a cluster on another Slurm, in a chroot (needs root and debootstrap)"
	@echo "make test-pyslurm  run the client's contract tests on pyslurm and Slurm 26.05, in a chroot (as above)"
	@echo "make plugins compile the SPANK plug-in for the Slurm installed here, into build/plugins"
	@echo "make deb     build the Debian packages, into build/deb; make rpm: with rpmbuild, into build/rpm"
	@echo "make release build wheel, source distribution, packages, SBOM and SHA256SUMS of the last commit, into dist"
	@echo "make release-check  build all of that twice and compare"
	@echo "make install install the program and its units, below DESTDIR; with PLUGIN_DIR also the plug-ins (docs/howto/install.md)"
	@echo "make docs    write the generated reference pages, and build the manual as a site into build/site"
	@echo "make evidence  run the shortest benchmarks again, an hour at most, and name figures outside their intervals"
	@echo "make year    run simulated worlds of fresh seeds, with faults, for an hour or MINUTES=240, and look at every rule"
	@echo "make man     write manual pages and shell completions into build/manual"
	@echo "make venv    only the Python environment (.venv), without horovod and Slurm"
	@echo "make lint    formatting, linting and type checks"
	@echo "make clean   remove .venv and build products (the horovod wheel stays in the cache)"

venv:
	@bash tools/setup.sh venv

setup:
	@bash tools/setup.sh full

demo: setup
	@$(BIN)/python -m examples.demo

lint: venv types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

# What mypy found out of a file is kept for the next clone.
types:
	@$(BIN)/mypy --cache-dir $${BFTD_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/bftd}/mypy

plugins: $(PLUGIN)

# Warnings are errors: the plug-in is loaded into every sbatch, salloc and srun of a site.
$(PLUGIN): $(SPANK)/auto_gpus.c $(SPANK)/elastic.c $(SPANK)/spank_bftd.c $(SPANK)/auto_gpus.h $(SPANK)/elastic.h \
		$(BACKENDS)
	@echo '#include <slurm/spank.h>' | $(CC) $(CPPFLAGS) -E -x c - >/dev/null 2>&1 || \
		{ echo "plugins: no C compiler or no slurm/spank.h: install gcc and libslurm-dev (RPM: slurm-devel)" >&2; exit 1; }
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -std=c11 -O2 -fPIC -Wall -Wextra -Werror -I$(dir $(BACKENDS)) -shared $(LDFLAGS) -o $@ $(filter %.c,$^)

$(BACKENDS): tools/backends_header.py elastic/backends/__init__.py elastic/backends/kind.py \
		$(wildcard elastic/backends/*/__init__.py)
	@mkdir -p $(@D)
	@$(PYTHON) -BI $< $@

deb rpm:
	@tools/package/build.sh $@

release: setup-release
	@tools/package/release.sh dist

release-check: setup-release
	@tools/package/release.sh --check

setup-release:
	@bash tools/setup.sh release

man: venv
	@PYTHONPATH=. $(BIN)/python tools/package/manual.py build/manual

install: $(if $(PLUGIN_DIR),plugins)
	@tools/package/install.sh program documents units $(if $(PLUGIN_DIR),plugins)

setup-test:
	@bash tools/setup.sh test

# mypy takes one core for a minute: beside the tests, which would leave the other one idle meanwhile.
test: setup-test
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(MAKE) --silent plugins
	@$(MAKE) --silent -j2 types test-alone
	@BFTD_REQUIRE_ALL=1 $(SIDE_BY_SIDE) $(CLUSTER_WORKERS) -m "$(CLUSTER)"

# Every test that needs no cluster.
test-alone:
	@BFTD_REQUIRE_ALL=1 $(SIDE_BY_SIDE) $(WORKERS) -m "not ($(CLUSTER))"

# What needs no cluster, no process and no time of its own, on all cores.
test-fast: venv
	@$(PURE_TESTS)

docs: venv
	@$(BIN)/python -m tools.reference_pages
	@$(BIN)/python -m benchmarks.evidence --pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

evidence: setup
	@$(BIN)/python -m benchmarks.evidence

year: venv
	@$(BIN)/python -m tools.year --minutes $(MINUTES)

# Without the lock, and beside .venv: what users get from the package index today.
test-latest: BIN := build/latest/bin
test-latest:
	@bash tools/setup.sh latest
	@$(PURE_TESTS)

lock:
	@bash tools/setup.sh lock

# The tests that need a cluster, on another release of Slurm: in a chroot of the Debian suite that has it, which is made
# once and kept in the cache. GROUP names some folders of tests/ [all that have such tests].
test-slurm: setup
	@$(BIN)/python -m tools.slurm_releases $(RELEASE) $(GROUP)

# The same contract for pyslurm as for the text client, on the Slurm release nearest to what the package index has.
test-pyslurm: setup
	@tools/pyslurm_test.sh

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .demo
