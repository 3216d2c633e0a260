"""How often and how far a site plans stays its own; what `sdiag` shows of its cycles is told, and changes no line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin.read import sdiag
from slurm_plugin.site import RULES, advise, check, render
from slurm_plugin.site.model import Site
from tests.slurm_plugin.site.sites import ASSETS, LOAD, recorded, setting

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


OWN = ("bf_interval", "bf_max_time", "bf_resolution", "bf_window", "sched_interval", "batch_sched_delay")
RULES_BY_NAME = {rule.name.partition(": ")[2]: rule for rule in RULES if rule.name.startswith("SchedulerParameters")}


def under(cycle_s: float, parameters: str = "(null)", depth: int = 1000) -> Site:
    """A site with Slurm's own settings but for these, whose backfill cycles take so long and look so deep."""
    load = sdiag.Load(
        cycles=100, last_cycle_s=cycle_s / 2, mean_cycle_s=cycle_s / 4, max_cycle_s=cycle_s, mean_depth=depth
    )
    return replace(setting("SchedulerParameters", parameters)(recorded("stock")), load=load)


def wrong(site: Site) -> set[str]:
    """The names of what is found wrong with SchedulerParameters, but for the two that get a line."""
    found = {finding.rule.name.partition(": ")[2] for finding in check(site, RULES) if finding.level != "ok"}
    return found & RULES_BY_NAME.keys() - {"bf_continue", "preempt_youngest_first"}


def test_what_each_release_prints_is_read() -> None:
    old = sdiag.parse((ASSETS / "22.05" / "recommended" / "sdiag.txt").read_text())
    cycles = (5, 0.000133, 0.00053, 0.001822, 3, 2, None, 0.000141)
    assert old == sdiag.Load(*cycles, 3, 3.25, 1795315108.0, 2, shown_s=1795315108.0)
    new = sdiag.parse(NEWER)
    assert new == sdiag.Load(
        289, 25.136753, 7.318652, 61.0, 3024, 2713, 9, 2.401776, 12, 2.0, None, 2534, True, 1741082400.0
    )


@given(st.text(), st.integers(0, len(NEWER)))
def test_what_is_no_output_of_sdiag_is_nothing_known(text: str, cut: int) -> None:
    assert sdiag.parse(text) is None
    found = sdiag.parse(NEWER[:cut])
    assert found is None or (found.timeouts in (None, 9) and found.cycles in (None, 289, 28, 2))


@pytest.mark.parametrize(
    "parameters", ["(null)", "bf_interval=10", "bf_interval=60", "bf_interval=120,bf_max_time=60,batch_sched_delay=5"]
)
def test_a_site_s_own_pace_is_right_as_it_is_and_gets_no_line(parameters: str) -> None:
    for load in (under(0.5).load, replace(LOAD, cycles=0) if LOAD else None):
        site = replace(under(0.0, parameters), load=load)
        assert wrong(site) == set()
        own = {key: value for key, value in site.scheduler_parameters.items() if key != "(null)"}
        after = advise(site, RULES).after.scheduler_parameters
        assert after == {**own, "preempt_youngest_first": "", "bf_continue": ""}


@settings(deadline=None)
@given(
    st.floats(0, 300),
    st.dictionaries(st.sampled_from(OWN), st.integers(1, 600)),
    st.sampled_from([0, 99, 100, None]),
)
def test_no_line_changes_how_often_and_how_far_a_site_plans(
    cycle_s: float, options: dict[str, int], cycles: int | None
) -> None:
    text = ",".join(f"{key}={value}" for key, value in options.items()) or "(null)"
    site = under(cycle_s, text)
    site = replace(site, load=None if cycles is None or site.load is None else replace(site.load, cycles=cycles))
    after = advise(site, RULES).after.scheduler_parameters
    assert {key: after.get(key) for key in OWN} == {key: site.scheduler_parameters.get(key) for key in OWN}


@pytest.mark.parametrize(("interval_s", "spare", "right"), [(1, 0, False), (4, 0, False), (1, 2, True), (5, 0, True)])
def test_cycles_that_come_too_soon_for_earmarks_want_spare_nodes(interval_s: int, spare: int, right: bool) -> None:
    site = under(0.1, f"bf_interval={interval_s}")
    site = replace(site, wanted=replace(site.wanted, spare_nodes=spare))
    assert wrong(site) == (set() if right else {"bf_interval"})
    assert ("spare_nodes" in RULES_BY_NAME["bf_interval"].seen(site)) == (interval_s < 5)


@pytest.mark.parametrize(
    ("cycle_s", "parameters", "depth", "right"),
    [
        (20.0, "(null)", 1000, True),  # and 5 s of sleep: half a second after each 2 s
        (26.0, "(null)", 1000, False),
        (26.0, "(null)", 0, True),  # a cycle that looks at no job does not sleep
        (26.0, "bf_max_time=60", 1000, True),
        (0.5, "bf_yield_interval=1,bf_yield_sleep=1000000", 20, True),
        (0.5, "bf_yield_interval=1,bf_yield_sleep=1000000", 30, False),
        (8.0, "bf_interval=5", 1000, False),
    ],
)
def test_cycles_that_do_not_come_to_their_end_are_told(
    cycle_s: float, parameters: str, depth: int, right: bool
) -> None:
    assert ("bf_max_time" not in wrong(under(cycle_s, parameters, depth))) == right


def test_where_slurm_counts_the_cycles_that_bf_max_time_ended_its_count_decides() -> None:
    for timeouts, cycle_s in ((3, 0.5), (0, 29.0)):
        site = under(cycle_s)
        assert site.load is not None
        site = replace(site, load=replace(site.load, timeouts=timeouts))
        assert ("bf_max_time" in wrong(site)) == bool(timeouts)
        assert ("3 ended by it" in RULES_BY_NAME["bf_max_time"].seen(site)) == bool(timeouts)


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
