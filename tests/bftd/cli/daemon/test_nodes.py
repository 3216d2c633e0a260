"""`bft nodes`: what Slurm shows, and for whom the daemon keeps nodes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from click.testing import CliRunner

from bftd import api_client
from bftd.base.errors import DaemonUnreachable
from bftd.cli import common
from bftd.cli.main import bft
from slurm_plugin.read.types import Snapshot
from tests.bftd.builders import node

AT_S = 1_000_000.0
CLOCK = time.strftime("%H:%M:%S", time.localtime(AT_S))


class Slurm:
    """Three idle nodes."""

    def snapshot(self) -> Snapshot:
        return Snapshot(AT_S, {name: node(name) for name in ("n1", "n2", "n3")}, (), ())


class Daemon:
    """One that answers with these earmarks, or not at all."""

    def __init__(self, earmarks: list[dict[str, Any]] | None) -> None:
        self.earmarks = earmarks

    def status(self, folded: bool) -> dict[str, Any]:
        if self.earmarks is None:
            raise DaemonUnreachable("bftd does not answer: start it")
        return {"earmarks": self.earmarks} if folded else {}


def shown(monkeypatch: pytest.MonkeyPatch, earmarks: list[dict[str, Any]] | None, *options: str) -> str:
    monkeypatch.delenv("BFTD_CONFIG", raising=False)
    monkeypatch.setattr(common, "slurm_client", lambda settings: Slurm())
    monkeypatch.setattr(api_client, "find", lambda path: Daemon(earmarks))
    result = CliRunner().invoke(bft, ["nodes", *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_node_that_is_kept_says_for_whom_and_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    earmarks = [{"job": "4711", "nodes": "n[2-3]", "since_s": AT_S}]
    first, second = shown(monkeypatch, earmarks).splitlines()[1:]
    assert (first.split()[0], first.split()[-1]) == ("n1", "-")
    assert second.startswith("n[2-3]")
    assert second.endswith(f"job 4711 since {CLOCK}")
    seen = json.loads(shown(monkeypatch, earmarks, "--json"))["nodes"]
    for name in ("earmarked_for", "kept_for"):
        assert [item[name] for item in seen] == [None, *[{"job": "4711", "since_s": AT_S}] * 2]


def test_a_job_that_is_private_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"a job since {CLOCK}" in shown(monkeypatch, [{"job": "", "nodes": "n2", "since_s": AT_S}])


@pytest.mark.parametrize("earmarks", [[], None])
def test_where_nothing_is_kept_or_no_daemon_answers_there_is_no_such_column(
    monkeypatch: pytest.MonkeyPatch, earmarks: list[dict[str, Any]] | None
) -> None:
    text = shown(monkeypatch, earmarks)
    assert "EARMARKED FOR" not in text
    assert "n[1-3]" in text
