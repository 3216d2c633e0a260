"""The systemd unit, without systemd: what it forbids, and that the daemon harvests all the same."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bftd.api_client import ApiClient
from bftd.base.errors import AnotherDaemon, BftError, LedgerInUse, UsageError
from slurm_plugin.sandbox import Sandbox
from tests.packaging.confined import allowed_calls
from tests.support import waiting

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "systemd" / "bftd.service"
# No command takes so long, however busy the machine is.
PATIENCE_S = 240.0
TRAINER = {
    "id": "run-test-1", "name": "train-a", "backend": "horovod", "nodes_min": 1, "nodes_max": 2,
    "partition": "elastic", "user": "root", "held": [],
}  # fmt: skip


def test_the_unit_exposes_the_host_little(need: Callable[..., None]) -> None:
    need("systemd-analyze")
    shown = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout.splitlines()[-1:]


def test_regression_beside_another_daemon_systemd_started_it_every_two_seconds_for_ever() -> None:
    (line,) = (line for line in UNIT.read_text().splitlines() if line.startswith("RestartPreventExitStatus="))
    kept_down = {UsageError.exit_code, AnotherDaemon.exit_code, LedgerInUse.exit_code}
    assert {int(code) for code in line.partition("=")[2].split()} == kept_down
    assert BftError.exit_code not in kept_down, "what may mend itself is tried again"


def test_the_filter_of_system_calls_forbids_what_needs_privileges(need: Callable[..., None]) -> None:
    need("systemd-analyze")
    calls = allowed_calls(UNIT)
    assert {"execve", "connect", "fork", "fdatasync", "prctl"} <= calls
    assert calls.isdisjoint({"mount", "ptrace", "setuid", "chown", "bpf", "init_module", "reboot"})


def until(reached: Callable[[], Any], daemon: subprocess.Popen[bytes], log: Path) -> Any:
    def ends() -> str:
        return f"the daemon's log ends:\n{log.read_text()[-3000:]}"

    def found() -> Any:
        assert daemon.poll() is None, ends()
        with contextlib.suppress(BftError):
            return reached()

    return waiting.until("what is wanted", found, ends, ends)


@pytest.mark.cluster
@pytest.mark.parametrize("solver", ["exact", "highs"])  # one solves in the daemon, the other in a child process
def test_the_daemon_harvests_under_the_rules_of_the_unit(need: Callable[..., None], solver: str) -> None:
    need("systemd-analyze", "setpriv", "unshare", root=True)
    with Sandbox(nodes=2, munge=True) as sandbox:
        state = sandbox.root / "of-bftd"
        state.mkdir()
        config = sandbox.root / "bftd.toml"
        config.write_text(
            f'[slurm]\nconf = "{sandbox.conf}"\npoll_s = 0.2\n[decide]\nsolver = "{solver}"\nsolve_time_limit_s = 10\n'
            f'[api]\nsocket = "{state}/bftd.sock"\n[ledger]\npath = "{state}/ledger.sqlite"\n'
        )
        # The whole system read-only but for the daemon's folder; no capability; then the filter.
        mounts = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec "$@"'
        command = [
            *("unshare", "--mount", "--propagation=private", "sh", "-c", mounts, str(state)),
            *("setpriv", "--bounding-set=-all", "--inh-caps=-all"),
            *(sys.executable, str(ROOT / "tests/packaging/confined.py"), str(UNIT)),
            *(sys.executable, "-m", "bftd.daemon.process", "--config", str(config)),
        ]
        environ = {**sandbox.env(), "TMPDIR": str(state), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        log = sandbox.root / "bftd.log"
        with log.open("wb") as stream:
            daemon = subprocess.Popen(command, env=environ, cwd="/", stdout=stream, stderr=stream)
        try:
            client = ApiClient(str(state / "bftd.sock"))
            until(client.status, daemon, log)
            assert _status_of(daemon.pid) == {"CapEff": 0, "CapBnd": 0, "NoNewPrivs": 1, "Seccomp": 2}
            epoch = client.request("POST", "/v1/trainers", TRAINER)["epoch"]

            def granted() -> bool:
                # As a driver asks that is alive: one of which nothing is heard for 45 s is lost.
                asked = f"/v1/trainers/{TRAINER['id']}/leases?epoch={epoch}&version=0&wait_s=0"
                return any(lease["state"] == "granted" for lease in client.request("GET", asked)["leases"])

            until(granted, daemon, log)
        finally:
            daemon.send_signal(signal.SIGTERM)
            code = daemon.wait(PATIENCE_S)
        said = log.read_text()
        assert code == 0, said
        assert "WARNING" not in said
        assert "ERROR" not in said


def _status_of(pid: int) -> dict[str, int]:
    lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    wanted = ("CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:")
    return {words[0][:-1]: int(words[1], 16) for words in lines if words[0] in wanted}
