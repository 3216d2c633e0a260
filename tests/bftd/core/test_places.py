"""Places under pj_max: who gets one, who waits, and what they are told."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.core.model import timing
from bftd.core.model.domain import Assignment, Settings, State, Trainer
from bftd.core.model.draft import Draft
from bftd.core.planning import caps
from bftd.core.planning.caps import Ruling, at_caps
from tests.bftd.builders import Core, granted, lease, names, registration, trainer
from tests.support.messages import pattern, says, wording

USERS = st.lists(st.sampled_from("abcd"), max_size=14)
PLACES = st.integers(1, 8)


def state_of(users: list[str], pj_max: int, per_user: int = 0) -> State:
    """Trainers of these users in order of arrival, each heard just now."""
    items = [replace(trainer(f"{at}", user=user), arrived_s=float(at), heard_s=99.0) for at, user in enumerate(users)]
    limits = Settings().changed(pj_max=pj_max, trainers_per_user=per_user)
    return State(settings=limits, time_s=99.0, trainers={item.id: item for item in items})


def ruled(state: State, held: Assignment | None = None) -> Ruling:
    """What is ruled at 100 s."""
    return caps.rule(Draft(state, 100.0), held or {}, 9)


def admitted(state: State) -> list[str]:
    """The ids of those that have a place."""
    return [item.id for item in ruled(state).admitted]


@given(USERS, PLACES, st.integers(0, 3))
def test_every_user_has_a_place_before_any_has_two_more_than_another_who_waits(
    users: list[str], pj_max: int, per_user: int
) -> None:
    state = state_of(users, pj_max, per_user)
    ruling = ruled(state)
    has = {user: sum(item.user == user for item in ruling.admitted) for user in users}
    able = sum(min(count, per_user or count) for count in Counter(users).values())
    assert sum(has.values()) == min(pj_max, able), "no place is left while somebody waits"
    if pj_max >= len(has):
        assert all(has.values()), "every user has a place"
    for user, count in has.items():
        assert not per_user or count <= per_user
        if any(waits.key == "place" and state.trainers[id_].user == user for id_, waits in ruling.waiting.items()):
            assert max(has.values()) <= count + 1
    assert {item.id for item in ruling.admitted} | set(ruling.waiting) == set(state.trainers)


@given(USERS, PLACES)
def test_within_a_user_the_first_come_are_the_first_served(users: list[str], pj_max: int) -> None:
    state = state_of(users, pj_max)
    with_place = set(admitted(state))
    for user in set(users):
        own = [item.id in with_place for item in state.trainers.values() if item.user == user]
        assert own == sorted(own, reverse=True)


@given(USERS, PLACES, st.sampled_from("abcde"))
def test_a_newcomer_takes_at_most_one_place_and_nothing_changes_until_somebody_comes_or_goes(
    users: list[str], pj_max: int, newcomer: str
) -> None:
    before = admitted(state_of(users, pj_max))
    assert admitted(state_of(users, pj_max)) == before
    after = admitted(state_of([*users, newcomer], pj_max))
    lost = set(before) - set(after)
    assert len(lost) <= 1
    owner = dict(zip(map(str, range(len(users))), users, strict=True))
    assert all(owner[id_] != newcomer for id_ in lost), "nobody loses a place to a trainer of the same user"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=7), st.integers(1, 4), st.integers(0, 10**6))
def test_trainers_with_nodes_do_not_flap_while_nobody_comes_or_goes(users: list[str], pj_max: int, seed: int) -> None:
    core = Core(Settings().changed(pj_max=pj_max, first_node_within_s=0.0))
    names = [f"n{number}" for number in range(1, 7)]
    core.pool(*names)
    for at, user in enumerate(users):
        core.arrive(registration(str(at), nodes_max=3, user=user), after_s=1)
    rng = random.Random(seed)
    holders: list[set[str]] = []
    for _ in range(12):
        core.place_all()
        for item in [item for item in core.state.leases.values() if not item.live]:
            core.pilots.pop(item.job_id or "", None)
            core.report(item.trainer, lease(item.id, "ended"))
        core.pool(*names, after_s=rng.choice([1.0, 9.0]))
        holders.append({item.trainer for item in core.state.leases.values() if item.live})
    assert holders[4:] == [holders[-1]] * len(holders[4:])


def test_regression_ten_trainers_of_one_user_shut_everybody_else_out_in_silence() -> None:
    core = Core()
    names = [f"n{number}" for number in range(1, 33)]
    core.pool(*names)
    for at in range(10):
        core.arrive(registration(f"e{at}", 32, 32, user="eve"), after_s=1)
    core.arrive(registration("b", nodes_max=32, user="bob"), after_s=1)
    core.pool(*names)
    assert len(core.nodes("b")) + len(core.nodes("e0")) == 32
    assert core.nodes("b") or "train-b waits" in " ".join(core.sentences())
    assert "train-e9 waits: " + wording("core.caps.at_cap", group="eve", most=3, things="trainers") in core.sentences()


def test_who_has_no_place_is_told_once_who_is_before_it() -> None:
    core = Core(Settings().changed(pj_max=2, trainers_per_user=0))
    core.pool("n1", "n2", "n3", "n4")
    for id_, user in (("1", "ann"), ("2", "ann"), ("3", "bob"), ("4", "cyd"), ("5", "ann")):
        core.arrive(registration(id_, nodes_max=2, user=user), after_s=1)
    for _ in range(3):
        core.pool("n1", "n2", "n3", "n4")
    waits = [text for text in core.sentences() if " waits: all" in text]
    before = "train-1 (ann), train-3 (bob)"
    assert (
        "train-4 waits: "
        + wording("core.sentences.no_place", taken="all 2 places are", before=before.replace(", ", " and "))
        in waits
    )
    assert (
        "train-5 waits: " + wording("core.sentences.no_place", taken="all 2 places are", before=f"{before} and 2 more")
        in waits
    )
    assert len([text for text in waits if text.startswith("train-5")]) == 1
    assert any(re.match("train-2 " + pattern("core.sentences.suspended"), text) for text in core.sentences())


def test_who_waits_for_nodes_is_told_who_has_them() -> None:
    core = Core(Settings().changed(pilot_limit_s=1e6))
    core.pool("n1", "n2")
    core.arrive(registration("1", 2, 2))
    core.arrive(registration("2", 2, 2, user="bob"), after_s=1)
    assert core.sentences()[-1] == waits_for_nodes("train-2", 2, holds("1", 2, since="00:16:41"))
    core.place_all()
    core.pool("n1", "n2", after_s=90_000.0)
    core.arrive(registration("3", 2, 2, user="cyd"))
    assert core.sentences()[-1] == waits_for_nodes("train-3", 2, holds("1", 2, since="Thu 00:16"))


def test_who_waits_is_told_first_of_the_trainers_that_its_user_may_end() -> None:
    core = Core(Settings().changed(trainers_per_user=0))
    core.pool(*names(5))
    for id_, user in (("1", "ann"), ("2", "ann"), ("3", "ann"), ("4", "bob"), ("5", "cyd"), ("6", "bob")):
        core.arrive(registration(id_, 1, 1, user=user))
    since = "00:16:41"
    told = f"{holds('4', 1, 'bob', since)}, {holds('1', 1, since=since)}, {holds('5', 1, 'cyd', since)} and 2 more"
    assert core.sentences()[-1] == waits_for_nodes("train-6", 1, told)


def test_regression_who_waits_was_not_told_that_others_have_the_nodes_by_now() -> None:
    core = Core()
    core.pool("n1")
    core.arrive(registration("1", 1, 1))
    core.arrive(registration("2", 1, 1, user="bob"))
    core.arrive(registration("3", 1, 1, user="cyd"))
    core.place_all()
    for _ in range(3):
        core.pool("n1")
    core.finish("1")
    for item in core.leases("1", live=False):
        core.pilots.clear()
        core.report("1", lease(item.id, "ended"))
    core.pool("n1")
    core.pool("n1")
    waits = [text for text in core.sentences() if text.startswith("train-3 waits")]
    assert [says(text, "core.sentences.holds", id="1").found for text in waits] == [True, False]
    assert says(waits[1], "core.sentences.holds", id="2", held=1)


def holds(id_: str, held: int, user: str = "ann", since: str = "") -> str:
    """What is said of a trainer that has nodes."""
    return wording("core.sentences.holds", held=held, id=id_, name=f"train-{id_}", user=user, since=since)


def waits_for_nodes(who: str, needed: int, holders: str) -> str:
    """What is said of a trainer that waits for nodes of others."""
    return f"{who} waits: {wording('core.sentences.too_few_free', needed=needed)}: {holders}"


def test_a_trainer_of_a_silent_driver_takes_no_place_unless_it_holds_nodes() -> None:
    core = Core(Settings().changed(pj_max=1))
    core.arrive(registration("1", nodes_max=1))
    core.arrive(registration("2", nodes_max=1, user="bob"), after_s=1)
    core.silent = {"1"}
    core.pool(after_s=timing.GRANT_SILENT_S + 2)
    assert [item.trainer for item in granted(core.pool("n1"))] == ["2"]

    core = Core(Settings().changed(pj_max=1))
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    core.place_all()
    core.silent = {"1"}
    core.arrive(registration("2", nodes_max=1, user="bob"), after_s=timing.GRANT_SILENT_S + 2)
    core.pool("n1", "n2")
    assert core.nodes("1") == {"n1"}


def test_the_place_of_a_trainer_whose_driver_falls_silent_is_free_at_once() -> None:
    core = Core(Settings().changed(pj_max=1))
    core.pool("n1")
    core.arrive(registration("1", 9, 9))
    core.arrive(registration("2", nodes_max=1, user="bob"))
    core.silent = {"1"}
    for _ in range(46):
        core.pool("n1")
    assert core.nodes("2") == {"n1"}


def test_a_trainer_of_a_silent_driver_does_not_count_towards_a_cap_that_it_leaves_to_others() -> None:
    core = Core(Settings().changed(trainers_per_user=1))
    core.arrive(registration("1", nodes_max=1))
    core.arrive(registration("2", nodes_max=1), after_s=1)
    core.silent = {"1"}
    core.pool("n1", after_s=timing.GRANT_SILENT_S + 2)
    assert core.nodes("2") == {"n1"}
    assert [item["text"] for item in at_caps(core.state)] == [
        wording("core.caps.at_cap", group="ann", most=1, things="trainer")
    ]


def test_names_of_those_before_are_few_however_many_there_are() -> None:
    items: list[Trainer] = [trainer(str(at)) for at in range(500)]
    named = "train-0 (ann), train-1 (ann), train-2 (ann)"
    assert caps.called(items, 500) == f"{named} and 497 more"
    assert caps.called(items, 3) == "train-0 (ann), train-1 (ann) and train-2 (ann)"
    assert caps.called(items, 1) == "train-0 (ann)"
