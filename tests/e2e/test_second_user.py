"""What a second user of the cluster can do to a first one's trainer, tried from the outside: nothing.

A real cluster that authenticates by munge, a real daemon on its socket and on TCP, and a real trainer of one user whose
driver speaks munge. The second user has the project's own clients, raw sockets, and whatever he can read.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from tests import program
from tests.support.messages import wording
from tests.support.ports import free_port
from tests.support.programs import shell_script
from tests.support.waiting import until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.torch,
    pytest.mark.skipif(os.getuid() != 0, reason="acting as two users needs root"),
]

THIEF = pwd.getpwnam("nobody")
TRAIN = """\
#!/usr/bin/env python3
import time, elastic
for step in range(1_000_000):
    time.sleep(0.05)
    if elastic.step(samples=1, loss=0.5, save_every=10):
        elastic.save({"step": step})
"""

# Imported first: he may be unable to read the Python that root has installed. `done` prints what came of an attempt.
AS_THIEF = f"""
import json, os, pathlib, shutil, signal, socket, subprocess, sys, tempfile
import encodings.idna
from bftd.api_client import ApiClient
from bftd.credentials import munge, proofs
from slurm_plugin.sandbox import munged
os.setgroups([]); os.setgid({THIEF.pw_gid}); os.setuid({THIEF.pw_uid})
def attempt(client, method, path, body=None):
    try:
        return [200, client.request(method, path, body)]
    except Exception as error:
        return [getattr(error, "status", 0), str(error)]
def read(path):
    try:
        with open(path, "rb") as file:
            return len(file.read()) or "empty"
    except IsADirectoryError:
        return "read"
    except OSError as error:
        return type(error).__name__
def done(what):
    print(json.dumps(what))
"""


@dataclass
class Scene:
    """The cluster, and the first user's trainer on it."""

    site: SandboxSite
    tcp: str
    owner: pwd.struct_passwd
    job: str = ""
    command_lines: set[str] = field(default_factory=set)

    @property
    def home(self) -> Path:
        return self.site.root / "first"

    def thief(self, code: str, *arguments: str) -> Any:
        """Runs `code` as the second user, with both clients of the daemon at hand; what it is `done` with."""
        clients = (
            f"local = ApiClient({str(self.site.root / 'bftd.sock')!r})\n"
            f"remote = ApiClient(tcp={'root@' + self.tcp!r}, munge_socket={self.site.cluster.munge_socket!r})\n"
            f"job = {self.job!r}\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", AS_THIEF + clients + code, *arguments],
            cwd="/",
            env={**self.site.env(), "PYTHONPATH": program.python_path(), "USER": THIEF.pw_name, "HOME": "/"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    def trainer(self) -> dict[str, Any]:
        found = [item for item in self.site.client.status()["trainers"] if item["id"] == self.job]
        return dict(found[0]) if found else {"state": "unknown", "working": 0, "step": 0}

    def processes(self) -> list[psutil.Process]:
        """The trainer's driver, agents and workers."""
        found = []
        for process in psutil.process_iter(["uids", "environ"]):
            environ = process.info["environ"] or {}
            if environ.get("SLURM_CONF") == str(self.site.cluster.conf) and "SLURM_JOB_ID" in environ:
                found.append(process)
        return found

    def secret(self) -> str:
        """The trainer's secret, as root can read it."""
        return next(found for process in self.processes() if (found := process.environ().get("BFT_SECRET", "")))

    def show(self) -> str:
        logs = [self.site.log_path, *self.home.glob("*.log")]
        return "\n".join(f"{path.name}:\n{path.read_text()[-1500:]}" for path in logs)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    # A Python in root's home has root as its only user.
    owner = pwd.getpwnam("games" if program.python() else "root")
    tcp = f"127.0.0.1:{free_port()}"
    with SandboxSite({"api": {"tcp": tcp}}, nodes=3, munge=True, tuned=True) as site:
        site.start_daemon()
        scene = Scene(site, tcp, owner)
        with watched(scene.command_lines):
            submit(scene)
            until("training", lambda: scene.trainer()["working"] == 2, scene.show)
            until("steps", lambda: scene.trainer()["step"] > 20, scene.show)
        yield scene
        site.slurm("scancel", scene.job)
        until("an empty queue", lambda: not site.slurm("squeue", "-h", "-o", "%i"), scene.show)


@contextlib.contextmanager
def watched(seen: set[str]) -> Iterator[None]:
    """Collects the command lines of all processes of this machine, as any user can."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            for entry in Path("/proc").iterdir():
                if entry.name.isdecimal():
                    with contextlib.suppress(OSError):
                        seen.add((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def submit(scene: Scene) -> None:
    """The first user's job: its driver reaches the daemon by TCP, as from another host."""
    scene.home.mkdir()
    os.chown(scene.home, scene.owner.pw_uid, scene.owner.pw_gid)
    (scene.home / "train.py").write_text(TRAIN)
    commands = scene.site.root / "commands"
    commands.mkdir()
    python, driver = commands / "python3", commands / "bft-driver"
    python.symlink_to(program.python() or sys.executable)
    shell_script(driver, f'exec {python} -c "from elastic.driver.main import main; main()" "$@"')
    environ = {
        **scene.site.env(),
        "PATH": f"{commands}:{scene.site.env()['PATH']}",
        "PYTHONPATH": program.python_path(),
        **{"USER": scene.owner.pw_name, "HOME": str(scene.home), "BFT_STATE_DIR": "", "TMPDIR": "/tmp"},
        "BFTD_SOCKET": f"root@{scene.tcp}",
    }
    words = ("--elastic=1-2,workers=1,backend=torchrun", "--parsable", "--output=out.log", "train.py")
    done = subprocess.run(
        [python, "-m", "bftd.cli.main", "sbatch", *words],
        cwd=scene.home,
        env=environ,
        user=scene.owner.pw_uid,
        group=scene.owner.pw_gid,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    scene.job = done.stdout.strip()


@pytest.fixture(autouse=True)
def unharmed(scene: Scene) -> Iterator[None]:
    """Whatever was tried, the first user's trainer keeps its nodes and its pace."""
    before = scene.trainer()
    leases = {node["lease"] for node in scene.site.client.status()["nodes"] if node["lease"]}
    settings = scene.site.client.status()["settings"]
    yield
    until("more steps", lambda: scene.trainer()["step"] > before["step"], scene.show)
    after = scene.trainer()
    kept = ("state", "user", "nodes_min", "nodes_max", "working", "resizes", "suspends", "steps_lost")
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert {node["lease"] for node in scene.site.client.status()["nodes"] if node["lease"]} == leases
    assert scene.site.client.status()["settings"] == settings


WAYS = ("local", "remote")


@pytest.mark.parametrize("way", WAYS)
def test_he_is_known_for_who_he_is_on_both_ways_and_acts_on_nothing_of_the_first_users(scene: Scene, way: str) -> None:
    report = {"epoch": 1, "events": [{"op": "lease", "at_s": 1, "id": "n1.1", "state": "ended"}]}
    attempts = {
        "leases?epoch=1&version=0": None,
        "report": report,
        "finish": {"epoch": 1, "exit_code": 0, "reason": "mine now"},
    }
    for what, body in attempts.items():
        method = "GET" if body is None else "POST"
        code = f"done(attempt({way}, {method!r}, f'/v1/trainers/{{job}}/{what}', {body!r}))"
        assert scene.thief(code) == [403, f"trainer {scene.job} belongs to {scene.owner.pw_name}, not to nobody"]
    status, error = scene.thief(f"done(attempt({way}, 'POST', '/v1/tune', {{'pj_max': 1}}))")
    assert status == 403
    assert error.startswith("only administrators may tune the daemon, and nobody is none")


@pytest.mark.parametrize("way", WAYS)
def test_he_registers_neither_in_another_users_name_nor_under_anothers_job(scene: Scene, way: str) -> None:
    regular = scene.site.slurm("sbatch", "--parsable", "-H", "-o", "/dev/null", "--wrap", "true")
    future = str(int(regular) + 1)
    try:
        until("the job in a snapshot", lambda: _knows(scene, regular), scene.show)
        owner = scene.owner.pw_name
        for changes, status, told in (
            ({"user": owner}, 400, f"trainer: user must be nobody, who asks, not {owner}"),
            ({}, 403, f"trainer {scene.job} belongs to {owner}, not to nobody"),
            ({"id": regular}, 403, f"job {regular} belongs to root, not to nobody"),
            ({"id": future}, 503, f"Slurm has not shown job {future} yet: ask again"),
            ({"id": "odd"}, 400, "trainer: id must be a job id or run-<host>-<pid>, not 'odd'"),
        ):
            body = {"id": scene.job, "backend": "torchrun", "nodes_min": 1, "nodes_max": 1, **changes}
            assert scene.thief(f"done(attempt({way}, 'POST', '/v1/trainers', {body!r}))") == [status, told]
    finally:
        scene.site.slurm("scancel", regular)


def _knows(scene: Scene, job: str) -> bool:
    body = {"id": job, "backend": "torchrun", "nodes_min": 1, "nodes_max": 1}
    return bool(scene.thief(f"done(attempt(local, 'POST', '/v1/trainers', {body!r}))")[0] != 503)


def test_he_sees_who_trains_as_in_squeue_but_not_how_it_goes(scene: Scene) -> None:
    status, seen = scene.thief("done(attempt(remote, 'GET', '/v1/status'))")
    assert status == 200
    (shown,) = [item for item in seen["trainers"] if item["id"] == scene.job]
    assert (shown["user"], shown["working"], shown["loss"]) == (scene.owner.pw_name, 2, None)
    assert scene.trainer()["loss"] == 0.5
    assert scene.thief("done(attempt(local, 'GET', '/v1/events?after=0'))") == [200, {"events": []}]


def test_slurm_lets_him_cancel_neither_driver_nor_pilot(scene: Scene) -> None:
    jobs = scene.site.slurm("squeue", "-h", "-u", scene.owner.pw_name, "-o", "%i").split()
    assert len(jobs) == 3
    code = (
        "ran = subprocess.run(['scancel', '--signal=KILL', *sys.argv[1:]], capture_output=True, text=True)\n"
        "done([ran.returncode, ran.stderr])"
    )
    code_, said = scene.thief(code, *jobs)
    assert code_ != 0
    assert said.count("denied") == len(jobs)


def test_no_token_no_forged_and_no_stolen_credential_gets_him_in(scene: Scene) -> None:
    # As if he had read them on the wire: one that was used, and one that never arrived.
    body = json.dumps({"epoch": 1, "exit_code": 0, "reason": "stolen"})
    make = (
        "import os, sys\nfrom bftd.credentials import proofs\n"
        f"os.setgroups([]); os.setgid({scene.owner.pw_gid}); os.setuid({scene.owner.pw_uid})\n"
        "caller = proofs.CallerCredential('root', sys.argv[1])\n"
        "for request in (('GET', '/v1/status', b''), ('POST', sys.argv[3], sys.argv[4].encode())):\n"
        "    print(caller.request(sys.argv[2], *request)[1]['Authorization'])"
    )
    finish = f"/v1/trainers/{scene.job}/finish"
    made = subprocess.run(
        [sys.executable, "-c", make, scene.site.cluster.munge_socket, scene.tcp, finish, body],
        cwd="/", env={**os.environ, "PYTHONPATH": program.python_path()},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    used, lost = made.stdout.splitlines()
    raw = """
def raw(request_line, authorization, body=b""):
    host, port = TCP.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 10) as sock:
        head = f"{request_line} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nContent-Length: {len(body)}\\r\\n"
        head += f"Authorization: {authorization}\\r\\n" if authorization else ""
        sock.sendall(f"{head}\\r\\n".encode() + body)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    return [int(answer.split()[1]), answer.partition(b"\\r\\n\\r\\n")[2].decode()]
""".replace("TCP", repr(scene.tcp))
    mine = "'Munge ' + munge.encode(b'', socket=remote._munge_socket)"
    tries = {
        "raw('GET /v1/status', sys.argv[1])": 200,  # the owner's own request, which he only saw
        "raw('GET /v1/status', sys.argv[1]) ": "was used before",
        "raw('POST /v1/tune', sys.argv[1], b'{\"pj_max\": 1}')": "was used before",
        f"raw('POST {finish}', sys.argv[2], b'{{}}')": "is for another body",
        "raw('POST /v1/tune', sys.argv[2], b'{\"pj_max\": 1}')": "",
        "raw('GET /v1/status', '')": "say who you are with a munge credential",
        "raw('GET /v1/status', 'Bearer secret')": "say who you are with a munge credential",
        "raw('GET /v1/status', 'Munge MUNGE:AwQFAAAA:')": "is not valid here",
        f"raw('GET /v1/status', {mine})": "is not one for a request to bftd",
    }
    for attempt, expected in tries.items():
        status, said = scene.thief(f"{raw}\ndone({attempt})", used, lost)
        if isinstance(expected, int):
            assert status == expected
            continue
        assert status == 401, attempt
        assert expected in json.loads(said)["error"]
        assert "\n" not in said.strip()


def test_a_munged_of_his_own_makes_no_credentials_that_count(scene: Scene) -> None:
    code = """
root = pathlib.Path(tempfile.mkdtemp(prefix="bft-munge-", dir="/tmp"))
root.chmod(0o755)
pid = munged.start(root)
try:
    forger = ApiClient(tcp=remote._tcp, munge_socket=str(munged.socket_of(root)))
    done(attempt(forger, "POST", "/v1/tune", {"pj_max": 1}))
finally:
    os.kill(pid, signal.SIGKILL)
    shutil.rmtree(root)
"""
    status, said = scene.thief(code)
    assert status == 0
    assert "it says: " + wording("protocol.munge.invalid") in said


def test_he_reads_neither_environments_nor_states_nor_keys(scene: Scene) -> None:
    root = scene.site.root
    [folder] = (scene.home / ".local" / "state" / "bft").glob(f"{scene.job}@*")
    until("a checkpoint", lambda: list(folder.glob("state-*.pt")), scene.show)
    kinds = {" ".join(process.cmdline()).split("elastic.")[-1].split()[0] for process in scene.processes()}
    assert {"node.agent", "node"} <= kinds, f"not all that belongs to a trainer was found: {kinds}"
    paths = [f"/proc/{process.pid}/environ" for process in scene.processes()]
    paths += [f"/proc/{scene.site.daemon_pid}/environ"]
    paths += map(str, [*folder.iterdir(), *root.glob("ledger*"), root / "munge" / "key"])
    paths += map(str, [path for path in (root / "state").rglob("*") if path.is_file()])
    paths += map(str, root.glob("spool/*/job*/slurm_script"))
    assert any(path.endswith("slurm_script") for path in paths)
    assert any(path.endswith("ledger.sqlite-wal") for path in paths)
    came = scene.thief("done({path: read(path) for path in sys.argv[1:]})", *paths)
    assert {path: what for path, what in came.items() if what not in ("PermissionError", "FileNotFoundError")} == {}
    assert list(came.values()).count("PermissionError") > 15


def test_no_secret_ever_stood_on_a_command_line(scene: Scene) -> None:
    secret = scene.secret()
    assert len(secret) >= 16
    assert any("elastic.node.agent" in line for line in scene.command_lines), "the run was not watched"
    assert any("srun" in line and "--jobid" in line for line in scene.command_lines)
    assert not [line for line in scene.command_lines if secret in line or "MUNGE:" in line]


def test_he_cannot_stop_the_processes_of_the_first_user(scene: Scene) -> None:
    pids = [str(process.pid) for process in scene.processes()] + [str(scene.site.daemon_pid)]
    code = f"""
def kill(pid):
    try:
        os.kill(int(pid), {int(signal.SIGKILL)})
        return "killed"
    except OSError as error:
        return type(error).__name__
done([kill(pid) for pid in sys.argv[1:]])
"""
    assert set(scene.thief(code, *pids)) <= {"PermissionError", "ProcessLookupError"}
