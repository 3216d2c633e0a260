"""slurmdbd with its own MariaDB beside a private cluster.

Both run as plain processes with the cluster's mark in their environment, so they end with the cluster; their data is in
its folder. Packages: slurmdbd, mariadb-server-core, mariadb-client-core (`tools/setup.sh test`).
"""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from slurm_plugin.errors import SandboxError, SlurmMissing
from slurm_plugin.sandbox.cluster import Sandbox
from slurm_plugin.sandbox.ports import reserved_ports
from slurm_plugin.sandbox.processes import MARK

_PATH = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/usr/local/sbin"
_UP_S = 60.0
_ANSWER_S = 20.0
_POLL_S = 0.1
_PASSWORD = "sandbox"

_DBD_CONF = """\
AuthType=auth/none
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd_port}
SlurmUser={user}
LogFile={root}/log/slurmdbd.log
PidFile={root}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
"""

_FIRST_STATEMENTS = """\
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY '{password}';
CREATE USER IF NOT EXISTS slurm@'localhost' IDENTIFIED BY '{password}';
GRANT ALL ON slurm_acct_db.* TO slurm@'127.0.0.1';
GRANT ALL ON slurm_acct_db.* TO slurm@'localhost';
"""


@contextmanager
def accounting(root: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Run MariaDB and slurmdbd for the cluster in `root`; yields the lines that its slurm.conf needs."""
    with reserved_ports(2) as (sql_port, dbd_port):
        _start_mariadb(root, environ, sql_port)
        _start_slurmdbd(root, environ, sql_port, dbd_port)
        yield (
            "AccountingStorageType=accounting_storage/slurmdbd\n"
            f"AccountingStorageHost=127.0.0.1\nAccountingStoragePort={dbd_port}\n"
        )


class AccountedSandbox(Sandbox):
    """A private cluster with slurmdbd; sacctmgr makes the `statements` before slurmctld starts, None: no slurmdbd."""

    def __init__(self, statements: Sequence[str] | None, **shape: Any) -> None:
        super().__init__(**shape)
        self._statements = statements
        self._beside = ExitStack()

    def up(self) -> Sandbox:
        """Start MariaDB and slurmdbd, then the cluster."""
        with self._beside:  # only their ports, which the two hold by themselves once they run
            return super().up()

    def _write_conf(self, host: str, ports: list[int]) -> None:
        super()._write_conf(host, ports)
        if self._statements is None:
            return
        lines = self._beside.enter_context(accounting(self.root, self.env()))
        self.conf.write_text(lines + self.conf.read_text())
        for statement in self._statements:
            sacctmgr(self.env(), *statement.split())


def sacctmgr(environ: Mapping[str, str], *words: str) -> str:
    """Run sacctmgr without questions, and return its output; raise SandboxError if it fails.

    slurmdbd tells slurmctld of changes within a moment.
    """
    done = subprocess.run(
        ["sacctmgr", "--immediate", *words],
        env=dict(environ),
        capture_output=True,
        text=True,
        timeout=_ANSWER_S,
        check=False,
    )
    if done.returncode:
        raise SandboxError(f"sacctmgr {' '.join(words)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _start_mariadb(root: Path, environ: Mapping[str, str], port: int) -> None:
    data, scratch = root / "mariadb", root / "scratch"
    scratch.mkdir()
    # A server that starts removes the temporary tables of all others that share its temporary folder.
    environ = {**environ, "TMPDIR": str(scratch)}
    (root / "first.sql").write_text(_FIRST_STATEMENTS.format(password=_PASSWORD))
    installed = subprocess.run(
        [_program("mariadb-install-db"), "--no-defaults", f"--datadir={data}", f"--user={getpass.getuser()}",
         "--skip-test-db", "--auth-root-authentication-method=normal"],
        env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=_UP_S, check=False,
    )  # fmt: skip
    if installed.returncode:
        said = [line for line in installed.stdout.splitlines() if "ERROR" in line]
        raise SandboxError(f"mariadb-install-db failed: {'; '.join(said) or installed.stdout}")
    _start(
        root,
        environ,
        [_program("mariadbd"), "--no-defaults", f"--datadir={data}", f"--user={getpass.getuser()}", f"--port={port}",
         "--bind-address=127.0.0.1", f"--socket={root}/run/sql.sock", f"--pid-file={root}/run/mariadbd.pid",
         f"--init-file={root}/first.sql", "--innodb-buffer-pool-size=64M"],
        "mariadbd",
        port,
    )  # fmt: skip


def _start_slurmdbd(root: Path, environ: Mapping[str, str], sql_port: int, port: int) -> None:
    conf = root / "slurmdbd.conf"  # slurmdbd looks for it beside slurm.conf
    conf.write_text(
        _DBD_CONF.format(root=root, user=getpass.getuser(), sql_port=sql_port, dbd_port=port, password=_PASSWORD)
    )
    conf.chmod(0o600)
    _start(root, environ, [_program("slurmdbd"), "-D"], "slurmdbd", port)


def _start(root: Path, environ: Mapping[str, str], argv: list[str], name: str, port: int) -> None:
    log = root / "log" / f"{name}.out"
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            env={**environ, MARK: str(root)},
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + _UP_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            time.sleep(_POLL_S)
    said = log.read_text(errors="replace").strip().splitlines()
    raise SandboxError(f"{name} did not start: {said[-1] if said else 'it said nothing'}")


def _program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise SlurmMissing(f"{name} not found: tools/setup.sh test installs it")
    return found
