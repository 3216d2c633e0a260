#!/usr/bin/env bash
# Builds a release of the last commit: wheel, source distribution, Debian packages, RPMs, what they contain (CycloneDX) and
# SHA256SUMS. The same commit makes the same files, on machines with the same releases of Python, Slurm and the tools.
#   tools/package/release.sh FOLDER    builds into FOLDER, which is made anew, and tries the wheel in an environment of its own
#   tools/package/release.sh --check   builds twice, in folders of other names, and compares
# Environment: PYTHON (python3).
set -euo pipefail
cd "$(dirname "$0")/../.."

PYTHON=${PYTHON:-python3}
TOOLS=$PWD/build/release/tools
LOCK=tools/package/release.lock
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore LC_ALL=C.UTF-8 TZ=UTC
umask 022

die() { printf 'release: %s\n' "$*" >&2; exit 1; }
say() { printf 'release: %s\n' "$*" >&2; }

# build, twine and cyclonedx-py, in the versions of their lock.
install_tools() {
    local lock
    lock=$(sha256sum <$LOCK)
    [ "$(cat "$TOOLS/.lock" 2>/dev/null)" != "$lock" ] || return 0
    say "installing the tools of $LOCK in build/release/tools"
    "$PYTHON" -m venv --clear "$TOOLS"
    "$TOOLS/bin/pip" install -qq --no-deps --require-hashes -r $LOCK ||
        die "pip could not reach its package index; check the network and run this again"
    echo "$lock" >"$TOOLS/.lock"
}

# Builds both from the source distribution, so that this has all that a build needs.
build_python() {
    local source=$1 out=$2 packed=$2/bftd-$VERSION.tar.gz work
    "$TOOLS/bin/python" -m build --no-isolation -o "$out" "$source" >"$source.log" 2>&1 ||
        { tail -n 20 "$source.log" >&2; die "the wheel could not be built"; }
    # setuptools packs with the time of the day and the builder's name.
    work=$(mktemp -d)
    tar -x --no-same-owner -C "$work" -f "$packed"
    tar -c --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=posix \
        --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime -C "$work" "bftd-$VERSION" | gzip -9n >"$packed"
    comm -23 <(git ls-tree -r --name-only HEAD | sort) <(cd "$work/bftd-$VERSION" && find . -type f -printf '%P\n' | sort) >"$work/lacking"
    [ ! -s "$work/lacking" ] || die "MANIFEST.in leaves out $(head -n 3 "$work/lacking" | paste -sd ' ')"
    rm -rf "$work"
    "$TOOLS/bin/twine" --no-color check --strict "$out"/bftd-* || die "an index would refuse this"
}

# The wheel as a stranger installs it; what is then there is what the packages contain.
try_wheel() {
    local wheel=$1 out=$2 home place
    home=$(mktemp -d)
    place=$home/place
    "$TOOLS/bin/python" -m venv --without-pip "$home/bftd"
    sed '/^ /d; s/ \\$//' tools/requirements.lock >"$home/lock"
    "$TOOLS/bin/pip" --python "$home/bftd/bin/python" install -qq -c "$home/lock" "$wheel"
    "$TOOLS/bin/pip" --python "$home/bftd/bin/python" install -qq -c "$home/lock" --dry-run "$wheel[torch]"
    [ "$(cd / && "$home/bftd/bin/bft" --version)" = "bft, version $VERSION" ] || die "the wheel's bft has another version"
    "$TOOLS/bin/python" -m zipfile -e "$wheel" "$place"
    ! grep -rqF -e "$(dirname "$SOURCE")" -e "$PWD" "$place" || die "the wheel names a folder of this machine"
    # Where the wheel lay is of this machine. cyclonedx-py reads what the list is of from a pyproject.toml alone.
    rm "$home"/bftd/lib/python3*/site-packages/bftd-*.dist-info/direct_url.json
    "$home/bftd/bin/python" - >"$home/pyproject.toml" <<'PY'
import json
from importlib.metadata import requires, version

needed = [item for item in requires("bftd") if "extra ==" not in item]
print(f'[project]\nname = "bftd"\nversion = "{version("bftd")}"\ndependencies = {json.dumps(needed)}')
PY
    "$TOOLS/bin/cyclonedx-py" environment --pyproject "$home/pyproject.toml" --mc-type application --output-reproducible \
        --of JSON -o "$out/bftd-$VERSION.cdx.json" "$home/bftd" 2>"$home/log" || { cat "$home/log" >&2; die "cyclonedx-py failed"; }
    rm -rf "$home"
}

build() {
    local out kind
    out=$(realpath -m "$1")
    rm -rf "$out"
    mkdir -p "$out"
    install_tools
    SOURCE=$(mktemp -d)/bftd-$VERSION
    # shellcheck disable=SC2064
    trap "rm -rf '$(dirname "$SOURCE")'" EXIT
    git -c tar.umask=022 archive --prefix="bftd-$VERSION/" HEAD | tar -x -C "$(dirname "$SOURCE")"
    say "wheel and source distribution"
    build_python "$SOURCE" "$out"
    try_wheel "$out"/bftd-*.whl "$out"
    for kind in deb rpm; do
        say "$kind"
        PIP_PYTHON=$TOOLS/bin/python BUILD_DIR=$SOURCE.build "$SOURCE/tools/package/build.sh" $kind >/dev/null
    done
    cp "$SOURCE".build/deb/*.deb "$SOURCE".build/rpm/RPMS/*/*.rpm "$out"
    (cd "$out" && sha256sum -- * >SHA256SUMS)
    rm -rf "$(dirname "$SOURCE")"
}

# In folders whose names have other lengths.
check() {
    local folder=$PWD/build/release
    mkdir -p "$folder/tmp" "$folder/another/tmp"
    TMPDIR=$folder/tmp tools/package/release.sh "$folder/first"
    TMPDIR=$folder/another/tmp tools/package/release.sh "$folder/another/second"
    diff -r "$folder/first" "$folder/another/second" || die "two builds of one commit differ; both are in $folder"
    say "two builds of $(git rev-parse --short HEAD) are equal to the byte:"
    cat "$folder/first/SHA256SUMS"
}

git rev-parse -q --verify HEAD >/dev/null 2>&1 || die "a release is built from a clone with git, at a commit"
[ -z "$(git status --porcelain)" ] || say "what is not committed is left out"
VERSION=$(git show HEAD:bftd/__init__.py | sed -n 's/^__version__ = "\(.*\)"$/\1/p')
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
case "${1:-}" in
    --check) check ;;
    "" | -*) die "usage: tools/package/release.sh FOLDER|--check" ;;
    *) build "$1" ;;
esac
