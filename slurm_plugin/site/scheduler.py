"""Rules on SchedulerType and on the settings of the main scheduler in SchedulerParameters.

The site decides how often it runs and when it first looks at a job: no rule here asks for other values.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_plugin.site.backfill import BACKFILL, backfills
from slurm_plugin.site.helpers import LIST, seen_option, set_parameter, value_of
from slurm_plugin.site.model import Site
from slurm_plugin.site.rule import NOT_SHOWN, Edit, Rule


def _type_edits(site: Site) -> Sequence[Edit]:
    edits = (Edit("slurm.conf", "", "SchedulerType", BACKFILL),)
    return (*edits, Edit("slurm.conf", LIST, "bf_interval", "30")) if value_of(site, "bf_interval", 30) == -1 else edits


def _rpcs_seen(site: Site) -> str:
    text = seen_option("max_rpc_cnt")(site)
    if text == NOT_SHOWN or site.load is None:
        return text
    now = [f"{site.load.threads} at this moment"] if site.load.threads is not None else []
    rate = [f"{site.load.rpcs_per_s:.2g} a second"] if site.load.rpcs_per_s is not None else []
    return "; ".join([text, ", ".join(now + rate)]) if now + rate else text


def _rpcs_fit(site: Site) -> bool:
    most, now = value_of(site, "max_rpc_cnt", 0), site.load.threads if site.load else None
    return most <= 0 or now is None or 2 * now <= most


RULES: tuple[Rule, ...] = (
    Rule(
        name="SchedulerType",
        right=f"{BACKFILL}, and not bf_interval=-1",
        why="the plan of the backfill scheduler says which nodes will be needed and when, and it is before its cycles "
        "that nodes are earmarked",
        loses="without a plan neither the guard nor the vacater knows where to stay away: 2 of 4 race tests without "
        "the guard locked a regular job out for 12-13 s, 0 of 10 with it",
        wrong="must",
        seen=lambda site: site.config.get("SchedulerType", NOT_SHOWN),
        holds=backfills,
        edits=_type_edits,
    ),
    Rule(
        name=f"{LIST}: defer",
        right='not set, or pilot_mode = "sbatch"',
        why="with it Slurm never schedules a job at its submission, so no immediate allocation can be granted",
        loses="Slurm refuses every pilot, on empty nodes too (measured on 22.05). A site that needs it keeps it: "
        "pilots by sbatch harvest less (not measured together with it)",
        wrong="advice",
        seen=seen_option("defer"),
        holds=lambda site: "defer" not in site.scheduler_parameters,
        applies=lambda site: site.wanted.pilot_mode == "salloc",
    ),
    Rule(
        name=f"{LIST}: max_rpc_cnt",
        right="not set, or at least twice the requests at a time",
        why="beyond it the controller schedules nothing, until it has answered",
        loses="pilots are refused and plans grow old meanwhile, as regular jobs wait too (not measured)",
        wrong="advice",
        seen=_rpcs_seen,
        holds=_rpcs_fit,
    ),
    Rule(
        name=f"{LIST}: sched_interval",
        right="any but -1; yours stays",
        why="a node that is given back is an event, which wakes the main scheduler at once; its own turns are for what "
        "an event does not start",
        loses="-1: nothing that an event does not start is started by the main scheduler",
        wrong="advice",
        seen=seen_option("sched_interval", "60"),
        holds=lambda site: value_of(site, "sched_interval", 60) != -1,
    ),
    Rule(
        name=f"{LIST}: sched_min_interval",
        right="at most [pool] give_back_bound_s (5 s), in microseconds; yours stays",
        why="two turns of the main scheduler are at least so far apart",
        loses="a regular job whose nodes have just been given back waits so long, as after the end of any other job",
        wrong="advice",
        seen=seen_option("sched_min_interval", "2"),
        holds=lambda site: value_of(site, "sched_min_interval", 2) <= 1e6 * site.wanted.give_back_bound_s,
    ),
    Rule(
        name=f"{LIST}: batch_sched_delay",
        right="at most [pool] give_back_bound_s (5 s); yours stays",
        why="a batch job may wait so long before it is first looked at, pilots or not",
        loses="batch_sched_delay 3, Slurm's default: a job on an idle cluster starts after 2.6-2.7 s instead of "
        "0.3-0.7 s, with pilots or without",
        wrong="advice",
        seen=seen_option("batch_sched_delay", "3"),
        holds=lambda site: value_of(site, "batch_sched_delay", 3) <= site.wanted.give_back_bound_s,
    ),
    Rule(
        name=f"{LIST}: preempt_youngest_first",
        right="set",
        why="of the pilots that could give a node, the one with the least to lose should",
        loses="Slurm ends the oldest pilots first, whose workers are warm",
        wrong="advice",
        seen=seen_option("preempt_youngest_first"),
        holds=lambda site: "preempt_youngest_first" in site.scheduler_parameters,
        edits=set_parameter("preempt_youngest_first"),
    ),
)
