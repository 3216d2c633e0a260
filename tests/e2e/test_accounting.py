"""What the documentation says of slurmdbd, tried with a real one: QOS limits, operators, accounts and PrivateData."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bftd.api_client import ApiClient
from bftd.simulation.trace import job_log
from bftd.simulation.trace.job_log import LoggedJob
from tests import program
from tests.bftd.test_orphan_jobs_cluster import daemon, watches
from tests.e2e.accounted import AccountedSite
from tests.support.messages import excerpt, says
from tests.support.waiting import until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.accounting,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can act as other users"),
]

STRANGER, DAEMON = "news", "daemon"  # to newer releases nobody is no user at all
# A Python in root's home has root as its only user.
TRAINING = "games" if program.python() else "root"
PER_USER, TOGETHER, DRIVERS = 2, 3, 3


def documented(page: str, word: str) -> list[str]:
    """The lines of the code blocks of a page that begin with a word, without it."""
    text = (program.CHECKOUT / "docs" / page).read_text()
    return re.findall(rf"^{word} (.*)$", text, flags=re.MULTILINE)


def limits() -> list[str]:
    """The QOS as the documentation makes them, with figures for four nodes."""
    smaller = {"64": str(PER_USER), "80": "10", "512": str(TOGETHER), "20": str(DRIVERS)}
    lines = documented("reference/security.md", "sacctmgr")
    assert len(lines) == 4
    return [re.sub(r"(?<==)(64|80|512|20)\b", lambda found: smaller[found[0]], line) for line in lines]


def partition_options() -> dict[str, str]:
    """What the documentation adds to the lines of the two partitions."""
    of = {name: documented("reference/security.md", f"PartitionName={name}") for name in ("elastic", "bft-driver")}
    return {name: line.removeprefix("... ") for name, (line,) in of.items()}


@pytest.fixture(scope="module")
def site() -> Iterator[AccountedSite]:
    statements = [
        "add cluster sandbox",
        "add account chem,phys",
        "add qos plain",
        "modify qos plain set MaxTRESPerUser=node=4",
        f"add user {STRANGER} account=chem qos=normal,plain",
        f"add user {TRAINING} account=phys,chem defaultaccount=phys",
        *([f"modify user {TRAINING} set defaultaccount=phys"] if TRAINING == "root" else []),
        *limits(),
    ]
    conf = "AccountingStorageEnforce=limits,qos"
    with AccountedSite(statements, conf, partition_options(), nodes=4) as site:
        (line,) = [line for line in documented("howto/limits.md", "sacctmgr") if "add user" in line]
        line = line.replace("bftd", DAEMON)
        site.sacctmgr(*line.split())
        yield site


@pytest.fixture(autouse=True)
def clean(site: AccountedSite) -> Iterator[None]:
    """Every test starts with an empty cluster and no operator."""
    operator(site, "none")
    site.configure()
    yield
    site.stop_daemon()
    site.empty()
    for path in site.root.glob("ledger*"):
        path.unlink()


def operator(site: AccountedSite, level: str) -> None:
    """The daemon's user gets, or loses, the right to end others' jobs, by the line of the documentation."""
    (line,) = [line for line in documented("howto/limits.md", "sacctmgr") if line.startswith("modify user")]
    site.sacctmgr(*line.replace("bftd", DAEMON).replace("=operator", f"={level}").split())


def test_the_qos_of_the_partition_bounds_a_user_who_goes_round_the_daemon(site: AccountedSite) -> None:
    for _ in range(PER_USER):
        assert site.salloc(STRANGER).returncode == 0
    for options in ([], ["--account=chem"], ["--qos=plain"], ["--comment=bft 7 n1.1"]):
        refused = site.salloc(STRANGER, *options)
        assert refused.returncode != 0
        assert "Job violates accounting/QOS policy" in refused.stderr
    assert site.salloc(STRANGER, "--account=phys").returncode != 0, "an account that is not his"
    assert site.salloc(STRANGER, "--qos=elastic").returncode != 0, "the QOS belongs to the partition, not to users"
    assert [job[1:] for job in site.jobs()] == [(STRANGER, "chem", "RUNNING")] * PER_USER, "and nothing of his waits"
    # all users together
    assert site.salloc("root").returncode == 0
    assert site.salloc("root").returncode != 0
    assert len(site.jobs()) == TOGETHER


def submitted(site: AccountedSite, elastic: str, *options: str) -> str:
    """The id of a new trainer."""
    done = site.train(TRAINING, elastic, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_qos_of_the_driver_partition_bounds_the_drivers_of_a_user(site: AccountedSite) -> None:
    site.start_daemon()
    for _ in range(DRIVERS):
        submitted(site, "4-4")
    done = site.train(TRAINING, "4-4")
    assert done.returncode == 1
    assert "Job violates accounting/QOS policy" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(site.jobs("bft-driver")) == DRIVERS


def test_pilots_of_bftd_come_within_the_same_bound(site: AccountedSite) -> None:
    site.start_daemon()
    assert site.salloc(TRAINING, "--account=chem").returncode == 0, "one round the daemon, on his other account"
    trainer = submitted(site, "1-4")
    until("a pilot", lambda: site.count(TRAINING, "phys") == PER_USER - 1, site.show)

    def refused() -> bool:
        assert site.count(TRAINING) <= PER_USER
        return bool(says(site.bft("explain", trainer).stdout, "core.sentences.refused"))

    until("refusals", refused, site.show)
    assert {job[3] for job in site.jobs()} == {"RUNNING"}, "none waits"
    assert not [node for node in site.client.status()["nodes"] if "quarantine" in node["why"]]
    assert site.salloc(STRANGER).returncode == 0, "another user gets a node at once"
    site.slurm("scancel", f"--user={TRAINING}", "--account=chem", "--partition=elastic")
    until("the quota is used", lambda: site.count(TRAINING, "phys") == PER_USER, site.show)


def test_caps_count_for_the_account_that_slurmdbd_gives_a_job(site: AccountedSite) -> None:
    site.configure(nodes_per_account=1)
    site.start_daemon()
    first = submitted(site, "1-2")  # names no account
    second = submitted(site, "1-2", "--account=chem")

    def one_each() -> bool:
        counts = [site.count(TRAINING, account) for account in ("phys", "chem")]
        assert max(counts) <= 1
        return counts == [1, 1]

    until("a node for each account", one_each, site.show)
    third = submitted(site, "1-2", "--account=phys")
    at_cap = excerpt("core.caps.at_cap", group="phys", most=1)
    until("the cap", lambda: at_cap in site.bft("explain", third).stdout, site.show)
    assert one_each()
    accounts = {trainer["id"]: trainer["account"] for trainer in site.client.status()["trainers"]}
    assert [accounts[id_] for id_ in (first, second, third)] == ["phys", "chem", "phys"]


def orphan_jobs(client: ApiClient) -> dict[str, dict[str, Any]]:
    return {job["job_id"]: job for job in client.status()["orphan_jobs"]}


def orphan_job_of_another_user(site: AccountedSite, node: str = "n3") -> str:
    done = site.salloc(STRANGER, f"--nodelist={node}")
    assert done.returncode == 0, done.stderr
    return done.stderr.split("job allocation ")[1].split()[0]


def test_a_daemon_that_is_no_operator_names_an_orphan_job_and_asks_slurm_once(site: AccountedSite) -> None:
    with daemon(site.root / "named", site.cluster, DAEMON, operator=True) as client:
        watches(client)
        job = orphan_job_of_another_user(site)
        violations = re.compile(rf"Security violation.*\b{job}\b")
        log = site.root / "named" / "log"
        until("a refusal", lambda: "scancel failed" in log.read_text(), log.read_text)
        time.sleep(3 * 0.5)  # some polls more
        shown = site.bft("status", "--config", str(site.root / "named" / "bftd.toml")).stdout
        assert re.search(rf"{STRANGER}.*chem.*n3.*\b{job}\b", shown) or f"job {job}" in shown
        assert len(re.findall(rf"\bjob (?:id )?{job}\b", log.read_text())) == 3, "named, to be cancelled, refused"
        assert orphan_jobs(client)[job]["account"] == "chem"
    assert len(violations.findall((site.root / "log" / "slurmctld.log").read_text())) == 1
    assert [of for of, *_ in site.jobs()] == [job]


def test_with_private_data_nothing_grows_until_the_daemon_is_an_operator_who_may_cancel_orphan_jobs(
    site: AccountedSite,
) -> None:
    old = orphan_job_of_another_user(site, "n2")
    regular = site.run_as(STRANGER, "sbatch", "--parsable", "-N4", "-t5", "-o", "/dev/null", "--hold", "--wrap", "true")
    with site.private("jobs,usage"), daemon(site.root / "private", site.cluster, DAEMON, operator=True) as client:
        log = site.root / "private" / "log"
        hidden = f"no snapshot, nothing grows: Slurm hides jobs from {DAEMON} (PrivateData)"
        until("a complaint", lambda: hidden in log.read_text(), log.read_text)
        assert not client.status()["nodes"], "nothing is offered to anybody"
        assert visible_to_the_daemon(site) == []
        operator(site, "operator")
        assert set(visible_to_the_daemon(site)) == {old, regular.stdout.strip()}
        watches(client)
        job = orphan_job_of_another_user(site)
        until("the orphan job is named", lambda: job in orphan_jobs(client), log.read_text)
        until("the orphan job is gone", lambda: job not in {of for of, *_ in site.jobs()}, log.read_text)
        assert old in {of for of, *_ in site.jobs()}, "it is older than what the daemon has seen"
        assert log.read_text().count(hidden) == 1
        assert "scancel failed" not in log.read_text()


def visible_to_the_daemon(site: AccountedSite) -> list[str]:
    return site.run_as(DAEMON, "squeue", "--noheader", "--all", "--format=%i").stdout.split()


def test_site_check_says_what_private_data_costs(site: AccountedSite) -> None:
    with site.private("jobs"):
        done = site.bft("site", "check")
    assert says(" ".join(done.stdout.split()), "slurm_plugin.cluster.nothing_grows")


def test_a_trace_and_a_log_of_jobs_come_from_what_slurmdbd_has(site: AccountedSite, tmp_path: Path) -> None:
    begun_s = time.time() - 1
    site.slurm("sbatch", "-p", "batch", "-w", "n[2-3]", "-t1", "-o/dev/null", "--wrap", "sleep 2\necho 5|cat")
    site.slurm("srun", "-p", "batch", "-N4", "-t2", "true")
    site.slurm("sbatch", "-p", "batch", "-N1", "-t3", "-o/dev/null", "--begin=now+1", "--wrap", "true")
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(begun_s))
    path = tmp_path / "trace.csv"

    def made() -> bool:
        words = ("trace", "from-sacct", "--since", since, "--min-idle=0", "-o", str(path))
        done = site.bft(*words)
        assert done.returncode == 0, done.stderr
        rows = path.read_text().splitlines()
        return {"n2", "n3"} <= {node for _, node, idle in (row.split(",") for row in rows[1:]) if idle == "0"}

    until("a trace in which both nodes were used", made, path.read_text)

    def found() -> list[LoggedJob]:
        made()
        return [job for job in job_log.load(job_log.path_of(path)).jobs if job.submit_s > begun_s]

    until("the last job is over", lambda: [job.end_s is None for job in found()] == [False] * 3, site.show)
    first, wide, late = found()
    names = {"partition": "batch", "qos": "normal", "account": first.account, "user": first.user, "state": "COMPLETED"}
    for job, limit_s, nodes, where, required in (
        (first, 60, 2, "n[2-3]", "n[2-3]"), (wide, 120, 4, "n[1-4]", ""), (late, 180, 1, late.node_names, "")
    ):  # fmt: skip
        assert (job.limit_s, job.nodes, job.node_names, job.required) == (limit_s, nodes, where, required)
        assert {name: getattr(job, name) for name in names} == names
        assert job.end_s is not None
        assert job.start_s is not None
        assert begun_s <= job.submit_s <= job.start_s <= job.end_s <= time.time()
    assert (first.user, first.account) == ("u1", "a1")
    assert wide.start_s is not None
    assert first.end_s is not None
    assert wide.start_s >= first.end_s >= (first.start_s or 0) + 2
    assert late.eligible_s is not None
    assert late.eligible_s > late.submit_s
