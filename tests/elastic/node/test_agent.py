"""The agent as a real process: it never decides to stay, and takes everything with it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elastic.link.wire import Message, encode
from elastic.node.agent import _why
from elastic.node.machine import threads_per_worker
from tests.elastic.far_end import SECRET, accepted, line_of
from tests.support.messages import wording
from tests.support.programs import shell_script
from tests.support.waiting import STILL_S, until

pytestmark = pytest.mark.slow

# It is patient with its driver until the file that it is given is there.
QUICK = """
import os, sys, threading, time
import elastic.node.agent as agent
agent.BEAT_S, agent.DRIVER_LOST_S = 0.05, 1e6
def hurry(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    agent.DRIVER_LOST_S = 0.3
threading.Thread(target=hurry, args=(sys.argv[1],), daemon=True).start()
agent.main()
"""
SOON_FROZEN = (
    "import elastic.node.agent as agent, elastic.node.hang_detection as vitals; agent.PING_S = 0.1; "
    "vitals.HangDetector.age_s = lambda _, seen: 1e9; agent.main()"
)
PATIENT = "import elastic.node.agent as agent; agent.DRIVER_LOST_S = 1e6; agent.main()"
UNPACED = "import elastic.node.output as output; output.OUT_BURST_BYTES = 1 << 50; " + PATIENT
PACED = (
    "import elastic.node.output as output; output.OUT_BURST_BYTES, output.OUT_BYTES_S = 1 << 16, 1 << 13; " + PATIENT
)
NO_ENVIRONMENT: Message = {"env": {"BFT_TRAINER": "7"}, "defaults": {}, "interface_variables": []}


class Pilot:
    """An agent's process, with the test as its driver and a script as the user's interpreter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(STILL_S)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *argv: str) -> Message:
        """Starts the agent; returns its hello."""
        self.launch(*argv)
        self.channel, hello = accepted(self.server)
        return hello

    def launch(self, *argv: str) -> None:
        """Starts the agent; without `argv` one that never takes this machine's pauses for a driver that is lost."""
        shell_script(self.folder / "scancel", f'echo "$@" >> {self.folder}/cancelled')
        environ = os.environ | {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "BFT_DRIVER": f"127.0.0.1:{self.server.getsockname()[1]}",
            "BFT_SECRET": SECRET,
            "BFT_LEASE": "n1.3",
            "SLURM_JOB_ID": "77",
            "SLURMD_NODENAME": "n1",
            "CUDA_VISIBLE_DEVICES": "",
            "TMPDIR": str(self.folder),
        }
        self.process = subprocess.Popen([sys.executable, *(argv or ("-c", PATIENT))], env=environ)

    def next(self) -> Message:
        message = self.channel.receive()
        assert message is not None
        return message

    def configure(self, body: str, **fields: object) -> psutil.Process | None:
        """Starts the node process, whose interpreter is a shell script; returns it once it has spoken, if it lives."""
        interpreter = shell_script(self.folder / "python", f"echo up $$\n{body}")
        message: Message = {
            "op": "configure",
            "backend": "horovod",
            "interpreter": str(interpreter),
            "argv": ["train.py"],
        }
        message |= {"cwd": str(self.folder), "script_dir": "/s", "workers_per_node": 0, **NO_ENVIRONMENT}
        self.channel.send({**message, **fields})
        assert self.next() == {"op": "node", "workers_per_node": fields.get("workers_per_node") or 1}
        said = self.next()
        assert said["op"] == "out"
        pid = int(said["line"].split()[1])
        return psutil.Process(pid) if psutil.pid_exists(pid) else None

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(STILL_S)

    @property
    def cancelled(self) -> str:
        path = self.folder / "cancelled"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        self.server.close()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def pilot(tmp_path: Path) -> Iterator[Pilot]:
    pilot = Pilot(tmp_path)
    yield pilot
    pilot.close()


def assert_gone(process: psutil.Process | None) -> None:
    assert process is not None
    psutil.wait_procs([process], timeout=STILL_S)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def files_below(folder: Path) -> int:
    """How many there are while another process removes them."""
    return sum(len(files) for _, _, files in os.walk(folder))


def waits_in_a_pipe(process: psutil.Process) -> bool:
    """Whether a process that does nothing but print gets no further."""
    before_s = process.cpu_times()
    time.sleep(0.3)
    return process.status() == psutil.STATUS_SLEEPING and process.cpu_times() == before_s


def test_an_agent_says_which_lease_it_is_of(pilot: Pilot) -> None:
    hello = pilot.start()
    assert pilot.process is not None
    expected = {"op": "hello", "role": "agent", "lease": "n1.3", "node": "n1", "job_id": "77"}
    assert hello == {**expected, "pid": pilot.process.pid, "nonce": hello["nonce"]}


def test_slurms_notice_reaches_only_the_agent_which_tells_the_driver_and_takes_the_node_with_it(pilot: Pilot) -> None:
    pilot.start()
    node = pilot.configure("exec sleep 1000")
    assert node is not None
    node.send_signal(signal.SIGTERM)
    assert pilot.process is not None
    pilot.process.send_signal(signal.SIGCONT)
    pilot.process.send_signal(signal.SIGTERM)
    assert pilot.next()["op"] == "leaving"
    assert pilot.ended() == 0
    assert_gone(node)
    # Slurm ends the allocation itself.
    assert pilot.cancelled == ""


def test_everything_that_the_node_process_started_goes_with_it(pilot: Pilot) -> None:
    pilot.start()
    node = pilot.configure("sleep 1000 &\necho up $!\nexec sleep 1000")
    child = psutil.Process(int(pilot.next()["line"].split()[1]))
    pilot.channel.send({"op": "go"})
    assert pilot.ended() == 0
    assert_gone(node)
    assert_gone(child)
    assert sorted(path.name for path in pilot.folder.iterdir()) == ["python", "scancel"]


@pytest.mark.parametrize("end", ["Slurm's notice", "the driver's word"])
def test_a_helper_in_a_session_of_its_own_goes_with_the_agent(pilot: Pilot, end: str) -> None:
    """Also one whose parents ended long ago: killing the node process's group does not reach it."""
    pilot.start()
    node = pilot.configure("setsid sh -c 'sleep 1000 & echo up $!; sleep 1000' &\nexec sleep 1000")
    helper = psutil.Process(int(pilot.next()["line"].split()[1]))
    middle = helper.parent()
    assert middle is not None
    middle.kill()
    if end == "Slurm's notice":
        assert pilot.process is not None
        pilot.process.terminate()
    else:
        pilot.channel.send({"op": "end"})
    assert pilot.ended() == 0
    assert_gone(node)
    assert_gone(helper)


def test_a_script_that_prints_without_end_neither_fills_the_agent_nor_delays_slurms_notice(pilot: Pilot) -> None:
    """A driver that is slow to read: print waits, and what is told at once does not wait behind what was printed."""
    pilot.start("-c", UNPACED)
    node = pilot.configure("exec yes 0123456789012345678901234567890123456789012345678901234567890123456789")
    assert pilot.process is not None
    agent = psutil.Process(pilot.process.pid)
    assert node is not None
    before_bytes = agent.memory_info().rss
    until("yes waits for its reader", lambda: node.name() == "yes" and waits_in_a_pipe(node))
    assert agent.memory_info().rss - before_bytes < 16 << 20
    for _ in range(5000):
        pilot.next()
    pilot.process.terminate()
    heard = 0
    while pilot.next()["op"] != "leaving":
        heard += 1
    # 64 KiB in the agent, as much in the kernel, and what was on its way to this end
    assert heard < 60_000
    assert pilot.ended() == 0
    assert_gone(node)


def test_what_a_script_prints_faster_than_it_can_travel_is_slowed_down_and_the_user_told(pilot: Pilot) -> None:
    pilot.start("-c", PACED)
    pilot.configure("seq 1 1 20000; exec sleep 1000")
    said, notes = [], []
    while len(said) < 150:
        line = pilot.next()["line"]
        (notes if line.startswith("bft: ") else said).append(line)
    assert said == [str(number) for number in range(1, 151)]
    assert len(notes) == 1


def test_a_progress_bar_is_seen_while_it_moves(pilot: Pilot) -> None:
    pilot.start()
    pilot.configure("printf '\\r 0%%|  |'; printf '\\r50%%|# |'; printf '\\r99%%|##|'; exec sleep 1000")
    while pilot.next()["line"] != "99%|##|":
        pass


def test_what_a_script_left_in_its_temporary_folder_does_not_delay_leaving(pilot: Pilot) -> None:
    """As many files as the first 50 ms do not suffice for, and a folder that is closed: the next agent's."""
    pilot.start()
    node = pilot.configure(
        "cd $TMPDIR; mkdir many shut; seq -f many/%g 1 20000 | xargs touch; chmod 0 shut; echo made; exec sleep 1000"
    )
    assert pilot.next()["line"] == "made"
    assert pilot.process is not None
    pilot.process.terminate()
    assert pilot.ended() == 0
    assert_gone(node)
    [left] = pilot.folder.glob("bft-agent-*")
    again = Pilot(pilot.folder)
    try:
        again.start()
        until("the next agent has removed it", lambda: not left.exists(), moved=lambda: files_below(left))
    finally:
        again.close()


def test_a_frozen_node_process_does_not_hold_the_agent(pilot: Pilot) -> None:
    pilot.start()
    node = pilot.configure("exec sleep 1000")
    assert node is not None
    node.suspend()
    assert pilot.process is not None
    pilot.process.terminate()
    assert pilot.ended() == 0
    assert_gone(node)


def test_the_drivers_word_ends_the_agent_and_its_allocation(pilot: Pilot) -> None:
    pilot.start()
    node = pilot.configure("exec sleep 1000")
    pilot.channel.send({"op": "end"})
    assert pilot.ended() == 0
    assert_gone(node)
    assert pilot.cancelled == "77\n"


def test_an_agent_whose_driver_hangs_up_ends_the_node_its_allocation_and_itself(pilot: Pilot) -> None:
    pilot.start()
    node = pilot.configure("exec sleep 1000")
    pilot.channel.shutdown()
    assert pilot.ended() == 3
    assert_gone(node)
    assert pilot.cancelled == "77\n"


def test_S3_an_agent_whose_driver_is_silent_for_its_lease_time_ends_too(pilot: Pilot) -> None:
    hurried = pilot.folder / "hurried"
    pilot.start("-c", QUICK, str(hurried))
    node = pilot.configure("exec sleep 1000")
    hurried.touch()
    assert pilot.ended() == 3
    assert_gone(node)
    assert pilot.cancelled == "77\n"


@pytest.mark.parametrize("lie", [{"nonce": "0" * 64, "proof": "0" * 64}, {"nonce": "0" * 64}, {"proof": None}])
def test_an_agent_whose_driver_does_not_know_the_secret_does_nothing_for_it_and_gives_its_allocation_up(
    pilot: Pilot, lie: Message
) -> None:
    pilot.launch()
    sock, _ = pilot.server.accept()
    sock.settimeout(STILL_S)
    line_of(sock)
    with contextlib.suppress(OSError):
        sock.sendall(encode({"op": "challenge", **lie}) + encode({"op": "configure", "interpreter": "/bin/true"}))
        # Nothing that the trainer's driver would take for a proof is told to a stranger.
        assert sock.recv(4096) == b""
    assert pilot.ended() == 3
    assert pilot.cancelled == "77\n"


def test_an_agent_does_not_take_its_own_words_back_for_a_drivers_proof(pilot: Pilot) -> None:
    pilot.launch()
    sock, _ = pilot.server.accept()
    sock.settimeout(STILL_S)
    sock.sendall(line_of(sock))
    assert pilot.ended() == 3
    assert pilot.cancelled == "77\n"


def test_slurms_notice_ends_an_agent_that_still_waits_for_its_drivers_proof(pilot: Pilot) -> None:
    pilot.launch()
    sock, _ = pilot.server.accept()
    sock.settimeout(STILL_S)
    line_of(sock)
    assert pilot.process is not None
    pilot.process.terminate()
    assert pilot.ended() == 0
    sock.close()


def test_regression_an_agent_stayed_as_long_as_a_name_server_did_not_answer(pilot: Pilot) -> None:
    asked = pilot.folder / "asked"
    pilot.launch(
        "-c",
        "import os, pathlib, socket, time, elastic.node.agent as agent\n"
        "os.environ['BFT_DRIVER'] = 'svc1:7'\n"
        f"socket.getaddrinfo = lambda *_, **__: (pathlib.Path('{asked}').touch(), time.sleep(100))\n"
        "agent.main()",
    )
    until("the name is looked up", asked.exists)
    assert pilot.process is not None
    pilot.process.terminate()
    assert pilot.ended() == 0


def test_an_agent_answers_each_beat_also_while_its_workers_print_without_end(pilot: Pilot) -> None:
    pilot.start()
    pilot.configure("exec yes")
    for _ in range(3):
        pilot.channel.send({"op": "beat"})
        while pilot.next()["op"] != "beat":
            pass


def test_an_agent_asks_its_driver_for_signs_of_life_also_by_the_kernel(pilot: Pilot) -> None:
    pilot.start()
    assert pilot.process is not None
    [connection] = psutil.Process(pilot.process.pid).net_connections("tcp")
    ends = [f":{address[1]:04X}" for address in (connection.laddr, connection.raddr)]

    def timers() -> list[str]:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        # proc_net_tcp(5): local address second, remote address third, timer sixth; 02 is that of keepalive
        return [row[5].partition(":")[0] for row in rows if [row[1][-5:], row[2][-5:]] == ends]

    until("its only timer is that of keepalive", lambda: timers() == ["02"], shown=timers)


def test_a_worker_that_its_agent_finds_stopped_is_ended_by_it_whatever_the_back_end_does(pilot: Pilot) -> None:
    pilot.start("-c", SOON_FROZEN)
    node = pilot.configure("sleep 1000 &\necho worker $!\nwait\nexec sleep 1000", frozen_s=1.0)
    worker = psutil.Process(int(pilot.next()["line"].split()[1]))
    worker.suspend()
    # a process that is still becoming `sleep` stops only after that
    until("the worker stands", lambda: worker.status() == psutil.STATUS_STOPPED)
    told = None
    for silent_s in (1.0, 1.5, 2.0):
        pilot.channel.send({"op": "look", "pid": worker.pid, "silent_s": silent_s, "stepped": True})
        pilot.channel.send({"op": "beat"})
        while (said := pilot.next())["op"] != "beat":
            told = said
        if told:
            break
        time.sleep(0.5)
    expected = {"op": "looked", "pid": worker.pid, "verdict": "killed", "why": "it is stopped"}
    assert told == {**expected, "silent_s": silent_s}
    assert_gone(worker)
    assert node is not None
    assert node.is_running()


def test_a_node_process_that_is_stopped_is_ended_by_its_agent_and_told(pilot: Pilot) -> None:
    pilot.start("-c", SOON_FROZEN)
    node = pilot.configure("exec sleep 1000", frozen_s=0.3)
    assert node is not None
    node.suspend()
    assert pilot.next()["line"] == wording("elastic.agent.stopped", frozen_s=0.3)
    assert pilot.next() == {"op": "node_exit", "rc": -signal.SIGKILL}
    assert_gone(node)


def test_a_command_that_does_not_fit_its_seal_is_not_obeyed(pilot: Pilot) -> None:
    pilot.start()
    node = pilot.configure("exec sleep 1000")
    pilot.channel.send_raw(b"0" * 64 + b" " + encode({"op": "start", "host": "n1.3.0"}))
    assert pilot.ended() == 3
    assert_gone(node)
    assert pilot.cancelled == "77\n"


def test_an_agent_that_is_killed_takes_the_node_process_with_it(pilot: Pilot) -> None:
    pilot.start()
    node = pilot.configure("exec sleep 1000")
    assert pilot.process is not None
    pilot.process.kill()
    assert_gone(node)


def test_an_agent_without_a_driver_gives_its_allocation_up(pilot: Pilot) -> None:
    pilot.start()
    pilot.close()
    again = Pilot(pilot.folder)
    port = again.server.getsockname()[1]
    again.close()
    environ = os.environ | {"BFT_DRIVER": f"127.0.0.1:{port}", "BFT_SECRET": "", "BFT_LEASE": "n1.3"}
    environ |= {"SLURM_JOB_ID": "78", "PATH": f"{pilot.folder}:{os.environ['PATH']}"}
    said = subprocess.run([sys.executable, "-m", "elastic.node.agent"], env=environ, capture_output=True, check=False)
    node = socket.gethostname()
    expected = (
        "bft: "
        + wording("elastic.agent.cannot_reach", node=node, BFT_DRIVER=f"127.0.0.1:{port}", error="connection refused")
        + "\n"
    )
    assert (said.returncode, said.stdout, said.stderr.decode()) == (3, b"", expected)
    assert pilot.cancelled.endswith("78\n")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.1', 5)"), "connection refused"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "network is unreachable"),
        (OSError(f"Multiple exceptions: [Errno {errno.EHOSTUNREACH}] Connect call failed"), "no route to host"),
        (asyncio.TimeoutError(), wording("elastic.agent.no_answer", REACH_S=16)),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), wording("elastic.agent.unresolved")),
    ],
)
def test_why_a_driver_was_not_reached_is_said_in_words(error: Exception, text: str) -> None:
    assert _why(error) == text


def test_what_an_agent_that_was_killed_left_behind_is_swept_by_the_next_one(pilot: Pilot) -> None:
    pilot.start()
    assert pilot.process is not None
    started = psutil.Process(pilot.process.pid).children(recursive=True)
    pilot.process.kill()
    pilot.process.wait()
    for process in started:  # one that has not begun its program yet holds the folder's lock as well
        assert_gone(process)
    [left] = pilot.folder.glob("bft-agent-*")
    others = pilot.folder / f"bft-agent-{os.uname().nodename}-living"
    others.mkdir()
    living = os.open(others, os.O_RDONLY)
    fcntl.flock(living, fcntl.LOCK_EX)
    pilot.start()
    until("the folder is swept", lambda: not left.exists())
    os.close(living)
    assert others.exists()


def test_the_end_of_the_node_process_is_told_with_its_code(pilot: Pilot) -> None:
    pilot.start()
    pilot.configure("exit 5")
    assert pilot.next() == {"op": "node_exit", "rc": 5}


def lacks(interpreter: str, strerror: str) -> str:
    return wording("elastic.agent.no_python", interpreter=interpreter, strerror=strerror)


@pytest.mark.parametrize(
    ("interpreter", "cwd", "words"),
    [
        ("/nowhere/python", "", lacks("/nowhere/python", "No such file or directory")),
        (
            sys.executable,
            "/nowhere",
            wording(
                "elastic.agent.no_working_folder",
                cwd="/nowhere",
                strerror="No such file or directory",
                todo=wording("elastic.agent.submit_from"),
            ),
        ),
        ("/etc/passwd", "", lacks("/etc/passwd", "Permission denied")),
    ],
)
def test_regression_a_working_folder_that_is_not_there_was_called_a_missing_interpreter(
    pilot: Pilot, interpreter: str, cwd: str, words: str
) -> None:
    pilot.start()
    message: Message = {"op": "configure", "backend": "horovod", "interpreter": interpreter, "argv": ["train.py"]}
    message |= {"cwd": cwd or str(pilot.folder), "script_dir": "/s", "workers_per_node": 1, **NO_ENVIRONMENT}
    pilot.channel.send(message)
    said = pilot.next()
    assert said["op"] == "cannot"
    assert said["text"] == words


def test_each_gpu_of_the_node_gets_a_worker_where_the_user_says_nothing(
    pilot: Pilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = dict(os.environ)
    monkeypatch.setattr(os, "environ", original)
    pilot.start(
        "-c",
        "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0,1,2'; import elastic.node.agent; elastic.node.agent.main()",
    )
    message: Message = {"op": "configure", "backend": "horovod", "interpreter": "/bin/true", "argv": ["train.py"]}
    message |= {"cwd": str(pilot.folder), "script_dir": "/s", "workers_per_node": 0, **NO_ENVIRONMENT}
    pilot.channel.send(message)
    assert pilot.next() == {"op": "node", "workers_per_node": 3}


def test_what_a_back_ends_two_halves_tell_each_other_goes_through_whatever_it_is_called(pilot: Pilot) -> None:
    pilot.start()
    echo = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.sendall(s.recv(4096)); s.recv(1)"
    pilot.configure(f'exec {sys.executable} -c "{echo}" $4')
    pilot.channel.send({"op": "beat"})
    assert pilot.next() == {"op": "beat"}, "that one is the agent's own"
    pilot.channel.send({"op": "quorum", "members": [1, 2]})
    assert pilot.next() == {"op": "quorum", "members": [1, 2]}


def test_the_node_process_gets_what_its_back_end_wants_and_what_the_pilot_has_goes_before_a_default(
    pilot: Pilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_LEVEL", "of the user")
    pilot.start()
    pilot.configure(
        "echo $BFT_TRAINER, $A_LEVEL, $B_LEVEL, $AN_INTERFACE; exec sleep 1000",
        defaults={"A_LEVEL": "fatal", "B_LEVEL": "fatal"},
        interface_variables=["AN_INTERFACE"],
    )
    assert pilot.next()["line"] == "7, of the user, fatal, lo"


def test_workers_find_the_gpus_that_slurm_gave_the_pilot_in_slurms_order(
    pilot: Pilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setenv("SLURM_STEP_GPUS", "2,3")
    pilot.start(
        "-c",
        "import os; os.environ['CUDA_VISIBLE_DEVICES'] = 'GPU-5c89,GPU-11d2'; "
        "import elastic.node.agent; elastic.node.agent.main()",
    )
    pilot.configure(
        "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $SLURM_STEP_GPUS $BFT_WORKERS_PER_NODE; exec sleep 1000",
        workers_per_node=4,
    )
    assert pilot.next()["line"] == "GPU-5c89,GPU-11d2 PCI_BUS_ID 2,3 4"


@pytest.mark.parametrize("given", [True, False])
def test_what_the_user_set_for_threads_and_interfaces_is_not_overwritten(
    pilot: Pilot, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    for name, value in (("OMP_NUM_THREADS", "3"), ("NCCL_SOCKET_IFNAME", "ib0"), ("GLOO_SOCKET_IFNAME", "eth1")):
        monkeypatch.delenv(name, raising=False)
        if given:
            monkeypatch.setenv(name, value)
    pilot.start()
    pilot.configure(
        "echo $OMP_NUM_THREADS $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME $HOROVOD_GLOO_IFACE; exec sleep 1000",
        interface_variables=["HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"],
    )
    cores = threads_per_worker(1)
    assert pilot.next()["line"] == ("3 ib0 eth1 lo" if given else f"{cores} =lo lo lo")


def test_regression_an_agent_that_could_not_start_its_node_process_left_without_a_word(pilot: Pilot) -> None:
    pilot.start("-c", "import elastic.node.agent as agent, elastic.node.devices as it; it.of_node = None; agent.main()")
    message: Message = {"backend": "horovod", "interpreter": "/bin/true", "argv": [], "cwd": "/", "script_dir": "/s"}
    pilot.channel.send({"op": "configure", "workers_per_node": 1, **message, **NO_ENVIRONMENT})
    told = pilot.next()
    assert told["op"] == "cannot"
    assert told["text"].startswith("its agent failed: TypeError(")
    assert pilot.ended() == 3
    assert pilot.cancelled == "77\n"


def test_a_line_of_output_that_is_endless_does_not_stop_the_output(pilot: Pilot) -> None:
    pilot.start()
    pilot.configure("head -c 3000000 /dev/zero | tr '\\0' x\necho\necho after\nexec sleep 1000")
    said = ""
    while (line := pilot.next()["line"]) != "after":
        said += line
    assert said == "x" * 3_000_000


def test_an_agent_started_by_hand_says_in_one_line_what_it_is() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BFT_")}
    said = subprocess.run([sys.executable, "-m", "elastic.node.agent"], env=environ, capture_output=True, check=False)
    assert (said.returncode, said.stdout) == (2, b"")
    assert said.stderr.startswith(b"bft: an agent is started by a trainer's driver")
    assert said.stderr.count(b"\n") == 1


def test_an_agent_is_up_at_once_since_it_knows_no_back_end_and_imports_nothing_that_is_installed() -> None:
    words = "import sys, elastic.node.agent; print(*{name.partition('.')[0] for name in sys.modules}, *sys.modules)"
    said = subprocess.run([sys.executable, "-S", "-c", words], capture_output=True, text=True, check=True)
    imported = set(said.stdout.split())
    assert "elastic.node.agent" in imported
    assert imported.isdisjoint({"elastic.backends", "elastic.driver", "torch", "horovod", "aiohttp", "slurm_plugin"})


def test_a_probe_of_a_file_server_that_hangs_does_not_hold_up_the_agent(pilot: Pilot) -> None:
    hangs = (
        "import threading, elastic.node.shared_folder as probe, elastic.node.agent as agent; write = probe.write; "
        "probe.write = lambda path, *rest: threading.Event().wait() if path == '/hangs' else write(path, *rest); "
        "agent.main()"
    )
    pilot.start("-c", hangs)
    pilot.channel.send({"op": "probe", "path": "/hangs", "token": "abc", "names": []})
    pilot.channel.send({"op": "probe", "path": str(pilot.folder), "token": "abc", "names": []})
    answer = pilot.next()
    assert (answer["op"], answer["wrote"], answer["error"]) == ("probed", True, "")
    pilot.channel.send({"op": "beat"})
    assert pilot.next() == {"op": "beat"}
