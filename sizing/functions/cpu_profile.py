"""`sizing.profile_cpu`: the CPUs and the memory that a training command needs besides its GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sizing.cpu import needs, profiler
from sizing.cpu.profiler import Profile, ProfileCost, ProfileRequest
from sizing.cpu.runs.affinity import How
from sizing.cpu.runs.measurement import ObservationLimits, PointProgress, PointResult
from sizing.cpu.sensitivity.matrix import Matrix
from sizing.cpu.words import age, cpus_in_words
from sizing.functions import cpu_node
from sizing.functions.site import HERE, Site
from sizing.sbatch.cpu import CpuNeed, NodeResources

_UNSURE = 0.2  # relative width of a rate's interval: one so wide hides twice the difference that the search looks for


@dataclass(frozen=True)
class CpuProfile:
    """The need of a command, with its lines (`need.lines()`), and the `profile` that it follows from.

    `node` is where it was profiled, None if nothing is known of that; `notes` are sentences on what the need rests on.
    """

    need: CpuNeed
    profile: Profile
    node: NodeResources | None
    notes: tuple[str, ...]

    @property
    def matrix(self) -> Matrix:
        """The rates by CPUs and memory, of each GPU; of the whole command if it uses none."""
        return self.need.matrix


def profile_cpu(
    command: Sequence[str],
    *,
    cpus: Sequence[int] = (),
    gpus: int | None = None,
    regex: str | None = None,
    budget_s: float = 600.0,
    limits: ObservationLimits | None = None,
    data: Sequence[str | Path] = (),
    dataset_bytes: float | None = None,
    dataset_samples: float | None = None,
    how: How = "auto",
    again: bool = False,
    site: Site = HERE,
    expected: Callable[[ProfileCost], None] | None = None,
    progress: Callable[[PointProgress], None] | None = None,
    done: Callable[[PointResult], None] | None = None,
) -> CpuProfile:
    """Run a training command a few times for some seconds on different numbers of CPUs, and return its need.

    `cpus` are those to choose from, in all, by default 1 to all there are. `gpus` is the number that the command uses,
    by default those of the allocation or of CUDA_VISIBLE_DEVICES. Its speed is read from its calls of elastic.step, or
    by `regex` from what it prints. `data` are files that it reads, for the memory that a cache of them needs;
    `dataset_bytes` and `dataset_samples` say how large the data set is, where that cannot be counted. `limits` are the
    times of one run, and `budget_s` that of all. Points are kept, and measured anew with `again`; the need is kept for
    elastic jobs of the same script. `expected` is told the cost before the first run and may raise to prevent it,
    `progress` of the run under way, and `done` of each that has ended.

    Raises UsageError for an impossible request, Unmeasured if no throughput was found.
    """
    used = cpu_node.gpus_used(site.slurm) if gpus is None else gpus
    ask = ProfileRequest(
        tuple(command),
        cpus=tuple(cpus),
        gpus=used,
        regex=regex,
        budget_s=budget_s,
        limits=limits or ObservationLimits(),
        dataset_bytes=dataset_bytes,
        data=tuple(map(Path, data)),
        how=how,
        again=again,
        dataset_samples=dataset_samples,
    )
    node, cost = cpu_node.here(site.slurm), profiler.cost(ask)
    if expected is not None:
        expected(cost)
    found = profiler.profile(ask, heard=progress, done=done)
    need = _need_of(found)
    return CpuProfile(need, found, node, (*_notes(found), *_kept(found, need)))


def _need_of(found: Profile) -> CpuNeed:
    """Return the need of a profile's job."""
    unit = next((result.unit for result in found.points.values()), "samples/s")
    process = found.process_bytes or None
    return CpuNeed(found.matrix, found.ask.gpus, process, found.memory_modelled, unit, found.available)


def _notes(found: Profile) -> list[str]:
    """Return notes on the profile, one sentence each."""
    told = list(found.said)
    told += dict.fromkeys(
        f"{cpus_in_words(result.cpus)}: {note}"
        for result in found.points.values()
        for note in result.notes
        if note not in told
    )
    unsure = [
        result for result in found.points.values() if result.rate.high - result.rate.low > _UNSURE * result.rate.value
    ]
    if unsure:
        rates = ", ".join(
            f"{each.rate.low:.3g} to {each.rate.high:.3g} with {cpus_in_words(each.cpus)}" for each in unsure
        )
        told.append(f"uncertain: {rates}; measure where nobody else runs, or longer (--seconds S --again)")
    if found.left_out:
        left = " and ".join(map(cpus_in_words, found.left_out))
        told.append(
            f"the budget of {found.ask.budget_s:.0f} s left no time for {left}: the same with a larger --budget"
        )
    if not (found.ask.data or found.ask.dataset_bytes):
        told.append(
            "whether memory for a cache of the data pays was not looked at: --data PATH with the files that it reads"
        )
    if found.ages_s:
        count, of = len(found.ages_s), len(found.points)
        old = f"{'up to ' * (count > 1)}{age(max(found.ages_s.values()))} old"
        told.append(
            f"{count} of {of} runs {'is' if count == 1 else 'are'} from the cache, {old}; --again measures anew"
        )
    return told


def _kept(found: Profile, need: CpuNeed) -> list[str]:
    """Store a profile's result for elastic jobs with the same script; return the reason if that fails, else [].

    Nothing is stored if the need has no memory.
    """
    if need.memory_bytes is None:
        return []
    made_s = max((point.made_s for point in found.points.values()), default=0.0)
    one = needs.StoredNeed(need.cpus, math.ceil(need.memory_bytes), need.gpus, found.host, made_s)
    said = needs.keep(found.ask.command, Path.cwd(), one)
    return [said] if said else []
