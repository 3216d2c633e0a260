"""Synergy's policies on jobs of the public matrices: throughput over servers shared by GPUs, and milliseconds.

    python -m benchmarks.synergy.packing [--json] [--mixes 20/70/10,...] [--servers 4,16,64] [--draws N] [--seed N]

One-GPU jobs are drawn until all GPUs of the servers (8 GPUs, 24 CPUs, 500 GB) are asked for; draws have the seeds from
--seed on. `relaxed` and `whole` are OPT's first program, linear and integer, in which all servers are one: no packing
has more. `opt` is its second program, on servers as they are. `priced`'s share of OPT is told against all three.

The matrices are those of msr-fiddle/synergy (../shared/data/sizing/synergy-matrices.json). Times are wall time: measure
them on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.evidence.model import Benchmark, rounded
from benchmarks.markdown import brief_percent, table
from sizing.base.errors import UsageError
from sizing.cpu.matrices_file import load
from sizing.cpu.sensitivity.matrix import Matrices
from studies.synergy.optimum.pooled import bounds
from studies.synergy.packing import throughput as worth
from studies.synergy.packing.check import broken
from studies.synergy.packing.draw import draw, mix_of
from studies.synergy.packing.packers import FAIR, PACKERS
from studies.synergy.packing.parse_servers import papers
from studies.synergy.packing.types import Servers

DATA = Path(__file__).parents[3] / "shared" / "data" / "sizing" / "synergy-matrices.json"
HEAD = (
    "mix",
    "servers",
    "LP",
    "ILP",
    "OPT placed",
    "priced",
    "priced of OPT placed, least",
    "of LP, least",
    "TUNE",
    "GREEDY (GPUs used)",
    "LP + ILP + OPT ms, median (worst)",
    "priced ms",
)
MIXES = ("20/70/10", "30/60/10", "50/0/50")
SERVERS = (4, 16, 64)
LEAST_OF_OPT = 0.95
"""`priced`'s throughput over OPT's, in every draw of these mixes."""
BOUND_MIXES = ("20/70/10", "30/60/10")
PRICED_MS = 50.0
OPT_MS = 1000.0

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Policy:
    """Of one policy in one draw."""

    throughput: float
    least_job: float
    gpus_used: int
    ms: float
    broken: int


@dataclass(frozen=True, slots=True)
class Draw:
    """All policies on the same jobs, with OPT's bounds and how long these take."""

    seed: int
    relaxed: float
    whole: float
    bounds_ms: float
    policies: dict[str, Policy]


@dataclass(frozen=True, slots=True)
class Case:
    """A mix on so many servers."""

    mix: str
    servers: int
    draws: tuple[Draw, ...]

    @classmethod
    def read(cls, case: Mapping[str, Any]) -> Case:
        """Return the case that --json tells."""
        draws = [
            Draw(**{**each, "policies": {name: Policy(**policy) for name, policy in each["policies"].items()}})
            for each in case["draws"]
        ]
        return cls(case["mix"], case["servers"], tuple(draws))

    def of(self, policy: str, value: Callable[[Policy], float]) -> list[float]:
        """A number of a policy in each draw."""
        return [value(each.policies[policy]) for each in self.draws]

    def priced_over(self, most: Callable[[Draw], float]) -> list[float]:
        """`priced`'s throughput over another in each draw."""
        return [each.policies["priced"].throughput / most(each) for each in self.draws]

    def least(self) -> dict[str, float]:
        """The least that `priced` has of OPT as placed, and of its integer and linear programs, all servers as one."""
        return {
            "opt": min(self.priced_over(lambda each: each.policies["opt"].throughput)),
            "whole": min(self.priced_over(lambda each: each.whole)),
            "relaxed": min(self.priced_over(lambda each: each.relaxed)),
        }


def _timed(work: Callable[[], Found]) -> tuple[Found, float]:
    began_s = time.perf_counter()
    found = work()
    return found, (time.perf_counter() - began_s) * 1e3


def one(matrices: Matrices, mix: str, servers: Servers, seed: int) -> Draw:
    """Draw jobs and pack them by every policy."""
    jobs = draw(matrices, mix_of(mix), servers.count * servers.gpus, seed)
    most, bounds_ms = _timed(lambda: bounds(jobs, servers))
    policies = {}
    for name, pack in PACKERS.items():
        packing, ms = _timed(lambda pack=pack: pack(jobs, servers))  # type: ignore[misc]
        policies[name] = Policy(
            worth.mean(packing, jobs, servers),
            worth.least(packing, jobs, servers),
            sum(job.gpus for job in jobs if job.id in packing.shares),
            ms,
            len(broken(packing, jobs, servers, floor=name in FAIR)),
        )
    return Draw(seed, most.relaxed, most.whole, bounds_ms, policies)


def measured(matrices: Matrices, mixes: Sequence[str], servers: Sequence[int], draws: int, seed: int) -> Iterator[Case]:
    """All cases."""
    one(matrices, mixes[0], papers(min(servers)), seed)  # what is slow for the first time is not told
    for mix in mixes:
        for count in servers:
            yield Case(mix, count, tuple(one(matrices, mix, papers(count), seed + at) for at in range(draws)))


def verdict(cases: Sequence[Case]) -> dict[str, bool]:
    """The project's bounds, each over all draws."""
    held = [case for case in cases if case.mix in BOUND_MIXES]
    return {
        "priced_of_opt": all(min(case.least().values()) >= LEAST_OF_OPT for case in held),
        "no_job_below_proportional": all(
            min(case.of(name, lambda each: each.least_job)) >= 1 - 1e-9 for case in cases for name in FAIR
        ),
        "priced_ms": all(max(case.of("priced", lambda each: each.ms)) <= PRICED_MS for case in cases),
        "opt_ms": all(each.bounds_ms + each.policies["opt"].ms <= OPT_MS for case in cases for each in case.draws),
        "nothing_broken": not any(sum(case.of(name, lambda each: each.broken)) for case in cases for name in PACKERS),
    }


def to_json(cases: Sequence[Case]) -> dict[str, object]:
    """All draws, and what they say."""
    return {
        "bounds": {"priced_of_opt": LEAST_OF_OPT, "priced_ms": PRICED_MS, "opt_ms": OPT_MS},
        "held": verdict(cases),
        "cases": [rounded({**asdict(case), "least_priced_of": case.least()}) for case in cases],
    }


def rows(cases: Sequence[Case]) -> Iterator[Sequence[object]]:
    """The cells below `HEAD`: a row for each case of `BOUND_MIXES`, and one for all servers of another mix."""
    for mix in dict.fromkeys(case.mix for case in cases):
        of_mix = [case for case in cases if case.mix == mix]
        yield from map(_row, [[case] for case in of_mix] if mix in BOUND_MIXES else [of_mix])


def _row(cases: Sequence[Case]) -> Sequence[object]:
    every = Case(cases[0].mix, cases[-1].servers, tuple(each for case in cases for each in case.draws))
    mean = {name: statistics.fmean(every.of(name, lambda each: each.throughput)) for name in PACKERS}
    used = [gpus / (8 * case.servers) for case in cases for gpus in case.of("greedy", lambda each: each.gpus_used)]
    opt_ms = [each.bounds_ms + each.policies["opt"].ms for each in every.draws]
    priced_ms = every.of("priced", lambda each: each.ms)
    least = every.least()
    return (
        every.mix,
        every.servers if len(cases) == 1 else f"{cases[0].servers} to {every.servers}",
        f"{statistics.fmean(each.relaxed for each in every.draws):.3f}",
        f"{statistics.fmean(each.whole for each in every.draws):.3f}",
        f"{mean['opt']:.3f}",
        f"{mean['priced']:.3f}",
        brief_percent(least["opt"]) + _missed(every.mix in BOUND_MIXES and least["opt"] < LEAST_OF_OPT),
        brief_percent(least["relaxed"]) + _missed(every.mix in BOUND_MIXES and least["relaxed"] < LEAST_OF_OPT),
        f"{mean['tune']:.3f}",
        f"{mean['greedy']:.3f} ({100 * statistics.fmean(used):.0f} %)",
        f"{statistics.median(opt_ms):.0f} ({max(opt_ms):.0f})" + _missed(max(opt_ms) > OPT_MS),
        f"{statistics.median(priced_ms):.1f} ({max(priced_ms):.1f})" + _missed(max(priced_ms) > PRICED_MS),
    )


def _missed(missed: bool) -> str:
    return ", missed" if missed else ""


def shown(found: Mapping[str, Any]) -> str:
    """The table of what --json prints."""
    return table(HEAD, rows([Case.read(case) for case in found["cases"]]))


EVIDENCE = {"synergy_packing": Benchmark(("benchmarks.synergy.packing",), 0.2, {"throughput": shown})}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--matrices", type=Path, default=DATA)
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--servers", default=",".join(map(str, SERVERS)))
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    try:
        counts = [max(1, int(count)) for count in asked.servers.split(",")]
        cases = list(
            measured(load(asked.matrices), asked.mixes.split(","), counts, max(1, asked.draws), max(0, asked.seed))
        )
    except (UsageError, ValueError) as error:
        sys.exit(f"synergy.packing: {error}")
    if asked.json:
        print(json.dumps(to_json(cases), indent=2))
        return
    print(table(HEAD, rows(cases)))
    print(f"\n{len(cases[0].draws)} draws each. Bounds held: {verdict(cases)}")


if __name__ == "__main__":
    main()
