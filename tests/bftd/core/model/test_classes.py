"""Trainers on a pool of several classes of nodes: one class each unless they mix, and only what they asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bftd.config.keys import PoolConfig
from bftd.core.model import messages
from bftd.core.model.classes import NodeClass, unmet, usable
from bftd.core.model.domain import ElasticJob, Settings
from bftd.core.model.events import Configured, PoolObserved
from bftd.core.scaling import learning
from bftd.core.scaling.learning import ScalingModel
from bftd.pool.harvest import Harvest
from bftd.pool.membership import PoolMemory, observe
from bftd.protocol.curves import CurveEstimate
from bftd.protocol.reports import CurveReport, ProgressReport
from bftd.protocol.requirements import Requirements
from bftd.service.status import kinds
from milp import MilpError, Plan, Problem, solve
from slurm_plugin.read.types import Node, Snapshot
from tests.bftd.builders import Core, node, registration
from tests.support.messages import says, wording

A100 = {f"n{number}": {"a100": 4} for number in (1, 2)}
V100 = {f"n{number}": {"v100": 2} for number in (3, 4, 5)}
CPU: dict[str, dict[str, int]] = {f"n{number}": {} for number in (6, 7, 8, 9)}
HARDWARE = A100 | V100 | CPU


class Mixed(Core):
    """A core whose pool comes from snapshots of such nodes, with the pilots that it knows."""

    def __init__(
        self, hardware: dict[str, dict[str, int]] = HARDWARE, settings: Settings | None = None, **fields: Any
    ) -> None:
        self.hardware, self.fields = hardware, fields
        self.harvest = fields.pop("harvest", Harvest.of("elastic"))
        self.partitions: dict[str, tuple[str, ...]] = {}
        self.memory = PoolMemory()
        super().__init__(settings or Settings().changed(pj_max=50))

    def node(self, name: str) -> Node:
        gpus = self.hardware[name]
        gres = ",".join(f"gpu:{kind}:{count}" for kind, count in gpus.items())
        return node(name, gpus=gpus, gres=gres, partitions=self.partitions.get(name, ("batch", "elastic")))

    def look(self) -> None:
        """One snapshot in which all nodes are idle or have our pilots; drivers then do as they are told."""
        nodes = {name: self.node(name) for name in self.hardware}
        snapshot = Snapshot(self.time_s + 1.0, nodes, (), ())
        config = PoolConfig(debounce_polls=1, **self.fields)
        self.memory, view = observe(self.memory, snapshot, config, self.harvest, {}, {})
        self._version += view.version  # a new view of the same time is none
        seen = {
            name: replace(item, pilot=next((id_ for id_, where in self.pilots.items() if where == name), None))
            for name, item in view.nodes.items()
        }
        elastic = {id_: ElasticJob(id_, "ann", "", (where,)) for id_, where in self.pilots.items()}
        self.time_s += 1.0
        told = replace(
            view, nodes=seen, pilots=dict(self.pilots), elastic=elastic, job_ids=frozenset(self.state.trainers)
        )
        self.apply(PoolObserved(self.time_s, told))
        for item in list(self.state.leases.values()):
            if not item.live:
                self.pilots.pop(item.job_id or "", None)
        self.place_all()


def classes_of(core: Mixed, trainer: str) -> set[str]:
    return {core.state.pool.nodes[name].node_class for name in core.nodes(trainer)}


def settle(core: Mixed, polls: int = 3) -> None:
    for _ in range(polls):
        core.look()


def test_regression_a_trainer_was_spread_over_nodes_with_different_gpus() -> None:
    core = Mixed()
    core.arrive(registration("1", 1, 9))
    settle(core)
    assert core.nodes("1") == set(CPU), "all of the class that has most nodes, and none of another"
    assert classes_of(core, "1") == {"cpu4-1G"}


ESTIMATES = tuple(
    CurveEstimate(name, tuple((nodes, rate * nodes) for nodes in (1, 2, 4)), "assumed", f"the data sheet of {name}")
    for name, rate in (("a100x4", 100.0), ("v100x2", 20.0), ("cpu4-1G", 1.0))
)


def test_a_trainer_starts_on_the_class_on_which_it_is_estimated_to_be_fastest() -> None:
    core = Mixed(settings=Settings().changed(objective="throughput"))
    core.arrive(registration("1", 1, 9))
    core.report("1", CurveReport(core.time_s, ESTIMATES))
    settle(core)
    assert core.nodes("1") == set(A100), "two of the fastest, though there are four of the slowest"
    assert "on 2 nodes (n[1-2], a100x4): " + wording("core.sentences.rate", rate="about 200") in "\n".join(
        core.sentences()
    )


def test_what_is_measured_on_one_class_moves_what_is_estimated_of_the_others() -> None:
    core = Mixed(settings=Settings().changed(objective="throughput"))
    core.arrive(registration("1", 1, 9, estimates=ESTIMATES))
    settle(core)
    core.report("1", ProgressReport(core.time_s, 5, 100.0, 10.0, 2, 2))
    known = core.state.trainers["1"].knowledge
    assert known.seen == ((2, 10.0),)
    assert learning.curve(known, 4, node_class="v100x2")[1] == (1, pytest.approx(1.0))
    assert "measured at 2: 10" in messages.curve(known)


def test_an_estimate_is_told_once_and_one_that_is_new_again() -> None:
    core = Mixed()
    core.arrive(registration("1", 1, 9))
    for estimates in (ESTIMATES[:1], ESTIMATES[:1], ESTIMATES[1:2]):
        core.report("1", CurveReport(core.time_s, estimates))
    told = [text for text in core.sentences() if says(text, "core.sentences.curve_estimated")]
    assert len(told) == 2
    assert told[0].endswith(
        wording(
            "core.sentences.curve_estimated_at",
            basis="assumed, from the data sheet of a100x4",
            points="1: 100, 2: 200, 4: 400",
        )
    )


def test_a_driver_is_told_of_the_classes_that_its_trainer_may_use_with_what_an_estimate_needs() -> None:
    core = Mixed()
    core.arrive(registration("1", 1, 9, requirements=Requirements(without=("v100",))))
    core.arrive(registration("2", 1, 9, requirements=Requirements(gpu="h100")))
    settle(core)
    told = kinds(core.state, core.state.trainers["1"])
    assert [(kind.name, kind.gpus, kind.cpus) for kind in told] == [("a100x4", {"a100": 4}, 4), ("cpu4-1G", {}, 4)]
    assert kinds(core.state, core.state.trainers["2"]) == ()


def test_a_driver_that_comes_back_without_an_estimate_does_not_take_it_away() -> None:
    core = Mixed()
    core.arrive(registration("1", 1, 9, estimates=ESTIMATES))
    assert core.state.trainers["1"].request.estimates == (), "they are written down once"
    core.arrive(registration("1", 1, 9))
    assert list(core.state.trainers["1"].knowledge.estimates) == [each.node_class for each in ESTIMATES]


def test_the_first_estimate_is_worth_a_new_plan_and_later_ones_are_not() -> None:
    core = Mixed(settings=Settings().changed(objective="throughput"))
    core.arrive(registration("1", 1, 9))
    settle(core)
    assert core.nodes("1") == set(CPU)
    solved: list[Problem] = []

    def solve_and_count(problem: Problem, *arguments: Any, **options: Any) -> Plan:
        solved.append(problem)
        return solve(problem, *arguments, **options)

    core.solve = solve_and_count
    core.look()
    assert not solved, "nothing has changed"
    core.report("1", CurveReport(core.time_s, ESTIMATES))
    core.look()
    assert solved
    solved.clear()
    for rate in (1.0, 2.0, 3.0):
        core.report("1", CurveReport(core.time_s, (CurveEstimate("a100x4", ((1, rate),)),)))
        core.look()
    assert not solved, "or a driver could have the daemon plan all the time"


def test_several_trainers_without_a_wish_are_on_a_class_each() -> None:
    core = Mixed()
    for id_ in "123":
        core.arrive(registration(id_, 1, 9))
    settle(core)
    assert all(len(classes_of(core, id_)) == 1 for id_ in "123")
    assert set.union(*(core.nodes(id_) for id_ in "123")) == set(HARDWARE), "and no node is idle"


def test_a_trainer_that_says_mix_gets_nodes_of_all_classes() -> None:
    core = Mixed()
    core.arrive(registration("1", 1, 9, requirements=Requirements(mix=True)))
    settle(core)
    assert core.nodes("1") == set(HARDWARE)


@pytest.mark.parametrize(
    ("requirements", "expected"),
    [
        (Requirements(gpu="a100"), set(A100)),
        (Requirements(gpu="a100", gpus=4), set(A100)),
        (Requirements(gpus=3), set(A100)),
        (Requirements(gpus=1, without=("v100",)), set(A100)),
        (Requirements(gpus=1, mix=True, without=("a100", "h100")), set(V100)),
        (Requirements(gpus=1), set(V100)),
        (Requirements(gpus=1, mix=True), set(A100) | set(V100)),
        (Requirements(gpu="v100", mix=True), set(V100)),
    ],
    ids=lambda value: str(value) if isinstance(value, Requirements) else " ".join(sorted(value)),
)
def test_S6_a_trainer_gets_only_nodes_with_the_gpus_that_it_asks_for(
    requirements: Requirements, expected: set[str]
) -> None:
    core = Mixed()
    core.arrive(registration("1", 1, 9, requirements=requirements))
    settle(core)
    assert core.nodes("1") == expected


def test_a_trainer_gets_only_the_gpus_that_it_asks_for_also_while_the_pool_has_but_one_class() -> None:
    core = Mixed({name: HARDWARE[name] for name in CPU} | {"n1": A100["n1"]})
    core.arrive(registration("1", 1, 9, requirements=Requirements(gpu="a100")))
    core.arrive(registration("2", 1, 9))
    settle(core)
    assert (core.nodes("1"), core.nodes("2")) == ({"n1"}, set(CPU))


def test_what_nobody_can_ever_serve_waits_with_a_reason_and_takes_no_place() -> None:
    core = Mixed()
    core.apply(Configured(core.time_s, core.state.settings.changed(pj_max=1)))
    core.arrive(registration("1", 1, 9, requirements=Requirements(gpu="h100")))
    core.arrive(registration("2", 5, 9))
    core.arrive(registration("3", 1, 2))
    settle(core)
    assert core.nodes("1") == core.nodes("2") == set()
    assert len(core.nodes("3")) == 2
    said = "\n".join(core.sentences())
    assert (
        "train-1 waits: "
        + wording("core.classes.no_class_has", where="", classes="gpu=h100", classes2="a100x4, cpu4-1G, v100x2")
        in said
    )
    assert "train-2 waits: " + wording("core.classes.largest_too_small", nodes_min=5, most=4) in said


def test_a_trainer_does_not_leave_its_class_for_another() -> None:
    core = Mixed()
    core.arrive(registration("1", 1, 3, requirements=Requirements(gpus=1)))
    settle(core)
    first = core.nodes("1")
    for number in range(30):
        core.report("1", ProgressReport(core.time_s, number, 100.0 * number, 50.0 + number % 7, nodes=3))
        core.look()
        assert core.nodes("1") == first
    assert len(core.state.trainers["1"].knowledge.seen) == 1


def test_the_sentence_says_the_class_on_which_a_trainer_starts() -> None:
    core = Mixed()
    core.arrive(registration("1", 1, 9, requirements=Requirements(gpu="v100")))
    settle(core)
    assert (
        "train-1 "
        + wording("core.sentences.starts", count="3 nodes", nodes="n[3-5], v100x2", rate="")
        + wording("protocol.changes.unknown_speed")
        in core.sentences()
    )


def test_a_trainer_is_not_told_of_free_nodes_of_another_class() -> None:
    core = Mixed()
    core.arrive(registration("1", 1, 9))
    settle(core)
    core.time_s += 130.0  # the plan is outdated
    settle(core)
    assert core.nodes("1") == set(CPU)
    assert not [text for text in core.sentences() if "more would add" in text]


def test_regression_under_a_bound_a_trainer_starved_whose_class_came_last_by_name() -> None:
    core = Mixed(V100 | {"n7": {"a100": 4}, "n8": {"a100": 4}}, Settings().changed(max_nodes=2))
    core.look()
    core.arrive(registration("1", nodes_max=8, requirements=Requirements(gpu="a100")))
    settle(core)
    assert core.nodes("1") == {"n7", "n8"}
    core.arrive(registration("2", nodes_max=8, requirements=Requirements(gpu="v100")))
    settle(core)
    assert core.nodes("1") == {"n7", "n8"}, "nobody moves for another class"


def test_under_a_bound_trainers_of_different_classes_take_turns_and_each_begins_with_its_least_number() -> None:
    hardware = {f"n{number}": {"v100": 2} for number in range(1, 9)}
    hardware |= {f"n{number}": {"a100": 4} for number in range(11, 19)}
    core = Mixed(hardware, Settings().changed(max_nodes=6))
    core.arrive(registration("1", nodes_max=8, requirements=Requirements(gpu="v100")))
    core.arrive(registration("2", nodes_min=3, nodes_max=8, requirements=Requirements(gpu="a100"), user="bob"))
    settle(core)
    assert (len(core.nodes("1")), len(core.nodes("2"))) == (2, 4)


def test_regression_a_node_that_was_barred_lost_its_class() -> None:
    core = Mixed(settings=Settings().changed(max_nodes=1))
    core.pause("node n1")
    core.look()
    shown = {name: item.node_class for name, item in core.state.pool.nodes.items()}
    assert set(shown.values()) == set(core.state.pool.classes)
    assert shown["n1"] == "a100x4"


def test_what_is_learned_on_one_class_is_not_taken_for_another_that_was_seen() -> None:
    known = learning.observe_rate(ScalingModel(), 2, 100.0, node_class="v100x2")
    known = learning.observe_rate(known, 2, 400.0, node_class="a100x4")
    known = learning.observe_rate(known, 1, 200.0, node_class="a100x4")
    assert known.seen_on("v100x2") == ((2, 100.0),)
    assert known.seen_on("a100x4") == ((1, 200.0), (2, 400.0))
    assert known.seen_on("h100x8") == known.seen_on("a100x4"), "where it never ran it is taken for as fast"
    back = learning.observe_rate(known, 2, 100.0, node_class="v100x2")
    assert (back.node_class, back.seen) == ("v100x2", ((2, 100.0),))
    assert dict(back.elsewhere) == {"a100x4": ((1, 200.0), (2, 400.0))}


def test_what_was_learned_before_there_were_classes_is_kept() -> None:
    known = learning.observe_rate(ScalingModel(), 2, 100.0)
    known = learning.observe_rate(known, 4, 190.0, node_class="a100x4")
    assert known.seen_on("a100x4") == ((2, 100.0), (4, 190.0))


@pytest.mark.parametrize("objective", ["throughput", "efficiency", "priority"])
def test_a_trainer_that_knows_two_classes_starts_on_the_faster(objective: str) -> None:
    core = Mixed(A100 | {name: V100[name] for name in ("n3", "n4")})
    core.apply(Configured(core.time_s, core.state.settings.changed(objective=objective)))
    core.arrive(registration("1", 1, 2))
    known = learning.observe_rate(
        learning.observe_rate(ScalingModel(), 2, 100.0, node_class="a100x4"), 2, 300.0, node_class="v100x2"
    )
    trainers = {"1": replace(core.state.trainers["1"], knowledge=known)}
    core.state = replace(core.state, trainers=trainers)
    settle(core)
    assert classes_of(core, "1") == {"v100x2"}


def test_the_curve_is_learned_on_the_class_where_the_trainer_works() -> None:
    core = Mixed()
    core.arrive(registration("1", 1, 9, requirements=Requirements(gpu="v100")))
    settle(core)
    core.report("1", ProgressReport(core.time_s, 5, 300.0, 60.0, nodes=3))
    known = core.state.trainers["1"].knowledge
    assert (known.node_class, known.seen) == ("v100x2", ((3, 60.0),))


def test_a_pilot_is_asked_for_in_a_harvested_partition_of_its_node() -> None:
    core = Mixed(harvest=Harvest.of("elastic", "late"))
    core.partitions = dict.fromkeys(V100, ("late",)) | dict.fromkeys(CPU, ("late", "elastic"))
    core.arrive(registration("1", 1, 9, partition="late", requirements=Requirements(mix=True)))
    settle(core)
    assert core.nodes("1") == set(V100) | set(CPU)
    assert {lease.partition for lease in core.leases("1")} == {"late"}
    core.finish("1")
    core.arrive(registration("2", 4, 9, partition=""))
    settle(core, 5)
    assert core.nodes("2") == set(CPU)
    assert {lease.partition for lease in core.leases("2")} == {"elastic"}


def test_a_node_that_becomes_one_of_another_class_is_given_up_also_when_no_solver_works() -> None:
    core = Mixed(dict(HARDWARE))
    core.arrive(registration("1", 1, 9, requirements=Requirements(gpus=1, gpu="v100")))
    settle(core)
    core.hardware["n5"] = {"v100": 4}

    def broken(*_: object, **__: object) -> Plan:
        raise MilpError("no plan")

    core.solve = broken
    settle(core)
    assert core.nodes("1") == {"n3", "n4"}


@pytest.mark.parametrize(
    ("limits", "requirements", "solver"),
    [
        ({}, Requirements(), "auto"),
        ({"nodes_per_user": 3}, Requirements(), "stepwise"),
        ({}, Requirements(mix=True), "stepwise"),
    ],
)
def test_regression_on_several_classes_a_cap_or_a_mixing_trainer_left_no_time_for_any_plan(
    limits: dict[str, int], requirements: Requirements, solver: str
) -> None:
    core, asked = Mixed(), []

    def told(problem: Problem, name: str, **options: Any) -> Plan:
        asked.append((len(problem.classes) > 1, name))
        return solve(problem, name, **options)

    core.solve = told
    core.apply(Configured(core.time_s, core.state.settings.changed(**limits)))
    core.arrive(registration("1", 1, 2))
    core.arrive(registration("2", 1, 9, requirements=requirements))
    settle(core)
    assert set(asked) == {(True, solver)}
    assert core.nodes("1")
    assert core.nodes("2")


def kind(name: str, size: int = 4, **fields: Any) -> NodeClass:
    plain: dict[str, Any] = {"gpus": {}, "features": frozenset(), "some_features": frozenset(), "partitions": ()}
    return NodeClass(name, size, **{**plain, **fields})


def test_a_feature_that_only_some_nodes_of_a_class_have_is_no_feature_of_the_class() -> None:
    known = {"a": kind("a", some_features=frozenset({"ib"})), "b": kind("b", features=frozenset({"ib", "x"}))}
    assert usable(known, Requirements(features=("ib",)), "") == ("b",)
    why = unmet({"a": known["a"]}, Requirements(features=("ib",)), "", 1)
    assert why is not None
    assert says(why, "core.classes.partly", part="a", feature="ib")


def test_a_trainer_of_a_partition_may_use_only_its_classes() -> None:
    known = {
        "a": kind("a", partitions=("p",)),
        "b": kind("b", partitions=("p", "q")),
        "c": kind("c", partitions=("q",)),
    }
    assert usable(known, Requirements(), "") == ("a", "b", "c")
    assert usable(known, Requirements(), "q") == ("b", "c")


def test_nothing_is_said_of_a_pool_that_is_not_known_or_too_small_of_one_class() -> None:
    assert unmet({}, Requirements(gpu="h100"), "", 1) is None
    assert unmet({"a": kind("a")}, Requirements(), "", 9) is None


@pytest.mark.parametrize("bounded", [True, False])
def test_regression_a_node_that_was_paused_or_beyond_the_bound_had_no_class(bounded: bool) -> None:
    core = Mixed(V100)
    if bounded:
        core.apply(Configured(core.time_s, core.state.settings.changed(max_nodes=1)))
    else:
        core.pause("all")
    core.look()
    seen = core.state.pool.nodes.values()
    assert not all(node.in_pool for node in seen)
    assert {node.node_class for node in seen} == {"v100x2"}
