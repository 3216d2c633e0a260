"""The driver's entry points: what is left behind at the end."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from elastic.driver import main
from elastic.driver.run import Run
from elastic.errors import ElasticError
from tests.elastic.fakes import FakeBackend, FakeDaemon, FakeStarter, settings_for, trainer_for


@pytest.mark.parametrize("where", ["submitted", "state"])
def test_regression_bft_run_removed_the_users_own_script_when_training_had_ended_well(
    tmp_path: Path, where: str
) -> None:
    state, script = tmp_path / ".bft" / "1", tmp_path / where / "train.py"
    state.mkdir(parents=True)
    script = script if where == "submitted" else state / "train.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text("print('mine')\n")
    main._remove_folder(replace(settings_for(tmp_path), argv=(str(script),), state_dir=state))
    assert script.exists() == (where == "submitted"), "only a batch job's copy goes"
    assert not state.exists()


def test_regression_every_error_of_a_work_was_called_a_fault_of_bftds_driver(tmp_path: Path) -> None:
    async def ends(error: Exception) -> tuple[int, str]:
        run = Run(settings_for(tmp_path), print, lambda _: None)
        try:
            raise error
        except Exception as raised:
            run.failed(raised)
        return await run.result

    assert asyncio.run(ends(ElasticError("torch is too slow; see why"))) == (1, "torch is too slow; see why")
    full = OSError(errno.ENOSPC, "No space left on device")
    assert asyncio.run(ends(full)) == (1, "the driver cannot go on: [Errno 28] No space left on device")
    assert "please report it: TimeoutError()" in asyncio.run(ends(asyncio.TimeoutError()))[1]
    code, reason = asyncio.run(ends(KeyError("pilot")))
    assert code == 1
    assert reason.startswith(f"a fault of bftd's driver, please report it: KeyError('pilot') at {__file__}:")


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
        "/opt/python cannot be run on svc1, where the driver runs: No such file or directory",
    )


def test_a_script_that_is_no_text_or_an_output_that_is_full_costs_no_traceback(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(b"#!/usr/bin/env python3\n\xff\xfe")
    argv = [sys.executable, "-c", "from elastic.driver.main import main; main()", str(script)]
    said = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == f"bft: {script}: not a text file; submit a Python script\n"
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run(argv, stdout=full, stderr=full, check=False).returncode == 2
