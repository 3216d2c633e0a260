"""`bft site` as an administrator meets it, on a `scontrol` that prints recorded answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bftd import config_file
from tests.slurm_plugin.site.test_plugstack import shared_object
from tests.support.messages import excerpt, fragment, says, wording
from tests.support.programs import shell_script
from tests.support.terminal import Ended, Run, Terminal

ASSETS = Path(__file__).parents[3] / "slurm_plugin" / "site" / "assets" / "22.05"
SCONTROL = """\
#!/bin/sh
case "$2" in
  config) cat {folder}/config.txt ;;
  partition) cat {folder}/partitions.txt ;;
  nodes) cat {folder}/nodes.txt ;;
esac
"""

SDIAG = """\
#!/bin/sh
cat {folder}/sdiag.txt
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `bft site` on a recorded cluster."""
    monkeypatch.delenv("BFTD_CONFIG", raising=False)
    monkeypatch.setattr(config_file, "DEFAULT_PATH", tmp_path / "none.toml")

    def call(cluster: str, *words: str, scontrol: str = SCONTROL, sdiag: str = SDIAG) -> Ended:
        for name, text in (("scontrol", scontrol), ("sdiag", sdiag)):
            shell_script(tmp_path / name, text.format(folder=ASSETS / cluster))
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return Terminal(monkeypatch, capsys, "site")(*words)

    return call


def test_a_site_that_must_change_ends_with_1_and_says_what_it_loses(run: Run) -> None:
    code, out, err = run("stock", "check", "--all")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    start = next(
        index for index, line in enumerate(lines) if line.startswith("advice  SchedulerParameters: bf_continue ")
    )
    assert lines[start].endswith("not set")
    assert lines[start + 1] == "        right: set"
    told = " ".join(" ".join(lines[start + 2 :]).split())
    assert says(told, "slurm_plugin.backfill.long_cycles")
    kept = {line for line in lines if re.match(r"ok +SchedulerParameters: bf_interval +not set \(default 30\)$", line)}
    assert len(kept) == 1, "a site's own pace is right as it is"
    assert says(lines[-1], "cli.site.counts_and_advice", must=fragment("4"))
    assert all(len(line) <= 120 for line in lines)


def test_what_is_right_is_counted_and_shown_on_request_behind_what_must_change_and_advice(run: Run) -> None:
    def levels(*words: str) -> list[str]:
        lines = run("stock", "check", *words)[1].splitlines()
        return [line.split()[0] for line in lines if re.match("(ok|advice|must) ", line)]

    whole = levels("--all")
    assert whole == sorted(whole, key=("must", "advice", "ok").index)
    assert levels() == [level for level in whole if level != "ok"] != whole
    last = run("stock", "check")[1].splitlines()[-1]
    assert says(last, "cli.site.counts_folded", ok=whole.count("ok"), must=whole.count("must"))
    assert run("stock", "check", "--all", "--json")[:2] == (2, "")


def test_a_site_where_nothing_must_change_ends_with_0(run: Run) -> None:
    code, out, _ = run("recommended", "check", "--json")
    seen = json.loads(out)
    assert (code, seen["must"], seen["slurm"]) == (0, 0, "22.05.8")
    levels = {row["name"]: row["level"] for row in seen["findings"]}
    # the plug-ins' files of the recorded cluster are not on this host
    assert {name for name, level in levels.items() if level != "ok"} == {
        "job_submit.lua",
        "PlugStackConfig",
        "pilot_mode",
    }
    assert all(row["why"] and row["loses"] and row["right"] and row["seen"] for row in seen["findings"])


def test_the_lines_of_one_file_can_be_sent_straight_to_it(run: Run) -> None:
    code, out, _ = run("stock", "config", "--file", "slurm.conf", "--keep", "ReturnToService")
    assert code == 0
    settings = [line for line in out.splitlines() if line and not line.startswith("#")]
    assert "PreemptType=preempt/partition_prio" in settings
    assert not [line for line in settings if line.startswith(("KillWait", "MessageTimeout", "ReturnToService"))]


def test_what_stays_as_it_is_is_told_with_its_price(run: Run) -> None:
    _, out, _ = run("stock", "config", "--keep", "JobSubmitPlugins")
    told = " ".join(line.removeprefix("# ") for line in out.splitlines())
    assert says(
        told, "cli.site.left_as_it_is", name="JobSubmitPlugins", seen="(null)", level="advice", loses="with it 80-96 %"
    )
    assert 'pilot_mode = "sbatch"' in out


@pytest.mark.parametrize("sdiag", ["echo denied >&2; exit 1", "echo 'sdiag output'"])
def test_regression_without_sdiag_the_scheduler_is_left_alone_and_what_is_not_known_is_told(
    run: Run, sdiag: str
) -> None:
    code, out, err = run("stock", "config", sdiag=f"#!/bin/sh\n{sdiag}\n")
    assert (code, err) == (0, "")
    told = " ".join(line.removeprefix("# ") for line in out.splitlines())
    loses = wording("slurm_plugin.backfill.leave_at_once")
    assert wording("cli.site.left_as_it_is", name="sdiag", seen="no answer", level="advice", loses=loses) in told
    assert "bf_interval=" not in out
    assert "bf_max_time=" not in out


def test_names_and_nodes_that_are_asked_for_are_in_the_lines(run: Run) -> None:
    words = ("--partition", "spare", "--driver-partition", "drv", "--nodes", "n1", "--driver-nodes", "n2", "--json")
    code, out, _ = run("stock", "config", *words)
    seen = json.loads(out)
    assert code == 0
    assert "PartitionName=spare Nodes=n1 " in seen["text"]["slurm.conf"]
    assert "PartitionName=drv Nodes=n2 " in seen["text"]["slurm.conf"]
    assert config_file.parse(seen["text"]["bftd.toml"]).slurm.partition == "spare"
    assert seen["left"] == []


def test_regression_of_several_harvested_partitions_each_can_be_looked_at(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "several.toml"
    path.write_text('[slurm]\npartitions = ["elastic-gpu", "elastic-cpu"]\n')
    for command in ("check", "config"):
        code, out, err = run("stock", command, "--config", str(path))
        assert (code, out) == (2, "")
        assert err.strip() == ("bft: " + wording("cli.site.several_partitions", several="elastic-gpu, elastic-cpu"))
    code, out, err = run("stock", "check", "--partition", "elastic-cpu", "--config", str(path))
    assert (code, err) == (1, "")
    assert re.search(r"must +harvested partition +.*elastic-cpu", out)
    words = ("--partition", "elastic-cpu", "--nodes", "n1", "--driver-nodes", "n2", "--config", str(path))
    code, out, err = run("stock", "config", *words)
    assert (code, err) == (0, "")
    assert "PartitionName=elastic-cpu Nodes=n1 " in out
    assert 'partition = "elastic-gpu,elastic-cpu"' in out, "the plug-ins are told of both"
    assert "[slurm]" not in out, "the daemon knows the partition already"


def test_the_plug_in_of_another_release_is_told_taken_out_and_put_back(run: Run, tmp_path: Path) -> None:
    file, plugin = tmp_path / "bftd.conf", tmp_path / "spank_bftd.so"
    file.write_text("optional spank_bftd.so\n")
    (tmp_path / "sched_backfill.so").write_bytes(shared_object(0x170200))
    plugin.write_bytes(shared_object(0x160508))
    options = ("plugin", "--file", str(file), "--folder", str(tmp_path))
    stale = wording("slurm_plugin.plugstack.stale", plugin=plugin, found="22.05", here="23.02")

    def out(*words: str) -> tuple[int, str]:
        code, told, err = run("stock", *options, *words)
        assert (told + err).count("\n") == 1
        return code, told + err

    told = wording("cli.site.plugin_fault", fault=stale, file=file)
    assert out() == (1, f"bft: {told}\n")
    line_is_out = wording("cli.site.plugin_is_out", fault=stale, file=file)
    assert out("--auto") == (0, line_is_out + "\n")
    assert out() == (0, line_is_out + "\n")
    assert file.read_text().startswith("#")
    plugin.write_bytes(shared_object(0x170209))
    assert out() == (0, wording("cli.site.plugin_to_put_back", name="spank_bftd.so") + "\n")
    assert out("--auto") == (0, wording("cli.site.plugin_loaded", name="spank_bftd.so") + "\n")
    assert file.read_text() == "optional spank_bftd.so\n"
    assert out("--off") == (0, wording("cli.site.plugin_off", name="spank_bftd.so", file=file) + "\n")
    assert file.read_text().startswith("#")
    plugin.write_text("")
    code, err = out("--auto")
    assert code == 1
    assert says(err, "cli.site.plugin_unread", name="spank_bftd.so", folders=tmp_path)
    assert out("--auto", "--off")[0] == 2
    assert out("--file", str(tmp_path / "none"))[0] == 1
    file.write_text("# nothing\n")
    assert says(out()[1], "cli.site.plugin_without_line", file=file, NAME="spank_bftd.so")


NO_CHOICE = "is not one of"
"""Of an option whose value is none of those that it may have: click's words."""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--nodes", "n[1-9]"), wording("cli.site.unknown_nodes", unknown="n[3-9]", known="n[1-2],svc1")),
        (("--driver-nodes", "n[1"), excerpt("slurm_plugin.nodeset.not_a_node_set", text="n[1")),
        (
            ("--keep", "killwait"),
            wording("cli.site.no_line", name="killwait", hint=wording("cli.site.near_line", near="KillWait")),
        ),
        (("--partition", "x", "--driver-partition", "x"), excerpt("cli.site.needs_partitions")),
        (("--file", "x"), NO_CHOICE),
        (("--config", "/nowhere.toml"), excerpt("bftd.config.unreadable", path=fragment("/nowhere.toml"))),
    ],
)
def test_wrong_usage_is_one_line_and_2(run: Run, words: tuple[str, ...], told: str) -> None:
    code, out, err = run("stock", "config", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err


@pytest.mark.parametrize(
    ("scontrol", "told"),
    [
        ("#!/bin/sh\necho 'slurm_load_ctl_conf error: Unable to contact slurm controller' >&2; exit 1\n", "contact"),
        ("#!/bin/sh\nexit 0\n", excerpt("slurm_plugin.settings.not_shown")),
        (
            SCONTROL.replace("cat {folder}/partitions.txt", "echo 'error: Access/permission denied' >&2"),
            excerpt("slurm_plugin.live.hidden", what="partition"),
        ),
    ],
)
def test_a_controller_that_does_not_answer_is_one_line_and_1(run: Run, scontrol: str, told: str) -> None:
    code, out, err = run("stock", "check", scontrol=scontrol)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert told in err
