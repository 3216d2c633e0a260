#!/usr/bin/env bash
# Runs a command of this checkout with another Debian release's Slurm, in a chroot of that release.
#   tools/slurm_root.sh SUITE COMMAND...    e.g. tools/slurm_root.sh trixie python -m pytest tests/slurm_plugin
# The chroot has its own Slurm and C compiler, and this machine's Python with the checkout's .venv; it sees a copy of the
# checkout under the same path, so nothing that the command writes stays. Mounts and processes are in namespaces of their
# own, which the kernel removes with the command, however it ends.
# Environment: BFTD_CACHE (~/.cache/bftd) keeps the root; DEBIAN_MIRROR, where this machine's apt has none of Debian.
set -euo pipefail
cd "$(dirname "$0")/.."

CACHE=${BFTD_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/bftd}
PACKAGES=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins libslurm-dev munge slurmdbd mariadb-server-core
    mariadb-client-core gcc libc6-dev make procps
    python3-minimal libbz2-1.0 libexpat1 libffi8 liblzma5 libreadline8 libsqlite3-0 libuuid1 zlib1g)
export PATH="${PATH:-/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin"

die() { printf 'slurm_root: %s\n' "$*" >&2; exit 1; }
say() { printf 'slurm_root: %s\n' "$*" >&2; }

# The first of this machine's apt sources that has the suite.
mirror_of() {
    local suite=$1 probe url
    probe=$(mktemp)
    for url in ${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sort -u)}; do
        if /usr/lib/apt/apt-helper download-file "${url%/}/dists/$suite/Release" "$probe" >/dev/null 2>&1 &&
            grep -q '^Origin: Debian' "$probe"; then
            rm -f "$probe"
            printf '%s\n' "${url%/}"
            return
        fi
    done
    rm -f "$probe"
    die "none of this machine's apt sources has Debian's $suite; name a mirror in DEBIAN_MIRROR"
}

# Build the root of $1 in the folder $2, in a mount namespace.
build_root() {
    local suite=$1 root=$2 mirror=$3
    debootstrap --variant=minbase "$suite" "$root" "$mirror"
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # a package must not start its daemons
    chmod 755 "$root/usr/sbin/policy-rc.d"
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    # A mirror may be an old copy: signatures are checked, their age is not.
    printf 'Acquire::Check-Valid-Until "false";\n' >"$root/etc/apt/apt.conf.d/99old-copies"
    chroot "$root" apt-get update -qq
    chroot "$root" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $(available "$root" "${PACKAGES[@]}")
    chroot "$root" apt-get clean
    rm -rf "$root"/var/lib/apt/lists/*
}

# Of the named packages, those that the release in $1 has: libraries change their names.
available() {
    local root=$1 package
    shift
    for package in "$@"; do
        if chroot "$root" apt-cache show "$package" >/dev/null 2>&1; then printf '%s\n' "$package"; fi
    done
}

# Mount what the command needs below the root $1, and run it there.
enter_root() {
    local root=$1 checkout=$PWD base
    shift
    base=$(.venv/bin/python -c 'import sys; print(sys.base_prefix)')
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    if [ "$base" = /usr ]; then
        base=$(.venv/bin/python -c 'import sys; print("/usr/lib/python%d.%d" % sys.version_info[:2])')
    fi
    mount -t tmpfs -o mode=755 tmpfs "$root/tmp"
    chmod 1777 "$root/tmp"
    mkdir -p "$root$base" "$root$checkout" # a checkout may lie in /tmp
    mount --rbind "$base" "$root$base"
    mount -t tmpfs -o mode=755 tmpfs "$root$checkout"
    tar -c --exclude=./.venv --exclude=./build --exclude=./.git --exclude='./.*_cache' . | tar -x -C "$root$checkout"
    mkdir "$root$checkout/.venv"
    mount --bind .venv "$root$checkout/.venv"
    # not exec: this shell is the namespace's first process, and collects the exit codes of orphans
    chroot "$root" /usr/bin/env -C "$checkout" PATH="$checkout/.venv/bin:/usr/sbin:/usr/bin:/sbin:/bin" "$@"
}

# The checkout's environment is used as it is, so its Python must start in the chroot.
main() {
    local suite=${1:-} root build mirror
    [ $# -ge 2 ] || { printf 'usage: tools/slurm_root.sh SUITE COMMAND...\n' >&2; exit 2; }
    shift
    [ "$(id -u)" = 0 ] || die "a chroot needs root: run this as root, or leave it out"
    command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
    root=$CACHE/debian-$suite-$(printf '%s\n' "${PACKAGES[@]}" | sha256sum | cut -c1-8) # other packages, another root
    if [ ! -d "$root" ]; then
        mirror=$(mirror_of "$suite")
        mkdir -p "$CACHE"
        build=$(mktemp -d "$CACHE/build-$suite.XXXXXX")
        trap 'rm -rf "$build"' EXIT
        chmod 755 "$build"
        say "making a Debian $suite with its Slurm in $root (one to three minutes, once)"
        if ! unshare --mount --pid --fork --kill-child "$PWD/tools/slurm_root.sh" --build "$suite" "$build/root" "$mirror" >"$CACHE/build-$suite.log" 2>&1; then
            tail -n 5 "$CACHE/build-$suite.log" >&2
            die "Debian $suite could not be made; the whole log is $CACHE/build-$suite.log"
        fi
        mv "$build/root" "$root" # moved only when it is whole
        rm -rf "$build"
        trap - EXIT
    fi
    exec unshare --mount --pid --fork --kill-child "$PWD/tools/slurm_root.sh" --enter "$root" "$@"
}

case "${1:-}" in
    --build) shift; build_root "$@" ;;
    --enter) shift; enter_root "$@" ;;
    *) main "$@" ;;
esac
