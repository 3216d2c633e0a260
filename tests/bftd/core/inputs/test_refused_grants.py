"""Drivers that hang, lie or are refused: what they cost the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from bftd.core.inputs.refused_grants import unproven
from bftd.core.invariants import validate_state
from bftd.core.model import timing
from bftd.core.model.domain import ElasticJob, Lease, PoolNode, PoolView, Settings, State, Trainer
from bftd.core.model.draft import Draft
from bftd.core.model.events import Configured, Event, Finished, Heard, PoolObserved, Registered, Reported
from bftd.core.step import fold
from bftd.http.handlers.driver import LONGEST_WAIT_S
from bftd.protocol.lease import LeaseState
from bftd.protocol.registration import Held, Registration
from elastic.base.timing import LONG_POLL_S
from elastic.driver import daemon_link
from tests.bftd.builders import Core, granted, lease, registration, reported
from tests.support.messages import wording

NODES = [f"n{number}" for number in range(1, 9)]
POLL_S = 4.0
BETTER = ((1, 100.0), (8, 800.0))
GOOD = ((1, 90.0), (8, 720.0))


def _forgiven(item: Trainer) -> Trainer:
    return replace(item, refused_rounds=0, no_growth_until_s=0.0)


class Race:
    """A healthy trainer of bob's and one of eve's, whose curve is better, on eight idle nodes in simulated time.

    `pilots` has by job id the leases whose pilots Slurm shows.
    """

    def __init__(self, eve: Callable[[Race], Iterator[Event]]) -> None:
        self.now = 1000.0
        self.state = State()
        self.eve = eve
        self.request = registration("77", nodes_max=8, user="eve", curve=BETTER)
        self.pilots: dict[str, Lease] = {}
        self.total = self.healthy = self.wasted = 0
        self.tell(Configured(self.now, Settings().changed(objective="throughput")))
        self.look()
        self.tell(Registered(self.now, self.request))
        self.tell(Registered(self.now, registration("78", nodes_max=8, user="bob", curve=GOOD)))

    def tell(self, *events: Event) -> None:
        """One step."""
        self.state, _ = fold(self.state, events, explain=False)

    def look(self) -> None:
        """One snapshot, in which both drivers' jobs run."""
        on = {item.node: id_ for id_, item in self.pilots.items()}
        nodes = {name: PoolNode(name, "IDLE", True, "is idle", pilot=on.get(name)) for name in NODES}
        users = {id_: "bob" if item.trainer == "78" else "eve" for id_, item in self.pilots.items()}
        elastic = {id_: ElasticJob(id_, users[id_], "", (item.node,)) for id_, item in self.pilots.items()}
        pilots = {id_: item.node for id_, item in self.pilots.items()}
        view = PoolView(1, self.now, None, nodes, pilots, {}, frozenset({"77", "78"}), elastic)
        self.tell(PoolObserved(self.now, view))

    def mine(self) -> list[Lease]:
        """The leases of eve's trainers."""
        return [item for item in self.state.leases.values() if item.trainer != "78"]

    def bob(self) -> Event:
        """What the healthy driver does: it places what is granted and ends what is revoked."""
        reports = []
        for item in self.state.leases.values():
            if item.trainer != "78":
                continue
            job_id = f"9{item.id.rpartition('.')[2]}"
            if not item.live:
                self.pilots.pop(job_id, None)
                reports.append(lease(item.id, "ended", job_id=item.job_id))
            elif item.job_id is None:
                self.pilots[job_id] = item
                reports.append(lease(item.id, "working", job_id=job_id))
        return reported(self.now, "78", *reports) if reports else Heard(self.now, "78")

    def run(self, seconds: float) -> tuple[float, float]:
        """The shares of the node-seconds that the healthy trainer works, and that are lent to eve without a pilot."""
        for _ in range(int(seconds / POLL_S)):
            self.now += POLL_S
            self.tell(self.bob())
            for event in self.eve(self):
                self.tell(event)
            self.look()
            validate_state(self.state)
            self.total += len(NODES)
            self.healthy += sum(item.live for item in self.state.leases.values() if item.trainer == "78")
            real = {item.id for item in self.pilots.values()}
            self.wasted += sum(item.id not in real for item in self.mine())
        return self.healthy / self.total, self.wasted / self.total


def says_nothing(race: Race) -> Iterator[Event]:
    """Its driver is stopped."""
    return iter(())


def places_nothing(race: Race) -> Iterator[Event]:
    """It asks for its leases and does nothing about them."""
    yield Heard(race.now, "77")


def says(*phases: LeaseState) -> Callable[[Race], Iterator[Event]]:
    """It says of each lease that it is in these phases, with jobs that Slurm does not have."""

    def liar(race: Race) -> Iterator[Event]:
        yield Heard(race.now, "77")
        for item in race.mine():
            said = [lease(item.id, phase, job_id=f"5{item.id.rpartition('.')[2]}") for phase in phases]
            yield reported(race.now, "77", *said)

    liar.__qualname__ = "says_" + "_".join(phases)
    return liar


def comes_back_without_its_leases(race: Race) -> Iterator[Event]:
    """Whenever it has held some for a while."""
    yield Heard(race.now, "77")
    if any(race.now - item.granted_s > 20.0 for item in race.mine()):
        yield Registered(race.now, race.request)


def comes_back_with_jobs_that_are_not_there(race: Race) -> Iterator[Event]:
    """It has the daemon adopt them."""
    held = tuple(Held(item.id, item.node, "555") for item in race.mine() if item.live)
    yield Registered(race.now, replace(race.request, held=held))


def comes_back_under_other_names(race: Race) -> Iterator[Event]:
    """It finishes its trainer before anybody has waited for its pilots too long, and registers another."""
    own = [item for item in race.state.trainers.values() if item.user == "eve" and item.active]
    if race.now - own[-1].arrived_s > 20.0:
        yield Finished(race.now, own[-1].id, 0, "")
        yield Registered(race.now, replace(race.request, id=f"run-x-{race.now:.0f}"))
    else:
        yield Heard(race.now, own[-1].id)


def places_one_pilot_a_round(race: Race) -> Iterator[Event]:
    """The least that Slurm can show, and it ends that again."""
    yield Heard(race.now, "77")
    ended = [id_ for id_, item in race.pilots.items() if item.trainer == "77" and race.now - item.granted_s > 8.0]
    for id_ in ended:
        yield reported(race.now, "77", lease(race.pilots.pop(id_).id, "ended", job_id=id_))
    new = [item for item in race.mine() if item.live and item.job_id is None and race.now - item.granted_s < 8.0]
    if new:
        job_id = f"5{new[0].id.rpartition('.')[2]}"
        race.pilots[job_id] = new[0]
        yield reported(race.now, "77", lease(new[0].id, "working", job_id=job_id))
    for item in race.mine():
        if not item.live:
            yield reported(race.now, "77", lease(item.id, "ended"))


def refuses_all_but_one(race: Race) -> Iterator[Event]:
    """As if Slurm had: its nodes back off, which keeps the others from them too."""
    yield from places_one_pilot_a_round(race)
    for item in race.mine():
        if item.live and item.job_id is None:
            yield reported(race.now, "77", lease(item.id, "refused"))


LIARS = (
    says_nothing,
    places_nothing,
    says("placed"),
    says("working"),
    says("working", "ended"),
    says("ended"),
    says("leaving"),
    says("refused"),
    comes_back_without_its_leases,
    comes_back_with_jobs_that_are_not_there,
    comes_back_under_other_names,
    places_one_pilot_a_round,
    refuses_all_but_one,
)


@pytest.mark.parametrize("liar", LIARS, ids=lambda liar: liar.__qualname__)
def test_regression_a_driver_that_hung_or_lied_held_the_nodes_that_a_healthy_one_could_use(
    liar: Callable[[Race], Iterator[Event]],
) -> None:
    healthy, wasted = Race(liar).run(1200.0)
    assert healthy > 0.8
    assert wasted < 0.16


def test_a_driver_that_is_not_heard_gets_no_node_and_everybody_is_told_why() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=4))
    core.silent = {"1"}
    core.pool(after_s=timing.GRANT_SILENT_S + 1)
    assert granted(core.pool("n1", "n2")) == []
    assert core.sentences() == ["train-1 waits: " + wording("core.sentences.silent", GRANT_SILENT_S=45)]
    core.pool("n1", "n2", "n3")
    assert len(core.sentences()) == 1, "it is said once"
    core.silent = set()
    assert len(granted(core.pool("n1", "n2", "n3"))) == 3, "at once when it is heard again"


def test_a_driver_is_given_nodes_as_long_as_it_was_heard_in_the_last_45_s() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=4))
    core.silent = {"1"}
    assert len(granted(core.pool("n1", after_s=timing.GRANT_SILENT_S))) == 1


def test_what_a_silent_driver_holds_it_keeps_and_gets_no_more() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=4))
    core.pool("n1", "n2")
    core.place_all()
    core.pool("n1", "n2")
    core.silent = {"1"}
    core.pool("n1", "n2", after_s=timing.GRANT_SILENT_S + 1)
    core.pool("n1", "n2", "n3")
    assert core.nodes("1") == {"n1", "n2"}
    assert core.sentences()[-1] == "train-1 " + wording("core.sentences.stays", held="2 nodes", why="") + wording(
        "core.sentences.silent", GRANT_SILENT_S=45
    )


def test_a_healthy_driver_that_loses_two_requests_is_not_silent() -> None:
    assert 2 * (daemon_link._REQUEST_S + LONG_POLL_S) < timing.GRANT_SILENT_S
    assert LONGEST_WAIT_S < timing.GRANT_SILENT_S


def test_leases_that_are_never_placed_are_a_refused_round_and_the_wait_after_it_is_as_long_as_it_was_dear() -> None:
    core = Core()
    core.arrive(registration("1", nodes_min=2, nodes_max=4))
    tries, waits_s, ended_s = [], [], None
    for _ in range(700):
        if new := granted(core.pool(*NODES[:4])):
            tries.append(len(new))
            if ended_s is not None:
                waits_s.append(core.time_s - ended_s)
        for item in core.leases("1", live=False):
            ended_s = core.time_s
            core.report("1", lease(item.id, "ended"))
    assert core.state.trainers["1"].refused_rounds >= 4
    assert tries[:4] == [4, 4, 4, 2], "after three rounds it tries with as few as it can"
    assert max(waits_s[:2]) <= 3.0
    assert waits_s[2] >= 4 * timing.PLACE_WITHIN_S
    assert waits_s[3] >= 2 * waits_s[2] - 2.0


def test_only_pilots_that_slurm_shows_end_the_refusals_once_they_made_up_for_the_idle_time() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1")
    (item,) = core.leases("1")
    core.report("1", lease(item.id, "refused"))
    core.pool("n1", after_s=2)
    (item,) = core.leases("1")
    core.report("1", lease(item.id, "working", job_id="71"))
    assert not core.state.leases[item.id].shown
    core.pilots["71"] = "n1"
    core.pool("n1")
    assert core.state.leases[item.id].shown
    assert core.state.trainers["1"].refused_rounds == 1
    core.pool("n1", "n2", after_s=timing.IDLED_WEIGHT + 1)
    core.place_all()
    assert core.state.trainers["1"].refused_rounds == 1
    core.pool("n1", "n2")
    assert core.state.trainers["1"].refused_rounds == 0


def test_another_users_job_is_no_proof_of_a_pilot() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1, user="eve"))
    core.pool("n1")
    (item,) = core.leases("1")
    core.report("1", lease(item.id, "working", job_id="71"))
    core.pilots["71"] = "n1"
    core.elastic["71"] = ElasticJob("71", "bob", "", ("n1",))
    core.pool("n1")
    assert not core.state.leases[item.id].shown


def test_a_new_trainer_begins_with_what_its_user_was_refused_and_nobody_elses() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2, user="eve"))
    for _ in range(timing.REFUSED_ROUNDS):
        core.pool("n1", "n2", after_s=5.0)
        for item in core.leases("1"):
            core.report("1", lease(item.id, "refused"))
    core.finish("1")
    core.arrive(registration("2", user="eve"))
    core.arrive(registration("3", user="bob"))
    assert [core.state.trainers[id_].refused_rounds for id_ in "23"] == [timing.REFUSED_ROUNDS, 0]
    core.pool("n1", "n2", "n3", "n4", after_s=9.0)
    assert len(core.nodes("2")) == 1, "it tries with as few as it can"
    assert len(core.nodes("3")) == 3


def test_what_one_user_alone_is_refused_keeps_a_node_from_others_for_a_moment_only() -> None:
    def waits_s(*others: str) -> float:
        core = Core(Settings().changed(objective="throughput"))
        core.arrive(registration("1", nodes_max=1, user="eve", curve=BETTER))
        for user in others:
            core.arrive(registration(user, 9, 9, user=user))
        for _ in range(5):
            while not core.leases("1"):
                core.pool("n1")
            (item,) = core.leases("1")
            core.state = replace(core.state, trainers={**core.state.trainers, "1": _forgiven(core.state.trainers["1"])})
            core.report("1", lease(item.id, "refused"))
        return core.state.backoff["n1"].until_s - core.time_s

    assert waits_s() == 16.0
    assert waits_s("bob") == timing.BACKOFF_ONE_USER_S


def test_simulated_drivers_are_believed_and_never_silent() -> None:
    state, _ = fold(State(), [Configured(1.0, Settings(trusting=True))])
    request: Registration = registration("1", nodes_max=1)
    view = PoolView(1, 2.0, None, {"n1": PoolNode("n1", "IDLE", True, "is idle")})
    state, _ = fold(state, [Registered(1.0, request), PoolObserved(2.0, view)])
    (item,) = state.leases.values()
    state, _ = fold(state, [Reported(3.0, "1", (lease(item.id, "working", job_id="7", at_s=3.0),))])
    assert state.leases[item.id].shown
    assert not unproven(Draft(state, 3.0), replace(state.leases[item.id], shown=False))
    state, _ = fold(state, [Reported(4.0, "1", (lease(item.id, "ended", at_s=4.0),))])
    nodes = {name: PoolNode(name, "IDLE", True, "is idle") for name in ("n1", "n2")}
    state, _ = fold(state, [PoolObserved(999.0, PoolView(2, 999.0, None, nodes, job_ids=frozenset("1")))])
    assert len(state.leases) == 1
