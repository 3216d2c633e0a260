"""The guard's own parts: which CPUs it takes, what it says of the node, and where it may make a cpuset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sizing.base.errors import UsageError
from sizing.cpu.runs import affinity, supervisor
from tests.sizing.cpu.commands import alive, command
from tests.support.messages import fragment, pattern
from tests.support.programs import shell_script
from tests.support.waiting import STILL_S


def test_cpus_are_whole_cores_close_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages of two cores with two threads each, numbered as Linux does: siblings are four apart."""
    known = {cpu: (cpu // 2 % 2, cpu % 2) for cpu in range(8)}
    read = Path.read_text

    def topology(self: Path, *words: str, **more: str) -> str:
        if "topology" not in self.parts:
            return read(self, *words, **more)
        package, core = known[int(self.parts[-3][3:])]
        return f"{package if self.name == 'physical_package_id' else core}\n"

    monkeypatch.setattr(Path, "read_text", topology)
    assert supervisor.choose(set(range(8)), 2) == [0, 4]
    assert supervisor.choose(set(range(8)), 4) == [0, 1, 4, 5]
    assert supervisor.choose(set(range(8)), 6) == [0, 1, 2, 4, 5, 6]
    assert supervisor.choose({1, 2, 3, 7}, 2) in ([1, 2], [1, 3])
    assert supervisor.choose({3, 7, 1}, 2) == [1, 3]
    assert supervisor.choose(set(range(8)), 8) == list(range(8))


def test_cpus_without_a_topology_are_taken_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: Path, *words: str, **more: str) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", nothing)
    assert supervisor.choose({5, 3, 9}, 2) == [3, 5]


def test_a_node_is_described_in_one_line_of_a_step() -> None:
    argv = [sys.executable, "-I", supervisor.__file__, json.dumps({"describe": True})]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    told = affinity.message_of(f"srun: warning: something\n{ran.stderr}")
    assert told is not None
    assert told["cpus"] == len(os.sched_getaffinity(0))
    assert told["memory_bytes"] > 2**28
    assert told["cpu_model"]
    assert affinity.message_of("srun: error: nothing\n\x02bft {broken\n") is None


@pytest.mark.parametrize(("text", "numbers"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("", set()), ("5", {5})])
def test_lists_of_cpus_are_read_as_the_kernel_prints_them(text: str, numbers: set[int]) -> None:
    assert supervisor._listed(text) == numbers


def test_where_no_cpuset_can_be_made_affinity_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_cpuset_parent", lambda: tmp_path)  # a folder, and no cgroup
    assert supervisor._cpuset([0]) is None
    monkeypatch.setattr(supervisor, "_cpuset_parent", lambda: None)
    assert supervisor._cpuset([0]) is None
    assert affinity.confinement("auto", {}).kind == "affinity"
    with pytest.raises(UsageError, match=pattern("sizing.cpu_confine.no_cpuset")):
        affinity.confinement("cgroup", {})


@pytest.mark.parametrize("way", ["lifeline", "notice"])
def test_the_guard_alone_leaves_nothing_when_it_is_to_end(tmp_path: Path, way: str) -> None:
    """As in a step of Slurm's, where nobody else looks for what is left."""
    request = {"command": command("leaves", tmp_path / "a"), "cpus": 1, "grace_s": 0.3}
    argv = [sys.executable, "-I", supervisor.__file__, json.dumps(request)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(argv, env=environ, text=True, **pipes)  # type: ignore[call-overload]
    try:
        over_s = time.monotonic() + STILL_S
        while not ((tmp_path / "a").exists() and (tmp_path / "a").read_text()) and time.monotonic() < over_s:
            time.sleep(0.02)
        pid = int((tmp_path / "a").read_text())
        assert alive(pid)
        if way == "notice":
            running.terminate()
        said = running.communicate(timeout=STILL_S)[1]  # which closes its lifeline, too
    finally:
        running.kill()
    assert not alive(pid)
    assert not list(tmp_path.glob("bft-cpu-*"))
    assert json.loads(said.splitlines()[-1].partition(supervisor.MARK)[2]) | {"memory": 0} == {
        "op": "ended", "code": None, "left": 0, "memory": 0
    }  # fmt: skip


def test_an_allocation_without_srun_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=pattern("sizing.cpu_confine.no_srun")):
        affinity.confinement("auto", {"SLURM_JOB_ID": "7", "PATH": "/nowhere"})
    given = {"SLURM_JOB_ID": "7", "PATH": "/nowhere", "SLURM_JOB_CPUS_PER_NODE": "1(x2),4"}
    found = affinity.confinement("affinity", given)
    assert (found.kind, found.host.cpus) == ("affinity", 1)  # no more than the job's, though Slurm confines nothing


def test_a_step_that_slurm_refuses_is_one_line(tmp_path: Path) -> None:
    shell_script(
        tmp_path / "srun", "echo 'srun: error: Unable to create step: Job/step already completing' >&2\nexit 1"
    )
    with pytest.raises(
        Exception, match=pattern("sizing.cpu_confine.no_step_started", job=7, why=fragment("srun: error: Unable"))
    ) as error:
        affinity.confinement("auto", {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert "\n" not in str(error.value)


def test_regression_what_a_worker_had_read_counted_again_when_its_parent_had_waited_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Workers that are started anew each epoch: the kernel adds their counts to their parent's when they have ended."""
    size = 2**24
    (tmp_path / "data").write_bytes(bytes(size))
    script = (
        "import os, sys\n"
        "if not (child := os.fork()):\n"
        "    open(sys.argv[1], 'rb').read()\n"
        "    print('read', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print('waited', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    told: list[int] = []
    monkeypatch.setattr(supervisor, "say", lambda op, **what: told.append(what["read"]))
    argv = [sys.executable, "-I", "-c", script, str(tmp_path / "data")]
    tree = supervisor.Tree([])
    tree.look(last=True)
    before = told.pop()  # what other tests have started in this process has read something too
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for line in ("read\n", "waited\n"):
            assert parent.stdout.readline() == line
            tree.look(last=True)
            parent.stdin.write("\n")
            parent.stdin.flush()
    assert size < told[0] - before <= told[1] - before < 1.5 * size
    tree.look(last=True)  # nobody but the guard waits for it now: what it did stays
    assert told[2] == told[1]
