"""A site whose accounts, limits and operators are slurmdbd's, and what its users do there."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.impact import training
from bftd.cli.admin.sandbox_site import SandboxSite
from slurm_plugin.sandbox.accounting import AccountedSandbox, sacctmgr
from tests import program
from tests.support.programs import shell_script
from tests.support.waiting import until

LIMIT_S = 240.0


class _Cluster(AccountedSandbox):
    """A sandbox with slurmdbd and more `options` of its partitions."""

    def __init__(self, statements: Sequence[str], slurm_conf: str, options: Mapping[str, str], **shape: Any) -> None:
        super().__init__(statements, extra_conf=slurm_conf, tuned=True, **shape)
        self._options = options

    def _write_conf(self, host: str, ports: list[int]) -> None:
        super()._write_conf(host, ports)
        lines = self.conf.read_text()
        for partition, options in self._options.items():
            lines = re.sub(rf"(?m)^PartitionName={partition} .*$", rf"\g<0> {options}", lines)
        self.conf.write_text(lines)


class AccountedSite(SandboxSite):
    """A site of `nodes` nodes; `slurm_conf` is added to slurm.conf, `options` to the lines of partitions."""

    def __init__(
        self, statements: Sequence[str], slurm_conf: str, options: Mapping[str, str], nodes: int, **shape: Any
    ) -> None:
        super().__init__()
        self.cluster = _Cluster(statements, slurm_conf, options, nodes=nodes, **shape)

    def __enter__(self) -> AccountedSite:
        super().__enter__()
        return self

    def configure(self, **limits: int) -> None:
        """Write the configuration of the daemon that is started next, with these [limits]."""
        self._config = {"limits": limits, "slurm": {"poll_s": 0.5}}
        self.config_path.write_text(self._toml())

    def sacctmgr(self, *words: str) -> str:
        """As the administrator; slurmctld knows of it when this returns."""
        return sacctmgr(self.env(), *words)

    def run_as(self, name: str, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command as a user of the site, at home."""
        user, home = pwd.getpwnam(name), self.home(name)
        own = {"USER": name, "HOME": str(home), "BFT_STATE_DIR": "", "TMPDIR": "/tmp"}
        return subprocess.run(
            argv, cwd=home, env={**self.env(), **own, **(env or {})},
            user=user.pw_uid, group=user.pw_gid, extra_groups=[], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip

    def home(self, name: str) -> Path:
        """The user's own folder; it goes with the site."""
        home, user = self.root / "homes" / name, pwd.getpwnam(name)
        if not home.exists():
            home.mkdir(parents=True)
            os.chown(home, user.pw_uid, user.pw_gid)
        return home

    def salloc(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        """What a user can do who goes round the daemon."""
        argv = ("salloc", "--immediate=1", "--no-shell", "--partition=elastic", "-N1", "-t5")
        return self.run_as(name, *argv, *options)

    def jobs(self, partition: str = "elastic") -> list[tuple[str, ...]]:
        """Id, user, account and state of each job of a partition."""
        said = self.slurm("squeue", "--noheader", "--all", f"--partition={partition}", "--format=%i|%u|%a|%T")
        return [tuple(line.split("|")) for line in said.splitlines()]

    def count(self, name: str, account: str | None = None) -> int:
        """How many nodes of the elastic partition a user has, on one of his accounts or on all."""
        return sum(user == name and account in (None, of) for _, user, of, _ in self.jobs())

    def train(self, name: str, elastic: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Submit an elastic job as a user would, whose nodes hold pilots and sleep; it prints the driver's job id."""
        home = self.home(name)
        python = self._installation()
        script = training.lay_out(home, str(python))
        words = ("-m", "bftd.cli.main", "sbatch", f"--elastic={elastic},backend=torchrun", "--parsable", *options)
        return self.run_as(
            name, str(python), *words, "--output=out.log", str(script),
            env={
                "PATH": f"{python.parent}:{self.env()['PATH']}",
                "PYTHONPATH": program.python_path(),
            },
        )  # fmt: skip

    def _installation(self) -> Path:
        """A Python that all users can run, with the driver beside it."""
        commands = self.root / "commands"
        python, driver = commands / "python3", commands / "bft-driver"
        if not commands.exists():
            commands.mkdir()
            python.symlink_to(program.python() or sys.executable)
            shell_script(driver, f'exec {python} -c "from elastic.driver.main import main; main()" "$@"')
        return python

    def empty(self) -> None:
        """End all jobs."""
        if ids := [job for partition in ("batch", "elastic", "bft-driver") for job, *_ in self.jobs(partition)]:
            self.slurm("scancel", *ids)
        until("an empty cluster", lambda: set(self.cluster.status().values()) == {"IDLE"}, self.show)

    @contextmanager
    def private(self, words: str) -> Iterator[None]:
        """PrivateData of slurm.conf during the block."""
        conf = self.cluster.conf
        before = conf.read_text()
        conf.write_text(f"PrivateData={words}\n{before}")
        self.slurm("scontrol", "reconfigure")
        try:
            yield
        finally:
            conf.write_text(before)
            self.slurm("scontrol", "reconfigure")

    def show(self) -> str:
        """What a failed test wants to know."""
        logs = [self.log_path, *self.root.glob("homes/*/*.log")]
        return "\n".join(f"{path}:\n{path.read_text()[-1500:]}" for path in logs if path.exists())
