"""Rules on the backfill scheduler, held against what `sdiag` shows of its cycles: a site's own queue comes first.

bf_max_time, the longest that a cycle may take, is bf_interval unless it is set. So whoever lowers bf_interval alone
ends each cycle there, and jobs deep in the queue are never planned or backfilled: the two are only changed together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_plugin.site.model import Site
from slurm_plugin.site.parameters import LIST, UNSET, seen_option, set_parameter, value_of
from slurm_plugin.site.rule import NOT_SHOWN, Edit, Rule

BACKFILL = "sched/backfill"
# Seconds from the submission of a regular job that preempts pilots to its first line.
_SLOW = (
    "a regular job that preempts pilots starts 3.2-5.7 s after its submission instead of 0.4-1.2 s (all of Slurm's "
    "defaults, with GraceTime 10, against a scheduler that works once a second)"
)
_INTERVAL_S = 30
_NO_PLAN = ("bf_min_age_reserve", "bf_min_prio_reserve")
# The planner holds the controller's locks while it works, so it is to rest this many times as long.
_RESTS = 4
# Fewer cycles than that tell of a quiet night: it is most of an hour at Slurm's own interval.
_ENOUGH = 100


def backfills(site: Site) -> bool:
    """Say whether the site has a backfill scheduler."""
    return site.config["SchedulerType"] == BACKFILL and value_of(site, "bf_interval", _INTERVAL_S) != -1


def _interval_s(site: Site) -> int:
    return value_of(site, "bf_interval", _INTERVAL_S)


def _longest_s(site: Site) -> int:
    """The bf_max_time in effect."""
    return value_of(site, "bf_max_time", _interval_s(site))


def _cycle_s(site: Site) -> float | None:
    """How long a cycle takes at worst; None where too few have been seen to say so."""
    if site.load is None or (site.load.cycles or 0) < _ENOUGH:
        return None
    load = site.load
    known = [value for value in (load.last_cycle_s, load.mean_cycle_s, load.max_cycle_s) if value is not None]
    return max(known, default=None)


def _shortest_s(site: Site) -> float:
    """The shortest bf_interval that its cycles allow; infinite where they are not known, or do not end."""
    cycle_s = _cycle_s(site)
    if site.load is None or cycle_s is None or site.load.timeouts:
        return math.inf
    yields = cycle_s // (max(1, value_of(site, "bf_yield_interval", 2_000_000)) / 1e6)
    slept_s = yields * value_of(site, "bf_yield_sleep", 500_000) / 1e6
    return max(1, math.ceil(_RESTS * (cycle_s + slept_s)))


def _interval_seen(site: Site) -> str:
    text = seen_option("bf_interval", str(_INTERVAL_S))(site)
    cycle_s = _cycle_s(site)
    if text == NOT_SHOWN:
        return text
    if site.load is None or cycle_s is None:
        return f"{text}; how long a cycle takes is not known, so keep it"
    if site.load.timeouts:
        return f"{text}; {site.load.timeouts} cycles were ended by bf_max_time, so keep it"
    keep = ", so keep it" if _shortest_s(site) >= _interval_s(site) > site.wanted.vacate_ahead_s else ""
    return f"{text}; longest cycle {cycle_s:.2g} s{keep}"


def _interval_edits(site: Site) -> Sequence[Edit]:
    """A shorter interval where cycles are short, and in any case as long a cycle as before."""
    if (shortest_s := _shortest_s(site)) >= _interval_s(site):
        return ()
    edits = (Edit("slurm.conf", LIST, "bf_interval", str(int(shortest_s))),)
    if "bf_max_time" in site.scheduler_parameters:
        return edits
    return (*edits, Edit("slurm.conf", LIST, "bf_max_time", str(max(_INTERVAL_S, _interval_s(site)))))


def _cycles_end(site: Site) -> bool:
    """Say whether cycles are over well before bf_max_time, or may take as long as Slurm lets them by default."""
    if site.load is not None and site.load.timeouts:
        return False
    if "bf_max_time" in site.scheduler_parameters or _longest_s(site) >= _INTERVAL_S:
        return True
    cycle_s = _cycle_s(site)
    return cycle_s is not None and 2 * cycle_s <= _longest_s(site)


def _longest_seen(site: Site) -> str:
    if LIST not in site.config:
        return NOT_SHOWN
    own = site.scheduler_parameters.get("bf_max_time")
    text = own or f"{UNSET} (bf_interval: {_longest_s(site)})"
    if site.load is None or site.load.max_cycle_s is None:
        return text
    ended = f", {site.load.timeouts} ended by it" if site.load.timeouts else ""
    return f"{text}; longest cycle {site.load.max_cycle_s:.2g} s{ended}"


def _longest_edits(site: Site) -> Sequence[Edit]:
    """A site's own bf_max_time stays."""
    if "bf_max_time" in site.scheduler_parameters or _longest_s(site) >= _INTERVAL_S:
        return ()
    return set_parameter("bf_max_time", str(_INTERVAL_S))(site)


def _depth_seen(site: Site) -> str:
    text = seen_option("bf_max_job_test", "500")(site)
    if text == NOT_SHOWN or site.load is None or site.load.queue_length is None:
        return text
    return f"{text}; {site.load.queue_length} jobs in the queue"


def _yields(site: Site) -> tuple[int, int]:
    return value_of(site, "bf_yield_interval", 2_000_000), value_of(site, "bf_yield_sleep", 500_000)


RULES: tuple[Rule, ...] = (
    Rule(
        name="sdiag",
        right=f"shows at least {_ENOUGH} backfill cycles",
        why="how long they take says what a site can afford; without it bft site config leaves bf_interval alone",
        loses="it is not known how long cycles take, how deep they look and how many requests come: look at sdiag some "
        "busy hours after its counters were reset (at midnight UTC), as a Slurm operator where users may not",
        wrong="advice",
        seen=lambda site: (
            "no answer"
            if site.load is None
            else f"{site.load.cycles or 0} cycles, {site.load.mean_depth or 0} jobs deep on average"
        ),
        holds=lambda site: _cycle_s(site) is not None,
        applies=backfills,
    ),
    Rule(
        name=f"{LIST}: bf_interval",
        right=f"at most [pool] vacate_ahead_s (5 s), where that is {_RESTS} times the longest cycle; else as it is",
        why="pilots leave a node that long before its planned start, so the plan must not be older; and none starts "
        "while a job waits for its first plan",
        loses=f"bf_interval 30: a job that the backfill scheduler preempts for starts 30 s later, not 1 s; each "
        f"regular job that queues stops all growth for up to 30 s, pilots of sbatch start only every 30 s, and {_SLOW}",
        wrong="advice",
        seen=_interval_seen,
        holds=lambda site: _interval_s(site) <= site.wanted.vacate_ahead_s,
        edits=_interval_edits,
        applies=backfills,
    ),
    Rule(
        name=f"{LIST}: bf_max_time",
        right="as long as before, and at least 30 where bf_interval is below; or cycles half as long at most",
        why="a cycle ends then, wherever it is in the queue; unless it is set, that is bf_interval",
        loses="jobs deeper in the queue are never planned or backfilled: regular jobs wait, and bftd knows of no plan "
        "for them, so that each stops growth for [pool] plan_wait_s (30 s)",
        wrong="advice",
        seen=_longest_seen,
        holds=_cycles_end,
        edits=_longest_edits,
        applies=backfills,
    ),
    Rule(
        name=f"{LIST}: bf_continue",
        right="set",
        why="else the planner starts again from the top of the queue whenever anything changes, and pilots change much",
        loses="jobs far down a long queue get no plan, and a job without one stops growth for [pool] plan_wait_s (30 s)"
        " (not measured by itself)",
        wrong="advice",
        seen=seen_option("bf_continue"),
        holds=lambda site: "bf_continue" in site.scheduler_parameters,
        edits=set_parameter("bf_continue"),
    ),
    Rule(
        name=f"{LIST}: bf_resolution",
        right="at most 60; a site's own coarser one stays",
        why="planned starts are rounded to it, windows with them; limits of pilots are whole minutes",
        loses="windows are known less exactly, and fewer short ones can be used; a finer one gains nothing (measured), "
        "and costs the planner time",
        wrong="advice",
        seen=seen_option("bf_resolution", "60"),
        holds=lambda site: value_of(site, "bf_resolution", 60) <= 60,
    ),
    Rule(
        name=f"{LIST}: bf_window",
        right="at least [pool] pilot_limit_s, in minutes",
        why="jobs that would start later than that have no plan",
        loses="pilots start on nodes that such a job needs before their limit, and each of these jobs stops growth for "
        "[pool] plan_wait_s (30 s) (not measured)",
        wrong="advice",
        seen=seen_option("bf_window", "1440"),
        holds=lambda site: value_of(site, "bf_window", 1440) >= site.wanted.pilot_limit_min,
    ),
    Rule(
        name=f"{LIST}: bf_max_job_test",
        right="at least the length of the queue; a site's own limit stays",
        why="a cycle looks at no more jobs than that",
        loses="each job behind them has no plan, and stops growth for [pool] plan_wait_s (30 s) (not measured)",
        wrong="advice",
        seen=_depth_seen,
        holds=lambda site: (
            site.load is None
            or site.load.queue_length is None
            or site.load.queue_length <= value_of(site, "bf_max_job_test", 500)
        ),
    ),
    Rule(
        name=f"{LIST}: bf_yield_interval, bf_yield_sleep",
        right="an interval of at most 5000000 (5 s), and a sleep no longer than it",
        why="the planner lets go of the controller's locks every so many microseconds, and sleeps so long",
        loses="the daemon waits so long for each reading, or plans are as old as a cycle that sleeps most of its time "
        "(not measured)",
        wrong="advice",
        seen=lambda site: NOT_SHOWN if LIST not in site.config else "{}, {}".format(*_yields(site)),
        holds=lambda site: _yields(site)[1] <= _yields(site)[0] <= 5_000_000,
    ),
    Rule(
        name=f"{LIST}: bf_min_age_reserve, bf_min_prio_reserve",
        right="not set; a site's own stay",
        why="jobs that are younger, or of lower priority, get no plan",
        loses="each of them stops growth for [pool] plan_wait_s (30 s), and its nodes are not vacated in time (not "
        "measured)",
        wrong="advice",
        seen=lambda site: (
            NOT_SHOWN
            if LIST not in site.config
            else ",".join(
                f"{key}={value}" for key, value in site.scheduler_parameters.items() if key in _NO_PLAN and value != "0"
            )
            or UNSET
        ),
        holds=lambda site: all(value_of(site, key, 0) <= 0 for key in _NO_PLAN),
    ),
)
