"""Throughput of `priced` against OPT on matrices that are made up, and the jobs that it moves between rounds.

    python -m benchmarks.synergy.generated_packing [--json] [--servers 4,16,64] [--draws N] [--seed N]
                                                    [--only FAMILY,...]

Public matrices are few and look alike: beyond a GPU's share, memory helps one model in six. Here a matrix is drawn for
each job, of one of these families; the servers are the paper's (8 GPUs, 24 CPUs, 500 GB), every GPU is asked for:

concave  more CPUs and memory always help, by less and less
steps    nothing helps for long, and then a jump, at up to three CPU counts and two memory sizes that multiply
limits   the slowest of decoding on CPUs, fetching what memory does not hold, and the GPU (the model of the MinIO cache)
either   half of the jobs want many CPUs and no memory, the other half much memory and few CPUs: both run out
mixed    any of these

OPT is the integer program over all servers as if they were one: what no packing can exceed, and what a packing on real
servers often cannot reach, above all with jobs of several GPUs, of which few go together on a server. `--draws` bounds
the draws of each case; by default they are 10, and 3 from 64 servers on, as there the program takes seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.evidence.model import Benchmark, Figure, rounded
from benchmarks.markdown import percent, table
from sizing.cpu.sensitivity.matrix import Matrix
from studies.synergy.optimum.pooled import bounds
from studies.synergy.packing import priced, throughput, tune
from studies.synergy.packing.check import broken
from studies.synergy.packing.parse_servers import GB, PAPERS, servers_of
from studies.synergy.packing.types import Packing, PackJob

CPUS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 12.0, 24.0)
MEMORY = tuple(gb * GB for gb in (20.8, 62.5, 125.0, 187.5, 250.0))
SIZES = {"1 GPU": (1,), "1, 2, 4 GPUs": (1, 1, 2, 4)}
ROUNDS = 12
LEAVE = 0.1
"""Of the jobs, from one round to the next."""

Rate = Callable[[float, float], float]


def _concave(rng: random.Random) -> Rate:
    cpus, memory, by_cpus = rng.uniform(0.3, 8), rng.uniform(5, 150) * GB, rng.random()
    return lambda c, m: (1 - math.exp(-c / cpus)) * (by_cpus + (1 - by_cpus) * (1 - math.exp(-m / memory)))


def _steps(rng: random.Random) -> Rate:
    at_cpus = [(at, rng.uniform(0.2, 1.5)) for at in rng.sample(CPUS, rng.randint(0, 3))]
    at_memory = [(at, rng.uniform(0.2, 1.5)) for at in rng.sample(MEMORY, rng.randint(0, 2))]

    def rate(c: float, m: float) -> float:
        return (1 + sum(up for at, up in at_cpus if c >= at)) * (1 + sum(up for at, up in at_memory if m >= at))

    return rate


def _limits(rng: random.Random) -> Rate:
    cpus = math.exp(rng.uniform(math.log(0.5), math.log(16)))
    dataset, disk = math.exp(rng.uniform(math.log(20), math.log(400))) * GB, rng.uniform(50, 300) * GB
    return lambda c, m: 1 / max(1, cpus / c, max(0.0, dataset - m) / disk)


def _either(rng: random.Random) -> Rate:
    if rng.random() < 0.5:
        cpus = rng.choice(CPUS[5:8])
        return lambda c, m: min(1.0, c / cpus)
    memory = rng.choice(MEMORY[2:])
    return lambda c, m: min(1.0, 0.2 + m / memory)


FAMILIES: Mapping[str, Callable[[random.Random], Rate]] = {
    "concave": _concave,
    "steps": _steps,
    "limits": _limits,
    "either": _either,
    "mixed": lambda rng: rng.choice((_concave, _steps, _limits, _either))(rng),
}


def draw(family: str, rng: random.Random, gpus: int, sizes: Sequence[int], first: int = 0) -> list[PackJob]:
    """Jobs that ask for so many GPUs together, each with a matrix of its own; ids go on from `first`."""
    jobs: list[PackJob] = []
    while gpus:
        size = rng.choice([size for size in sizes if size <= gpus])
        rate = FAMILIES[family](rng)
        # a job on one server cannot have more CPUs than that has, as in the public matrices
        rows = (tuple(rate(c, m) if c * size <= CPUS[-1] else 0.0 for m in MEMORY) for c in CPUS)
        jobs.append(PackJob(f"j{first + len(jobs)}", Matrix(size, CPUS, MEMORY, tuple(rows))))
        gpus -= size
    return jobs


@dataclass(frozen=True)
class Case:
    """Of all draws; throughput is a mean over GPUs, relative to proportional, and shares are of OPT's.

    `shares` and `took_ms` are those of each draw.
    """

    family: str
    sizes: str
    servers: int
    draws: int
    opt: float
    priced: float
    greedy: float
    priced_share: float
    priced_least_share: float
    priced_least_job: float
    median_ms: float
    worst_ms: float
    shares: tuple[float, ...]
    took_ms: tuple[float, ...]


def measure(family: str, sizes: str, count: int, draws: int, seed: int) -> Case:
    """One family, mixture of sizes and number of servers. Raises RuntimeError for a packing that breaks a rule."""
    servers = servers_of(PAPERS, count)
    opts, priced_means, greedies, least, taken_ms = [], [], [], [], []
    for number in range(draws):
        rng = random.Random(f"{seed} {family} {sizes} {count} {number}")
        jobs = draw(family, rng, count * servers.gpus, SIZES[sizes])
        begun_s = time.perf_counter()
        packing = priced.pack(jobs, servers)
        taken_ms.append((time.perf_counter() - begun_s) * 1e3)
        if wrong := broken(packing, jobs, servers, order=True):
            raise RuntimeError(f"{family}, {sizes}, {count} servers, draw {number}: {wrong[0]}")
        opts.append(bounds(jobs, servers).whole)
        priced_means.append(throughput.mean(packing, jobs, servers))
        greedies.append(throughput.mean(tune.greedy(jobs, servers), jobs, servers))
        least.append(throughput.least(packing, jobs, servers))
    shares = [got / most for got, most in zip(priced_means, opts, strict=True)]
    opt, priced_mean, greedy, share = map(statistics.fmean, (opts, priced_means, greedies, shares))
    return Case(
        family,
        sizes,
        count,
        draws,
        opt,
        priced_mean,
        greedy,
        share,
        min(shares),
        min(least),
        statistics.median(taken_ms),
        max(taken_ms),
        tuple(shares),
        tuple(taken_ms),
    )


@dataclass(frozen=True)
class Moves:
    """From round to round, with a tenth of the jobs new each time: what keeping places costs and saves."""

    family: str
    sizes: str
    moved_anew: float
    moved_kept: float
    throughput_kept_over_anew: float


def moves(family: str, sizes: str, count: int, seed: int) -> Moves:
    """Of the jobs that were there in the round before the share that changes servers, with `previous` and without."""
    servers = servers_of(PAPERS, count)
    rng = random.Random(f"{seed} {family} {sizes} rounds")
    jobs = draw(family, rng, count * servers.gpus, SIZES[sizes])
    anew, kept = priced.pack(jobs, servers), priced.pack(jobs, servers)
    ratios, moved = [], {"anew": [0, 0], "kept": [0, 0]}
    for number in range(1, ROUNDS):
        jobs = [job for job in jobs if rng.random() > LEAVE]
        left = count * servers.gpus - sum(job.gpus for job in jobs)
        jobs += draw(family, rng, left, SIZES[sizes], 100_000 * number)
        rng.shuffle(jobs)  # priorities change as well
        after_anew, after_kept = priced.pack(jobs, servers), priced.pack(jobs, servers, previous=kept)
        for name, before, after in (("anew", anew, after_anew), ("kept", kept, after_kept)):
            there = [job.id for job in jobs if job.id in before.shares]
            moved[name][0] += sum(_places(before, id) != _places(after, id) for id in there)
            moved[name][1] += len(there)
        anew, kept = after_anew, after_kept
        ratios.append(throughput.mean(kept, jobs, servers) / throughput.mean(anew, jobs, servers))
    shares = {name: some / all_ for name, (some, all_) in moved.items()}
    return Moves(family, sizes, shares["anew"], shares["kept"], statistics.fmean(ratios))


def _places(packing: Packing, id: str) -> list[tuple[int, int]]:
    return [(share.server, share.gpus) for share in packing.shares[id]]


def throughputs(found: Mapping[str, Any]) -> str:
    """A row for each family, mixture of sizes and number of servers."""
    rows = [
        [
            *(f"{each['family']}, {each['sizes']}", each["servers"]),
            *(f"{each[name]:.3f}" for name in ("opt", "priced", "greedy")),
            f"{percent(each['priced_share'])} ({percent(each['priced_least_share'])})",
            f"{each['priced_least_job']:.3f}",
            f"{each['median_ms']:.1f} ({each['worst_ms']:.1f})",
        ]
        for each in found["cases"]
    ]
    head = ["matrices, jobs", "servers", "OPT", "priced", "GREEDY", "priced of OPT: mean (least)", "slowest job"]
    return table([*head, "ms: median (worst)"], rows)


def moved(found: Mapping[str, Any]) -> str:
    """A row for each family and mixture of sizes: the jobs that change servers from round to round."""
    rows = [
        [
            f"{each['family']}, {each['sizes']}",
            *(percent(each[name]) for name in ("moved_kept", "moved_anew")),
            f"{each['throughput_kept_over_anew']:.4f}",
        ]
        for each in found["moves"]
    ]
    return table(["matrices, jobs on 16 servers", "moved", "packed anew", "throughput of that"], rows)


def _figures(found: Mapping[str, Any]) -> Mapping[str, Figure]:
    """The least that `priced` has of OPT with jobs of one GPU and of several; seeds are the same in each run."""
    figures = {}
    for name, sizes in (("one-gpu", "1 GPU"), ("several-gpus", "1, 2, 4 GPUs")):
        least = min(each["priced_least_share"] for each in found["cases"] if each["sizes"] == sizes)
        figures[name] = Figure(percent(least, 0), least, (least - 0.005, least + 0.005))
    return figures


EVIDENCE = {
    "synergy_generated_packing": Benchmark(
        ("benchmarks.synergy.generated_packing",), 0.6, {"throughputs": throughputs, "moved": moved}, _figures
    )
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--servers", default="4,16,64")
    parser.add_argument("--draws", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(FAMILIES))
    asked = parser.parse_args()
    counts, families = asked.servers.split(","), asked.only.split(",")
    if not all(count.isdecimal() and int(count) for count in counts):
        parser.error(f"--servers {asked.servers}: whole numbers with commas, such as 4,16")
    if unknown := set(families) - FAMILIES.keys():
        parser.error(f"--only {min(unknown)}: one of {', '.join(FAMILIES)}")
    if asked.draws is not None and asked.draws < 1:
        parser.error("--draws must be 1 or more")
    cases, kept = [], []
    for family in families:
        for sizes in SIZES:
            for count in map(int, counts):
                case = measure(family, sizes, count, asked.draws or (10 if count < 64 else 3), asked.seed)
                cases.append(case)
            kept.append(moves(family, sizes, 16, asked.seed))
    found = rounded({"cases": [asdict(each) for each in cases], "moves": [asdict(each) for each in kept]})
    print(json.dumps(found, indent=2) if asked.json else f"{throughputs(found)}\n\n{moved(found)}")


if __name__ == "__main__":
    main()
