"""Reading a live site, on a `scontrol` that prints recorded answers and files in a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SnapshotError
from slurm_plugin.site import RULES, Site, check, read
from tests.slurm_plugin.site.sites import ASSETS, LUA, WANTED
from tests.support.messages import pattern, wording
from tests.support.programs import shell_script

SCONTROL = """\
#!/bin/sh
case "$2" in
  config) sed 's|/etc/slurm|{root}|;s|^PluginDir .*|PluginDir = {root}/lib|' {assets}/config.txt ;;
  partition) cat {assets}/partitions.txt ;;
  nodes) cat {assets}/nodes.txt ;;
esac
"""


@pytest.fixture
def client(tmp_path: Path) -> SlurmClient:
    """A client of the recorded cluster with the recommended settings; its slurm.conf stands in the test's folder."""
    shell_script(tmp_path / "scontrol", SCONTROL.format(root=tmp_path, assets=ASSETS / "22.05" / "recommended"))
    return SlurmClient(commands_dir=tmp_path)


def level(site: Site, name: str) -> tuple[str, str]:
    (found,) = (finding for finding in check(site, RULES) if finding.rule.name == name)
    return found.level, found.seen


def test_a_plugin_in_an_included_file_is_found_in_slurm_s_own_folder(client: SlurmClient, tmp_path: Path) -> None:
    (tmp_path / "plugstack.conf").write_text("# ours\ninclude plugstack.conf.d/*.conf\n")
    (tmp_path / "plugstack.conf.d").mkdir()
    (tmp_path / "plugstack.conf.d" / "bftd.conf").write_text("optional spank_bftd.so\n")
    assert level(read(client, WANTED), "PlugStackConfig") == (
        "advice",
        wording("slurm_plugin.plugins.not_here", path=f"{tmp_path}/lib/spank_bftd.so"),
    )
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "spank_bftd.so").touch()
    assert level(read(client, WANTED), "PlugStackConfig")[0] == "ok"


def test_a_plugstack_file_that_includes_itself_is_read_to_an_end(client: SlurmClient, tmp_path: Path) -> None:
    (tmp_path / "plugstack.conf").write_text("include plugstack.conf\n")
    assert level(read(client, WANTED), "PlugStackConfig")[0] == "advice"


def test_job_submit_lua_is_right_only_with_the_file_that_it_loads(client: SlurmClient, tmp_path: Path) -> None:
    assert level(read(client, WANTED), "job_submit.lua") == (
        "advice",
        wording("slurm_plugin.plugins.not_here", path=f"{tmp_path}/job_submit.lua"),
    )
    (tmp_path / "job_submit.lua").write_text(LUA.replace("/etc/slurm", str(tmp_path)))
    seen = level(read(client, WANTED), "job_submit.lua")[1]
    assert seen == wording(
        "slurm_plugin.plugins.module_not_here", path=f"{tmp_path}/job_submit.lua", module_missing=f"{tmp_path}/bftd.lua"
    )
    (tmp_path / "bftd.lua").touch()
    assert level(read(client, WANTED), "job_submit.lua")[0] == "ok"


def test_every_node_is_read_also_those_of_no_partition(client: SlurmClient) -> None:
    assert read(client, WANTED).node_names == ("n1", "n2", "svc1")


def test_partitions_that_slurm_hides_are_an_error_and_no_empty_site(client: SlurmClient, tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    denied = "echo 'slurm_load_partitions: Access/permission denied' >&2; exit 1"
    program.write_text(program.read_text().replace(f"cat {ASSETS}/22.05/recommended/partitions.txt", denied))
    with pytest.raises(SnapshotError, match="PrivateData"):
        read(client, WANTED)


def test_regression_a_setting_that_a_release_does_not_show_ended_the_check_without_a_word(client: SlurmClient) -> None:
    site = read(client, WANTED)
    del site.config["SchedulerType"]  # type: ignore[attr-defined]
    with pytest.raises(SnapshotError, match=pattern("slurm_plugin.settings.key_not_shown", key="SchedulerType")):
        check(site, RULES)
