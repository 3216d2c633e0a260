"""What a control group tells of processes that the kernel ended for want of memory."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic.node.agent import Agent
from elastic.node.machine import MemoryKills
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

TAKES = "import sys; sys.stdin.read(); held = bytearray(200 << 20); print(len(held))"


def groups(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cgroup"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("listed", "file"),
    [
        ("0::/slurm/step_0\n", "slurm/step_0/memory.events"),
        ("0::/scope/job_7/step_0/user/task_0\n", "scope/job_7/memory.events"),
        ("9:name=systemd:/\n4:memory:/slurm/step_0\n0::/\n", "memory/slurm/step_0/memory.oom_control"),
    ],
)
def test_kills_since_the_last_question_are_seen(tmp_path: Path, listed: str, file: str) -> None:
    counts = tmp_path / file
    counts.parent.mkdir(parents=True)
    counts.write_text("oom 7\noom_kill 2\noom_group_kill 9\n")
    kills = MemoryKills(groups(tmp_path, listed), tmp_path)
    assert not kills.more(), "those before its time are another's"
    counts.write_text("under_oom 0\noom_kill 3\n")
    assert kills.more()
    assert not kills.more()


@pytest.mark.parametrize("listed", ["", "0::/not/there\n", "nonsense\n", "4:memory:/gone\n"])
def test_where_nothing_is_told_there_were_none(tmp_path: Path, listed: str) -> None:
    kills = MemoryKills(groups(tmp_path, listed), tmp_path)
    assert not kills.more()
    assert not MemoryKills(tmp_path / "absent", tmp_path).more()


def test_a_process_that_the_kernel_ends_is_counted() -> None:
    root = Path("/sys/fs/cgroup/memory")
    if not os.access(root, os.W_OK) or not (root / "memory.limit_in_bytes").exists():
        pytest.skip("control groups of version 1 cannot be made here")
    name = f"bft-test-{uuid.uuid4().hex[:8]}"
    group = root / name
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    process = None
    try:
        process = subprocess.Popen([sys.executable, "-c", TAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        (group / "cgroup.procs").write_text(str(process.pid))
        kills = MemoryKills(Path(f"/proc/{process.pid}/cgroup"))
        assert not kills.more()
        process.communicate(timeout=STILL_S)
        assert process.returncode == -9
        assert kills.more()
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        group.rmdir()


def test_an_agent_tells_of_a_kill_before_the_end_that_it_led_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = tmp_path / "memory.events"
    counts.write_text("oom_kill 0\n")
    told = Agent.__new__(Agent)  # a whole one has processes that a test would leave behind
    kills = MemoryKills(groups(tmp_path, "0::/\n"), tmp_path)
    told._machine = SimpleNamespace(memory_kills=kills)  # type: ignore[assignment]
    sent: list[Any] = []
    monkeypatch.setattr(told, "_send", sent.append)
    for message in ({"op": "exit", "rc": 1}, {"op": "ready"}):
        told._report_kills(message)
    counts.write_text("oom_kill 1\n")
    for message in ({"op": "ready"}, {"op": "exit", "rc": 0}, {"op": "exit", "rc": -9}, {"op": "node_exit", "rc": 1}):
        told._report_kills(message)
    assert sent == [{"op": "memory"}], "once, and for an end that failed"
