"""What is kept for whom from poll to poll, with a copy of the planner that says what the test says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.core.model.domain import Earmark, EarmarkOver
from bftd.pool.availability import Availability
from bftd.pool.backfill.model import Component, Numbering, PlannerOutcome, QueueEntry
from bftd.pool.earmarks import EarmarkMemory, JobBackoff, awake, earmark_wait_s, given_up, key
from bftd.pool.harvest import Harvest
from bftd.pool.occupancy import Occupancy, occupy
from bftd.pool.prediction import earmark_nodes
from slurm_plugin.read.types import Job, Scheduler, Snapshot
from tests.bftd.builders import PARTITION, job, node, pilot

pytestmark = pytest.mark.slow

# A cycle every 10 s: two of them and some slack are 25 s.
SCHEDULER = Scheduler(read=True, interval_s=10.0, cycle_s=0.0)
WAIT_S = 25


_COMPLETING = frozenset({"COMPLETING"})


class Site:
    """Six harvested nodes and one beside them; `fits` are the nodes on which the copy lets a job start, by id."""

    def __init__(self, scheduler: Scheduler = SCHEDULER) -> None:
        self.scheduler = scheduler
        self.memory = EarmarkMemory()
        self.time_s = 1000.0
        self.waits: list[Job] = []
        self.runs: list[Job] = []
        self.completing: dict[str, str] = {}
        self.leased: dict[str, str | None] = {}
        self.fits: dict[str, Collection[str]] = {}
        self.broken: Exception | None = None
        self.cut = ""
        self.barred: Collection[str] = ()
        self.within: dict[str, Collection[str]] = {}
        self.asked: dict[str, Any] = {}

    def copy(
        self, snapshot: Snapshot, jobs: Occupancy, ground: Availability, **asked: Any
    ) -> tuple[Sequence[QueueEntry], PlannerOutcome]:
        """Stands for the copy of the planner: a job starts where the test says, unless it is backed off."""
        self.asked = asked
        if self.broken is not None:
            raise self.broken
        entries = [self.entry(one.id, ground) for one in jobs.pending]
        now = {
            one.id: ground.numbering.mask(self.fits[one.id])
            for one in jobs.pending
            if one.id in self.fits and key(one.id) not in asked["backed_off"]
        }
        return entries, PlannerOutcome(now=now, cut=self.cut)

    def entry(self, id_: str, ground: Availability) -> QueueEntry:
        """A job that may use all nodes, in a partition of all nodes or of those `within`."""
        within = ground.numbering.mask(self.within[id_]) if id_ in self.within else -1
        part = Component(ground.numbering.mask(ground.nodes), max(1, len(self.fits.get(id_, ()))), within=within)
        return QueueEntry(id_, (part,), 600.0, 600.0, barred=id_ in self.barred)

    def poll(self, after_s: float = 1.0) -> tuple[dict[str, Earmark], list[tuple[str, str]]]:
        """One snapshot: the earmarks by job, and the ends of those that are over."""
        self.time_s += after_s
        busy = {name for one in self.runs for name in one.nodes} | self.leased.keys()
        nodes = [node(f"n{index}", "ALLOCATED" if f"n{index}" in busy else "IDLE") for index in range(1, 7)]
        nodes += [node("x1", partitions=("batch",))]
        nodes = [replace(one, flags=_COMPLETING) if one.name in self.completing else one for one in nodes]
        pilots = [pilot(id_, name) for name, id_ in self.leased.items() if id_]
        jobs = (*self.waits, *self.runs, *pilots)
        snapshot = Snapshot(self.time_s, {one.name: one for one in nodes}, jobs, (), scheduler=self.scheduler)
        harvest = Harvest.of(PARTITION)
        self.memory, over = earmark_nodes(
            self.memory, snapshot, occupy(snapshot, harvest), harvest, self.leased, self.copy
        )
        self.over = over
        return self.memory.earmarks, [(one.earmark.job, one.end) for one in over]

    def polls(self, count: int) -> list[tuple[dict[str, Earmark], list[tuple[str, str]]]]:
        """That many, a second apart."""
        return [self.poll() for _ in range(count)]


def waiting(*ids: str, fits: Collection[str] = ("n1",), scheduler: Scheduler = SCHEDULER) -> Site:
    """A site where these jobs wait, each of which could start on the same nodes."""
    site = Site(scheduler)
    site.waits = [job(id_) for id_ in ids]
    site.fits = dict.fromkeys(ids, fits)
    return site


def test_nodes_are_earmarked_for_a_job_that_could_start_and_pilots_are_on_the_nodes_that_it_says() -> None:
    site = waiting("9", fits=("n1", "n2"))
    site.leased = {"n2": "71", "n3": "72"}
    earmarks, over = site.poll()
    assert earmarks == {"9": Earmark("9", ("n1", "n2"), 1001.0, leaving=("n2",))}
    assert over == []


def test_an_earmark_is_kept_since_it_was_made() -> None:
    site = waiting("9", fits=("n1", "n2"))
    site.leased = {"n2": "71"}
    site.poll()
    site.leased = {}
    earmarks, over = site.poll()
    assert earmarks["9"] == Earmark("9", ("n1", "n2"), 1001.0, leaving=("n2",)), "the pilot was there when it was made"
    assert over == []


def test_an_earmark_moves_with_what_the_copy_says_and_counts_as_the_same() -> None:
    site = waiting("9", fits=("n1", "n2"))
    site.poll()
    site.fits, site.leased = {"9": ("n2", "n3")}, {"n3": "71"}
    earmarks, over = site.poll()
    assert earmarks["9"] == Earmark("9", ("n2", "n3"), 1001.0, leaving=("n3",))
    assert over == []


def test_an_earmark_is_over_when_its_job_no_longer_fits() -> None:
    site = waiting("9")
    site.poll()
    site.fits = {}
    assert site.poll() == ({}, [("9", "no longer fits")])
    assert site.poll() == ({}, [])


@pytest.mark.parametrize("where", ["n1", "n5", "x1"])
def test_an_earmark_is_over_when_its_job_has_started_wherever_that_is(where: str) -> None:
    site = waiting("9")
    before, _ = site.poll()
    site.waits, site.runs = [job("10")], [job("9", "RUNNING", nodes=(where,))]
    assert site.poll() == ({}, [("9", "started")])
    assert site.over == (EarmarkOver(before["9"], "started"),)


def test_an_earmark_is_over_when_its_job_is_gone_also_where_nobody_waits_any_more() -> None:
    for others in ([], [job("10")]):
        site = waiting("9")
        site.poll()
        site.waits = others
        assert site.poll() == ({}, [("9", "gone")])


def test_nodes_that_are_not_harvested_are_in_no_earmark() -> None:
    site = waiting("9", fits=("n1", "x1"))
    earmarks, _ = site.poll()
    assert earmarks["9"].nodes == ("n1",)
    site.fits = {"9": ("x1",)}
    assert site.poll() == ({}, [("9", "no longer fits")])
    site.waits, site.runs = [], [job("9", "RUNNING", nodes=("x1",))]
    assert site.poll() == ({}, []), "what was never kept is not over"


def test_a_job_that_does_not_start_within_two_cycles_is_backed_off_and_loses_its_earmark() -> None:
    site = waiting("9")
    for earmarks, over in site.polls(WAIT_S + 1):
        assert (earmarks.keys(), over) == ({"9"}, [])
    assert site.poll() == ({}, [("9", "backed off")])
    site.poll()
    assert site.asked["backed_off"] == {"9"}


def backoff_s(site: Site, most_s: int) -> int:
    """How long the job is backed off that just lost its earmark."""
    for second in range(1, most_s):
        if site.poll()[0]:
            return second
    return most_s


def test_a_backed_off_job_is_tried_again_after_a_while_that_doubles_and_is_never_longer_than_an_hour() -> None:
    site = waiting("9")
    site.polls(WAIT_S + 2)
    whiles = []
    for _ in range(9):
        whiles.append(backoff_s(site, 4000))
        site.polls(WAIT_S)
        assert site.poll() == ({}, [("9", "backed off")])
    assert whiles == [50, 100, 200, 400, 800, 1600, 3200, 3600, 3600]


def test_a_backed_off_job_is_tried_again_at_once_when_a_node_is_ready_that_was_not_three_times_at_most() -> None:
    site = waiting("9")
    others = [job(f"3{index}", "RUNNING", nodes=(f"n{index}",)) for index in range(2, 7)]
    site.runs = others
    woken = 0
    for ended in range(5):
        assert ("9", "backed off") in [end for _, over in site.polls(WAIT_S + 2) for end in over]
        assert site.polls(5) == [({}, [])] * 5
        site.runs = others[ended + 1 :]
        earmarks, _ = site.poll()
        if not earmarks:
            break
        woken += 1
    assert woken == 3


def test_a_node_that_was_ready_before_or_that_the_job_may_not_use_ends_no_backoff() -> None:
    site = waiting("9")
    site.leased = {"n2": "71"}
    site.polls(WAIT_S + 2)
    site.leased = {}  # the pilot has left, and the node is as ready as it was
    assert site.polls(10) == [({}, [])] * 10


def test_a_node_that_ends_a_backoff_and_is_taken_again_leaves_the_earmark_as_it_is() -> None:
    site = waiting("9")
    site.runs = [job("5", "RUNNING", nodes=("n2",))]
    site.polls(WAIT_S + 2)
    site.runs = []
    assert site.poll()[0].keys() == {"9"}
    site.runs = [job("6", "RUNNING", nodes=("n2",))]
    assert site.poll() == ({"9": site.memory.earmarks["9"]}, [])


def test_regression_a_job_that_fits_at_every_other_poll_did_not_make_pilots_leave_and_come_for_ever() -> None:
    site = waiting("9")
    ends = []
    for poll in range(3600):
        site.fits = {"9": ("n1",)} if poll % 2 else {}
        ends += site.poll()[1]
    assert ends[:4] == [("9", "no longer fits")] * 3 + [("9", "backed off")]
    assert len(ends) <= 4 * 7, "in an hour: the backoff doubles"


def test_regression_a_job_that_fits_in_turns_is_tried_again_and_keeps_its_earmark_once_it_fits_for_good() -> None:
    site = waiting("9")
    for poll in range(8):
        site.fits = {"9": ("n1",)} if not poll % 2 else {}
        site.poll()
    assert site.memory.backoffs
    site.fits = {"9": ("n1",)}
    assert site.poll() == ({}, [])
    site.poll(2 * WAIT_S)
    assert site.polls(WAIT_S - 1)[-1][0].keys() == {"9"}


@pytest.mark.parametrize("ended", ["starts", "late", "gone"])
def test_an_earmark_that_is_over_now_and_then_or_led_to_a_start_backs_nobody_off(ended: str) -> None:
    site = waiting("9_[1-99]")
    for poll in range(20):
        site.fits = {"9_[1-99]": ("n1",)}
        site.poll()
        if ended == "starts":
            site.runs = [job(f"9_{100 + poll}", "RUNNING", nodes=("n2",))]
            site.poll()
            site.runs = []
        elif ended == "gone":
            site.waits = []
            site.poll()
            site.waits = [job("9_[1-99]")]
        site.fits = {}
        site.poll(WAIT_S + 1.0 if ended == "late" else 1.0)
    assert not site.memory.backoffs


def test_a_job_that_is_back_in_the_queue_starts_without_backoff() -> None:
    site = waiting("9")
    site.polls(WAIT_S + 2)
    gone, site.waits = site.waits, []
    site.poll()
    site.waits = gone
    assert site.poll()[0].keys() == {"9"}


def test_an_array_is_known_by_its_own_id_and_each_task_that_starts_gives_the_others_time() -> None:
    site = Site()
    site.waits, site.fits = [job("9_[1-3]")], {"9_[1-3]": ("n1", "n2", "n3"), "9_[2-3]": ("n2", "n3")}
    earmarks, _ = site.poll()
    assert earmarks.keys() == {"9"}
    site.polls(20)
    site.waits, site.runs = [job("9_[2-3]")], [job("9_1", "RUNNING", nodes=("n1",), start_s=site.time_s)]
    earmarks, over = site.poll()
    assert (earmarks["9"].nodes, earmarks["9"].since_s, over) == (("n2", "n3"), site.time_s, [("9", "started")])
    assert site.polls(20)[-1] == ({"9": earmarks["9"]}, []), "a task that runs on is no other start"


def test_a_task_that_runs_already_is_no_start_of_the_others() -> None:
    site = Site()
    site.waits, site.fits = [job("9_[2-3]")], {"9_[2-3]": ("n2", "n3")}
    site.runs = [job("9_1", "RUNNING", nodes=("n1",), start_s=500.0)]
    assert [over for _, over in site.polls(5)] == [[]] * 5
    site.waits, site.runs = [], [*site.runs, job("9_2", "RUNNING", nodes=("n5",)), job("9_3", "RUNNING", nodes=("n6",))]
    assert site.poll() == ({}, [("9", "started")])


def test_a_heterogeneous_job_is_one() -> None:
    site = Site()
    site.waits, site.fits = [job("9+0"), job("9+1")], {"9+0": ("n1", "n2")}
    assert site.poll()[0].keys() == {"9"}
    site.waits, site.runs = [], [job("9+0", "RUNNING", nodes=("n1",)), job("9+1", "RUNNING", nodes=("n2",))]
    assert site.poll() == ({}, [("9", "started")])


def test_an_earmark_stays_while_its_job_cannot_be_read_and_no_longer_than_two_cycles() -> None:
    site = waiting("9")
    site.poll()
    site.waits, site.fits = [replace(site.waits[0], unreadable="cut in the middle")], {}
    assert all(earmarks for earmarks, _ in site.polls(WAIT_S))
    assert site.poll() == ({}, [("9", "backed off")])


def test_when_the_clock_is_set_an_earmark_has_been_kept_no_longer_and_a_backoff_ends_no_sooner() -> None:
    moved, straight = (waiting("9", "10", fits=("n1",)) for _ in range(2))
    for site in (moved, straight):
        del site.fits["10"]
        site.polls(WAIT_S + 2)
        site.fits["10"] = ("n2",)
        site.polls(10)
    moved.time_s += 5000.0
    moved.memory = moved.memory.moved(5000.0)
    for _ in range(200):
        earmarks, over = moved.poll()
        earmarks_, over_ = straight.poll()
        assert (earmarks.keys(), over) == (earmarks_.keys(), over_)


def test_a_time_at_which_pilots_must_leave_moves_with_the_clock() -> None:
    site = waiting("8", "9")
    del site.fits["8"]
    site.scheduler = replace(SCHEDULER, cycled_s=1000.0)
    earmarks, _ = site.poll()
    assert earmarks["9"].due_s == 1010.0
    assert site.memory.moved(-50.0).earmarks["9"].due_s == 960.0


def test_a_copy_that_breaks_earmarks_no_nodes_and_takes_none_away_before_its_time() -> None:
    site = waiting("9")
    site.poll()
    site.waits.append(job("10"))
    site.fits["10"] = ("n2",)
    site.broken = ZeroDivisionError("a bug")
    for _ in range(WAIT_S):
        earmarks, over = site.poll()
        assert (earmarks.keys(), over) == ({"9"}, [])
        assert site.memory.fault is site.broken
    assert site.poll() == ({}, [("9", "backed off")])


@pytest.mark.parametrize(("runs", "end"), [([job("9", "RUNNING", nodes=("n1",))], "started"), ([], "gone")])
def test_while_the_copy_is_broken_an_earmark_is_over_with_its_job(runs: list[Job], end: str) -> None:
    site = waiting("9")
    site.poll()
    site.broken = ZeroDivisionError("a bug")
    site.waits, site.runs = [job("10")], runs
    assert site.poll() == ({}, [("9", end)])
    site.broken = None
    site.poll()
    assert site.memory.fault is None


def test_where_nobody_waits_for_a_harvested_node_the_copy_is_not_asked() -> None:
    site = Site()
    site.broken = ZeroDivisionError("asked")
    site.waits = [job("9", partition=("fat",))]
    site.poll()
    assert site.memory.fault is None


def test_what_the_copy_left_out_is_told_for_one_snapshot() -> None:
    site = waiting("9")
    site.cut = "looks at the first 500 of 50,000 jobs"
    site.poll()
    assert site.memory.cut == site.cut
    site.cut = ""
    site.poll()
    assert site.memory.cut == ""


def test_a_site_that_earmarks_nodes_no_longer_has_none_that_is_kept() -> None:
    site = waiting("9")
    earmarks, _ = site.poll()
    assert given_up(site.memory) == (EarmarkMemory(), (EarmarkOver(earmarks["9"], "no longer fits"),))


@pytest.mark.parametrize(
    ("scheduler", "wait_s"),
    [
        (Scheduler(), 95.0),  # one cycle that is at work, and one that begins after it
        (Scheduler(True, interval_s=30.0, max_time_s=120.0), 275.0),
        (Scheduler(True, interval_s=10.0, cycle_s=0.1), 25.2),
        (Scheduler(True, interval_s=30.0, cycle_s=25.0), 115.0),
        (Scheduler(True, interval_s=600.0, cycle_s=600.0), 600.0),
    ],
)
def test_a_job_has_two_of_slurms_cycles_to_start_and_all_that_bf_max_time_allows_where_they_are_not_known(
    scheduler: Scheduler, wait_s: float
) -> None:
    assert earmark_wait_s(scheduler) == pytest.approx(wait_s)


def due_s(site: Site) -> float | None:
    earmarks, _ = site.poll()
    return earmarks["9"].due_s


def behind(cycled_s: float | None) -> Site:
    """Job 9 could start, and job 8 before it waits for the same nodes."""
    site = waiting("8", "9", scheduler=replace(SCHEDULER, cycled_s=cycled_s))
    del site.fits["8"]
    return site


def test_a_job_that_only_backfill_can_start_is_due_at_the_next_cycle() -> None:
    assert due_s(behind(1000.0)) == 1010.0


@pytest.mark.parametrize("cycled_s", [None, 990.0, 993.5, 0.0])
def test_pilots_leave_at_once_where_the_next_cycle_is_near_or_not_known(cycled_s: float | None) -> None:
    assert due_s(behind(cycled_s)) is None


@pytest.mark.parametrize("cycled_s", [1002.0, 1030.0, 1e6])
def test_regression_pilots_had_time_for_the_cycle_after_the_one_that_is_at_work(cycled_s: float) -> None:
    site = behind(cycled_s)
    assert due_s(site) is None, "or the clock was set back, and the time is none"


def test_pilots_leave_at_once_where_nothing_keeps_the_main_scheduler_from_the_job() -> None:
    site = behind(1000.0)
    site.leased = {"n1": "71"}
    assert due_s(site) == 1010.0
    site.fits["8"] = ("n2",)  # now it is first in line
    assert due_s(site) is None
    del site.fits["8"]
    assert due_s(site) is None, "what has been told is not taken back"


def test_a_job_that_is_barred_for_now_keeps_the_main_scheduler_from_nobody() -> None:
    site = behind(1000.0)
    site.barred = {"8"}
    assert due_s(site) is None


def test_the_main_scheduler_passes_nobody_in_a_partition_and_uses_what_is_ready_outside_it() -> None:
    site = behind(1000.0)
    site.within = {"8": ("n1", "n2", "n3")}
    site.runs = [job("5", "RUNNING", nodes=("n4", "n5", "n6"))]
    assert due_s(site) is None, "x1 is ready"
    site = behind(1000.0)
    site.within = {"8": ("n1", "n2", "n3")}
    site.runs = [job("5", "RUNNING", nodes=("n4", "n5", "n6", "x1"))]
    assert due_s(site) == 1010.0


def test_regression_pilots_left_at_once_for_an_earmark_that_was_made_on_idle_nodes_while_a_cycle_was_at_work() -> None:
    """Their nodes stood idle for half a minute, as nobody had been told when the next cycle is due."""
    site = behind(1002.0)
    assert due_s(site) is None
    site.scheduler = replace(SCHEDULER, cycled_s=1002.0)
    site.leased = {"n2": "71"}
    site.fits["9"] = ("n2",)
    assert due_s(site) == 1012.0


def test_what_pilots_were_told_comes_sooner_and_never_later() -> None:
    site = behind(1000.0)
    site.leased = {"n1": "71"}
    assert due_s(site) == 1010.0
    site.scheduler = replace(SCHEDULER, cycled_s=999.0)
    assert due_s(site) == 1009.0
    site.scheduler = replace(SCHEDULER, cycled_s=1004.0)
    assert [due_s(site) for _ in range(15)] == [1009.0] * 15


NODES = st.frozensets(st.sampled_from(["n1", "n2", "n3", "x1"]), min_size=1)
POLL = st.tuples(
    st.dictionaries(st.sampled_from(["7", "8", "9_[1-4]"]), NODES, max_size=3),
    st.sampled_from(["wait", "start", "gone", "break"]),
    st.floats(0.1, 40.0),
)


@given(st.lists(POLL, min_size=1, max_size=20))
def test_every_earmark_that_is_made_is_over_once_and_none_lasts_longer_than_its_time(
    history: list[tuple[Mapping[str, Collection[str]], str, float]],
) -> None:
    site, open_ = Site(), {}
    for fits, what, after_s in history:
        site.fits = dict(fits)
        site.waits = [] if what in ("start", "gone") else [job(id_) for id_ in ("7", "8", "9_[1-4]")]
        site.runs = [job("7", "RUNNING", nodes=("n5",))] if what == "start" else []
        site.broken = ZeroDivisionError() if what == "break" else None
        earmarks, over = site.poll(after_s)
        for id_, _ in over:
            assert id_ in open_, "what is over was there"
            del open_[id_]
        for id_, earmark in earmarks.items():
            assert open_.setdefault(id_, earmark.since_s) == earmark.since_s, "an earmark that goes on is the same one"
            assert site.time_s - earmark.since_s <= WAIT_S
        assert earmarks.keys() == open_.keys()
        assert set().union(*(earmark.leaving for earmark in earmarks.values())) <= set().union(
            *(earmark.nodes for earmark in earmarks.values())
        )


# Those whose earmarks are wasted again and again


def test_regression_a_user_whose_many_jobs_never_start_kept_all_nodes_for_ever() -> None:
    """Sixty jobs that each fit on all nodes took turns: each was backed off for an hour, and there was another."""
    site = waiting(*map(str, range(100, 160)), fits=())
    kept = []
    for _ in range(3000):
        # as the copy would: the first that is not backed off gets all nodes
        tried = [id_ for id_ in map(str, range(100, 160)) if id_ not in site.asked.get("backed_off", ())]
        site.fits = {tried[0]: ("n1", "n2", "n3")} if tried else {}
        kept.append(bool(site.poll()[0]))
    assert sum(kept[: 8 * WAIT_S]) > 7 * WAIT_S, "each has its chance at first"
    assert sum(kept[1000:]) <= 0.08 * 2000


def test_regression_who_submits_a_job_anew_before_it_is_backed_off_gets_no_earmark_for_ever() -> None:
    site = Site()
    kept = 0
    for count in range(3000):
        id_ = str(100 + count // 20)
        site.waits, site.fits = [job(id_)], {id_: ("n1", "n2", "n3")}
        kept += bool(site.poll()[0])
    assert kept <= 8 * WAIT_S + 0.07 * 3000


def test_regression_who_takes_his_job_back_within_seconds_again_and_again_had_earmarks_each_time() -> None:
    """Each time all pilots had left for a job that was gone two seconds later, and nothing was held against him."""
    site = Site()
    made = 0
    for count in range(200):
        id_ = str(100 + count)
        site.waits, site.fits = [job(id_), job(f"9{id_}")], {id_: ("n1",), f"9{id_}": ("n2",)}
        made += id_ in site.poll()[0]
        site.poll()
        site.waits = []
        assert {end for _, end in site.poll()[1]} <= {"gone"}
        site.poll(7.0)
    assert 8 <= made <= 8 + 0.05 * 2000 / WAIT_S + 1, "as if each had been kept for as long as a job may take to start"


def test_the_earmarks_of_a_user_who_is_excluded_end_as_backed_off_and_those_of_others_stay() -> None:
    site = Site()
    ends = []
    for count in range(8 * WAIT_S + 20):
        id_ = str(100 + count // 20)
        site.waits = [job(id_), job(str(500 + count // 20), user="bob")]
        site.fits = {id_: ("n1", "n2"), str(500 + count // 20): ("n3",)}
        site.runs = [job(str(500 + count // 20 - 1), "RUNNING", user="bob", nodes=("n4",))]
        earmarks, over = site.poll()
        ends += [end for job_, end in over if job_.startswith("1")]
    assert [earmark.nodes for earmark in earmarks.values()] == [("n3",)], "one whose jobs start has an earmark as ever"
    assert ends.count("backed off") == 1


def test_a_user_whose_jobs_start_has_nodes_earmarked_for_ever() -> None:
    site = Site()
    for count in range(1000):
        id_ = str(100 + count // 20)
        site.waits, site.fits = [job(id_)], {id_: ("n1",)}
        site.runs = [job(str(100 + count // 20 - 1), "RUNNING", nodes=("n2",))]
        assert site.poll()[0].keys() == {id_}


def test_a_job_that_waits_alone_is_tried_as_often_as_its_backoffs_say() -> None:
    site = waiting("9")
    others = 0
    for _ in range(6000):
        site.poll()
        others += any(one.is_over for one in site.memory.users.values())
    assert not others


def test_regression_a_cycle_that_a_clock_puts_far_ahead_gives_pilots_no_time() -> None:
    """Set back by an hour, the clock made the last cycle one to come, and pilots stayed until after it."""
    site = waiting("8", "9")
    del site.fits["8"]
    site.scheduler = replace(SCHEDULER, cycled_s=1001.0)
    assert site.poll()[0]["9"].due_s == 1011.0
    site = waiting("8", "9")
    del site.fits["8"]
    site.scheduler = replace(SCHEDULER, cycled_s=4601.0)
    assert site.poll()[0]["9"].due_s is None


LONG = replace(SCHEDULER, cycle_s=20.0, cycled_s=None)


def no_longer_fits(scheduler: Scheduler) -> Site:
    """A job had an earmark on n1 and n2, and does not fit any more."""
    site = waiting("9", fits=("n1", "n2"), scheduler=scheduler)
    site.polls(3)
    del site.fits["9"]
    return site


def test_regression_a_cycle_at_work_preempted_for_a_job_that_had_just_lost_its_earmark() -> None:
    site = no_longer_fits(LONG)
    held = [bool(earmarks) for earmarks, _ in site.polls(25)]
    assert held == [True] * 20 + [False] * 5, "as long as the cycle takes that may have begun before"
    assert site.memory.flaps.keys() == {"9"}


@pytest.mark.parametrize(
    "scheduler",
    [replace(LONG, cycle_s=1.0), replace(LONG, cycle_s=None), replace(LONG, cycled_s=1002.0, interval_s=30.0)],
)
def test_an_earmark_ends_at_once_where_no_cycle_can_be_at_work_that_knew_better(scheduler: Scheduler) -> None:
    site = no_longer_fits(scheduler)
    earmarks, over = site.poll()
    assert (earmarks, over) == ({}, [("9", "no longer fits")])


def test_nodes_that_outlast_what_fits_are_for_the_next_job_that_fits_on_them() -> None:
    site = no_longer_fits(LONG)
    assert site.poll()[0].keys() == {"9"}
    site.waits.append(job("10"))
    site.fits["10"] = ("n2",)
    assert {one: earmark.nodes for one, earmark in site.poll()[0].items()} == {"10": ("n2",)}
    site = no_longer_fits(LONG)
    site.runs = [job("7", "RUNNING", nodes=("n1",), start_s=1000.0)]
    assert site.poll()[0] == {}
    site = no_longer_fits(LONG)
    site.memory = site.memory.moved(-500.0)
    site.time_s -= 500.0
    assert [bool(earmarks) for earmarks, _ in site.polls(21)] == [True] * 20 + [False]


def test_regression_an_earmark_moved_while_a_cycle_was_at_work_that_then_preempted_on_the_nodes_it_had_left() -> None:
    site = waiting("9", fits=("n1", "n2"), scheduler=LONG)
    site.leased = {"n4": "71"}
    site.polls(3)
    site.fits["9"] = ("n3", "n4")
    held = [earmarks["9"].nodes for earmarks, _ in site.polls(22)]
    # where it fitted before and where it fits now, but no pilot leaves for that
    assert held == [("n1", "n2", "n3")] * 20 + [("n3", "n4")] * 2
    site.scheduler = replace(LONG, cycle_s=0.1)
    site.fits["9"] = ("n5", "n6")
    assert site.poll()[0]["9"].nodes == ("n5", "n6"), "no cycle can be at work that began before"


def test_an_earmark_moves_at_once_where_its_nodes_are_for_another_job_now() -> None:
    site = waiting("9", "10", fits=("n1", "n2"), scheduler=LONG)
    del site.fits["10"]
    site.polls(3)
    site.fits = {"9": ("n3", "n4"), "10": ("n2",)}
    assert {one: earmark.nodes for one, earmark in site.poll()[0].items()} == {"9": ("n3", "n4"), "10": ("n2",)}


def test_regression_what_hundreds_of_backed_off_jobs_lack_was_hundreds_of_sets_of_thousands_of_names() -> None:
    """450 backoffs on 5,000 nodes took a quarter of a second of each poll, and 100 MB."""
    numbering = Numbering.of(f"n{number}" for number in range(5000))
    backoffs = {str(number): JobBackoff(9e9, 1, (1 << 5000) - 2, numbering) for number in range(450)}
    memory = EarmarkMemory(backoffs=backoffs)
    assert awake(memory, numbering, 1, 1000.0).backoffs == backoffs
    assert all(backoff.until_s == 1000.0 for backoff in awake(memory, numbering, 2, 1000.0).backoffs.values())


def test_a_node_ends_a_backoff_under_another_number() -> None:
    before, after = Numbering.of(("n1", "n2", "n3")), Numbering.of(("n0", "n3", "n1", "n2"))
    memory = EarmarkMemory(backoffs={"9": JobBackoff(9000.0, 1, before.mask(["n2"]), before)})
    memory = awake(memory, after, after.mask(["n0", "n1", "n3"]), 1000.0)
    assert memory.backoffs["9"].until_s == 9000.0
    assert awake(memory, after, after.mask(["n2"]), 1000.0).backoffs["9"].until_s == 1000.0


# Nodes that an ended job has not left yet


def ended(site: Site, name: str, partition: str = "batch") -> None:
    """A job ended on a node, where its epilog takes long."""
    site.runs = [job("5", "COMPLETING", partition=(partition,), nodes=(name,))]
    site.completing = {name: "5"}


def first_ready(site: Site) -> str:
    """As the copy would: the first node that is ready and not kept from the job."""
    seen: list[str] = []

    def copy(
        snapshot: Snapshot, jobs: Occupancy, ground: Availability, **asked: Any
    ) -> tuple[Sequence[QueueEntry], PlannerOutcome]:
        seen[:] = ground.numbering.of_mask(ground.ready)
        site.fits = {"9": seen[:1]}
        return Site.copy(site, snapshot, jobs, ground, **asked)

    site.copy = copy  # type: ignore[method-assign]
    site.poll()
    return seen[0]


def test_regression_an_earmark_was_kept_on_a_node_with_a_long_epilog_while_others_were_free() -> None:
    site = waiting("9")
    ended(site, "n1")
    assert [first_ready(site) for _ in range(10)] == ["n1"] * 6 + ["n2"] * 4, "most epilogs are over by then"
    assert site.memory.earmarks["9"].nodes == ("n2",)


def test_regression_a_node_that_was_cleared_ended_no_backoff_and_was_lent_while_the_job_waited() -> None:
    site = waiting("9", fits=("n2",))
    ended(site, "n1")
    assert site.polls(WAIT_S + 2)[-1] == ({}, [("9", "backed off")])
    assert site.polls(5) == [({}, [])] * 5
    site.runs, site.completing, site.fits = [], {}, {"9": ("n1",)}
    assert site.poll()[0]["9"].nodes == ("n1",)


def test_the_pilot_that_left_an_earmark_may_take_its_time_or_another_would_have_to_leave_as_slowly() -> None:
    site = waiting("9")
    site.leased = {"n1": "71"}
    site.poll()
    site.leased = {}
    ended(site, "n1", PARTITION)
    assert [first_ready(site) for _ in range(20)] == ["n1"] * 20
    site.memory = site.memory.moved(500.0)
    site.time_s += 500.0
    assert first_ready(site) == "n1"
