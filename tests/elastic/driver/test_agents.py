"""An agent that does not come to serve says why, through srun, in the trainer's log: real processes, no Slurm."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from bftd.protocol.lease import Leases
from elastic.driver.pilots.launcher import Pilot, PilotStarter
from tests.elastic.fakes import settings_for
from tests.support.messages import fragment, says, wording
from tests.support.programs import shell_script

pytestmark = pytest.mark.slow


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for srun that says something of its own first, and starts the agent as the step of node n1."""
    path = shell_script(
        tmp_path / "srun",
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\necho \'srun: a warning of the site\' >&2\n'
        'SLURMD_NODENAME=n1 exec "$@"\n',
    )
    shell_script(tmp_path / "scancel", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


def ran(folder: Path, pilot: Pilot) -> tuple[str, list[str]]:
    """Runs the agent of a pilot; returns why it could not serve, and the trainer's log."""
    lines: list[str] = []

    async def body() -> str:
        starter = PilotStarter(settings_for(folder), 4711, "5a17", lines.append)
        starter.go_by(Leases(1, 20.0, ()))
        why = await asyncio.wait_for(starter.run_agent(pilot), 60)
        await starter.close()
        return why

    return asyncio.run(body()), lines


def test_regression_a_driver_that_a_node_cannot_reach_was_an_srun_that_ended_with_3(srun: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    why, lines = ran(tmp_path, Pilot("n1.1", "n1", 600.0, "", driver=f"127.0.0.1:{port}", job_id="7"))
    assert why == (
        wording("elastic.agent.cannot_reach", node="n1", BFT_DRIVER=f"127.0.0.1:{port}", error="connection refused")
        + wording("elastic.routes.set_variable", VARIABLE="BFT_DRIVER_ADDRESS", host_name=socket.gethostname())
    )
    assert lines == [], "who asked tells it"


def test_regression_a_node_without_a_temporary_folder_was_a_traceback_and_nobodys_fault(
    srun: Path, tmp_path: Path
) -> None:
    full = "import tempfile; tempfile.tempdir = '/proc/self/nowhere'; import elastic.node.agent as it; it.main()"
    srun.write_text(f'#!/bin/sh\nSLURMD_NODENAME=n1 exec {sys.executable} -c "{full}"\n')
    why, lines = ran(tmp_path, Pilot("n1.1", "n1", 600.0, "", driver="127.0.0.1:1", job_id="7"))
    assert why == wording("elastic.agent.no_temporary_folder", node="n1", why="No such file or directory")
    assert lines == []


def test_bftd_that_is_not_installed_on_a_node_is_said_as_that(srun: Path, tmp_path: Path) -> None:
    srun.write_text(
        "#!/bin/sh\necho 'slurmstepd: error: execve(): /opt/python: No such file or directory' >&2\nexit 2\n"
    )
    why, _ = ran(tmp_path, Pilot("n1.1", "n1", 600.0, "", driver="127.0.0.1:1", job_id="7"))
    assert why.startswith("n1 cannot run ")
    assert says(why, "elastic.pilots.cannot_run_agent", words=fragment("No such file or directory"))


def test_what_srun_says_of_its_own_is_logged_and_counted_against_no_node(srun: Path, tmp_path: Path) -> None:
    srun.write_text("#!/bin/sh\necho 'srun: error: Unable to create step: Job is gone' >&2\nexit 1\n")
    why, lines = ran(tmp_path, Pilot("n1.1", "n1", 600.0, "", driver="127.0.0.1:1", job_id="7"))
    assert why == ""
    assert lines == [
        wording("elastic.pilots.srun_ended", lease="n1.1", rc=1, text="srun: error: Unable to create step: Job is gone")
    ]


def test_an_agent_of_a_pilot_that_is_revoked_meanwhile_has_nothing_to_complain_of(srun: Path, tmp_path: Path) -> None:
    pilot = Pilot("n1.1", "n1", 600.0, "", driver="127.0.0.1:1", job_id="7", revoked=True)
    assert ran(tmp_path, pilot) == ("", [])


@pytest.mark.parametrize(
    "away",
    [
        "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)",
        "srun: error: Unable to create step for job 7: Requested nodes are busy",
    ],
)
def test_regression_a_pilot_placed_while_slurmctld_was_restarted_was_lost_with_the_srun_that_could_not_reach_it(
    srun: Path, tmp_path: Path, away: str
) -> None:
    tries = tmp_path / "tries"
    srun.write_text(f"#!/bin/sh\necho >> {tries}\n[ $(wc -l < {tries}) -gt 2 ] && exit 0\necho '{away}' >&2\nexit 1\n")
    assert ran(tmp_path, Pilot("n1.1", "n1", 600.0, "", driver="127.0.0.1:1", job_id="7")) == ("", [])
    assert len(tries.read_text()) == 3


def test_a_pilot_that_is_revoked_while_slurmctld_is_away_is_not_started_again(srun: Path, tmp_path: Path) -> None:
    srun.write_text("#!/bin/sh\necho 'srun: error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n")
    pilot = Pilot("n1.1", "n1", 600.0, "", driver="127.0.0.1:1", job_id="7", revoked=True)
    assert ran(tmp_path, pilot) == ("", [])
