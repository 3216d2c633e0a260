"""Children beside the user's own code: which Python, with what, and what is said of those that end without a word."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sizing.base.errors import Untraceable, UsageError
from sizing.child import launch
from tests.support.messages import pattern, wording

ENTRY = "sizing.tracer.graphs.graphs"


def test_nothing_is_hidden_from_a_child_but_what_its_caller_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def ended(python: str, entry: str, request: Any, limits: launch.ChildLimits, env: Any, *_: Any) -> Any:
        seen.append((python, entry, dict(env), limits.memory_bytes))
        return b"{}", 0, ""

    monkeypatch.setattr(launch, "ended", ended)
    assert launch.run(ENTRY, {}, python="p", timeout_s=1) == b"{}"
    assert launch.run(ENTRY, {}, python="p", timeout_s=1, memory_bytes=5, env={"A": "b"}) == b"{}"
    assert seen == [("p", ENTRY, {}, launch.NO_LIMIT_BYTES), ("p", ENTRY, {"A": "b"}, 5)]


def test_the_next_python_is_tried_where_one_has_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "pythons", lambda python: ["without", "with"])
    answers = {"without": (b"", launch.NO_TORCH, ""), "with": (b"[1]", 0, "")}
    monkeypatch.setattr(launch, "ended", lambda python, *_: answers[python])
    assert launch.run(ENTRY, {}, timeout_s=1) == b"[1]"
    answers["with"] = b"", launch.NO_TORCH, ""
    with pytest.raises(UsageError, match=pattern("sizing.cells_torches.no_torch")):
        launch.run(ENTRY, {}, timeout_s=1)
    answers["with"] = b"", -9, "one\ntwo"
    with pytest.raises(
        Untraceable,
        match="^"
        + r"net\.py: "
        + pattern("sizing.launch.died", how=wording("sizing.cpu_watching.killed", code=9), last=": two")
        + "$",
    ):
        launch.run(ENTRY, {}, timeout_s=1, what="net.py")


def test_a_python_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=pattern("sizing.launch.no_python", strerror="No such file or directory")):
        launch.run(ENTRY, {}, python=str(tmp_path / "python"), timeout_s=5)


@pytest.mark.torch
def test_a_child_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text("import time\ntime.sleep(60)\n")
    request = {"path": str(path), "function": "make_model", "batch": 1}
    with pytest.raises(Untraceable, match=pattern("sizing.launch.no_end", timeout_s=1.5)):
        launch.run(ENTRY, request, python=sys.executable, timeout_s=1.5)


@pytest.mark.parametrize("timeout_s", [float("nan"), float("inf"), 1e300, 0.0, -1.0])
def test_regression_a_time_out_that_is_no_time_ended_in_a_traceback(timeout_s: float) -> None:
    with pytest.raises(UsageError, match=pattern("sizing.launch.bad_timeout", LONGEST_S="1e+06")):
        launch.run(ENTRY, {}, python=sys.executable, timeout_s=timeout_s)
