"""The daemon around the core: delays, signals, systemd, its command line and its client."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import math
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from bftd.api_client import ApiClient, find
from bftd.base.errors import ApiError, ConfigError, DaemonUnreachable, LedgerInUse
from bftd.config.keys import ApiConfig, Config, LedgerConfig
from bftd.daemon import process as daemons
from bftd.daemon.process import Daemon, next_delay_s
from bftd.daemon.systemd import notify
from bftd.service.service import Service
from slurm_plugin.errors import SnapshotError
from slurm_plugin.read.parse import unreadable_job
from slurm_plugin.read.types import Snapshot
from tests.support.messages import excerpt, fragment, pattern, says, wording
from tests.support.programs import run_bft, shell_script
from tests.support.waiting import STILL_S, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
# What a cluster of two idle nodes answers; the real commands are tried in the cluster tests.
SCONTROL = """#!/bin/sh
case "$2" in
nodes) for n in n1 n2; do
  echo "NodeName=$n CPUAlloc=0 CPUTot=4 RealMemory=1000 State=IDLE Partitions=batch,elastic CfgTRES=cpu=4"; done ;;
partition)
  echo "PartitionName=batch Nodes=n1,n2 State=UP MaxTime=UNLIMITED Default=YES PriorityTier=10 PreemptMode=OFF"
  echo "PartitionName=elastic Nodes=n1,n2 State=UP MaxTime=UNLIMITED Default=NO PriorityTier=1 PreemptMode=CANCEL" ;;
config)
  echo "Configuration data as of 2026-01-01T00:00:00"
  for line in "ClusterName = $0" "PreemptType = preempt/partition_prio" "PrivateData = none" \
    "SLURM_CONF = /etc/slurm/slurm.conf" "SLURM_VERSION = 22.05.8" "UnkillableStepTimeout = 60 sec"; do
    echo "$line"; done ;;
*) echo "No reservations in the system" ;;
esac
"""
# No jobs: the header line alone, in the format that was asked for.
SQUEUE = """#!/bin/sh
echo "${1#--format=}" | sed 's/%i/JOBID/; s/%[A-Za-z]/X/g'
"""


def test_S8_a_slow_controller_is_asked_less_often() -> None:
    assert next_delay_s(1.0, 0.02, 0) == 1.0
    assert next_delay_s(1.0, 2.0, 0) == 8.0
    assert [next_delay_s(1.0, 0.1, failures) for failures in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert next_delay_s(60.0, 0.1, 0) == 60.0


def test_polling_slows_where_this_process_takes_long_over_a_snapshot() -> None:
    assert next_delay_s(1.0, 0.02, 0, own_s=0.4) == 1.0
    assert next_delay_s(1.0, 0.02, 0, own_s=1.5) == 3.0
    assert next_delay_s(1.0, 2.0, 0, own_s=1.5) == 8.0
    assert next_delay_s(1.0, 0.02, 0, own_s=60.0) == 30.0


def test_what_squeue_shows_of_a_job_and_cannot_be_read_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon(Config(api=ApiConfig(socket=str(tmp_path / "s")), ledger=LedgerConfig(path=str(tmp_path / "l"))))
    daemon._service = Service(daemon._config, daemon._ledger, lambda _: None)
    odd = Snapshot(1.0, {}, (unreadable_job("not a number: 'many': 7 ann batch", "7", "batch"),), ())

    def look(outcome: Snapshot | SnapshotError) -> list[str]:
        def found() -> Snapshot:
            if isinstance(outcome, SnapshotError):
                raise outcome
            return outcome

        monkeypatch.setattr(daemon, "_look", found)
        caplog.clear()
        asyncio.run(daemon._read())
        told = [record.getMessage() for record in caplog.records]
        return [text for text in told if "may preempt pilots" not in text]

    expected = "no node is earmarked for pending job 7, which cannot be read: not a number: 'many': 7 ann batch"
    assert [look(odd), look(odd)] == [[expected], []]
    assert [look(Snapshot(1.0, {}, (), ())), look(odd)] == [[], [expected]]
    error = SnapshotError("squeue shows a job that cannot be read (no job id): ? ann batch RUNNING")
    assert [look(error), look(error)] == [[wording("bftd.daemon.no_snapshot", error=error)], []]


def test_S8_what_the_daemon_itself_takes_makes_no_controller_slow(tmp_path: Path, monkeypatch) -> None:
    daemon = Daemon(Config(api=ApiConfig(socket=str(tmp_path / "s")), ledger=LedgerConfig(path=str(tmp_path / "l"))))
    asked = []

    def delay_s(*arguments: float) -> float:
        asked.append(arguments)
        daemon._stop.set()
        return 0.0

    monkeypatch.setattr(daemons, "next_delay_s", delay_s)

    async def read() -> Snapshot:
        return Snapshot(1.0, {}, (), ())

    monkeypatch.setattr(daemon, "_read", read)
    daemon._client.waited_s = 0.25
    judged = SimpleNamespace(poll_s=1.0, observe_later=lambda _: lambda: lambda: None)
    daemon._service = judged  # type: ignore[assignment]
    asyncio.run(daemon._poll())
    daemon._ledger.close()
    ((*asked_of_slurm, _),) = asked
    assert asked_of_slurm == [1.0, 0.25, 0]


def test_the_loop_serves_drivers_while_a_snapshot_is_judged(tmp_path: Path, monkeypatch) -> None:
    """An array of a thousand tasks held it for seconds, in which no driver was told that its node is asked back."""
    daemon = Daemon(Config(api=ApiConfig(socket=str(tmp_path / "s")), ledger=LedgerConfig(path=str(tmp_path / "l"))))
    served, taken_in = threading.Event(), []

    def take() -> None:
        taken_in.append(threading.current_thread())
        daemon._stop.set()

    def judge() -> Callable[[], None]:
        assert served.wait(60.0), "the loop waits for what is judged"
        return take

    def observe_later(_: Snapshot) -> Callable[[], Callable[[], None]]:
        asyncio.get_running_loop().call_later(0.01, served.set)
        return judge

    async def read() -> Snapshot:
        return Snapshot(1.0, {}, (), ())

    monkeypatch.setattr(daemon, "_read", read)
    daemon._service = SimpleNamespace(poll_s=1.0, observe_later=observe_later)  # type: ignore[assignment]
    asyncio.run(daemon._poll())
    daemon._ledger.close()
    assert taken_in == [threading.current_thread()], "the state changes in the loop's thread alone"


@pytest.mark.parametrize(("judges_for_s", "beats"), [(-math.inf, True), (1.0, True), (1000.0, False)])
async def test_a_daemon_that_judges_one_snapshot_without_end_is_started_anew_by_its_watchdog(
    tmp_path: Path, monkeypatch, judges_for_s: float, beats: bool
) -> None:
    daemon = Daemon(Config(api=ApiConfig(socket=str(tmp_path / "s")), ledger=LedgerConfig(path=str(tmp_path / "l"))))
    told: list[str] = []
    monkeypatch.setattr(daemons, "notify", told.append)
    monkeypatch.setattr(daemons, "_BEAT_S", 0.001)
    daemon._judges_since_s = time.monotonic() - judges_for_s
    turned = asyncio.Semaphore(0)
    daemon._service = SimpleNamespace(now=turned.release)  # type: ignore[assignment]
    beat = asyncio.create_task(daemon._beat())
    for _ in range(3):
        await turned.acquire()
    beat.cancel()
    daemon._ledger.close()
    assert bool(told) == beats


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_is_told_over_its_socket(tmp_path: Path, monkeypatch, abstract: bool) -> None:
    address = f"\0bftd-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
        notify("READY=1", "STATUS=fine")
        assert manager.recv(100) == b"READY=1\nSTATUS=fine"
    notify("STOPPING=1")  # nobody listens any more: no error
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("STOPPING=1")


def test_regression_a_service_manager_that_read_nothing_held_the_daemon(tmp_path: Path) -> None:
    """The kernel keeps a few notices for a reader, and then has the sender wait."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        notices = "from bftd.daemon.systemd import notify\nfor _ in range(1000): notify('WATCHDOG=1')"
        environ = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        subprocess.run([sys.executable, "-c", notices], env=environ, timeout=STILL_S, check=True)


class Running:
    """A daemon process over fake Slurm commands."""

    def __init__(self, root: Path, process: subprocess.Popen[str], manager: socket.socket) -> None:
        self.root = root
        self.process = process
        self.client = ApiClient(str(root / "socket"))
        self._manager = manager

    def told(self, line: str) -> None:
        """Wait until the daemon has told systemd so."""
        while line not in self._manager.recv(1000).decode().splitlines():
            pass

    def forget(self) -> None:
        """Leave out what systemd was told so far."""
        self._manager.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self._manager.recv(1000):
                pass
        self._manager.settimeout(STILL_S)


def environment(root: Path) -> dict[str, str]:
    """An environment with fake Slurm commands."""
    commands = root / "bin"
    commands.mkdir(exist_ok=True)
    for name, text in {"scontrol": SCONTROL, "squeue": SQUEUE, "scancel": "#!/bin/sh\n"}.items():
        shell_script(commands / name, text)
    return os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def write_config(root: Path, more: str = "") -> Path:
    """A configuration of a daemon that lives in `root`."""
    path = root / "bftd.toml"
    path.write_text(f'[api]\nsocket = "{root}/socket"\n[ledger]\npath = "{root}/ledger"\n{more}')
    return path


@contextmanager
def running(root: Path, more: str = "", env: dict[str, str] | None = None) -> Iterator[Running]:
    """A daemon that is ready, over fake commands unless `env` has others; killed at the end if it has not stopped."""
    env = dict(env) if env is not None else environment(root)
    path = write_config(root, more)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(root / "notify"))
        manager.settimeout(STILL_S)
        env["NOTIFY_SOCKET"] = str(root / "notify")
        process = subprocess.Popen(
            [sys.executable, "-m", "bftd.daemon.process", "--config", str(path)],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            daemon = Running(root, process, manager)
            daemon.told("READY=1")
            yield daemon
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def test_a_daemon_starts_reloads_refuses_a_second_one_and_stops_cleanly(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        daemon.told("WATCHDOG=1")
        assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o666
        assert daemon.client.status()["settings"]["pj_max"] == 10

        write_config(tmp_path, "[decide]\npj_max = 3\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.told("READY=1")
        assert daemon.client.status()["settings"]["pj_max"] == 3
        write_config(tmp_path, "[decide]\npj_max = 4\nt_fwd = 3\n")  # one key is wrong: none is taken
        daemon.process.send_signal(signal.SIGHUP)
        daemon.told("READY=1")
        assert daemon.client.status()["settings"]["pj_max"] == 3
        assert daemon.client.tune(pj_max=7)["pj_max"] == 7

        write_config(tmp_path)
        command = [sys.executable, "-m", "bftd.daemon.process", "--config", str(tmp_path / "bftd.toml")]
        second = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=STILL_S)
        assert second.returncode == LedgerInUse.exit_code
        assert re.match("bftd: " + pattern("service.ledger.in_use"), second.stderr)
        assert second.stderr.count("\n") == 1

        daemon.process.send_signal(signal.SIGTERM)
        daemon.told("STOPPING=1")
        _, errors = daemon.process.communicate(timeout=STILL_S)
        assert daemon.process.returncode == 0
        assert "unknown key t_fwd in [decide]; did you mean t_fwd_s?" in errors
        assert "Traceback" not in errors
        assert not (tmp_path / "socket").exists()


def test_caps_are_taken_over_by_a_reload(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        trainer = {"id": "run-a-1", "backend": "horovod", "nodes_min": 1, "nodes_max": 2}
        daemon.client.request("POST", "/v1/trainers", trainer | {"user": getpass.getuser()})
        assert daemon.client.status()["caps"] == []
        write_config(tmp_path, "[limits]\ntrainers_per_user = 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.told("READY=1")
        (cap,) = daemon.client.status()["caps"]
        assert cap["text"] == wording("core.caps.at_cap", group=getpass.getuser(), most=1, things="trainer")


def test_a_daemon_for_a_partition_that_does_not_exist_ends_in_one_line(tmp_path: Path) -> None:
    path = write_config(tmp_path, '[slurm]\npartition = "elastik"\n')
    command = [sys.executable, "-m", "bftd.daemon.process", "--config", str(path)]
    run = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=STILL_S)
    assert run.returncode == 2
    assert (
        run.stderr
        == "bftd: "
        + wording("slurm_plugin.client.no_partition", name="elastik", hint="")
        + wording("sizing.fields.hint", near="elastic")
        + "\n"
    )


def bft(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return run_bft(*arguments, env=os.environ | (env or {}))


def test_the_help_lists_all_commands_without_importing_them() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from bftd.cli.main import bft;"
        "print(CliRunner().invoke(bft, ['--help']).output);"
        "print([name for name in ('aiohttp', 'rich', 'milp', 'elastic', 'slurm_plugin') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=STILL_S).stdout
    for name in ("sbatch", "run", "status", "explain", "tune", "nodes", "sandbox"):
        assert f"\n  {name} " in out
    assert out.endswith("[]\n")


NO_CHOICE = "is not one of"
"""Of an option whose value is none of those that it may have: click's words."""


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["status"], 1, excerpt("http.client.no_daemon")),
        (["explain", "12"], 1, excerpt("http.client.no_daemon")),
        (
            ["tune", "--dry-run"],
            2,
            wording(
                "cli.tune.none_given",
                option="--dry-run",
                first="--max-nodes, --max-share, --t-fwd, --objective, --pj-max",
                last="--solver",
            ),
        ),
        (["tune", "--objective", "fun"], 2, f"'fun' {NO_CHOICE}"),
        (["status", "--json", "--watch"], 2, "exclude each other"),
        (["stats"], 2, wording("cli.lazy.near", group="bft", name="stats", group2="bft", near="status")),
        (["xyzzy"], 2, wording("cli.lazy.unknown", group="bft", name="xyzzy", group2="bft")),
        (["status", "--config", "/does/not/exist"], 2, excerpt("bftd.config.unreadable", path="/does/not/exist")),
        (["sandbox", "up", "--gpus", "a100"], 2, wording("cli.sandbox.gpus_malformed", text="a100")),
    ],
)
def test_what_a_user_does_wrong_is_told_in_one_line(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    env = {} if "--config" in arguments else {"BFTD_SOCKET": str(tmp_path / "none")}
    run = bft(*arguments, env=env)
    assert run.returncode == code
    assert told in run.stderr
    assert run.stderr.startswith("bft: ")
    assert run.stderr.count("\n") == 1


def test_status_explain_and_tune_talk_to_the_running_daemon(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        daemon.client.request(
            "POST",
            "/v1/trainers",
            {
                "id": "run-here-12",
                "name": "train-a",
                "backend": "horovod",
                "nodes_min": 1,
                "nodes_max": 2,
                "user": "ann",
            },
        )
        until("a start", lambda: "starts" in str(daemon.client.status()["decisions"]))
        env = {"BFTD_SOCKET": str(tmp_path / "socket")}
        shown = bft("status", env=env | {"COLUMNS": "160"}).stdout
        assert "train-a" in shown
        assert "n[1-2]" in shown
        assert says(
            bft("explain", "run-here-12", env=env).stdout, "core.sentences.starts", count="2 nodes", nodes="n[1-2]"
        )
        tuned = bft("tune", "--t-fwd", "60", "--pj-max", "2", env=env)
        assert tuned.stdout == "max_nodes=0  max_share=1.0  t_fwd_s=60.0  objective=efficiency  pj_max=2  solver=auto\n"
        unknown = bft("explain", "99", env=env)
        assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
        assert re.match("bft: " + pattern("cli.explain.nothing_called_so", name=99), unknown.stderr)
        with pytest.raises(ApiError) as refused:
            daemon.client.tune(pj_max=0)
        assert refused.value.status == 400


def test_another_solver_is_taken_at_once_shown_as_hiding_the_file_s_and_refused_with_the_nearest_name(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as daemon:
        env = {"BFTD_SOCKET": str(tmp_path / "socket")}
        assert bft("tune", "--solver", "capped", env=env).stdout.split()[-1] == "solver=capped"
        assert daemon.client.status()["tuned"] == {"solver": {"value": "capped", "file": "auto"}}
        wrong = bft("tune", "--solver", "caped", env=env)
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
        assert "'capped'" in wrong.stderr, "the nearest name"
        with pytest.raises(ApiError) as refused:
            daemon.client.tune(solver="caped")
        assert refused.value.status == 400
        assert daemon.client.status()["settings"]["solver"] == "capped"


def test_what_bft_tune_has_set_is_shown_and_put_back(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        env = {"BFTD_SOCKET": str(tmp_path / "socket")}
        before = bft("tune", "--t-fwd", "60", "--pj-max", "2", env=env).stdout.split()
        assert says(bft("status", env=env).stdout, "bftd.view.tuned", name="pj_max", value=2, file="10")
        write_config(tmp_path, "[decide]\npj_max = 4\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.told("READY=1")
        assert before[-2:] == ["pj_max=2", "solver=auto"]
        assert bft("tune", "--reset", "pj-max", env=env).stdout.split() == [*before[:-2], "pj_max=4", "solver=auto"]
        reset = ["t_fwd_s=120.0" if word == "t_fwd_s=60.0" else word for word in before[:-2]]
        assert bft("tune", "--reset", env=env).stdout.split() == [*reset, "pj_max=4", "solver=auto"]
        assert daemon.client.status()["tuned"] == {}
        for words, told in (
            (
                ("--reset", "poll_s"),
                "'poll_s' cannot be tuned; max_nodes, max_share, t_fwd_s, objective, pj_max, solver can",
            ),
            (("pj_max",), "name KEYs only with --reset, and change nothing else with it"),
            (("--reset", "--pj-max", "3"), "name KEYs only with --reset, and change nothing else with it"),
        ):
            wrong = bft("tune", *words, env=env)
            assert (wrong.returncode, wrong.stderr) == (2, f"bft: {told}\n")
        assert json.loads(bft("usage", "--json", env=env).stdout)["usage"] == []
        assert bft("usage", env=env).stdout.splitlines()[1] == "USER  TRAINING-H  HELD-H  LEAVING-H"
        daemon.process.send_signal(signal.SIGTERM)
        _, errors = daemon.process.communicate(timeout=STILL_S)
        assert errors.count(wording("service.live.hidden_by_tuning", name="pj_max", value=2, value2=4)) == 1


def test_regression_a_daemon_on_a_full_disk_serves_on_and_goes_on_when_there_is_space(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    filler = disk / "filler"

    def wait(failing: bool) -> None:
        until("the ledger", lambda: (daemon.client.status()["ledger"]["failure"] is not None) == failing)

    try:
        with running(disk) as daemon:
            subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4096"], capture_output=True)
            wait(failing=True)
            assert daemon.client.status()["hold"] == wording("service.live.cannot_write")
            assert says(
                daemon.client.status()["ledger"]["failure"],
                "service.ledger.unwritable",
                error="database or disk is full",
            )
            trainer = {"id": "run-a-1", "backend": "horovod", "nodes_min": 1, "nodes_max": 2, "user": "ann"}
            with pytest.raises(ApiError, match=pattern("service.ledger.advice")) as refused:
                daemon.client.request("POST", "/v1/trainers", trainer)
            assert refused.value.status == 503
            filler.unlink()
            wait(failing=False)
            daemon.client.request("POST", "/v1/trainers", trainer)
            daemon.process.send_signal(signal.SIGTERM)
            _, errors = daemon.process.communicate(timeout=STILL_S)
            assert daemon.process.returncode == 0
            assert errors.count("cannot be written") == 1, errors
            assert says(errors, "service.live.written_again")
            assert "Traceback" not in errors
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_the_client_is_found_by_socket_variable_configuration_and_default(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("BFTD_CONFIG", raising=False)
    monkeypatch.delenv("BFTD_SOCKET", raising=False)
    path = write_config(tmp_path)
    assert find(str(path)).address == f"{tmp_path}/socket"
    monkeypatch.setenv("BFTD_CONFIG", str(path))
    assert find().address == f"{tmp_path}/socket"
    monkeypatch.setenv("BFTD_SOCKET", "/else/where")
    assert find().address == "/else/where"
    monkeypatch.delenv("BFTD_SOCKET")
    (tmp_path / "token").write_text("secret\n")
    tcp = f'[api]\nsocket = "{tmp_path}/none"\ntcp = "host:7"\nauth = "token"\ntoken_file = "{tmp_path}/token"\n'
    path.write_text(tcp)
    assert find().address == "host:7"
    (tmp_path / "token").unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        find()


def test_a_daemon_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnreachable, match=pattern("http.client.no_daemon", address=fragment("/none"))):
        ApiClient(str(tmp_path / "none")).status()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        with pytest.raises(DaemonUnreachable, match="does not answer"):
            ApiClient(str(tmp_path / "silent"), timeout_s=0.1).status()
