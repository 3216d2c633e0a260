"""Which of several equal nodes leave: those whose leaving costs the trainers least."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.core.model.classes import NodeClass
from bftd.core.model.domain import Lease, PoolNode, PoolView, Settings, State, Trainer
from bftd.core.planning import victims
from bftd.core.scaling.learning import ScalingModel
from bftd.pool.backfill.model import Numbering
from bftd.pool.victims import Leaving
from bftd.protocol.lease import Phase
from bftd.protocol.requirements import Requirements
from milp import Points
from tests.bftd.builders import registration
from tests.bftd.core import leaving_by_names

NOW_S = 10_000.0
LINE: Points = ((1, 10.0), (16, 160.0))
# Half of it with the second node, a quarter with the third and fourth.
BENT: Points = ((1, 10.0), (2, 15.0), (4, 17.5), (16, 18.0))


def trainer(id_: str, curve: Points = LINE, nodes_min: int = 1, nodes_max: int = 16, **fields: Any) -> Trainer:
    knowledge = ScalingModel(given=curve, given_down_cost_s=fields.pop("stall_s", 1.0))
    return Trainer(registration(id_, nodes_min, nodes_max, **fields), 0.0, knowledge)


def lease(node: str, trainer_id: str, phase: Phase = "working", left_s: float = 3600.0, **fields: Any) -> Lease:
    number = "".join(filter(str.isdigit, node))
    return Lease(
        id=f"{node}.{number}", node=node, trainer=trainer_id, granted_s=NOW_S + left_s - 3600.0, limit_s=3600.0,
        reason="", phase=phase, **fields,
    )  # fmt: skip


def state(trainers: Sequence[Trainer], leases: Sequence[Lease], **fields: Any) -> State:
    return State(
        time_s=NOW_S, trainers={item.id: item for item in trainers}, leases={item.id: item for item in leases}, **fields
    )


def leave(of: State, nodes: Sequence[str], count: int, already: Sequence[str] = ()) -> set[str]:
    """Who leaves; of equal nodes those that come first in `nodes`."""
    loss: Leaving = victims.of(of)
    numbers = numbered([*nodes, *already])
    chosen = numbers.of_mask(loss.chooser(numbers.bit)(numbers.mask(nodes), count, numbers.mask(already)))
    assert len(chosen) == min(count, len(nodes))
    return set(chosen)


def cost(of: State, nodes: Sequence[str], already: Sequence[str] = ()) -> float:
    numbers = numbered([*nodes, *already])
    return victims.of(of).chooser(numbers.bit).cost(numbers.mask(nodes), numbers.mask(already))


def numbered(nodes: Sequence[str]) -> Numbering:
    return Numbering.of(dict.fromkeys(nodes))


def two(first: Trainer, second: Trainer, each: int = 4) -> State:
    """Two trainers with n1 to n4, and with n5 to n8."""
    leases = [lease(f"n{number}", first.id) for number in range(1, each + 1)]
    leases += [lease(f"n{number}", second.id) for number in range(each + 1, 2 * each + 1)]
    return state([first, second], leases)


ALL = [f"n{number}" for number in range(1, 9)]
MINE, OTHERS = set(ALL[:4]), set(ALL[4:])


def test_the_trainer_leaves_that_gains_least_by_its_last_node() -> None:
    seen = two(trainer("1"), trainer("2", BENT))
    assert leave(seen, ALL, 1) <= OTHERS
    assert leave(seen, list(reversed(ALL)), 1) <= OTHERS
    assert len(leave(seen, ALL, 2) & OTHERS) == 2


def test_a_trainer_that_would_fall_below_its_least_size_is_spared_where_another_has_more_than_it_needs() -> None:
    seen = two(trainer("1", nodes_min=4), trainer("2"))
    assert leave(seen, ALL, 1) <= OTHERS
    assert leave(seen, ALL, 3) <= OTHERS


def test_one_that_falls_below_its_least_size_leaves_all_that_it_has_before_anybody_else_is_touched() -> None:
    seen = two(trainer("1", BENT, nodes_min=4), trainer("2", nodes_min=4))
    assert leave(seen, ALL, 4) == MINE
    assert leave(two(trainer("1", nodes_min=4), trainer("2", BENT, nodes_min=4)), ALL, 4) == OTHERS


def test_sizes_between_those_that_a_trainer_can_run_on_are_lost_with_the_first_node() -> None:
    seen = two(trainer("1", sizes=(2, 4)), trainer("2"))
    assert leave(seen, ALL, 1) <= OTHERS
    # its second node is free once the first has left
    assert leave(seen, ALL, 1, already=("n1",)) <= MINE


def test_a_resize_is_paid_for_once_so_that_one_trainer_gives_all() -> None:
    seen = two(trainer("1", stall_s=3.0), trainer("2", stall_s=3.0))
    assert leave(seen, ALL, 3) <= MINE
    mixed = ["n1", "n5", "n2", "n6", "n3", "n7", "n4", "n8"]
    assert leave(seen, mixed, 3) <= MINE
    assert leave(seen, mixed, 2, already=("n8",)) <= OTHERS, "it is resized anyway"


def test_a_trainer_that_is_giving_nodes_back_already_gives_more() -> None:
    seen = two(trainer("1"), trainer("2"))
    going = replace(seen.leases["n8.8"], revoked_s=NOW_S - 1.0)
    seen = replace(seen, leases={**seen.leases, "n8.8": going})
    assert leave(seen, ALL, 1) == {"n8"}, "it costs nothing any more"
    assert leave(seen, ALL[:7], 2) <= OTHERS


@pytest.mark.parametrize("phase", ["granted", "placed", "ready", "leaving"])
def test_nodes_that_do_not_work_yet_leave_first(phase: Phase) -> None:
    seen = two(trainer("1"), trainer("2", BENT))
    seen = replace(seen, leases={**seen.leases, "n3.3": lease("n3", "1", phase)})
    assert leave(seen, ALL, 1) == {"n3"}


def test_a_node_that_does_not_work_yet_is_no_part_of_the_size_that_is_lost() -> None:
    first = [lease(f"n{number}", "1", "working" if number < 4 else "placed") for number in range(1, 5)]
    second = [lease(f"n{number}", "2") for number in range(5, 9)]
    seen = state([trainer("1", nodes_min=3), trainer("2")], [*first, *second])
    assert leave(seen, ALL, 1) == {"n4"}
    assert leave(seen, ALL, 2) - {"n4"} <= OTHERS, "its three working ones are all that it can run on"


def test_pilots_that_end_soon_leave_first() -> None:
    seen = two(trainer("1"), trainer("2", BENT))
    seen = replace(seen, leases={**seen.leases, "n2.2": lease("n2", "1", left_s=11.0)})
    assert leave(seen, ALL, 1) == {"n2"}
    later = replace(seen, leases={**seen.leases, "n2.2": lease("n2", "1", left_s=3000.0)})
    assert leave(later, ALL, 1) <= OTHERS


def test_weights_count_where_the_plan_goes_by_priority() -> None:
    seen = two(trainer("1", weight=1.0), trainer("2", weight=5.0))
    by_priority = replace(seen, settings=Settings().changed(objective="priority"))
    assert leave(by_priority, list(reversed(ALL)), 1) <= MINE
    assert leave(seen, list(reversed(ALL)), 1) <= OTHERS


def test_a_large_rate_is_no_large_speed_up_where_the_plan_goes_by_efficiency() -> None:
    fast: Points = ((1, 1000.0), (2, 1100.0), (16, 1200.0))
    seen = two(trainer("1", fast), trainer("2"))
    by_throughput = replace(seen, settings=Settings().changed(objective="throughput"))
    assert leave(by_throughput, ALL, 1) <= OTHERS
    by_efficiency = replace(seen, settings=Settings().changed(objective="efficiency"))
    assert leave(by_efficiency, ALL, 1) <= MINE


def test_the_speed_on_the_class_where_a_trainer_works_counts() -> None:
    kinds = {name: NodeClass(name, 8, {}, frozenset(), frozenset(), ("elastic",)) for name in ("old", "new")}
    nodes = {name: PoolNode(name, "ALLOCATED", True, "", node_class="old") for name in ALL}
    knowledge = ScalingModel(
        seen=((1, 100.0), (4, 400.0)), node_class="new", elsewhere={"old": ((1, 1.0), (4, 1.2))}, given_down_cost_s=1.0
    )
    first = replace(trainer("1"), knowledge=knowledge)
    seen = replace(two(first, trainer("2", BENT)), pool=PoolView(nodes=nodes, classes=kinds))
    assert leave(seen, ALL, 1) <= MINE
    new = {name: replace(node, node_class="new") for name, node in nodes.items()}
    assert leave(replace(seen, pool=PoolView(nodes=new, classes=kinds)), ALL, 1) <= OTHERS
    mixing = replace(first, request=replace(first.request, requirements=Requirements(mix=True)))
    seen = replace(seen, trainers={**seen.trainers, "1": mixing})
    assert leave(seen, ALL, 1) <= OTHERS, "whoever mixes has one curve for all"


def test_a_node_that_nobody_has_costs_nothing() -> None:
    assert leave(two(trainer("1"), trainer("2")), [*ALL, "n99"], 1) == {"n99"}


CURVES = st.lists(st.floats(0.0, 50.0), min_size=8, max_size=8).map(
    lambda gains: tuple(enumerate(itertools.accumulate(gains, initial=1.0), 1))
)
PHASES: Any = st.sampled_from(["working"] * 6 + ["placed", "ready"])
ENDS = st.sampled_from([5.0, 40.0, 100.0, 3600.0, 3600.0, 3600.0])


@st.composite
def states(draw: st.DrawFn) -> State:
    trainers, leases, number = [], [], 0
    for id_ in "123"[: draw(st.integers(1, 3))]:
        low = draw(st.integers(1, 4))
        stall_s = draw(st.sampled_from([0.0, 1.0, 30.0]))
        trainers.append(trainer(id_, draw(CURVES), low, 8, stall_s=stall_s))
        for _ in range(draw(st.integers(0, 5))):
            number += 1
            item = lease(f"n{number}", id_, draw(PHASES), draw(ENDS))
            leases.append(replace(item, revoked_s=NOW_S) if draw(st.integers(0, 8)) == 0 else item)
    return state(trainers, leases)


@settings(deadline=None)
@given(seen=states(), data=st.data())
def test_the_choice_is_never_dearer_than_what_one_trainer_alone_would_give(seen: State, data: st.DataObject) -> None:
    nodes = data.draw(st.permutations([item.node for item in seen.leases.values()]))
    count = data.draw(st.integers(0, len(nodes)))
    chosen = leave(seen, nodes, count)
    assert chosen <= set(nodes)
    for mine in {item.trainer for item in seen.leases.values()}:
        alone = [item.node for item in seen.leases.values() if item.trainer == mine]
        if len(alone) >= count:
            assert cost(seen, sorted(chosen)) <= cost(seen, sorted(leave(seen, alone, count))) + 1e-6


@settings(deadline=None)
@given(seen=states(), data=st.data())
def test_one_question_after_another_is_answered_as_each_alone_from_names(seen: State, data: st.DataObject) -> None:
    """What was worked out for the last question is kept, and must not change the answer to the next."""
    nodes = data.draw(st.permutations([*(item.node for item in seen.leases.values()), "nobody's"]))
    numbers, loss = numbered(nodes), victims.of(seen)
    choose = loss.chooser(numbers.bit)
    for _ in range(data.draw(st.integers(1, 5))):
        among = [node for node in nodes if data.draw(st.integers(0, 4))]
        already = [node for node in nodes if node not in among and data.draw(st.booleans())]
        count = data.draw(st.integers(0, len(among)))
        chosen = choose(numbers.mask(among), count, numbers.mask(already))
        assert set(numbers.of_mask(chosen)) == set(leaving_by_names.cheapest(loss, among, count, already))


def test_the_tasks_of_an_array_have_only_those_asked_anew_who_gave_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of them asked everybody a thousand times, which kept the daemon from its drivers for seconds."""
    trainers = [trainer(str(number), BENT) for number in range(50)]
    leases = [lease(f"n{number}", str(number // 4)) for number in range(200)]
    asked = []
    of_one = victims.TrainersLoss.asked
    monkeypatch.setattr(
        victims.TrainersLoss, "asked", lambda self, id_, *rest: asked.append(id_) or of_one(self, id_, *rest)
    )
    numbers = numbered([item.node for item in leases])
    choose = victims.of(state(trainers, leases)).chooser(numbers.bit)
    left, gone = (1 << 200) - 1, 0
    for _ in range(100):
        chosen = choose(left, 1, gone)
        left, gone = left & ~chosen, gone | chosen
    assert gone.bit_count() == 100
    assert len(asked) == len(trainers) + 99


@settings(deadline=None)
@given(gains=st.lists(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4), min_size=1, max_size=3), data=st.data())
def test_where_each_further_node_brings_less_and_stalls_cost_nothing_no_other_choice_costs_less(
    gains: list[list[float]], data: st.DataObject
) -> None:
    trainers, leases = [], []
    for id_, mine in enumerate(gains):
        curve = tuple(enumerate(itertools.accumulate(sorted(mine, reverse=True)), 1))
        trainers.append(trainer(str(id_), curve, nodes_max=len(mine), stall_s=0.0))
        leases += [lease(f"n{len(leases) + number}", str(id_)) for number, _ in enumerate(mine)]
    seen = state(trainers, leases, settings=Settings().changed(objective="throughput"))
    nodes = [item.node for item in leases]
    count = data.draw(st.integers(0, len(nodes)))
    best = min(cost(seen, some) for some in itertools.combinations(nodes, count))
    assert cost(seen, sorted(leave(seen, nodes, count))) == pytest.approx(best)


@settings(deadline=None)
@given(seen=states(), data=st.data())
def test_what_has_left_already_and_what_leaves_then_cost_together_what_all_cost_at_once(
    seen: State, data: st.DataObject
) -> None:
    """With stalls that come once and nodes that end apart, the order must not be charged for twice."""
    seen = replace(seen, leases={id_: replace(item, granted_s=NOW_S) for id_, item in seen.leases.items()})
    live = [item for item in seen.leases.values() if item.live and item.phase == "working"]
    nodes = data.draw(st.permutations([item.node for item in live]))
    split = data.draw(st.integers(0, len(nodes)))
    parts = cost(seen, nodes[:split]) + cost(seen, nodes[split:], already=nodes[:split])
    assert parts == pytest.approx(cost(seen, nodes))


@pytest.mark.slow
@pytest.mark.parametrize("each", [25, 500, 5000])
def test_five_hundred_of_five_thousand_leases_are_chosen_within_a_poll(each: int) -> None:
    trainers = [trainer(str(number), BENT, 1, 5000) for number in range(5000 // each)]
    leases = [lease(f"n{number}", str(number // each)) for number in range(5000)]
    nodes = [item.node for item in leases]
    taken_s = []
    for _ in range(3):
        begun_s = time.thread_time()
        assert len(leave(state(trainers, leases), nodes, 500)) == 500
        taken_s.append(time.thread_time() - begun_s)
    # of its own processor time, and of a poll all: a tenth is usual, and what looks at each pair of leases takes many
    assert min(taken_s) < 1.0, f"{min(taken_s) * 1000:.1f} ms"
