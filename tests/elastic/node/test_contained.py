"""An agent with a node process behind a runtime: no container needs to be there, the runtime is a command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastic.link.wire import Message
from elastic.node import container
from elastic.node.container import ARCHIVE, Container, ContainerError
from elastic.node.hang_detection import on_this_host
from elastic.node.process import Contained
from tests.elastic.node.test_agent import PATIENT, Pilot, assert_gone
from tests.support.messages import fragment, says
from tests.support.programs import shell_script
from tests.support.waiting import until

pytestmark = pytest.mark.slow

BARE = str(Path(sys.base_prefix, "bin", "python3"))
"""A Python without torch, and without bftd."""

BETWEEN = (
    f"{sys.executable} -c 'import ctypes, subprocess, sys; ctypes.CDLL(None).prctl(1, 0); "
    "sys.exit(subprocess.run(sys.argv[3:]).returncode)' {image} {binds} {command}"
)
"""A runtime that stays between, and loses the kernel's promise to end it with its parent, as those with setuid do."""


@pytest.fixture
def pilot(tmp_path: Path) -> Iterator[Pilot]:
    pilot = Pilot(tmp_path)
    yield pilot
    pilot.close()


def configure(pilot: Pilot, template: str, interpreter: str = BARE, **fields: object) -> None:
    """Has an agent start its node process by a template; takes its word that it does."""
    image = {"template": template, "image": "/images/x", "cwd": str(pilot.folder), "binds": [str(pilot.folder)]}
    message: Message = {"op": "configure", "backend": "torchrun", "interpreter": interpreter, "argv": ["train.py"]}
    message |= {"cwd": str(pilot.folder), "script_dir": "/s", "workers_per_node": 1, "container": image}
    message |= {"env": {"BFT_TRAINER": "7"}, "defaults": {}, "interface_variables": []}
    pilot.start("-c", PATIENT)
    pilot.channel.send({**message, **fields})


def told(pilot: Pilot, op: str) -> Message:
    """The next message of a kind."""
    while (said := pilot.next())["op"] != op:
        pass
    return said


def test_an_image_without_torch_is_told_as_what_no_other_node_could_mend(pilot: Pilot) -> None:
    configure(pilot, "env X={image} B={binds} {command}")
    said = told(pilot, "cannot")
    assert said["sure"] is True
    lacking = "No module named 'torch'"
    assert says([said["text"]], "elastic.node_main.image_lacks", image="/images/x", error=lacking)


def test_regression_why_a_process_cannot_go_on_was_lost_where_it_ended_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = f"{sys.executable} -c 'import time; time.sleep(1000)' {{image}} {{binds}} {{command}}"
    image = Container(template, "/images/x", str(tmp_path), ())
    folder = str(tmp_path)

    inside = "\n".join(
        (
            "import socket, sys",
            "sock = socket.socket(socket.AF_UNIX)",
            "sock.connect(sys.argv[1])",
            "sock.recv(1 << 20)",
            """sock.sendall(b'{"op": "cannot"}\\n')""",
        )
    )
    send_fds = socket.send_fds

    async def said() -> bytes:
        node, _ = await Contained.start(image, BARE, "torchrun", [], {**os.environ, "TMPDIR": folder})
        [door] = filter(Path.is_socket, tmp_path.iterdir())
        with subprocess.Popen([sys.executable, "-c", inside, str(door)]) as process:

            def send(*arguments: Any) -> int:
                sent = send_fds(*arguments)
                process.wait()
                return sent

            monkeypatch.setattr(socket, "send_fds", send)
            try:
                sock = await node.linked()
                assert sock is not None
                with sock:
                    return sock.recv(100)
            finally:
                node.kill()
                await node.wait()

    assert asyncio.run(said()) == b'{"op": "cannot"}\n'


def test_a_runtime_that_fails_is_told_by_its_last_line(pilot: Pilot) -> None:
    configure(
        pilot, "sh -c 'echo pulling; echo \"run[$$]: error: no such image: $0\" >&2; exit 4' {image} {binds} {command}"
    )
    said = told(pilot, "cannot")
    expected = "container=/images/x did not start: run: error: no such image: /images/x; name an image with Python"
    assert said["text"].startswith(expected)
    assert said["sure"] is True


def test_regression_a_runtime_that_knows_not_its_option_was_told_by_the_hint_that_comes_last(pilot: Pilot) -> None:
    configure(pilot, "sh -c 'echo run: no such option; echo Try run --help; exit 64' {image} {binds} {command}")
    assert "did not start: run: no such option; " in told(pilot, "cannot")["text"]


def test_an_image_with_an_old_python_is_told_in_one_line(pilot: Pilot) -> None:
    old = shell_script(
        pilot.folder / "old",
        f"#!/bin/sh\nshift 2\nexec {BARE} -c '\nimport sys; sys.version_info = (3, 8)\n{{}}' \"$@\"\n".replace(
            "{}", container._START.replace("'", '"')
        ),
    )
    configure(pilot, "env X={image} B={binds} {command}", str(old))
    assert says(told(pilot, "cannot")["text"], "elastic.container.old_python", version="3.8")


def test_a_runtime_that_is_not_installed_is_told_with_what_to_do(pilot: Pilot) -> None:
    configure(pilot, "no-such-runtime {image} {binds} {command}")
    said = told(pilot, "cannot")
    assert says(said["text"], "elastic.container.not_installed", words=fragment("no-such-runtime"))


def test_an_agent_answers_beats_while_an_image_is_fetched_and_leaves_at_once(pilot: Pilot) -> None:
    configure(pilot, "sh -c 'echo up $$; sleep 1000' {image} {binds} {command}")
    assert told(pilot, "node") == {"op": "node", "workers_per_node": 1}
    fetching = psutil.Process(int(told(pilot, "out")["line"].split()[1]))
    pilot.channel.send({"op": "beat"})
    told(pilot, "beat")
    assert pilot.process is not None
    pilot.process.terminate()
    assert pilot.ended() == 0
    assert_gone(fetching)


def test_regression_a_runtime_that_slurm_s_notice_ended_while_it_fetched_was_told_as_a_fault_of_its_image(
    pilot: Pilot,
) -> None:
    configure(pilot, "sh -c 'echo up $$; exec sleep 1000' {image} {binds} {command}")
    fetching = int(told(pilot, "out")["line"].split()[1])
    os.kill(fetching, signal.SIGKILL)  # some runtimes end by the notice, though it is ignored when they begin
    assert pilot.process is not None
    pilot.process.terminate()
    said = []
    while (message := pilot.channel.receive()) is not None:
        said.append(message["op"])
    assert "leaving" in said
    assert "cannot" not in said


def below(agent: psutil.Process, module: str) -> list[psutil.Process]:
    """What runs one of our modules below an agent."""
    found = []
    for process in agent.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if module in process.cmdline():
                found.append(process)
    return found


@pytest.mark.torch
def test_nothing_outlives_an_agent_that_is_killed_whatever_its_runtime_does_with_parents(pilot: Pilot) -> None:
    configure(pilot, BETWEEN, sys.executable)
    told(pilot, "ready")
    assert pilot.process is not None
    agent = psutil.Process(pilot.process.pid)
    until("the way to torchrun's store", lambda: below(agent, "elastic.backends.torchrun.tunnel"))
    inside = below(agent, "elastic.node") + below(agent, "elastic.backends.torchrun.tunnel")
    # the runtime, the node process and what that has started
    assert len(inside) == 3
    agent.kill()
    pilot.ended()
    for process in inside:
        assert_gone(process)


@pytest.mark.torch
def test_a_process_inside_gets_its_environment_from_the_agent_and_none_of_the_host_s_paths(
    pilot: Pilot, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONHOME_X", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.setenv(name, "/of/the/host")
    monkeypatch.setenv("MY_TOKEN", "mine")
    # as an image that sets its own, and a runtime that lets next to nothing through
    keep = "env -i PATH=/usr/bin:/bin HOME=/root LD_LIBRARY_PATH=/of/the/image I={image} B={binds} {command}"
    configure(pilot, keep, sys.executable, defaults={"OF_A_KIND": "1"})
    told(pilot, "ready")
    assert pilot.process is not None
    agent = psutil.Process(pilot.process.pid)
    until("the way to torchrun's store", lambda: below(agent, "elastic.backends.torchrun.tunnel"))
    [tunnel] = below(agent, "elastic.backends.torchrun.tunnel")
    seen = tunnel.environ()
    [scratch] = pilot.folder.glob("bft-agent-*")
    assert seen["TMPDIR"] == str(scratch)
    assert seen["PATH"] == "/usr/bin:/bin"
    assert seen["LD_LIBRARY_PATH"] == "/of/the/image"
    assert not seen.keys() & {"VIRTUAL_ENV", "CONDA_PREFIX"}
    assert (seen["MY_TOKEN"], seen["OF_A_KIND"], seen["BFT_CONTAINER"]) == ("mine", "1", "/images/x")
    assert seen["OMP_NUM_THREADS"]
    assert seen["PYTHONPATH"] == str(scratch / ARCHIVE)
    # neither a runtime's command line nor what it is started with tells the secret
    assert "BFT_SECRET" not in container.outside({"BFT_SECRET": "s", "MY_TOKEN": "mine"})


def test_the_archive_has_what_runs_beside_a_script_and_hides_nothing_else_of_an_image(tmp_path: Path) -> None:
    container.pack(str(tmp_path))
    names = {name.partition("/")[0] for name in zipfile.ZipFile(tmp_path / ARCHIVE).namelist()}
    assert names == {"__main__.py", "elastic", "bftd"}
    modules = "import elastic, elastic.node.__main__, elastic.backends.torchrun.tunnel, elastic.driver.server"
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / ARCHIVE)}
    argv = [BARE, "-c", f"{modules}; print(elastic.__file__)"]
    found = subprocess.run(argv, env=environ, cwd="/", capture_output=True, text=True, check=True).stdout
    assert found.startswith(str(tmp_path))


def test_folders_that_are_not_there_are_not_asked_for_and_those_of_the_runtime_not_twice(tmp_path: Path) -> None:
    binds = (str(tmp_path), "/nowhere", "/", "/usr/lib")
    image = Container("ls {image} {binds} {command}", "/i", "/usr", binds)
    words = image.command("/tmp", "python3", "m", [])
    assert words[2] == "/tmp:/tmp,/usr:/usr"
    with pytest.raises(ContainerError, match="neither apptainer"):
        Container("", "/i", "/usr", binds).command("/tmp", "python3", "m", [])


def test_regression_a_state_path_that_was_not_made_yet_was_not_there_inside(tmp_path: Path) -> None:
    """Workers would have made it inside the image, with all that they save there."""
    path = tmp_path / "lustre" / "me" / "run7"
    path.parent.mkdir(parents=True)
    image = Container("ls {image} {binds} {command}", "/i", "/usr", (str(path),))
    assert image.command("/usr", "python3", "m", [])[2] == f"{path.parent}:{path.parent},/usr:/usr"


def test_a_worker_is_found_by_the_id_that_it_has_in_a_namespace_of_its_runtime() -> None:
    """Nothing else is killed, though a process of this host has that id too."""
    script = "sleep 1000 & echo $$ $!; wait"
    argv = ["unshare", "-r", "-p", "-f", "--mount-proc", "sh", "-c", script]
    runtime = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert runtime.stdout is not None
        first, inside = map(int, runtime.stdout.readline().split())
        assert first == 1
        [node] = psutil.Process(runtime.pid).children()
        until("the worker is there", lambda: node.children())
        [worker] = node.children()
        assert on_this_host(inside, node.pid) == worker.pid != inside
        assert on_this_host(4_000_000, node.pid) == 0
        assert on_this_host(worker.pid, runtime.pid) == worker.pid
    finally:
        # the kernel ends a namespace with its first process
        for process in psutil.Process(runtime.pid).children():
            process.kill()
        runtime.wait()
