"""Rules on the cluster-wide lines of slurm.conf, except for the scheduler's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_plugin.clients.visibility import HIDING
from slurm_plugin.pilots.preemptible import BY_TIER
from slurm_plugin.read.settings import is_nothing, number, options
from slurm_plugin.site.helpers import elastic, partition_edit, set_to, setting
from slurm_plugin.site.model import Site
from slurm_plugin.site.rule import NOT_SHOWN, Edit, Rule

# The oldest and the newest release that bftd supports.
_OLDEST, _NEWEST = (22, 5), (26, 5)
_KILL_WAIT_S = 30
_POLL_RPCS = 4
_ENDING = frozenset({"CANCEL", "REQUEUE", "SUSPEND"})


def _preempt_type_edits(site: Site) -> Sequence[Edit]:
    """Let tiers preempt, but no regular job: before, no partition's tier cost a regular job its nodes."""
    preemptable = [name for name in _others(site) if site.partitions[name].get("PreemptMode") != "OFF"]
    return (
        Edit("slurm.conf", "", "PreemptType", "preempt/partition_prio"),
        *(partition_edit(name, "PreemptMode", "OFF") for name in preemptable),
    )


def _preempt_mode_edits(site: Site) -> Sequence[Edit]:
    """Turn preemption on and exclude the regular partitions from it: they would inherit the cluster's mode."""
    return (
        Edit("slurm.conf", "", "PreemptMode", "CANCEL"),
        *(partition_edit(name, "PreemptMode", "OFF") for name in _others(site)),
    )


def _others(site: Site) -> list[str]:
    return [name for name in site.partitions if name != elastic(site)]


def _scripts(key: str) -> Callable[[Site], str]:
    """Return a function that reads a setting's programs.

    Newer releases show them as Epilog[0], Epilog[1], ..., and nothing if there are none.
    """

    def text(site: Site) -> str:
        found = [value for name, value in site.config.items() if name.partition("[")[0] == key]
        return ", ".join(found) if found else "none"

    return text


def _job_records(site: Site) -> int:
    """Return the most jobs that slurmctld keeps for pilots: one per node, and those that ended within MinJobAge."""
    age_s = number(site.config.get("MinJobAge", "")) or 0
    return len(site.nodes_of(elastic(site))) + int(site.wanted.submit_rate_per_min * age_s / 60)


def _enough_job_records(site: Site) -> bool:
    return (number(site.config["MaxJobCount"]) or 0) >= 2 * _job_records(site)


def _rate_limit(site: Site) -> str:
    if "SlurmctldParameters" not in site.config:
        return NOT_SHOWN
    limits = {key: value for key, value in _controller(site).items() if key.startswith("rl_")}
    return ",".join(f"{key}={value}" if value else key for key, value in limits.items()) or "no rl_enable"


def _controller(site: Site) -> dict[str, str]:
    return options(site.config["SlurmctldParameters"])


def _polls_fit_rate_limit(site: Site) -> bool:
    limits = _controller(site)
    if "rl_enable" not in limits:
        return True
    refill = (number(limits.get("rl_refill_rate", "")) or 2) / (number(limits.get("rl_refill_period", "")) or 1)
    return refill >= 2 * _POLL_RPCS / site.wanted.poll_s


def _rate_edits(site: Site) -> Sequence[Edit]:
    rate = max(1, round(2 * _POLL_RPCS / site.wanted.poll_s))
    return (
        Edit("slurm.conf", "SlurmctldParameters", "rl_refill_rate", str(rate)),
        Edit("slurm.conf", "SlurmctldParameters", "rl_refill_period", "1"),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="Slurm release",
        right="22.05 to 26.05",
        why="bftd reads Slurm's text output, which changes from release to release",
        loses="not tried there: compare what bft nodes shows with sinfo before you start the daemon",
        wrong="advice",
        seen=setting("SLURM_VERSION"),
        holds=lambda site: _OLDEST <= site.release <= _NEWEST,
    ),
    Rule(
        name="PreemptType",
        right="preempt/partition_prio",
        why="a regular job takes a pilot's node by its partition's higher PriorityTier; preempt/qos ignores it",
        loses="without it nothing ends a pilot before its time limit, and a regular job waits as long; with it the job "
        "starts 0.4-1.2 s after its submission. preempt/qos worked in single runs where every regular QOS listed the "
        "pilots' under Preempt, which cannot be seen here; those lists have no effect under partition_prio",
        wrong="must",
        seen=setting("PreemptType"),
        holds=lambda site: site.config["PreemptType"] == BY_TIER,
        edits=_preempt_type_edits,
    ),
    Rule(
        name="PreemptMode",
        right="CANCEL, REQUEUE or SUSPEND (recommended: CANCEL, with PreemptMode=OFF on every regular partition)",
        why="slurmctld does not start with preempt/partition_prio and OFF; partitions without a mode of their own have "
        "this one, so the regular ones get OFF",
        loses="no pilot can be preempted: a regular job waits for its time limit",
        wrong="must",
        seen=setting("PreemptMode"),
        holds=lambda site: not _ENDING.isdisjoint(site.config["PreemptMode"].split(",")),
        edits=_preempt_mode_edits,
    ),
    Rule(
        name="PreemptExemptTime",
        right="00:00:00",
        why="it protects every job from preemption for its first seconds, pilots too",
        loses="a regular job waits until each pilot in its way is that old: measured 20 s with 00:00:20 instead of "
        "0.04-0.6 s",
        wrong="must",
        seen=setting("PreemptExemptTime"),
        holds=lambda site: site.config["PreemptExemptTime"].upper() in ("00:00:00", "NONE"),
        edits=set_to("PreemptExemptTime", "00:00:00"),
    ),
    Rule(
        name="KillWait",
        right="at most 30 s, Slurm's default; yours stays",
        why="how long Slurm waits for a process that ignores SIGTERM, of every job; an agent leaves by itself after "
        "0.1 s, so this bounds only what goes wrong",
        loses="KillWait 30: a pilot that hangs gives its node back after 31 s, with GraceTime 10 after 58-69 s, "
        "instead of 5.4-8.3 s with KillWait 2; and a job that lost the node it preempted for cannot preempt again for "
        "KillWait + MessageTimeout: 40 s (computed) instead of 12-13 s. It is the time that all jobs have to save "
        "themselves at their limit, so bftd asks for no lower one",
        wrong="advice",
        seen=setting("KillWait"),
        holds=lambda site: (number(site.config["KillWait"]) or 0) <= _KILL_WAIT_S,
    ),
    Rule(
        name="MessageTimeout",
        right="at most 10 s, Slurm's default; yours stays",
        why="Slurm does not preempt twice for one job within KillWait + MessageTimeout",
        loses="a job that lost the node it preempted for is stuck this much longer: 12-13 s at 10 s, 4.6-4.9 s at 2 s "
        "(KillWait 2)",
        wrong="advice",
        seen=setting("MessageTimeout"),
        holds=lambda site: (number(site.config["MessageTimeout"]) or 0) <= 10,
    ),
    Rule(
        name="Prolog",
        right="none",
        why="it runs on the node before the first step of every pilot",
        loses="each pilot starts its workers later by the prolog's run time, and short windows are not worth it; "
        "raise [pool] min_window_s by as much",
        wrong="advice",
        seen=_scripts("Prolog"),
        holds=lambda site: is_nothing(_scripts("Prolog")(site)),
    ),
    Rule(
        name="Epilog",
        right="none",
        why="a node that a pilot leaves is not free before the epilog is over",
        loses="a regular job that preempts pilots starts later by the epilog's run time: measured 2.1-2.9 s with one "
        "of 2 s, 0.04-0.6 s without. Let it return at once for jobs of the pilots' partition ($SLURM_JOB_PARTITION)",
        wrong="advice",
        seen=_scripts("Epilog"),
        holds=lambda site: is_nothing(_scripts("Epilog")(site)),
    ),
    Rule(
        name="ProctrackType",
        right="not proctrack/pgid",
        why="an agent's workers have process groups of their own, which pgid loses sight of",
        loses="if an agent is killed, its workers stay on the node beside the regular job that gets it (not measured)",
        wrong="advice",
        seen=setting("ProctrackType"),
        holds=lambda site: site.config["ProctrackType"] != "proctrack/pgid",
    ),
    Rule(
        name="SelectType",
        right="not select/linear",
        why="drivers share a service node, one CPU each",
        loses="each driver takes a whole service node: of two drivers on one node the second waits (measured)",
        wrong="advice",
        seen=setting("SelectType"),
        holds=lambda site: site.config["SelectType"] != "select/linear",
    ),
    Rule(
        name="PrivateData",
        right="not jobs, nodes, partitions or reservations",
        why="the daemon and every user's driver look at the whole queue before a pilot is placed",
        loses="nothing grows until bftd's user is a Slurm operator. Even then no driver's own guard sees regular jobs: "
        "without it 2 of 4 race tests locked one out for 12-13 s, with it 0 of 10",
        wrong="must",
        seen=setting("PrivateData"),
        holds=lambda site: HIDING.isdisjoint(options(site.config["PrivateData"].replace(" ", ","))),
        edits=lambda site: (
            Edit(
                "slurm.conf",
                "",
                "PrivateData",
                ",".join(word for word in options(site.config["PrivateData"]) if word not in HIDING) or "none",
            ),
        ),
    ),
    Rule(
        name="MaxJobCount",
        right="at least twice the jobs that pilots make: the nodes and [slurm] submit_rate_per_min for MinJobAge",
        why="slurmctld refuses every submission, regular ones too, once it holds so many jobs",
        loses="many pilots within MinJobAge can use the job table up (computed, not measured); or lower "
        "[slurm] submit_rate_per_min",
        wrong="advice",
        seen=setting("MaxJobCount"),
        holds=_enough_job_records,
        edits=lambda site: (Edit("slurm.conf", "", "MaxJobCount", str(max(10_000, 2 * _job_records(site)))),),
    ),
    Rule(
        name="AccountingStorageEnforce",
        right="no limits or qos, or limits that leave a quota for pilots",
        why="each pilot is a job of its user: MaxJobs, MaxSubmitJobs, GrpJobs and GrpTRES bound the nodes of a "
        "trainer, and while pilots run, what is left of them for regular jobs",
        loses="a user with MaxJobs=2 gets a driver and one pilot, and his regular job waits until one of them ends. "
        "sacctmgr show assoc format=user,maxjobs,maxsubmit,grpjobs,grptres shows these limits, scontrol does not. "
        "An account of its own for elastic jobs has limits of its own",
        wrong="advice",
        seen=setting("AccountingStorageEnforce"),
        holds=lambda site: {"limits", "safe", "qos"}.isdisjoint(options(site.config["AccountingStorageEnforce"])),
    ),
    Rule(
        name="SlurmctldParameters: rl_enable",
        right="off, or a refill of twice the RPCs of a poll (4) per [slurm] poll_s",
        why="beyond its rate a user's commands wait and try again",
        loses="snapshots become late, and nothing grows on one older than [pool] stale_after_s (not measured)",
        wrong="advice",
        seen=_rate_limit,
        holds=_polls_fit_rate_limit,
        edits=_rate_edits,
    ),
    Rule(
        name="CliFilterPlugins",
        right="none",
        why="a filter may refuse `salloc --immediate --no-shell`, which starts the pilots",
        loses="not visible from outside; try as a user: salloc --immediate=1 --no-shell -N1 -t1 -p and the pilots' "
        "partition",
        wrong="advice",
        seen=setting("CliFilterPlugins"),
        holds=lambda site: is_nothing(site.config["CliFilterPlugins"]),
    ),
    Rule(
        name="ReturnToService",
        right="1 or 2",
        why="bftd offers no node that is down",
        loses="a node that lost its connection stays down, and unharvested, until an administrator resumes it",
        wrong="advice",
        seen=setting("ReturnToService"),
        holds=lambda site: site.config["ReturnToService"] in ("1", "2"),
        edits=set_to("ReturnToService", "1"),
    ),
    Rule(
        name="SuspendTime",
        right="INFINITE",
        why="idle nodes that are powered down are not offered to trainers",
        loses="a node is harvested only when a trainer takes it within SuspendTime of its becoming idle",
        wrong="advice",
        seen=setting("SuspendTime"),
        holds=lambda site: site.config["SuspendTime"].upper() in ("INFINITE", "NONE", "-1", "-1 SEC"),
    ),
)
