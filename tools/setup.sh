#!/usr/bin/env bash
# Installs what `make demo` and `make test` need, and only what is missing: the versions of tools/requirements.lock.
#   tools/setup.sh venv    the environment: the project, its tests' tools and torch (CPU), without horovod
#   tools/setup.sh full    also Slurm, munge and chromium (Debian's packages) and horovod (compiled once, kept in the cache)
#   tools/setup.sh recipes also slurmdbd and MariaDB, for one of the comparisons of benchmarks/impact
#   tools/setup.sh test    also these two, and what builds the packages and tries them in a clean system
#   tools/setup.sh release what builds a release: compilers and Debian's tools, without .venv
#   tools/setup.sh latest  another environment, build/latest, with the newest releases that setup.cfg admits
#   tools/setup.sh lock    writes tools/requirements.lock anew, with the newest releases
# Environment: PYTHON (python3), TORCH_PIP_ARGS (e.g. an index with CPU builds of torch), BFTD_CACHE (~/.cache/bftd).
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
CACHE=${BFTD_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/bftd}
VENV=.venv
LOCK=tools/requirements.lock
UV=0.13.9
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Debian's administration commands are not on an ordinary user's PATH, and `env -i` clears it.
export PATH="${PATH:-/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin"

apt_needed=()
need() { apt_needed+=("$@"); }

check_python() {
    if ! command -v "$PYTHON" >/dev/null; then
        need python3 python3-venv python3-dev
        return
    fi
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        die "$PYTHON is older than Python 3.10; set PYTHON to a newer one, e.g. make PYTHON=python3.11 test"
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || need python3-venv
}

check_slurm() {
    local command
    for command in slurmctld slurmd scontrol squeue sbatch salloc srun; do
        if ! command -v "$command" >/dev/null; then
            need slurmctld slurmd slurm-client slurm-wlm-basic-plugins
            return
        fi
    done
    find /usr/lib /usr/lib64 -name job_submit_lua.so 2>/dev/null | grep -q . || need slurm-wlm-basic-plugins
}

# Callers on other hosts are known by munge; a sandbox runs a munged of its own.
check_munge() {
    command -v munged >/dev/null || need munge libmunge2
}

# The SPANK plug-in is compiled against the Slurm that is installed.
check_spank() {
    command -v cc >/dev/null || need gcc libc6-dev
    echo '#include <slurm/spank.h>' | cc -E -x c - >/dev/null 2>&1 || need libslurm-dev
}

# Reports are looked at in a real browser; Debian's has no fonts of its own.
check_browser() {
    command -v chromium >/dev/null || need chromium fonts-dejavu-core
}

# The packages are built, read and installed in a clean system by the tests alone.
check_packaging() {
    local pair
    for pair in debootstrap:debootstrap dh:debhelper dpkg-buildpackage:dpkg-dev mandoc:mandoc rpmspec:rpm \
        systemd-analyze:systemd; do
        command -v "${pair%%:*}" >/dev/null || need "${pair##*:}"
    done
    [ -x /usr/bin/python3 ] || need python3
}

# QOS limits, operators and accounts are slurmdbd's; it runs beside a private cluster, never as a service.
check_accounting() {
    command -v slurmdbd >/dev/null || need slurmdbd
    command -v mariadbd >/dev/null || need mariadb-server-core mariadb-client-core
}

# Metrics and alert rules are tried with a real Prometheus, which a test starts for itself.
check_prometheus() {
    command -v prometheus >/dev/null && command -v promtool >/dev/null || need prometheus
}

# Trainers inside an image are tried with the one runtime that Debian has a package of.
check_containers() {
    command -v ch-run >/dev/null || need charliecloud-runtime
}

check_compiler() {
    [ -z "$(cached_wheel)" ] || return 0
    command -v g++ >/dev/null || need g++
    command -v make >/dev/null || need make
    local include
    include=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["include"])' 2>/dev/null || true)
    [ -f "$include/Python.h" ] || need python3-dev
}

install_packages() {
    [ ${#apt_needed[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "missing: ${apt_needed[*]}; install them as root: apt-get install ${apt_needed[*]}"
    fi
    say "installing ${apt_needed[*]} with apt-get (under a minute)"
    local log
    log=$(mktemp)
    if ! { apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${apt_needed[@]}"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        die "apt-get could not install ${apt_needed[*]}; mend what it says above and run this again"
    fi
    rm -f "$log"
}

stamp() { cat "$@" | sha256sum | cut -c1-16; }

pip_install() { "$VENV/bin/pip" install -qq "$@"; }

# Prints the lock's entries of the packages named, or of all others behind `all-but`.
locked() {
    local others=0
    if [ "$1" = all-but ]; then others=1 && shift; fi
    awk -v names=" $* " -v others="$others" \
        '/^[^ #]/ { split($0, part, "=="); on = (index(names, " " part[1] " ") > 0) != others } on' "$LOCK"
}

locked_version() { locked "$1" | sed -n 's/^[^=]*==\([^ ]*\).*/\1/p'; }

# torch comes last, by its version alone: a CPU build has another content than the index's builds, whose hashes the lock
# has. All that it needs is there by then, but for what a build with CUDA pins for itself.
make_venv() {
    local lock project
    lock=$(stamp "$LOCK" tools/setup.sh)
    project=$(stamp setup.cfg bftd/__init__.py)
    if [ "$(cat "$VENV/.bftd-lock" 2>/dev/null)" != "$lock" ]; then
        say "making $VENV with torch and the versions of $LOCK (one to three minutes)"
        # Without what an older lock has installed.
        "$PYTHON" -m venv --clear "$VENV"
        pip_install --no-deps --require-hashes -r <(locked setuptools wheel) ||
            die "pip could not reach its package index; check the network and run this again"
        pip_install --no-deps --require-hashes --no-build-isolation -r <(locked all-but setuptools wheel torch horovod)
        # shellcheck disable=SC2086
        pip_install ${TORCH_PIP_ARGS:-} "torch==$(locked_version torch)"
        echo "$lock" >"$VENV/.bftd-lock"
    fi
    if [ "$(cat "$VENV/.bftd-project" 2>/dev/null)" != "$project" ]; then
        pip_install --no-deps --no-build-isolation -e .
        echo "$project" >"$VENV/.bftd-project"
    fi
}

# Of torch the lock's release all the same: without a version, pip takes the build with CUDA, of several gigabytes.
make_latest() {
    VENV=build/latest
    say "making $VENV with the newest releases that setup.cfg admits (one to three minutes)"
    "$PYTHON" -m venv --clear "$VENV"
    # shellcheck disable=SC2086
    pip_install ${TORCH_PIP_ARGS:-} "torch==$(locked_version torch)"
    pip_install -e '.[torch,gurobi,plot,test]'
    "$VENV/bin/python" -m pip freeze --exclude-editable
}

write_lock() {
    local tool
    tool=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$tool'" EXIT
    "$PYTHON" -m venv "$tool"
    "$tool/bin/pip" install -qq "uv==$UV"
    compile() {
        "$tool/bin/uv" pip compile -q --universal --python-version 3.10 --upgrade --generate-hashes --no-emit-index-url \
            --custom-compile-command "make lock" "$@"
    }
    # The extra pyslurm is left out: it must be of the site's Slurm release.
    compile --extra torch --extra horovod --extra gurobi --extra plot --extra test --extra optuna --extra docs \
        setup.cfg tools/requirements.in -o "$LOCK"
    # The tools of `make release`, which nobody else needs.
    sed -n '/^release =$/,/^[^ ]/s/^    //p' setup.cfg | compile - -o tools/package/release.lock
}

# One folder for each combination that needs a wheel of its own: horovod's extension is tied to torch's C++ ABI.
wheel_folder() {
    [ -x "$VENV/bin/python" ] || return 0
    "$VENV/bin/python" - "$CACHE" "$(locked_version horovod)" <<'PY' 2>/dev/null || true
import platform, sys
from importlib.metadata import version
tag = f"horovod-{sys.argv[2]}-torch-{version('torch')}-cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}"
print(f"{sys.argv[1]}/{tag}")
PY
}

cached_wheel() {
    local folder
    folder=$(wheel_folder)
    [ -n "$folder" ] && find "$folder" -name 'horovod-*.whl' 2>/dev/null | head -n 1
    return 0
}

install_horovod() {
    if "$VENV/bin/python" -c 'import horovod.torch' 2>/dev/null; then return 0; fi
    local wheel folder build
    wheel=$(cached_wheel)
    if [ -z "$wheel" ]; then
        folder=$(wheel_folder)
        mkdir -p "$folder"
        build=$(mktemp -d "$folder/build.XXXXXX")
        say "compiling horovod once (three to seven minutes); it is kept in $folder"
        if ! env PATH="$PWD/$VENV/bin:$PATH" CXX="$PWD/tools/cxx17" MAKEFLAGS="-j$(nproc)" \
            HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
            HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
            "$VENV/bin/pip" wheel -q --no-deps --no-build-isolation --require-hashes -w "$build" -r <(locked horovod) \
            >"$folder/build.log" 2>&1; then
            tail -n 20 "$folder/build.log" >&2
            rm -rf "$build"
            die "horovod did not compile; the whole log is $folder/build.log"
        fi
        # Moved only when it is whole: an interrupted build must not be taken for a wheel.
        mv "$build"/horovod-*.whl "$folder/"
        rm -rf "$build"
        wheel=$(cached_wheel)
    fi
    pip_install --no-deps "$wheel"
    "$VENV/bin/python" -c 'import horovod.torch' || die "horovod does not load; remove $(wheel_folder) and run this again"
}

case "${1:-}" in
    venv)
        check_python
        install_packages
        make_venv
        ;;
    full | test | recipes)
        check_python
        check_slurm
        check_munge
        check_spank
        check_browser
        [ "$1" != test ] || { check_packaging; check_containers; check_prometheus; }
        [ "$1" = full ] || check_accounting
        install_packages
        make_venv
        apt_needed=()
        check_compiler
        install_packages
        install_horovod
        ;;
    release)
        check_python
        check_spank
        check_packaging
        install_packages
        ;;
    latest)
        check_python
        install_packages
        make_latest
        ;;
    lock) write_lock ;;
    *) die "usage: tools/setup.sh venv|full|recipes|test|release|latest|lock" ;;
esac
