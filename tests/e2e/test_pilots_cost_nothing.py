"""What pilots are charged by a real slurmdbd, without and with the lines of `bft site config`."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from benchmarks.site_lines import applied
from tests.e2e.accounted import AccountedSite
from tests.support.messages import says
from tests.support.waiting import until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.accounting,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can act as other users"),
]

USER, ACCOUNT = "games", "chem"  # 26.05 knows no user nobody
CPUS = 64  # so that a pilot of three seconds takes minutes of CPU time
_CONF = "AccountingStorageEnforce=associations,limits,safe\nPriorityType=priority/multifactor\n"


class Usage(NamedTuple):
    """What the user's account has been charged: billing seconds, and CPU minutes of its GrpTRESMins."""

    raw: int
    cpu_minutes: int


@pytest.fixture(scope="module")
def site() -> Iterator[AccountedSite]:
    statements = [
        "add cluster sandbox",
        f"add account {ACCOUNT}",
        f"modify account {ACCOUNT} set GrpTRESMins=cpu=10000",
        "add qos own",
        f"modify account {ACCOUNT} set qos=own",
        f"add user {USER} account={ACCOUNT}",
    ]
    with AccountedSite(statements, _CONF, {}, nodes=1, cpus_per_node=CPUS) as site:
        site.configure()
        yield site


def usage(site: AccountedSite) -> Usage:
    said = site.slurm("sshare", "-n", "-P", f"--accounts={ACCOUNT}", "-o", "User,RawUsage,GrpTRESRaw")
    (row,) = [line.split("|") for line in said.splitlines() if line.startswith("|")]
    return Usage(int(row[1]), int(re.findall(r"cpu=(\d+)", row[2])[0]))


def charged_for_a_pilot(site: AccountedSite) -> Usage:
    """What one pilot of at least three seconds adds."""
    until("the node is heard of", lambda: set(site.cluster.status().values()) == {"IDLE"})
    before = usage(site)
    done = site.salloc(USER, "--exclusive", "--mem=0")
    assert done.returncode == 0, done.stderr
    time.sleep(3.0)  # time used is what is measured
    site.empty()
    after = usage(site)
    return Usage(after.raw - before.raw, after.cpu_minutes - before.cpu_minutes)


def lines(site: AccountedSite, file: str) -> str:
    done = site.bft("site", "config", "--file", file)
    assert done.returncode == 0, done.stderr
    return done.stdout


def levels(site: AccountedSite) -> dict[str, Any]:
    found = json.loads(site.bft("site", "check", "--json").stdout)["findings"]
    return {row["name"]: (row["level"], row["seen"]) for row in found}


def test_regression_pilots_cost_their_user_no_fair_share_and_no_limit_with_the_printed_lines(
    site: AccountedSite,
) -> None:
    found = levels(site)
    assert found["harvested partition: TRESBillingWeights"] == ("advice", "not set")
    assert found["pilots' QOS"] == ("advice", "no QOS bft-pilots")
    plain = charged_for_a_pilot(site)
    assert plain.raw >= 2 * CPUS
    assert plain.cpu_minutes >= 2, "it eats the account's GrpTRESMins"

    conf, lua = lines(site, "slurm.conf"), lines(site, "job_submit.lua")
    (weights,) = re.findall(r"TRESBillingWeights=\S+", conf)
    line = f"# in the line PartitionName=elastic, set:\n#+ {weights}\n"
    site.cluster.conf.write_text(applied(site.cluster.conf.read_text(), line))
    site.slurm("scontrol", "reconfigure")
    assert levels(site)["harvested partition: TRESBillingWeights"] == ("ok", "CPU=0")
    unbilled = charged_for_a_pilot(site)
    assert unbilled.raw == 0
    assert unbilled.cpu_minutes >= 2, "nothing is billed, but a limit on CPU time counts CPUs"

    commands = re.findall(r"^-- Once, as root, before: sacctmgr -i (.*)$", lua, re.MULTILINE)
    for command in commands:
        site.sacctmgr(*shlex.split(command))
    assert 'qos = "bft-pilots"' in lua
    script = site.root / "job_submit.lua"
    time.sleep(1.1)  # slurmctld sees the change of a file by its time in whole seconds
    script.write_text(script.read_text().replace("install({", 'install({ qos = "bft-pilots",'))
    assert levels(site)["pilots' QOS"] == ("ok", "bft-pilots, UsageFactor 0")
    assert charged_for_a_pilot(site) == Usage(0, 0)
    refused = site.run_as(USER, "sbatch", "--qos=bft-pilots", "--wrap=true", "-t1", "-o", "/dev/null")
    assert says(refused.stderr, "slurm_plugin.bftd.qos_of_pilots", qos="bft-pilots"), "no regular job is free of charge"


def test_the_qos_of_a_partition_spares_pilots_nothing(site: AccountedSite) -> None:
    """Why the lines give pilots a QOS of their own in job_submit.lua."""
    for words in ("add qos of-partition", "modify qos of-partition set UsageFactor=0"):
        site.sacctmgr(*words.split())
    script = site.root / "job_submit.lua"
    before, time_before = site.cluster.conf.read_text(), script.read_text()
    changed = re.sub(r" TRESBillingWeights=\S+", "", before)
    changed = re.sub(r"(?m)^PartitionName=elastic .*$", r"\g<0> QOS=of-partition", changed)
    site.cluster.conf.write_text(changed)
    script.write_text(time_before.replace(' qos = "bft-pilots",', ""))
    site.slurm("scontrol", "reconfigure")
    assert charged_for_a_pilot(site).raw >= 2 * CPUS
