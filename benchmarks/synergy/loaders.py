"""Both example loaders profiled for real on two CPUs of this machine: one wants both of them, the other does not.

    python -m benchmarks.synergy.loaders [--rounds N] [--json]

Each round profiles examples/image_loader.py and examples/language_loader.py anew (nothing is taken from a cache), in
turns, so that both meet the same machine. Of each the gain from one CPU to two is told, by the median over the rounds
with all that was seen, and which CPUs the search found enough. Without a GPU one thread stands for it. Which part of
the CPUs other programs took meanwhile is told beside it: above a few percent, the figures are about them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.evidence.model import Benchmark, Figure
from benchmarks.markdown import table
from sizing.cpu.profiler import ProfileRequest, profile
from sizing.cpu.runs.steady_state import ObservationLimits

EXAMPLES = Path(__file__).parents[2] / "examples"
JOBS = {"image_loader.py": "image-data", "language_loader.py": "tokens.bin"}
"""The scripts with the name of their data, which they make where it is not there."""

HEAD = (
    "script",
    "one CPU, samples/s",
    "two CPUs",
    "gain: median (all)",
    "CPUs found enough",
    "CPUs that others took",
)
ROUNDS = 5


@dataclass(frozen=True)
class Round:
    """One profile of a job: samples/s on one and two CPUs, the CPUs found enough, and what part others took of them."""

    job: str
    one: float
    two: float
    demand: float
    others: float
    took_s: float

    @property
    def gain(self) -> float:
        """From one CPU to two: 1.0 is twice as fast."""
        return self.two / self.one - 1


def profiled(job: str, folder: Path, limits: ObservationLimits) -> Round:
    """Profile one example on one and two CPUs; its data and cache are in `folder`."""
    command = (sys.executable, str(EXAMPLES / job), "--data", str(folder / JOBS[job]), "--steps", "1000000")
    found = profile(ProfileRequest(command, cpus=(1, 2), limits=limits, again=True))
    rates = {cpus: result.rate.value for cpus, result in found.points.items()}
    others = max(result.others for result in found.points.values())
    return Round(job, rates[1], rates[2], found.matrix.demand().cpus, others, found.took_s)


def prepared(folder: Path) -> None:
    """Let the scripts make their data, and keep the cache of profiles out of the user's own."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    root = str(EXAMPLES.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    for job, data in JOBS.items():
        words = (sys.executable, str(EXAMPLES / job), "--data", str(folder / data), "--steps", "1")
        code = subprocess.run(words, stdout=sys.stderr, check=False).returncode  # standard output is the figures'
        if code:
            raise SystemExit(f"{job} ended with {code}")


@dataclass(frozen=True)
class Summary:
    """A job's rounds: medians, all gains in order, and how often which demand was found."""

    one: float
    two: float
    gain: float
    gains: tuple[float, ...]
    demands: dict[str, int]
    others: float
    took_s: float


def summary(rounds: Sequence[Round]) -> Summary:
    """What the rounds of one job say."""
    demands = [each.demand for each in rounds]
    return Summary(
        statistics.median(each.one for each in rounds),
        statistics.median(each.two for each in rounds),
        statistics.median(each.gain for each in rounds),
        tuple(sorted(each.gain for each in rounds)),
        {f"{cpus:g}": demands.count(cpus) for cpus in sorted(set(demands))},
        statistics.median(each.others for each in rounds),
        statistics.median(each.took_s for each in rounds),
    )


def rows(found: Mapping[str, Summary]) -> Iterator[Sequence[object]]:
    """The cells of each job below `HEAD`."""
    for job, each in found.items():
        yield (
            f"`examples/{job}`",
            f"{each.one:.0f}",
            f"{each.two:.0f}",
            f"{100 * each.gain:.0f} % ({', '.join(f'{100 * gain:.0f}' for gain in each.gains)})",
            ", ".join(cpus for cpus, count in each.demands.items() for _ in range(count)),
            f"{100 * each.others:.0f} %",
        )


def shown(found: Mapping[str, Any]) -> str:
    """The table of what --json prints."""
    return table(HEAD, rows({job: Summary(**each) for job, each in found["jobs"].items()}))


def _figures(found: Mapping[str, Any]) -> Mapping[str, Figure]:
    """The gain of each job from a second CPU, between the least and the most of the rounds, and how long it took."""
    figures = {}
    for job, each in found["jobs"].items():
        name, gains = job.partition("_")[0], each["gains"]
        figures[f"{name}-gain"] = Figure(f"{100 * each['gain']:.0f} %", each["gain"], (min(gains), max(gains)))
        figures[f"{name}-took"] = Figure(f"{each['took_s']:.0f} s", each["took_s"])
    return figures


EVIDENCE = {
    "synergy_loaders": Benchmark(("benchmarks.synergy.loaders", "--rounds", "3"), 4.0, {"gains": shown}, _figures)
}


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.synergy.loaders", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("two CPUs are needed")
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="bft-cpu-real-") as folder:
        prepared(Path(folder))
        for number in range(options.rounds):
            for job in list(JOBS)[:: 1 if number % 2 else -1]:
                rounds.append(profiled(job, Path(folder), ObservationLimits()))
                print(f"{number + 1}/{options.rounds} {job}: {rounds[-1].gain:+.0%}", file=sys.stderr, flush=True)
    found = {job: summary([each for each in rounds if each.job == job]) for job in JOBS}
    jobs = {job: asdict(each) for job, each in found.items()}
    told = {"jobs": jobs, "rounds": [asdict(each) for each in rounds]}
    print(json.dumps(told, indent=2) if options.json else shown(told))


if __name__ == "__main__":
    main()
