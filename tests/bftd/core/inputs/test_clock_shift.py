"""Steps of the wall clock: ages go on as they were, whatever somebody sets the clock to."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bftd.core.inputs import clock_shift
from bftd.core.invariants import validate_state
from bftd.core.model.delays import Delays
from bftd.core.model.domain import Action, CancelPilot, Lease, LeaseChanged, PoolView, Settings, State, Trainer
from bftd.core.model.events import ClockSet
from bftd.core.model.foreign_jobs import ElasticJob
from bftd.core.model.pause import Pause
from bftd.core.scaling.learning import ScalingModel
from bftd.core.scaling.pace import Attendance
from bftd.protocol.bounds import EPOCHS_OF_A_BLOCK
from bftd.protocol.registration import Registration
from bftd.protocol.reports import CrashReport
from tests.bftd.builders import NOW_S, Core, lease, of, registration

STEPS = st.sampled_from([-86400.0, -3600.0, -61.0, -5.0, 5.0, 61.0, 3600.0, 31e6])
# What seconds mean where they are no time: lengths, and Slurm's own times, which no clock of ours moves.
# Those by the clock of a driver's host, and the time at which an administrator spoke, are not the daemon's to move.
DURATIONS = {
    Lease: {"limit_s", "leaving_s"},
    Trainer: {"idled_s", "worked_s"},
    Pause: {"since_s"},
    Attendance: {"with_s", "all_s"},
    Delays: {"total_s"},
}
FOREIGN = {Settings, PoolView, ElasticJob, Registration, ScalingModel}


def set_clock(core: Core, by_s: float) -> tuple[Action, ...]:
    """The wall clock is set."""
    core.time_s += by_s
    return core.apply(ClockSet(core.time_s, by_s))


def reachable(hint: Any) -> Iterator[type]:
    """The dataclasses that a field of this type may hold."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if hint not in FOREIGN:
            yield hint
            for inner in typing.get_type_hints(hint).values():
                yield from reachable(inner)
    else:
        for argument in typing.get_args(hint):
            yield from reachable(argument)


def test_every_field_in_seconds_of_the_state_is_moved_or_known_to_be_no_time() -> None:
    for cls in set(reachable(State)):
        seconds = {field.name for field in dataclasses.fields(cls) if field.name.endswith("_s")}
        listed = {*clock_shift.PAST.get(cls, ()), *clock_shift.AHEAD.get(cls, ())}
        assert seconds - listed - DURATIONS.get(cls, set()) - {"samples_per_s", "steps_per_s"} == set(), (
            f"say in bftd/core/inputs/clock_shift.py what a step of the clock does to these of {cls.__name__}"
        )
    assert {name for name, hint in typing.get_type_hints(State).items() if "float" in str(hint)} == {
        # each is moved by hand in `moved`, but "scaling", which has no times
        *clock_shift.PAST[State], "quarantined", "grants", "scaling"
    }, "say in bftd/core/inputs/clock_shift.py what a step of the clock does to it"  # fmt: skip


@pytest.mark.parametrize("by_s", [-3600.0, 3600.0])
def test_regression_a_step_of_the_clock_froze_the_pool_or_ended_trainers(by_s: float) -> None:
    core = Core(Settings().changed(operator=True))
    core.job_ids = frozenset()  # the drivers are those of `bft run`, which no queue shows
    core.arrive(registration("run-a-1", nodes_max=2))
    core.pool("n1", "n2")
    core.place_all()
    core.pool("n1", "n2")
    before = len(core.actions)

    set_clock(core, by_s)
    assert not core.state.pool.seen
    assert not core.state.pool.nodes["n1"].in_pool or not core.arrive(registration("run-a-2"))[2:]
    core.pool("n1", "n2", "n3")
    core.pool("n1", "n3")
    assert core.nodes("run-a-1") == {"n1"}, "what the snapshots show counts at once"
    assert core.nodes("run-a-2") == {"n3"}
    done = of(core.actions[before:], LeaseChanged)
    assert [item.lease.node for item in done if item.kind in ("revoked", "ended")] == ["n2"]
    assert not of(core.actions[before:], CancelPilot)
    assert all(item.active for item in core.state.trainers.values())


def test_a_step_back_while_nobody_ran_leaves_nothing_ahead_of_the_clock() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2")
    core.place_all()
    core.report("1", *(CrashReport(NOW_S, "n1", 1),))
    kept = replace(core.state, quarantined={"n3": core.time_s + 4e6}, pool=PoolView())
    found = clock_shift.restored(kept, core.time_s - 7200.0, 300.0)
    assert max(item.granted_s for item in found.leases.values()) <= core.time_s - 7200.0
    assert found.quarantined == {"n3": core.time_s - 7200.0 + 300.0}
    assert clock_shift.restored(replace(core.state, quarantined={}), core.time_s, 300.0) == core.state


def test_S4_numbers_that_lost_steps_may_have_given_out_are_not_given_out_again() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2")
    before = core.state
    after = clock_shift.restored(before, core.time_s, 300.0, steps_lost=True)
    assert after.sequence > before.sequence + 1000
    was, now = before.trainers["1"], after.trainers["1"]
    assert now.version > was.version + 1000
    assert now.epoch // EPOCHS_OF_A_BLOCK == was.epoch // EPOCHS_OF_A_BLOCK + 1
    again = clock_shift.restored(after, core.time_s, 300.0, steps_lost=True)
    assert again.trainers["1"].epoch > now.epoch


def test_regression_after_a_restart_with_the_clock_a_moment_back_a_new_trainer_came_before_the_others() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.state = clock_shift.restored(core.state, core.time_s - 2.0, 300.0)
    core.state = replace(core.state, time_s=float("-inf"))  # which no ledger keeps
    core.time_s -= 1.5
    core.arrive(registration("2", user="bob"))
    assert [item.id for item in sorted(core.state.trainers.values(), key=lambda item: item.arrived_s)] == ["1", "2"]


# One history with a step of the clock and without.

OPS = st.lists(
    st.one_of(
        st.tuples(st.just("poll"), st.sampled_from([1.0, 1.0, 5.0, 31.0, 70.0]), st.sets(st.sampled_from("abcd"))),
        st.tuples(st.just("arrive"), st.integers(1, 3), st.integers(0, 2)),
        st.tuples(st.just("place"), st.none(), st.none()),
        st.tuples(st.just("refuse"), st.none(), st.none()),
        st.tuples(st.just("crash"), st.sampled_from("abcd"), st.none()),
        st.tuples(st.just("orphan"), st.sampled_from("abcd"), st.none()),
        st.tuples(st.just("finish"), st.none(), st.none()),
        st.tuples(st.just("tick"), st.sampled_from([1.0, 20.0]), st.none()),
    ),
    max_size=25,
)


def do(core: Core, number: int, op: tuple[str, Any, Any]) -> None:
    """One thing that happens."""
    kind, one, two = op
    if kind == "poll":
        taken = set(core.pilots.values())
        core.pilots = {id_: where for id_, where in core.pilots.items() if where[1] in two or number % 3}
        core.pool(*sorted({f"n{letter}" for letter in two} | (taken if number % 3 else set())), after_s=one)
    elif kind == "arrive":
        core.arrive(registration(str(number), one, one + two))
    elif kind == "place":
        core.place_all()
    elif kind == "tick":
        core.tick(one)
    elif kind == "orphan":
        core.elastic[str(900 + number)] = ElasticJob(str(900 + number), "bob", "", (f"n{one}",), None, 1e12, 60.0)
    for item in list(core.state.leases.values())[:1]:
        if kind == "refuse":
            core.report(item.trainer, lease(item.id, "refused", reason="busy"))
        elif kind == "crash":
            core.report(item.trainer, CrashReport(NOW_S, f"n{one}", 1))
        elif kind == "finish":
            core.finish(item.trainer)


def told(core: Core) -> list[tuple[object, ...]]:
    """What the daemon did, without any time."""
    found: list[tuple[object, ...]] = []
    for action in core.actions:
        if isinstance(action, LeaseChanged):
            found.append((action.kind, action.lease.id))
        elif isinstance(action, CancelPilot):
            found.append(("cancel", action.job_id))
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=OPS, after=OPS, by_s=STEPS, names=st.sets(st.sampled_from("abcd"), min_size=1))
def test_after_a_step_of_the_clock_everything_happens_as_without_it(
    before: list[Any], after: list[Any], by_s: float, names: set[str]
) -> None:
    steady, stepped = (Core(Settings().changed(operator=True, quarantine_after=2)) for _ in range(2))
    # the step makes the pool unseen, so a snapshot that changes nothing comes next on both sides
    look = ("poll", 1.0, names)
    history = [*enumerate([*before, look]), *enumerate(after, 100)]
    for number, op in history:
        do(steady, number, op)
    for number, op in history:
        if number == 99 or (number == len(before) and op is look):
            acted = set_clock(stepped, by_s)
            assert not of(acted, LeaseChanged)
            assert not of(acted, CancelPilot)
            assert stepped.state.pool.time_s == -inf
        do(stepped, number, op)
    validate_state(stepped.state)
    assert told(stepped) == told(steady)
    assert {id_: item.state for id_, item in stepped.state.trainers.items()} == {
        id_: item.state for id_, item in steady.state.trainers.items()
    }
