"""The driver's entry points: what is left behind at the end."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic.backends import KINDS
from elastic.base.errors import ElasticError
from elastic.driver import main
from elastic.driver import trainer as trainer_module
from elastic.driver.context import TrainerContext
from elastic.driver.server import listen
from elastic.driver.settings import DriverSettings
from elastic.driver.trainer import TrainerDriver
from elastic.options.job_script import Header, rewrite
from elastic.store.store import CheckpointStore
from elastic.worker.driver_link import DriverLink, PendingCheckpoint
from tests.elastic.fakes import FakeBackend, FakeDaemon, FakeStarter, lease, settings_for, trainer_for, until
from tests.elastic.store.test_catalogue import saved
from tests.elastic.store.test_store import put
from tests.support.messages import fragment, pattern, says, wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow


def ended(folder: Path, code: int, keep_state_s: float = 3600.0, step: int = 4, argv: str = "") -> DriverSettings:
    """A trainer that has saved its checkpoint, and what the driver does when it has ended."""
    settings = replace(settings_for(folder), state_dir=folder / "states" / "7", keep_state_s=keep_state_s)
    store = CheckpointStore(settings.state_dir)
    if step >= 0:
        asyncio.run(put(store, step, b"state"))
    main._put_away(replace(settings, argv=(argv or settings.argv[0],)), store, store.step, code, print)
    return settings


def test_regression_bft_run_removed_the_users_own_script_when_training_had_ended_well(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('mine')\n")
    ended(tmp_path, 0, keep_state_s=0.0, argv=str(script))
    assert script.exists()
    assert os.listdir(tmp_path / "states") == []


def test_the_checkpoint_of_what_ended_well_is_kept_for_a_time_and_the_user_is_told_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(tmp_path, 0)
    [kept] = (tmp_path / "states").iterdir()
    assert kept.name.startswith("7.ended-until-")
    assert says(capsys.readouterr().out, "elastic.main.checkpoint_kept_until", step=4, root=kept)


@pytest.mark.parametrize("code", [1, 143])
def test_the_checkpoint_of_what_did_not_end_well_stays_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    settings = ended(tmp_path, code, keep_state_s=0.0)
    assert list(settings.state_dir.glob("state-4-*"))
    assert says(capsys.readouterr().out, "elastic.main.checkpoint_kept", step=4, state_dir=settings.state_dir)


def test_a_trainer_that_failed_before_it_saved_leaves_nothing(tmp_path: Path) -> None:
    ended(tmp_path, 1, step=-1)
    assert os.listdir(tmp_path / "states") == []


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("step", [4, -1])
def test_a_driver_that_was_taken_over_leaves_the_folder_to_its_successor(
    tmp_path: Path, code: int, knows: bool, step: int
) -> None:
    settings = settings_for(tmp_path)
    old = CheckpointStore(settings.state_dir)
    new = CheckpointStore(settings.state_dir)
    if step >= 0:
        asyncio.run(put(new, step, b"state"))
    if knows:
        old.fence()
    main._put_away(settings, old, old.step, code, print)
    assert asyncio.run(put(new, 5, b"state"))


def test_what_cannot_be_put_away_is_told_and_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(main.catalogue, "put_away", fail)
    ended(tmp_path, 0)
    assert says(capsys.readouterr().out, "elastic.main.left_as_it_is", error="Input/output error")


# -- as Slurm runs it ---


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's copy of an elastic job's script, and the job's environment and working folder."""
    monkeypatch.setenv("BFT_STATE_DIR", str(tmp_path / "states"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "hpc")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    (tmp_path / "submitted").mkdir()
    monkeypatch.chdir(tmp_path / "submitted")
    return tmp_path / "slurm_script"


def rewritten(job: Path, elastic: str, lines: str = "# caf\xe9\n") -> list[str]:
    header = Header(elastic, "elastic", "/run/bftd/bftd.sock", "/home/ada/train.py", sys.executable)
    source = f"#!/usr/bin/env python3\n{lines}"
    job.write_bytes(rewrite(source, "/usr/bin/bft-driver", header).encode("latin-1"))
    return [str(job), "--fast"]


@pytest.mark.parametrize("elastic", ["1-2", "1-2,backend=horovod"])
def test_a_job_whose_script_is_for_another_library_than_torch_ends_at_once_with_one_line(
    job: Path, tmp_path: Path, elastic: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "# caf\xe9\nimport elastic.horovod\nimport horovod.tensorflow.keras as hvd\n"
    monkeypatch.setattr(sys, "argv", ["bft-driver", *rewritten(job, elastic, lines)])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "/home/ada/train.py imports horovod.tensorflow," in line
    assert not (tmp_path / "states").exists()


def test_a_jobs_script_and_checkpoint_are_in_a_folder_of_the_users_own_and_nothing_where_it_was_submitted(
    job: Path, tmp_path: Path
) -> None:
    settings = main._settings_of_job(main._job(rewritten(job, "1-2")))
    assert settings.state_dir == tmp_path / "states" / "7@hpc"
    script = Path(settings.argv[0])
    assert script == settings.state_dir / "script" / "train.py"
    assert script.read_bytes() == b"#!/usr/bin/env python3\n# caf\xe9\n"
    assert settings.script_sha256 == hashlib.sha256(script.read_bytes()).hexdigest()
    told = settings.agent_message(KINDS[settings.backend], {"BFT_STATE_STAGE": "/scratch"})
    assert told["env"] == {
        "BFT_TRAINER": "7",
        "BFT_SCRIPT_SHA256": settings.script_sha256,
        "BFT_STATE_STAGE": "/scratch",
    }
    assert os.listdir(tmp_path / "submitted") == []


def test_a_checkpoint_that_is_kept_no_longer_goes_when_the_next_driver_starts(job: Path, tmp_path: Path) -> None:
    saved(tmp_path / "states", "6@hpc.ended-until-20200101T000000Z")
    main._settings_of_job(main._job(rewritten(job, "1-2")))
    assert os.listdir(tmp_path / "states") == ["7@hpc"]


def test_a_resume_that_cannot_be_ends_the_job_with_one_line(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bft-driver", *rewritten(job, "1-2,resume=6")])
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 2
    [line] = capfd.readouterr().err.splitlines()
    assert re.match(
        "bft: " + pattern("elastic.beginning.no_checkpoint", resume=6, root=fragment(f"{tmp_path}/states")), line
    )


def test_regression_every_error_of_a_work_was_called_a_fault_of_bftds_driver(tmp_path: Path) -> None:
    async def ends(error: Exception) -> tuple[int, str]:
        run = TrainerContext(settings_for(tmp_path), print, lambda _: None)
        try:
            raise error
        except Exception as raised:
            run.failed(raised)
        return await run.result

    assert asyncio.run(ends(ElasticError("torch is too slow; see why"))) == (1, "torch is too slow; see why")
    full = OSError(errno.ENOSPC, "No space left on device")
    assert asyncio.run(ends(full)) == (
        1,
        wording("elastic.main.cannot_go_on", error="[Errno 28] No space left on device"),
    )
    assert "please report it: TimeoutError()" in asyncio.run(ends(asyncio.TimeoutError()))[1]
    code, reason = asyncio.run(ends(KeyError("pilot")))
    assert code == 1
    assert reason.startswith(wording("elastic.run.fault", place=f"KeyError('pilot') at {__file__}:"))


def test_regression_a_back_end_that_could_not_be_started_ended_in_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: FakeBackend) -> None:
        raise ElasticError("/opt/python cannot be run on svc1, where the driver runs: No such file or directory")

    monkeypatch.setattr(FakeBackend, "start", fail)

    async def run() -> tuple[int, str]:
        trainer = trainer_for(settings_for(tmp_path), print, FakeStarter(), FakeDaemon())
        code, reason = await trainer.serve()
        await trainer.stop()
        return code, reason

    assert asyncio.run(run()) == (
        1,
        wording(
            "elastic.companion.cannot_run",
            interpreter="/opt/python",
            host="svc1",
            strerror="No such file or directory",
        ),
    )


def test_a_script_that_is_no_text_or_an_output_that_is_full_costs_no_traceback(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(b"#!/usr/bin/env python3\n\xff\xfe")
    argv = [sys.executable, "-c", "from elastic.driver.main import main; main()", str(script)]
    said = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (2, "")
    [line] = said.stderr.splitlines()
    assert re.match("bft: " + pattern("elastic.script.not_elastic"), line)
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run(argv, stdout=full, stderr=full, check=False).returncode == 2


def test_a_driver_that_is_cancelled_still_takes_what_its_workers_saved_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Link(FakeDaemon):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()

        async def finish(self, *_: object) -> None:
            pass

    settings = settings_for(tmp_path)
    settings.state_dir.parent.mkdir(exist_ok=True)
    listening, trainers = listen(), list[TrainerDriver]()
    real = main.TrainerDriver

    def made(*args: Any, **fields: Any) -> TrainerDriver:
        trainers.append(real(*args, **fields))
        return trainers[0]

    monkeypatch.setattr(main, "TrainerDriver", made)
    monkeypatch.setattr(main, "listen", lambda: listening)
    monkeypatch.setattr(main, "DaemonLink", Link)
    monkeypatch.setattr(main, "PilotStarter", lambda *_: FakeStarter())
    kind = replace(KINDS[settings.backend], driver="tests.elastic.fakes:FakeBackend")
    monkeypatch.setattr(main, "KINDS", {settings.backend: kind})
    monkeypatch.setattr(trainer_module, "LEAVE_S", 20.0)  # on a machine that does other things as well
    environ = {
        "BFT_DRIVER": f"127.0.0.1:{listening.getsockname()[1]}",
        "BFT_SECRET": settings.secret,
        "BFT_LEASE": "n1.1",
        "BFT_LOCAL_RANK": "0",
    }

    async def run() -> int:
        running = asyncio.create_task(main._run(settings, SimpleNamespace(line=print, tail=tuple)))  # type: ignore[arg-type]
        trainer = await until("it runs", lambda: trainers and trainers[0])
        trainer.pilot_manager.on_leases([lease("n1")])
        session = await asyncio.to_thread(DriverLink.connect, environ, None)
        session.commit(PendingCheckpoint(9, 90, lambda file: file.write(b"state") and None))
        await until("it is known", lambda: trainer.pilot_manager.all[0].workers)
        trainer.run.cancel()
        code = await running
        session.ended(0)
        return code

    assert asyncio.run(asyncio.wait_for(run(), STILL_S)) == 143
    assert [path.name[:10] for path in settings.state_dir.glob("state-*")] == ["state-9-90"]
