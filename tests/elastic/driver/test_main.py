"""The driver's entry points: what is left behind at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from elastic.driver import main
from tests.elastic.fakes import settings_for


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
