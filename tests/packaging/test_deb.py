"""The Debian packages in a clean system: installed, used, upgraded, removed and purged."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.clean_root import CleanRoot, Unreachable, bootstrap, unpack
from tests.packaging.conftest import lacking
from tests.support.messages import fragment, pattern, wording

CACHE = Path(os.environ.get("BFTD_CACHE") or Path.home() / ".cache" / "bftd")
# Two cores shared with others, and mirrors as fast as they are; nothing here waits for time to pass.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def root(
    packages: tuple[Path, Path], need: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CleanRoot]:
    """A minimal system with both packages installed by apt."""
    need("debootstrap", "unshare", root=True)
    work = tmp_path_factory.mktemp("root")
    try:
        try:
            archive = bootstrap(packages, work, CACHE)
        except Unreachable as error:
            lacking(f"no clean system could be made: {error}")
        root = unpack(archive, work / "system")
        assert root.find("*bft*") == []
        root.run("apt-get", "install", "-qq", *map(root.take, packages))
        (root.path / "etc/slurm/slurm.conf").write_text(
            "ClusterName=test\nSlurmctldHost=localhost\nAuthType=auth/none\n"
        )
        yield root
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", str(work)], check=True)


def test_the_commands_answer_in_a_system_without_a_daemon(root: CleanRoot) -> None:
    assert root.run("bftd", "--version").stdout.startswith("bftd, version ")
    assert (
        root.run("bftd", "--check-config", user="nobody").stdout
        == wording("bftd.daemon.configuration_right", found="/etc/bftd/bftd.toml") + "\n"
    )
    assert "sbatch" in root.run("bft", "--help", user="nobody").stdout
    status = root.run("bft", "status", user="nobody", check=False)
    assert status.returncode == 1
    assert re.match("bft: " + pattern("http.client.no_daemon", address=fragment("/run/bftd/bftd.sock")), status.stderr)
    assert len(status.stderr.splitlines()) == 1
    sandbox = root.run("bft", "sandbox", "up", user="nobody", check=False)  # there is no slurmctld
    assert (sandbox.returncode, len(sandbox.stderr.splitlines())) == (1, 1)
    assert "slurmctld" in sandbox.stderr
    driver = root.run("bft-driver", user="nobody", check=False)
    assert (driver.returncode, len(driver.stderr.splitlines())) == (2, 1)


def test_the_commands_import_nothing_of_a_user_s_own(root: CleanRoot) -> None:
    (root.path / "tmp/theirs").mkdir()
    (root.path / "tmp/theirs/click.py").write_text("raise SystemExit('not this one')\n")
    assert "sbatch" in root.run("bft", "--help", PYTHONPATH="/tmp/theirs").stdout


def test_slurm_s_own_sbatch_has_the_option(root: CleanRoot) -> None:
    assert "--elastic=MIN-MAX" in root.run("sbatch", "--help", user="nobody").stdout


def test_a_plug_in_that_is_for_another_slurm_is_taken_out_of_the_configuration_until_it_fits(root: CleanRoot) -> None:
    """Slurm's files change: of a plug-in of another release every sbatch would print an error."""
    conf = root.path / "etc/slurm/plugstack.conf.d/bftd.conf"
    (plugin,) = root.path.glob("usr/lib/*/slurm-wlm/spank_bftd.so")
    written, fits = conf.read_text(), plugin.read_bytes()
    stale = re.sub(rb"\x16\x00(?=spank\x00)", b"\x17\x00", fits)
    assert stale != fits

    def triggered() -> subprocess.CompletedProcess[str]:
        folder = f"/{plugin.parent.relative_to(root.path)}"
        root.run("dpkg-trigger", "--by-package=slurm-wlm-basic-plugins", folder)
        root.run("dpkg", "--triggers-only", "--pending")
        return root.run("sbatch", "--help", user="nobody")

    plugin.write_bytes(stale)
    shown = root.run("sbatch", "--help", user="nobody")
    assert "Incompatible" in shown.stderr
    shown = triggered()
    assert (shown.stderr, "--elastic" in shown.stdout) == ("", False)
    plugin.write_bytes(fits)
    shown = triggered()
    assert (shown.stderr, "--elastic" in shown.stdout) == ("", True)
    assert conf.read_text() == written


def test_a_user_s_python_needs_nothing_but_the_wheel(root: CleanRoot) -> None:
    (wheel,) = root.path.glob("usr/share/bftd/*.whl")
    words = "import elastic, elastic.node.__main__, elastic.node.agent; print(elastic.load())"
    shown = root.run("python3", "-c", words, user="nobody", PYTHONPATH=f"/usr/share/bftd/{wheel.name}").stdout
    assert shown == "None\n"


def test_manual_pages_and_completions_are_where_readers_look(root: CleanRoot) -> None:
    for page in ("man1/bft.1", "man1/bft-driver.1", "man8/bftd.8", "man5/bftd.toml.5"):
        assert gzip.decompress((root.path / f"usr/share/man/{page}.gz").read_bytes()).startswith((b".TH", b".so"))
    (root.path / "root/complete").write_text(
        ". /usr/share/bash-completion/completions/bft\n"
        "COMP_WORDS=(bft statu) COMP_CWORD=1; _bft_completion bft; echo ${COMPREPLY[@]}\n"
    )
    assert root.run("bash", "/root/complete").stdout == "status\n"
    assert (root.path / "usr/share/zsh/vendor-completions/_bft").read_text().startswith("#compdef bft")
    assert (root.path / "usr/share/fish/vendor_completions.d/bft.fish").exists()


def test_the_daemon_owns_its_state_and_nothing_else(root: CleanRoot) -> None:
    assert root.run("id", "-un", "bftd").stdout == "bftd\n"
    assert root.run("stat", "-c", "%U:%G %a", "/var/lib/bftd").stdout == "bftd:bftd 750\n"
    assert root.run("stat", "-c", "%U:%G %a", "/etc/bftd/bftd.toml").stdout == "root:root 644\n"
    wrong = root.run("find", "/usr/lib/bftd", "/usr/share/bftd", "/etc/bftd", "(", "!", "-user", "root", "-o", "-perm",
                     "/022", "!", "-type", "l", ")")  # fmt: skip
    assert wrong.stdout == ""
    owned = root.run("find", "/", "-xdev", "-path", "/proc", "-prune", "-o", "-user", "bftd", "-print").stdout
    assert set(owned.split()) <= {"/var/lib/bftd", "/run/bftd"}


def test_systemd_finds_no_fault_in_the_unit_and_does_not_start_it_unasked(root: CleanRoot) -> None:
    verified = root.run("systemd-analyze", "verify", "--man=no", "bftd.service")
    assert "bftd" not in verified.stdout + verified.stderr
    assert root.run("systemctl", "is-enabled", "bftd.service", check=False).stdout == "disabled\n"


# The last of the module: it takes the packages away again.
def test_what_an_administrator_wrote_stays_until_the_purge(root: CleanRoot, packages: tuple[Path, Path]) -> None:
    settings = root.path / "etc/bftd/bftd.toml"
    edited = settings.read_text().replace("pj_max = 10", "pj_max = 20")
    assert edited != settings.read_text()
    settings.write_text(edited)
    ledger = root.path / "var/lib/bftd/ledger.sqlite"
    ledger.write_text("a ledger")
    theirs = root.path / "etc/slurm/job_submit.lua"
    theirs.write_text("-- the site's own\n")
    root.run("systemctl", "enable", "bftd.service")
    added = root.path / "usr/local/lib/bftd/site-packages/added_by_the_site.py"
    added.parent.mkdir(parents=True)
    added.write_text("")

    root.run("dpkg", "-i", *map(root.take, packages))
    assert settings.read_text() == edited
    assert root.run("systemctl", "is-enabled", "bftd.service").stdout == "enabled\n"
    root.run("/usr/lib/bftd/bin/python", "-I", "-c", "import added_by_the_site, bftd")
    shutil.rmtree(root.path / "usr/local/lib/bftd")

    names = [package.name.partition("_")[0] for package in packages]
    root.run("apt-get", "remove", "-qq", *names)
    assert settings.read_text() == edited
    assert ledger.read_text() == "a ledger"
    assert not (root.path / "usr/bin/bftd").is_symlink()
    shown = root.run("sbatch", "--help")
    assert (shown.stderr, "--elastic" in shown.stdout) == ("", False), "its line has gone with the plug-in"

    root.run("apt-get", "purge", "-qq", *names)
    assert root.find("*bft*") == []
    assert theirs.read_text() == "-- the site's own\n"
