"""A clean Debian system in a folder, made by debootstrap, to install packages in and throw away."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

_COMMAND_S = 300  # apt on a loaded machine
_BOOTSTRAP_S = 300
# What dpkg asks of a system that is thrown away: no waiting for the disk, no services.
_FILES = {
    "etc/dpkg/dpkg.cfg.d/fast": "force-unsafe-io\n",
    "etc/apt/apt.conf.d/quiet": 'APT::Install-Recommends "false";\nAPT::Keep-Downloaded-Packages "true";\n',
    "usr/sbin/policy-rc.d": "#!/bin/sh\nexit 101\n",
}


class Unreachable(Exception):
    """The mirrors of this machine's apt do not answer."""


class CleanRoot:
    """A Debian system below a folder; each command has namespaces of its own: mounts and processes end with it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(
        self, *words: str, user: str = "root", check: bool = True, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as a user; a failure's output is in the error."""
        inside = ["setpriv", f"--reuid={user}", "--regid=nogroup", "--clear-groups"] if user != "root" else []
        command = [*_namespaces(), "sh", "-c", 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"', str(self.path)]
        done = subprocess.run(
            [*command, *inside, *words],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
            | environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done

    def take(self, package: Path) -> str:
        """Copy a package in; returns where it is, as seen from inside."""
        shutil.copy(package, self.path / "root" / package.name)
        return f"/root/{package.name}"

    def find(self, pattern: str) -> list[str]:
        """Every path with a name like `pattern`, apart from logs and package caches."""
        done = self.run("find", "/", "-xdev", "-iname", pattern)
        ours = ("/proc/", "/root/", "/var/log/", "/var/cache/", "/var/lib/dpkg/")
        return sorted(path for path in done.stdout.splitlines() if not path.startswith(ours))


def unpack(cached: Path, path: Path) -> CleanRoot:
    """A fresh root from a cached one."""
    path.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", str(path), "-f", str(cached), "--numeric-owner"], check=True, timeout=_COMMAND_S)
    return CleanRoot(path)


def bootstrap(packages: Sequence[Path], work: Path, cache: Path) -> Path:
    """The archive of a minimal system of this machine's release, and all that `packages` need, not yet installed.

    Made once and kept in `cache`; raises Unreachable where the mirrors of this machine cannot be reached.
    """
    sources = _sources()
    mark = hashlib.sha256("\n".join([*sources, *map(_depends, packages)]).encode()).hexdigest()[:12]
    archive = cache / f"package-root-{_codename()}-{platform.machine()}-{mark}.tar"
    if archive.exists():
        return archive
    root = CleanRoot(work / "bootstrap")
    site = next(line.split()[1] for line in sources if line.split()[2] == _codename())
    made = subprocess.run(
        [*_namespaces(), "--mount-proc", "debootstrap", "--variant=minbase", _codename(), str(root.path), site],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_BOOTSTRAP_S,
        check=False,
    )
    if made.returncode:
        raise Unreachable(f"debootstrap: {' '.join(made.stdout.splitlines()[-1:])}")
    _prepare(root, sources)
    root.run("apt-get", "update", "-qq")
    root.run("apt-get", "install", "-qq", "--download-only", *map(root.take, packages))
    for package in packages:
        (root.path / "root" / package.name).unlink()
    cache.mkdir(parents=True, exist_ok=True)
    part = cache / f"{archive.name}.{os.getpid()}"  # moved when it is whole
    tar = ["tar", "-c", "-C", str(root.path), "-f", str(part), "--numeric-owner", "."]
    subprocess.run(tar, check=True, timeout=_COMMAND_S)
    for old in cache.glob(f"package-root-{_codename()}-{platform.machine()}-*.tar"):
        old.unlink()
    part.rename(archive)
    subprocess.run(["rm", "-rf", "--one-file-system", str(root.path)], check=True)
    return archive


def _prepare(root: CleanRoot, sources: Sequence[str]) -> None:
    (root.path / "etc/apt/sources.list").write_text("\n".join(sources) + "\n")
    shutil.copy("/etc/resolv.conf", root.path / "etc/resolv.conf")
    for name, text in (_FILES | {"etc/apt/apt.conf.d/host": _apt_settings()}).items():
        (root.path / name).write_text(text)
        (root.path / name).chmod(0o755 if name.startswith("usr/sbin") else 0o644)


def _namespaces() -> list[str]:
    return ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]


def _sources() -> list[str]:
    """The lines of sources.list that this machine's own system comes from."""
    wanted = "deb $(SITE) $(RELEASE) $(COMPONENT)"
    listing = _said("apt-get", "indextargets", "--format", wanted, "Created-By: Packages")
    return sorted({line for line in listing.splitlines() if line.split()[2].startswith(_codename())})


def _apt_settings() -> str:
    """How this machine's apt reaches its mirrors."""
    kept = ("Acquire::http", "Acquire::https", "Acquire::Check", "Acquire::Retries")
    return "".join(f"{line}\n" for line in _said("apt-config", "dump").splitlines() if line.startswith(kept))


def _depends(package: Path) -> str:
    return _said("dpkg-deb", "-f", str(package), "Depends")


def _codename() -> str:
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


def _said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=_COMMAND_S).stdout.strip()
