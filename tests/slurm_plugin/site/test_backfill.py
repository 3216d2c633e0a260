"""What a site's backfill scheduler can afford, by its own `sdiag`: cycles are never cut, nor made too frequent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin import sdiag
from slurm_plugin.settings import number
from slurm_plugin.site import RULES, advise, render
from slurm_plugin.site.model import Site
from tests.slurm_plugin.site.sites import ASSETS, recorded, setting

# As releases after 22.05 print it, with the section on why cycles ended.
NEWER = """\
*******************************************************
sdiag output at Tue Mar 04 10:00:00 2025 (1741082400)
Data since      Tue Mar 04 01:00:00 2025 (1741050000)
*******************************************************
Server thread count:  12
RPC queue enabled:    0
Agent queue size:     0

Main schedule statistics (microseconds):
\tLast cycle:   17276
\tMax cycle:    2401776
\tTotal cycles: 9000
\tMean cycle:   29000
\tMean depth cycle:  314
\tCycles per minute: 13
\tLast queue length: 2176

Main scheduler exit:
\tEnd of job queue: 8000
\tHit default_queue_depth: 1000
\tTimeout (max_sched_time): 7

Backfilling stats (WARNING: data obtained in the middle of backfilling execution.)
\tTotal backfilled jobs (since last slurm start): 3310
\tTotal cycles: 289
\tLast cycle when: N/A
\tLast cycle: 25136753
\tMax cycle:  61000000
\tMean cycle: 7318652
\tLast depth cycle: 2534
\tLast depth cycle (try sched): 60
\tDepth Mean: 3024
\tDepth Mean (try depth): 62
\tLast queue length: 2713
\tQueue length mean: 2600

Backfill exit
\tEnd of job queue: 280
\tHit bf_max_job_start: 0
\tHit bf_max_job_test: 0
\tTimeout (bf_max_time): 9

Latency for 1000 calls to gettimeofday(): 25 microseconds

Remote Procedure Call statistics by message type
\tREQUEST_PARTITION_INFO                  ( 2009) count:32400  ave_time:108    total_time:216
\tREQUEST_JOB_INFO                        ( 2003) count:32400  ave_time:143    total_time:143

Remote Procedure Call statistics by user
\troot            (       0) count:64800  ave_time:445    total_time:5794
"""


def under(cycle_s: float, parameters: str = "(null)") -> Site:
    """A site with Slurm's own settings but for these, whose backfill cycles take so long."""
    load = sdiag.Load(cycles=100, last_cycle_s=cycle_s / 2, mean_cycle_s=cycle_s / 4, max_cycle_s=cycle_s)
    return replace(setting("SchedulerParameters", parameters)(recorded("stock")), load=load)


def parameters_of(site: Site) -> dict[str, str]:
    return advise(site, RULES).after.scheduler_parameters


def in_effect(parameters: dict[str, str]) -> tuple[int, int]:
    """bf_interval and bf_max_time as slurmctld takes them."""
    interval_s = number(parameters.get("bf_interval", "")) or 30
    return interval_s, number(parameters.get("bf_max_time", "")) or interval_s


def test_what_each_release_prints_is_read() -> None:
    old = sdiag.parse((ASSETS / "22.05" / "recommended" / "sdiag.txt").read_text())
    assert old == sdiag.Load(5, 0.000133, 0.00053, 0.001822, 3, 2, None, 0.000141, 3, 3.25, 1795315108.0, 2)
    new = sdiag.parse(NEWER)
    assert new == sdiag.Load(289, 25.136753, 7.318652, 61.0, 3024, 2713, 9, 2.401776, 12, 2.0, None, 2534, True)


@given(st.text(), st.integers(0, len(NEWER)))
def test_what_is_no_output_of_sdiag_is_nothing_known(text: str, cut: int) -> None:
    assert sdiag.parse(text) is None
    found = sdiag.parse(NEWER[:cut])
    assert found is None or (found.timeouts in (None, 9) and found.cycles in (None, 289, 28, 2))


@pytest.mark.parametrize(
    ("cycle_s", "parameters", "expected"),
    [
        (0.0005, "(null)", (1, 30)),
        (0.3, "(null)", (2, 30)),
        (1.0, "bf_interval=60", (4, 60)),
        (1.0, "bf_interval=60,bf_max_time=45", (4, 45)),
        (3.0, "(null)", (14, 30)),  # it sleeps half a second in between, by Slurm's defaults
        (8.0, "(null)", (30, 30)),
        (20.0, "bf_max_time=300", (30, 300)),
        (20.0, "bf_interval=120", (100, 120)),
        (0.5, "bf_interval=5", (5, 5)),
    ],
)
def test_regression_backfill_cycles_are_never_cut_to_a_second(
    cycle_s: float, parameters: str, expected: tuple[int, int]
) -> None:
    assert in_effect(parameters_of(under(cycle_s, parameters))) == expected


@settings(deadline=None)
@given(
    st.floats(0, 300),
    st.dictionaries(st.sampled_from(["bf_interval", "bf_max_time", "bf_yield_sleep"]), st.integers(1, 600)),
    st.sampled_from([100, 99, None]),
)
def test_no_line_shortens_a_cycle_or_lets_the_planner_work_more_than_a_fifth_of_the_time(
    cycle_s: float, options: dict[str, int], cycles: int | None
) -> None:
    text = ",".join(f"{key}={value}" for key, value in options.items()) or "(null)"
    site = under(cycle_s, text)
    assert site.load is not None
    site = replace(site, load=cycles and replace(site.load, cycles=cycles))
    before, after = in_effect(site.scheduler_parameters), in_effect(parameters_of(site))
    assert after[1] >= before[1]
    assert after[0] == before[0] or (after[0] < before[0] and after[0] >= 4 * cycle_s)
    assert cycles == 100 or after[0] == before[0], "a quiet night tells nothing"


def test_cycles_that_bf_max_time_ends_are_left_alone_and_told() -> None:
    site = under(0.5)
    assert site.load is not None
    site = replace(site, load=replace(site.load, timeouts=3))
    assert in_effect(parameters_of(site)) == (30, 30)
    assert "3 cycles were ended by bf_max_time, so keep it" in RULES_BY_NAME["bf_interval"].seen(site)
    assert not RULES_BY_NAME["bf_max_time"].holds(site)


RULES_BY_NAME = {rule.name.partition(": ")[2]: rule for rule in RULES if rule.name.startswith("SchedulerParameters")}


def test_regression_a_site_s_own_choices_stay() -> None:
    own = (
        "bf_resolution=600,bf_min_prio_reserve=1000,sched_interval=120,sched_min_interval=2000000,defer,max_rpc_cnt=150"
    )
    site = under(20.0, own)
    site = setting("MessageTimeout", "60 sec")(setting("KillWait", "60 sec")(site))
    printed = render(advise(site, RULES), "slurm.conf").splitlines()
    (line,) = (line for line in printed if line.startswith("SchedulerParameters="))
    assert line == f"SchedulerParameters={own},preempt_youngest_first,bf_continue"
    assert not [line for line in printed if line.startswith(("KillWait", "MessageTimeout", "SchedulerType"))]
    assert 'pilot_mode = "sbatch"' in render(advise(site, RULES), "bftd.toml"), "with defer nothing is granted at once"
