"""Rules on SchedulerType and SchedulerParameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_plugin.site.model import Site, number
from slurm_plugin.site.rule import NOT_SHOWN, Edit, Rule

_LIST = "SchedulerParameters"
_UNSET = "not set"
_BACKFILL = "sched/backfill"
# Seconds from the submission of a regular job that preempts pilots to its first line.
_SLOW = (
    "a regular job that preempts pilots starts 3.2-5.7 s after its submission instead of 0.4-1.2 s (all of Slurm's "
    "defaults, with GraceTime 10, against all of the settings here)"
)

_NO_PLAN = ("bf_min_age_reserve", "bf_min_prio_reserve")


def _seen(key: str, default: str = "") -> Callable[[Site], str]:
    def text(site: Site) -> str:
        if _LIST not in site.config:
            return NOT_SHOWN
        found = site.scheduler_parameters
        if key in found:
            return found[key] or "set"
        return f"{_UNSET} (default {default})" if default else _UNSET

    return text


def _value(site: Site, key: str, default: int) -> int:
    found = number(site.scheduler_parameters.get(key, ""))
    return default if found is None else found


def _option(key: str, value: str = "") -> Callable[[Site], Sequence[Edit]]:
    return lambda site: (Edit("slurm.conf", _LIST, key, value),)


def _without(*keys: str) -> Callable[[Site], Sequence[Edit]]:
    """A leading minus takes an option out of the list."""
    return lambda site: tuple(Edit("slurm.conf", _LIST, f"-{key}") for key in keys if key in site.scheduler_parameters)


def _backfills(site: Site) -> bool:
    return site.config["SchedulerType"] == _BACKFILL and _value(site, "bf_interval", 30) != -1


RULES: tuple[Rule, ...] = (
    Rule(
        name="SchedulerType",
        right=f"{_BACKFILL}, and not bf_interval=-1",
        why="the plan of the backfill scheduler says which nodes will be needed and when",
        loses="without a plan neither the guard nor the vacater knows where to stay away: 2 of 4 race tests without "
        "the guard locked a regular job out for 12-13 s, 0 of 10 with it",
        wrong="must",
        seen=lambda site: site.config.get("SchedulerType", NOT_SHOWN),
        holds=_backfills,
        edits=lambda site: (
            Edit("slurm.conf", "", "SchedulerType", _BACKFILL),
            Edit("slurm.conf", _LIST, "bf_interval", "1"),
        ),
    ),
    Rule(
        name=f"{_LIST}: defer",
        right="not set",
        why="with it Slurm never schedules a job at its submission, so no immediate allocation can be granted",
        loses="Slurm refuses every pilot, on empty nodes too (measured on 22.05). Where it must stay: pilot_mode = "
        '"sbatch", which was not measured together with it',
        wrong="must",
        seen=_seen("defer"),
        holds=lambda site: "defer" not in site.scheduler_parameters,
        edits=_without("defer"),
        applies=lambda site: site.wanted.pilot_mode == "salloc",
    ),
    Rule(
        name=f"{_LIST}: bf_interval",
        right="at most [pool] vacate_ahead_s (5 s); recommended 1",
        why="pilots leave a node that long before its planned start, so the plan must not be older; and none starts "
        "while a job waits for its first plan",
        loses=f"bf_interval 30: a job that the backfill scheduler preempts for starts 30 s later, not 1 s; each "
        f"regular job that queues stops all growth for up to 30 s, pilots of sbatch start only every 30 s, and {_SLOW}",
        wrong="advice",
        seen=_seen("bf_interval", "30"),
        holds=lambda site: _value(site, "bf_interval", 30) <= site.wanted.vacate_ahead_s,
        edits=_option("bf_interval", "1"),
        applies=_backfills,
    ),
    Rule(
        name=f"{_LIST}: bf_continue",
        right="set",
        why="else the planner starts again from the top of the queue whenever anything changes, and pilots change much",
        loses="jobs far down a long queue get no plan, and a job without one stops growth for [pool] plan_wait_s (30 s)"
        " (not measured by itself)",
        wrong="advice",
        seen=_seen("bf_continue"),
        holds=lambda site: "bf_continue" in site.scheduler_parameters,
        edits=_option("bf_continue"),
    ),
    Rule(
        name=f"{_LIST}: bf_resolution",
        right="at most 60",
        why="planned starts are rounded to it, windows with them; limits of pilots are whole minutes",
        loses="windows are known less exactly, and fewer short ones can be used; a finer one gains nothing (measured)",
        wrong="advice",
        seen=_seen("bf_resolution", "60"),
        holds=lambda site: _value(site, "bf_resolution", 60) <= 60,
        edits=_option("bf_resolution", "60"),
    ),
    Rule(
        name=f"{_LIST}: bf_min_age_reserve, bf_min_prio_reserve",
        right="not set",
        why="jobs that are younger, or of lower priority, get no plan",
        loses="each of them stops growth for [pool] plan_wait_s (30 s), and its nodes are not vacated in time (not "
        "measured)",
        wrong="advice",
        seen=lambda site: (
            NOT_SHOWN
            if _LIST not in site.config
            else ",".join(
                f"{key}={value}" for key, value in site.scheduler_parameters.items() if key in _NO_PLAN and value != "0"
            )
            or _UNSET
        ),
        holds=lambda site: all(_value(site, key, 0) <= 0 for key in _NO_PLAN),
        edits=lambda site: _without(*_NO_PLAN)(site),
    ),
    Rule(
        name=f"{_LIST}: sched_interval",
        right="at most [pool] give_back_bound_s (5 s); recommended 1",
        why="what the event of a node given back does not start, the next turn of the main scheduler does",
        loses=f"sched_interval 60: {_SLOW}",
        wrong="advice",
        seen=_seen("sched_interval", "60"),
        holds=lambda site: 0 < _value(site, "sched_interval", 60) <= site.wanted.give_back_bound_s,
        edits=_option("sched_interval", "1"),
    ),
    Rule(
        name=f"{_LIST}: sched_min_interval",
        right="at most 1000000 (1 s)",
        why="two turns of the main scheduler are at least so many microseconds apart",
        loses="a regular job whose nodes have just been given back waits so long",
        wrong="advice",
        seen=_seen("sched_min_interval", "2"),
        holds=lambda site: _value(site, "sched_min_interval", 2) <= 1_000_000,
        edits=_option("sched_min_interval", "0"),
    ),
    Rule(
        name=f"{_LIST}: batch_sched_delay",
        right="0",
        why="a batch job may wait so long before it is first looked at, pilots or not",
        loses=f"batch_sched_delay 3: {_SLOW}; without any pilots 2.6-2.7 s instead of 0.3-0.7 s",
        wrong="advice",
        seen=_seen("batch_sched_delay", "3"),
        holds=lambda site: _value(site, "batch_sched_delay", 3) == 0,
        edits=_option("batch_sched_delay", "0"),
    ),
    Rule(
        name=f"{_LIST}: preempt_youngest_first",
        right="set",
        why="of the pilots that could give a node, the one with the least to lose should",
        loses="Slurm ends the oldest pilots first, whose workers are warm",
        wrong="advice",
        seen=_seen("preempt_youngest_first"),
        holds=lambda site: "preempt_youngest_first" in site.scheduler_parameters,
        edits=_option("preempt_youngest_first"),
    ),
)
