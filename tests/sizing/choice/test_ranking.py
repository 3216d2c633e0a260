"""Which run ends first, which ends by a deadline, and what is said of the winner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.base.estimate import Estimate
from sizing.choice import ranking
from sizing.choice.ranking import StartAnswer
from sizing.choice.runs import JobRun
from tests.sizing.choice.cells_of import NOW_S, run
from tests.support.messages import says, wording

pytestmark = pytest.mark.slow

HOUR = 3600.0


def names(runs: object) -> list[tuple[str, int]]:
    return [(each.shape.pool.partition, each.shape.gpus) for each in runs]  # type: ignore[attr-defined]


def test_the_earliest_end_wins_over_the_earliest_start_and_over_the_fastest_run() -> None:
    fast, early, both = run(HOUR, "a", 8, 9 * HOUR), run(8 * HOUR, "b", 4, 0), run(3 * HOUR, "c", 4, 2 * HOUR)
    assert names(ranking.ranked([fast, early, both], NOW_S, "end")) == [("c", 4), ("b", 4), ("a", 8)]
    assert names(ranking.ranked([fast, early, both], NOW_S)) == [("c", 4), ("a", 8), ("b", 4)]


def test_of_runs_that_end_together_the_one_of_fewer_gpu_hours_is_first() -> None:
    many, few = run(HOUR, "a", 8, 0), run(HOUR + 20, "a", 2, 0)
    assert names(ranking.ranked([many, few], NOW_S, "end")) == [("a", 2), ("a", 8)]
    later = run(HOUR + 70, "a", 2, 0)
    assert names(ranking.ranked([many, later], NOW_S, "end")) == [("a", 8), ("a", 2)]


def test_regression_thirty_two_gpus_won_by_minutes_that_nobody_knows() -> None:
    # an hour may be two: those that end while the first one may still run are no later for all that is known
    many, few, slow = run(HOUR, "a", 8, 0), run(1.9 * HOUR, "a", 2, 0), run(2.1 * HOUR, "a", 1, 0)
    assert names(ranking.ranked([many, few, slow], NOW_S)) == [("a", 2), ("a", 8), ("a", 1)]
    assert names(ranking.ranked([many, few, slow], NOW_S, "end")) == [("a", 8), ("a", 2), ("a", 1)]
    assert names(ranking.ranked([many, few, slow], NOW_S, "gpu-hours")) == [("a", 1), ("a", 2), ("a", 8)]
    said = ranking.why([few, slow, many], NOW_S)
    assert says(said, "sizing.ranking.fewest", name="2 x a100 in a", fewest="the fewest")
    assert says(said, "sizing.ranking.sooner", soonest="8 x a100 in a", words="54 min", hours="8")
    dearer = run(1.36 * HOUR, "a", 3, 0)  # by less than a tenth, and it ends earlier
    said = ranking.why(ranking.ranked([many, few, dearer], NOW_S), NOW_S)
    assert says(said, "sizing.ranking.fewest", name="3 x a100 in a", fewest="nearly the fewest")


def test_a_start_in_the_past_counts_as_now() -> None:
    assert run(HOUR, start_in_s=-500).ends_s(NOW_S).value == NOW_S + HOUR


def test_what_slurm_refuses_is_no_choice_and_what_it_was_not_asked_for_comes_only_where_nothing_was_asked() -> None:
    unasked, known = run(60, "a"), run(HOUR, "b", start_in_s=0)
    refused = replace(unasked, said="no", refused=True)
    assert names(ranking.ranked([unasked, known, refused], NOW_S)) == [("b", 4)]
    assert names(ranking.ranked([unasked, refused], NOW_S)) == [("a", 4)]
    assert ranking.ranked([refused], NOW_S) == ()


def test_a_deadline_asks_for_the_worst_end_and_for_a_time_limit_that_reaches_so_far() -> None:
    # runs of an hour may take two
    sure, tight = run(HOUR, "a", start_in_s=0), run(HOUR, "b", start_in_s=HOUR)
    cut = run(HOUR, "c", start_in_s=0, max_time_s=1.5 * HOUR)
    held = ranking.by_deadline([sure, tight, cut], NOW_S + 2.5 * HOUR, NOW_S)
    assert names(held) == [("a", 4)]
    assert names(ranking.by_deadline([sure], NOW_S + 2 * HOUR, NOW_S)) == [("a", 4)]
    assert not ranking.by_deadline([sure], NOW_S + 2 * HOUR - 1, NOW_S)


def test_a_deadline_that_nothing_holds_is_missed_by_so_much() -> None:
    late = [run(4 * HOUR, "a", start_in_s=0), run(2 * HOUR, "b", start_in_s=0)]
    said = ranking.misses(late, NOW_S + 3 * HOUR, NOW_S)
    assert said == (
        wording(
            "sizing.ranking.nearest_late", name="4 x a100 in b", late="1 h", origin="assumed", expected="1 h before it"
        )
    )
    assert says(
        ranking.misses([run(HOUR, "c", start_in_s=0, max_time_s=HOUR)], NOW_S + 9 * HOUR, NOW_S),
        "sizing.ranking.limit_may_end_it",
    )


def test_why_names_the_faster_one_that_starts_later_and_the_earlier_one_that_runs_longer() -> None:
    best = ranking.ranked(
        [run(HOUR, "a", 8, 9 * HOUR), run(8 * HOUR, "b", 4, 0), run(3 * HOUR, "c", 4, 2 * HOUR)], NOW_S, "end"
    )
    assert ranking.why(best, NOW_S) == (
        "4 x a100 in c ends first: it starts in 2 h and runs 3 h, while 8 x a100 in a runs 2 h less but starts 7 h "
        "later and 4 x a100 in b starts 2 h earlier but runs 5 h longer. It takes 12 GPU-hours (assumed), the next "
        "32 (assumed)."
    )


def test_why_tells_measured_from_assumed() -> None:
    best = [run(HOUR, "a", 4, 0, "measured"), run(2 * HOUR, "b", 4, 0)]
    assert "It takes 4 GPU-hours (measured), the next 8 (assumed)." in ranking.why(best, NOW_S)
    assert ranking.why(best[:1], NOW_S).endswith(wording("sizing.ranking.no_other"))


def test_why_names_the_first_that_was_measured_where_the_winner_is_only_assumed() -> None:
    best = [run(HOUR, "a", 4, 0), run(2 * HOUR, "b", 4, 0), run(3 * HOUR, "c", 4, 0, "interpolated")]
    assert says(ranking.why(best, NOW_S), "sizing.ranking.caution", sure="4 x a100 in c", when="2 h later")
    assert "only assumed" not in ranking.why(best[:2], NOW_S)


class Slurm:
    """Starts requests of a partition after so many seconds; None is a refusal."""

    def __init__(self, waits: dict[str, float | None], largest: int = 10**6) -> None:
        self.waits, self.largest = waits, largest
        self.asked: list[tuple[str, int]] = []

    def __call__(self, run: JobRun) -> StartAnswer:
        name, gpus = run.shape.pool.partition, run.shape.gpus
        self.asked.append((name, gpus))
        wait_s = self.waits[name]
        if wait_s is None or gpus > self.largest:
            return StartAnswer(None, "refused: Invalid account")
        return StartAnswer(NOW_S + wait_s, "to start at")


def test_slurm_is_not_asked_for_runs_that_could_not_win_if_they_started_at_once() -> None:
    runs = [run(HOUR * 8 / gpus, "a", gpus) for gpus in (1, 2, 4, 8)]
    slurm = Slurm({"a": 0})
    ranking.ask(runs, slurm, NOW_S, top=1)
    assert slurm.asked == [("a", 8)]
    slurm = Slurm({"a": 0})
    ranking.ask(runs, slurm, NOW_S, top=2)
    assert slurm.asked == [("a", 8), ("a", 4)]
    slurm = Slurm({"a": 0})
    cheap = run(HOUR * 20, "a", 1)
    ranking.ask([cheap, *(run(HOUR * 40 / gpus, "a", gpus) for gpus in (2, 4, 8))], slurm, NOW_S, top=1, by="gpu-hours")
    assert slurm.asked == [("a", 1)]


def test_a_partition_that_is_closed_is_refused_whole_after_two_questions_and_others_win() -> None:
    runs = [run(HOUR * 8 / gpus, name, gpus) for gpus in (1, 2, 4, 8) for name in ("shut", "open")]
    slurm = Slurm({"shut": None, "open": 60})
    said = ranking.ask(runs, slurm, NOW_S, top=1)
    assert slurm.asked.count(("shut", 8)) == slurm.asked.count(("shut", 1)) == 1
    assert len([name for name, _ in slurm.asked if name == "shut"]) == 2
    shut = [each for each in said if each.shape.pool.partition == "shut"]
    assert len(shut) == 4
    assert all(each.refused and each.said == "refused: Invalid account" for each in shut)
    assert {name for name, _ in names(ranking.ranked(said, NOW_S))} == {"open"}


def test_a_request_that_is_too_large_does_not_close_its_partition() -> None:
    runs = [run(HOUR * 8 / gpus, "a", gpus) for gpus in (1, 2, 4, 8)]
    said = ranking.ask(runs, Slurm({"a": 0}, largest=2), NOW_S, top=1)
    assert names(ranking.ranked(said, NOW_S))[0] == ("a", 2)


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abc"), st.sampled_from((1, 2, 4, 8))),
        st.tuples(st.floats(100, 1e5), st.floats(0, 1e5)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 3),
)
def test_the_best_are_found_without_asking_for_all(waits: dict[tuple[str, int], tuple[float, float]], top: int) -> None:
    runs = [run(run_s, name, gpus) for (name, gpus), (run_s, _) in waits.items()]

    def slurm(each: JobRun) -> StartAnswer:
        return StartAnswer(NOW_S + waits[each.shape.pool.partition, each.shape.gpus][1], "to start at")

    said = ranking.ranked(ranking.ask(runs, slurm, NOW_S, top, by="end"), NOW_S, "end")
    everything = sorted(run_s + wait_s for run_s, wait_s in waits.values())[:top]
    got = sorted(each.ends_s(NOW_S).value - NOW_S for each in said)[:top]
    assert got == pytest.approx(everything, abs=0.01)
    tied = [each for each in said if each.ends_s(NOW_S).value - NOW_S <= everything[0] + 60]
    # GPU-hours within a tenth count as equal
    assert said[0].gpu_hours.value <= 1.1 * min(each.gpu_hours.value for each in tied)


def test_regression_a_run_that_holds_the_deadline_was_never_asked_for_behind_faster_ones_that_miss_it() -> None:
    # four hours may be eight: only what was measured holds six
    soon = [run(4 * HOUR, "a", gpus, start_in_s=None) for gpus in (1, 2)]
    sure = replace(run(5 * HOUR, "b", 4), run_s=Estimate(5 * HOUR, 5 * HOUR, 5.5 * HOUR, "measured"))
    later = replace(sure, shape=run(1, "b", 2).shape, run_s=Estimate(5.4 * HOUR, 5 * HOUR, 5.5 * HOUR, "measured"))
    slurm = Slurm({"a": 0, "b": 60})
    said = ranking.ask([*soon, sure, later], slurm, NOW_S, top=1, deadline_s=NOW_S + 6 * HOUR, by="end")
    assert names(ranking.by_deadline(ranking.ranked(said, NOW_S, "end"), NOW_S + 6 * HOUR, NOW_S)) == [("b", 4)]
    assert ("b", 2) not in slurm.asked
