"""Rules on the backfill scheduler. The site decides how often and how long it plans; bftd earmarks before a cycle.

The rules cover settings by which the scheduler's plan and bftd's copy of it see different jobs, or a cycle comes too
soon.
"""

from __future__ import annotations

from slurm_plugin.site.helpers import LIST, UNSET, seen_option, set_parameter, value_of
from slurm_plugin.site.model import Site
from slurm_plugin.site.rule import NOT_SHOWN, Rule

BACKFILL = "sched/backfill"
_INTERVAL_S = 30
# bftd looks once a second, and pilots need a moment to leave: with cycles closer than this most earmarks come too late.
_SHORT_S = 5
_NO_PLAN = ("bf_min_age_reserve", "bf_min_prio_reserve")


def backfills(site: Site) -> bool:
    """Whether the site has a backfill scheduler."""
    return site.config["SchedulerType"] == BACKFILL and value_of(site, "bf_interval", _INTERVAL_S) != -1


def _interval_s(site: Site) -> int:
    return value_of(site, "bf_interval", _INTERVAL_S)


def _longest_s(site: Site) -> int:
    """Return the bf_max_time in effect."""
    return value_of(site, "bf_max_time", _interval_s(site))


def _interval_seen(site: Site) -> str:
    text = seen_option("bf_interval", str(_INTERVAL_S))(site)
    if text == NOT_SHOWN or _interval_s(site) >= _SHORT_S:
        return text
    return f"{text}; [pool] spare_nodes {site.wanted.spare_nodes}"


def _load_seen(site: Site) -> str:
    if site.load is None:
        return "no answer"
    return f"{site.load.cycles or 0} cycles, {site.load.mean_depth or 0} jobs deep on average"


def _cycles_end(site: Site) -> bool:
    """Whether cycles complete: by Slurm's own count, if it keeps one, else by the longest cycle."""
    load = site.load
    if load is None:
        return True
    if load.timeouts is not None:
        return load.timeouts == 0
    if load.max_cycle_s is None:
        return True
    # sdiag leaves out the time a cycle slept, and it sleeps at most once a job
    interval_us, sleep_us = _yields(site)
    sleeps = min(load.max_cycle_s * 1e6 // max(1, interval_us), load.mean_depth or 0)
    return load.max_cycle_s + sleeps * sleep_us / 1e6 < _longest_s(site)


def _longest_seen(site: Site) -> str:
    if LIST not in site.config:
        return NOT_SHOWN
    own = site.scheduler_parameters.get("bf_max_time")
    text = own or f"{UNSET} (bf_interval: {_longest_s(site)})"
    if site.load is None or site.load.max_cycle_s is None:
        return text
    ended = f", {site.load.timeouts} ended by it" if site.load.timeouts else ""
    return f"{text}; longest cycle {site.load.max_cycle_s:.2g} s{ended}"


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
        right="answers",
        why="when the last backfill cycle ended and how long it took says when the next one comes, before which "
        "nodes are to be earmarked, and how long an earmark is worth keeping",
        loses="pilots leave earmarked nodes at once instead of at the end of a step, and an earmark that leads to no "
        "start is kept as if cycles took all of bf_max_time (not measured). As a Slurm operator bftd may ask where "
        "users may not",
        wrong="advice",
        seen=_load_seen,
        holds=lambda site: site.load is not None,
        applies=backfills,
    ),
    Rule(
        name=f"{LIST}: bf_interval",
        right=f"yours stays; below {_SHORT_S} with [pool] spare_nodes",
        why="a job that the backfill scheduler finds starts in the same cycle on idle nodes, and a cycle later where "
        "it has to preempt; so bftd earmarks nodes before the cycle, and cycles that come every second or two leave "
        "no time for it",
        loses="bf_interval 1: jobs that the backfill scheduler finds on harvested nodes preempt pilots and start a "
        "second later, and another job may get the slot in that time. With [pool] spare_nodes small ones start on "
        "nodes that were left free for them",
        wrong="advice",
        seen=_interval_seen,
        holds=lambda site: _interval_s(site) >= _SHORT_S or site.wanted.spare_nodes > 0,
        applies=backfills,
    ),
    Rule(
        name="earmark",
        right="true",
        why="pilots leave the nodes of a job that fits before the backfill scheduler's next cycle, which then starts "
        "it",
        loses="a job that the backfill scheduler has to preempt for starts a cycle later at best, with bf_interval 30 "
        "half a minute (3 of 13 jobs in one run, measured), and another job may get its slot in that time",
        wrong="advice",
        seen=lambda site: str(site.wanted.earmark).lower(),
        holds=lambda site: site.wanted.earmark,
        applies=backfills,
    ),
    Rule(
        name=f"{LIST}: bf_max_time",
        right="longer than a cycle takes; yours stays",
        why="a cycle ends then, wherever it is in the queue; unless it is set, that is bf_interval",
        loses="jobs deeper in the queue are never planned or backfilled, pilots or not; bftd earmarks nodes for no "
        "job behind the deepest of the last three cycles that sdiag shows, and where sdiag does not answer for jobs "
        "that none of them reaches, until these are backed off",
        wrong="advice",
        seen=_longest_seen,
        holds=_cycles_end,
        applies=backfills,
    ),
    Rule(
        name=f"{LIST}: bf_continue",
        right="set",
        why="a cycle that lets go of the controller's locks is over, wherever it is in the queue, when anything has "
        "changed meanwhile, and pilots change much; with it the cycle goes on",
        loses="where cycles take longer than bf_yield_interval (2 s), jobs far down the queue get neither a plan nor "
        "an earmark (not measured by itself)",
        wrong="advice",
        seen=seen_option("bf_continue"),
        holds=lambda site: "bf_continue" in site.scheduler_parameters,
        edits=set_parameter("bf_continue"),
    ),
    Rule(
        name=f"{LIST}: bf_resolution",
        right="at most 60; yours stays, and bftd plans in the same steps",
        why="planned starts are rounded to it, windows with them; limits of pilots are whole minutes",
        loses="windows are known less exactly, and fewer short ones can be used; a finer one gains nothing (measured), "
        "and costs the planner time",
        wrong="advice",
        seen=seen_option("bf_resolution", "60"),
        holds=lambda site: value_of(site, "bf_resolution", 60) <= 60,
    ),
    Rule(
        name=f"{LIST}: bf_window",
        right="at least [pool] pilot_limit_s, in minutes; yours stays",
        why="jobs that would start later than that have no plan",
        loses="pilots start on nodes that such a job needs before their limit, and leave when its plan shows (not "
        "measured)",
        wrong="advice",
        seen=seen_option("bf_window", "1440"),
        holds=lambda site: value_of(site, "bf_window", 1440) >= site.wanted.pilot_limit_min,
    ),
    Rule(
        name=f"{LIST}: bf_max_job_test",
        right="at least the length of the queue; yours stays",
        why="a cycle looks at no more jobs than that, and neither does bftd",
        loses="the jobs behind them get neither a plan nor an earmark; whoever of them is started all the same "
        "preempts pilots (not measured)",
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
        right="an interval of at most 5000000 (5 s), and a sleep no longer than it; yours stay",
        why="the planner lets go of the controller's locks every so many microseconds, and sleeps so long",
        loses="the daemon waits so long for each reading, or a cycle sleeps most of its time: plans are as old as it "
        "is long, and earmarks stand as long before they are used (not measured)",
        wrong="advice",
        seen=lambda site: NOT_SHOWN if LIST not in site.config else "{}, {}".format(*_yields(site)),
        holds=lambda site: _yields(site)[1] <= _yields(site)[0] <= 5_000_000,
    ),
    Rule(
        name=f"{LIST}: bf_min_age_reserve, bf_min_prio_reserve",
        right="not set; yours stay",
        why="jobs that are younger, or of lower priority, get no plan",
        loses="bftd does not know when they start: pilots may be on their nodes until they fit at once, and leave only "
        "then (not measured)",
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
