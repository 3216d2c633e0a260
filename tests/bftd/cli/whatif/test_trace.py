"""`bft trace` as a user meets it: the tables, and for every mistake one line and the right exit code."""

from __future__ import annotations

import gzip
import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftd.simulation.trace import job_log, read, write
from tests.bftd.simulation.trace.making import SUMMIT, needs_summit, trace_of
from tests.support.messages import excerpt, fragment, says, wording
from tests.support.programs import shell_script
from tests.support.terminal import Run, Terminal

ASSETS = Path(__file__).parents[2] / "simulation" / "trace" / "assets"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """Runs `bft trace ...` in an empty folder and in UTC."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("BFTD_CONFIG", "")
    time.tzset()
    terminal = Terminal(monkeypatch, capsys, "trace")
    yield lambda words: terminal(*shlex.split(words))
    monkeypatch.undo()
    time.tzset()


def test_the_statistics_are_shown_as_the_papers_table_and_figure(run: Run) -> None:
    write(
        trace_of({"n1": [(0, 1800)], "n2": [(900, 2700)], "n3": []}, 3600.0, source="Test", notes={"gaps": 2}), "t.csv"
    )
    code, out, err = run("stats t.csv")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["SYSTEM", "DURATION", "INC/h", "DEC/h", "RATIO", "EQ-NODES"]
    assert lines[1].split() == ["Test", "1", "h", "1.0", "2.0", "33.3%", "1.0"]
    assert wording("cli.trace.fragments", count=2, mean_s="30 min", cut=1) in lines
    assert "1 h           100.0%     100.0%" in lines
    assert lines[-1] == "note: " + wording("whatif.notes.gaps", gaps=2)


def test_the_statistics_of_a_part_are_shown_as_json(run: Run) -> None:
    trace = write(trace_of({"n1": [(0, 1800)], "n2": [(900, 2700)]}, 3600.0), "t.csv.gz")
    code, out, _ = run("stats t.csv.gz --nodes n2 --hours 0.5 --json")
    found = json.loads(out)
    assert (code, found["nodes"], found["eq_nodes"], found["sha256"]) == (0, 1, 0.5, trace.digest())


@needs_summit
def test_the_statistics_of_summits_week_are_shown(run: Run) -> None:
    code, out, err = run(f"stats {SUMMIT}")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split() == ["Summit", "7", "days", "40.5", "28.9", "8.3%", "395.3"]


def test_a_trace_is_made_of_files(run: Run) -> None:
    files = f"--events {ASSETS}/events.txt --reservations {ASSETS}/reservations.txt --nodes {ASSETS}/nodes.txt"
    code, out, err = run(f"from-sacct {ASSETS}/jobs.txt {files} --ignore-partition elastic -o t.csv.gz")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert says(
        lines[0], "cli.trace.summary", output="t.csv.gz", duration_s="2 h", start="2026-03-01T12:00:00+00:00", nodes=4
    )
    assert "note: " + wording("whatif.notes.steps_ignored", steps=3) in lines
    assert "note: " + wording("whatif.notes.jobs_ignored", jobs=1) in lines
    trace = read("t.csv.gz")
    assert trace.nodes == ("n1", "n2", "n3", "n4")
    assert trace.source == "sacct"
    assert says(lines[-1], "whatif.job_rows.columns", missing="Submit, Eligible, TimelimitRaw, QOS, Account, User")
    _, again, _ = run("stats t.csv.gz")
    assert [line for line in again.splitlines() if line.startswith("note")] == lines[1:-1]


SACCT = (
    "JobIDRaw|Partition|State|Submit|Eligible|Start|End|TimelimitRaw|NNodes|NodeList|QOS|Account|User|SubmitLine\n"
    "1|batch|COMPLETED|90|90|100|200|5|2|n[1-2]|normal|chem|curie|sbatch -w n1 a.sh\n"
    "2|batch|COMPLETED|190|190|300|400|5|1|n2|normal|chem|bohr|sbatch --wrap a\nb\n"
    "3|elastic|COMPLETED|300|300|400|500|5|1|n1|normal|chem|bohr|sbatch c.sh\n"
    "4|batch|RUNNING|600|600|900|Unknown|UNLIMITED|1|n1|normal|chem|curie|sbatch d.sh\n"
)


def test_a_log_of_the_jobs_is_written_beside_the_trace(run: Run, tmp_path: Path) -> None:
    (tmp_path / "jobs.txt").write_text(SACCT)
    words = "from-sacct jobs.txt --nodes 'n[1-2]' -o week.csv.gz"
    code, out, _ = run(words)
    assert code == 0
    assert says(out, "cli.trace.jobs", output="week.jobs.csv.gz", jobs="3 jobs", users="2 users", accounts="1 account")
    assert says(out, "whatif.job_model.ends_unknown", jobs=1)
    log = job_log.load(tmp_path / "week.jobs.csv.gz")
    assert (log.begin_s, log.end_s, log.size) == (200, 900, 2)
    assert [(job.id, job.user, job.account, job.limit_s, job.required) for job in log.jobs] == [
        ("1", "u1", "a1", 300, "n1"), ("2", "u2", "a1", 300, ""), ("4", "u1", "a1", None, "")
    ]  # fmt: skip
    assert "curie" not in gzip.decompress((tmp_path / "week.jobs.csv.gz").read_bytes()).decode()
    assert run(f"{words} --names")[0] == 0
    assert [job.user for job in job_log.load(tmp_path / "week.jobs.csv.gz").jobs] == ["curie", "bohr", "curie"]


def test_no_log_of_other_jobs_stays_beside_a_trace(run: Run, tmp_path: Path) -> None:
    (tmp_path / "jobs.txt").write_text(SACCT)
    assert run("from-sacct jobs.txt --nodes 'n[1-2]' -o week.csv")[0] == 0
    assert (tmp_path / "week.jobs.csv.gz").exists()
    code, out, _ = run(f"from-sacct {ASSETS}/jobs.txt --nodes 'n[1-4]' -o week.csv")
    assert (code, bool(says(out, "whatif.job_rows.columns"))) == (0, True)
    assert not (tmp_path / "week.jobs.csv.gz").exists()


def test_regression_pilots_are_no_use_of_a_node_unless_somebody_says_so(run: Run, tmp_path: Path) -> None:
    told = "note: 1 jobs of the ignored partitions do not count as use"
    words = f"from-sacct {ASSETS}/jobs.txt --nodes {ASSETS}/nodes.txt -o t.csv"
    assert told in run(words)[1]
    assert told not in run(f"{words} --ignore-partition=")[1]
    config = tmp_path / "night.toml"
    config.write_text('[slurm]\npartition = "night"\n')
    assert told not in run(f"{words} --config {config}")[1]
    config.write_text('[slurm]\npartitions = ["night", "elastic"]\n')
    assert told in run(f"{words} --config {config}")[1], "those of every harvested partition"


def test_without_events_the_user_is_told_what_that_means(run: Run) -> None:
    code, _, err = run(f"from-sacct {ASSETS}/jobs.txt --nodes 'n[1-4]' -o t.csv")
    assert code == 0
    assert err == wording("cli.trace.events_missing") + "\n"


def test_the_period_can_be_given(run: Run) -> None:
    period = "--since 2026-03-01T12:30 --until 2026-03-01T13:30:00"
    code, out, _ = run(f"from-sacct {ASSETS}/jobs.txt --nodes 'n[1-4]' {period} -o t.csv")
    assert code == 0
    assert out.startswith("t.csv: 1 h from 2026-03-01T12:30:00+00:00")


CALLS = [
    "sacct -a -D -X -P --starttime=2026-03-01T12:00:00 --endtime=2026-03-01T14:00:00 "
    "--format=JobIDRaw,Partition,State,Submit,Eligible,Start,End,TimelimitRaw,NNodes,NodeList,QOS,Account,User,SubmitLine",
    "sacctmgr -P show event start=2026-03-01T12:00:00 end=2026-03-01T14:00:00 "
    "format=Cluster,NodeName,Start,End,State,Reason,ClusterNodes",
    "sacctmgr -P show reservation start=2026-03-01T12:00:00 end=2026-03-01T14:00:00 "
    "format=Cluster,Name,NodeNames,Start,End",
]
"""How Slurm's accounting is asked."""


def test_a_log_keeps_the_settings_that_decide_which_job_starts_when(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = tmp_path / "commands"
    commands.mkdir()
    (tmp_path / "jobs.txt").write_text(SACCT)
    (tmp_path / "config.txt").write_text(CONFIG)
    shell_script(commands / "sacct", f"cat {tmp_path}/jobs.txt")
    shell_script(
        commands / "sacctmgr",
        f'case "$3" in event) head -1 {ASSETS}/events.txt;; *) head -1 {ASSETS}/reservations.txt;; esac',
    )
    scontrol = f'case "$2" in config) cat {tmp_path}/config.txt;; *) echo NodeName=n1; echo NodeName=n2;; esac'
    shell_script(commands / "scontrol", scontrol)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    words = "from-sacct --since 0 --until 900 -o t.csv"
    assert run(words)[::2] == (0, "")
    found = job_log.load(tmp_path / "t.jobs.csv.gz").slurm
    assert found == {
        "PriorityType": "priority/basic",
        "SLURM_VERSION": "22.05.8",
        "SchedulerParameters": "bf_interval=60",
    }
    (tmp_path / "config.txt").write_text("slurm_load_ctl_conf error\n")
    assert run(words)[::2] == (0, "")
    assert job_log.load(tmp_path / "t.jobs.csv.gz").slurm == {}


CONFIG = """\
Configuration data as of 2026-03-01T14:00:00
PriorityType            = priority/basic
SchedulerParameters     = bf_interval=60
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 22.05.8
UnkillableStepTimeout   = 60 sec
"""


def test_a_trace_is_made_of_what_sacct_says_since_a_date(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = tmp_path / "commands"
    commands.mkdir()
    shell_script(commands / "sacct", f'echo "sacct $*" >>{tmp_path}/calls; cat {ASSETS}/jobs.txt')
    shell_script(
        commands / "sacctmgr",
        f'echo "sacctmgr $*" >>{tmp_path}/calls\ncase "$3" in event) cat {ASSETS}/events.txt;; '
        f"*) cat {ASSETS}/reservations.txt;; esac",
    )
    shell_script(commands / "scontrol", f"cat {ASSETS}/nodes.txt")
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    code, out, err = run("from-sacct --since 2026-03-01T12:00 --until 2026-03-01T14:00 -o t.csv")
    assert (code, err) == (0, "")
    assert says(out, "cli.trace.summary", output="t.csv", duration_s="2 h", start="2026-03-01T12:00:00+00:00", nodes=4)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == CALLS
    shell_script(commands / "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    code, _, err = run("from-sacct --since 2026-03-01 -o u.csv")
    assert (code, err) == (
        1,
        "bft: "
        + wording("cli.trace.command_failed", command="sacct", complaint="Slurm accounting storage is disabled")
        + "\n",
    )


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ("stats none.csv", 2, "cannot read none.csv: No such file or directory"),
        (
            "stats bad.csv",
            2,
            wording("whatif.checks.node", where="bad.csv", row=3, nodes="n1", what="")
            + wording("whatif.checks.joins_twice"),
        ),
        ("stats bad.txt", 2, wording("whatif.sidecar.not_a_trace", trace="bad.txt")),
        ("stats t.csv --nodes n9", 2, wording("whatif.model.unknown_nodes", unknown="n9", nodes="n1")),
        ("stats t.csv --hours 0", 2, excerpt("cli.trace.not_above_zero", value=0)),
        ("stats t.csv --hours nan", 2, excerpt("cli.trace.not_above_zero", value="nan")),
        ("from-sacct -o u.csv", 2, wording("cli.trace.file_or_since_missing")),
        ("from-sacct jobs.txt -o u.csv", 2, excerpt("cli.trace.nodes_missing")),
        ("from-sacct none.txt --nodes n1 -o u.csv", 2, "cannot read none.txt: No such file or directory"),
        (
            "from-sacct bad.csv --nodes n1 -o u.csv",
            2,
            excerpt("whatif.pipes.no_column", where="bad.csv", lack=fragment("jobidraw")),
        ),
        (
            "from-sacct jobs.txt --nodes m1 -o u.csv",
            2,
            excerpt("whatif.accounting.only_strangers", strangers=fragment("n1")),
        ),
        ("from-sacct jobs.txt --nodes 'n[1-' -o u.csv", 2, excerpt("slurm_plugin.nodeset.not_a_node_set", text="n[1-")),
        ("from-sacct jobs.txt --nodes bad.txt -o u.csv", 2, excerpt("whatif.sacct.names_no_node", where="bad.txt")),
        (
            "from-sacct jobs.txt --nodes n1 --events jobs.txt -o u.csv",
            2,
            excerpt("whatif.pipes.no_column", where="jobs.txt", lack=fragment("nodename")),
        ),
        (
            "from-sacct jobs.txt --nodes n1 --since tomorrow -o u.csv",
            2,
            excerpt("cli.trace.not_a_date", value="tomorrow"),
        ),
        ("from-sacct jobs.txt --nodes n1 --min-idle -1 -o u.csv", 2, excerpt("cli.solve.negative", value=-1)),
        ("from-sacct jobs.txt --nodes n1 -o u.txt", 2, wording("whatif.sidecar.not_a_trace", trace="u.txt")),
        ("from-sacct jobs.txt --nodes n1", 2, "Missing option '-o'"),
        ("from-slurm", 2, "Missing option '-o'"),
        ("from-slurm -o u.csv --poll 0", 2, excerpt("cli.trace.not_above_zero", value=0)),
        ("from-slurm -o u.csv", 1, excerpt("slurm_plugin.client.not_found", command="scontrol")),
        ("from-sacct --since 2026-01-01 -o u.csv", 1, excerpt("slurm_plugin.client.not_found", command="scontrol")),
    ],
)
def test_every_mistake_ends_in_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, code: int, complaint: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "t.csv").write_text("time_s,node,idle\n0,n1,1\n9,n1,0\n")
    (tmp_path / "bad.csv").write_text("time_s,node,idle\n0,n1,1\n9,n1,1\n")
    (tmp_path / "bad.txt").write_text("")
    (tmp_path / "jobs.txt").write_text(
        "JobIDRaw|State|Start|End|NodeList\n1|COMPLETED|100|200|n1\n2|COMPLETED|300|400|n1\n3|COMPLETED|900|901|n1\n"
    )
    ended, out, err = run(words)
    assert ended == code
    assert out == ""
    *earlier, last = err.splitlines()
    assert complaint in last
    assert last.startswith("bft: ")
    assert not [line for line in earlier if "no --events given" not in line]
    assert not (tmp_path / "u.csv").exists()
