"""`bft size check` as a user meets it, on a stand-in for a GPU: what is told, what is kept, and when nothing is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bftd.cli.size.shared import allocation
from sizing.child import launch
from sizing.step_time import checking
from tests.bftd.cli.sizing_commands import SizeTerminal
from tests.support.messages import excerpt, says, wording
from tests.support.programs import shell_script
from tests.support.terminal import Ended
from tests.support.torch_forks import GPU_STAND_IN, Forks

pytestmark = pytest.mark.slow

GB = 10**9
STEPS = """
import torch
from torch import nn

def made(layers):
    def make_step(batch_size):
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(layers))).cuda()
        optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(batch_size, 64, device="cuda")
        def step():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return step
    return make_step

one, two, three, four, five = (made(layers) for layers in range(1, 6))

def fails(batch_size):
    return made(1)(batch_size) if not torch.cuda.is_available() or torch.cuda.device_count() else 1 / 0
"""


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> SizeTerminal:
    """With five small steps in the place of those that are shipped, and the cache in the test's own folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BFTD_CONFIG", str(tmp_path / "bftd.toml"))
    (tmp_path / "steps.py").write_text(STEPS)
    monkeypatch.setattr(checking, "STEPS", tmp_path / "steps.py")
    monkeypatch.setattr(checking, "BATCHES", dict.fromkeys(("one", "two", "three", "four", "five"), 4))
    return SizeTerminal(tmp_path, monkeypatch, capsys)


class StandIn:
    """Makes the Python that has a GPU of so many gigabytes, of which a step takes some."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch

    def __call__(self, *, in_use: float = 1.2, total: float = 85, allocated: float = 0.1) -> str:
        numbers = ",".join(str(int(each * GB)) for each in (total, allocated, 0.2, in_use))
        self._monkeypatch.setenv("GPU_STAND_IN", numbers)
        return str(shell_script(self._folder / "python", f'PYTHONPATH={GPU_STAND_IN} exec {sys.executable} "$@"'))


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(tmp_path, monkeypatch)


@pytest.fixture
def forked_steps(tracing_process: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let steps run and be traced in forks of a process that has torch."""
    monkeypatch.setattr(launch, "ended", tracing_process)


def check(terminal: SizeTerminal, python: str, *words: str) -> Ended:
    return terminal("size", "check", "--python", python, *words)


@pytest.mark.torch
@pytest.mark.slow
def test_steps_are_held_against_a_gpu_and_the_correction_is_kept_for_all(
    terminal: SizeTerminal, stand_in: StandIn, forked_steps: None
) -> None:
    kept = terminal.folder / "gpus.json"
    kept.write_text(json.dumps({"types": {"turbo": {"like": "a100-sxm-80gb", "cost": 3}}}))
    python = stand_in()
    ended = check(terminal, python, "--json", "--into", str(kept), "--gpu", "a100-sxm-80gb")
    assert ended.code == 0, ended.err
    found = ended.json
    assert (found["gpu"], found["device"]) == ("a100-sxm-80gb", "NVIDIA A100-SXM4-80GB")
    assert found["memory_bytes"] == 85 * GB
    assert [each["step"] for each in found["rows"]] == ["one", "two", "three", "four", "five"]
    assert all(
        each["within_guard"] and each["in_room"] and each["allocated_bytes"] == 0.1 * GB for each in found["rows"]
    )
    assert found["checked"]["host"]["steps"] == 5
    assert json.loads(kept.read_text())["types"] == {
        "turbo": {"like": "a100-sxm-80gb", "cost": 3},
        "a100-sxm-80gb": {"memory_bytes": 85 * GB, "checked": found["checked"]},
    }
    assert says(ended.err, "cli.size_check.kept", corrected="a100-sxm-80gb", into=str(kept))
    once = check(terminal, python)
    assert once.code == 2, "one of two types of the site, which nobody named"
    assert says(once.err, "sizing.checking.any_of")
    assert "running two" not in once.err
    small = stand_in(in_use=3, allocated=2.5)
    shown = check(terminal, small, "--gpu", "turbo", "--into", str(kept))
    assert shown.code == 0, shown.err
    lacking_bytes = 3 * GB - found["rows"][0]["guarded_bytes"]
    assert json.loads(kept.read_text())["types"]["turbo"]["memory_bytes"] == 85 * GB - lacking_bytes
    assert says(shown.out, "cli.size_check.memory", enough=0, rows=5), "a GPU of what is asked for was too small"
    assert "BOUND BY" in shown.out


@pytest.mark.torch
@pytest.mark.slow
def test_where_a_step_fails_nothing_is_kept(
    terminal: SizeTerminal, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All runs are in processes of the Python that is named."""
    monkeypatch.setattr(checking, "BATCHES", {"one": 4, "fails": 4})
    kept = terminal.folder / "gpus.json"
    ended = check(terminal, stand_in(), "--into", str(kept))
    assert ended.code == 1
    assert says(ended.err, "cli.size_check.failed", name="fails")
    assert not kept.exists()


@pytest.mark.torch
@pytest.mark.slow
def test_where_steps_do_not_say_enough_nothing_is_kept(
    terminal: SizeTerminal, stand_in: StandIn, forked_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = terminal.folder / "gpus.json"
    monkeypatch.setattr(checking, "BATCHES", {"one": 4})
    few = check(terminal, stand_in(), "--into", str(kept))
    assert few.code == 1
    assert says(few.err, "cli.size_check.too_few", rows="1 step")
    small = check(terminal, stand_in(total=1, allocated=2), "--into", str(kept))
    assert small.code == 1
    assert says(small.err, "cli.size_check.none_ran")
    monkeypatch.setattr(checking, "BATCHES", dict.fromkeys(("one", "two", "three", "four", "five"), 4))
    greedy = check(terminal, stand_in(in_use=60, allocated=2.5), "--into", str(kept))
    assert greedy.code == 1
    assert says(greedy.err, "sizing.checking.greedy", name="one")
    other = check(terminal, stand_in(), "--into", str(kept), "--gpu", "t4")
    assert other.code == 2
    assert says(other.err, "sizing.checking.another", named="t4", type="a100-sxm-80gb")
    monkeypatch.setenv("GPU_STAND_IN_IDLE", str(30 * GB))
    shared = check(terminal, stand_in(), "--into", str(kept))
    assert shared.code == 2
    assert says(shared.err, "sizing.steps.in_use")
    assert not kept.exists()


@pytest.mark.torch
def test_without_a_gpu_it_is_one_line(terminal: SizeTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "BATCHES", {"one": 4})
    ended = check(terminal, sys.executable)
    assert ended.code == 2
    assert says(ended.err, "sizing.steps.no_gpu")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--timeout", "0"), "more than 0"),
        (("--into", "nowhere/gpus.json"), "no such directory"),
        (("--into", "train.py"), "not JSON"),
        (("--into", "-"), "name a file"),
        (("--gpu", "gpu9000"), excerpt("sizing.checking.not_known", named="gpu9000")),
    ],
)
def test_what_cannot_be_asked_for_is_told_before_anything_runs(
    terminal: SizeTerminal, words: tuple[str, ...], said: str
) -> None:
    ended = check(terminal, sys.executable, *words)
    assert ended.code == 2
    assert said in ended.err
    assert ended.err.count("\n") == 1


@pytest.fixture
def centre(terminal: SizeTerminal, monkeypatch: pytest.MonkeyPatch) -> SizeTerminal:
    """One whose file of GPUs has the partitions new (a100), old (v100) and both."""
    found = json.loads((terminal.folder / "centre.json").read_text())
    groups = [each["groups"][0] for each in found["partitions"]]
    found["partitions"].append({"partition": "both", "groups": groups})
    (terminal.folder / "gpus.json").write_text(json.dumps(found))
    monkeypatch.setenv("BFTD_CONFIG", str(terminal.folder / "bftd.toml"))
    (terminal.folder / "bftd.toml").write_text("")
    return terminal


@pytest.mark.torch
@pytest.mark.slow
def test_a_partition_is_asked_for_one_gpu_and_its_answer_counts_as_the_sites_type(
    centre: SizeTerminal, forked_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    step: dict[str, Any] = {
        "batch": 4,
        "step_s": [0.1, 0.1, 0.1],
        **dict.fromkeys(("allocated_bytes", "reserved_bytes", "in_use_bytes"), GB),
        "memory_bytes": 42 * GB,
        "within_guard": True,
        "device": "Tesla V100-SXM2-32GB",
        "torch": "2.11",
    }

    def answered(*words: Any) -> dict[str, Any]:
        asked.append(words)
        return {"steps": {**dict.fromkeys(checking.BATCHES, step), "five": "it broke"}}

    monkeypatch.setattr(allocation, "answered", answered)
    ended = check(centre, sys.executable, "-p", "both", "--gpu", "v100", "--json")
    assert ended.code == 1
    assert says(ended.err, "cli.size_check.failed", name="five", why="it broke")
    assert (ended.json["gpu"], ended.json["failed"]) == ("v100", {"five": "it broke"})
    ((partition, options, entry, words),) = asked
    assert (partition, entry, words[0]) == ("both", ("size.check", "on_node"), sys.executable)
    assert any(each.startswith("--gres=gpu") and each.endswith(":1") for each in options)
    assert set(json.loads(words[2])) == set(checking.BATCHES)
    whole = dict.fromkeys(checking.BATCHES, step)
    for odd in (
        {"steps": []},
        {"steps": {"one": step}},
        {"steps": {**whole, "six": step}},
        {"steps": {**whole, "two": {**step, "memory_bytes": -5}}},
        {"steps": {**whole, "two": {**step, "device": None}}},
        {"steps": {**whole, "two": {**step, "step_s": [0.0, 0.0, 0.0]}}},
        {},
    ):
        monkeypatch.setattr(allocation, "answered", lambda *_, odd=odd: odd)
        wrong = check(centre, sys.executable, "-p", "old")
        assert wrong.code == 1
        assert says(wrong.err, "cli.size_check.no_step"), odd
    monkeypatch.setattr(allocation, "answered", lambda *_: {"steps": {**whole, "five": None, "four": None}})
    large = check(centre, sys.executable, "-p", "old")
    assert says(large.err, "cli.size_check.too_few", rows="3 steps")


def test_a_partition_of_several_types_or_none_is_refused(centre: SizeTerminal) -> None:
    ended = check(centre, sys.executable, "-p", "both")
    assert ended.code == 2
    assert says(ended.err, "cli.size_check.several_types", partition="both")
    gone = check(centre, sys.executable, "-p", "gone")
    assert gone.code == 2
    assert says(gone.err, "cli.size_check.no_such_gpu", partition="gone")
    assert wording("cli.size_allocation.no_srun") not in ended.err
