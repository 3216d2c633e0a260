#!/usr/bin/env bash
# Builds the packages from a clean copy of the sources, in build/deb or build/rpm; nothing else in the tree is touched.
#   tools/package/build.sh deb|rpm
# Environment: BUILD_DIR (build), PIP_PYTHON (a Python with pip 22.3 or later, for the build alone).
set -euo pipefail
cd "$(dirname "$0")/../.."

SOURCES=(bftd elastic milp sizing slurm_plugin systemd tools docs examples Makefile setup.cfg pyproject.toml README.md CONTRIBUTING.md CHANGELOG.md LICENSE)
BUILD_DIR=$(realpath -m "${BUILD_DIR:-build}")
VERSION=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' bftd/__init__.py)
# Everything in a package is as old as the last change of the sources, so that the same sources make the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(find "${SOURCES[@]}" -type f ! -path '*/__pycache__/*' -printf '%T@\n' | sort -n | tail -n 1 | cut -d. -f1)}
export SOURCE_DATE_EPOCH

die() { printf 'package: %s\n' "$*" >&2; exit 1; }

command_of() { command -v "$1" >/dev/null || die "$1 is missing; on Debian: apt-get install $2"; }

# A Python with pip that can install into another environment.
if [ -z "${PIP_PYTHON:-}" ]; then
    PIP_PYTHON=/usr/bin/python3
    [ ! -x .venv/bin/pip ] || PIP_PYTHON=$PWD/.venv/bin/python
fi
export PIP_PYTHON

copy_sources() {
    mkdir -p "$1"
    tar -c --exclude=__pycache__ --exclude='*.egg-info' "${SOURCES[@]}" | tar -x -C "$1"
}

# Prints the last lines of a log when what it is the log of has failed.
logged() {
    local log=$1
    shift
    "$@" >"$log" 2>&1 || { tail -n 20 "$log" >&2; die "the build failed; all of it is in $log"; }
}

build_deb() {
    local folder=$BUILD_DIR/deb source=$BUILD_DIR/deb/bftd-$VERSION
    command_of dpkg-buildpackage dpkg-dev
    command_of dh debhelper
    rm -rf "$folder"
    copy_sources "$source"
    cp -r tools/package/debian "$source/debian"
    printf 'bftd (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- bftd maintainers <maintainers@localhost>  %s\n' \
        "$VERSION" "$(LC_ALL=C date -R -d "@$SOURCE_DATE_EPOCH")" >"$source/debian/changelog"
    (cd "$source" && logged "$folder/build.log" dpkg-buildpackage -b -us -uc -d)
    rm -rf "$source"
    ls "$folder"/*.deb
}

build_rpm() {
    local folder=$BUILD_DIR/rpm
    command_of rpmbuild rpm
    rm -rf "$folder"
    copy_sources "$folder/bftd-$VERSION"
    mkdir -p "$folder/SOURCES"
    tar -c -z -C "$folder" -f "$folder/SOURCES/bftd-$VERSION.tar.gz" "bftd-$VERSION"
    rm -rf "$folder/bftd-$VERSION"
    logged "$folder/build.log" rpmbuild -bb --nodeps --define "_topdir $folder" --define "version_ $VERSION" \
        tools/package/bftd.spec
    rm -rf "$folder/BUILD" "$folder/BUILDROOT"
    find "$folder/RPMS" -name '*.rpm'
}

case "${1:-}" in
    deb | rpm) "build_$1" ;;
    *) die "usage: tools/package/build.sh deb|rpm" ;;
esac
