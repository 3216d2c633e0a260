"""`bft sandbox down` without --root: the private cluster of this shell, and never one that somebody else uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bftd.base.errors import UsageError
from bftd.cli.admin.sandbox_site import SandboxSite
from bftd.cli.main import bft
from slurm_plugin.sandbox import Sandbox
from tests.support.messages import wording


class Ended:
    """Notes which cluster is taken down."""

    roots: list[Path]

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *running: Path) -> None:
        self.roots = []
        monkeypatch.setattr(Sandbox, "running", lambda: list(running))
        monkeypatch.setattr(SandboxSite, "attach", lambda root: self._site(root))

    def _site(self, root: Path) -> Ended:
        self.roots.append(root)
        return self

    def down(self) -> None:
        """It is down."""


def test_the_cluster_that_slurm_conf_names_is_ended_among_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ended(monkeypatch, tmp_path / "a", tmp_path / "b")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "b" / "slurm.conf"))
    assert CliRunner().invoke(bft, ["sandbox", "down"]).exit_code == 0
    assert ended.roots == [tmp_path / "b"]


def test_regression_anothers_cluster_was_ended_where_that_of_the_shell_was_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ended(monkeypatch, tmp_path / "a")
    conf = str(tmp_path / "b" / "slurm.conf")
    monkeypatch.setenv("SLURM_CONF", conf)
    refused = CliRunner().invoke(bft, ["sandbox", "down"]).exception
    assert isinstance(refused, UsageError)
    assert str(refused) == wording("cli.sandbox.own_is_gone", conf=conf)
    assert ended.roots == []


@pytest.mark.parametrize("conf", [None, "/etc/hosts"])
def test_the_only_one_is_ended_from_a_shell_of_no_private_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conf: str | None
) -> None:
    ended = Ended(monkeypatch, tmp_path / "a")
    if conf is None:
        monkeypatch.delenv("SLURM_CONF", raising=False)
    else:
        monkeypatch.setenv("SLURM_CONF", conf)
    assert CliRunner().invoke(bft, ["sandbox", "down"]).exit_code == 0
    assert ended.roots == [tmp_path / "a"]
