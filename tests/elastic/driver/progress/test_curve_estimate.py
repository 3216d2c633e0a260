"""curve=estimate: an estimate is made beside the driver by the real command, or one line says why there is none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bftd.protocol.registration import NodeKind
from bftd.protocol.reports import CurveReport, NoteReport
from elastic.driver.main import registration_of
from elastic.driver.progress import curve_estimate
from tests.elastic.fakes import FakeDaemon, FakeStarter, settings_for, trainer_for
from tests.support.messages import excerpt, says, wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

KINDS = [NodeKind("a100x4", {"a100": 4}, (), 64), NodeKind("cpu8-16G", {}, (), 8)]
STEP = """
import torch
from helper import WIDTH
def make_step(batch_size=16):
    model = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    def step():
        optimizer.zero_grad()
        model(torch.randn(batch_size, WIDTH)).square().mean().backward()
        optimizer.step()
    return step
if __name__ == "__main__":
    raise SystemExit("it trains")
"""
HANGS = """
import os, pathlib, time
pathlib.Path(__file__).with_name("pid").write_text(str(os.getpid()))
time.sleep(600)
def make_step(batch_size=16):
    return lambda: None
if __name__ == "__main__":
    pass
"""


class Scene:
    """A driver with a script, told of some classes of nodes."""

    def __init__(self, folder: Path, source: str, spec: str) -> None:
        self.folder = folder
        (folder / "kept").mkdir()
        (folder / "kept" / "train.py").write_text(source)
        (folder / "helper.py").write_text("WIDTH = 64\n")
        script = str(folder / "kept" / "train.py")
        self.settings = replace(settings_for(folder, spec), argv=(script,), interpreter=sys.executable)
        self.lines: list[str] = []
        self.daemon = FakeDaemon()

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Lets the estimate come to its end, or cancels it as soon as something is so."""

        async def main() -> None:
            self.trainer = trainer_for(self.settings, self.lines.append, FakeStarter(), self.daemon)
            assert registration_of(self.settings, self.trainer).estimates == (), "it is not waited for"
            working = asyncio.create_task(self.trainer.estimating.work())
            self.trainer.estimating.heard(KINDS)
            if until is not None:
                while not until():
                    await asyncio.sleep(0.01)
                working.cancel()
            await asyncio.wait([working])
            assert working.cancelled() or working.exception() is None
            self.registration = registration_of(self.settings, self.trainer)

        asyncio.run(main())

    @property
    def notes(self) -> list[str]:
        return [report.text for report in self.daemon.of(NoteReport)]


def processes_of(folder: Path) -> list[Path]:
    """Those that name a scene's script on their command line: the command, and the process that runs the step."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder / "kept" / "train.py").encode() in (entry / "cmdline").read_bytes():
                found.append(entry)
    return found


@pytest.mark.torch
def test_the_daemon_is_told_a_curve_for_each_class_and_a_driver_that_comes_back_tells_it_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, STEP, "1-6,curve=estimate:32")
    scene.run()
    [report] = scene.daemon.of(CurveReport)
    assert [each.node_class for each in report.estimates] == ["a100x4", "cpu8-16G"], scene.lines
    gpus, cpus = report.estimates
    assert [nodes for nodes, _ in gpus.points] == [nodes for nodes, _ in cpus.points] == [1, 2, 4, 6]
    assert gpus.origin == cpus.origin == "assumed"
    assert gpus.basis == wording("cli.size_curve.basis_trace", whose="data", name="sheet of a100-pcie-40gb", batch=32)
    assert says(cpus.basis, "cli.size_curve.basis_cpu")
    assert scene.registration.estimates == report.estimates
    assert scene.notes == [], "the daemon says the sentence"


@pytest.mark.parametrize(
    ("source", "spec", "why"),
    [
        ("print('it trains')\n", "1-6,curve=estimate", excerpt("cli.size_curve.no_make_step", name="train.py")),
        ("def make_step(n=1): ...\n", "1-6,curve=estimate", excerpt("cli.size_curve.would_train")),
        ("def make_step(n): ...\nif __name__ == '__main__': ...\n", "1-6,curve=estimate", "say curve=estimate:N"),
        (STEP, "1-6,curve=estimate,container=/a.sif", excerpt("elastic.estimating.torch_in_image")),
    ],
)
def test_a_script_of_which_nothing_can_be_estimated_is_told_so_in_one_line(
    tmp_path: Path, source: str, spec: str, why: str
) -> None:
    scene = Scene(tmp_path, source, spec)
    scene.run()
    [note] = scene.notes
    assert says(note, "elastic.estimating.no_estimate")
    assert why in note
    assert "\n" not in note
    assert scene.lines == [note]
    assert scene.daemon.of(CurveReport) == []
    assert scene.registration.estimates == ()


@pytest.mark.torch
def test_a_step_that_never_ends_is_killed_at_the_time_out_and_nothing_of_it_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve_estimate, "ESTIMATE_S", 2.0)
    scene = Scene(tmp_path, HANGS, "1-6,curve=estimate")
    scene.run()
    [note] = scene.notes
    assert says(note, "elastic.estimating.no_end")
    left_by = time.monotonic() + STILL_S
    while processes_of(tmp_path):
        assert time.monotonic() < left_by, "what was started lives on"
        time.sleep(0.05)


@pytest.mark.torch
def test_a_driver_that_ends_takes_the_estimate_with_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, HANGS, "1-6,curve=estimate")
    pid = tmp_path / "kept" / "pid"
    scene.run(until=pid.exists)
    left_by = time.monotonic() + STILL_S
    while processes_of(tmp_path):
        assert time.monotonic() < left_by, "what was started lives on"
        time.sleep(0.05)
    assert scene.notes == []


def test_a_job_that_does_not_ask_for_it_starts_nothing_and_says_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "print('it trains')\n", "1-6")
    scene.run()
    assert (scene.lines, scene.daemon.reports) == ([], [])


def test_the_child_may_have_most_of_the_jobs_memory_and_never_more_than_a_trace_needs() -> None:
    gib = 2**30
    assert curve_estimate.memory_bytes({"SLURM_MEM_PER_NODE": "4096"}) == 3 * gib
    assert curve_estimate.memory_bytes({"SLURM_MEM_PER_CPU": "2048"}) == 1.5 * gib
    assert curve_estimate.memory_bytes({"SLURM_MEM_PER_NODE": "1000000"}) == 8 * gib
    for unknown in ({}, {"SLURM_MEM_PER_NODE": "0"}, {"SLURM_MEM_PER_NODE": "much"}):
        assert curve_estimate.memory_bytes(unknown) == 8 * gib


@pytest.mark.torch
def test_the_child_gives_way_and_is_the_first_to_go_where_memory_is_short(tmp_path: Path) -> None:
    scene = Scene(tmp_path, HANGS, "1-6,curve=estimate")

    def gave_way() -> bool:
        with contextlib.suppress(OSError):
            for entry in processes_of(tmp_path):
                score = (entry / "oom_score_adj").read_text().strip()
                if os.getpriority(os.PRIO_PROCESS, int(entry.name)) == 19 and score == "1000":
                    return True
        return False

    scene.run(until=gave_way)
    assert scene.notes == []
