"""What a driver starts for a pilot: its srun, and what becomes of one that cannot be started."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from bftd.protocol.lease import Leases
from elastic.driver.pilots.launcher import Pilot, PilotStarter
from elastic.driver.pilots.manager import PilotManager
from elastic.link import descriptors
from tests.elastic.driver.pilots.test_manager import Owner
from tests.elastic.fakes import FakeDaemon, FakeStarter, lease, peer, settings_for, until
from tests.support.messages import wording
from tests.support.programs import shell_script

pytestmark = pytest.mark.slow


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An srun and an sbatch that note the limit of open files under which they run; where they do so."""
    commands = tmp_path / "bin"
    commands.mkdir()
    noted = tmp_path / "noted"
    for name in ("srun", "sbatch"):
        shell_script(commands / name, f"ulimit -Sn > {noted}\necho 7")
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return noted


@pytest.fixture
def starter(tmp_path: Path) -> PilotStarter:
    made = PilotStarter(settings_for(tmp_path), 1, "secret", print)
    made.go_by(Leases(1, 20.0, ()))
    return made


def pilot() -> Pilot:
    return Pilot("n1.1", "n1", 3600.0, "", job_id="7")


def test_a_step_runs_under_the_limit_that_the_driver_was_started_with(
    srun: Path, starter: PilotStarter, monkeypatch: pytest.MonkeyPatch
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    monkeypatch.setattr(descriptors, "_given", [(321, hard)])
    asyncio.run(starter.run_agent(pilot()))
    assert srun.read_text() == "321\n"
    srun.unlink()
    # A batch script too: Slurm gives the job the limits that sbatch ran under.
    assert starter._client.submit([], "#!/bin/sh\n") == "7"
    assert srun.read_text() == "321\n"


async def test_regression_an_srun_for_which_there_were_too_many_open_files_ended_the_trainer(
    starter: PilotStarter,
) -> None:
    class Slurm(FakeStarter):
        async def run_agent(self, pilot: Pilot) -> None:
            await starter.run_agent(pilot)

    owner, daemon = Owner(), FakeDaemon()
    pilot_manager = PilotManager(owner, Slurm(), daemon.report, library="torch")  # type: ignore[arg-type]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < highest:  # numbers that others have left free in between would do for an srun
        taken.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(highest, *taken) + 1, hard))
    try:
        pilot_manager.on_leases([lease("n1")])
        await until("given back", lambda: pilot_manager.all == [])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)
    assert owner.errors == []
    assert ["Too many open files" in line for line in owner.lines] == [True]
    await pilot_manager.close()


def test_a_driver_without_a_thread_to_ask_slurm_with_is_refused_that_pilot(
    starter: PilotStarter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    assert asyncio.run(starter.place(pilot())) == wording(
        "elastic.pilots.slurm_not_asked", error="can't start new thread"
    )


def test_a_container_that_slurm_makes_is_a_second_step_of_the_pilot_and_never_told_the_secret(
    srun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starter: PilotStarter
) -> None:
    (tmp_path / "bin" / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nenv >&2\nexit 1\n')
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/this/host")
    words = ["/elsewhere/srun", "--container-image=a#b:1", "--container-mounts=/t:/t", "python3", "-u", "/t/.bft.pyz"]
    early = pilot()
    early.job_id, early.agent = None, peer(job_id="7")
    said = asyncio.run(starter.run_step(early, words))
    options = said[: said.index("--container-image=a#b:1")]
    assert options[0] == "--jobid=7"
    assert {"--overlap", "--nodes=1", "--ntasks=1"} <= set(options)
    assert said[len(options) : len(options) + 5] == words[1:]
    names = {line.partition("=")[0] for line in said}
    assert "BFT_LEASE" in names
    assert not names & {"BFT_SECRET", "LD_LIBRARY_PATH"}


@pytest.mark.parametrize("given_up", ["while it starts", "while it runs"])
def test_regression_a_step_whose_srun_was_killed_held_its_node_for_seconds(
    srun: Path, tmp_path: Path, starter: PilotStarter, given_up: str
) -> None:
    """Slurm's process beside the step tries for seconds to tell an srun that is gone of its end."""
    started = tmp_path / "started"
    (tmp_path / "bin" / "srun").write_text(
        f"#!/bin/sh\necho $$ > {started}.new\nmv {started}.new {started}\nexec sleep 60\n"
    )

    async def run() -> None:
        running = asyncio.create_task(starter.run_step(pilot(), ["srun", "x"]))
        if given_up == "while it starts":
            await asyncio.sleep(0)
        else:
            await until("its srun runs", started.exists)
        running.cancel()
        await asyncio.wait({running})
        await until("its srun runs", started.exists)
        pid = int(started.read_text())
        await asyncio.sleep(0.05)
        assert Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
        os.kill(pid, signal.SIGKILL)
        await until("it is reaped", lambda: not Path(f"/proc/{pid}").exists())

    asyncio.run(run())
