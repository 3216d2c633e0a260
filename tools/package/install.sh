#!/usr/bin/env bash
# Lays the files of an installation below $DESTDIR, for the packages and for `make install`.
#   tools/package/install.sh PART...
#     program     bft, bftd and bft-driver with all that they import, and the wheel for the users' own environments
#     documents   manual pages, completions, the configuration (never over a changed one); needs the program
#     units       what systemd reads
#     plugins     the compiled SPANK plug-in, and what Slurm reads beside it (never over what was changed)
# Environment: DESTDIR (empty: this very system), BFTD_PYTHON (the Python to run with: /usr/bin/python3), PIP_PYTHON (a
# Python with pip 22.3 or later, for the build alone: python3), PLUGIN_DIR (Slurm's plug-ins), UNIT_DIR, ZSH_DIR.
set -euo pipefail
cd "$(dirname "$0")/../.."

DESTDIR=${DESTDIR:-}
BFTD_PYTHON=${BFTD_PYTHON:-/usr/bin/python3}
PIP_PYTHON=${PIP_PYTHON:-python3}
ZSH_DIR=${ZSH_DIR:-/usr/share/zsh/site-functions}
UNIT_DIR=${UNIT_DIR:-/usr/lib/systemd/system}
HOME_DIR=/usr/lib/bftd
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
umask 022

die() { printf 'install: %s\n' "$*" >&2; exit 1; }

put() { install -D -m "$1" "$2" "$DESTDIR$3"; }

# What an administrator may have edited stays as it is, and ours is put beside it where it differs.
put_once() {
    if [ ! -e "$DESTDIR$3" ]; then
        put "$@"
    elif ! cmp -s "$2" "$DESTDIR$3"; then
        put "$1" "$2" "$3.new"
        printf 'install: %s was kept; the new one is %s.new\n' "$3" "$3" >&2
    fi
}

# The programs and what they import, apart from the host's own Python packages and from the users'.
install_program() {
    local home=$DESTDIR$HOME_DIR wheels=$DESTDIR/usr/share/bftd source program
    source=$(mktemp -d) # setuptools builds beside its sources, and takes along what lies there
    cp -r setup.cfg pyproject.toml README.md LICENSE bftd elastic milp sizing slurm_plugin "$source"
    rm -rf "$home" "$wheels"/bftd-*.whl
    mkdir -p "$wheels"
    # The versions of the lock, without its hashes, or pip would want one of the wheel made here; also for what builds it.
    sed '/^ /d; s/ \\$//' tools/requirements.lock >"$source.lock"
    export PIP_CONSTRAINT=$source.lock PIP_BUILD_CONSTRAINT=$source.lock
    "$BFTD_PYTHON" -m venv --without-pip "$home"
    "$PIP_PYTHON" -m pip wheel -qq --no-deps -w "$wheels" "$source" || die "pip could not build the wheel"
    rm -rf "$source"
    "$PIP_PYTHON" -m pip --python "$home/bin/python" install -qq --no-compile \
        "$wheels"/bftd-*.whl || die "pip could not install what bftd needs; is its package index within reach?"
    rm -f "$source.lock"
    (cd "$home/bin" && find . -type f ! -name bft ! -name bftd ! -name bft-driver -delete)
    # Started as /usr/lib/bftd/bin/python whatever the staging folder, whose name pip puts into two more lines where it is
    # long; -I: a user's PYTHONPATH is for their training.
    for program in bft bftd bft-driver; do
        sed -i -e "1s|.*|#!$HOME_DIR/bin/python -I|" -e "2{/^'''exec'/{N;d}}" "$home/bin/$program"
        mkdir -p "$DESTDIR/usr/bin"
        ln -sf "../lib/bftd/bin/$program" "$DESTDIR/usr/bin/$program"
    done
    # pip lists the scripts with the sums that they had here, where they named the staging folder.
    sed -i '/^\.\.\/\.\.\/\.\.\/bin\//d; /\/direct_url\.json,/d' "$home"/lib/python3*/site-packages/*.dist-info/RECORD
    # What the site adds, gurobipy say, lies outside the folder that an upgrade replaces; ours comes before it.
    echo /usr/local/lib/bftd/site-packages >"$(echo "$home"/lib/python3*/site-packages)/site.pth"
    sed -i '/^command = /d' "$home/pyvenv.cfg"
    find "$home" -depth -type d -path '*/numpy/*' -name tests -exec rm -rf {} +
    rm -rf "$home/include" "$home/share" "$home"/lib/python3*/site-packages/bftd-*.dist-info/direct_url.json
    # Nobody but root could write them later; their sources change only with the package.
    "$home/bin/python" -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$DESTDIR" "$home/lib"
}

install_documents() {
    local texts page
    texts=$(mktemp -d)
    "$DESTDIR$HOME_DIR/bin/python" -B tools/package/manual.py "$texts"
    for page in "$texts"/man/*; do
        put 644 "$page" "/usr/share/man/man${page##*.}/${page##*/}"
    done
    put 644 "$texts/completion/bft.bash" /usr/share/bash-completion/completions/bft
    put 644 "$texts/completion/bft.zsh" "$ZSH_DIR/_bft"
    put 644 "$texts/completion/bft.fish" /usr/share/fish/vendor_completions.d/bft.fish
    put_once 644 "$texts/bftd.toml" /etc/bftd/bftd.toml
    rm -rf "$texts"
}

install_units() {
    put 644 systemd/bftd.service "$UNIT_DIR/bftd.service"
    put 644 systemd/sysusers.d/bftd.conf /usr/lib/sysusers.d/bftd.conf
    put 644 systemd/tmpfiles.d/bftd.conf /usr/lib/tmpfiles.d/bftd.conf
}

install_plugins() {
    [ -n "${PLUGIN_DIR:-}" ] || die "set PLUGIN_DIR to the folder of Slurm's plug-ins (scontrol show config | grep PluginDir)"
    put 644 build/plugins/spank_bftd.so "$PLUGIN_DIR/spank_bftd.so"
    put_once 644 tools/package/plugstack.conf /etc/slurm/plugstack.conf.d/bftd.conf
    put_once 644 slurm_plugin/plugins/lua/bftd.lua /etc/slurm/bftd.lua
    put_once 644 slurm_plugin/plugins/lua/bftd_gpus.lua /etc/slurm/bftd_gpus.lua
    put 644 slurm_plugin/plugins/lua/job_submit.lua /usr/share/doc/bftd-slurm-plugins/examples/job_submit.lua
}

[ $# -gt 0 ] || die "usage: tools/package/install.sh program|documents|units|plugins ..."
for part; do
    case $part in
        program | documents | units | plugins) "install_$part" ;;
        *) die "there is no part $part: choose among program, documents, units, plugins" ;;
    esac
done
