"""The site that faults strike: nodes with networks of their own, small disks, an epilog, and who runs where."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.chaos.network import HERE, Disk, Network, address_of
from bftd.base.errors import BftError
from bftd.cli.admin.sandbox_site import SandboxSite
from slurm_plugin.sandbox import Sandbox, processes

NODES = 6
SCRIPTS = Path(__file__).parent / "scripts"
_DISK_MIB = 48
_ENDS_S = 20.0
# Jobs stay in the controller's memory to the end, because it is asked then what became of them.
_CONF = "MinJobAge=7200"
_EPILOG = "#!/bin/sh\nwhile [ -e {hangs} ]; do sleep 0.2; done\n"


class _Cluster(Sandbox):
    """A sandbox whose compute nodes are reached by networks of their own."""

    network: Network
    disks: dict[str, Disk]

    @property
    def epilog_hangs(self) -> Path:
        """The file for as long as which epilogs hang."""
        return self.root / "epilog-hangs"

    @property
    def marked(self) -> dict[str, str]:
        """The environment of a process that is to end with the cluster."""
        return self.env() | {processes.MARK: str(self.root)}

    def down(self) -> None:
        """See Sandbox."""
        for disk in getattr(self, "disks", {}).values():
            disk.unmount()
        super().down()

    def start_controller(self) -> None:
        """Start slurmctld with the state that it has saved."""
        self._start([[str(self.root / "bin" / "slurmctld"), "-f", str(self.conf)]])

    def start_slurmd(self, node: str) -> None:
        """Start a node's slurmd; the steps on it go on."""
        binaries = self.root / "bin"
        words = [str(binaries / "slurmd"), "-d", str(binaries / "slurmstepd"), "-f", str(self.conf), "-N", node]
        self._start([words])

    def _write_conf(self, host: str, ports: list[int]) -> None:
        super()._write_conf(host, ports)
        epilog = self.root / "epilog.sh"
        epilog.write_text(_EPILOG.format(hangs=self.epilog_hangs))
        epilog.chmod(0o755)
        text = self.conf.read_text().replace("127.0.0.1", HERE)
        for node in self.node_names:
            where = f"NodeHostname={node} NodeAddr={address_of(node)}"
            text = re.sub(rf"(?m)^(NodeName={node}) NodeHostname=\S+ NodeAddr=\S+", rf"\1 {where}", text)
        # Its daemons listen at every address, in networks that nobody else has.
        text = re.sub(r"(?m)^CommunicationParameters=.*$", f"Epilog={epilog}", text)
        self.conf.write_text(text)
        self.network = Network(self.node_names, self.marked, self.root / "hosts")
        self.disks = {name: Disk(self.root / name, _DISK_MIB) for name in ("states", "ledger")}

    def _start(self, commands: list[list[str]]) -> None:
        named = [(command, command[-1] if command[-2] == "-N" else "") for command in commands]
        super()._start(
            [[*self.network.within(node), *words] if node in self.node_names else words for words, node in named]
        )


class ChaosSite(SandboxSite):
    """The site, with the processes of its trainers by what they are."""

    cluster: _Cluster

    def __init__(self) -> None:
        super().__init__()
        self.cluster = _Cluster(nodes=NODES, tuned=True, extra_conf=_CONF)

    def __enter__(self) -> ChaosSite:
        self.up()
        self._config = {"ledger": {"path": str(self.root / "ledger" / "ledger.sqlite")}}
        return self

    def pid_of(self, name: str) -> int:
        """Return the pid of slurmctld, or of slurmd-NODE."""
        return int((self.root / "run" / f"{name}.pid").read_text())

    def end(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a daemon and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        until_s = time.monotonic() + _ENDS_S
        while _is_alive(pid):
            if time.monotonic() > until_s:
                raise BftError(f"process {pid} does not end by {number.name}: look at it with ps")
            time.sleep(0.02)

    def of_role(self, role: str) -> list[psutil.Process]:
        """Return the workers, agents or drivers, or the slurmstepds of pilots, in the order of their pids."""
        found = []
        for pid in sorted(psutil.pids()):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if self._is(process, role):
                    found.append(process)
        return found

    def _is(self, process: psutil.Process, role: str) -> bool:
        words = process.cmdline()
        if role == "slurmstepd":
            return process.name().startswith("slurmstepd") and any(
                self._is(child, "agent") for child in process.children()
            )
        if not _is_called(words, role) or process.status() == psutil.STATUS_ZOMBIE:
            return False
        environ = process.environ()
        if environ.get("SLURM_CONF") != str(self.cluster.conf) or "SLURM_JOB_ID" not in environ:
            return False
        parent = process.parent() if role == "worker" else None
        return role != "worker" or (parent is not None and "elastic.node" in parent.cmdline())

    def orphans(self) -> list[int]:
        """Return the processes of jobs that are left."""
        return [process.pid for process in processes.of_root(self.root) if not process.is_daemon]


def node_of(process: psutil.Process) -> str:
    """Return the node that a process of a job runs on; "" if it is gone."""
    with contextlib.suppress(psutil.Error):
        return str(process.environ().get("SLURMD_NODENAME", ""))
    return ""


def _is_called(words: Sequence[str], role: str) -> bool:
    if role == "driver":
        return len(words) > 1 and Path(words[1]).name == "bft-driver"
    wanted = {"worker": "elastic.node", "agent": "elastic.node.agent"}[role]
    return wanted in words and not Path(words[0]).name.startswith(("srun", "salloc"))


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def run_alone(script: str, words: Sequence[str], folder: Path) -> None:
    """Run a script to its end by one worker, outside bftd; raises BftError."""
    alone = {"OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *words],
        cwd=folder, env={**os.environ, **alone}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BftError(f"{script} fails alone: {done.stderr.strip().splitlines()[-1:]}")
