"""A whole site on one machine: a private cluster with a daemon that harvests it; for the demo, tests and benchmarks."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from bftd.api_client import ApiClient
from bftd.base.errors import BftError
from slurm_plugin.errors import SandboxError
from slurm_plugin.sandbox import Sandbox, processes

_UP_S = 60.0  # it takes 1 s; many times that on a loaded machine
_DOWN_S = 10.0
_HUNG_S = 240.0  # no command takes this long, however busy the machine is


class SandboxSite:
    """A cluster and, with `start_daemon`, bftd on it; both end with the context and leave nothing behind.

    A daemon started `detached` outlives this process, as the cluster does: `attach` finds both again, and `down` ends
    them.
    """

    def __init__(self, config: Mapping[str, Mapping[str, Any]] | None = None, **shape: Any) -> None:
        """Take sections of the daemon's configuration (`config`), and the arguments of Sandbox (`shape`)."""
        self.cluster = Sandbox(**shape)
        self._config = config or {}
        self._daemon: subprocess.Popen[bytes] | None = None

    @classmethod
    def attach(cls, root: Path) -> SandboxSite:
        """Return the site in a folder; raises SandboxError if there is none."""
        site = cls()
        site.cluster = Sandbox.attach(root)
        return site

    def __enter__(self) -> SandboxSite:
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> SandboxSite:
        """Start the cluster; if that fails, end everything that had started."""
        self.cluster.up()
        self.work.mkdir(exist_ok=True)
        self._temporary.mkdir(exist_ok=True)
        return self

    def down(self) -> None:
        """End the daemon, whoever started it, then the cluster, and remove the folder."""
        try:
            self.stop_daemon()
            self._stop_detached()
        finally:
            self.cluster.down()

    @property
    def root(self) -> Path:
        """The folder of cluster and daemon; it is removed with them."""
        return self.cluster.root

    @property
    def work(self) -> Path:
        """A folder to submit jobs from."""
        return self.root / "work"

    @property
    def _temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def config_path(self) -> Path:
        """The daemon's configuration."""
        return self.root / "bftd.toml"

    @property
    def log_path(self) -> Path:
        """The daemon's log."""
        return self.root / "bftd.log"

    @property
    def client(self) -> ApiClient:
        """A client of the daemon."""
        return ApiClient(str(self.root / "bftd.sock"))

    @property
    def daemon_pid(self) -> int | None:
        """The daemon's process id; None while no daemon runs."""
        if self._daemon is not None:
            return self._daemon.pid if self._daemon.poll() is None else None
        return self._detached_pid()

    @property
    def _pid_path(self) -> Path:
        return self.root / "bftd.pid"

    def _detached_pid(self) -> int | None:
        """Return the process id in the pid file if that process is still this site's daemon."""
        with contextlib.suppress(OSError, ValueError, SandboxError):
            pid = int(self._pid_path.read_text())
            ours = any(process.pid == pid for process in processes.of_root(self.root))
            if ours and b"bftd.daemon.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    def env(self) -> dict[str, str]:
        """Return the environment of a user of this site: its Slurm, its daemon, and this installation's commands."""
        environ = self.cluster.env()
        path = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
        # Files that libraries cache in the temporary folder are removed with the site.
        return {**environ, "PATH": path, "BFTD_CONFIG": str(self.config_path), "TMPDIR": str(self._temporary)}

    def write_config(self) -> None:
        """Write the daemon's configuration, which commands also read before it starts."""
        self.config_path.write_text(self._toml())

    def start_daemon(self, *, detached: bool = False) -> None:
        """Start bftd and wait until it answers; raises BftError with its last line if it does not."""
        self.write_config()
        # The mark makes it a process of the cluster: it ends with the cluster, whatever its parent is by then.
        mark = {processes.MARK: str(self.root)} if detached else {}
        with self.log_path.open("ab") as log:
            self._daemon = subprocess.Popen(
                [sys.executable, "-m", "bftd.daemon.process", "--config", str(self.config_path)],
                env=self.env() | mark,
                cwd=self.root if detached else None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=detached,
            )
        if detached:
            self._pid_path.write_text(f"{self._daemon.pid}\n")
        deadline = time.monotonic() + _UP_S
        while time.monotonic() < deadline and self._daemon.poll() is None:
            with contextlib.suppress(BftError):
                self.client.status()
                return
            time.sleep(0.05)
        last = self.log_path.read_text(errors="replace").strip().splitlines()[-1:]
        self.stop_daemon()
        raise BftError(f"the daemon did not start: {last[0] if last else 'it said nothing'}")

    def stop_daemon(self, number: signal.Signals = signal.SIGTERM) -> int | None:
        """End bftd with a signal and return its exit code; None if it did not run."""
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            return None
        if daemon.poll() is None:
            daemon.send_signal(number)
        try:
            return daemon.wait(_DOWN_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            return daemon.wait()

    def _stop_detached(self) -> None:
        """End a daemon that another process has started; ending the cluster kills one that does not stop."""
        pid = self._detached_pid()
        if pid is None or not processes.terminate(self.root, pid):
            return
        deadline = time.monotonic() + _DOWN_S
        while time.monotonic() < deadline and self._detached_pid() is not None:
            time.sleep(0.05)

    def bft(self, *words: str, timeout_s: float = _HUNG_S) -> subprocess.CompletedProcess[str]:
        """Run `bft` as a user of this site, in the folder for jobs."""
        return self._run([sys.executable, "-m", "bftd.cli.main", *words], timeout_s)

    def slurm(self, *words: str, timeout_s: float = _HUNG_S) -> str:
        """Run a Slurm command in the folder for jobs and return its output; raises BftError if it fails."""
        done = self._run(list(words), timeout_s)
        if done.returncode:
            raise BftError(f"{words[0]} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def _run(self, argv: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, env=self.env(), cwd=self.work, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def _toml(self) -> str:
        sections: dict[str, dict[str, Any]] = {
            "daemon": {"user": getpass.getuser()},
            "slurm": {"conf": str(self.cluster.conf)},
            "api": {"socket": str(self.root / "bftd.sock"), "munge_socket": self.cluster.munge_socket},
            "ledger": {"path": str(self.root / "ledger.sqlite")},
        }
        for name, keys in self._config.items():
            sections.setdefault(name, {}).update(keys)
        lines = []
        for name, keys in sections.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {_literal(value)}" for key, value in keys.items()]
        return "\n".join(lines) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
