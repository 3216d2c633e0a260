"""Jobs of a new packing stay on their servers where names alone stand against it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.synergy.packing.types import Packing, Share
from studies.synergy.stable_assignment import Shares, stay

pytestmark = pytest.mark.slow


def on(*gpus: tuple[int, int], cpus: float = 2.0) -> Shares:
    """Shares by (server, GPUs)."""
    return tuple(Share(server, count, count * cpus, count * 1.0) for server, count in gpus)


def test_servers_are_renamed_so_that_jobs_stay() -> None:
    before = {"a": on((0, 1)), "b": on((0, 1)), "c": on((1, 2))}
    packing = Packing({"c": on((0, 2)), "a": on((1, 1)), "b": on((1, 1))})
    assert stay(packing, before, 2) == before


def test_jobs_that_have_as_much_exchange_their_places() -> None:
    before = {"a": on((0, 1)), "b": on((1, 1))}
    packing = Packing({"b": on((0, 1)), "new": on((0, 1)), "a": on((1, 1)), "big": on((1, 2))})
    found = stay(packing, before, 3)
    assert (found["a"], found["b"]) == (before["a"], before["b"])
    assert {found["new"][0].server, found["big"][0].server} == {0, 1}


def test_jobs_that_have_more_than_others_keep_it() -> None:
    before = {"a": on((0, 1)), "b": on((1, 1))}
    packing = Packing({"a": (*on((1, 1), cpus=3.0),), "b": on((0, 1))})
    found = stay(packing, before, 2)
    assert found == {"a": on((0, 1), cpus=3.0), "b": on((1, 1))}, "other CPUs need no other server"


def test_a_split_job_stays_where_it_is() -> None:
    before = {"two": on((1, 2), (2, 1))}
    packing = Packing({"two": on((0, 1), (1, 2)), "new": on((0, 1))})
    found = stay(packing, before, 3)
    assert found["two"] == before["two"]
    assert found["new"][0].server == 2


shares = st.dictionaries(
    st.sampled_from([*"abcdefgh"]),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=2, unique_by=lambda one: one[0]),
)


@settings(max_examples=200, deadline=None)
@given(shares, shares, st.sampled_from([1.0, 2.0]))
def test_nothing_but_names_changes(before: dict[str, list[tuple[int, int]]], now: dict[str, list[tuple[int, int]]],
                                   cpus: float) -> None:  # fmt: skip
    packing = Packing({id: on(*places, cpus=cpus if id < "d" else 2.0) for id, places in now.items()})
    found = stay(packing, {id: on(*places) for id, places in before.items()}, 5)

    def sizes(of: Shares) -> Counter[tuple[int, float, float]]:
        return Counter((share.gpus, share.cpus, share.memory_bytes) for share in of)

    def servers(of: dict[str, Shares]) -> Counter[frozenset[tuple[tuple[int, float, float], int]]]:
        there: dict[int, Counter[tuple[int, float, float]]] = {}
        for each in of.values():
            for share in each:
                there.setdefault(share.server, Counter()).update([(share.gpus, share.cpus, share.memory_bytes)])
        return Counter(frozenset(each.items()) for each in there.values())

    assert {id: sizes(each) for id, each in found.items()} == {id: sizes(each) for id, each in packing.shares.items()}
    assert servers(found) == servers(dict(packing.shares))
    assert all(0 <= share.server < 5 for each in found.values() for share in each)
    # what has stood like this stays so
    assert stay(Packing(found), found, 5) == found
