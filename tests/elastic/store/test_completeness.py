"""Which checkpoint versions count: those of which every rank has told its part, and whose parts fit together."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.store.completeness import Completeness, Over, RankReport
from tests.elastic.store.distributed import digest, name_of, told
from tests.support.messages import pattern, wording

pytestmark = pytest.mark.slow

HOME = "/lustre/ada/run7/bft-7-00ff00ff"


def hear(gathering: Completeness, worker: Hashable, **fields: Any) -> Over | None:
    step, rank, size = (fields.pop(key, default) for key, default in (("step", 5), ("rank", 0), ("size", 2)))
    return gathering.heard(worker, RankReport.parse(told(HOME, step, rank, size, **fields), HOME))


def test_a_version_is_complete_with_the_part_of_its_last_rank() -> None:
    gathering = Completeness()
    assert hear(gathering, "b", rank=1) is None
    assert gathering.names == {name_of(5)}
    over = hear(gathering, "a", rank=0)
    assert over is not None
    whole = over.complete
    assert whole is not None
    assert (whole.name, whole.step, whole.samples, whole.size) == (name_of(5), 5, 50, 2)
    assert [shard.file for shard in whole.shards] == ["__0_0.distcp", ".metadata", "__1_0.distcp"]
    assert whole.size_bytes == 8 + 5 + 9
    assert set(over.told) == {"a", "b"}
    assert not gathering.names


VERSIONS = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(sizes=VERSIONS, data=st.data())
def test_whatever_the_order_each_version_is_complete_once_and_only_when_every_rank_has_told(
    sizes: list[int], data: st.DataObject
) -> None:
    """Words of several groups between each other, some of them lost, some said twice."""
    words = [(token, rank) for token, size in enumerate(sizes) for rank in range(size)]
    order = data.draw(st.permutations(words))
    lost = data.draw(st.sets(st.sampled_from(words), max_size=2))
    twice = data.draw(st.sets(st.sampled_from(words), max_size=2))
    gathering, heard, complete, spoiled = Completeness(), set[tuple[int, int]](), set[int](), set[int]()
    for token, rank in order:
        for _ in range(0 if (token, rank) in lost else 1 + ((token, rank) in twice)):
            again = (token, rank) in heard
            try:
                over = hear(gathering, (token, rank), step=5, rank=rank, size=sizes[token], token=token)
            except ValueError:
                assert token in complete | spoiled
                continue
            heard.add((token, rank))
            if again:
                spoiled.add(token)
                assert over is not None
                assert over.complete is None
            elif over is not None:
                assert over.complete is not None
                assert over.name not in {name_of(5, other) for other in complete | spoiled}
                complete.add(token)
                assert {(token, other) for other in range(sizes[token])} <= heard
    for token, size in enumerate(sizes):
        all_told = all((token, rank) not in lost for rank in range(size))
        if token not in spoiled:
            assert (token in complete) == all_told
    assert gathering.names.isdisjoint(name_of(5, token) for token in complete | spoiled)


@given(st.data())
def test_no_version_counts_of_which_one_rank_could_not_write(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 5))
    bad = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    gathering, over = Completeness(), []
    for rank in data.draw(st.permutations(range(size))):
        word = gathering.unwritten(rank, name_of(5)) if rank in bad else hear(gathering, rank, rank=rank, size=size)
        over += [word] if word else []
    assert all(one.complete is None for one in over)
    assert len(over) == (1 if len(bad) < size else 0), "it goes when nobody writes it any more"
    assert len(over) + len(gathering.gone([])) == 1


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"rank": 0}, "told of twice"),
        ({"rank": 1, "samples": 51}, "different steps, samples"),
        ({"rank": 1, "size": 3}, "numbers of ranks"),
        (
            {"rank": 1, "files": [["__0_0.distcp", 8, digest(0)]]},
            wording("elastic.gathering.two_ranks", both="__0_0.distcp"),
        ),
    ],
)
def test_ranks_that_contradict_each_other_spoil_their_version_and_no_other(second: dict[str, Any], why: str) -> None:
    gathering = Completeness()
    assert hear(gathering, "a") is None
    over = hear(gathering, "b", **second)
    assert over is not None
    assert over.complete is None
    assert why in over.why
    with pytest.raises(ValueError, match=pattern("elastic.gathering.ended_already")):
        hear(gathering, "c", rank=1)
    assert hear(gathering, "a", step=6) is None
    assert (over := hear(gathering, "b", step=6, rank=1)) is not None
    assert over.complete is not None


def test_one_worker_is_one_rank() -> None:
    gathering = Completeness()
    hear(gathering, "a")
    over = hear(gathering, "a", rank=1)
    assert over is not None
    assert over.complete is None


@pytest.mark.parametrize(
    "lie",
    [
        {"name": "step-000000000005-../../../../x"},
        {"name": name_of(5) + "\n"},
        {"name": name_of(6), "path": f"{HOME}/{name_of(6)}"},
        {"name": 5},
        {"path": f"{HOME}/../{name_of(5)}"},
        {"path": f"/etc/{name_of(5)}"},
        {"path": None},
        {"rank": 2},
        {"rank": -1},
        {"rank": True},
        {"size": 0},
        {"size": 1 << 40},
        {"step": "5"},
        {"samples": -1},
        {"files": [["../x", 1, digest(0)], [".metadata", 1, digest(0)]]},
        {"files": [["a/b", 1, digest(0)], [".metadata", 1, digest(0)]]},
        {"files": [["..", 1, digest(0)], [".metadata", 1, digest(0)]]},
        {"files": [["a\n", 1, digest(0)], [".metadata", 1, digest(0)]]},
        {"files": [["é", 1, digest(0)], [".metadata", 1, digest(0)]]},
        {"files": [["a", -1, digest(0)], [".metadata", 1, digest(0)]]},
        {"files": [["a", 1, "short"], [".metadata", 1, digest(0)]]},
        {"files": [["a", 1, digest(0)], ["a", 1, digest(0)], [".metadata", 1, digest(0)]]},
        {"files": [["a", 1, digest(0)]]},
        {"files": "all"},
        {"files": [[1, 2]]},
    ],
)
def test_what_cannot_be_a_ranks_part_is_refused_in_one_line(lie: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as refused:
        RankReport.parse({**told(HOME, 5, 0, 2), **lie}, HOME)
    assert len(str(refused.value).splitlines()) == 1


def test_a_worker_that_goes_takes_along_what_nobody_else_can_complete() -> None:
    gathering = Completeness()
    hear(gathering, "a", size=3)
    hear(gathering, "b", rank=1, size=3)
    assert gathering.gone(["a", "c"]) == [], "b has told its part"
    [over] = gathering.gone(["a", "b"])
    assert (over.name, over.complete, set(over.told)) == (name_of(5), None, {"a", "b"})


def test_a_newer_version_ends_what_is_left_of_older_ones() -> None:
    gathering = Completeness()
    hear(gathering, "a")
    gathering.unwritten("a", name_of(6))
    hear(gathering, "a", step=7)
    assert [over.name for over in gathering.superseded(7)] == [name_of(5), name_of(6)]
    assert gathering.names == {name_of(7)}


def test_a_liar_cannot_have_more_and_more_remembered() -> None:
    gathering = Completeness()
    for token in range(8):
        hear(gathering, "a", token=token)
    with pytest.raises(ValueError, match="already"):
        hear(gathering, "a", token=8)
