#!/usr/bin/env bash
# Compiles pyslurm in a chroot of Debian sid and runs the client's contract tests on it and on that Slurm.
# The built package stays in the cache (BFTD_CACHE, ~/.cache/bftd); it is GPL-2.0 and goes nowhere else.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=25.11.2
CACHE=${BFTD_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/bftd}
WORK=$CACHE/pyslurm-$VERSION
export PIP_DISABLE_PIP_VERSION_CHECK=1

die() { printf 'pyslurm_test: %s\n' "$*" >&2; exit 1; }

# In the chroot: unpack what comes on standard input, compile it, hand the package back on standard output.
# shellcheck disable=SC2016
COMPILE='
mkdir /tmp/build && tar -x -C /tmp/build && cd /tmp/build/pyslurm-*
# The index has no pyslurm for this Slurm release: the calls that have changed since are left out by a header of ours.
sed -i "s/if Version(self.version) != Version(SLURM_VERSION)/if False/" setup.py
SLURM_LIB_DIR=/usr/lib/$(uname -m)-linux-gnu PYTHONPATH=/tmp/build/cython CFLAGS="-O0 -w -include /tmp/build/header.h" \
    python setup.py build_ext --inplace -j "$(nproc)" >/tmp/build/log 2>&1 || { tail -n 20 /tmp/build/log >&2; exit 1; }
find pyslurm -name "*.c" -delete
tar -c pyslurm'

TEST='
mkdir /tmp/library && tar -x -C /tmp/library
PYTHONPATH=/tmp/library python -m pytest -q -p no:cacheprovider tests/slurm_plugin/test_client_contract.py'

if [ ! -f "$WORK/built.tar" ]; then
    mkdir -p "$WORK"
    build=$(mktemp -d "$WORK/build.XXXXXX")
    trap 'rm -rf "$build"' EXIT
    .venv/bin/pip install -qq --target "$build/cython" 'cython>=3,<4' 'setuptools<81' packaging ||
        die "pip could not install cython; check the network and run this again"
    .venv/bin/pip download -qq --no-deps --no-binary :all: --no-build-isolation -d "$build" "pyslurm==$VERSION" ||
        die "the package index has no pyslurm $VERSION"
    tar -xzf "$build"/pyslurm-*.tar.gz -C "$build"
    cp tools/pyslurm_26_05.h "$build/header.h"
    tar -c -C "$build" cython header.h "pyslurm-$VERSION" |
        tools/slurm_root.sh sid bash -c "$COMPILE" >"$build/built.tar" || die "pyslurm could not be compiled"
    mv "$build/built.tar" "$WORK/built.tar"
fi
tools/slurm_root.sh sid bash -c "$TEST" <"$WORK/built.tar"
