"""A site's backfill scheduler, from the settings that scontrol shows and the last cycle that sdiag shows.

Settings that cannot be read, or that Slurm would reject too, have Slurm's default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from slurm_plugin.read.sdiag import Load
from slurm_plugin.read.settings import number, options
from slurm_plugin.read.types import NO_SCHEDULER, Depth, Scheduler

# Slurm's defaults: a cycle releases the controller's locks at this interval, and then sleeps, in microseconds.
_YIELD_INTERVAL_US, _YIELD_SLEEP_US = 2_000_000, 500_000
# munge refuses messages from a host whose clock differs by more: a larger difference has another cause.
_CLOCKS_APART_MOST_S = 300.0
# The number of cycles whose depth is kept. A cycle that began longer ago than it takes to see that many says nothing
# about today's queue: without waiting jobs Slurm makes none. However short cycles are, sdiag is asked about once in
# half a minute.
_DEPTHS = 3
_SEEN_S = 60.0
# From this release on Slurm plans by other rules than 22.05 (both seen). The releases between were not seen: for them a
# job is rather assumed to fit, as plans are shorter in 22.05.
_NEWER = (24, 11)
_BY_CHOSEN_ENDS = (25, 5)  # 25.05.0 is not told apart from 25.05.1
_ONE_BY_ORDER = (26, 5)


def settings(config: Mapping[str, str], before: Scheduler = NO_SCHEDULER) -> Scheduler:
    """Read the settings of `scontrol show config` by key; the facts on the last cycle in `before` stay."""
    found = options(config.get("SchedulerParameters", ""))
    known = NO_SCHEDULER
    interval_s = _at_least(found, "bf_interval", 1, int(known.interval_s))
    return replace(
        with_rules(before, config.get("SLURM_VERSION", "")),
        read=True,
        interval_s=float(interval_s),
        resolution_s=float(_at_least(found, "bf_resolution", 1, int(known.resolution_s))),
        window_s=60.0 * _at_least(found, "bf_window", 1, int(known.window_s) // 60),
        depth=_at_least(found, "bf_max_job_test", 1, known.depth),
        depth_user=_at_least(found, "bf_max_job_user", 0, 0),
        depth_partition=_at_least(found, "bf_max_job_part", 0, 0),
        depth_user_partition=_at_least(found, "bf_max_job_user_part", 0, 0),
        array_most=_at_least(found, "bf_max_job_array_resv", 0, known.array_most),
        one_plan_a_job="bf_one_resv_per_job" in found,
        reserve_age_s=float(_at_least(found, "bf_min_age_reserve", 0, 0)),
        reserve_priority=_at_least(found, "bf_min_prio_reserve", 0, 0),
        max_time_s=float(_at_least(found, "bf_max_time", 1, interval_s)),
    )


def with_rules(scheduler: Scheduler, release: str) -> Scheduler:
    """Set the rules by which a release ("24.11.5") plans; an unreadable one counts as old."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", release)
    known = (int(found[1]), int(found[2])) if found else (0, 0)
    return replace(
        scheduler,
        newer=known >= _NEWER,
        by_chosen_ends=known >= _BY_CHOSEN_ENDS,
        one_by_order=known >= _ONE_BY_ORDER,
    )


def with_load(
    scheduler: Scheduler, config: Mapping[str, str], load: Load | None, asked: tuple[float, float] | None = None
) -> Scheduler:
    """Add the last cycle as sdiag shows it; None removes it.

    The request lasted from `asked[0]` to `asked[1]` by this host's clock. If the controller's clock differs, its times
    are converted to this host's, and are then never too late.
    """
    if load is None or load.last_cycle_s is None:
        return replace(scheduler, cycle_s=None, cycled_s=None, depths=())
    cycle_s = min(load.last_cycle_s + _slept_s(config, load), scheduler.max_time_s + load.last_cycle_s)
    least_s, most_s = _ahead_s(load, asked)
    cycled_s = None
    if load.cycle_begun_s is not None and not load.works:  # the end of a cycle still at work is unknown
        cycled_s = load.cycle_begun_s + cycle_s
        if load.shown_s is not None and cycled_s > load.shown_s + 1.0:  # it had ended by then, so it slept less
            cycled_s = load.shown_s
        cycled_s -= most_s
    behind_s = max(0.0, -least_s)
    return replace(scheduler, cycle_s=cycle_s, cycled_s=cycled_s, behind_s=behind_s, depths=_depths(scheduler, load))


def _depths(scheduler: Scheduler, load: Load) -> tuple[Depth, ...]:
    """Return the depths of the last few cycles with the one shown now, which counts while at work if it is deepest."""
    begun_s, looked, queued = load.cycle_begun_s, load.last_depth, load.queue_length
    if begun_s is None or looked is None or queued is None:
        return ()
    known = [one for one in scheduler.depths if one.begun_s != begun_s]
    if not load.works or all(looked > one.looked for one in known):
        known.append(Depth(begun_s, looked, queued))
    now_s = begun_s if load.shown_s is None else load.shown_s
    recent_s = now_s - (_DEPTHS + 1) * max(scheduler.interval_s + scheduler.max_time_s, _SEEN_S)
    return tuple(one for one in known[-_DEPTHS:] if one.begun_s >= recent_s)


def _ahead_s(load: Load, asked: tuple[float, float] | None) -> tuple[float, float]:
    """Return the least and the most the controller's clock may be ahead of this host's; (0, 0) if it may be right."""
    if load.shown_s is None or asked is None:
        return 0.0, 0.0
    least_s, most_s = load.shown_s - asked[1], load.shown_s + 1.0 - asked[0]
    apart = 0.0 < least_s < _CLOCKS_APART_MOST_S or 0.0 < -most_s < _CLOCKS_APART_MOST_S
    return (least_s, most_s) if apart else (0.0, 0.0)


def _slept_s(config: Mapping[str, str], load: Load) -> float:
    """Return the time the last cycle slept, which sdiag leaves out: once per yield interval, at most once a job."""
    found = options(config.get("SchedulerParameters", ""))
    interval_us = _at_least(found, "bf_yield_interval", 1, _YIELD_INTERVAL_US)
    sleep_us = _at_least(found, "bf_yield_sleep", 1, _YIELD_SLEEP_US)
    times = int((load.last_cycle_s or 0.0) * 1e6 // interval_us)
    depth = load.mean_depth if load.works else load.last_depth
    return min(times, depth or 0) * sleep_us / 1e6


def _at_least(found: Mapping[str, str], key: str, least: int, default: int) -> int:
    value = number(found.get(key, ""))
    return default if value is None or value < least else value
