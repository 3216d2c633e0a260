"""The check of packings: each thing that can be wrong is told, and by itself."""

from __future__ import annotations

import pytest

from sizing.cpu.sensitivity.matrix import Matrix
from studies.synergy.packing.check import broken
from studies.synergy.packing.types import Packing, PackJob, Servers, Share
from tests.support.messages import excerpt, says, wording

pytestmark = pytest.mark.slow

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
        ({"d": (share(1),)}, wording("studies.pack_check.not_a_job", id="d")),
        ({"a": (share(2),)}, wording("studies.pack_check.no_such_server", id="a", server=2, count=2)),
        ({"a": (share(-1),)}, wording("studies.pack_check.no_such_server", id="a", server=-1, count=2)),
        ({"a": (Share(0, 0, 3.0, 10 * GB),)}, wording("studies.pack_check.bad_gpus", id="a", gpus=0, server=0)),
        ({"a": (share(0, cpus=float("nan")),)}, "a has nan CPUs"),
        (
            {"a": (share(0, memory_gb=-1),)},
            excerpt("studies.pack_check.bad_cpus", id="a", cpus=3.0, memory_bytes=-1000000000.0),
        ),
        ({"c": (share(1), share(1))}, wording("studies.pack_check.server_twice", id="c")),
        ({"c": (share(1),)}, wording("studies.pack_check.other_gpus", id="c", given=1, asked=2)),
        ({"c": ()}, wording("studies.pack_check.other_gpus", id="c", given=0, asked=2)),
        ({"c": (share(1), share(0, cpus=4))}, excerpt("studies.pack_check.not_proportional", id="c")),
        ({"c": (share(1), share(0, memory_gb=9))}, excerpt("studies.pack_check.not_proportional", id="c")),
        (
            {"a": (share(0, cpus=6),), "b": (share(0, cpus=7),)},
            wording("studies.pack_check.too_many_cpus", server=0, cpus=13, cpus2=12),
        ),
        (
            {"a": (share(0, memory_gb=31),)},
            wording("studies.pack_check.too_much_memory", server=0, memory_bytes="4.1e+10", memory_bytes2="4e+10"),
        ),
        ({"a": (share(0, cpus=2),)}, wording("studies.pack_check.below_floor", id="a", rate=0.5, least=1)),
        ({"b": (share(0, cpus=6),)}, wording("studies.pack_check.unequal", id="b", rate=2, seen="a", seen2=1)),
    ],
)
def test_what_is_wrong_is_told(change: dict[str, tuple[Share, ...]], told: str) -> None:
    found = broken(Packing({**GOOD, **change}), JOBS, SERVERS, order=True)
    assert any(each.startswith(told) for each in found), found


def test_a_server_gives_no_more_gpus_than_it_has() -> None:
    jobs = [PackJob(str(at), MATRIX) for at in range(5)]
    packing = Packing({job.id: (share(0, cpus=1, memory_gb=1),) for job in jobs})
    assert broken(packing, jobs, SERVERS, floor=False) == [
        wording("studies.pack_check.too_many_gpus", server=0, gpus=5, gpus2=4)
    ]


def test_who_is_left_out_is_told_and_also_for_whom() -> None:
    packing = Packing({id: shares for id, shares in GOOD.items() if id != "b"})
    assert broken(packing, JOBS, SERVERS) == [wording("studies.pack_check.left_out_before", id="b", later="c")]
    assert broken(packing, JOBS, SERVERS, floor=False) == []
    packing = Packing({id: shares for id, shares in GOOD.items() if id != "c"})
    assert broken(packing, JOBS, SERVERS) == [wording("studies.pack_check.left_out", id="c")]


def test_two_jobs_of_one_name_are_told() -> None:
    assert says(broken(Packing(GOOD), [*JOBS, JOBS[0]], SERVERS), "studies.pack_check.job_twice")
