"""What `bft size cpu` keeps for elastic jobs, and where it keeps nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sizing.cpu import needs
from sizing.functions import cpu_profile
from tests.support.messages import says

pytestmark = pytest.mark.slow


def kept(memory_bytes: float | None) -> list[str]:
    """Keep a profile of `python train.py --lr 3`, run in this folder."""
    point = SimpleNamespace(made_s=1000.0)
    found = SimpleNamespace(
        points={2: point}, host="gpu1", ask=SimpleNamespace(command=("python", "train.py", "--lr", "3"))
    )
    return cpu_profile._kept(
        cast("Any", found), cast("Any", SimpleNamespace(memory_bytes=memory_bytes, cpus=3, gpus=1))
    )


def test_a_profile_is_kept_for_the_same_script_and_one_without_memory_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    script = tmp_path / "train.py"
    script.write_text("import elastic\n")
    assert kept(None) == []
    assert needs.find(script, ("--lr", "3")) is None, "nobody could ask for a part by it"
    assert kept(1e9 + 0.5) == []
    found = needs.find(script, ("--lr", "3"))
    assert found == needs.StoredNeed(3, 10**9 + 1, 1, "gpu1", 1000.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(script))
    [said] = kept(1e9)
    assert says(said, "sizing.cpu_needs.not_kept")
