"""Small servers and matrices for tests of rounds: one job wants CPUs, as images do, another does not, as text."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.cpu.sensitivity.matrix import Matrix, Recorded
from studies.simulation.world import SimulatedJob
from studies.synergy.packing.types import Packing, PackJob, Servers, Share

SERVERS = Servers(2, gpus=2, cpus=4.0, memory_bytes=4.0)


def recorded(name: str, kind: str, rates: Sequence[float], gpus: int = 1) -> Recorded:
    """With 1, 2, 3 CPUs and any memory from 1 byte on, for each GPU."""
    return Recorded(name, kind, Matrix(gpus, (1.0, 2.0, 3.0), (1.0,), tuple((rate,) for rate in rates)), 1.0)


MATRICES = {
    "image": recorded("image", "image", (5.0, 10.0, 20.0)),
    "language": recorded("language", "language", (3.0, 3.0, 3.0)),
    "image2": recorded("image2", "image", (5.0, 10.0, 20.0), gpus=2),
    "language2": recorded("language2", "language", (3.0, 3.0, 3.0), gpus=2),
    "starved": recorded("starved", "speech", (0.0, 0.0, 1.0)),
    "huge": recorded("huge", "language", (1.0, 1.0, 1.0), gpus=5),
}


def job(id: str, model: str = "language", at_s: float = 0.0, duration_s: float = 1000.0) -> SimulatedJob:
    """One that takes `duration_s` with its proportional share, 2 CPUs a GPU."""
    matrix = MATRICES[model].matrix
    return SimulatedJob(id, model, at_s, duration_s * (matrix.rates[1][0] or 1.0), matrix.gpus, "")


def even(jobs: Sequence[PackJob], servers: Servers) -> Packing:
    """A packer: everyone the proportional share, GPU after GPU."""
    point, at, shares = servers.proportional, 0, {}
    for each in jobs:
        places = [(at + gpu) // servers.gpus for gpu in range(each.gpus)]
        at += each.gpus
        shares[each.id] = tuple(
            Share(one, places.count(one), places.count(one) * point.cpus, places.count(one) * point.memory_bytes)
            for one in dict.fromkeys(places)
        )
    return Packing(shares)
