"""The check of packings: each thing that can be wrong is told, and by itself."""

from __future__ import annotations

import pytest

from sizing.cpu.matrix import Matrix
from sizing.pack.check import broken
from sizing.pack.types import Packing, PackJob, Servers, Share

GB = 1e9
SERVERS = Servers(2, 4, 12.0, 40 * GB)
MATRIX = Matrix(1, (1.0, 3.0, 6.0), (10 * GB,), ((0.5,), (1.0,), (2.0,)))
PAIR = Matrix(2, (1.0, 3.0, 6.0), (10 * GB,), ((0.5,), (1.0,), (2.0,)))
JOBS = (PackJob("a", MATRIX), PackJob("b", MATRIX), PackJob("c", PAIR))


def share(server: int, gpus: int = 1, cpus: float = 3.0, memory_gb: float = 10) -> Share:
    return Share(server, gpus, gpus * cpus, gpus * memory_gb * GB)


GOOD = {"a": (share(0),), "b": (share(0),), "c": (share(1, 2),)}


def test_nothing_is_wrong_with_a_packing_in_which_all_have_their_share() -> None:
    assert broken(Packing(GOOD), JOBS, SERVERS, order=True) == []
    split = {**GOOD, "c": (share(1), share(0))}
    assert broken(Packing(split), JOBS, SERVERS, order=True) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"d": (share(1),)}, "d has a place and is none of the jobs"),
        ({"a": (share(2),)}, "a is on server 2, of 2"),
        ({"a": (share(-1),)}, "a is on server -1, of 2"),
        ({"a": (Share(0, 0, 3.0, 10 * GB),)}, "a has 0 GPUs of server 0"),
        ({"a": (share(0, cpus=float("nan")),)}, "a has nan CPUs"),
        ({"a": (share(0, memory_gb=-1),)}, "a has 3.0 CPUs and -1000000000.0 bytes"),
        ({"c": (share(1), share(1))}, "c has the same server twice"),
        ({"c": (share(1),)}, "c has 1 GPUs and asks for 2"),
        ({"c": ()}, "c has 0 GPUs and asks for 2"),
        ({"c": (share(1), share(0, cpus=4))}, "c has CPUs or memory of its servers that are not proportional"),
        ({"c": (share(1), share(0, memory_gb=9))}, "c has CPUs or memory of its servers that are not proportional"),
        ({"a": (share(0, cpus=6),), "b": (share(0, cpus=7),)}, "server 0 gives 13 CPUs and has 12"),
        ({"a": (share(0, memory_gb=31),)}, "server 0 gives 4.1e+10 bytes of memory and has 4e+10"),
        ({"a": (share(0, cpus=2),)}, "a runs at 0.5, below the 1 of its GPUs' share"),
        ({"b": (share(0, cpus=6),)}, "b runs at 2, and a, equal and earlier, at 1"),
    ],
)
def test_what_is_wrong_is_told(change: dict[str, tuple[Share, ...]], told: str) -> None:
    found = broken(Packing({**GOOD, **change}), JOBS, SERVERS, order=True)
    assert any(each.startswith(told) for each in found), found


def test_a_server_gives_no_more_gpus_than_it_has() -> None:
    jobs = [PackJob(str(at), MATRIX) for at in range(5)]
    packing = Packing({job.id: (share(0, cpus=1, memory_gb=1),) for job in jobs})
    assert broken(packing, jobs, SERVERS, floor=False) == ["server 0 gives 5 GPUs and has 4"]


def test_who_is_left_out_is_told_and_also_for_whom() -> None:
    packing = Packing({id: shares for id, shares in GOOD.items() if id != "b"})
    assert broken(packing, JOBS, SERVERS) == ["b is left out and c, which comes later, is not"]
    assert broken(packing, JOBS, SERVERS, floor=False) == []
    packing = Packing({id: shares for id, shares in GOOD.items() if id != "c"})
    assert broken(packing, JOBS, SERVERS) == ["c is left out"]


def test_two_jobs_of_one_name_are_told() -> None:
    assert "two jobs have the same name" in broken(Packing(GOOD), [*JOBS, JOBS[0]], SERVERS)
